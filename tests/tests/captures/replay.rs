//! `tollgate replay` as a user of sysdig meets it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use e2e::{Scratch, Watch, program};

use crate::{RULES, WORK, replay};

/// A recording, and the folder that it is in.
fn recording() -> (Scratch, PathBuf) {
    let watched = Watch::script(WORK).rules(RULES).recorded().run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let file = watched.scratch.path().join("recording.scap");
    (watched.scratch, file)
}

fn tollgate(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut child = Command::new(program())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // What does not read to the end says so itself.
    let mut stdin = child.stdin.take().expect("it is a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("it ends");
    writer.join().expect("the writer does not panic");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn alerts_that_are_lost_end_with_2_and_a_reader_that_has_seen_enough_lost_none() {
    let (scratch, file) = recording();
    let rules = scratch.file("lost.yaml", 0o644, RULES);
    let replayed = |out: Stdio| {
        let mut command = Command::new(program());
        command.args(["replay", "-q", "-r"]).arg(&rules).arg(&file);
        let output = command.stdout(out).output().expect("the program runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let (code, errors) = replayed(full.expect("it is there").into());
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains("cannot deliver all alerts: stdout: "),
        "{errors}"
    );
    assert!(!errors.contains(" 0 alerts lost"), "{errors}");
    let (reader, writer) = std::io::pipe().expect("pipes can be made");
    drop(reader);
    let (code, errors) = replayed(writer.into());
    assert_eq!(code, Some(0), "{errors}");
    assert!(!errors.contains("alerts lost"), "{errors}");
    let (code, errors) = replayed(Stdio::null());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
}

#[test]
fn events_are_printed_filtered_and_as_json() {
    let (_scratch, file) = recording();
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
    assert!(
        errors.contains("--filter: ") && errors.contains("fd.nme"),
        "{errors}"
    );
    let (code, _, errors) = replay(&["-p", "%fd.nme"], &file);
    assert_eq!(code, 2);
    assert!(
        errors.contains("--fields: ") && errors.contains("fd.nme"),
        "{errors}"
    );
    let (code, _, errors) = replay(&["--stats", "-p", "%evt.num"], &file);
    assert!(code == 0 && errors.contains("/s); "), "{errors}");
}

/// A condition that holds for the first event named and not for the second.
const CONDITIONS: [(&str, &str, &str); 17] = [
    ("fd.name = /etc/hosts", "/etc/hosts", "/no/such"),
    (
        "fd.name != /no/such and evt.is_open_read = true",
        "/etc/hosts",
        "/no/such",
    ),
    ("fd.name contains hos", "/etc/hosts", "/no/such"),
    ("fd.name icontains HOS", "/etc/hosts", "/no/such"),
    ("fd.name startswith /etc/h", "/etc/hosts", "/etc/group"),
    ("fd.name endswith such", "/no/such", "/etc/hosts"),
    ("fd.name glob '/etc/h*'", "/etc/hosts", "/etc/group"),
    ("fd.name iglob '/ETC/h*'", "/etc/hosts", "/etc/group"),
    ("fd.name regex '/etc/h.*s'", "/etc/hosts", "/etc/group"),
    ("fd.name in (/x, /etc/hosts)", "/etc/hosts", "/etc/group"),
    ("fd.name pmatch (/no)", "/no/such", "/etc/hosts"),
    (
        "proc.args intersects ('/etc/hosts /no/such')",
        "/etc/hosts",
        "/etc/group",
    ),
    ("evt.rawres < 0", "/no/such", "/etc/hosts"),
    ("evt.rawres >= 0", "/etc/hosts", "/no/such"),
    (
        "fd.filename exists and not fd.name = /no/such",
        "/etc/hosts",
        "/no/such",
    ),
    ("basename(fd.name) = hosts", "/etc/hosts", "/etc/group"),
    (
        "(fd.name = /etc/hosts or fd.name = /etc/passwd)",
        "/etc/passwd",
        "/etc/group",
    ),
];

#[test]
fn conditions_have_all_operators() {
    let (_scratch, file) = recording();
    for (condition, holds, fails) in CONDITIONS {
        let condition = format!("evt.type in (open, openat) and {condition}");
        let (code, out, errors) = replay(&["-p", "%fd.name", "--filter", &condition], &file);
        assert_eq!(code, 0, "{condition}: {errors}");
        assert!(out.lines().any(|line| line == holds), "{condition}: {out}");
        assert!(!out.lines().any(|line| line == fails), "{condition}: {out}");
    }
}

#[test]
fn times_have_the_forms_that_sysdig_gives_them() {
    let (_scratch, file) = recording();
    let format = "%evt.num|%evt.rawtime|%evt.rawtime.s|%evt.rawtime.ns|%evt.time|%evt.time.s\
                  |%evt.datetime|%evt.reltime";
    let (code, out, errors) = replay(&["-p", format], &file);
    assert_eq!(code, 0, "{errors}");
    let mut last = 0;
    for line in out.lines() {
        let [number, raw, s, ns, time, time_s, datetime, relative] =
            line.split('|').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        let number: u64 = number.parse().expect("a number");
        assert!(number > last, "{line}");
        last = number;
        assert_eq!(format!("{s}{ns:0>9}"), raw, "{line}");
        assert!(time.ends_with(&format!(".{ns:0>9}")), "{line}");
        assert_eq!(time.split('.').next(), Some(time_s), "{line}");
        assert!(datetime.ends_with(time), "{line}");
        assert!(relative.parse::<u64>().is_ok(), "{line}");
    }
    assert!(last > 10);
}

/// A leading `*` asks sysdig to print events that lack a field; a width cuts or fills.
#[test]
fn formats_may_have_a_star_and_widths() {
    let (_scratch, file) = recording();
    let filter = "evt.type = openat and fd.name = /etc/hosts";
    let (code, out, errors) = replay(
        &[
            "-p",
            "*%proc.name|%10proc.name|%2proc.name|%fd.sip",
            "--filter",
            filter,
        ],
        &file,
    );
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(out.lines().next(), Some("cat|cat       |ca|<NA>"), "{out}");
}

#[test]
fn captures_come_from_pipes_compressed_and_by_the_dozen() {
    let (scratch, file) = recording();
    let (_, wanted, _) = replay(&["-p", "%evt.num %fd.name"], &file);
    let bytes = fs::read(&file).expect("it can be read");
    let packed = scratch.path().join("recording.scap.gz");
    let gzip = Command::new("gzip")
        .arg("-c")
        .arg(&file)
        .output()
        .expect("gzip is there");
    fs::write(&packed, &gzip.stdout).expect("the folder can be written");
    for input in [&bytes, &gzip.stdout] {
        let arguments = ["replay", "-q", "-p", "%evt.num %fd.name", "-"];
        let (code, out, errors) = tollgate(&arguments, input);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert_eq!(out, wanted);
    }
    // Each file is a machine of its own; so is a section of one that others were appended to.
    let twice = replay(
        &["-p", "%evt.num %fd.name", &packed.display().to_string()],
        &file,
    );
    assert_eq!((twice.0, twice.1), (0, wanted.repeat(2)));
}

/// A network capture without packets.
const PACKETS: [u32; 12] = [
    0x0a0d_0d0a,
    28,
    0x1a2b_3c4d,
    1,
    u32::MAX,
    u32::MAX,
    28,
    1,
    20,
    1,
    0,
    20,
];

/// Returns a capture with a wrong length of the block in the middle of its event blocks, and that block's position.
///
/// The list of processes before the events has any length, so the middle of the file may have no event before it.
fn damaged(whole: &[u8]) -> (Vec<u8>, usize) {
    const EVENT_V2: u32 = 0x216;
    let word = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().expect("four"));
    let (mut at, mut events) = (0, Vec::new());
    while at < whole.len() {
        if word(at) == EVENT_V2 {
            events.push(at);
        }
        at += usize::try_from(word(at + 4)).expect("a length");
    }
    assert!(events.len() > 2, "{} events", events.len());
    let at = events[events.len() / 2];
    let mut damaged = whole.to_vec();
    damaged[at + 4..at + 8].copy_from_slice(&[0xff; 4]);
    (damaged, at)
}

/// What is wrong, what the message says, and whether events are printed before it.
#[test]
fn each_bad_input_is_told_with_its_place_and_what_to_do() {
    let (scratch, file) = recording();
    let whole = fs::read(&file).expect("it can be read");
    let events = replay(&["-p", "%evt.num"], &file).1.lines().count();
    let path = |name: &str| scratch.path().join(name);
    let write = |name: &str, bytes: &[u8]| {
        fs::write(path(name), bytes).expect("the folder can be written");
        path(name)
    };
    let (damaged, at) = damaged(&whole);
    let packets = PACKETS.map(u32::to_le_bytes).concat();
    let place = format!("at byte {at}: a block of 4294967295 bytes");
    let cases: [(PathBuf, &[&str], bool); 8] = [
        (
            path("none"),
            &["cannot open", "No such file", "help: name a capture"],
            false,
        ),
        (
            path("evt.type=open"),
            &["cannot open", "help: pass a condition with --filter"],
            false,
        ),
        (
            scratch.path().to_owned(),
            &["cannot open", "is a directory"],
            false,
        ),
        (write("empty", b""), &["it is empty", "help: "], false),
        (
            write("text", b"root:x:0:0"),
            &["it starts with 0x746f6f72", "help: name a"],
            false,
        ),
        (
            write("packets", &packets),
            &["at byte 28: ", "pcapng", "help: network captures"],
            false,
        ),
        (
            write("cut", &whole[..at + 30]),
            &["the file ends inside a block", "help: the events before"],
            true,
        ),
        (
            write("damaged", &damaged),
            &[&place, "help: the events before"],
            true,
        ),
    ];
    for (file, said, is_part) in cases {
        let lines = lines_before_refusal(&file, said);
        assert_eq!(
            (1..events).contains(&lines),
            is_part,
            "{}: {lines}",
            file.display()
        );
    }
}

#[test]
fn one_bad_file_does_not_keep_the_others_from_being_read() {
    let (scratch, file) = recording();
    let events = replay(&["-p", "%evt.num"], &file).1.lines().count();
    let good = file.display().to_string();
    let none = scratch.path().join("none");
    let (code, out, errors) = replay(&["-p", "%evt.num", &good, &good], &none);
    assert_eq!((code, out.lines().count()), (2, events * 2), "{errors}");
    // sysdig names captures behind -r.
    let (code, _, errors) = replay(&["-r", &good], &file);
    assert!(code == 2 && errors.contains("it is a capture"), "{errors}");
}

/// Replays a bad file, asserts that the message names it and says all of `said`, and returns the number of lines
/// printed before it.
fn lines_before_refusal(file: &Path, said: &[&str]) -> usize {
    let (code, out, errors) = replay(&["-p", "%evt.num"], file);
    assert_eq!(code, 2, "{}: {errors}", file.display());
    assert!(errors.contains(&file.display().to_string()), "{errors}");
    for said in said {
        assert!(errors.contains(said), "{said} is not in {errors}");
    }
    assert_eq!(errors.lines().count(), 2, "{errors}");
    out.lines().count()
}

#[test]
fn no_alert_is_lost_however_few_may_wait() {
    let (scratch, file) = recording();
    let rules = "- rule: All\n  desc: d\n  condition: evt.num > 0\n  output: o\n  priority: INFO\n";
    let rules = scratch.file("all.yaml", 0o644, rules);
    let files = vec![file.display().to_string(); 50];
    let count = |options: &[&str]| {
        let rest: Vec<&str> = files[1..].iter().map(String::as_str).collect();
        let (code, out, errors) = replay(&[options, &rest].concat(), &file);
        assert_eq!((code, &*errors), (0, ""));
        out.lines().count()
    };
    let events = count(&["-p", "%evt.num"]);
    let rules = rules.display().to_string();
    let few = ["-r", &rules, "-o", "outputs_queue.capacity=4"];
    assert_eq!(count(&few), events);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (_scratch, file) = recording();
    let script = format!(
        "set -o pipefail; {} replay -q -p '%evt.num' {files} | head -n 1",
        program().display(),
        files = format!("{} ", file.display()).repeat(400),
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("bash is there");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

/// Runs it with its standard error on a terminal, and a reader that lets it wait.
#[test]
fn work_that_takes_long_shows_how_far_it_is() {
    let (scratch, file) = recording();
    let long = scratch.path().join("long.scap");
    let bytes = fs::read(&file).expect("it can be read");
    let mut all = Vec::new();
    // Lines for more than the pipe and the buffer hold.
    while all.len() < 6 << 20 {
        all.extend_from_slice(&bytes);
    }
    fs::write(&long, all).expect("the folder can be written");
    let shown = |source: &str| {
        let inner = format!(
            "{source} | {{ sleep 2.5; cat > /dev/null; }}",
            source = source
                .replace("TOLLGATE", &program().display().to_string())
                .replace("LONG", &long.display().to_string()),
        );
        let output = Command::new("script")
            .args(["--quiet", "--return", "--command", &inner, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .expect("script is there");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let format = "-p '%evt.num %proc.cmdline %fd.name %evt.args'";
    let screen = shown(&format!("TOLLGATE replay {format} LONG"));
    for part in ["long.scap ", "% ", " events, ", "s left"] {
        assert!(screen.contains(part), "{part:?} is not in {screen:?}");
    }
    // How much there is of a pipe nobody knows.
    let screen = shown(&format!("cat LONG | TOLLGATE replay {format} -"));
    assert!(
        screen.contains("MiB ") && screen.contains(" events, "),
        "{screen:?}"
    );
    assert!(!screen.contains(" left"), "{screen:?}");
    // Nothing of it stays, and nothing is shown when that is asked for.
    assert!(screen.trim_end().ends_with("\u{1b}[2K"), "{screen:?}");
    let screen = shown(&format!("TOLLGATE replay -q {format} LONG"));
    assert!(!screen.contains("events, "), "{screen:?}");
}
