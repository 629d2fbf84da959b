//! Captures of others, field by field beside sysdig.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{need_sysdig, replay, sysdig};

/// The captures of another project, or why there are none.
fn reference_captures() -> Result<Vec<PathBuf>, String> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference/upstream/captures");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    Ok(paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "scap"))
        .collect())
}

/// A field of every event that ends a call, by its number.
fn column(text: &str) -> BTreeMap<u64, String> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, "|~|");
        let (number, direction, value) = (parts.next()?, parts.next()?, parts.next()?);
        (direction == "<").then_some((number.parse().ok()?, value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Fields that mean the same to sysdig 0.29, which takes whichever end is an address of the machine for
/// the own one. Where it prints nothing it did not know the process, and
/// ours is compared where it did.
const FIELDS: [&str; 30] = [
    "evt.time",
    "evt.cpu",
    "evt.type",
    "evt.res",
    "evt.rawres",
    "evt.io_dir",
    "evt.is_io",
    "evt.arg.name",
    "evt.arg.path",
    "evt.is_open_read",
    "evt.is_open_write",
    "proc.name",
    "proc.exe",
    "proc.args",
    "proc.cmdline",
    "proc.pid",
    "proc.ppid",
    "proc.aname[2]",
    "thread.tid",
    "proc.tty",
    "user.loginuid",
    "fd.name",
    "fd.filename",
    "fd.directory",
    "fd.type",
    "fd.cip",
    "fd.sip",
    "fd.cport",
    "fd.sport",
    "container.id",
];

/// Calls whose descriptor sysdig 0.29 does not follow.
const WITHOUT_DESCRIPTOR: [&str; 4] = ["mmap", "munmap", "mprotect", "ioctl"];

#[test]
fn captures_of_others_are_read_as_sysdig_reads_them() {
    need_sysdig!();
    let captures = match reference_captures() {
        Ok(captures) => captures,
        Err(why) => e2e::skip!("needs captures beside the repository", || Ok(why)),
    };
    assert!(!captures.is_empty(), "the folder has captures");
    for file in captures {
        let kinds = column(&replay(&["-p", "%evt.num|~|%evt.dir|~|%evt.type"], &file).1);
        assert!(kinds.len() > 10, "{}", file.display());
        let mut compared = 0;
        for field in FIELDS {
            let format = format!("%evt.num|~|%evt.dir|~|%{field}");
            let theirs = sysdig(&["-p", &format!("*{format}")], &file);
            let (code, ours, errors) = replay(&["-p", &format], &file);
            assert_eq!(code, 0, "{errors}");
            let (theirs, ours) = (column(&theirs), column(&ours));
            for (number, theirs) in &theirs {
                let kind = kinds.get(number).map_or("", String::as_str);
                let known = !matches!(theirs.as_str(), "" | "<NA>" | "-1" | "0" | "4294967295");
                // sysdig has a directory for sockets, too.
                let is_odd = field == "fd.directory" && theirs == "/";
                if !known
                    || is_odd
                    || field.starts_with("fd.") && WITHOUT_DESCRIPTOR.contains(&kind)
                {
                    continue;
                }
                // Addresses of kernel structures, which tell nobody anything, and the path.
                let theirs = match theirs.rsplit_once(' ') {
                    Some((ends, path)) if field == "fd.name" && ends.contains("->") => path,
                    _ => theirs,
                };
                assert_eq!(
                    ours.get(number).map(String::as_str),
                    Some(theirs),
                    "{} {number} {kind} {field}",
                    file.display()
                );
                compared += 1;
            }
        }
        assert!(compared > 50, "{}: {compared} values", file.display());
    }
}
