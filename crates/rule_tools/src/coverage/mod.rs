//! Which techniques of MITRE ATT&CK rules are about, and which of them this machine can detect.

mod abilities;
mod json;
mod text;

use std::collections::BTreeMap;

use config::rule_files::NoSink;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::EngineKind;
use rules::{Engine, EngineOptions, Level, Rule};

pub use self::abilities::{Abilities, MissingEngine};
use self::abilities::{Sight, SightResolver};
use crate::RuleFiles;
use crate::attack::{Technique, is_id};

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverageFormat {
    /// Lines for people; `long` also lists techniques without a rule.
    Text {
        /// List techniques without a rule.
        long: bool,
    },
    /// One JSON object.
    Json,
    /// A layer for the ATT&CK Navigator.
    Navigator,
}

/// A rule, and whether it can alert here.
#[derive(Clone, Debug)]
struct RuleSight<'r> {
    rule: &'r Rule,
    sight: Sight,
}

/// A technique and the rules that name it.
struct Row<'r> {
    technique: Technique,
    rules: Vec<RuleSight<'r>>,
}

impl<'r> Row<'r> {
    fn is_covered(&self) -> bool {
        self.seen().next().is_some()
    }

    fn is_of(&self, tactic: &str) -> bool {
        self.technique.tactics().any(|other| other == tactic)
    }

    /// Returns the rules that can alert.
    fn seen(&self) -> impl Iterator<Item = &RuleSight<'r>> {
        self.rules.iter().filter(|entry| entry.sight.is_seen())
    }

    /// Returns the rules that cannot alert, each with the reason.
    fn unseen(&self) -> impl Iterator<Item = (&'r Rule, &str)> {
        let unseen = self.rules.iter();
        unseen.filter_map(|entry| Some((entry.rule, entry.sight.why_not()?)))
    }
}

struct Coverage<'r> {
    abilities: &'r Abilities,
    /// Highest level of the rules that are on.
    level: Level,
    /// All rules, in load order.
    rules: Vec<RuleSight<'r>>,
    /// Techniques for Linux and containers, and all that a rule names.
    rows: Vec<Row<'r>>,
    /// Tags that look like techniques and are none, with their rules.
    unknown: BTreeMap<&'r str, Vec<&'r str>>,
}

/// Prints the techniques that loaded rules name in their tags, and whether those rules can alert with these abilities.
///
/// # Errors
///
/// The rules have errors, or no engine works.
pub fn execute(rules: &RuleFiles, abilities: &Abilities, format: CoverageFormat) -> Outcome {
    if abilities.engines.is_empty() {
        let message = "cannot tell what rules detect: no engine works on this machine";
        return Err(Failure::new(Exit::Unsupported, message)
            .help("name an engine with --engine; `tollgate doctor` says what is missing"));
    }
    let mut sources = rules.sources()?;
    // Rules of levels that are off are shown as what could be turned on.
    let level = std::mem::replace(&mut sources.level, Level::Forensic);
    let mut loaded = sources.load();
    loaded.ruleset.disable_above(level);
    let (engine, _plan) = loaded.compile(&EngineOptions::default(), NoSink);
    loaded.usable()?;
    let coverage = Coverage::of(&loaded.ruleset.rules, &engine, abilities, level);
    terminal::print(&match format {
        CoverageFormat::Text { long } => coverage.text(long),
        CoverageFormat::Json => format!("{}\n", coverage.object()),
        CoverageFormat::Navigator => format!("{}\n", coverage.layer()),
    })
}

