//! Candidates for exceptions: which fields of an alert to compare, and how.

use std::path::Path;

use rules::synthetic_event::SyntheticValue;

use super::alert::Alert;

/// Programs that run others' code: an exception for one of them concerns all its scripts.
const INTERPRETERS: [&str; 14] = [
    "bash", "busybox", "dash", "java", "lua", "node", "perl", "php", "python", "ruby", "sh",
    "tclsh", "zsh", "ksh",
];

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    StartsWith,
    EndsWith,
}

impl Comparison {
    /// Returns the operator of conditions.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::StartsWith => "startswith",
            Self::EndsWith => "endswith",
        }
    }
}

/// A comparison of a field with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) field: &'static str,
    pub(super) comparison: Comparison,
    pub(super) value: String,
}

impl Test {
    fn equal(alert: &Alert, field: &'static str) -> Option<Self> {
        Some(Self {
            field,
            comparison: Comparison::Equal,
            value: alert.text(field)?.to_owned(),
        })
    }

    /// Returns whether it holds for an alert; `None` if the alert does not say.
    fn holds(&self, alert: &Alert) -> Option<bool> {
        match alert.value(self.field)? {
            SyntheticValue::Absent => Some(false),
            SyntheticValue::One(text) => Some(match self.comparison {
                Comparison::Equal => *text == self.value,
                Comparison::StartsWith => text.starts_with(&self.value),
                Comparison::EndsWith => text.ends_with(&self.value),
            }),
            SyntheticValue::Many(_) => None,
        }
    }
}

/// An exception that would silence the alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) title: &'static str,
    pub(super) tests: Vec<Test>,
}

impl Candidate {
    /// Returns the exception as a condition, for people.
    pub(super) fn condition(&self) -> String {
        let tests = self.tests.iter().map(|test| {
            let (field, word) = (test.field, test.comparison.word());
            format!("{field} {word} {}", yaml::quote::comment(&test.value))
        });
        tests.collect::<Vec<_>>().join(" and ")
    }

    /// Returns whether it silences another alert of the same rule; `None` if that alert does not say.
    pub(super) fn silences(&self, alert: &Alert) -> Option<bool> {
        let mut result = Some(true);
        for test in &self.tests {
            match test.holds(alert) {
                Some(true) => {}
                Some(false) => return Some(false),
                None => result = None,
            }
        }
        result
    }
}

/// A part of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The program.
    Program,
    /// The program, only if it runs scripts.
    Interpreter,
    /// The file or server.
    Object,
    /// The folder of the file.
    Folder,
    /// The whole command line.
    Command,
    /// The program that started it.
    Parent,
    /// The image of the container.
    Image,
}

/// Titles and parts of the candidates, narrowest first. A candidate needs all its parts.
const CANDIDATES: &[(&str, &[Part])] = {
    use Part::{Command, Folder, Image, Interpreter, Object, Parent, Program};
    &[
        (
            "this command line, on this object",
            &[Interpreter, Object, Command],
        ),
        ("this program, on this object", &[Program, Object]),
        ("this program, in this folder", &[Program, Folder]),
        (
            "this command line, started by this parent",
            &[Program, Command, Parent],
        ),
        ("this command line", &[Program, Command]),
        ("this program, started by this parent", &[Program, Parent]),
        (
            "this program, in containers of this image",
            &[Program, Image],
        ),
        ("this program", &[Program]),
        ("this object, for every program", &[Object]),
    ]
};

/// Returns the candidates for an alert, narrowest first.
pub(super) fn candidates(alert: &Alert) -> Vec<Candidate> {
    let program = program(alert);
    let (object, folder) = object(alert);
    let parent = ["proc.pexepath", "proc.pname"];
    let mut parent = parent
        .into_iter()
        .filter_map(|field| Test::equal(alert, field));
    let parent = parent.next();
    let test = |part: &Part| match part {
        Part::Program => program.clone(),
        Part::Interpreter => program.clone().filter(runs_scripts),
        Part::Object => object.clone(),
        Part::Folder => folder.clone(),
        Part::Command => Test::equal(alert, "proc.cmdline"),
        Part::Parent => parent.clone(),
        Part::Image => Test::equal(alert, "container.image.repository"),
    };
    // A command line that works on an object is compared by the object, unless it runs a script.
    let is_wanted = |parts: &[Part]| {
        object.is_none() || parts[0] == Part::Interpreter || !parts.contains(&Part::Command)
    };
    let wanted = CANDIDATES.iter().filter(|(_, parts)| is_wanted(parts));
    let candidates = wanted.filter_map(|(title, parts)| {
        let tests: Option<Vec<Test>> = parts.iter().map(test).collect();
        let tests = tests?;
        Some(Candidate { title, tests })
    });
    candidates.collect()
}

