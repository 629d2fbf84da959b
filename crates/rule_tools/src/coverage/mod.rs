//! Which techniques of MITRE ATT&CK rules are about.

mod attack;

use std::collections::{BTreeMap, BTreeSet};

use config::rule_files::NoSink;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::EngineKind;
use rules::lint::Check;
use rules::{Engine, EngineOptions, Rule};
use serde_json::{Value, json};

use self::attack::{TACTICS, Technique, VERSION, is_id};
use crate::RuleFiles;

/// Number of rules that a line of text names.
const SHOWN: usize = 3;

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

/// A rule that names a technique.
struct Named<'r> {
    rule: &'r Rule,
    /// Engines of those at hand that can raise it.
    engines: Vec<EngineKind>,
}

impl Named<'_> {
    /// Returns whether the rule is enabled, and an engine can raise it.
    fn is_seen(&self) -> bool {
        self.rule.enabled && !self.engines.is_empty()
    }

    fn object(&self) -> Value {
        json!({
            "name": &*self.rule.name,
            "enabled": self.rule.enabled,
            "priority": self.rule.priority.name(),
            "engines": names(&self.engines),
        })
    }
}

/// A technique and the rules that name it.
struct Row<'r> {
    technique: Technique,
    rules: Vec<Named<'r>>,
}

impl Row<'_> {
    fn is_covered(&self) -> bool {
        self.rules.iter().any(Named::is_seen)
    }

    fn is_of(&self, tactic: &str) -> bool {
        self.technique.tactics().any(|other| other == tactic)
    }
}

struct Coverage<'r> {
    engines: &'r [EngineKind],
    /// Techniques for Linux and containers, and all that a rule names.
    rows: Vec<Row<'r>>,
    /// Tags that look like techniques and are none, with their rules.
    unknown: BTreeMap<&'r str, Vec<&'r str>>,
}

/// Prints the techniques that loaded rules name in their tags, and whether one of `engines` can raise those rules.
///
/// # Errors
///
/// The rules have errors, or `engines` is empty.
pub fn execute(rules: &RuleFiles, engines: &[EngineKind], format: CoverageFormat) -> Outcome {
    if engines.is_empty() {
        let message = "cannot tell what rules detect: no engine works on this machine";
        return Err(Failure::new(Exit::Unsupported, message)
            .help("name an engine with --engine; `tollgate doctor` says what is missing"));
    }
    let mut loaded = rules.sources()?.load();
    let (engine, _plan) = loaded.compile(&EngineOptions::default(), NoSink);
    loaded.usable()?;
    let coverage = Coverage::of(&loaded.ruleset.rules, &engine, engines);
    terminal::print(&match format {
        CoverageFormat::Text { long } => coverage.text(long),
        CoverageFormat::Json => format!("{}\n", coverage.object()),
        CoverageFormat::Navigator => format!("{}\n", coverage.layer()),
    })
}

