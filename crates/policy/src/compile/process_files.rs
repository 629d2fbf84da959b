//! Files of processes below `/proc`: those of the process itself, which a policy names by `/proc/self/...`, and the public
//! ones of any process, `/proc/*/...`.
//!
//! Landlock ties its rules to files that exist when the ruleset is made, and the folder of a process exists only once the
//! process does. So no rule of Landlock can allow it to descendants, and the agent opens such files in their place.

use super::MachineFeatures;
use super::landlock::{EXECUTE, Entry, LISTING, READ_FILE, TRUNCATE, WRITE_FILE, rights};
use super::landlock_rights::IOCTL;
use super::part::CompiledPart;
use crate::pattern::Pattern;
use crate::policy::Rule;
use crate::restriction::AllowedFile;

/// The beginnings of patterns of such files.
const OWN: &str = "/proc/self/";
const ANY: &str = "/proc/*/";

/// Files that the agent opens for a process. The kernel decides about each by whoever uses it, or they tell nothing that the
/// process may not know; so it does not matter that the agent has more rights. Not so `pagemap`, `stack` and `mem`, nor
/// writing `uid_map`, for which the rights of whoever opened them count.
const READABLE: [&str; 38] = [
    "arch_status",
    "attr",
    "auxv",
    "cgroup",
    "children",
    "cmdline",
    "comm",
    "coredump_filter",
    "cpuset",
    "environ",
    "fd",
    "fdinfo",
    "gid_map",
    "io",
    "limits",
    "loginuid",
    "maps",
    "mountinfo",
    "mounts",
    "mountstats",
    "net",
    "numa_maps",
    "oom_adj",
    "oom_score",
    "oom_score_adj",
    "personality",
    "sched",
    "schedstat",
    "sessionid",
    "setgroups",
    "smaps",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
    "task",
    "uid_map",
    "wchan",
];

/// Files that the agent opens for writing too: the kernel looks at the rights of whoever writes.
const WRITABLE: [&str; 6] = [
    "clear_refs",
    "comm",
    "coredump_filter",
    "loginuid",
    "oom_adj",
    "oom_score_adj",
];

/// Files that the kernel shows of any process to everybody, without asking who may trace it.
const PUBLIC: [&str; 12] = [
    "cgroup",
    "cmdline",
    "comm",
    "cpuset",
    "limits",
    "loginuid",
    "oom_score",
    "oom_score_adj",
    "sessionid",
    "stat",
    "statm",
    "status",
];

/// Returns true for a pattern of files of processes, which the agent opens.
#[must_use]
pub fn is_of_processes(pattern: &Pattern) -> bool {
    [OWN, ANY]
        .iter()
        .any(|start| pattern.text().starts_with(start))
}

/// Lowers the files that stay accessible where all others are denied.
pub(super) fn lower_allowed(
    rule: &Rule,
    files: &[AllowedFile],
    machine: &MachineFeatures,
) -> CompiledPart<Entry> {
    let entries = files.iter().map(|file| {
        let (rule, path) = (rule.id.clone(), file.path.clone());
        // An accessible device may be used in full, including ioctl.
        let rights = IOCTL | rights(file.access) | if file.exec { EXECUTE } else { 0 };
        match is_of_processes(&path) {
            true => Entry::Own { rule, path, rights },
            false => Entry::Only { rule, path, rights },
        }
    });
    let lowered = CompiledPart::many(entries);
    let is_opened = rule.verdict.audits() && machine.watches;
    match files.iter().any(|file| is_of_processes(&file.path)) && !is_opened {
        true => lowered.breaks(
            "opening files of processes below /proc, which only an agent that reports denials opens for them",
        ),
        false => lowered,
    }
}

/// Returns the name of a file of the process itself, `/proc/self/...`, by another one that leads to it.
#[must_use]
pub fn named(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/proc/")?;
    let is_link = rest == "mounts" || rest == "net" || rest.starts_with("net/");
    let is_own = rest.starts_with("self/");
    (is_own || is_link).then(|| match is_own {
        true => path.to_owned(),
        false => format!("{OWN}{rest}"),
    })
}

/// Returns true if the agent opens a file, `/proc/self/...` or `/proc/NUMBER/...`, with at most these rights of Landlock.
#[must_use]
pub fn is_served(path: &str, rights: u64) -> bool {
    let reads = rights & !(READ_FILE | LISTING) == 0;
    let Some(rest) = path.strip_prefix(OWN) else {
        return reads && is_public(path);
    };
    let mut words = rest.split('/');
    let mut file = words.next().unwrap_or_default();
    let mut below = words.next();
    // `task` is a folder of threads, each with files of its own.
    if let ("task", Some(_)) = (file, below) {
        (file, below) = (words.next().unwrap_or("task"), words.next());
    }
    // What is below `fd` leads elsewhere.
    let is_whole = below.is_none() || ["attr", "fdinfo", "net"].contains(&file);
    let writes = rights & !(READ_FILE | WRITE_FILE | TRUNCATE) == 0;
    is_whole && (reads && READABLE.contains(&file) || writes && WRITABLE.contains(&file))
}

/// Returns true if [`is_served`] holds for reading, or for reading and writing.
#[must_use]
pub(crate) fn is_served_for(path: &str, writes: bool) -> bool {
    let write = if writes { WRITE_FILE | TRUNCATE } else { 0 };
    is_served(path, READ_FILE | write)
}

fn is_public(path: &str) -> bool {
    let rest = path.strip_prefix("/proc/");
    rest.and_then(|rest| rest.split_once('/'))
        .is_some_and(|(number, name)| is_number(number) && PUBLIC.contains(&name))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_tell_and_do_the_same_whoever_opens_them_are_served() {
        let read = READ_FILE;
        for path in [
            "/proc/self/stat",
            "/proc/self/task",
            "/proc/self/task/7",
            "/proc/self/task/7/stat",
            "/proc/self/fd",
            "/proc/self/fdinfo/3",
            "/proc/self/net/tcp",
            "/proc/self/attr/current",
            "/proc/self/uid_map",
            "/proc/1/stat",
            "/proc/12/limits",
        ] {
            assert!(is_served(path, read), "{path}");
        }
        for path in [
            "/proc/self",
            "/proc/self/",
            "/proc/1/environ",
            "/proc/1/maps",
            "/proc/1/task/1/stat",
            "/proc/x/stat",
            "/proc//stat",
            "/proc/self/mem",
            "/proc/self/pagemap",
            "/proc/self/task/7/mem",
            "/proc/self/fd/3",
            "/proc/self/stat/x",
            "/proc/self/root/etc/shadow",
            "/proc/selfish/stat",
        ] {
            assert!(!is_served(path, read), "{path}");
        }
        assert!(is_served("/proc/self/oom_score_adj", read | WRITE_FILE));
        for path in [
            "/proc/self/environ",
            "/proc/self/uid_map",
            "/proc/1/oom_score_adj",
        ] {
            assert!(!is_served(path, WRITE_FILE), "{path}");
        }
    }
}
