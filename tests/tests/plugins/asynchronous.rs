//! Asynchronous events, which threads of a plugin add to the source of another one.

use std::path::{Path, PathBuf};

use super::captures::{alerts, recorded, replayed};
use super::{Ran, Toy, compile_as, is_refused, rule};

/// Prints what the fields of an event are.
const OUTPUT: &str = "%evt.num %evt.type %evt.asynctype %evt.is_async %evt.source %evt.pluginname %evt.plugininfo %toy.number \
                      %toyasync.data";
const OF_TOY: &str = "-DSOURCES=\"[\\\"toy\\\"]\"";
const FIELDS_OF_TOY: &str = "-DEXTRACTS=\"[\\\"toy\\\"]\"";

/// A configuration whose third plugin adds events to the source `toy`.
fn adding(mode: &str, added: &str, options: &[&str]) -> Toy {
    let mut toy = Toy::new(mode);
    toy.third = Some((compile_as("async_plugin", options), added.to_owned()));
    toy
}

fn answers(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("the plugin has written it");
    text.lines().map(str::to_owned).collect()
}

fn path(toy: &Toy) -> PathBuf {
    toy.folder.path().join("answers")
}

/// As [`adding`], with a file in which the plugin writes what the handler answers.
fn answered(mode: &str, added: &str, options: &[&str]) -> Toy {
    let mut toy = adding(mode, "", options);
    let added = format!("{added} {}", path(&toy).display());
    if let Some((_, config)) = &mut toy.third {
        *config = added;
    }
    toy
}

/// Returns the line with the counts of the source.
fn totals(ran: &Ran) -> &str {
    let mut lines = ran.stderr.lines();
    let found = lines.find(|line| line.contains("plugin source toy: "));
    found.unwrap_or_else(|| panic!("{}", ran.stderr))
}

/// Returns the number before these words in the counts of the source.
fn count(ran: &Ran, words: &str) -> u64 {
    let (before, _) = totals(ran)
        .split_once(words)
        .unwrap_or_else(|| panic!("{words}: {}", totals(ran)));
    // What is no number fails below.
    let number = before.trim_end().rsplit(' ').next().unwrap_or_default();
    number
        .parse()
        .unwrap_or_else(|_error| panic!("{words}: {}", totals(ran)))
}

