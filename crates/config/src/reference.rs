//! Tests that `docs/reference/configuration.md` documents every key with its type and default.

use std::collections::BTreeMap;
use std::path::Path;

use super::keys::{KEYS, Setting};
use super::model::Config;
use yaml::settings as tree;

const PAGE: &str = "../../docs/reference/configuration.md";
/// Heading of the table of defaults that differ in `tollgate falco`.
const FALCO: &str = "\n## Defaults of `tollgate falco`\n";

/// Returns the two parts of the page: all keys, and the defaults of `tollgate falco`.
fn page() -> [String; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = std::fs::read_to_string(&path).expect("the page is part of the repository");
    let (keys, falco) = text.split_once(FALCO).expect("the page has this heading");
    [keys.to_owned(), falco.to_owned()]
}

/// Returns the cells of each row whose first cell is one name in backquotes.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| line.trim_end_matches(" |").split(" | ").collect())
        .collect()
}

/// Returns a cell without its backquotes. `empty` stands for the empty text.
fn value(cell: &str) -> String {
    match cell {
        "empty" => "''".to_owned(),
        cell => cell.trim_matches('`').to_owned(),
    }
}

fn key(path: &str) -> &'static Setting {
    let known = KEYS.iter().find(|key| key.path == path);
    known.unwrap_or_else(|| panic!("{PAGE} has `{path}`, which is not a key"))
}

/// Sets each named key of a configuration to its text.
fn set(mut config: Config, values: &BTreeMap<String, String>) -> Config {
    for (path, text) in values {
        let node = tree::read(PAGE, text).unwrap_or_else(|problem| panic!("{path}: {problem:?}"));
        let result = key(path).set(&mut config, &node);
        assert!(result.is_ok(), "{path}: {text}: {result:?}");
    }
    config
}

#[test]
fn the_page_has_each_key_with_its_type_and_default() {
    let [keys, _] = page();
    let mut defaults = BTreeMap::new();
    for row in rows(&keys) {
        let [path, json_type, default, meaning] = row[..] else {
            panic!("{PAGE}: a row has four cells: {row:?}");
        };
        let path = path.trim_end_matches('`').to_owned();
        assert_eq!(key(&path).json_type, json_type, "type of `{path}`");
        assert!(!meaning.is_empty(), "`{path}` has no meaning");
        let is_new = defaults.insert(path.clone(), value(default)).is_none();
        assert!(is_new, "`{path}` has two rows");
    }
    let known = KEYS.iter().map(|key| key.path);
    let missing: Vec<_> = known.filter(|path| !defaults.contains_key(*path)).collect();
    assert!(missing.is_empty(), "{PAGE} has no row for {missing:?}");
    // Each key by itself, so that a default that is wrong is named.
    for (path, text) in &defaults {
        let one = BTreeMap::from([(path.clone(), text.clone())]);
        let is_default = set(Config::default(), &one) == Config::default();
        assert!(is_default, "{PAGE}: the default of `{path}` is another one");
    }
}

#[test]
fn the_page_has_the_defaults_that_differ_for_falco() {
    let [_, falco] = page();
    let mut differing = BTreeMap::new();
    for row in rows(&falco) {
        let [path, default] = row[..] else {
            panic!("{PAGE}: a row has two cells: {row:?}");
        };
        differing.insert(path.trim_end_matches('`').to_owned(), value(default));
    }
    let is_complete = set(Config::default(), &differing) == Config::of_falco();
    assert!(
        is_complete,
        "{PAGE}: the defaults of `tollgate falco` are others"
    );
    for left_out in differing.keys() {
        let mut others = differing.clone();
        others.remove(left_out);
        let is_needed = set(Config::default(), &others) != Config::of_falco();
        assert!(is_needed, "{PAGE}: `{left_out}` does not differ");
    }
}
