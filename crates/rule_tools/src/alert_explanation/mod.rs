//! Explains an alert: what happened, why it matters, which clauses matched, and what to check next.

mod alert_facts;
mod print;

use std::path::Path;

use agent::digest;
use config::rule_files::{self, Loaded};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rules::trace::{Clause, Tracer};
use rules::{Level, Rule};
use serde_json::Value;
use yaml::settings;

use self::alert_facts::{AlertFacts, Ancestor};
use crate::RuleFiles;
use crate::attack::{Technique, is_id};
use crate::clause_rows::{self, ClauseRow};
use crate::described_event::{self, unusable};
use crate::notes::{self, Note};
use crate::silence::alert::{Alert, read_object};

/// What is known about an alert.
struct AlertExplanation<'r> {
    facts: AlertFacts,
    techniques: Vec<Technique>,
    /// The alert's rule, if it is loaded.
    known: Option<KnownRule<'r>>,
    note: Option<Note>,
}

/// A loaded rule, and its condition for the alert's fields.
struct KnownRule<'r> {
    rule: &'r Rule,
    /// The condition; otherwise the reason why it cannot be evaluated.
    clause: Result<Evaluated, String>,
}

/// A condition for the fields of an alert.
struct Evaluated {
    clause: Clause,
    /// The type that was inferred for the event, if the alert does not have it.
    inferred: Option<&'static str>,
}

/// The condition of an alert's rule, evaluated on the alert's fields.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedRule {
    /// Parts of the condition that decide its result, in the order of the rule, with the beginnings of long values.
    pub clauses: Vec<ClauseRow>,
    /// Result of the condition; `None` if it depends on fields that the alert does not have.
    pub holds: Option<bool>,
    /// The type that was inferred for the event, if the alert does not have it.
    pub inferred: Option<&'static str>,
    /// Digests that agents with these rules report at each level, that of the rules' own level first: of the levels that read the
    /// same files, one.
    pub digests: Vec<String>,
}

/// Rule files in place of those of [`RuleFiles`], by name and text, as a bundle has them; empty for none.
pub type BundledRules = Vec<(String, String)>;

/// Evaluates the rule of an alert in JSON on the fields of the alert, clause by clause. Returns `None` if there is no such
/// rule. Loads no plugins: a rule of a source that only a plugin has is not known.
///
/// # Errors
///
/// The alert or the rules cannot be used, or the fields do not fit the rule.
pub fn evaluate(
    alert: &str,
    rules: &RuleFiles,
    bundled: BundledRules,
) -> Result<Option<EvaluatedRule>, Failure> {
    let cannot = |cause: String| {
        Failure::new(Exit::BadInput, format!("cannot read the alert: {cause}"))
            .help("give one alert as JSON")
    };
    let object: Value = serde_json::from_str(alert).map_err(|error| cannot(error.to_string()))?;
    let alert = Alert::of(&object).map_err(cannot)?;
    let (mut sources, selections) = rules.resolved()?;
    if !bundled.is_empty() {
        sources.named = Vec::new();
        sources.bundled = bundled;
    }
    let mut digests = Vec::new();
    // A level decides which files are read: an agent of another one has the same rules, and another digest. The collector's own
    // comes first.
    for level in std::iter::once(sources.level).chain(Level::ALL) {
        sources.level = level;
        let digest = digest::of_rules(&sources.read(), &selections);
        if !digests.contains(&digest) {
            digests.push(digest);
        }
    }
    // The highest level has all rules.
    sources.level = Level::Forensic;
    let loaded = rule_files::load_read(sources.read());
    loaded.usable()?;
    let Some(rule) = loaded.ruleset.rule(&alert.rule) else {
        return Ok(None);
    };
    let evaluated = clause(&alert, &loaded, rule)
        .map_err(|cause| cannot(cause).help("see `tollgate rules explain --alert`"))?;
    Ok(Some(EvaluatedRule {
        clauses: clause_rows::short_rows(&evaluated.clause),
        holds: evaluated.clause.holds,
        inferred: evaluated.inferred,
        digests,
    }))
}

