//! The enforcer `AppArmor`: profiles are loaded with `apparmor_parser` and taken at the command's exec.
//!
//! A profile's name ends in a number that is its own, so that two policies of one name do not change each
//! other, and what is denied is told by whoever is responsible for it alone; exchanging a policy loads the new text under the names that are in use, which the kernel
//! does at one moment. A process that has a profile of somebody else's already keeps it, and gets ours on
//! top (stacking).

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use policy::Policy;
use policy::compile::{MachineFeatures, apparmor};
use probe::Support;
use rustix::fs::{FlockOperation, Mode, OFlags};

/// The kernel's files about it.
const FOLDER: &str = "/sys/kernel/security/apparmor";
const PARSER: &str = "apparmor_parser";
/// Where Debian and others have it; PATH of an ordinary user lacks the first.
const PARSER_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
/// Where a process says what it wants to become; the second for kernels before 5.8.
const EXEC_FILES: [&str; 2] = [
    "/proc/thread-self/attr/apparmor/exec",
    "/proc/thread-self/attr/exec",
];
const CURRENT_FILES: [&str; 2] = [
    "/proc/thread-self/attr/apparmor/current",
    "/proc/thread-self/attr/current",
];
/// All profiles of this program begin so.
const PREFIX: &str = "tollgate-";

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its files are out of reach.
    #[error("cannot use {path}")]
    Path {
        /// Which.
        path: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// There is no apparmor_parser, or it cannot be run.
    #[error("cannot run {PARSER}")]
    Parser {
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// It refused the profile.
    #[error("{PARSER} refuses the profile: {said}")]
    Refused {
        /// What it said.
        said: String,
    },
    /// A profile of the user's begins otherwise than `profile NAME`.
    #[error("the AppArmor profile of the policy has no line `profile NAME`")]
    Nameless,
}

/// A profile that is loaded, for a process to take.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Under which it is loaded.
    pub(crate) name: String,
    /// What the process writes, and where.
    order: Vec<u8>,
    file: CString,
    /// While it is held nobody removes profiles. Closed by the command's exec.
    _lock: OwnedFd,
}

impl Profile {
    /// Loads the profile of a policy. Profiles that nobody has any more are removed.
    pub(crate) fn load(policy: &Policy, machine: &MachineFeatures) -> Result<Self, Error> {
        sweep()?;
        let lock = lock(FlockOperation::LockShared)?;
        let (name, text) = named(policy, machine)?;
        run_parser(&["--replace", "--skip-cache"], &text)?;
        let is_confined = !own_profile().starts_with("unconfined");
        let verb = if is_confined { "stack" } else { "exec" };
        let file = EXEC_FILES.into_iter().find(|file| Path::new(file).exists());
        let file = file.unwrap_or(EXEC_FILES[1]);
        Ok(Self {
            order: format!("{verb} {name}").into_bytes(),
            name,
            file: CString::new(file).expect("a constant without a zero"),
            _lock: lock,
        })
    }

    /// The calling process takes the profile at its next exec. Makes only system calls.
    pub(crate) fn take(&self) -> sys::Result<()> {
        let failed = |call| {
            move |error: rustix::io::Errno| sys::SyscallError {
                call,
                errno: abi::Errno(error.raw_os_error()),
            }
        };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.file.as_c_str(), flags, Mode::empty());
        let file = file.map_err(failed("open(attr/exec)"))?;
        rustix::io::write(&file, &self.order).map_err(failed("write(attr/exec)"))?;
        Ok(())
    }
}

/// Where a process writes what it becomes at its next exec, and what: the profile, on top of one that it is
/// to get, or has.
pub(crate) fn order_for(pid: i32, profile: &str) -> (&'static str, String) {
    let file = EXEC_FILES.into_iter().find(|file| Path::new(file).exists());
    let file = file.unwrap_or(EXEC_FILES[1]);
    let name = |kind: &str| {
        let of_process = file.replace("thread-self", &pid.to_string());
        // A file that is not there, or empty, names none.
        let text = fs::read_to_string(of_process.replace("/exec", kind)).unwrap_or_default();
        let text = text.trim_end_matches(['\0', '\n']);
        let name = text.rsplit_once(" (").map_or(text, |(name, _mode)| name);
        (!name.is_empty() && name != "unconfined").then(|| name.to_owned())
    };
    let order = match (name("/exec"), name("/current")) {
        (Some(coming), _) => format!("exec {coming}//&{profile}"),
        (None, Some(_)) => format!("stack {profile}"),
        (None, None) => format!("exec {profile}"),
    };
    (file, order)
}