impl<'r> Coverage<'r> {
    fn of(rules: &'r [Rule], engine: &Engine, engines: &'r [EngineKind]) -> Self {
        let blind: Vec<BTreeSet<_>> = engines
            .iter()
            .map(|kind| {
                let findings = engine.lint(&[*kind]).into_iter();
                let never = findings.filter(|finding| finding.check == Check::Never);
                never.map(|finding| finding.rule).collect()
            })
            .collect();
        let can_raise = |rule: &Rule| -> Vec<EngineKind> {
            let pairs = engines.iter().zip(&blind);
            let seeing = pairs.filter(|(_, blind)| !blind.contains(&*rule.name));
            // The other sources come from plug-ins, which no engine here is.
            let seeing = seeing.filter(|_| rule.source == "syscall");
            seeing.map(|(kind, _)| *kind).collect()
        };
        let mut named: BTreeMap<&str, Vec<Named<'r>>> = BTreeMap::new();
        for rule in rules {
            for tag in rule.tags.iter().filter(|tag| is_id(tag)) {
                named.entry(tag).or_default().push(Named {
                    rule,
                    engines: can_raise(rule),
                });
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
        let names = |rules: Vec<Named<'r>>| rules.iter().map(|named| &*named.rule.name).collect();
        let unknown = named.into_iter().map(|(tag, rules)| (tag, names(rules)));
        Self {
            engines,
            rows,
            unknown: unknown.collect(),
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

    fn text(&self, long: bool) -> String {
        let mut out = format!(
            "ATT&CK {VERSION}: techniques for Linux and containers that enabled rules name (engines: {})\n",
            names(self.engines).join(", ")
        );
        for tactic in TACTICS {
            let (covered, all) = self.count(Some(tactic));
            let rows = || self.rows.iter().filter(|row| row.is_of(tactic));
            if all == 0 && rows().next().is_none() {
                continue;
            }
            out.push_str(&format!("\n{tactic}  {covered} of {all}\n"));
            for row in rows().filter(|row| row.is_covered()) {
                out.push_str(&line(row));
            }
            for row in rows().filter(|row| !row.is_covered() && (long || !row.rules.is_empty())) {
                out.push_str(&line(row));
            }
        }
        let (covered, all) = self.count(None);
        out.push_str(&format!("\nall tactics  {covered} of {all} techniques\n"));
        for (tag, rules) in &self.unknown {
            out.push_str(&format!(
                "warning: ATT&CK {VERSION} has no technique {tag} (rule {})\n",
                rules.join(", ")
            ));
        }
        out
    }

    fn object(&self) -> Value {
        let tactics = TACTICS.map(|tactic| {
            let (covered, all) = self.count(Some(tactic));
            json!({ "name": tactic, "covered": covered, "techniques": all })
        });
        let techniques = self.rows.iter().map(|row| {
            json!({
                "id": row.technique.id,
                "name": row.technique.name,
                "tactics": row.technique.tactics().collect::<Vec<_>>(),
                "platform": row.technique.platform.name(),
                "covered": row.is_covered(),
                "rules": row.rules.iter().map(Named::object).collect::<Vec<_>>(),
            })
        });
        let (covered, all) = self.count(None);
        json!({
            "attack": VERSION,
            "engines": names(self.engines),
            "covered": covered,
            "of": all,
            "tactics": tactics,
            "techniques": techniques.collect::<Vec<_>>(),
            "unknown_tags": self.unknown,
        })
    }

    /// Returns a layer in version 4.5 of the Navigator's format. The score of a technique is its number of rules.
    fn layer(&self) -> Value {
        let score = |row: &Row<'_>| row.rules.iter().filter(|named| named.is_seen()).count();
        let techniques = self.rows.iter().filter(|row| row.is_covered()).map(|row| {
            let seen = row.rules.iter().filter(|named| named.is_seen());
            let rules: Vec<_> = seen.map(|named| &*named.rule.name).collect();
            json!({
                "techniqueID": row.technique.id,
                "score": score(row),
                "comment": rules.join("; "),
                "showSubtechniques": true,
            })
        });
        let most = self.rows.iter().map(score).max().unwrap_or(0).max(1);
        json!({
            "name": "tollgate rules",
            "description": format!("Techniques that enabled rules name; engines: {}", names(self.engines).join(", ")),
            "domain": "enterprise-attack",
            "versions": { "attack": VERSION, "navigator": "5.1.0", "layer": "4.5" },
            "filters": { "platforms": ["Linux", "Containers"] },
            "techniques": techniques.collect::<Vec<_>>(),
            "gradient": { "colors": ["#e5f2ff", "#1f6feb"], "minValue": 0, "maxValue": most },
        })
    }
}

fn line(row: &Row<'_>) -> String {
    let Technique { id, name, .. } = row.technique;
    let mut rules: Vec<_> = row.rules.iter().filter(|named| named.is_seen()).collect();
    let why = match (rules.is_empty(), row.rules.first()) {
        (false, _) => "",
        (true, None) => return format!("  {id:9}  {name:42}  -\n"),
        (true, Some(first)) if !first.rule.enabled => "disabled: ",
        (true, Some(_)) => "not with these engines: ",
    };
    if rules.is_empty() {
        rules = row.rules.iter().collect();
    }
    let mut shown: Vec<_> = rules
        .iter()
        .take(SHOWN)
        .map(|named| named.rule.name.to_string())
        .collect();
    if rules.len() > SHOWN {
        shown.push(format!("{} more", rules.len() - SHOWN));
    }
    format!("  {id:9}  {name:42}  {why}{}\n", shown.join("; "))
}

fn names(engines: &[EngineKind]) -> Vec<&'static str> {
    engines.iter().map(|kind| kind.name()).collect()
}

#[cfg(test)]
mod tests {
    use config::rule_files::{self, RuleFile};

    use super::*;

    const RULES: &str = "
- {rule: A, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T1059.004, host]}
- {rule: B, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T1548.001], enabled: false}
- {rule: C, desc: d, condition: evt.type = execve and evt.type = open, output: o, priority: NOTICE, tags: [T1003.008]}
- {rule: D, desc: d, condition: evt.type = execve, output: o, priority: NOTICE, tags: [T9999, T1552.005]}
";

    fn with<R>(test: impl FnOnce(&Coverage<'_>) -> R) -> R {
        let file = RuleFile {
            name: "r.yaml".into(),
            text: Ok(RULES.to_owned()),
        };
        let mut loaded = rule_files::load_read(vec![file]);
        let (engine, _) = loaded.compile(&EngineOptions::default(), NoSink);
        loaded.usable().expect("the rules are right");
        let engines = [EngineKind::Notify, EngineKind::Ebpf];
        test(&Coverage::of(&loaded.ruleset.rules, &engine, &engines))
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
            assert_eq!(covered, ["T1059.004", "T1552.005"]);
            // A technique of other systems does not count for Linux.
            assert_eq!(coverage.count(None).0, 1);
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
                "disabled: B\n",
                "not with these engines: C\n",
                "has no technique T9999 (rule D)",
                "Unix Shell",
            ] {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            assert!(
                !text.contains("T1110"),
                "only --long lists what no rule names"
            );
            assert!(coverage.text(true).contains("T1110"));
        });
    }

    #[test]
    fn a_layer_scores_techniques_by_their_rules() {
        with(|coverage| {
            let layer = coverage.layer();
            let techniques = layer["techniques"].as_array().expect("a list");
            assert_eq!(techniques.len(), 2);
            assert_eq!(techniques[0]["techniqueID"], "T1059.004");
            assert_eq!(
                (&techniques[0]["score"], &techniques[0]["comment"]),
                (&json!(1), &json!("A"))
            );
            let object = coverage.object();
            assert_eq!(object["unknown_tags"]["T9999"], json!(["D"]));
        });
    }
}
