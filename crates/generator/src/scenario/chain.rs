//! The chain of processes: each starts the next, the last one makes the calls.
//!
//! The test determines the command lines, so the order for each process is in an environment variable.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use abi::Signal;
use sys::clone::CloneFlags;
use sys::credential::{self, CapabilitySets, Ids};
use workload::split_words;

use super::resource::Resources;
use super::values::Values;
use super::{Process, Scenario, step};
use crate::action::{Outcome, lookup_user};

/// The environment variable: the file of the scenario, a colon, and the number of the process. The
/// value `idle` makes the process wait to be killed instead.
pub const LINK: &str = "TOLLGATE_SCENE_LINK";

const IDLE: &str = "idle";

/// Plays the part that the environment variable orders; `main` must call this first. `None` without the
/// variable, otherwise an exit code.
pub fn follow_order() -> Option<u8> {
    let order = std::env::var(LINK).ok()?;
    // Without the generator no process reads the outcome.
    let _ = sys::prctl::set_parent_death_signal(Signal::SIGKILL.0);
    if order == IDLE {
        loop {
            std::thread::park();
        }
    }
    let (file, number) = order.rsplit_once(':')?;
    let number: usize = number.parse().ok()?;
    let scenario = fs::read(file)
        .ok()
        .and_then(|text| serde_json::from_slice::<Scenario>(&text).ok());
    let folder = Path::new(file).parent()?.to_path_buf();
    Some(match scenario {
        Some(scenario) if number < scenario.context.processes.len() => {
            link(&scenario, number, file, &folder)
        }
        _ => 4,
    })
}

fn link(scenario: &Scenario, number: usize, file: &str, folder: &Path) -> u8 {
    let next = number + 1;
    if next < scenario.context.processes.len() {
        return match start(scenario, next, file, folder) {
            Ok(code) => code,
            Err(stop) => tell(&stop),
        };
    }
    let capabilities = scenario.context.processes[number].capabilities.as_deref();
    let outcome = match limit(capabilities).and_then(|()| play(scenario, folder)) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed { error },
    };
    tell(&outcome)
}

/// Prints the outcome, on a line of its own: calls may have written to this descriptor.
fn tell(outcome: &Outcome) -> u8 {
    let line = serde_json::to_string(outcome).expect("an outcome is plain data");
    let mut out = std::io::stdout().lock();
    match writeln!(out, "\n{line}").and_then(|()| out.flush()) {
        Ok(()) => u8::from(*outcome != Outcome::Done),
        Err(_nobody_listens) => 1,
    }
}

fn play(scenario: &Scenario, folder: &Path) -> Result<(), String> {
    let played =
        script("before", scenario.before.as_deref()).and_then(|()| calls(scenario, folder));
    let after = script("after", scenario.after.as_deref());
    played.and(after)
}

fn calls(scenario: &Scenario, folder: &Path) -> Result<(), String> {
    let mut values = Values::default();
    let mut resources = Resources::default();
    for resource in &scenario.resources {
        resources.make(resource, &mut values, folder)?;
    }
    for one in &scenario.steps {
        let path = step::makes(one, &values).filter(|path| fs::symlink_metadata(path).is_err());
        let played = step::play(one, &mut values);
        if let Some(path) = path.filter(|path| fs::symlink_metadata(path).is_ok()) {
            resources.remove_later(path);
        }
        played?;
    }
    Ok(())
}

fn script(when: &str, text: Option<&str>) -> Result<(), String> {
    let Some(text) = text else {
        return Ok(());
    };
    let output = Command::new("bash")
        .args(["-c", text])
        .env_remove(LINK)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run the script `{when}`: bash: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "the script `{when}` exited with {}: {}",
        output.status,
        said.trim()
    ))
}

/// Starts a process of the chain and returns its exit code.
pub(super) fn start(
    scenario: &Scenario,
    number: usize,
    file: &str,
    folder: &Path,
) -> Result<u8, Outcome> {
    let failed = |error: String| Outcome::Failed { error };
    let process = &scenario.context.processes[number];
    let mut made = Resources::default();
    let mut command = program(process, &mut made, folder).map_err(failed)?;
    command.env(LINK, format!("{file}:{number}"));
    let Some(name) = &process.user else {
        let status = command
            .status()
            .map_err(|error| failed(unstarted(&command, &error)))?;
        return Ok(code(status));
    };
    let Some((uid, gid)) = lookup_user(name) else {
        let reason = format!("needs the user `{name}`");
        return Err(Outcome::Skipped { reason });
    };
    start_as(command, uid, gid).map_err(failed)
}

fn unstarted(command: &Command, error: &dyn std::fmt::Display) -> String {
    let program = command.get_program().to_string_lossy();
    format!("cannot start {program}: {error}")
}

/// Starts a command as another user who keeps the capabilities of this process, so that the next process of the
/// chain can have any user.
fn start_as(mut command: Command, uid: u32, gid: u32) -> Result<u8, String> {
    let pid = sys::clone::clone_child(CloneFlags::default(), || {
        let why = match become_user(uid, gid) {
            // Returns only if exec failed.
            Ok(()) => {
                let error = command.exec();
                unstarted(&command, &error)
            }
            Err(error) => format!("cannot switch to user {uid}: {error}"),
        };
        i32::from(tell(&Outcome::Failed { error: why }))
    })
    .map_err(|error| format!("cannot start a process: {error}"))?;
    let ended =
        sys::wait::wait(sys::wait::Target::Pid(pid), 0).map_err(|error| error.to_string())?;
    let code = ended.and_then(|(_, status)| status.shell_code());
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(128))
}

