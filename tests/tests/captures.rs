//! Captures: those of others are read as sysdig reads them, and ours give the alerts of the run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Watch, Watched, program};

/// Catches every open and every program.
const RULES: &str = r"
- rule: open
  desc: d
  condition: evt.type in (open, openat, openat2, creat)
  output: '%evt.type %evt.args %fd.name %proc.cmdline %proc.pname %user.name %proc.cwd %proc.tty'
  priority: NOTICE
- rule: program
  desc: d
  condition: evt.type in (execve, execveat)
  output: '%evt.res %proc.cmdline %proc.exepath %proc.aname %user.uid %group.gid %container.id %proc.sname'
  priority: NOTICE
- rule: connection
  desc: d
  condition: evt.type = connect
  output: '%evt.res %fd.name %fd.sip %fd.sport %fd.l4proto %fd.type %proc.name'
  priority: NOTICE
";

const WORK: &str =
    "cat /etc/hosts /no/such; cd /etc; cat passwd > /dev/null; (cat group) > /dev/null
    echo | busybox nc 127.0.0.1 9; true";

fn sysdig(arguments: &[&str], file: &Path) -> Option<String> {
    let output = Command::new("sysdig")
        .arg("-r")
        .arg(file)
        .args(arguments)
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: sysdig is not installed (./x names the package)");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn replay(arguments: &[&str], file: &Path) -> (i32, String, String) {
    let output = Command::new(program())
        .args(["replay", "--quiet"])
        .args(arguments)
        .arg(file)
        .output()
        .expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The captures of another project, where they are.
fn reference_captures() -> Vec<PathBuf> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference/upstream/captures");
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: there are no captures in {}", folder.display());
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "scap"))
        .collect()
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
    for file in reference_captures() {
        let kinds = column(&replay(&["-p", "%evt.num|~|%evt.dir|~|%evt.type"], &file).1);
        assert!(kinds.len() > 10, "{}", file.display());
        let mut compared = 0;
        for field in FIELDS {
            let format = format!("%evt.num|~|%evt.dir|~|%{field}");
            let Some(theirs) = sysdig(&["-p", &format!("*{format}")], &file) else {
                return;
            };
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

fn recorded(name: &str, options: &[&str]) -> (Watched, PathBuf) {
    let mut watch = Watch::script(WORK).rules(RULES);
    let file = watch.scratch().path().join(name);
    for option in options {
        watch = watch.option(option.replace("%F", &file.display().to_string()));
    }
    (watch.run(), file)
}

#[test]
fn a_replayed_recording_gives_the_alerts_of_the_run_and_sysdig_reads_it() {
    let watched = Watch::script(WORK).rules(RULES).recorded().run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert!(
        watched.of("open").len() > 5 && watched.of("program").len() > 3,
        "{}",
        watched.story()
    );
    let file = watched.scratch.path().join("recording.scap");
    let Some(theirs) = sysdig(
        &[
            "-p",
            "*%evt.type|%evt.arg.name|%fd.name|%proc.name",
            "evt.dir=<",
        ],
        &file,
    ) else {
        return;
    };
    for wanted in [
        "openat|/etc/hosts|/etc/hosts|cat",
        "openat|/etc/passwd|/etc/passwd|cat",
    ] {
        assert!(
            theirs.lines().any(|line| line == wanted),
            "{wanted} is not in\n{theirs}"
        );
    }
    assert!(
        theirs
            .lines()
            .any(|line| line.starts_with("connect|") && line.contains("127.0.0.1:9")),
        "{theirs}"
    );
}

#[test]
fn recordings_rotate_and_each_file_can_be_read_by_itself() {
    let (watched, file) = recorded(
        "many.scap",
        &["-w", "%F", "--write-events", "10", "--write-keep", "2"],
    );
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let folder = fs::read_dir(watched.scratch.path()).expect("the folder is there");
    let names = folder.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a name")
    });
    let mut files: Vec<String> = names.filter(|name| name.starts_with("many.scap")).collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(!file.exists());
    for name in files {
        let path = watched.scratch.path().join(name);
        let (code, out, errors) = replay(&["-p", "%proc.cmdline"], &path);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert!(!out.is_empty() && !out.contains("<NA>"), "{out}");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let (watched, _) = recorded("unused", &["-w", "/dev/full"]);
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert_eq!(
        watched.of("Tollgate internal: recording stopped").len(),
        1,
        "{}",
        watched.story()
    );
    assert!(watched.of("open").len() > 5, "{}", watched.story());
}

#[test]
fn a_file_that_cannot_be_written_stops_the_start() {
    let (watched, _) = recorded("unused", &["-w", "/no/such/folder/x.scap"]);
    assert_eq!(watched.code(), 2, "{}", watched.story());
    assert!(
        watched
            .finished
            .stderr
            .contains("cannot write /no/such/folder/x.scap")
    );
}

#[test]
fn what_a_killed_agent_has_recorded_can_be_read() {
    let watch = Watch::script(
        "cat /etc/hosts > /dev/null; kill -9 $(cat %W/pid); cat /etc/group > /dev/null",
    );
    let folder = watch.scratch().path().join("work");
    let file = watch.scratch().path().join("killed.scap");
    let watched = watch
        .rules(RULES)
        .option("-w")
        .option(file.display().to_string())
        .option("-P")
        .option(folder.join("pid").display().to_string())
        .run();
    // Whether the workload may kill the agent is another test's matter; what is there must be whole.
    let (code, out, errors) = replay(&["-p", "%fd.name", "--filter", "evt.type=openat"], &file);
    assert!(
        out.lines().any(|line| line == "/etc/hosts"),
        "{out}\n{}",
        watched.story()
    );
    assert!(
        code == 0 || errors.contains("ends within a block"),
        "{errors}"
    );
}

#[test]
fn a_match_starts_a_capture_with_its_own_event() {
    let rules = RULES.replace(
        "- rule: connection",
        "- rule: secret
  desc: d
  condition: evt.type in (open, openat) and fd.name = /etc/group
  output: '%fd.name'
  priority: NOTICE
  capture: true
  capture_duration: 10000
- rule: connection",
    );
    let watch = Watch::script(WORK).rules(&rules);
    let prefix = watch.scratch().path().join("match").display().to_string();
    let watched = watch
        .option("-o")
        .option("capture.enabled=true")
        .option("-o")
        .option(format!("capture.path_prefix={prefix}"))
        .run();
    assert_eq!(watched.of("secret").len(), 1, "{}", watched.story());
    let folder = fs::read_dir(watched.scratch.path()).expect("the folder is there");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = paths
        .filter(|path| path.display().to_string().starts_with(&prefix))
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let (code, out, errors) = replay(&["-p", "%evt.type %fd.name"], &files[0]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(out.lines().next(), Some("openat /etc/group"), "{out}");
    assert!(
        out.lines().any(|line| line.starts_with("connect ")),
        "{out}"
    );
    assert!(!out.contains("/etc/hosts"), "{out}");
}

#[test]
fn events_are_printed_filtered_and_as_json() {
    let watched = Watch::script(WORK).rules(RULES).recorded().run();
    let file = watched.scratch.path().join("recording.scap");
    let (_, out, _) = replay(
        &[
            "--json",
            "-p",
            "%evt.num %fd.name",
            "--filter",
            "fd.name=/etc/hosts",
        ],
        &file,
    );
    let line: serde_json::Value =
        serde_json::from_str(out.lines().next().expect("a line")).expect("JSON");
    assert_eq!(line["fd.name"], "/etc/hosts");
    assert!(line["evt.num"].is_u64());
    let (code, _, errors) = replay(&["--filter", "fd.nme=1"], &file);
    assert_eq!(code, 2);
    assert!(errors.contains("fd.nme"), "{errors}");
    let (code, _, errors) = replay(&["--stats", "-p", "%evt.num"], &file);
    assert!(code == 0 && errors.contains(" a second;"), "{errors}");
}
