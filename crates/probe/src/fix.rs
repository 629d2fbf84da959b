//! Remedies for what does not work, as commands where there is one.
//!
//! A remedy that cannot help on this machine is not offered: each function returns `None` then.

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs};

use abi::constant::CAP_SYS_PTRACE;
use flate2::read::GzDecoder;

/// Largest kernel configuration that is read, in bytes; distributions have about 300 KiB.
const LARGEST_CONFIG: u64 = 4 << 20;
/// The security modules that tollgate can use, in the order for `lsm=`.
const MODULES: &str = "landlock,lockdown,yama,apparmor,bpf";
/// Package with a kernel for virtual machines.
const MACHINE_KERNEL: &str = "linux-image-cloud-amd64";
/// Folder of fragments that Debian's and Ubuntu's `update-grub` reads.
const GRUB_FOLDER: &str = "/etc/default/grub.d";

/// Returns the command as an ordinary user has to type it.
#[must_use]
pub fn as_root(command: &str) -> String {
    match rustix::process::geteuid().is_root() {
        true => command.to_owned(),
        false => format!("sudo {command}"),
    }
}

/// Returns the command that runs tollgate with the privileges that it lacks; `None` for root.
#[must_use]
pub fn run_as_root(command: &str) -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| format!("sudo {command}"))
}

/// Returns how to run `command` with a capability that it lacks.
#[must_use]
pub fn with_capability(capability: &str, command: &str) -> String {
    let as_root = run_as_root(command).filter(|_| is_own_kernel());
    as_root.unwrap_or_else(|| format!("start the container with --cap-add {capability}"))
}

/// Returns the command that installs Debian packages; `None` where there is no apt-get.
#[must_use]
pub fn install(packages: &str) -> Option<String> {
    has_program("apt-get").then(|| as_root(&format!("apt-get install {packages}")))
}

/// Returns the command that installs what virtual machines need besides `missing`.
#[must_use]
pub fn install_machine(missing: &str) -> Option<String> {
    let packages = format!("{missing} {MACHINE_KERNEL}");
    install(packages.trim_start())
}

/// A kernel parameter below `/proc/sys` with the value that tollgate needs.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name as sysctl(8) takes it.
    pub name: &'static str,
    /// Value to set.
    pub value: u64,
    /// Returns true if a value needs no change.
    pub is_enough: fn(u64) -> bool,
}

/// Returns the command that sets those parameters that this kernel has and that are not as needed.
#[must_use]
pub fn sysctl(parameters: &[Parameter]) -> Option<String> {
    let read = |name: &str| fs::read_to_string(parameter_file(name)).ok();
    let wrong = set_parameters(parameters, read)?;
    let command = as_root(&format!("sysctl -w {wrong}"));
    Some(match is_own_kernel() {
        true => command,
        false => format!("on the host: {command}"),
    })
}

fn parameter_file(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Returns the assignments of the parameters that `read` finds and whose values are not enough.
fn set_parameters(
    parameters: &[Parameter],
    read: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let assignments: Vec<_> = parameters
        .iter()
        .filter(|parameter| {
            let value = read(parameter.name).and_then(|text| text.trim().parse().ok());
            value.is_some_and(|value| !(parameter.is_enough)(value))
        })
        .map(|parameter| format!("{}={}", parameter.name, parameter.value))
        .collect();
    (!assignments.is_empty()).then(|| assignments.join(" "))
}

/// Lets a user read own processes.
pub(super) const READABLE: Parameter = Parameter {
    name: "kernel.yama.ptrace_scope",
    value: 1,
    is_enough: |scope| scope <= 1,
};

/// Lets a user read own processes, where Yama refuses to be changed.
pub(super) const READABLE_AFTER_BOOT: &str =
    "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot";

/// Returns how to make a process readable by its supervisor.
#[must_use]
pub fn process_access() -> Option<String> {
    let allow = || Some(allow_calls("ptrace(2), process_vm_readv(2) and pidfd_getfd(2)"));
    let own = sys::credential::capabilities(0);
    if own.is_ok_and(|sets| sets.effective.contains(CAP_SYS_PTRACE.u8())) {
        // Neither Yama nor a missing capability refuses the call then.
        return allow();
    }
    let scope = fs::read_to_string(parameter_file(READABLE.name)).ok();
    match scope.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(3) => Some(READABLE_AFTER_BOOT.to_owned()),
        Some(2) => sysctl(&[READABLE]),
        _ => allow(),
    }
}

