//! How a plugin is called: what published ones rely on, with a plugin of our own.

use super::{Toy, compile, is_refused, rule};

#[test]
fn each_argument_of_a_field_has_a_value_of_its_own() {
    // As plugins in Go this one writes the values of a field to one place, whatever the argument.
    let mut toy = Toy::new("plain");
    let output = "got %toy.part[a] %toy.part[b] %toy.either[3] %toy.either[x]";
    toy.rules = rule("Parts", "toy.number = 1", output);
    let ran = toy.run(&[]);
    assert_eq!(ran.of("Parts"), ["got a b 3:3 -1:x"], "{}", ran.stderr);
}

#[test]
fn a_field_that_fails_leaves_the_others_known() {
    let mut toy = Toy::new("plain");
    toy.rules = rule("Second", "toy.number = 2", "second") + &rule("Fails", "toy.stumble = x", "o");
    let ran = toy.run(&[]);
    assert_eq!(ran.of("Second"), ["second"], "{}", ran.stderr);
    assert_eq!(ran.of("Fails"), Vec::<String>::new());
    // The rule that matches first is the only one of its event.
    assert!(ran.stderr.contains(", 3 rules undecided"), "{}", ran.stderr);
}

#[test]
fn a_list_without_elements_does_not_exist() {
    let mut toy = Toy::new("empty");
    toy.rules = rule("Empty", "not toy.list exists", "empty %toy.list");
    toy.events = 1;
    assert_eq!(toy.run(&[]).of("Empty"), ["empty <NA>"]);
    toy.init_config = "{mode: plain}".to_owned();
    assert_eq!(toy.run(&[]).of("Empty"), Vec::<String>::new());
}

#[test]
fn a_plugin_that_has_a_schema_gets_json() {
    let mut toy = Toy::new("plain");
    for empty in ["", "''", "{}"] {
        toy.init_config = empty.to_owned();
        let ran = toy.run(&[]);
        assert_eq!(ran.of("Wordless").len(), 2, "{empty}: {}", ran.stderr);
    }
    toy.init_config = "mode is plain".to_owned();
    is_refused(&toy, &[], "its init_config has to be JSON: expected value");
}

#[test]
fn a_plugin_that_makes_events_takes_fields_from_these_and_from_sources_that_it_names() {
    let mut toy = Toy::new("plain");
    toy.library = compile(&["-DSOURCES=\"[]\""]);
    let other = ["-DNAME=\"other\"", "-DNUMBER=998"];
    let lists_of_toy = |toy: &Toy| {
        let listed = toy.run(&["--list=toy", "-N"]);
        let is_number = |line: &&str| *line == "toy.number";
        listed.stdout.lines().filter(is_number).count()
    };
    toy.extractor = Some(compile(&[&other[..], &["-DSOURCES=\"\""]].concat()));
    assert_eq!(lists_of_toy(&toy), 1);
    let names_toy = ["-DSOURCES=\"[\\\"toy\\\",\\\"\\\"]\""];
    toy.extractor = Some(compile(&[&other[..], &names_toy].concat()));
    assert_eq!(lists_of_toy(&toy), 2);
    let own = toy.run(&["--list=other", "-N"]);
    assert!(own.stdout.contains("toy.number\n"), "{}", own.stdout);
}