fn become_user(uid: u32, gid: u32) -> sys::Result<()> {
    let ids = |number| Ids {
        real: number,
        effective: number,
        saved: number,
    };
    if rustix::process::geteuid().as_raw() == uid {
        return Ok(());
    }
    let kept = credential::capabilities(0)?.permitted;
    sys::prctl::keep_capabilities(true)?;
    credential::set_supplementary_groups(&[])?;
    credential::set_groups(ids(gid))?;
    credential::set_users(ids(uid))?;
    credential::set_capabilities(CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: kept,
    })?;
    (0..=abi::capability::LAST)
        .filter(|number| kept.contains(*number))
        .try_for_each(sys::prctl::raise_ambient_capability)
}

fn code(status: ExitStatus) -> u8 {
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(128)
}

/// Starts a process that waits to be killed.
pub(super) fn idle(
    process: &Process,
    made: &mut Resources,
    folder: &Path,
) -> Result<Child, String> {
    let mut command = program(process, made, folder)?;
    command
        .env(LINK, IDLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start a process: {error}"))
}

/// Returns this program at the path, and with the name, that the description requests.
fn program(process: &Process, made: &mut Resources, folder: &Path) -> Result<Command, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let path = match &process.exe_path {
        Some(path) => PathBuf::from(path),
        None => unused(folder),
    };
    let describe_error = |error: std::io::Error| format!("cannot make {}: {error}", path.display());
    if path.exists() {
        return Err(format!(
            "{} already exists: a test creates its programs",
            path.display()
        ));
    }
    if let Some(parent) = path.parent() {
        made.folders(parent).map_err(describe_error)?;
    }
    // A hard link on the same file system is the same file; a symbolic link would show its target.
    fs::hard_link(&own, &path)
        .or_else(|_far_or_not_ours| copy(&own, &path))
        .map_err(describe_error)?;
    made.remove_later(path.clone());
    let file_name = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = process.name.as_deref().unwrap_or(&file_name);
    let called = if name == file_name {
        path.clone()
    } else {
        // The kernel takes the process's name from the link.
        let place = unused(folder);
        made.folders(&place).map_err(describe_error)?;
        let called = place.join(name);
        symlink(&path, &called).map_err(describe_error)?;
        made.remove_later(called.clone());
        called
    };
    let mut command = Command::new(called);
    command
        .arg0(process.exe.as_deref().unwrap_or(name))
        .args(split_words(process.args.as_deref().unwrap_or(""))?)
        .envs(&process.env);
    Ok(command)
}

/// Copies a file. Never overwrites an existing one.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o755);
    std::io::copy(&mut fs::File::open(from)?, &mut options.open(to)?)?;
    Ok(())
}

fn unused(folder: &Path) -> PathBuf {
    let mut number = 0;
    loop {
        let path = folder.join(format!("process-{}-{number}", std::process::id()));
        if !path.exists() {
            return path;
        }
        number += 1;
    }
}

/// Drops the capabilities that the description does not give to the process.
fn limit(text: Option<&str>) -> Result<(), String> {
    let Some(text) = text else {
        return Ok(());
    };
    let wanted = capabilities(text)?;
    let own = credential::capabilities(0).map_err(|error| error.to_string())?;
    let lacks = wanted.permitted.0 & !own.permitted.0;
    // `all` means all that are available here.
    if lacks != 0 && !text.contains("all") {
        return Err(format!("the process does not have the capabilities {text}"));
    }
    let within = |set: abi::Capabilities| abi::Capabilities(set.0 & own.permitted.0);
    credential::set_capabilities(CapabilitySets {
        effective: within(wanted.effective),
        permitted: within(wanted.permitted),
        inheritable: within(wanted.inheritable),
    })
    .map_err(|error| format!("cannot set the capabilities {text}: {error}"))
}

/// Parses clauses as in cap_from_text(3): names, then `=`, `+` or `-` and some of `eip`.
pub(super) fn capabilities(text: &str) -> Result<CapabilitySets, String> {
    let wrong = || format!("no capabilities: {text}; expected clauses as in cap_net_admin=ep");
    let none = abi::Capabilities(0);
    let mut sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    for clause in text.split_whitespace() {
        let at = clause.find(['=', '+', '-']).ok_or_else(wrong)?;
        let (names, rest) = clause.split_at(at);
        let named = if names.is_empty() || names.eq_ignore_ascii_case("all") {
            abi::Capabilities::ALL
        } else {
            let upper = names.to_ascii_uppercase();
            abi::Capabilities::parse(&upper).map_err(|name| format!("no capability: {name}"))?
        };
        let (operator, flags) = rest.split_at(1);
        if flags.chars().any(|flag| !"eip".contains(flag)) {
            return Err(wrong());
        }
        let parts = [
            ('e', &mut sets.effective),
            ('i', &mut sets.inheritable),
            ('p', &mut sets.permitted),
        ];
        for (flag, set) in parts {
            let raised = flags.contains(flag);
            set.0 = match operator {
                "+" if raised => set.0 | named.0,
                "-" if raised => set.0 & !named.0,
                "=" if raised => set.0 | named.0,
                "=" => set.0 & !named.0,
                _ => set.0,
            };
        }
    }
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_clauses() {
        let sets = capabilities("cap_chown,cap_kill=ep cap_kill-e").unwrap();
        assert_eq!(
            (sets.effective.0, sets.permitted.0, sets.inheritable.0),
            (1, 0b10_0001, 0)
        );
        assert_eq!(
            capabilities("all=iep").unwrap().inheritable,
            abi::Capabilities::ALL
        );
        for text in ["cap_chown", "cap_nothing=e", "cap_chown=x"] {
            assert!(capabilities(text).is_err(), "{text}");
        }
    }
}
