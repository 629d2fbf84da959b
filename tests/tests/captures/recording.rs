//! What `-w` and `capture` write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Watch, WatchResult};

use crate::{RULES, WORK, need_sysdig, replay, sysdig};

pub(crate) fn recorded(name: &str, options: &[&str]) -> (WatchResult, PathBuf) {
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
    need_sysdig!();
    let theirs = sysdig(
        &[
            "-p",
            "*%evt.type|%evt.arg.name|%fd.name|%proc.name",
            "evt.dir=<",
        ],
        &file,
    );
    // Whose child the one that ran first is, sysdig and the run know alike.
    let format = "%evt.type|%evt.time|%proc.pid|%proc.ppid|%proc.name|%proc.cmdline|%proc.exe\
                  |%user.name|%user.uid|%group.name|%thread.tid|%evt.cpu|%evt.rawres|%proc.tty";
    let filter = "evt.type in (openat, execve, connect)";
    let by_sysdig = sysdig(
        &[
            "-p",
            &format!("*{format}"),
            &format!("evt.dir=< and {filter}"),
        ],
        &file,
    );
    let (_, ours, _) = replay(&["-p", format, "--filter", filter], &file);
    // Blanks are shown as they are, or as an escape.
    let shown = by_sysdig.replace("\n    echo", "\\n    echo");
    assert_eq!(shown, ours);
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

/// Files of a rotated recording, by number.
fn numbered(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix(stem)?.parse::<u64>().ok()
    };
    let mut files: Vec<(u64, PathBuf)> = paths
        .filter_map(|path| Some((number(&path)?, path)))
        .collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// What is in a file by itself.
fn lines(file: &Path, format: &str) -> Vec<String> {
    let (code, out, errors) = replay(&["-p", format], file);
    assert_eq!((code, errors.as_str()), (0, ""), "{}", file.display());
    // Whose events these are is told by each file.
    assert!(
        !out.lines().any(|line| line.starts_with("<NA>")),
        "{}",
        file.display()
    );
    out.lines().map(str::to_owned).collect()
}

#[test]
fn recordings_rotate_by_count_and_each_file_can_be_read_by_itself() {
    let (watched, file) = recorded(
        "many.scap",
        &["-w", "%F", "--write-events", "10", "--write-keep", "2"],
    );
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let files = numbered(watched.scratch.path(), "many.scap");
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(!file.exists());
    assert_eq!(lines(&files[0], "%proc.cmdline").len(), 10);
    assert!(!lines(&files[1], "%proc.cmdline").is_empty());
}

#[test]
fn recordings_rotate_by_size() {
    const MIB: u64 = 1 << 20;
    let watch = Watch::script(
        "i=0; while [ $i -lt 12000 ]; do : < /etc/hosts; i=$((i + 1)); done; cat /etc/group",
    );
    let file = watch.scratch().path().join("sized.scap");
    let watched = watch
        .rules(RULES)
        .option("-w")
        .option(file.display().to_string())
        .option("--write-size")
        .option("1")
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let files = numbered(watched.scratch.path(), "sized.scap");
    assert!(files.len() > 1, "{files:?}");
    let mut opened = 0;
    for (at, file) in files.iter().enumerate() {
        let size = fs::metadata(file).expect("it is there").len();
        // One event behind the limit at most.
        assert!(size < MIB + 65_536, "{}: {size}", file.display());
        assert!(
            size >= MIB || at + 1 == files.len(),
            "{}: {size}",
            file.display()
        );
        let names = lines(file, "%proc.name %fd.name");
        opened += names.iter().filter(|name| *name == "sh /etc/hosts").count();
    }
    assert_eq!(opened, 12_000);
    let last = lines(files.last().expect("the last"), "%proc.name %fd.name");
    assert!(last.iter().any(|name| name == "cat /etc/group"), "{last:?}");
}

#[test]
fn recordings_rotate_by_time() {
    let watch =
        Watch::script("cat /etc/hosts; sleep 1.3; cat /etc/group; sleep 1.3; cat /etc/passwd");
    let file = watch.scratch().path().join("timed.scap");
    let watched = watch
        .rules(RULES)
        .option("-w")
        .option(file.display().to_string())
        .option("--write-time")
        .option("1")
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let files = numbered(watched.scratch.path(), "timed.scap");
    let place = |wanted: &str| {
        let wanted = format!("cat {wanted}");
        let has = |file: &PathBuf| lines(file, "%proc.name %fd.name").contains(&wanted);
        files
            .iter()
            .position(has)
            .unwrap_or_else(|| panic!("{wanted} is in none"))
    };
    let [first, second, third] = ["/etc/hosts", "/etc/group", "/etc/passwd"].map(place);
    assert!(first < second && second < third, "{first} {second} {third}");
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
fn a_capture_that_has_become_too_large_ends_and_the_next_match_begins_another() {
    let rules = "
- rule: first
  desc: d
  condition: evt.type = openat and fd.name = /etc/group
  output: '%fd.name'
  priority: NOTICE
  capture: true
  capture_duration: 60000
- rule: other
  desc: d
  condition: evt.type = openat and fd.name = /etc/no-such
  output: '%fd.name'
  priority: NOTICE
- rule: bulk
  desc: d
  condition: evt.type = openat and fd.name = /etc/hosts and evt.num = 0
  output: '%fd.name'
  priority: NOTICE
";
    let watch = Watch::script(
        "cat /etc/group; i=0; while [ $i -lt 9000 ]; do : < /etc/hosts; i=$((i + 1)); done
        cat /etc/no-such; cat /etc/group; true",
    );
    let prefix = watch.scratch().path().join("cap").display().to_string();
    let mut watch = watch.rules(rules);
    for option in [
        "capture.enabled=true".to_owned(),
        format!("capture.path_prefix={prefix}"),
        "capture.max_file_size_mb=1".to_owned(),
    ] {
        watch = watch.option("-o").option(option);
    }
    let watched = watch.run();
    let told = watched.of("Falco internal: capture size limit reached");
    assert_eq!(told.len(), 1, "{}", watched.story());
    assert_eq!(told[0].fields["max_file_size_mb"], 1);
    let mut files: Vec<PathBuf> = fs::read_dir(watched.scratch.path())
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.display().to_string().starts_with(&prefix))
        .collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    let size = fs::metadata(&files[0]).expect("it is there").len();
    assert_eq!(told[0].fields["written_bytes"], size);
    assert!((1 << 20..(1 << 20) + 65_536).contains(&size), "{size}");
    let [first, second] = [&files[0], &files[1]].map(|file| lines(file, "%fd.name"));
    assert_eq!(
        (first[0].as_str(), second[0].as_str()),
        ("/etc/group", "/etc/group")
    );
    // It came when no capture was under way.
    assert!(
        !first
            .iter()
            .chain(&second)
            .any(|name| name == "/etc/no-such")
    );
}

/// Reads scap blocks as what pcapng calls them.
#[test]
fn wireshark_reads_a_recording() {
    let tshark = |arguments: &[&str], file: &Path| {
        let output = Command::new("tshark")
            .arg("-r")
            .arg(file)
            .args(arguments)
            .output();
        output.ok().map(|output| {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    };
    let (watched, file) = recorded("shark.scap", &["-w", "%F"]);
    let Some(out) = tshark(
        &[
            "-T",
            "fields",
            "-e",
            "sysdig.event_type",
            "-e",
            "sysdig.thread_id",
        ],
        &file,
    ) else {
        e2e::skip!("needs tshark", || Ok("it cannot be started".to_owned()));
    };
    let pids: Vec<String> = lines(&file, "%thread.tid");
    assert!(out.lines().count() >= pids.len(), "{out}");
    for tid in pids {
        assert!(
            out.lines()
                .any(|line| line.split_whitespace().last() == Some(&tid)),
            "{tid}: {out}"
        );
    }
    drop(watched);
}

/// Such as the prompt of a shell at the other end of a connection.
#[test]
fn output_whose_line_is_not_ended_has_no_alerts_in_it() {
    let watched = Watch::script("printf '$ '; cat /dev/null; :")
        .rules(RULES)
        .recorded()
        .run();
    assert!(!watched.alerts.is_empty(), "{}", watched.story());
    assert_eq!(watched.finished.stdout, "$ ", "{}", watched.story());
}
