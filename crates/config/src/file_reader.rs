//! Reads the text of a configuration file.

use std::cell::RefCell;

use yaml::settings::{self, Node, Problem};

use super::include::{self, Included, Source};
use super::{CompatMode, Text, assign, environment};

/// Reads files as one of the two programs does.
#[derive(Debug)]
pub(crate) struct FileReader {
    mode: CompatMode,
    warnings: RefCell<Vec<String>>,
}

impl FileReader {
    pub(crate) fn new(mode: CompatMode) -> Self {
        Self {
            mode,
            warnings: RefCell::default(),
        }
    }

    /// Parses a file. A repeated key is an error; Falco takes the first, which is warned of.
    pub(crate) fn read(&self, name: &str, text: &str) -> Result<Node, Problem> {
        if self.mode != CompatMode::Falco {
            return settings::read(name, text);
        }
        let (node, repeated) = settings::read_repeated(name, text)?;
        let warn = |problem: Problem| match problem.help {
            Some(help) => format!("{}: {}: {help}", problem.origin, problem.message),
            None => format!("{}: {}", problem.origin, problem.message),
        };
        self.warnings
            .borrow_mut()
            .extend(repeated.into_iter().map(warn));
        Ok(node)
    }

    /// Reads one file, and merges the files that it includes into it.
    pub(crate) fn read_tree(
        &self,
        source: Text<'_>,
        options: &[&String],
        is_checked: bool,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<(Node, Included), Vec<Problem>> {
        let name = source.path.display().to_string();
        let mut root = self
            .read(&name, source.text)
            .map_err(|problem| vec![problem])?;
        environment::expand(&mut root, variable);
        let mut problems = Vec::new();
        for option in options {
            problems.extend(assign::assign(&mut root, option).err());
        }
        let prepare = |node: &mut Node| environment::expand(node, variable);
        let main = Source {
            path: source.path,
            is_checked,
            reader: self,
        };
        let mut included = match include::merge(&mut root, main, prepare) {
            Ok(included) => included,
            Err(more) => {
                problems.extend(more);
                Included::default()
            }
        };
        if !source.path.as_os_str().is_empty() {
            included.files.insert(0, source.path.to_owned());
        }
        match problems.is_empty() {
            true => Ok((root, included)),
            false => Err(problems),
        }
    }

    /// Returns the warnings about all files read.
    pub(crate) fn into_warnings(self) -> Vec<String> {
        self.warnings.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPEATED: &str =
        "json_output: true\njson_output: false\nstdout_output: {enabled: true, enabled: false}\n";

    #[test]
    fn the_first_of_repeated_keys_counts_for_falco() {
        let reader = FileReader::new(CompatMode::Falco);
        let root = reader.read("f.yaml", REPEATED).unwrap();
        let text = |node: &Node| node.text().unwrap().to_owned();
        assert_eq!(text(&root.entry("json_output").unwrap().node), "true");
        let stdout = &root.entry("stdout_output").unwrap().node;
        assert_eq!(text(&stdout.entry("enabled").unwrap().node), "true");
        assert_eq!(
            reader.into_warnings(),
            [
                "f.yaml:2:1: duplicate key `json_output`: the first is at f.yaml:1:1; remove one of them",
                "f.yaml:3:32: duplicate key `enabled`: the first is at f.yaml:3:17; remove one of them",
            ]
        );
    }

    #[test]
    fn a_repeated_key_is_an_error_of_our_own_configuration() {
        let reader = FileReader::new(CompatMode::Tollgate);
        let problem = reader.read("f.yaml", REPEATED).unwrap_err();
        assert_eq!(problem.message, "duplicate key `json_output`");
    }
}
