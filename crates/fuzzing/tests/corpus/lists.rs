//! The targets are the same everywhere: functions, programs of the fuzzer, folders of the corpus, rows of the document.

use std::collections::BTreeSet;
use std::fs;

use fuzzing::TARGETS;

use crate::fuzz_folder;

fn targets() -> BTreeSet<String> {
    TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(fuzz_folder().join(file)).expect("it can be read")
}

fn names_in(folder: &str) -> BTreeSet<String> {
    let files = fs::read_dir(fuzz_folder().join(folder)).expect("a folder");
    let names = files.map(|file| file.expect("a file").path());
    let stem = |path: std::path::PathBuf| {
        path.file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    names.map(stem).collect()
}

#[test]
fn each_target_has_a_program_that_calls_it() {
    assert_eq!(names_in("fuzz_targets"), targets());
    for name in targets() {
        let text = read(&format!("fuzz_targets/{name}.rs"));
        assert!(text.contains(&format!("fuzzing::{name}(")), "{name}");
    }
}

#[test]
fn each_program_is_in_the_manifest() {
    let manifest = read("Cargo.toml");
    let programs = manifest.split("[[bin]]\n").skip(1);
    let programs = programs.map(|part| {
        let name = part
            .lines()
            .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let name = name.expect("a name").to_owned();
        assert!(
            part.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        name
    });
    assert_eq!(programs.collect::<BTreeSet<_>>(), targets());
}

#[test]
fn each_target_has_a_row_in_the_document() {
    let document = read("README.md");
    let rows = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let rows: BTreeSet<_> = rows.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(rows, targets());
}

#[test]
fn each_target_has_a_small_corpus_with_something_accepted() {
    assert_eq!(names_in("corpus"), targets());
    let mut size = 0;
    for name in targets() {
        let corpus = crate::corpus(&name);
        let is_accepted = |(seed, _): &(String, Vec<u8>)| !seed.starts_with("refused-");
        assert!(corpus.iter().any(is_accepted), "{name}");
        size += corpus.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    assert!(size < 512 << 10, "the corpus has {size} bytes");
}
