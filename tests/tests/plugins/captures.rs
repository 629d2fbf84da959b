//! Captures with events of plugins: recorded, replayed with their plugins, and read by sysdig.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Limited, program};
use serde_json::Value;

use super::{Ran, Toy, compile, rule};

/// Rules that match each event, and print what a replay has to keep.
fn rules() -> String {
    rule(
        "Each",
        "toy.number > 0",
        "%toy.number %evt.num %evt.pluginname %evt.plugininfo %evt.source %toy.part[x]",
    )
}

/// Returns a block of a capture.
fn block(ty: u32, body: &[u8]) -> Vec<u8> {
    let padding = body.len().next_multiple_of(4) - body.len();
    let length = u32::try_from(body.len() + padding + 12).expect("it is short");
    let length = length.to_le_bytes();
    let padding = &[0; 3][..padding];
    [&ty.to_le_bytes()[..], &length, body, padding, &length].concat()
}

/// Returns the beginning of a capture.
fn beginning() -> Vec<u8> {
    let section = [
        &0x1a2b_3c4d_u32.to_le_bytes()[..],
        &1_u16.to_le_bytes(),
        &2_u16.to_le_bytes(),
        &[0xff; 8],
    ];
    let mut machine = 1_u32.to_le_bytes().to_vec();
    machine.extend((1_u64 << 30).to_le_bytes());
    machine.extend(32_768_u64.to_le_bytes());
    machine.resize(machine.len() + 128 + 8 + 24, 0);
    [
        block(0x0a0d_0d0a, &section.concat()),
        block(0x201, &machine),
    ]
    .concat()
}

/// Returns an event of a plugin as programs with libscap write it.
pub(crate) fn event(plugin: u32, data: &[u8]) -> Vec<u8> {
    let length = |of: usize| u32::try_from(of).expect("it is short").to_le_bytes();
    let mut body = vec![0, 0];
    body.extend(1_700_000_000_000_000_000_u64.to_le_bytes());
    body.extend(u64::MAX.to_le_bytes());
    body.extend(length(26 + 8 + 4 + data.len()));
    body.extend(322_u16.to_le_bytes());
    body.extend(2_u32.to_le_bytes());
    body.extend(length(4));
    body.extend(length(data.len()));
    body.extend(plugin.to_le_bytes());
    body.extend(data);
    block(0x221, &body)
}

/// Returns the data of an event that the plugin of the tests makes.
pub(crate) fn data(number: u32) -> Vec<u8> {
    let mut data = number.to_string().into_bytes();
    data.resize(16, 0);
    data
}

pub(crate) fn capture(toy: &Toy, events: impl IntoIterator<Item = Vec<u8>>) -> PathBuf {
    let events: Vec<_> = events.into_iter().collect();
    let bytes = [beginning(), events.concat()].concat();
    toy.folder.file("events.scap", 0o644, bytes)
}

pub(crate) fn replayed(toy: &Toy, file: &Path) -> Ran {
    toy.run(&["-e", file.to_str().expect("its path is text")])
}

/// Runs `tollgate replay` with the configuration and rules of a plugin.
fn replay_verb(toy: &Toy, file: &Path, words: &[&str]) -> (i32, String, String) {
    let rules = toy.folder.file("rules.yaml", 0o644, &toy.rules);
    let mut command = Command::new(program());
    command.arg("replay").arg("-c").arg(toy.config());
    command.arg("-r").arg(rules).args(words).arg(file);
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    (finished.code(), finished.stdout, finished.stderr)
}

/// Records the events of a run, and returns the file and the alerts of the run.
pub(crate) fn recorded(toy: &Toy) -> (PathBuf, Ran) {
    let prefix = toy.folder.path().join("taken");
    let path = format!("capture.path_prefix={}", prefix.display());
    let options = [
        "-o",
        "capture.enabled=true",
        "-o",
        "capture.mode=all_rules",
        "-o",
        &path,
    ];
    let ran = toy.run(&options);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let folder = fs::read_dir(toy.folder.path()).expect("it is there");
    let files = folder.map(|entry| entry.expect("it is readable").path());
    let is_capture = |file: &PathBuf| file.extension().is_some_and(|end| end == "scap");
    let files: Vec<_> = files.filter(is_capture).collect();
    assert_eq!(files.len(), 1, "{files:?}: {}", ran.stderr);
    (files[0].clone(), ran)
}

