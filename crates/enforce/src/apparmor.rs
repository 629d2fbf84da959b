//! The enforcer `AppArmor`: profiles are loaded with `apparmor_parser` and applied at the command's exec.
//!
//! The name of a profile ends in a unique number, so that two policies of one name do not affect each other,
//! and only the agent that loaded a profile reports its denials. An exchange of a policy loads the new text
//! under the names in use, which the kernel does atomically. A process that already has a foreign profile
//! keeps it, and gets ours in addition (stacking).

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
use probe::{Support, fix};
use rustix::fs::{FlockOperation, Mode, OFlags};

/// Folder of AppArmor's kernel interface.
const FOLDER: &str = "/sys/kernel/security/apparmor";
const PARSER: &str = "apparmor_parser";
/// Folders that may contain the parser; the PATH of an ordinary user lacks the first.
const PARSER_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
/// Files into which a process writes the profile for its next exec; the second is for kernels before 5.8.
const EXEC_FILES: [&str; 2] = [
    "/proc/thread-self/attr/apparmor/exec",
    "/proc/thread-self/attr/exec",
];
const CURRENT_FILES: [&str; 2] = [
    "/proc/thread-self/attr/apparmor/current",
    "/proc/thread-self/attr/current",
];
/// Prefix of the profile names of this program.
const PREFIX: &str = "tollgate-";

/// The reason why a profile cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not accessible.
    #[error("cannot use {path}")]
    Path {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The parser is missing or cannot be run.
    #[error("cannot run {PARSER}")]
    Parser {
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The parser refused the profile.
    #[error("{PARSER} refuses the profile: {said}")]
    Refused {
        /// The parser's message.
        said: String,
    },
    /// A custom profile does not begin with `profile NAME`.
    #[error("the AppArmor profile of the policy has no line `profile NAME`")]
    Nameless,
}

/// A loaded profile, for a process to apply.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Name of the loaded profile.
    pub(crate) name: String,
    /// The text that the process writes, and the file.
    order: Vec<u8>,
    file: CString,
    /// Lock that keeps other processes from removing profiles. Closed by the command's exec.
    _lock: OwnedFd,
}

impl Profile {
    /// Loads the profile of a policy, and removes profiles that confine no process.
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

    /// Applies the profile to the calling process at its next exec. Makes only system calls.
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

/// The file and the text that a process writes to apply `profile` at its next exec. The profile is stacked on
/// one that the process is about to get, or has.
pub(crate) fn order_for(pid: i32, profile: &str) -> (&'static str, String) {
    let file = EXEC_FILES.into_iter().find(|file| Path::new(file).exists());
    let file = file.unwrap_or(EXEC_FILES[1]);
    let name = |kind: &str| {
        let of_process = file.replace("thread-self", &pid.to_string());
        // A missing or empty file names no profile.
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

/// Exchanges the loaded profiles of policies with this name. Returns the number of exchanged profiles.
///
/// # Errors
/// Fails if the profile cannot be loaded; the loaded profiles then stay.
pub(crate) fn exchange(policy: &Policy, machine: &MachineFeatures) -> Result<usize, Error> {
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

/// The loaded profiles of this program.
///
/// # Errors
/// Fails if the kernel's list cannot be read.
pub(crate) fn loaded() -> Result<BTreeSet<String>, Error> {
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

/// Removes profiles that confine no process, unless a process is about to apply one.
///
/// # Errors
/// Fails if a profile cannot be removed.
pub(crate) fn sweep() -> Result<(), Error> {
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

/// The profiles that confine processes.
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
            // The process has ended, or the kernel lacks this file.
            if let Ok(label) = fs::read_to_string(attr.join(file)) {
                used.insert(label);
            }
        }
    }
    Ok(used)
}

/// The unique name of a policy's profile, and the profile's text.
fn named(policy: &Policy, machine: &MachineFeatures) -> Result<(String, String), Error> {
    let text = apparmor::profile(policy, machine);
    let (before, rest) = text.split_once("profile ").ok_or(Error::Nameless)?;
    let end = rest.find([' ', '{', '\n']).ok_or(Error::Nameless)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Without a clock, the process id distinguishes the profile.
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

/// The profile that confines this process; `unconfined` if the kernel does not report one.
fn own_profile() -> String {
    let found = CURRENT_FILES
        .into_iter()
        .find_map(|file| fs::read_to_string(file).ok());
    found.unwrap_or_else(|| "unconfined".to_owned())
}

fn parser() -> Option<PathBuf> {
    // Without a PATH, the usual folders remain.
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
        // The profile refers to the features of this kernel.
        .arg(format!("--override-policy-abi={FOLDER}/features"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A parser that stops reading explains the reason.
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

/// Loads a profile that denies one file, has a child apply it and execute `cat` on the file, and removes it.
pub(crate) fn probe() -> Support {
    const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
    if fs::read_to_string(ENABLED).ok().as_deref().map(str::trim) != Some("Y") {
        return match fix::is_built_with("SECURITY_APPARMOR") {
            Some(false) => Support::no_unless_fixed("this kernel is built without AppArmor", None),
            _ => Support::no_unless_fixed(
                "AppArmor is not among the security modules in use",
                fix::boot_with_module("SECURITY_APPARMOR"),
            ),
        };
    }
    if !Path::new(FOLDER).exists() {
        return Support::no(
            format!("{FOLDER} does not exist"),
            fix::as_root("mount -t securityfs securityfs /sys/kernel/security"),
        );
    }
    match try_profile() {
        Ok(true) => Support::yes("works: a loaded profile denied access to a child process"),
        Ok(false) => Support::no(
            "a profile was loaded, and denied nothing",
            "look for AppArmor in `dmesg`",
        ),
        Err(error @ Error::Parser { .. }) => Support::no_unless_fixed(chain(&error), fix::install("apparmor")),
        Err(error) => Support::no_unless_fixed(
            chain(&error),
            fix::run_as_root("tollgate enforce --policy FILE -- CMD"),
        ),
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

/// Returns true if a thread that applies the profile, and the program that it starts, cannot read a file. The
/// exec file belongs to a thread, and `Command` forks the thread that calls it.
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

/// Formats an error with its causes.
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
