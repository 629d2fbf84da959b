//! The two processes that become a program of the container, in the machine: one outside, which stays, and
//! one inside.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::guest::{broken, mount, pid_file, pid_of, process_file, status};
use super::image::{BUNDLE, ROOT};
use super::{FIRST, INSIDE, PAUSE};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// It has content once the container is made.
const BEGUN: &str = "/run/begun";
/// How long that may take, in an emulated machine on a busy one.
const LIMIT: Duration = Duration::from_secs(60);
const CLONE_NEWNS: u32 = 0x2_0000;
const CLONE_NEWUTS: u32 = 0x400_0000;
const CLONE_NEWIPC: u32 = 0x800_0000;
const CLONE_NEWPID: u32 = 0x2000_0000;
/// Namespaces of a container beside that of pids: files of /proc/PID/ns. The machine's network is its own
/// already.
const NAMESPACES: [(&str, u32); 3] = [
    ("uts", CLONE_NEWUTS),
    ("ipc", CLONE_NEWIPC),
    ("mnt", CLONE_NEWNS),
];
const MS_RDONLY: u64 = 1;
const MS_REMOUNT: u64 = 1 << 5;
const MS_BIND: u64 = 1 << 12;
const MS_REC: u64 = 1 << 14;
const MS_PRIVATE: u64 = 1 << 18;
const MNT_DETACH: i32 = 2;
/// Options of mounts that are flags; others are for the file system.
const FLAGS: [(&str, u64); 9] = [
    ("ro", MS_RDONLY),
    ("nosuid", 1 << 1),
    ("nodev", 1 << 2),
    ("noexec", 1 << 3),
    ("noatime", 1 << 10),
    ("nodiratime", 1 << 11),
    ("relatime", 1 << 21),
    ("strictatime", 1 << 24),
    ("rw", 0),
];
/// Options that are about other mounts or other programs, and those that say what is so anyway.
const NO_MATTER: [&str; 21] = [
    "async",
    "atime",
    "bind",
    "copy",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "nocopy",
    "private",
    "rbind",
    "rprivate",
    "rshared",
    "rslave",
    "runbindable",
    "shared",
    "slave",
    "suid",
    "tmpcopyup",
    "notmpcopyup",
    "unbindable",
];
/// Types of mounts that a machine has. Bound files are there already, and control groups are not.
const TYPES: [&str; 5] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue"];
/// What every container finds in /dev: name, major and minor number.
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
/// getrlimit(2)'s names in the order of their numbers.
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
const EINVAL: i32 = 22;

/// Outside: `SESSION`. Enters the container's pids, starts the process inside, and ends as it does.
pub(super) fn outside(args: &[OsString]) -> Outcome {
    let id = session(args)?;
    let entered = if id == FIRST {
        sys::namespace::unshare(CLONE_NEWPID.into())
    } else {
        wait_for_first()?;
        let file = namespace("pid")?;
        sys::namespace::enter(file.as_fd(), CLONE_NEWPID)
    };
    entered.map_err(|error| broken("enter the container")(error.into()))?;
    let mut child = Command::new("/init")
        .args(["runtime", INSIDE, &id.to_string()])
        .spawn()
        .map_err(broken("start a process"))?;
    fs::write(pid_file(id), child.id().to_string()).map_err(broken("note a pid"))?;
    let ended = child.wait().map_err(broken("wait for a process"));
    // A pid that is used again is not to get its signals.
    fs::remove_file(pid_file(id)).map_err(broken("forget a pid"))?;
    ended.map(|ended| Exit::Command(status(ended)))
}

/// Inside: `SESSION`. Becomes the program.
pub(super) fn inside(args: &[OsString]) -> Outcome {
    let id = session(args)?;
    let config = read(Path::new(BUNDLE).join("config.json").as_path())?;
    let process = read(&process_file(id))?;
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
    execute(&process)
}