#[test]
fn rules_of_the_source_see_asynchronous_events_with_their_fields() {
    let mut toy = adding(
        "plain",
        "first",
        &[OF_TOY, FIELDS_OF_TOY, "-DTYPES=402", "-DPARSED=322,402"],
    );
    toy.rules = rule("Ping", "evt.type = ping", OUTPUT)
        + &rule(
            "Pong",
            "evt.asynctype = pong and evt.is_async = true",
            OUTPUT,
        )
        + &rule(
            "Own",
            "evt.type = pluginevent and evt.is_async = false and not evt.asynctype exists",
            OUTPUT,
        );
    let ran = toy.run(&[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // They wait while the source makes its first event; the plugin that is the source takes no fields from them.
    assert_eq!(
        ran.of("Ping"),
        [
            "2 ping ping true toy <NA> <NA> <NA> 999 ping 1 1+1",
            "4 ping ping true toy <NA> <NA> <NA> 999 ping 3 1+3"
        ],
        "{}",
        ran.stderr
    );
    let pong = "3 pong pong true toy <NA> <NA> <NA> 999 pong 2 1+2";
    assert_eq!(ran.of("Pong"), [pong], "{}", ran.stderr);
    let own = ran.of("Own");
    assert_eq!(own[0], "1 pluginevent <NA> false toy toy event 1 1 <NA>");
    assert_eq!(own[3], "7 pluginevent <NA> false toy toy event 4 4 <NA>");
    assert!(
        totals(&ran).contains("7 events shown to rules, 0 restarts")
            && totals(&ran).ends_with(
                "0 rules undecided, 0 asynchronous events lost and 0 refused, 0 not parsed"
            ),
        "{}",
        totals(&ran)
    );
}

#[test]
fn a_plugin_gets_the_types_of_events_that_it_names_or_all_if_it_serves_all_sources() {
    let data = |options: &[&str]| {
        let mut toy = adding("plain", "first", options);
        toy.rules = rule("Each", "evt.num <= 2", "%evt.type %toyasync.data");
        let ran = toy.run(&[]);
        assert_eq!(ran.code, 0, "{options:?}: {}", ran.stderr);
        ran.of("Each")
    };
    let (own, ping) = ("pluginevent of the source", "ping 999 ping 1 0+0");
    let all = "-DEXTRACTS=\"[]\"";
    assert_eq!(data(&[FIELDS_OF_TOY]), [own, "ping <NA>"]);
    assert_eq!(data(&[all]), [own, ping]);
    assert_eq!(data(&[all, "-DTYPES=322"]), [own, "ping <NA>"]);
    assert_eq!(data(&[FIELDS_OF_TOY, "-DTYPES=322,402"]), [own, ping]);
    assert_eq!(data(&[all, "-DTYPES=402"]), ["pluginevent <NA>", ping]);
}

#[test]
fn events_that_are_wrong_or_late_are_refused_with_a_reason_and_counted() {
    let mut toy = answered("plain", "first bad", &[]);
    toy.rules = rule("Ping", "evt.type = ping", "%evt.num");
    let ran = toy.run(&[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answers = answers(&path(&toy));
    let expected = [
        "good: 0 ",
        "good: 0 ",
        "good: 0 ",
        "name: 1 the plugin does not announce events named `other`",
        "length: 1 the event has 48 bytes, and parameters of 4, 5 and 1048576",
        "type: 1 the event has type 322 and 3 parameters, not 402 and 3",
        "thread: 1 the event names a thread",
        "owner: 1 the owner is not the one that came with the handler",
        "null: 1 the event is a null pointer",
        "silent: 1 ",
        "long: 1 the event has 8388545 bytes of data, above 8388544",
        "longest: 0 ",
        // The source takes events until the plugin has stopped.
        "stopping: 0 ",
        "ended: 1 the event source is closed",
    ];
    // The program may be gone before its end is noted.
    assert!(answers.len() + 1 >= expected.len(), "{answers:#?}");
    for (answer, expected) in answers.iter().zip(expected) {
        assert!(answer.starts_with(expected), "{expected}: {answers:#?}");
    }
    assert_eq!(ran.of("Ping"), ["2", "4", "5", "9"], "{}", ran.stderr);
    // One with an unknown owner is of no source.
    assert_eq!(count(&ran, "refused"), 7, "{}", totals(&ran));
    assert_eq!(count(&ran, "asynchronous events lost"), 0);
    assert!(
        ran.stderr
            .contains("an asynchronous event was missed: plugin `toyasync`: the plugin does not announce events named `other`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_flood_fills_the_queue_and_what_does_not_fit_is_counted_as_lost() {
    let mut toy = answered("stay", "flood", &[OF_TOY]);
    toy.rules = rule("Own", "toy.number > 0", "%toy.number");
    let ran = toy.run(&["-M", "5"]);
    assert_eq!(ran.of("Own").len(), 4, "{}", ran.stderr);
    let answers = answers(&path(&toy));
    let with = |start: &str| {
        answers
            .iter()
            .filter(|answer| answer.starts_with(start))
            .count()
    };
    assert!(
        with("full: 1 4096 events wait, and there is no room") > 0,
        "{answers:#?}"
    );
    assert_eq!(with("again: 0"), 4, "{answers:#?}");
    let (shown, lost) = (
        count(&ran, "events shown to rules"),
        count(&ran, "asynchronous events lost"),
    );
    assert!(lost > 0 && shown > 4096, "{}", totals(&ran));
    // Four threads send as many, and one more each as soon as there is room.
    assert!(shown + lost >= 4 + 4 * 6001, "{}", totals(&ran));
    assert_eq!(count(&ran, "restarts"), 0);
}

#[test]
fn a_thread_that_crashes_ends_the_process_which_is_started_again() {
    let mut toy = adding("stay", "crash", &[]);
    toy.rules = rule("Own", "toy.number > 0", "%toy.number");
    let ran = toy.run(&["-M", "3"]);
    let failures = ran.failures();
    assert!(!failures.is_empty(), "{}", ran.stderr);
    let crashed = |cause: &String| cause.starts_with("the process of the plugin ended: signal: 11");
    assert!(failures.iter().all(crashed), "{failures:?}");
}

#[test]
fn plugins_that_add_events_to_no_source_are_refused_by_name() {
    let refused = |options: &[&str], expected: &str| {
        is_refused(&adding("plain", "first", options), &[], expected);
    };
    refused(
        &["-DSOURCES=\"[\\\"syscall\\\"]\""],
        "cannot use plugin `toyy`: it adds events to system calls, which is not supported",
    );
    refused(
        &["-DSOURCES=\"[\\\"other\\\"]\""],
        "cannot use plugin `toyy`: it adds events to sources that no loaded plugin has: other",
    );
    refused(
        &["-DEVENTS=\"[]\""],
        "but names none in plugin_get_async_events",
    );
    refused(
        &["-DEVENTS=\"{\""],
        "its list of sources or events is no JSON",
    );
    // An empty list stands for all sources, of which there are only system calls.
    let mut alone = Toy::new("plain");
    alone.library = compile_as("async_plugin", &[]);
    is_refused(
        &alone,
        &[],
        "cannot use plugin `toy`: it adds events to system calls",
    );
    let mut toy = adding(
        "plain",
        "first",
        &["-DSOURCES=\"[\\\"toy\\\",\\\"syscall\\\"]\""],
    );
    toy.rules = rule("Pang", "evt.type = pang", "o");
    is_refused(&toy, &[], "no such event type: `pang`");
    toy.rules = rule("Ping", "evt.type = ping", "%evt.type");
    assert_eq!(toy.run(&[]).of("Ping").len(), 2);
    let listed = toy.run(&["--list-plugins"]).stdout;
    assert!(listed.contains("  - Async Events\n"), "{listed}");
}

#[test]
fn a_plugin_that_takes_no_handler_fails_its_source() {
    let ran = adding("plain", "refuse", &[OF_TOY]).run(&["-M", "2"]);
    let failures = ran.failures();
    let expected =
        "it does not take the handler of asynchronous events (code 1): the mode is refuse";
    assert!(
        failures.iter().any(|cause| cause == expected),
        "{failures:?}"
    );
}

#[test]
fn a_capture_with_asynchronous_events_gives_the_alerts_of_the_run() {
    let mut toy = adding(
        "plain",
        "first timed",
        &[OF_TOY, FIELDS_OF_TOY, "-DTYPES=402"],
    );
    toy.rules = rule("Each", "evt.num > 0", OUTPUT);
    let (file, live) = recorded(&toy);
    let expected = alerts(&live);
    assert_eq!(expected.len(), 7, "{}", live.stdout);
    let again = replayed(&toy, &file);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(alerts(&again), expected, "{}", again.stderr);
    assert_eq!(
        again.of("Each")[2],
        "3 pong pong true toy <NA> <NA> <NA> 999 pong 2 0+0"
    );
    // The plugin that added them is not needed.
    toy.third = None;
    toy.rules = rule("Each", "evt.is_async = true", "%evt.asynctype");
    let again = replayed(&toy, &file);
    assert_eq!(
        again.of("Each"),
        ["ping", "pong", "ping"],
        "{}",
        again.stderr
    );
}
