//! Variants of an alert that its rule must still detect: the same done by another program.

use super::alert::{Alert, Change};
use super::evaluation::{EventText, RulesUnderTest};

/// A change of some fields of an alert.
struct Variant {
    title: &'static str,
    changes: &'static [Change],
}

/// The variants, the most different one first. A rule that is about one program does not match the first.
const VARIANTS: &[Variant] = &[
    Variant {
        title: "the same, by another program",
        changes: &[
            ("proc.exepath", |_| "/opt/other/program".to_owned()),
            ("proc.exe", |_| "/opt/other/program".to_owned()),
            ("proc.name", |_| "other-program".to_owned()),
            ("proc.cmdline", |_| "other-program".to_owned()),
            ("proc.exeline", |_| "/opt/other/program".to_owned()),
        ],
    },
    Variant {
        title: "the same, by a program of this name in another folder",
        changes: &[
            ("proc.exepath", in_other_folder),
            ("proc.exe", in_other_folder),
        ],
    },
    Variant {
        title: "the same, with another command line",
        changes: &[
            ("proc.cmdline", |text| format!("{text} --other")),
            ("proc.exeline", |text| format!("{text} --other")),
            ("proc.args", |text| format!("{text} --other")),
        ],
    },
    Variant {
        title: "the same, started by another parent",
        changes: &[
            ("proc.pname", |_| "other-parent".to_owned()),
            ("proc.pexepath", |_| "/opt/other/parent".to_owned()),
            ("proc.pcmdline", |_| "other-parent".to_owned()),
        ],
    },
    Variant {
        title: "the same, in a container of another image",
        changes: &[("container.image.repository", |_| {
            "other.example/image".to_owned()
        })],
    },
];

fn in_other_folder(path: &str) -> String {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    format!("/opt/other/{name}")
}

/// A variant that the rule detects without the exception.
pub(super) struct Detected {
    pub(super) title: &'static str,
    pub(super) event: EventText,
    /// The alert has the values that decide it; else the rule might match.
    pub(super) is_certain: bool,
}

/// Returns the variants of the alert's event that the rule detects.
pub(super) fn detected(alert: &Alert, event: &EventText, rules: &RulesUnderTest) -> Vec<Detected> {
    let variants = VARIANTS.iter().filter_map(|variant| {
        let event = event.of(&alert.with(variant.changes)?);
        let matches = rules.matches(&event);
        (matches != Some(false)).then_some(Detected {
            title: variant.title,
            event,
            is_certain: matches == Some(true),
        })
    });
    variants.collect()
}

#[cfg(test)]
mod tests {
    use config::rule_files::RuleFile;
    use serde_json::json;

    use super::super::alert::tests::alert;
    use super::super::candidate::candidates;
    use super::super::exception::rule_file;
    use super::*;

    const RULES: &str = "\
- rule: Read
  desc: d
  condition: evt.type = openat and evt.is_open_read = true and fd.name = /etc/shadow
  output: o
  priority: INFO
- rule: Netcat
  desc: d
  condition: evt.type = execve and proc.name = nc
  output: o
  priority: INFO
";

    /// Returns the candidates of an alert, and which variant each leaves detected.
    fn left(alert: &Alert) -> Vec<(String, Option<&'static str>)> {
        let files = vec![RuleFile {
            name: "r.yaml".into(),
            text: Ok(RULES.to_owned()),
        }];
        let rules = RulesUnderTest::load(files, &alert.rule).expect("good rules");
        let event = rules.event(alert).expect("the rule raises it");
        assert_eq!(rules.matches(&event), Some(true));
        let detected = detected(alert, &event, &rules);
        let left = candidates(alert).into_iter().map(|candidate| {
            let text = rule_file(alert, &candidate, "t.yaml");
            let after = rules.with("s.yaml", &text).expect("a good exception");
            assert_eq!(after.matches(&event), Some(false), "{text}");
            let mut detected = detected.iter();
            let first = detected.find(|variant| after.matches(&variant.event) == Some(true));
            (candidate.condition(), first.map(|variant| variant.title))
        });
        left.collect()
    }

    #[test]
    fn an_exception_for_every_program_leaves_nothing_detected() {
        let fields = json!({ "proc.exepath": "/usr/bin/cat", "fd.name": "/etc/shadow" });
        let left = left(&alert("Read", fields));
        let other = Some("the same, by another program");
        assert_eq!(left[0].1, other);
        let last = left.last().expect("there are some");
        assert_eq!((&*last.0, last.1), ("fd.name = /etc/shadow", None));
    }

    #[test]
    fn a_rule_about_one_program_must_detect_another_of_its_name() {
        let fields = json!({
            "proc.name": "nc", "proc.exepath": "/bin/nc", "proc.cmdline": "nc x", "proc.pname": "sh",
        });
        let other = Some("the same, by a program of this name in another folder");
        assert!(
            left(&alert("Netcat", fields))
                .iter()
                .all(|(_, left)| *left == other)
        );
        // Without the file, the name is all that is left of the rule.
        let fields = json!({ "proc.name": "nc", "proc.cmdline": "nc x", "proc.pname": "sh" });
        let all = left(&alert("Netcat", fields));
        let last = all.last().expect("there are some");
        assert_eq!((&*last.0, last.1), ("proc.name = nc", None));
        assert!(all[0].1.is_some());
    }
}
