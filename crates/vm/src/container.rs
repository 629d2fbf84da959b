//! The two guest processes that become a program of the container: one outside of it, which stays,
//! and one inside.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use abi::Errno;
use abi::constant::{
    CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS, MNT_DETACH, MS_PRIVATE,
};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use serde_json::Value;

use super::guest::{broken, mount, pid_file, pid_of, process_file, status};
use super::image::{BUNDLE, ROOT};
use super::mounts::{MS_BIND, MS_RDONLY, MS_REC, MS_REMOUNT, mount_one, within};
use super::profile::Profile;
use super::{FIRST, INSIDE, PAUSE, groups};

/// Non-empty once the container is created.
const BEGUN: &str = "/run/begun";
/// Time limit for creating it, in an emulated machine on a busy host.
const LIMIT: Duration = Duration::from_secs(60);
/// Namespaces of a container besides that of pids: files of /proc/PID/ns. The machine already has a
/// network of its own.
const NAMESPACES: [(&str, u32); 4] = [
    ("cgroup", CLONE_NEWCGROUP.u32()),
    ("uts", CLONE_NEWUTS.u32()),
    ("ipc", CLONE_NEWIPC.u32()),
    ("mnt", CLONE_NEWNS.u32()),
];
/// Devices in every container's /dev: name, major and minor number.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
const CHARACTERS: u32 = 0o020_000;
const BLOCKS: u32 = 0o060_000;
const FIFO: u32 = 0o010_000;
/// Mode of devices whose mode is not configured.
const USUAL_MODE: u64 = 0o666;
/// Names of getrlimit(2) in numeric order.
const LIMITS: [&str; 16] = [
    "CPU",
    "FSIZE",
    "DATA",
    "STACK",
    "CORE",
    "RSS",
    "NPROC",
    "NOFILE",
    "MEMLOCK",
    "AS",
    "LOCKS",
    "SIGPENDING",
    "MSGQUEUE",
    "NICE",
    "RTPRIO",
    "RTTIME",
];

/// `SESSION`, outside: enters the container's pid namespace, starts the process inside, and exits
/// with its status.
pub(super) fn outside(args: &[OsString]) -> Outcome {
    let id = session(args)?;
    let entered = if id == FIRST {
        groups::make(&configuration()?)?;
        sys::namespace::unshare(CLONE_NEWPID.u32().into())
    } else {
        wait_for_first()?;
        let file = namespace("pid")?;
        sys::namespace::enter(file.as_fd(), CLONE_NEWPID.u32())
    };
    entered.map_err(|error| broken("enter the container")(error.into()))?;
    let mut child = Command::new("/init")
        .args(["runtime", INSIDE, &id.to_string()])
        .spawn()
        .map_err(broken("start a process"))?;
    fs::write(pid_file(id), child.id().to_string()).map_err(broken("note a pid"))?;
    let ended = child.wait().map_err(broken("wait for a process"));
    // A reused pid must not receive the program's signals.
    fs::remove_file(pid_file(id)).map_err(broken("forget a pid"))?;
    ended.map(|ended| Exit::Command(status(ended)))
}

/// `SESSION`, inside: becomes the program.
pub(super) fn inside(args: &[OsString], not_executed: fn(&str, io::Error) -> Failure) -> Outcome {
    let id = session(args)?;
    let config = configuration()?;
    let process = read(&process_file(id))?;
    // The machine's /proc and /sys are still visible here.
    groups::enter()?;
    if let Some(score) = process["oomScoreAdj"].as_i64() {
        fs::write("/proc/self/oom_score_adj", score.to_string())
            .map_err(broken("set process.oomScoreAdj"))?;
    }
    if id == FIRST {
        let failed = broken("note that it has begun");
        let mut begun = File::create(BEGUN).map_err(&failed)?;
        make(&config)?;
        begun.write_all(b"begun").map_err(&failed)?;
    } else {
        let files: Vec<_> = NAMESPACES
            .iter()
            .map(|(name, kind)| Ok((namespace(name)?, *kind)))
            .collect::<Result<_, Failure>>()?;
        for (file, kind) in files {
            sys::namespace::enter(file.as_fd(), kind)
                .map_err(|error| broken("enter the container")(error.into()))?;
        }
    }
    let profile = super::profile::compile(&config["linux"]["seccomp"]);
    let profile =
        profile.map_err(|why| broken("carry linux.seccomp out")(io::Error::other(why)))?;
    execute(&process, profile.as_ref(), not_executed)
}

