//! The process that sets up the environment of a test and starts its chain.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abi::Signal;
use sys::clone::CloneFlags;
use workload::Error;

use super::{Process, Scenario, chain};
use crate::action::{MARK, Outcome, Scratch, Stop, surround};

/// Folders that are covered by overlays, so that changes do not reach the host.
const LAYERED: [&str; 8] = [
    "/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/var",
];

/// Options of the process that sets up the environment.
#[derive(Clone, Debug)]
pub struct SceneOptions {
    /// The scenario, as a JSON file.
    pub file: PathBuf,
    /// The folder of the run.
    pub scratch: PathBuf,
    /// Allow changes to the host where overlays are not possible.
    pub touch_system: bool,
    /// Addresses that calls contact in the real network.
    pub allow_network: Vec<IpAddr>,
    /// Set if this process is the first of the container.
    pub inside: bool,
}

/// Returns the command that plays a scenario, after the words of `prefix`.
///
/// # Errors
///
/// If the scenario cannot be written to the folder of the run.
pub fn command(
    scenario: &Scenario,
    program: &Path,
    scratch: &Scratch,
    prefix: &[String],
    settings: &[String],
) -> Result<Command, Error> {
    let folder = tempfile::Builder::new()
        .prefix("scene-")
        .tempdir_in(scratch.path())
        .map_err(Error::file("make a folder in", scratch.path()))?
        .keep();
    // Independent of the umask: every process of the chain makes the next one's program.
    let for_all = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    fs::set_permissions(&folder, for_all).map_err(Error::file("open", &folder))?;
    let file = folder.join("scenario.json");
    let text = serde_json::to_string(scenario).expect("a scenario is plain data");
    fs::write(&file, text).map_err(Error::file("write", &file))?;
    let mut words = prefix.to_vec();
    words.push(program.display().to_string());
    words.extend(["generate", "scene", "--file"].map(str::to_owned));
    words.push(file.display().to_string());
    words.extend(["--scratch".to_owned(), scratch.path().display().to_string()]);
    words.extend(settings.iter().cloned());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env(MARK, scratch.path())
        .stdin(Stdio::null());
    Ok(command)
}

/// Sets up the environment and starts the chain. Returns an exit code. If the chain was not started, prints the
/// outcome to `out`.
pub fn scene(args: &SceneOptions, program: &Path, out: &mut dyn Write) -> u8 {
    let outcome = match try_scene(args, program) {
        Ok(code) => return code,
        Err(outcome) => outcome,
    };
    let line = serde_json::to_string(&outcome).expect("an outcome is plain data");
    // The reader may be gone.
    let _ = writeln!(out, "{line}");
    1
}

fn try_scene(args: &SceneOptions, program: &Path) -> Result<u8, Outcome> {
    let failed = |error: Error| Outcome::Failed {
        error: error.chain(),
    };
    sys::prctl::set_parent_death_signal(Signal::SIGKILL.0)
        .map_err(Error::call("follow the generator"))
        .map_err(failed)?;
    let text = fs::read(&args.file)
        .map_err(Error::file("read", &args.file))
        .map_err(failed)?;
    let mut scenario: Scenario =
        serde_json::from_slice(&text).map_err(|error| Outcome::Failed {
            error: format!("cannot read {}: {error}", args.file.display()),
        })?;
    if !args.inside {
        let stopped = |stop| Outcome::of(Err(stop));
        surround(
            &addresses(&scenario),
            &args.allow_network,
            &layered(),
            &args.scratch,
            args.touch_system,
        )
        .map_err(stopped)?;
        if scenario.context.container.is_some() {
            return enter(args, program, &scenario).map_err(stopped);
        }
    } else {
        furnish(&scenario).map_err(failed)?;
    }
    add_users(&scenario).map_err(failed)?;
    if scenario.context.processes.is_empty() {
        scenario.context.processes.push(Process::default());
        let text = serde_json::to_string(&scenario).expect("a scenario is plain data");
        fs::write(&args.file, text)
            .map_err(Error::file("write", &args.file))
            .map_err(failed)?;
    }
    let folder = args.file.parent().unwrap_or(&args.scratch);
    chain::start(&scenario, 0, &args.file.display().to_string(), folder)
}

/// Returns the addresses that a test names and that must be given to this host; those of the loopback network
/// are present.
fn addresses(scenario: &Scenario) -> BTreeSet<IpAddr> {
    let all = scenario
        .addresses()
        .filter_map(|text| text.parse::<SocketAddr>().ok());
    let all: BTreeSet<IpAddr> = all.map(|address| address.ip()).collect();
    all.into_iter()
        .filter(|address| !address.is_loopback() && !address.is_unspecified())
        .collect()
}

fn layered() -> BTreeSet<&'static str> {
    LAYERED
        .into_iter()
        .filter(|folder| Path::new(folder).is_dir())
        .collect()
}

/// Starts this program again as the first process of namespaces like a container's.
fn enter(args: &SceneOptions, program: &Path, scenario: &Scenario) -> Result<u8, Stop> {
    let kinds = CloneFlags::NEWNS
        | CloneFlags::NEWPID
        | CloneFlags::NEWIPC
        | CloneFlags::NEWUTS
        | CloneFlags::NEWCGROUP;
    sys::namespace::unshare(kinds.0)
        .map_err(|error| Stop::Skipped(format!("needs the right to make a container: {error}")))?;
    let container = scenario.context.container.clone().unwrap_or_default();
    let status = Command::new(program)
        .args(["generate", "scene", "--inside", "--file"])
        .arg(&args.file)
        .arg("--scratch")
        .arg(&args.scratch)
        .envs(&container.env)
        .stdin(Stdio::null())
        .status()
        .map_err(Error::file("start", program))?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(128))
}

/// Sets up a container from its first process: /proc with its own processes, and a host name.
fn furnish(scenario: &Scenario) -> Result<(), Error> {
    crate::action::mount(Some("proc"), Path::new("/proc"), Some("proc"), 0, None)?;
    let container = scenario.context.container.as_ref();
    let name = container.and_then(|container| container.name.as_deref());
    sys::namespace::set_host_name(name.unwrap_or("event-generator").as_bytes())
        .map_err(Error::call("set the host name"))
}

/// Adds missing users to the overlay over /etc. Without an overlay they remain missing, which the chain will
/// report.
fn add_users(scenario: &Scenario) -> Result<(), Error> {
    let is_root = rustix::process::geteuid().is_root();
    for (process, uid) in scenario.context.processes.iter().zip(60_001..) {
        let Some(name) = process.user.as_deref() else {
            continue;
        };
        let is_layer = crate::action::is_layer("/etc");
        if is_root && is_layer && crate::action::lookup_user(name).is_none() {
            let line = format!("{name}:x:{uid}:{uid}::/:/bin/sh\n");
            fs::OpenOptions::new()
                .append(true)
                .open("/etc/passwd")
                .and_then(|mut file| file.write_all(line.as_bytes()))
                .map_err(Error::file("write", "/etc/passwd"))?;
        }
    }
    Ok(())
}