/// Returns the test for the program: its file if the alert names it, since any program can take a name.
fn program(alert: &Alert) -> Option<Test> {
    let fields = ["proc.exepath", "proc.exe", "proc.name"];
    fields
        .into_iter()
        .find_map(|field| Test::equal(alert, field))
}

fn runs_scripts(program: &Test) -> bool {
    let name = Path::new(&program.value).file_name();
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    // As in python3.11.
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    INTERPRETERS.contains(&name)
}

/// Returns the test for the file or server, and that for the folder of the file.
fn object(alert: &Alert) -> (Option<Test>, Option<Test>) {
    let files = [
        "fd.name",
        "fs.path.name",
        "fs.path.target",
        "evt.arg.path",
        "evt.arg.newpath",
    ];
    let files = files
        .into_iter()
        .filter_map(|field| Test::equal(alert, field));
    let file = files.into_iter().find(|test| test.value.starts_with('/'));
    if let Some(file) = file {
        let folder = file.value.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = (!folder.is_empty()).then(|| Test {
            comparison: Comparison::StartsWith,
            value: format!("{folder}/"),
            ..file.clone()
        });
        return (Some(file), folder);
    }
    // A connection: the client's port is another one each time.
    let connection = Test::equal(alert, "fd.name");
    let server = connection.and_then(|test| {
        let (_, server) = test.value.rsplit_once("->")?;
        Some(Test {
            comparison: Comparison::EndsWith,
            value: format!("->{server}"),
            ..test.clone()
        })
    });
    (server, None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::alert::tests::alert;
    use super::*;

    fn conditions(fields: serde_json::Value) -> Vec<String> {
        let list = candidates(&alert("R", fields));
        list.iter().map(Candidate::condition).collect()
    }

    #[test]
    fn candidates_for_a_file_go_from_the_file_to_the_program() {
        let fields = json!({
            "proc.exepath": "/usr/bin/backup", "proc.name": "backup", "proc.cmdline": "backup -a",
            "proc.pname": "cron", "fd.name": "/etc/shadow",
        });
        assert_eq!(
            conditions(fields),
            [
                "proc.exepath = /usr/bin/backup and fd.name = /etc/shadow",
                "proc.exepath = /usr/bin/backup and fd.name startswith /etc/",
                "proc.exepath = /usr/bin/backup and proc.pname = cron",
                "proc.exepath = /usr/bin/backup",
                "fd.name = /etc/shadow",
            ]
        );
    }

    #[test]
    fn an_interpreter_is_known_by_its_script() {
        let fields = json!({
            "proc.exepath": "/usr/bin/python3.11", "proc.cmdline": "python3 b.py", "fd.name": "/etc/shadow",
        });
        assert_eq!(
            conditions(fields)[0],
            "proc.exepath = /usr/bin/python3.11 and fd.name = /etc/shadow and proc.cmdline = python3 b.py"
        );
    }

    #[test]
    fn started_programs_and_connections_have_candidates() {
        let fields = json!({ "proc.name": "nc", "proc.cmdline": "nc -e", "proc.pname": "sh" });
        let first = "proc.name = nc and proc.cmdline = nc -e and proc.pname = sh";
        assert_eq!(conditions(fields)[0], first);
        let fields = json!({ "proc.name": "ssh", "fd.name": "10.0.0.1:40000->10.0.0.2:22" });
        let first = "proc.name = ssh and fd.name endswith ->10.0.0.2:22";
        assert_eq!(conditions(fields)[0], first);
        assert_eq!(conditions(json!({ "user.name": "root" })), [""; 0]);
    }

    #[test]
    fn a_field_that_an_alert_lacks_leaves_it_open() {
        let list = candidates(&alert(
            "R",
            json!({ "proc.exepath": "/a", "fd.name": "/etc/x" }),
        ));
        let silences = |fields| list[0].silences(&alert("R", fields));
        assert_eq!(
            silences(json!({ "proc.exepath": "/a", "fd.name": "/etc/x" })),
            Some(true)
        );
        assert_eq!(silences(json!({ "proc.exepath": "/a" })), None);
        assert_eq!(silences(json!({ "proc.exepath": "/b" })), Some(false));
        assert_eq!(
            silences(json!({ "proc.exepath": "/a", "fd.name": null })),
            Some(false)
        );
    }
}