/// Explains the alert in the file, or one of several by its number.
pub(super) fn explain(loaded: &Loaded, path: &Path, number: Option<u64>, is_json: bool) -> Outcome {
    let object = read_object(path, number)?;
    let explanation = AlertExplanation::of(&object, loaded, path)?;
    terminal::print(&if is_json {
        format!("{}\n", explanation.object())
    } else {
        explanation.text()
    })
}

impl<'r> AlertExplanation<'r> {
    fn of(object: &Value, loaded: &'r Loaded, path: &Path) -> Result<Self, Failure> {
        let alert = Alert::of(object).map_err(|cause| Alert::unreadable(path, &cause))?;
        let facts = AlertFacts::of(object, &alert);
        let rule = loaded.ruleset.rule(&alert.rule);
        let known = rule.map(|rule| KnownRule {
            rule,
            clause: clause(&alert, loaded, rule),
        });
        let tags = facts.tags.iter();
        let techniques = tags
            .filter(|tag| is_id(tag))
            .filter_map(|tag| Technique::find(tag));
        let mut notes = notes::builtin()?;
        Ok(Self {
            techniques: techniques.collect(),
            // A rule of somebody else that has the same name is about the same.
            note: notes.remove(&alert.rule),
            facts,
            known,
        })
    }

    /// Returns the process and its ancestors that the alert has, the oldest first.
    fn tree(&self) -> impl Iterator<Item = (&usize, &Ancestor)> {
        self.facts.ancestors.iter().rev()
    }
}

/// Evaluates the condition of a rule for the fields of an alert. Fields that the alert does not have are unknown.
fn clause(alert: &Alert, loaded: &Loaded, rule: &Rule) -> Result<Evaluated, String> {
    let text = alert.as_json().to_string();
    let described = settings::read("alert", &text)
        .and_then(|root| described_event::describe(&root, &loaded.ruleset))
        .map_err(|problem| unusable(&problem).message().to_owned())?;
    Ok(Evaluated {
        clause: Tracer::new(&loaded.ruleset, rule).explain_given(&described.given),
        inferred: described.may_be.map(|_| described.given.kind().name()),
    })
}

#[cfg(test)]
mod tests {
    use rules::AlertValue;
    use serde_json::json;

    use super::*;