impl<'r> Coverage<'r> {
    fn of(rules: &'r [Rule], engine: &Engine, abilities: &'r Abilities, level: Level) -> Self {
        let resolver = SightResolver::new(engine, abilities, level);
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| RuleSight {
                rule,
                sight: resolver.sight(rule),
            })
            .collect();
        let mut named: BTreeMap<&str, Vec<RuleSight<'r>>> = BTreeMap::new();
        for entry in &rules {
            for tag in entry.rule.tags.iter().filter(|tag| is_id(tag)) {
                named.entry(tag).or_default().push(entry.clone());
            }
        }
        let rows = Technique::all().filter_map(|technique| {
            let rules = named.remove(technique.id);
            let is_wanted = technique.is_ours() || rules.is_some();
            is_wanted.then(|| Row {
                technique,
                rules: rules.into_iter().flatten().collect(),
            })
        });
        let rows = rows.collect();
        let names =
            |rules: Vec<RuleSight<'r>>| rules.iter().map(|entry| &*entry.rule.name).collect();
        let unknown = named.into_iter().map(|(tag, rules)| (tag, names(rules)));
        Self {
            abilities,
            level,
            rows,
            unknown: unknown.collect(),
            rules,
        }
    }

    /// Returns the numbers of covered and of all techniques for Linux and containers, of a tactic or of all.
    fn count(&self, tactic: Option<&str>) -> (usize, usize) {
        let ours = self
            .rows
            .iter()
            .filter(|row| row.technique.is_ours() && tactic.is_none_or(|tactic| row.is_of(tactic)));
        ours.fold((0, 0), |(covered, all), row| {
            (covered + usize::from(row.is_covered()), all + 1)
        })
    }

    /// Returns each level with the number of its rules.
    fn levels(&self) -> impl Iterator<Item = (Level, usize)> {
        Level::ALL.into_iter().map(|level| {
            let of_level = self
                .rules
                .iter()
                .filter(|entry| entry.rule.level() == level);
            (level, of_level.count())
        })
    }

    /// Returns the rules that name no technique, in load order.
    fn untagged(&self) -> Vec<&'r str> {
        let is_untagged = |rule: &Rule| !rule.tags.iter().any(|tag| is_id(tag));
        let rules = self.rules.iter().map(|entry| entry.rule);
        rules
            .filter(|rule| is_untagged(rule))
            .map(|rule| &*rule.name)
            .collect()
    }
}

fn names(engines: &[EngineKind]) -> Vec<&'static str> {
    engines.iter().map(|kind| kind.name()).collect()
}

#[cfg(test)]
mod tests {
    use config::rule_files::{self, RuleFile};

    use serde_json::json;

    use super::*;

