//! Parts of a configuration that a program gives as texts, such as objects of Kubernetes.

use std::ops::Deref;

use diagnostics::failure::Failure;
use yaml::settings::{Node, Origin, Problem, Value};

use crate::file_reader::FileReader;
use crate::{Effective, Request, environment, include};

/// A problem with a configuration that has fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentProblem {
    /// Name of the fragment; `None` if the problem is elsewhere.
    pub fragment: Option<String>,
    /// The problem, with its place and the next step.
    pub message: String,
}

/// Why a configuration cannot be used.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// A file cannot be read or trusted.
    File(Failure),
    /// Settings are wrong.
    Settings(Vec<Problem>),
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> Self {
        Self::File(failure)
    }
}

/// Merges fragments into settings, one after the other, as `config_files` are merged: a list is extended, any other value of
/// the top level replaced.
pub(crate) fn merge(
    root: &mut Node,
    fragments: &[(String, String)],
    reader: &FileReader,
    variable: &impl Fn(&str) -> Option<String>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, text) in fragments {
        match reader.read(name, text) {
            Ok(mut node) => {
                environment::expand(&mut node, variable);
                problems.extend(include::merge_fragment(root, node).err());
            }
            Err(problem) => problems.push(problem),
        }
    }
    problems
}

impl Request<'_> {
    /// What is wrong with this configuration; nothing if it can be used. Unknown keys of fragments are wrong, as are the keys
    /// and groups in `refused`, such as `a.b`, which stand there with the reason.
    #[must_use]
    pub fn fragment_problems(&self, refused: &[(&str, &str)]) -> Vec<FragmentProblem> {
        let mut problems = self.refused_keys(refused);
        match self.parse() {
            Ok(Effective { unknown, .. }) => {
                let is_of_fragment = |one: &&Problem| self.fragment_of(&one.origin).is_some();
                problems.extend(unknown.iter().filter(is_of_fragment).cloned());
            }
            Err(LoadError::Settings(more)) => problems.extend(more),
            Err(LoadError::File(failure)) => {
                let message = failure.render().trim_end().replace('\n', " ");
                return vec![FragmentProblem {
                    fragment: None,
                    message,
                }];
            }
        }
        let said = |problem: Problem| FragmentProblem {
            fragment: self.fragment_of(&problem.origin).map(str::to_owned),
            message: match &problem.help {
                Some(help) => format!("{}: {} ({help})", problem.origin, problem.message),
                None => format!("{}: {}", problem.origin, problem.message),
            },
        };
        problems.into_iter().map(said).collect()
    }

    fn refused_keys(&self, refused: &[(&str, &str)]) -> Vec<Problem> {
        let reader = FileReader::new(self.mode);
        let mut problems = Vec::new();
        for (name, text) in self.fragments {
            // What cannot be read is found by whoever merges it.
            let Ok(node) = reader.read(name, text) else {
                continue;
            };
            find_refused(&node, "", refused, &mut problems);
        }
        problems
    }

    /// The fragment that has set this group, such as `file_output`: the last one that names it, because each replaces what
    /// those before say of a group.
    #[must_use]
    pub fn fragment_with(&self, group: &str) -> Option<&str> {
        let reader = FileReader::new(self.mode);
        let names_group = |(name, text): &&(String, String)| {
            let node = reader.read(name, text).ok();
            let Some(Value::Map(entries)) = node.map(|node| node.value) else {
                return false;
            };
            entries.iter().any(|entry| is_in(&entry.key, group))
        };
        let last = self.fragments.iter().rev().find(names_group);
        last.map(|(name, _)| &**name)
    }

    fn fragment_of<'o>(&self, origin: &'o Origin) -> Option<&'o str> {
        let Origin::File { name, .. } = origin else {
            return None;
        };
        let name = name.deref();
        let is_one = self.fragments.iter().any(|(known, _)| known == name);
        is_one.then_some(name)
    }
}