/// Returns how to have system calls allowed that a sandbox around this process refuses.
#[must_use]
pub fn allow_calls(calls: &str) -> String {
    match is_own_kernel() {
        true => format!("run outside the sandbox whose seccomp filter refuses {calls}"),
        false => format!("allow {calls} in the seccomp profile of the container"),
    }
}

/// Returns the remedy for a kernel that is older than `version`.
#[must_use]
pub fn newer_kernel(version: &str) -> String {
    match is_own_kernel() {
        true => format!("boot Linux {version} or newer"),
        false => format!("run the container on a host with Linux {version} or newer"),
    }
}

/// Returns how to boot this kernel with a security module that it has and does not use. `option` is its
/// configuration option without `CONFIG_`; `None` if the kernel was built without the module.
#[must_use]
pub fn boot_with_module(option: &str) -> Option<String> {
    is_built_with(option).unwrap_or(true).then(|| boot(&format!("lsm={MODULES}")))
}

/// Returns how to add a parameter to the kernel's command line.
#[must_use]
pub fn boot(parameter: &str) -> String {
    let has_grub = has_program("update-grub") && Path::new(GRUB_FOLDER).is_dir();
    if !is_own_kernel() || !has_grub {
        let place = if is_own_kernel() { "" } else { "the host " };
        return format!("boot {place}with {parameter} on the kernel command line");
    }
    let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}\"");
    let write = as_root(&format!("tee {GRUB_FOLDER}/tollgate.cfg"));
    format!(
        "echo '{line}' | {write} && {} && {}",
        as_root("update-grub"),
        as_root("reboot")
    )
}

/// Returns whether the running kernel was built with `CONFIG_{option}`; `None` if its configuration cannot be
/// read.
#[must_use]
pub fn is_built_with(option: &str) -> Option<bool> {
    static CONFIG: OnceLock<Option<String>> = OnceLock::new();
    let config = CONFIG.get_or_init(kernel_config).as_ref()?;
    Some(enables(config, option))
}

fn enables(config: &str, option: &str) -> bool {
    let assignment = |line: &str| -> Option<bool> {
        let value = line.strip_prefix("CONFIG_")?.strip_prefix(option)?;
        Some(matches!(value.strip_prefix('=')?, "y" | "m"))
    };
    config.lines().any(|line| assignment(line) == Some(true))
}

/// Reads the configuration from the kernel itself, or from the file that distributions install with it.
fn kernel_config() -> Option<String> {
    let mut text = String::new();
    if let Ok(file) = fs::File::open("/proc/config.gz") {
        let mut config = GzDecoder::new(file).take(LARGEST_CONFIG);
        config.read_to_string(&mut text).ok()?;
        return Some(text);
    }
    let uname = rustix::system::uname();
    let path = format!("/boot/config-{}", uname.release().to_string_lossy());
    let mut config = fs::File::open(path).ok()?.take(LARGEST_CONFIG);
    config.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns true outside of containers, where the kernel can be configured.
fn is_own_kernel() -> bool {
    super::container::is_host()
}

fn has_program(name: &str) -> bool {
    // Programs of root are not in every user's PATH.
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    env::split_paths(&path).chain(usual).any(|folder| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_that_exist_and_are_too_low_are_set() {
        let parameter = |name, value| Parameter {
            name,
            value,
            is_enough: |value| value >= 1,
        };
        let wanted = [parameter("a.low", 9), parameter("a.high", 9), parameter("a.gone", 9)];
        let read = |name: &str| match name {
            "a.low" => Some("0\n".to_owned()),
            "a.high" => Some("1\n".to_owned()),
            _ => None,
        };
        assert_eq!(set_parameters(&wanted, read).as_deref(), Some("a.low=9"));
        assert_eq!(set_parameters(&wanted[1..], read), None);
    }

    #[test]
    fn an_option_is_on_if_it_is_built_in_or_a_module() {
        let config = "CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_AB=\"y\"\nCONFIG_D=n\n";
        let found = ["A", "B", "C", "AB", "D", "E"].map(|option| enables(config, option));
        assert_eq!(found, [true, true, false, false, false, false]);
    }
}