fn configuration() -> Result<Value, Failure> {
    read(Path::new(BUNDLE).join("config.json").as_path())
}

/// Waits until the container is created. Before that, its first process still has the machine's
/// namespaces.
fn wait_for_first() -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    let failed = broken("enter the container");
    loop {
        match fs::read(BEGUN) {
            Ok(said) if !said.is_empty() => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            // The container does not exist yet.
            _ if Instant::now() > deadline => return Err(failed(io::ErrorKind::TimedOut.into())),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

fn session(args: &[OsString]) -> Result<u32, Failure> {
    let number = args.first().and_then(|word| word.to_str()?.parse().ok());
    number.ok_or_else(|| broken("start it")(io::Error::other("no session is named")))
}

/// Opens one of the container's namespaces.
fn namespace(name: &str) -> Result<File, Failure> {
    let pid = pid_of(FIRST)
        .ok_or_else(|| broken("enter the container")(io::ErrorKind::NotFound.into()))?;
    File::open(format!("/proc/{pid}/ns/{name}")).map_err(broken("enter the container"))
}

/// Creates the container: mounts, host names, and hidden paths.
fn make(config: &Value) -> Result<(), Failure> {
    let flags = NAMESPACES
        .iter()
        .fold(0, |sum, (_, flag)| sum | u64::from(*flag));
    sys::namespace::unshare(flags).map_err(|error| broken("take namespaces")(error.into()))?;
    mount("", "", "/", MS_REC | MS_PRIVATE.u64(), "")?;
    mount(ROOT, "", ROOT, MS_BIND | MS_REC, "")?;
    for entry in list(&config["mounts"]) {
        mount_one(entry)?;
    }
    let root = Path::new(ROOT);
    furnish(root)
        .and_then(|()| {
            list(&config["linux"]["devices"])
                .iter()
                .try_for_each(|device| add(root, device))
        })
        .map_err(broken("make devices"))?;
    std::env::set_current_dir(ROOT).map_err(broken("enter its root"))?;
    let failed = |error: sys::SyscallError| broken("enter its root")(error.into());
    sys::namespace::pivot_root(c".", c".").map_err(failed)?;
    sys::namespace::unmount(c".", MNT_DETACH.i32()).map_err(failed)?;
    std::env::set_current_dir("/").map_err(broken("enter its root"))?;
    if let Some(name) = config["hostname"].as_str() {
        sys::namespace::set_host_name(name.as_bytes()).map_err(failed)?;
    }
    if let Some(name) = config["domainname"]
        .as_str()
        .filter(|name| !name.is_empty())
    {
        let set = rustix::system::setdomainname(name.as_bytes());
        set.map_err(|error| broken("set domainname")(error.into()))?;
    }
    for (key, value) in config["linux"]["sysctl"].as_object().into_iter().flatten() {
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        fs::write(file, text(value)).map_err(broken("set linux.sysctl"))?;
    }
    hide(config)?;
    if config["root"]["readonly"] == true {
        mount("", "", "/", MS_REMOUNT | MS_BIND | MS_RDONLY, "")?;
    }
    Ok(())
}

/// Creates the devices and links of every container.
fn furnish(root: &Path) -> io::Result<()> {
    let folder = root.join("dev");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&folder)?;
    for (name, major, minor) in DEVICES {
        let path = folder.join(name);
        let node = CString::new(path.to_string_lossy().as_bytes())?;
        let device = rustix::fs::makedev(major, minor);
        if !path.exists() {
            sys::namespace::make_node(None, &node, CHARACTERS | 0o666, device)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        }
    }
    for (target, name) in LINKS {
        match symlink(target, folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Adds an entry of `linux.devices`, which is the machine's device of these numbers, if there is
/// one.
fn add(root: &Path, device: &Value) -> io::Result<()> {
    let path = Path::new(text(&device["path"]));
    let number = |name: &str, usual: u64| {
        let given = device[name].as_u64().unwrap_or(usual);
        u32::try_from(given).map_err(io::Error::other)
    };
    let kind = match text(&device["type"]) {
        "c" | "u" => CHARACTERS,
        "b" => BLOCKS,
        "p" => FIFO,
        other => {
            return Err(io::Error::other(format!(
                "{}: no type `{other}`",
                path.display()
            )));
        }
    };
    let (mode, numbers) = (
        number("fileMode", USUAL_MODE)?,
        (number("major", 0)?, number("minor", 0)?),
    );
    let place = within(root, path)?;
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    if !place.exists() {
        let name = CString::new(place.as_os_str().as_bytes())?;
        let device = rustix::fs::makedev(numbers.0, numbers.1);
        sys::namespace::make_node(None, &name, kind | mode, device)?;
    }
    std::os::unix::fs::chown(&place, Some(number("uid", 0)?), Some(number("gid", 0)?))?;
    fs::set_permissions(&place, fs::Permissions::from_mode(mode & 0o7777))
}

/// Applies masked and read-only paths. A missing path needs no masking.
fn hide(config: &Value) -> Result<(), Failure> {
    let there = |name: &str| {
        let paths = list(&config["linux"][name]).iter().map(text);
        paths
            .filter(|path| Path::new(path).exists())
            .collect::<Vec<_>>()
    };
    for path in there("maskedPaths") {
        match Path::new(path).is_dir() {
            true => mount("tmpfs", "tmpfs", path, MS_RDONLY, "")?,
            false => mount("/dev/null", "", path, MS_BIND, "")?,
        }
    }
    for path in there("readonlyPaths") {
        mount(path, "", path, MS_BIND | MS_REC, "")?;
        mount("", "", path, MS_REMOUNT | MS_BIND | MS_RDONLY, "")?;
    }
    Ok(())
}

/// Applies the process's limits, user and capabilities, and executes its program.
fn execute(
    process: &Value,
    profile: Option<&Profile>,
    not_executed: fn(&str, io::Error) -> Failure,
) -> Outcome {
    let words = |name: &str| -> Vec<String> {
        list(&process[name])
            .iter()
            .map(|word| text(word).to_owned())
            .collect()
    };
    let (args, mut environment) = (words("args"), words("env"));
    if !environment.iter().any(|entry| entry.starts_with("HOME=")) {
        environment.push(format!("HOME={}", home(process["user"]["uid"].as_u64())));
    }
    if let Some(mask) = process["user"]["umask"].as_u64() {
        let mask = u32::try_from(mask & 0o777).unwrap_or(0);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    }
    let cwd = process["cwd"].as_str().unwrap_or("/");
    fs::create_dir_all(cwd)
        .and_then(|()| std::env::set_current_dir(cwd))
        .map_err(broken("enter its folder"))?;
    let path = environment
        .iter()
        .find_map(|entry| entry.strip_prefix("PATH="));
    let name = args.first().map_or("", String::as_str);
    let file = diagnostics::lookup::resolve(name.as_ref(), path.map(OsStr::new))?;
    limit(process)?;
    give_up(process, profile)?;
    let strings = |list: Vec<String>| -> Result<Vec<CString>, Failure> {
        let each = list.into_iter().map(CString::new).collect::<Result<_, _>>();
        each.map_err(|error| broken("start it")(error.into()))
    };
    let path = CString::new(file.to_string_lossy().as_bytes());
    let path = path.map_err(|error| broken("start it")(error.into()))?;
    let argv = sys::exec::StringArray::new(strings(args.clone())?);
    let envp = sys::exec::StringArray::new(strings(environment)?);
    let error = sys::exec::execve(&path, &argv, &envp);
    Err(not_executed(name, error.into()))
}

fn limit(process: &Value) -> Result<(), Failure> {
    for entry in list(&process["rlimits"]) {
        let name = text(&entry["type"]).trim_start_matches("RLIMIT_");
        let number = LIMITS.iter().position(|known| *known == name);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let bound = |name: &str| entry[name].as_u64().unwrap_or(u64::MAX);
        let limit = sys::resource::Limit {
            soft: bound("soft"),
            hard: bound("hard"),
        };
        let set = number.map_or(Err(io::ErrorKind::InvalidInput.into()), |number| {
            sys::resource::set_limit(0, number, limit).map_err(io::Error::from)
        });
        set.map_err(broken("set process.rlimits"))?;
    }
    Ok(())
}

/// Returns a user's home directory from the container's /etc/passwd (passwd(5)).
fn home(user: Option<u64>) -> String {
    // Without the file no user has a home directory.
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = user.unwrap_or(0).to_string();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_user = fields.next() == Some(&user);
        fields.nth(2).filter(|home| is_user && !home.is_empty())
    });
    found.unwrap_or("/").to_owned()
}

/// Sets users and capabilities as configured, and loads the seccomp filter. As in runc, the filter
/// is loaded before the required privileges are dropped, or last if no_new_privs is set.
fn give_up(process: &Value, profile: Option<&Profile>) -> Result<(), Failure> {
    let filter = || -> Result<(), Failure> {
        let loaded = profile.map_or(Ok(None), |profile| {
            sys::seccomp::install_filter(profile.program.instructions(), profile.flags)
        });
        loaded
            .map(drop)
            .map_err(|error| broken("load linux.seccomp")(error.into()))
    };
    let is_privileged = process["noNewPrivileges"] != true;
    if is_privileged {
        filter()?;
    }
    let failed = |error: sys::SyscallError| broken("take its user and capabilities")(error.into());
    let set = |name: &str| {
        let names = list(&process["capabilities"][name]).iter();
        let known = names.filter_map(|name| abi::capability::from_name(name.as_str()?));
        abi::Capabilities(known.fold(0, |sum, number| sum | 1 << number))
    };
    let bounding = set("bounding");
    for capability in (0..64).filter(|number| !bounding.contains(*number)) {
        match sys::prctl::drop_bounding_capability(capability) {
            // This kernel has no capability with this or a higher number.
            Err(error) if error.is(Errno::EINVAL) => break,
            outcome => outcome.map_err(failed)?,
        }
    }
    sys::prctl::keep_capabilities(true).map_err(failed)?;
    become_user(&process["user"]).map_err(failed)?;
    sys::credential::set_capabilities(sys::credential::CapabilitySets {
        effective: set("effective"),
        permitted: set("permitted"),
        inheritable: set("inheritable"),
    })
    .map_err(failed)?;
    let ambient = set("ambient");
    for capability in (0..64).filter(|number| ambient.contains(*number)) {
        sys::prctl::raise_ambient_capability(capability).map_err(failed)?;
    }
    if is_privileged {
        return Ok(());
    }
    sys::seccomp::set_no_new_privs().map_err(failed)?;
    filter()
}

fn become_user(user: &Value) -> sys::Result<()> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let further: Vec<u32> = list(&user["additionalGids"])
        .iter()
        .filter_map(number)
        .collect();
    let ids = |name: &str| {
        let id = number(&user[name]).unwrap_or(0);
        sys::credential::Ids {
            real: id,
            effective: id,
            saved: id,
        }
    };
    sys::credential::set_supplementary_groups(&further)?;
    sys::credential::set_groups(ids("gid"))?;
    sys::credential::set_users(ids("uid"))
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(broken("read what it is given"))?;
    serde_json::from_slice(&text).map_err(|error| broken("read what it is given")(error.into()))
}
