//! Checks whether an action can be played here.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::scene::in_path;
use super::{Action, ActionContext, Requirement, Stop};

/// Inode numbers of the initial namespaces (include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;
const INITIAL_CGROUP_NAMESPACE: u64 = 0xefff_fffb;

/// Parts of a cgroup's path by which the tools of runtimes recognise their containers.
const RUNTIMES: [&str; 6] = [
    "/docker/",
    "docker-",
    "/kubepods",
    "libpod-",
    "cri-containerd",
    "/lxc/",
];

/// Returns true if this process is in a container, as far as it can see.
#[must_use]
pub fn in_container() -> bool {
    let is = |file: &str, inode| fs::metadata(file).is_ok_and(|found| found.ino() == inode);
    let outside = is("/proc/self/ns/pid", INITIAL_PID_NAMESPACE)
        && is("/proc/self/ns/cgroup", INITIAL_CGROUP_NAMESPACE);
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    !outside || RUNTIMES.iter().any(|part| cgroup.contains(part))
}

/// Returns true if this process has an effective capability.
pub(super) fn has_capability(name: &str) -> bool {
    let number = abi::capability::from_name(name);
    let sets = sys::credential::capabilities(0);
    number.is_some_and(|number| {
        sets.is_ok_and(|sets| sets.effective.0 & 1u64.checked_shl(number.into()).unwrap_or(0) != 0)
    })
}

/// Checks whether the action can be played here. Addresses are checked later.
pub(super) fn check(action: &Action, in_container: bool) -> Result<(), Stop> {
    let skip = |reason: String| Err(Stop::Skipped(reason));
    match action.place {
        ActionContext::Container if !in_container => return skip("only for containers".to_owned()),
        ActionContext::Host if in_container => return skip("not for containers".to_owned()),
        _ => {}
    }
    for need in action.needs {
        match *need {
            Requirement::Root if !rustix::process::geteuid().is_root() => {
                return skip("needs root".to_owned());
            }
            Requirement::Readable(file) => {
                // Checks without opening the file, which would be the action itself.
                if let Err(error) = accessat(CWD, file, Access::READ_OK, AtFlags::EACCESS) {
                    return skip(format!("needs to read {file}: {error}"));
                }
            }
            Requirement::Program(program) if in_path(program).is_none() => {
                return skip(format!("needs the program `{program}`"));
            }
            Requirement::Capability(name) if !has_capability(name) => {
                return skip(format!("needs {name}"));
            }
            Requirement::NoCapability(name) if has_capability(name) => {
                return skip(format!("needs a process without {name}"));
            }
            _ => {}
        }
    }
    Ok(())
}