/// Until the container is made there is nothing to enter: its first process still has the machine's namespaces.
fn wait_for_first() -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    let failed = broken("enter the container");
    loop {
        match fs::read(BEGUN) {
            Ok(said) if !said.is_empty() => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            // It is not made yet.
            _ if Instant::now() > deadline => return Err(failed(io::ErrorKind::TimedOut.into())),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

fn session(args: &[OsString]) -> Result<u32, Failure> {
    let number = args.first().and_then(|word| word.to_str()?.parse().ok());
    number.ok_or_else(|| broken("start it")(io::Error::other("no session is named")))
}

/// One of the container's namespaces.
fn namespace(name: &str) -> Result<File, Failure> {
    let pid = pid_of(FIRST)
        .ok_or_else(|| broken("enter the container")(io::ErrorKind::NotFound.into()))?;
    File::open(format!("/proc/{pid}/ns/{name}")).map_err(broken("enter the container"))
}

/// Makes the container: mounts, names, and what is to be hidden.
fn make(config: &Value) -> Result<(), Failure> {
    let flags = NAMESPACES
        .iter()
        .fold(0, |sum, (_, flag)| sum | u64::from(*flag));
    sys::namespace::unshare(flags).map_err(|error| broken("take namespaces")(error.into()))?;
    mount("", "", "/", MS_REC | MS_PRIVATE, "")?;
    mount(ROOT, "", ROOT, MS_BIND | MS_REC, "")?;
    let mounts = list(&config["mounts"]);
    for entry in mounts
        .iter()
        .filter(|entry| TYPES.contains(&text(&entry["type"])))
    {
        mount_one(entry)?;
    }
    furnish(Path::new(ROOT)).map_err(broken("make devices"))?;
    std::env::set_current_dir(ROOT).map_err(broken("enter its root"))?;
    let failed = |error: sys::SyscallError| broken("enter its root")(error.into());
    sys::namespace::pivot_root(c".", c".").map_err(failed)?;
    sys::namespace::unmount(c".", MNT_DETACH).map_err(failed)?;
    std::env::set_current_dir("/").map_err(broken("enter its root"))?;
    if let Some(name) = config["hostname"].as_str() {
        sys::namespace::set_host_name(name.as_bytes()).map_err(failed)?;
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

fn mount_one(entry: &Value) -> Result<(), Failure> {
    let kind = text(&entry["type"]);
    let destination = text(&entry["destination"]);
    if destination.split('/').any(|part| part == "..") {
        return Err(broken("mount")(io::Error::other(format!(
            "{destination} leads out of the root"
        ))));
    }
    let target = format!("{ROOT}/{}", destination.trim_start_matches('/'));
    fs::create_dir_all(&target).map_err(broken("make a place for a mount"))?;
    let mut flags = 0;
    let mut data = Vec::new();
    for option in list(&entry["options"]).iter().map(text) {
        match FLAGS.iter().find(|(name, _)| *name == option) {
            Some((_, flag)) => flags |= flag,
            None if NO_MATTER.contains(&option) => {}
            None => data.push(option),
        }
    }
    mount(kind, kind, &target, flags, &data.join(","))
}

/// Devices and links that every container has.
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

/// Paths that are to be hidden or not to be written to; what is not there need not be hidden.
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

/// Takes the process's limits, user and capabilities, and becomes its program.
fn execute(process: &Value) -> Outcome {
    let words = |name: &str| -> Vec<String> {
        list(&process[name])
            .iter()
            .map(|word| text(word).to_owned())
            .collect()
    };
    let (args, environment) = (words("args"), words("env"));
    let cwd = process["cwd"].as_str().unwrap_or("/");
    fs::create_dir_all(cwd)
        .and_then(|()| std::env::set_current_dir(cwd))
        .map_err(broken("enter its folder"))?;
    let path = environment
        .iter()
        .find_map(|entry| entry.strip_prefix("PATH="));
    let name = args.first().map_or("", String::as_str);
    let file = crate::lookup::resolve(name.as_ref(), path.map(OsStr::new))?;
    limit(process)?;
    give_up(process)?;
    let strings = |list: Vec<String>| -> Result<Vec<CString>, Failure> {
        let each = list.into_iter().map(CString::new).collect::<Result<_, _>>();
        each.map_err(|error| broken("start it")(error.into()))
    };
    let path = CString::new(file.to_string_lossy().as_bytes());
    let path = path.map_err(|error| broken("start it")(error.into()))?;
    let argv = sys::exec::StringArray::new(strings(args.clone())?);
    let envp = sys::exec::StringArray::new(strings(environment)?);
    let error = sys::exec::execve(&path, &argv, &envp);
    Err(super::super::run::not_executed(name, error.into()))
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

/// Users and capabilities as the configuration says.
fn give_up(process: &Value) -> Result<(), Failure> {
    let failed = |error: sys::SyscallError| broken("take its user and capabilities")(error.into());
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let user = &process["user"];
    let (uid, gid) = (
        number(&user["uid"]).unwrap_or(0),
        number(&user["gid"]).unwrap_or(0),
    );
    let further: Vec<u32> = list(&user["additionalGids"])
        .iter()
        .filter_map(number)
        .collect();
    let set = |name: &str| {
        let names = list(&process["capabilities"][name]).iter();
        let known = names.filter_map(|name| abi::capability::from_name(name.as_str()?));
        abi::Capabilities(known.fold(0, |sum, number| sum | 1 << number))
    };
    let bounding = set("bounding");
    for capability in (0..64).filter(|number| !bounding.contains(*number)) {
        match sys::prctl::drop_bounding_capability(capability) {
            // This kernel has none of this number, nor of a higher one.
            Err(error) if error.is(EINVAL) => break,
            outcome => outcome.map_err(failed)?,
        }
    }
    sys::prctl::keep_capabilities(true).map_err(failed)?;
    let ids = |id| sys::credential::Ids {
        real: id,
        effective: id,
        saved: id,
    };
    sys::credential::set_supplementary_groups(&further).map_err(failed)?;
    sys::credential::set_groups(ids(gid)).map_err(failed)?;
    sys::credential::set_users(ids(uid)).map_err(failed)?;
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
    if process["noNewPrivileges"] == true {
        sys::seccomp::set_no_new_privs().map_err(failed)?;
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(broken("read what it is given"))?;
    serde_json::from_slice(&text).map_err(|error| broken("read what it is given")(error.into()))
}
