//! Each source file that reads JSON, postcard, Protocol Buffers, TOML, forms or compressed bytes is in `parsers.tsv`, with the target
//! that reaches it, or with the reason why none does.
//!
//! Parsers that are written by hand call nothing that could be searched for: their rows are there, and nobody misses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use fuzzing::TARGETS;

/// Calls that parse bytes.
const CALLS: [&str; 11] = [
    "serde_json::from_slice",
    "serde_json::from_str",
    "serde_json::from_reader",
    "postcard::from_bytes",
    "postcard::take_from_bytes",
    "toml::from_str",
    "serde_urlencoded::from_",
    "GzDecoder::new(",
    "Request::decode(",
    "Response::decode(",
    "M::decode(",
];

fn crates() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rows: a file to what reaches it.
fn table() -> BTreeMap<String, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("parsers.tsv");
    let text = fs::read_to_string(file).expect("the table");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let mut table = BTreeMap::new();
    for row in rows {
        let (file, reached) = row
            .split_once('\t')
            .unwrap_or_else(|| panic!("no tab in `{row}`"));
        let before = table.insert(file.to_owned(), reached.to_owned());
        assert!(before.is_none(), "two rows for {file}");
    }
    table
}

/// Source files with such a call outside of their tests.
fn found() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![crates()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("a file").path();
            // An entry of a folder always has a name.
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let is_test = name.contains("test")
                || ["fake.rs", "benches", "examples", "fuzzing", "target"].contains(&&*name);
            if is_test {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && parses(&fs::read_to_string(&path).expect("a text")) {
                let path = path.strip_prefix(crates()).expect("it is below");
                found.insert(path.to_string_lossy().replace("/src/", "/"));
            }
        }
    }
    found
}

fn parses(text: &str) -> bool {
    // A split text always has a first part.
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let mut calls = lines.flat_map(|line| CALLS.map(|call| line.contains(call)));
    calls.any(|is_there| is_there)
}

#[test]
fn each_file_that_parses_bytes_has_a_target_or_a_reason() {
    let table = table();
    let missing: Vec<_> = found()
        .into_iter()
        .filter(|file| !table.contains_key(file))
        .collect();
    assert!(
        missing.is_empty(),
        "these files parse bytes, and crates/fuzzing/parsers.tsv has no row for them: {missing:?}\n\
         help: name the target that reaches them, or the reason why none does"
    );
}

#[test]
fn each_row_names_a_file_and_a_target_or_a_reason() {
    for (file, reached) in table() {
        let (of, path) = file.split_once('/').expect("a crate and a file");
        assert!(
            crates().join(of).join("src").join(path).is_file(),
            "there is no {file}"
        );
        match reached.strip_prefix("none: ") {
            Some(reason) => assert!(reason.len() > 10, "{file}: `{reason}` is no reason"),
            None => {
                for name in reached.split(", ") {
                    assert!(
                        TARGETS.iter().any(|target| target.name == name),
                        "{file}: there is no target `{name}`"
                    );
                }
            }
        }
    }
}

#[test]
fn each_target_reaches_a_file() {
    let table = table();
    let reached: BTreeSet<&str> = table
        .values()
        .flat_map(|reached| reached.split(", "))
        .collect();
    for target in TARGETS {
        assert!(reached.contains(target.name), "{}", target.name);
    }
}