/// Exchanges profiles of policies of this name that are in force. Answers with how many.
///
/// # Errors
/// If the profile cannot be loaded; then those in force stay.
pub fn exchange(policy: &Policy, machine: &MachineFeatures) -> Result<usize, Error> {
    if !Path::new(FOLDER).join("profiles").exists() {
        return Ok(0);
    }
    let _lock = lock(FlockOperation::LockShared)?;
    let base = apparmor::profile_name(policy);
    let (own, text) = named(policy, machine)?;
    let mut count = 0;
    for name in loaded()? {
        let is_of_policy = name
            .strip_prefix(&base)
            .and_then(|rest| rest.strip_prefix('.'));
        if is_of_policy.is_some_and(|rest| rest.len() == 16) {
            run_parser(
                &["--replace", "--skip-cache"],
                &text.replacen(&own, &name, 1),
            )?;
            count += 1;
        }
    }
    Ok(count)
}

/// Profiles of this program that are loaded.
///
/// # Errors
/// If the kernel's list cannot be read.
pub fn loaded() -> Result<BTreeSet<String>, Error> {
    let path = Path::new(FOLDER).join("profiles");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(cause) => return Err(unusable(&path)(cause)),
    };
    // `NAME (enforce)`; parts of a profile have `//` in their names.
    let names = text.lines().filter_map(|line| line.split(" (").next());
    let own = names.filter(|name| name.starts_with(PREFIX) && !name.contains("//"));
    Ok(own.map(str::to_owned).collect())
}

/// Removes profiles that no process has, unless somebody is about to take one.
///
/// # Errors
/// If one cannot be removed.
pub fn sweep() -> Result<(), Error> {
    let loaded = loaded()?;
    if loaded.is_empty() {
        return Ok(());
    }
    let Ok(_lock) = lock(FlockOperation::NonBlockingLockExclusive) else {
        return Ok(());
    };
    let used = profiles_in_use()?;
    for name in loaded {
        if used.iter().any(|label| label.contains(&name)) {
            continue;
        }
        let path = Path::new(FOLDER).join(".remove");
        fs::write(&path, &name).map_err(unusable(&path))?;
    }
    Ok(())
}

/// What processes are confined by.
fn profiles_in_use() -> Result<BTreeSet<String>, Error> {
    let proc = Path::new("/proc");
    let entries = fs::read_dir(proc).map_err(unusable(proc))?;
    let mut used = BTreeSet::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit())
        {
            continue;
        }
        let attr = entry.path().join("attr");
        for file in ["apparmor/current", "current", "apparmor/exec", "exec"] {
            // Gone since, or a kernel without that file.
            if let Ok(label) = fs::read_to_string(attr.join(file)) {
                used.insert(label);
            }
        }
    }
    Ok(used)
}

/// The name under which a policy's profile is loaded, and the text with it.
fn named(policy: &Policy, machine: &MachineFeatures) -> Result<(String, String), Error> {
    let text = apparmor::profile(policy, machine);
    let (before, rest) = text.split_once("profile ").ok_or(Error::Nameless)?;
    let end = rest.find([' ', '{', '\n']).ok_or(Error::Nameless)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Who has no clock has the number of the process.
    let own = format!(
        "{} {:?} {text}",
        std::process::id(),
        now.unwrap_or_default()
    );
    // FNV-1a.
    let number = own.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let name = format!("{}.{number:016x}", apparmor::profile_name(policy));
    let text = format!("{before}profile {name}{}", &rest[end..]);
    Ok((name, text))
}

/// What this process is confined by; `unconfined` where nothing says so.
fn own_profile() -> String {
    let found = CURRENT_FILES
        .into_iter()
        .find_map(|file| fs::read_to_string(file).ok());
    found.unwrap_or_else(|| "unconfined".to_owned())
}

fn parser() -> Option<PathBuf> {
    // Without a PATH there are the usual folders still.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(PARSER_FOLDERS.map(PathBuf::from));
    folders
        .map(|folder| folder.join(PARSER))
        .find(|file| file.is_file())
}

