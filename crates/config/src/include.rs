//! `config_files`: files, and directories of files, whose settings are merged into the main file's.
//!
//! As in Falco, only top-level keys are merged: a list is extended and any other value replaced,
//! unless the entry names another strategy. Missing files are skipped, so that a packaged
//! configuration can name directories for users to fill.

use std::fs;
use std::path::{Path, PathBuf};

use diagnostics::text_file;
use yaml::settings::{Entry, Node, Origin, Problem, Value};

use super::choice::Choice;
use super::file_reader::FileReader;
use super::trust;

/// The key.
const KEY: &str = "config_files";

/// Merge strategy for a key that already exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Strategy {
    /// Extend lists and replace other values.
    #[default]
    Append,
    /// Replace the value.
    Override,
    /// Keep the existing value.
    AddOnly,
}

impl Choice for Strategy {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Append, "append", "Extend lists, replace other values"),
        (Self::Override, "override", "Replace the value"),
        (Self::AddOnly, "add-only", "Keep the value"),
    ];
}

/// Files that were read in addition to the main file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Included {
    pub(crate) files: Vec<PathBuf>,
    /// Directories that were named.
    pub(crate) folders: Vec<PathBuf>,
}

/// The file that includes others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'p> {
    pub(crate) path: &'p Path,
    /// Only root must be able to change the files that it includes, if root runs this program.
    pub(crate) is_checked: bool,
    pub(crate) reader: &'p FileReader,
}

/// Merges the files named by `root`, which was read from `main`. Applies `prepare` to each file
/// first.
pub(crate) fn merge(
    root: &mut Node,
    main: Source<'_>,
    prepare: impl Fn(&mut Node),
) -> Result<Included, Vec<Problem>> {
    let mut included = Included::default();
    let mut problems = Vec::new();
    let Value::Map(entries) = &root.value else {
        // Applying the settings reports the error.
        return Ok(included);
    };
    let Some(named) = entries.iter().find(|entry| entry.key == KEY) else {
        return Ok(included);
    };
    let named = match named.node.list() {
        Ok(items) => items.to_vec(),
        Err(problem) => return Err(vec![problem]),
    };
    for item in &named {
        let result = read_item(item, main, &mut included);
        let (strategy, files) = match result {
            Ok(read) => read,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        for (path, mut node) in files {
            prepare(&mut node);
            problems.extend(merge_one(root, node, strategy).err());
            included.files.push(path);
        }
    }
    if problems.is_empty() {
        Ok(included)
    } else {
        Err(problems)
    }
}

type Files = Vec<(PathBuf, Node)>;

fn read_item(
    item: &Node,
    main: Source<'_>,
    included: &mut Included,
) -> Result<(Strategy, Files), Problem> {
    let (path, strategy) = entry(item)?;
    if path == main.path {
        let message = format!("`{}` includes itself", path.display());
        return Err(Problem::new(&item.origin, message).help("remove the entry"));
    }
    let paths = if path.is_dir() {
        let files = folder(&path, &item.origin)?;
        included.folders.push(path);
        files
    } else if path.exists() {
        vec![path]
    } else {
        Vec::new()
    };
    let read = |path: PathBuf| {
        if main.is_checked {
            trust::check(&path).map_err(|error| {
                let message = format!("cannot include {}: {}", path.display(), error.cause());
                Problem::new(&item.origin, message).help(error.fix())
            })?;
        }
        let text = text_file::read(&path).map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            Problem::new(&item.origin, message)
        })?;
        let node = main.reader.read(&path.display().to_string(), &text)?;
        Ok((path, node))
    };
    let files = paths.into_iter().map(read).collect::<Result<Files, _>>()?;
    Ok((strategy, files))
}

/// Parses `- FILE`, or `- {path: FILE, strategy: append}`.
fn entry(item: &Node) -> Result<(PathBuf, Strategy), Problem> {
    let Value::Map(entries) = &item.value else {
        return Ok((PathBuf::from(item.text()?), Strategy::default()));
    };
    let mut path = None;
    let mut strategy = Strategy::default();
    for entry in entries {
        match entry.key.as_str() {
            "path" => path = Some(PathBuf::from(entry.node.text()?)),
            "strategy" => {
                let word = entry.node.text()?;
                strategy = Strategy::from_word(word).ok_or_else(|| {
                    let message = format!("expected append, override or add-only, found `{word}`");
                    Problem::new(&entry.node.origin, message)
                })?;
            }
            other => {
                let message = format!("unknown key `{other}`");
                return Err(
                    Problem::new(&entry.origin, message).help("the keys are path and strategy")
                );
            }
        }
    }
    let missing = || Problem::new(&item.origin, "the entry names no `path`");
    Ok((path.ok_or_else(missing)?, strategy))
}