    const RULES: &str = "
- {rule: A, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T1059.004, host]}
- {rule: B, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T1548.001], enabled: false}
- {rule: C, desc: d, condition: evt.type = execve and evt.type = open, output: o, priority: NOTICE, tags: [T1003.008]}
- {rule: D, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T9999, T1552.005]}
- {rule: E, desc: d, condition: evt.type = execve and evt.cpu = 1, output: o, priority: NOTICE, tags: [T1110]}
- {rule: F, desc: d, condition: evt.type = execve and container.privileged = true, output: o, priority: NOTICE}
- {rule: G, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T1571, level_hunting]}
";

    /// Root, for whom `notify` and `ebpf` work.
    fn with<R>(test: impl FnOnce(&Coverage<'_>) -> R) -> R {
        let abilities = Abilities {
            engines: vec![EngineKind::Notify, EngineKind::Ebpf],
            reads_runtime_files: true,
            ..Abilities::default()
        };
        with_abilities(&abilities, test)
    }

    fn with_abilities<R>(abilities: &Abilities, test: impl FnOnce(&Coverage<'_>) -> R) -> R {
        let file = RuleFile {
            name: "r.yaml".into(),
            text: Ok(RULES.to_owned()),
        };
        let mut loaded = rule_files::load_read(vec![file]);
        loaded.ruleset.disable_above(Level::Stable);
        let (engine, _) = loaded.compile(&EngineOptions::default(), NoSink);
        loaded.usable().expect("the rules are right");
        test(&Coverage::of(
            &loaded.ruleset.rules,
            &engine,
            abilities,
            Level::Stable,
        ))
    }

    #[test]
    fn only_an_enabled_rule_that_can_match_covers_a_technique() {
        with(|coverage| {
            let covered: Vec<_> = coverage
                .rows
                .iter()
                .filter(|row| row.is_covered())
                .map(|row| row.technique.id)
                .collect();
            assert_eq!(covered, ["T1059.004", "T1110", "T1552.005"]);
            // A technique of other systems does not count for Linux.
            assert_eq!(coverage.count(None).0, 2);
            let (covered, all) = coverage.count(Some("execution"));
            assert_eq!(covered, 1);
            assert!(all > 20, "{all}");
        });
    }

    #[test]
    fn text_says_why_a_rule_does_not_count_and_which_tag_is_wrong() {
        with(|coverage| {
            let text = coverage.text(false);
            for part in [
                "not seen: B\n",
                "  B: disabled\n",
                "not seen: C\n",
                "  C: notify, ebpf: it matches no type of event\n",
                "  hunting   1 rule  off; --level hunting turns it on\n",
                "not seen: G\n",
                "rules that name no technique  1\n  F\n",
                "has no technique T9999 (rule D)",
                "Unix Shell",
            ] {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            assert!(
                !text.contains("T1111"),
                "only --long lists what no rule names"
            );
            assert!(coverage.text(true).contains("T1111"));
        });
    }

    #[test]
    fn a_layer_scores_techniques_by_their_rules() {
        with(|coverage| {
            let layer = coverage.layer();
            let techniques = layer["techniques"].as_array().expect("a list");
            assert_eq!(techniques.len(), 6, "those that rules name");
            let of = |id: &str| {
                let mut all = techniques.iter();
                all.find(|one| one["techniqueID"] == id)
                    .expect("a technique of a rule")
            };
            let shell = of("T1059.004");
            assert_eq!(
                (&shell["score"], &shell["enabled"], &shell["comment"]),
                (&json!(1), &json!(true), &json!("A"))
            );
            let setuid = of("T1548.001");
            assert_eq!(
                (&setuid["score"], &setuid["enabled"], &setuid["comment"]),
                (&json!(0), &json!(false), &json!("not seen: B (disabled)"))
            );
            let object = coverage.object();
            assert_eq!(object["version"], 1);
            let of_level = |level: &str| object["levels"][level].clone();
            assert_eq!(
                (of_level("stable"), of_level("hunting")),
                (json!(6), json!(1))
            );
            assert_eq!(
                (&object["level"], &object["rules"][6]["level"]),
                (&json!("stable"), &json!("hunting"))
            );
            assert_eq!(object["unknown_tags"]["T9999"], json!(["D"]));
        });
    }

    #[test]
    fn a_user_sees_less_and_is_told_why() {
        let abilities = Abilities {
            engines: vec![EngineKind::Notify],
            missing: vec![MissingEngine {
                kind: EngineKind::Ebpf,
                why: "it needs root".to_owned(),
                fix: Some("sudo tollgate watch".to_owned()),
            }],
            reads_runtime_files: false,
            limits: vec!["only own processes".to_owned()],
        };
        with_abilities(&abilities, |coverage| {
            let text = coverage.text(false);
            for part in [
                "ebpf does not work here: it needs root\n  help: sudo tollgate watch\n",
                "limit: only own processes\n",
                "  E: notify: `evt.cpu` has no value (the CPU of a call is not reported); ebpf would see it",
                "see a part of what they are about  1\n  F: `container.privileged` has no value (only root",
            ] {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            let object = coverage.object();
            let rules = object["rules"].as_array().expect("a list").iter();
            let sees: Vec<_> = rules.map(|rule| rule["sees"].as_str()).collect();
            let expected = ["full", "none", "none", "full", "none", "part", "none"].map(Some);
            assert_eq!(sees, expected);
            assert_eq!(object["missing_engines"][0]["engine"], "ebpf");
        });
    }
}
