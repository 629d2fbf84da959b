//! Compares paths in a procfs, where a name that leads through `self` means each process something else.

use std::os::fd::OwnedFd;

use event::Pid;

/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: u64 = 0x9fa0;

/// Returns whether a file is in a procfs.
pub(super) fn is_procfs(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(PROC_MAGIC))
}

/// Comparison of two paths in a procfs, where `self` and `thread-self` mean each process something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryComparison {
    /// The name led the agent to its own entry, and the caller to the caller's.
    Callers,
    /// The entries of two processes, neither of which is the agent. In a procfs of another pid namespace one may
    /// be the agent all the same.
    Numbers,
    /// Another file.
    Other,
}

/// Compares the path that the agent resolved with the file that the caller opened. The procfs can be mounted
/// anywhere. If it is attached nowhere (open_tree(2), fsmount(2)), paths begin at its root.
pub(super) fn compare(resolved: &[u8], file: &[u8], pid: Pid) -> EntryComparison {
    let split = |path| <[u8]>::split(path, |byte| *byte == b'/');
    let (mut ours, mut theirs) = (split(resolved), split(file));
    let differing = ours
        .by_ref()
        .zip(theirs.by_ref())
        .find(|(our, their)| our != their);
    let number = |text| {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<i32>().ok())
    };
    let numbers = differing.map(|(our, their)| (number(our), number(their)));
    let Some((Some(our), Some(their))) = numbers else {
        return EntryComparison::Other;
    };
    let (ours, theirs) = (
        without_thread(ours.collect()),
        without_thread(theirs.collect()),
    );
    if ours != theirs {
        return EntryComparison::Other;
    }
    let own = std::process::id().cast_signed();
    match (our == own, their == pid.0) {
        (true, true) => EntryComparison::Callers,
        (true, false) => EntryComparison::Other,
        (false, _) => EntryComparison::Numbers,
    }
}

/// Removes the part of a path below the entry of a process that names a thread.
fn without_thread(mut path: Vec<&[u8]>) -> Vec<&[u8]> {
    if path.len() >= 2 && path[0] == b"task" {
        path.drain(..2);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_entry_stands_for_the_callers() {
        let (own, caller) = (std::process::id(), Pid(4711));
        let compared = |ours: &str, theirs: &str| {
            let ours = ours.replace("OWN", &own.to_string());
            compare(ours.as_bytes(), theirs.as_bytes(), caller)
        };
        use EntryComparison::{Callers, Numbers, Other};
        for (ours, theirs, expected) in [
            ("/proc/OWN/status", "/proc/4711/status", Callers),
            ("/OWN/status", "/4711/status", Callers),
            ("/mnt/proc/OWN", "/mnt/proc/4711", Callers),
            (
                "/proc/OWN/task/OWN/status",
                "/proc/4711/task/4712/status",
                Callers,
            ),
            ("/proc/OWN/status", "/proc/4711/environ", Other),
            ("/proc/OWN/environ", "/proc/1/environ", Other),
            ("/proc/OWN/status", "/etc/shadow", Other),
            ("/OWN/status", "/proc/4711/status", Other),
            ("/proc/1/status", "/proc/4711/status", Numbers),
        ] {
            assert_eq!(compared(ours, theirs), expected, "{ours} {theirs}");
        }
    }
}
