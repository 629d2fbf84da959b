//! Captures of others, field by field beside sysdig.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Scratch, program};

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

/// Returns a block of a capture.
fn block(ty: u32, body: &[u8]) -> Vec<u8> {
    let length = body.len().next_multiple_of(4) + 12;
    let frame = u32::try_from(length).expect("it is short").to_le_bytes();
    let mut block = [&ty.to_le_bytes()[..], &frame, body].concat();
    block.resize(length - 4, 0);
    [&block[..], &frame].concat()
}

/// Returns a capture with two events of a plugin and nothing else.
fn capture_of_a_plugin() -> Vec<u8> {
    let section = [
        &0x1a2b_3c4d_u32.to_le_bytes()[..],
        &[1, 0, 2, 0],
        &[0xff; 8],
    ];
    // A processor, 1 GiB, pids below 32,768, and names that are empty.
    let mut machine = 1_u32.to_le_bytes().to_vec();
    machine.extend((1_u64 << 30).to_le_bytes());
    machine.extend(32_768_u64.to_le_bytes());
    machine.resize(machine.len() + 160, 0);
    // A processor, time and thread, the length, a `pluginevent` of two parameters, their lengths, and they themselves.
    let mut event = vec![0, 0];
    event.extend(1_700_000_000_000_000_000_u64.to_le_bytes());
    event.extend(u64::MAX.to_le_bytes());
    event.extend(40_u32.to_le_bytes());
    event.extend(322_u16.to_le_bytes());
    for number in [2_u32, 4, 2, 999] {
        event.extend(number.to_le_bytes());
    }
    event.extend(b"xy");
    let event = block(0x221, &event);
    let begin = [
        block(0x0a0d_0d0a, &section.concat()),
        block(0x201, &machine),
    ];
    [&begin.concat()[..], &event, &event].concat()
}

#[test]
fn tools_that_leave_out_events_of_plugins_warn_about_them() {
    let scratch = Scratch::new();
    scratch.file("c.scap", 0o644, capture_of_a_plugin());
    scratch.file(
        "r.yaml",
        0o644,
        "- rule: Opened\n  desc: x\n  condition: evt.type = openat\n  output: x %fd.name\n  priority: INFO\n",
    );
    scratch.file(
        "alert.json",
        0o644,
        r#"{"rule":"Opened","priority":"Informational","output":"x /a","output_fields":{"fd.name":"/a","proc.name":"cat"}}"#,
    );
    let capture = "c.scap";
    for words in [
        &["rules", "cost", "r.yaml", "--capture", capture][..],
        &[
            "rules", "explain", "r.yaml", "--event", capture, "--number", "1",
        ],
        &[
            "rules",
            "silence",
            "alert.json",
            "-r",
            "r.yaml",
            "--against",
            capture,
            "--dry-run",
        ],
    ] {
        let mut command = Command::new(program());
        let output = command.current_dir(scratch.path()).args(words).output();
        let output = output.expect("the program was built");
        let error = String::from_utf8_lossy(&output.stderr);
        let warning = "tollgate: warning: 2 events of plugins in c.scap were not evaluated";
        assert!(error.contains(warning), "{words:?}: {output:?}");
    }
}