/// Returns the files of a directory sorted by name, with any extension.
fn folder(path: &Path, origin: &Origin) -> Result<Vec<PathBuf>, Problem> {
    let unreadable = |error: std::io::Error| {
        let message = format!("cannot read the folder {}: {error}", path.display());
        Problem::new(origin, message)
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Merges a text that a program gives, as an included file.
pub(crate) fn merge_fragment(root: &mut Node, fragment: Node) -> Result<(), Problem> {
    if matches!(root.value, Value::Null) {
        // Of an empty file.
        root.value = Value::Map(Vec::new());
    }
    if !matches!(root.value, Value::Map(_)) {
        // Applying the settings reports the error.
        return Ok(());
    }
    merge_one(root, fragment, Strategy::Append)
}

fn merge_one(root: &mut Node, file: Node, strategy: Strategy) -> Result<(), Problem> {
    let new = match file.value {
        Value::Map(entries) => entries,
        Value::Null => return Ok(()),
        Value::Scalar { .. } | Value::List(_) => {
            let message = format!(
                "an included file has to be a group of settings, found {}",
                file.describe()
            );
            return Err(Problem::new(&file.origin, message));
        }
    };
    let Value::Map(entries) = &mut root.value else {
        unreachable!("the main file names files, so it is a group of settings")
    };
    for entry in new {
        if entry.key == KEY {
            let message = format!("`{KEY}` in an included file");
            return Err(Problem::new(&entry.origin, message)
                .help("name the file in the main configuration file instead"));
        }
        merge_entry(entries, entry, strategy);
    }
    Ok(())
}

fn merge_entry(entries: &mut Vec<Entry>, new: Entry, strategy: Strategy) {
    let Some(old) = entries.iter_mut().find(|entry| entry.key == new.key) else {
        entries.push(new);
        return;
    };
    match (strategy, &mut old.node.value, new.node.value) {
        (Strategy::AddOnly, ..) => {}
        (Strategy::Append, Value::List(items), Value::List(more)) => items.extend(more),
        (_, value, new_value) => {
            *value = new_value;
            old.origin = new.origin;
            old.node.origin = new.node.origin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(main: &str, files: &[(&str, &str)]) -> Result<(Node, Included), Vec<Problem>> {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
        let main = main.replace("%D", &dir.path().display().to_string());
        let path = dir.path().join("main.yaml");
        let mut root = yaml::settings::read("main.yaml", &main).expect("good YAML");
        let main = Source {
            path: &path,
            is_checked: false,
            reader: &FileReader::new(super::super::CompatMode::Tollgate),
        };
        let included = merge(&mut root, main, |_| {})?;
        Ok((root, included))
    }

    fn texts(root: &Node, key: &str) -> Vec<String> {
        let Value::Map(entries) = &root.value else {
            panic!("{root:?}")
        };
        let entry = entries.iter().find(|entry| entry.key == key);
        let items = entry.expect("the key is there").node.list();
        let items = items.expect("a list").iter();
        items
            .map(|item| item.text().expect("text").to_owned())
            .collect()
    }

    #[test]
    fn lists_grow_values_are_replaced_and_new_keys_added() {
        let main = "config_files: [%D/conf.d, %D/none.yaml]\nrules_files: [a]\npriority: debug\n";
        let (root, included) = merged(
            main,
            &[
                ("conf.d/2.yaml", "rules_files: [c]\npriority: error\n"),
                ("conf.d/1.conf", "rules_files: [b]\njson_output: true\n"),
            ],
        )
        .expect("good files");
        assert_eq!(texts(&root, "rules_files"), ["a", "b", "c"]);
        assert_eq!(texts(&root, "priority"), ["error"]);
        assert_eq!(texts(&root, "json_output"), ["true"]);
        assert_eq!(included.files.len(), 2);
        assert_eq!(included.folders.len(), 1);
    }

    #[test]
    fn a_strategy_decides_what_becomes_of_keys_that_are_there() {
        for (strategy, files, priority) in [
            ("append", &["a", "b"][..], "error"),
            ("override", &["b"], "error"),
            ("add-only", &["a"], "debug"),
        ] {
            let main = format!(
                "config_files:\n  - path: %D/x.yaml\n    strategy: {strategy}\n\
                 rules_files: [a]\npriority: debug\n"
            );
            let more = "rules_files: [b]\npriority: error\nnew: 1\n";
            let (root, _) = merged(&main, &[("x.yaml", more)]).expect("good files");
            assert_eq!(texts(&root, "rules_files"), files, "{strategy}");
            assert_eq!(texts(&root, "priority"), [priority], "{strategy}");
            assert_eq!(texts(&root, "new"), ["1"], "{strategy}");
        }
    }

    #[test]
    fn what_cannot_be_included_is_said_with_its_place() {
        for (main, file, expected) in [
            ("config_files: [%D/main.yaml]", "", "includes itself"),
            (
                "config_files: [%D/x.yaml]",
                "config_files: [y]",
                "in an included file",
            ),
            ("config_files: [%D/x.yaml]", "- a", "group of settings"),
            ("config_files: [%D/x.yaml]", "a: [b", "unclosed bracket"),
            ("config_files: [{strategy: append}]", "", "names no `path`"),
            (
                "config_files: [{path: a, strategy: merge}]",
                "",
                "found `merge`",
            ),
        ] {
            let problems = merged(main, &[("x.yaml", file), ("main.yaml", main)])
                .expect_err("it cannot be included");
            assert!(
                problems[0].message.contains(expected),
                "{expected}: {problems:?}"
            );
        }
    }
}