    fn explanation<R>(object: &Value, test: impl FnOnce(&AlertExplanation<'_>) -> R) -> R {
        let loaded = rule_files::load(&[]);
        let explained = AlertExplanation::of(object, &loaded, Path::new("-"));
        test(&explained.expect("an alert"))
    }

    fn shadow() -> Value {
        json!({
            "hostname": "box", "priority": "Warning", "time": "2026-11-27T14:07:38.317039517Z",
            "rule": "Read sensitive file untrusted", "tags": ["T1555", "mitre_credential_access"],
            "output": "14:07:38.317039517: Warning A file with secrets was read (file=/etc/shadow process=cat)",
            "output_fields": {
                "container.id": "host", "fd.name": "/etc/shadow", "proc.aname[2]": "bash", "proc.aname[3]": "sshd",
                "proc.cmdline": "cat /etc/shadow\u{1b}[2J", "proc.exepath": "/usr/bin/cat", "proc.name": "cat",
                "proc.pname": "sh", "proc.tty": 0, "user.name": "root", "user.uid": 0, "team": "blue",
            },
        })
    }

    #[test]
    fn an_alert_is_told_in_sentences_with_clauses_tree_steps_and_technique() {
        explanation(&shadow(), |explained| {
            let text = explained.text();
            for part in [
                "A file with secrets was read, by `cat /etc/shadow\\u{1b}[2J` (/usr/bin/cat), as user root, on the host",
                "reads password hashes",
                "  yes is_secret\n",
                "  ?     evt.is_open_read = true   evt.is_open_read: unknown\n",
                "`evt.type` is not in the alert; `open` is taken because the rule fits it",
                "  sshd\n    bash\n      sh\n        cat /etc/shadow",
                "  1. Whether the content went on",
                "Inventory and hardening tools",
                "T1555  Credentials from Password Stores (credential-access)",
            ] {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            assert!(!text.contains('\u{1b}'), "a workload chooses its arguments");
            let object = explained.object();
            assert_eq!(object["version"], 1);
            assert_eq!(
                object["matches"],
                Value::Null,
                "an alert does not have all fields"
            );
            assert_eq!(object["tree"][0]["level"], 3);
            assert_eq!(object["tree"][3]["cmdline"], "cat /etc/shadow\u{1b}[2J");
            assert_eq!(
                object["techniques"][0]["tactics"],
                json!(["credential-access"])
            );
        });
    }

    const RULES: &str = "\
- macro: reads
  condition: evt.type in (open, openat) and evt.is_open_read = true
- rule: Read it
  desc: d
  condition: reads and fd.name startswith /etc/ and not proc.name in (sshd, sudo) and (user.uid = 0 or user.uid = 1)
  output: o
  priority: WARNING
";

    /// Evaluates an alert of `Read it` with these fields by [`RULES`], from a bundle.
    fn evaluated(fields: &Value) -> EvaluatedRule {
        let alert = json!({ "rule": "Read it", "output": "o", "output_fields": fields });
        let bundled = vec![("r.yaml".to_owned(), RULES.to_owned())];
        let rule = evaluate(&alert.to_string(), &RuleFiles::default(), bundled);
        rule.expect("usable").expect("the bundle has it")
    }

    #[test]
    fn each_clause_has_the_value_of_its_field_and_what_the_alert_lacks_is_unknown() {
        let alert = json!({"evt.type": "openat", "fd.name": "/etc/shadow", "proc.name": "cat", "user.uid": 1});
        let rule = evaluated(&alert);
        assert_eq!((rule.holds, rule.inferred), (None, None));
        let rows = rule.clauses.iter();
        let rows: Vec<_> = rows.map(|row| (row.depth, &*row.text, row.holds)).collect();
        assert_eq!(
            rows,
            [
                (0, "reads", None),
                (1, "evt.type in (open, openat)", Some(true)),
                (1, "evt.is_open_read = true", None),
                (0, "fd.name startswith /etc/", Some(true)),
                (0, "not proc.name in (sshd, sudo)", Some(true)),
                (0, "any of", Some(true)),
                (1, "user.uid = 1", Some(true)),
            ]
        );
        let shadow = AlertValue::Text("/etc/shadow".to_owned());
        assert_eq!(
            rule.clauses[3].values,
            [("fd.name".to_owned(), Some(shadow))]
        );
        assert_eq!(
            rule.clauses[2].values,
            [("evt.is_open_read".to_owned(), None)]
        );
        let other = json!({"fd.name": "/home/x", "proc.name": "sshd"});
        let rule = evaluated(&other);
        assert_eq!(rule.holds, Some(false), "another version raised it");
        assert!(rule.inferred.is_some());
        assert_eq!(rule.clauses[3].holds, Some(false));
        assert_eq!(rule.clauses[4].holds, Some(false), "`not` counts");
    }

    #[test]
    fn rules_have_the_digest_that_their_agents_report() {
        let fields = json!({"evt.type": "openat"});
        let file = rule_files::RuleFile {
            name: "other name".into(),
            text: Ok(RULES.to_owned()),
        };
        let selections = RuleFiles::default().resolved().expect("a configuration").1;
        let reported = digest::of_rules(&[file], &selections);
        assert_eq!(evaluated(&fields).digests, [reported]);
    }

    #[test]
    fn agents_of_each_level_have_these_rules_whatever_the_level_here() {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let file = folder.path().join("own.yaml");
        std::fs::write(&file, RULES).expect("writable");
        let at = |level| RuleFiles {
            added: vec![file.clone()],
            level: Some(level),
            ..RuleFiles::default()
        };
        let alert = json!({"rule": "Read it", "output_fields": {"evt.type": "open"}});
        let digests = |level| {
            let rule = evaluate(&alert.to_string(), &at(level), Vec::new());
            rule.expect("usable").expect("an own rule").digests
        };
        let reported = |level| {
            let (sources, selections) = at(level).resolved().expect("a configuration");
            digest::of_rules(&sources.read(), &selections)
        };
        assert_ne!(reported(Level::Stable), reported(Level::Hunting));
        for own in Level::ALL {
            let known = digests(own);
            assert_eq!(known.len(), 2, "{known:?}");
            assert_eq!(known[0], reported(own));
            for level in Level::ALL {
                assert!(known.contains(&reported(level)), "{own:?} {level:?}");
            }
        }
    }

    #[test]
    fn an_unknown_rule_is_none_and_an_alert_without_fields_an_error() {
        let of = |alert: Value, text: &str| {
            let bundled = vec![("r.yaml".to_owned(), text.to_owned())];
            evaluate(&alert.to_string(), &RuleFiles::default(), bundled)
        };
        let known = json!({"rule": "Read it", "output_fields": {"evt.type": "open"}});
        let unknown = json!({"rule": "Other", "output_fields": {}});
        assert!(of(known.clone(), RULES).expect("usable").is_some());
        assert_eq!(of(unknown, RULES).expect("usable"), None);
        for (alert, text, part) in [
            (json!({"rule": "Read it"}), RULES, "output_fields"),
            (known.clone(), "- rule: 7: x\n  -", "r.yaml"),
            (
                json!({"rule": "Read it", "output_fields": {"evt.type": "no such"}}),
                RULES,
                "no such",
            ),
        ] {
            let failure = of(alert, text).expect_err("it cannot be used");
            assert!(failure.message().contains(part), "{}", failure.message());
        }
    }

    #[test]
    fn a_rule_that_no_longer_matches_or_is_not_loaded_is_reported() {
        let mut other = shadow();
        other["output_fields"]["fd.name"] = "/etc/motd".into();
        explanation(&other, |explained| {
            assert_eq!(explained.object()["matches"], false);
            assert!(
                explained.text().contains("does not match this alert"),
                "{}",
                explained.text()
            );
        });
        other["rule"] = "Somebody else's".into();
        explanation(&other, |explained| {
            let text = explained.text();
            assert!(
                text.contains("the rule `Somebody else's` is not loaded"),
                "{text}"
            );
            assert!(text.contains("A file with secrets was read"), "{text}");
            assert_eq!(explained.object()["condition"], Value::Null);
        });
    }

    #[test]
    fn an_ancestor_that_the_alert_lacks_is_a_gap() {
        let mut alert = shadow();
        let fields = alert["output_fields"].as_object_mut().expect("an object");
        fields.remove("proc.aname[2]");
        explanation(&alert, |explained| {
            let text = explained.text();
            assert!(text.contains("  sshd\n    ...\n    sh\n"), "{text}");
        });
    }

    #[test]
    fn a_long_tree_is_cut_at_its_old_end() {
        let mut alert = shadow();
        let names: Vec<_> = (0..100_000).map(|at| format!("p{at}")).collect();
        alert["output_fields"]["proc.aname"] = names.into();
        explanation(&alert, |explained| {
            let text = explained.text_tree();
            assert!(text.len() < 64 * 200, "{}", text.len());
            let lines: Vec<_> = text.lines().skip(2).collect();
            assert_eq!(lines[0], "  99937 more, older ones");
            assert_eq!(lines[1], "  p62");
            assert_eq!(lines.len(), 65, "{text}");
            assert_eq!(
                explained.object()["tree"].as_array().map(Vec::len),
                Some(100_001)
            );
        });
    }

    #[test]
    fn the_description_of_a_rule_does_not_reach_the_terminal_raw() {
        let text = "- rule: R\n  desc: \"a\\x1b[2Jb\"\n  condition: evt.type = open\n  output: o\n  priority: INFO\n";
        let file = rule_files::RuleFile {
            name: "r.yaml".into(),
            text: Ok(text.to_owned()),
        };
        let loaded = rule_files::load_read(vec![file]);
        let alert = json!({ "rule": "R", "output": "o", "output_fields": { "evt.type": "open" } });
        let explained = AlertExplanation::of(&alert, &loaded, Path::new("-")).expect("an alert");
        let text = explained.text();
        assert!(text.contains("a\\u{1b}[2Jb"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
