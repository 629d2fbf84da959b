//! Plugins that parse events, and share tables.

use super::captures::{capture, data, event};
use super::{Ran, Toy, compile, compile_as, is_refused, rule};

/// Returns a configuration with the plugin that makes events, one that keeps a table of them, and one that reads it.
fn with_table(mode: &str, reader: &str) -> Toy {
    let mut toy = Toy::new("plain");
    toy.extractor = Some(compile_as("table_plugin", &["-DOWNER"]));
    toy.extractor_config = mode.to_owned();
    toy.third = Some((compile_as("table_plugin", &[]), reader.to_owned()));
    toy.rules = rule(
        "Each",
        "toyr.count > 0",
        "%toy.number %toyr.count %toyr.word %toyr.size %toyr.sum",
    );
    toy
}

/// What the rules see: events so far with such a number, their word, the entries of the table, and the sum over it.
const SEEN: [&str; 4] = [
    "1 1 odd 2 101",
    "2 1 even 3 202",
    "3 2 odd 3 303",
    "4 2 even 3 404",
];

fn totals(ran: &Ran) -> &str {
    let mut lines = ran.stderr.lines();
    let line = lines.find(|line| line.contains("plugin source toy: "));
    line.unwrap_or_else(|| panic!("{}", ran.stderr))
}