fn run_parser(options: &[&str], text: &str) -> Result<(), Error> {
    let failed = |cause| Error::Parser { cause };
    let program = parser().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let mut child = Command::new(program)
        .args(options)
        .arg("--quiet")
        // The profile means what this kernel can do.
        .arg(format!("--override-policy-abi={FOLDER}/features"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // Who stops reading says why.
        match input.write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error)),
            _ => {}
        }
    }
    let done = child.wait_with_output().map_err(failed)?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim().replace('\n', "; ");
    Err(Error::Refused { said })
}

fn lock(how: FlockOperation) -> Result<OwnedFd, Error> {
    let failed = |error: rustix::io::Errno| unusable(Path::new(FOLDER))(error.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(FOLDER, flags, Mode::empty()).map_err(failed)?;
    rustix::fs::flock(&folder, how).map_err(failed)?;
    Ok(folder)
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |cause| Error::Path { path, cause }
}

/// A profile that denies one file is loaded, taken by a child that then executes `cat` on it, and removed.
pub(crate) fn probe() -> Support {
    const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
    if fs::read_to_string(ENABLED).ok().as_deref().map(str::trim) != Some("Y") {
        return Support::no(
            "AppArmor is not among the security modules in use",
            "boot a kernel that has it, with lsm=landlock,lockdown,yama,apparmor,bpf",
        );
    }
    if !Path::new(FOLDER).exists() {
        return Support::no(
            format!("{FOLDER} is not there"),
            "mount it: mount -t securityfs securityfs /sys/kernel/security",
        );
    }
    match try_profile() {
        Ok(true) => Support::yes("a profile was loaded, and denied a child what it says"),
        Ok(false) => Support::no(
            "a profile was loaded, and denied nothing",
            "look for AppArmor in `dmesg`",
        ),
        Err(error @ Error::Parser { .. }) => Support::no(
            chain(&error),
            "install AppArmor's tools: apt-get install apparmor",
        ),
        Err(error) => Support::no(chain(&error), "run it as root"),
    }
}

fn try_profile() -> Result<bool, Error> {
    const DENIED: &str = "/proc/version";
    let name = format!("{PREFIX}probe.{:016x}", std::process::id());
    let text = format!("profile {name} {{\n  file,\n  deny {DENIED} r,\n}}\n");
    let _lock = lock(FlockOperation::LockShared)?;
    run_parser(&["--replace", "--skip-cache"], &text)?;
    let taken = Profile {
        order: format!("exec {name}").into_bytes(),
        file: CString::new(
            EXEC_FILES
                .into_iter()
                .find(|f| Path::new(f).exists())
                .unwrap_or(EXEC_FILES[1]),
        )
        .expect("a constant without a zero"),
        name: name.clone(),
        _lock: lock(FlockOperation::LockShared)?,
    };
    let refused = refused_to_child(&taken, DENIED);
    let path = Path::new(FOLDER).join(".remove");
    fs::write(&path, &name).map_err(unusable(&path))?;
    refused
}

/// Whether a thread that takes the profile, and the program that it starts, cannot read a file. What is
/// written for exec is the thread's own, and `Command` forks the thread that calls it.
fn refused_to_child(profile: &Profile, file: &str) -> Result<bool, Error> {
    let run = || -> io::Result<bool> {
        profile.take().map_err(io::Error::from)?;
        let mut command = Command::new("/bin/cat");
        command
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(!command.status()?.success())
    };
    let done = std::thread::scope(|scope| scope.spawn(run).join());
    match done {
        Ok(outcome) => outcome.map_err(unusable(Path::new(EXEC_FILES[0]))),
        Err(_panicked) => Err(unusable(Path::new(EXEC_FILES[0]))(
            io::ErrorKind::Other.into(),
        )),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &str) -> Policy {
        let text = format!(
            "policy:\n  enforcer: AppArmor\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
             privileged: true\n    {rules}\n"
        );
        let (mut policies, problems) = policy::load("p.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}");
        policies.remove(0)
    }

    #[test]
    fn policies_of_one_name_have_profiles_of_their_own() {
        let machine = MachineFeatures::default();
        let (one, text) = named(&policy("hardeningRules: [disallow-mount]"), &machine).unwrap();
        let (other, _) = named(&policy("hardeningRules: [disallow-umount]"), &machine).unwrap();
        let (again, _) = named(&policy("hardeningRules: [disallow-mount]"), &machine).unwrap();
        assert!(one != other && one != again, "{one} {other} {again}");
        assert!(one.starts_with("tollgate-p."), "{one}");
        assert!(text.contains(&format!("profile {one} flags=")), "{text}");
    }
}