/// Whether a path of keys is this one, or in this group.
fn is_in(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Adds a problem for each refused key below `node`. Paths are joined as they are when settings are applied, where a key
/// that has a dot is the same as a key in a group.
fn find_refused(node: &Node, parent: &str, refused: &[(&str, &str)], problems: &mut Vec<Problem>) {
    let Value::Map(entries) = &node.value else {
        return;
    };
    for entry in entries {
        let path = match parent {
            "" => entry.key.clone(),
            parent => format!("{parent}.{}", entry.key),
        };
        match refused.iter().find(|(group, _)| is_in(&path, group)) {
            Some((_, why)) => {
                let message = format!("`{path}` cannot be set here: {why}");
                problems.push(Problem::new(&entry.origin, message));
            }
            None => find_refused(&entry.node, &path, refused, problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(texts: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = texts.iter();
        pairs
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn fragments_are_merged_in_their_order_and_options_go_before() {
        let fragments = pairs(&[
            (
                "a",
                "json_output: true\npriority: error\nappend_output: [{extra_output: one}]\n",
            ),
            (
                "b",
                "---\npriority: notice\nappend_output: [{extra_output: two}]\n",
            ),
        ]);
        let options = ["json_output=false".to_owned()];
        let request = Request {
            fragments: &fragments,
            options: &options,
            ..Request::default()
        };
        assert_eq!(request.fragment_problems(&[]), []);
        let config = request.load().unwrap().config;
        assert!(!config.json_output);
        assert_eq!(config.priority, rules::Priority::Notice);
        assert_eq!(config.append_output.len(), 2);
    }

    #[test]
    fn a_problem_is_that_of_its_fragment() {
        for (text, expected) in [
            ("json_output: maybe\n", "b:1:14"),
            ("json_outptu: true\n", "unknown key `json_outptu`"),
            ("a: [b", "unclosed bracket"),
            ("- a", "group of settings"),
            ("config_files: [x]", "`config_files` in an included file"),
            (
                "program_output: {enabled: true, program: id}",
                "`program_output` cannot be set here: no",
            ),
        ] {
            let fragments = pairs(&[("a", "json_output: true\n"), ("b", text)]);
            let request = Request {
                fragments: &fragments,
                ..Request::default()
            };
            let problems = request.fragment_problems(&[("program_output", "no")]);
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert_eq!(problems[0].fragment.as_deref(), Some("b"), "{text}");
            assert!(problems[0].message.contains(expected), "{problems:?}");
        }
    }

    #[test]
    fn a_refused_key_is_found_in_its_group_and_by_its_dotted_name() {
        for (text, is_refused) in [
            ("engine: {gvisor: {config: /x}}\n", true),
            ("engine.gvisor.config: /x\n", true),
            ("engine: {gvisor.config: /x}\n", true),
            ("engine: {gvisor: ~}\n", true),
            ("engine: {kind: modern_ebpf}\n", false),
        ] {
            let fragments = pairs(&[("a", text)]);
            let request = Request {
                fragments: &fragments,
                ..Request::default()
            };
            let refused = request.refused_keys(&[("engine.gvisor", "no")]);
            assert_eq!(!refused.is_empty(), is_refused, "{text}: {refused:?}");
        }
    }

    #[test]
    fn a_group_is_that_of_the_last_fragment_that_names_it() {
        let fragments = pairs(&[
            ("a", "file_output: {enabled: true}\n"),
            ("b", "file_output.filename: x\n"),
            ("c", "file_outputs: 1\n"),
        ]);
        let request = Request {
            fragments: &fragments,
            ..Request::default()
        };
        assert_eq!(request.fragment_with("file_output"), Some("b"));
        assert_eq!(request.fragment_with("metrics"), None);
    }

    #[test]
    fn fragments_of_a_request_are_no_files() {
        let fragments = pairs(&[("a", "json_output: true\n")]);
        let request = Request {
            fragments: &fragments,
            ..Request::default()
        };
        let config = request.load().unwrap().config;
        assert!(config.json_output && config.files.is_empty());
    }
}