#[test]
fn a_plugin_parses_events_into_a_table_that_another_reads_and_writes() {
    let toy = with_table("", "");
    let ran = toy.run(&[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.of("Each"), SEEN, "{}", ran.stderr);
    assert!(totals(&ran).ends_with(", 0 not parsed"), "{}", totals(&ran));
    let plugins = toy.run(&["--list-plugins"]).stdout;
    assert_eq!(
        plugins.matches("  - Event Parsing\n").count(),
        2,
        "{plugins}"
    );
    // As well from a capture.
    let file = capture(&toy, (1..=4).map(|number| event(999, &data(number))));
    let ran = toy.run(&["-e", file.to_str().expect("its path is text")]);
    assert_eq!(ran.of("Each"), SEEN, "{}", ran.stderr);
}

/// Version 3.0 of the API has no extended functions. The plugin has none either, and no memory where they would be.
#[test]
fn a_table_of_the_first_version_of_the_api_is_read_and_written() {
    let mut toy = with_table("", "");
    let version = "-DAPI_VERSION=\"3.0.0\"";
    toy.extractor = Some(compile_as("table_plugin", &["-DOWNER", version]));
    // Nothing can go through all of its entries.
    toy.rules = rule(
        "Each",
        "toyr.count > 0 and not toyr.sum > 0",
        "%toy.number %toyr.count",
    );
    let ran = toy.run(&["-M", "5"]);
    assert_eq!(ran.of("Each"), Vec::<String>::new(), "{}", ran.stderr);
    assert!(
        totals(&ran).contains("4 events shown to rules, 0 restarts")
            && totals(&ran).contains(", 4 rules undecided"),
        "{}",
        totals(&ran)
    );
    toy.rules = rule(
        "Each",
        "toyr.count > 0",
        "%toy.number %toyr.count %toyr.word %toyr.size",
    );
    let ran = toy.run(&["-M", "5"]);
    let seen = SEEN.map(|text| &text[..text.len() - 4]);
    assert_eq!(ran.of("Each"), seen, "{}", ran.stderr);
    assert!(totals(&ran).ends_with(", 0 not parsed"), "{}", totals(&ran));
}

/// How long the structure of a table is is known only while its plugin is initialized.
#[test]
fn a_plugin_that_adds_a_table_after_its_initialization_adds_none() {
    let ran = with_table("late", "").run(&["-M", "5"]);
    assert_eq!(ran.of("Each").len(), 4, "{}", ran.stderr);
    assert!(totals(&ran).ends_with(", 1 not parsed"), "{}", totals(&ran));
}

#[test]
fn a_source_reads_a_table_of_a_plugin_before_it() {
    let mut toy = with_table("", "");
    toy.library = compile(&["-DTABLE=\"toy_counts\""]);
    toy.is_last = true;
    let ran = toy.run(&["-M", "5"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.of("Each"), SEEN, "{}", ran.stderr);
    let file = capture(&toy, (1..=4).map(|number| event(999, &data(number))));
    let ran = toy.run(&["-e", file.to_str().expect("its path is text")]);
    assert_eq!(ran.of("Each"), SEEN, "{}", ran.stderr);
    // After the source it is too late.
    toy.is_last = false;
    is_refused(&toy, &[], "cannot load plugin `toy`");
}

/// The plugin of the table takes no fields from events of the second source, and parses none, so its process does not have it.
#[test]
fn a_source_that_needs_a_table_of_another_source_is_refused() {
    let mut toy = with_table("", "");
    let options = ["-DNAME=\"toyb\"", "-DNUMBER=998", "-DTABLE=\"toy_counts\""];
    toy.third = Some((compile(&options), String::new()));
    toy.rules = rule("Each", "toy.number > 0", "%toy.number");
    is_refused(
        &toy,
        &[],
        "cannot use plugin `toyy`: its source `toyb` cannot start: a source has only the plugins that add events \
         to it, take fields from them or parse them, here toyy: it cannot be initialized (code 1): no plugin before this one",
    );
}

#[test]
fn an_event_that_a_plugin_cannot_parse_is_counted_and_seen_by_rules() {
    let ran = with_table("fail", "").run(&[]);
    let outputs = ran.of("Each");
    assert_eq!(outputs.len(), 4, "{}", ran.stderr);
    assert_eq!(outputs[2], "3 1 odd 3 302");
    assert!(totals(&ran).contains("4 events shown to rules, 0 restarts"));
    assert!(totals(&ran).ends_with(", 1 not parsed"), "{}", totals(&ran));
}

#[test]
fn a_plugin_that_crashes_or_hangs_while_it_parses_is_started_again() {
    for (mode, cause) in [
        ("crash", "the process of the plugin ended: signal: 11"),
        ("hang", "the plugin did not answer within 500 ms"),
    ] {
        let toy = with_table(mode, "");
        let ran = toy.run(&["-M", "3", "-o", "plugin_host.timeout=500"]);
        let failures = ran.failures();
        assert!(failures.len() >= 2, "{mode}: {failures:?}\n{}", ran.stderr);
        assert!(
            failures.iter().all(|found| found.starts_with(cause)),
            "{mode}: {failures:?}"
        );
        let before = |text: &String| SEEN[..2].contains(&text.as_str());
        assert!(ran.of("Each").iter().all(before), "{mode}");
    }
}

#[test]
fn tables_that_are_not_there_are_refused_by_name() {
    for (mode, reader, expected) in [
        (
            "",
            "threads",
            "no plugin before this one in the configuration has a table `threads`, and tollgate has none of its own",
        ),
        (
            "",
            "narrow",
            "the key of the table `toy_counts` has type 8, not 7",
        ),
        ("", "nested", "fields that are tables are not supported"),
        ("twice", "", "there is a table `toy_counts`"),
        ("nameless", "", "it adds a table without a name"),
        (
            "basic",
            "",
            "it adds the table `toy_counts` without extended functions",
        ),
        ("many", "", "there are 256 tables, and no room for `t255`"),
    ] {
        is_refused(&with_table(mode, reader), &[], expected);
    }
    // The plugin whose table it is comes later, or never.
    let mut alone = with_table("", "");
    alone.extractor = alone.third.take().map(|(plugin, _)| plugin);
    is_refused(&alone, &[], "has a table `toy_counts`");
}

#[test]
fn plugins_that_parse_system_calls_are_refused_by_name() {
    let mut toy = Toy::new("plain");
    for sources in ["[]", "[\"syscall\"]", "[\"toy\",\"syscall\"]"] {
        let sources = format!("-DSOURCES=\"{}\"", sources.replace('"', "\\\""));
        toy.extractor = Some(compile_as("table_plugin", &["-DOWNER", &sources]));
        is_refused(
            &toy,
            &[],
            "cannot use plugin `toyx`: it parses system calls",
        );
    }
    toy.extractor = Some(compile_as(
        "table_plugin",
        &["-DOWNER", "-DSOURCES=\"[\\\"other\\\"]\""],
    ));
    is_refused(
        &toy,
        &[],
        "of sources that no loaded plugin has, or parses them",
    );
}