/// Returns the alerts without what differs between runs.
pub(crate) fn alerts(ran: &Ran) -> Vec<Value> {
    let of_rules = ran.alerts.iter().filter(|alert| alert["rule"] == "Each");
    let same = of_rules.map(|alert| {
        let keys = ["output", "time", "source", "output_fields", "priority"];
        keys.iter().map(|key| alert[key].clone()).collect()
    });
    same.collect()
}

#[test]
fn a_capture_of_a_plugins_events_gives_the_alerts_of_the_run() {
    let mut toy = Toy::new("plain");
    toy.rules = rules();
    let (file, live) = recorded(&toy);
    let expected = alerts(&live);
    assert_eq!(expected.len(), 4, "{}", live.stdout);
    let again = replayed(&toy, &file);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(alerts(&again), expected, "{}", again.stderr);
    assert_eq!(again.of("Each")[1], "2 2 toy event 2 toy x");
    // As Falco's, the totals have them.
    assert!(
        again.stdout.contains("Events detected: 4\n"),
        "{}",
        again.stdout
    );
    let (code, stdout, stderr) = replay_verb(&toy, &file, &["--stats"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 4, "{stdout}");
    for expected in [
        "4 events in ",
        "; 4 evaluated\n",
        "4 events of plugins\n",
        "        4  Each\n",
    ] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn sysdig_reads_the_events_of_plugins_that_are_recorded() {
    if !e2e::installed("sysdig") {
        e2e::skip!("needs sysdig", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
    let mut toy = Toy::new("plain");
    toy.rules = rules();
    let (file, _) = recorded(&toy);
    let output = Command::new("sysdig")
        .args(["-p", "%evt.num %evt.rawtime %evt.type %evt.args", "-r"])
        .arg(&file)
        .output()
        .expect("sysdig starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{output:?}");
    let last = "4 1700000000000000004 pluginevent plugin ID=999 event_data=4";
    assert!(lines[3].starts_with(last), "{text}");
}

#[test]
fn a_plugin_takes_fields_from_recorded_events_of_another() {
    let mut toy = Toy::new("plain");
    toy.rules = rule(
        "Each",
        "toy.number > 0 and toyx.shout exists",
        "%toyx.shout %toy.number",
    );
    toy.extractor = Some(compile(&["-DEXTRACTOR", "-DSOURCES=\"[\\\"toy\\\"]\""]));
    let file = capture(&toy, [event(999, &data(7)), event(999, &data(8))]);
    let ran = replayed(&toy, &file);
    assert_eq!(ran.of("Each"), ["7! 7", "8! 8"], "{}", ran.stderr);
}

#[test]
fn events_of_plugins_that_are_not_loaded_are_counted_and_named() {
    let mut toy = Toy::new("plain");
    toy.rules = rules();
    let events = [
        event(5, b"x"),
        event(999, &data(1)),
        event(6, b""),
        event(5, b"y"),
    ];
    let file = capture(&toy, events);
    let ran = replayed(&toy, &file);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.of("Each"), ["1 2 toy event 1 toy x"]);
    let warning = "3 events of plugins that are not loaded (numbers: 5, 6) were not evaluated";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    let (code, stdout, stderr) = replay_verb(&toy, &file, &["--stats", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let stats = stderr
        .lines()
        .find_map(|line| serde_json::from_str::<Value>(line).ok());
    let stats = stats.unwrap_or_else(|| panic!("{stderr}"));
    assert_eq!(
        (&stats["of_plugins"], &stats["of_plugins_not_loaded"]),
        (&4.into(), &3.into())
    );
    // Events are printed without plugins.
    let mut command = Command::new(program());
    command
        .args(["replay", "--filter", "evt.num > 0"])
        .arg(&file);
    let printed = Limited::start(&mut command, Duration::from_secs(20)).finish(b"");
    assert_eq!((printed.code(), printed.stdout.as_str()), (0, ""));
    assert!(
        printed
            .stderr
            .contains("4 events of plugins were not printed"),
        "{}",
        printed.stderr
    );
}

#[test]
fn an_event_on_which_a_plugin_fails_is_the_only_one_that_is_lost() {
    for (mode, counted, cause) in [
        (
            "trip",
            "1 event lost (2 crashes, 0 hangs, 0 times garbage, 0 failures)",
            "the process of the plugin ended",
        ),
        (
            "stall",
            "1 event lost (0 crashes, 2 hangs, 0 times garbage, 0 failures)",
            "did not answer within 500 ms",
        ),
        (
            "cheat",
            "1 event lost (0 crashes, 0 hangs, 0 times garbage, 2 failures)",
            "it returns 5 values for field `toy.number`",
        ),
    ] {
        let mut toy = Toy::new(mode);
        toy.rules = rules();
        let file = capture(&toy, (1..=6).map(|number| event(999, &data(number))));
        let ran = toy.run(&[
            "-e",
            file.to_str().expect("text"),
            "-o",
            "plugin_host.timeout=500",
        ]);
        assert_eq!(ran.code, 1, "{mode}: {}", ran.stderr);
        let numbers: Vec<_> = ran
            .of("Each")
            .iter()
            .map(|text| text[..3].to_owned())
            .collect();
        assert_eq!(
            numbers,
            ["1 1", "2 2", "4 4", "5 5", "6 6"],
            "{mode}: {}",
            ran.stderr
        );
        for expected in [
            "cannot evaluate all events of plugins: source toy: ",
            counted,
            cause,
        ] {
            assert!(
                ran.stderr.contains(expected),
                "{mode}, {expected}: {}",
                ran.stderr
            );
        }
    }
}

/// Two events go to the plugin at once, and it takes 300 ms for each. After 6 hangs it would be given up.
#[test]
fn a_slow_plugin_whose_events_keep_the_deadline_loses_none() {
    let mut toy = Toy::new("slow");
    toy.rules = rules();
    let of_others = || event(5, b"x");
    let both = |first: u32| [event(999, &data(first)), event(999, &data(first + 1))];
    let events = (1..=8).flat_map(|group| both(2 * group).into_iter().chain([of_others()]));
    let file = capture(&toy, events);
    let ran = toy.run(&[
        "-e",
        file.to_str().expect("text"),
        "-o",
        "plugin_host.timeout=500",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.of("Each").len(), 16, "{}", ran.stderr);
}

#[test]
fn a_plugin_that_always_fails_is_given_up_and_all_events_are_counted() {
    let mut toy = Toy::new("trip-always");
    toy.rules = rules();
    let file = capture(&toy, (1..=300).map(|number| event(999, &data(number))));
    let (code, stdout, stderr) = replay_verb(&toy, &file, &["--stats"]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    for expected in [
        "300 events of plugins lost (their plugin failed)\n",
        "source toy: 300 events lost (100 crashes,",
    ] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn an_event_of_a_plugin_that_lies_ends_its_capture_with_an_error() {
    let mut toy = Toy::new("plain");
    toy.rules = rules();
    let mut liar = event(999, &data(2));
    // The length of the bytes, after frame, processor, header and another length.
    liar[8 + 2 + 26 + 4..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let file = capture(&toy, [event(999, &data(1)), liar, event(999, &data(3))]);
    let ran = replayed(&toy, &file);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(ran.of("Each"), ["1 1 toy event 1 toy x"]);
    assert!(
        ran.stderr
            .contains("parameters that are longer than their event"),
        "{}",
        ran.stderr
    );
}
