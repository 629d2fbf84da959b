//! Lints: suspicious parts of rules that load without a problem.

mod blind;
mod implication;

use std::collections::BTreeSet;
use std::sync::Arc;

use event::EngineKind;
use event::{EngineSupport, EventKind, ValueType};

pub use self::blind::Lacks;
use self::implication::Implications;
use crate::compile::atom::{AtomId, Right};
use crate::compile::operand::{OperandId, Spread};
use crate::compile::program::{Node, NodeId, Program};
use crate::condition::ast::Op;
use crate::diagnostic::{Code, Location};
use crate::engine::{CompiledRule, Engine};

/// Kind of lint finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The rule cannot match.
    Never,
    /// An earlier rule matches whenever this one does.
    Shadowed,
    /// A part of the condition has no effect.
    Idle,
    /// The output names a field that never has a value.
    Empty,
    /// The rule needs every call of a frequent system call.
    Expensive,
}

impl Check {
    /// Returns the name of the check.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Shadowed => "shadowed",
            Self::Idle => "idle",
            Self::Empty => "empty",
            Self::Expensive => "expensive",
        }
    }
}

/// One lint finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the finding.
    pub check: Check,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Position in the rule file.
    pub location: Location,
    /// Engines for which the finding holds; empty if it holds for all.
    pub by: Vec<EngineKind>,
    /// Description of the finding.
    pub message: String,
    /// Suggested fix.
    pub help: &'static str,
}

impl Engine {
    /// Returns the findings for the given engines, in load order.
    #[must_use]
    pub fn lint(&self, kinds: &[EngineKind]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for kind in kinds {
            for (position, rule) in self.rules.iter().enumerate() {
                let linter = Linter {
                    engine: self,
                    rule,
                    position,
                    source: *kind,
                    lacks: &|_| None,
                };
                linter.findings(&mut findings);
            }
        }
        for finding in &mut findings {
            if finding.by.len() == kinds.len() && kinds.len() > 1 {
                finding.by.clear();
            }
        }
        self.shadowed(&mut findings);
        self.expensive(&mut findings);
        let order = |finding: &Finding| {
            let rule = self.rules.iter().position(|rule| rule.name == finding.rule);
            (rule, finding.check, finding.message.clone())
        };
        findings.sort_by_key(order);
        findings
    }

    /// Finds rules that follow a rule which matches whenever they do.
    fn shadowed(&self, findings: &mut Vec<Finding>) {
        let mut implications = Implications::new(&self.program);
        for (position, rule) in self.rules.iter().enumerate() {
            let earlier = self.rules[..position].iter().enumerate();
            let shadow = earlier
                // A rule that counts, or only adds to a risk, hides nothing: see `Engine::ends_search`.
                .filter(|(_, other)| other.source == rule.source && other.count.is_none())
                .filter(|(_, other)| !other.is_silent() && !rule.sums_risk())
                .find(|(other, _)| implications.shadows(*other, position));
            if let Some((_, other)) = shadow {
                findings.push(Finding {
                    check: Check::Shadowed,
                    rule: Arc::clone(&rule.name),
                    location: rule.location.clone(),
                    by: Vec::new(),
                    message: format!(
                        "`{}`, which comes before it, matches whenever it does: no alert while rule_matching is first",
                        other.name
                    ),
                    help: "move it before that rule, narrow that rule, or set rule_matching to all",
                });
            }
        }
    }

    fn expensive(&self, findings: &mut Vec<Finding>) {
        let (_, warnings) = self.plan_for_rules();
        for warning in warnings {
            let rule = self.rules.iter().find(|rule| {
                warning.code == Code::DoubtfulCondition
                    && warning.context == format!("rule {}", rule.name)
            });
            if let Some(rule) = rule {
                findings.push(Finding {
                    check: Check::Expensive,
                    rule: Arc::clone(&rule.name),
                    location: rule.location.clone(),
                    by: Vec::new(),
                    message: warning.message.trim_start_matches("expensive: ").to_owned(),
                    help: "restrict it to rarer calls or to arguments passed in registers; `tollgate \
                    rules cost` shows the cost",
                });
            }
        }
    }
}

/// Checks one rule for one engine.
struct Linter<'e> {
    engine: &'e Engine,
    rule: &'e CompiledRule,
    position: usize,
    source: EngineKind,
    /// Returns why a field has no value although the engine can set it.
    lacks: Lacks<'e>,
}

impl Linter<'_> {
    fn program(&self) -> &Program {
        &self.engine.program
    }

    fn findings(&self, findings: &mut Vec<Finding>) {
        if let Some(message) = self.why_never() {
            let help = "correct the condition, disable the rule, or watch with another engine";
            return self.add(findings, Check::Never, message, help);
        }
        let idle = self.idle();
        if !idle.is_empty() {
            let message = format!("a part of its condition is decided already: {}", list(idle));
            self.add(
                findings,
                Check::Idle,
                message,
                "a comparison of such a field is never true, and an exclusion by it excludes nothing",
            );
        }
        let printed: BTreeSet<String> = self
            .rule
            .operands()
            .filter_map(|id| {
                let field = self.program().operands.as_field(id)?;
                let why = field.spec.never_by(self.source)?;
                Some(format!("`{field}` ({why})"))
            })
            .collect();
        if !printed.is_empty() {
            let message = format!("its output prints no value for {}", list(printed));
            self.add(findings, Check::Empty, message, "leave the field out");
        }
    }

    /// Returns the reason why no event of this engine matches the rule.
    fn why_never(&self) -> Option<String> {
        let mut kinds = 0;
        let mut known = 0;
        let mut can_match = false;
        let mut blocking = BTreeSet::new();
        for (kind, root) in self.roots() {
            kinds += 1;
            if !self.is_known(kind) {
                continue;
            }
            known += 1;
            can_match |= root.is_none_or(|root| self.possible(root, &mut blocking));
        }
        (!can_match).then(|| match (kinds, known) {
            (0, _) => "it matches no type of event".to_owned(),
            (_, 0) => "its events are not reported".to_owned(),
            _ => list(blocking),
        })
    }

    /// Returns the comparisons of fields that have no value in the events of this engine.
    fn idle(&self) -> BTreeSet<String> {
        let mut idle = BTreeSet::new();
        let known = self.roots().filter(|(kind, _)| self.is_known(*kind));
        for root in known.filter_map(|(_, root)| root) {
            self.program().each_atom(root, &mut |atom| {
                idle.extend(self.never(atom));
            });
        }
        idle
    }

    /// Returns the types of events that the rule matches, each with what is left of the condition, if anything is.
    fn roots(&self) -> impl Iterator<Item = (EventKind, Option<NodeId>)> {
        EventKind::all().filter_map(|kind| {
            let mut entries = self.program().kind(kind).entries.iter();
            let entry = entries.find(|entry| entry.rule == self.position)?;
            Some((kind, entry.root))
        })
    }

    fn is_known(&self, kind: EventKind) -> bool {
        match kind.teller() {
            EngineSupport::Every => true,
            EngineSupport::Kernel => matches!(self.source, EngineKind::Ebpf | EngineKind::Scap),
            EngineSupport::Nobody => false,
        }
    }

    /// Adds a finding, merged with the same finding of another engine.
    fn add(&self, findings: &mut Vec<Finding>, check: Check, message: String, help: &'static str) {
        let known = findings.iter_mut().find(|finding| {
            finding.check == check && finding.rule == self.rule.name && finding.message == message
        });
        match known {
            Some(finding) => finding.by.push(self.source),
            None => findings.push(Finding {
                check,
                rule: Arc::clone(&self.rule.name),
                location: self.rule.location.clone(),
                by: vec![self.source],
                message,
                help,
            }),
        }
    }

    /// Returns a description if an atom compares a field that has no value with this engine, so that it never
    /// holds.
    fn never(&self, atom: AtomId) -> Option<String> {
        let key = &self.program().atoms.get(atom).key;
        let mut why = None;
        self.program()
            .operands
            .each_field(key.operand, &mut |field| {
                let never = field.spec.never_by(self.source);
                if let Some(reason) = never.or_else(|| (self.lacks)(field.spec)) {
                    why = Some(format!("`{field}` has no value ({reason})"));
                }
            });
        why
    }

    /// Returns true if some event can satisfy a condition. Adds the reasons against it to `blocking`.
    fn possible(&self, root: NodeId, blocking: &mut BTreeSet<String>) -> bool {
        match self.program().node(root) {
            Node::Literal { negated: true, .. } => true,
            Node::Literal { atom, .. } => match self.never(atom) {
                Some(why) => {
                    blocking.insert(why);
                    false
                }
                None => true,
            },
            Node::All { children, .. } => {
                let children = self.program().children(children);
                if let Some(why) = self.contradiction(children) {
                    blocking.insert(why);
                    return false;
                }
                children.iter().all(|child| self.possible(*child, blocking))
            }
            Node::Any { children, .. } => {
                let children = self.program().children(children).iter();
                // Visits every child, so that all reasons are reported.
                children.fold(false, |any, child| self.possible(*child, blocking) | any)
            }
        }
    }

    /// Describes two clauses of a conjunction that contradict each other.
    fn contradiction(&self, children: &[NodeId]) -> Option<String> {
        let program = self.program();
        let literals: Vec<(AtomId, bool)> = children
            .iter()
            .filter_map(|child| match program.node(*child) {
                Node::Literal { atom, negated } => Some((atom, negated)),
                _ => None,
            })
            .collect();
        for (at, (a, not_a)) in literals.iter().enumerate() {
            for (b, not_b) in &literals[at + 1..] {
                let opposite = a == b && not_a != not_b;
                if opposite || (!not_a && !not_b && self.excludes(*a, *b)) {
                    let show = |atom: AtomId, not: bool| {
                        let text = program.atoms.show(atom, &program.operands);
                        format!("{}{text}", if not { "not " } else { "" })
                    };
                    return Some(format!(
                        "`{}` and `{}` cannot both hold",
                        show(*a, *not_a),
                        show(*b, *not_b)
                    ));
                }
            }
        }
        None
    }

    /// Returns true if two atoms require a single-valued field to be in two disjoint sets.
    fn excludes(&self, a: AtomId, b: AtomId) -> bool {
        let program = self.program();
        let (a, b) = (&program.atoms.get(a).key, &program.atoms.get(b).key);
        let is_one = program.operands.get(a.operand).spread == Spread::One;
        match (&a.right, &b.right) {
            (Right::Constants(these), Right::Constants(those)) => {
                is_one
                    && a.operand == b.operand
                    && a.op == Some(Op::In)
                    && b.op == Some(Op::In)
                    && these.iter().all(|text| !those.contains(text))
                    && self.compares_text(a.operand)
            }
            _ => false,
        }
    }

    /// Returns true for operands whose values have only one spelling: texts, but not numbers and addresses.
    fn compares_text(&self, operand: OperandId) -> bool {
        let field = self.program().operands.as_field(operand);
        let is_host = field.is_some_and(|field| field.spec.host_name);
        let ty = self.program().operands.get(operand).ty;
        matches!(ty, ValueType::Text | ValueType::Path) && !is_host
    }
}

fn list(all: BTreeSet<String>) -> String {
    Vec::from_iter(all).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alert, AlertSink, EngineOptions, Loader};

    struct Nobody;

    impl AlertSink for Nobody {
        fn emit(&self, _alert: Alert) {}
    }

    /// Lints rules named `R0`, `R1` ...; the output of each is given after `|`.
    fn lint(conditions: &[&str], kinds: &[EngineKind]) -> Vec<(String, Check, String)> {
        let rules = conditions.iter().enumerate().map(|(at, condition)| {
            let (condition, output) = condition.split_once(" | ").unwrap_or((condition, "o"));
            format!(
                "- rule: R{at}\n  desc: d\n  condition: {condition}\n  output: {output:?}\n  priority: INFO\n"
            )
        });
        let text: String = rules.collect();
        let (ruleset, diagnostics) = Loader::new().add("r.yaml", &text).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let options = EngineOptions::default();
        let (engine, _) = Engine::new(&ruleset, &options, Box::new(Nobody));
        let findings = engine.lint(kinds).into_iter();
        findings
            .map(|finding| (finding.rule.to_string(), finding.check, finding.message))
            .collect()
    }

    fn checks(conditions: &[&str], kinds: &[EngineKind]) -> Vec<(String, Check)> {
        let all = lint(conditions, kinds).into_iter();
        all.map(|(rule, check, _)| (rule, check)).collect()
    }

    #[test]
    fn ordinary_rules_are_not_doubtful() {
        let rules = [
            "evt.type = openat and fd.name = /etc/shadow | %proc.name",
            "evt.type = openat and fd.name startswith /etc",
            "evt.type = connect and fd.sport = 22 and not proc.name in (ssh, scp)",
        ];
        assert_eq!(checks(&rules, &EngineKind::WITH_EVENTS), []);
    }

    #[test]
    fn a_rule_after_a_wider_one_is_shadowed() {
        let wide = "evt.type in (open, openat) and fd.name startswith /etc";
        for narrow in [
            "evt.type = openat and fd.name startswith /etc/ and proc.name = cat",
            "evt.type = open and (fd.name startswith /etc/a or fd.name startswith /etc/b)",
        ] {
            let found = lint(&[wide, narrow], &EngineKind::WITH_EVENTS);
            assert_eq!(found.len(), 1, "{narrow}: {found:?}");
            assert_eq!((found[0].0.as_str(), found[0].1), ("R1", Check::Shadowed));
            assert!(found[0].2.contains("`R0`"));
            assert_eq!(checks(&[narrow, wide], &EngineKind::WITH_EVENTS), []);
        }
        // Exceptions of the first rule let events through to the second.
        let first = "evt.type = open and fd.name = /x and not proc.name in (a, b)";
        let second = "evt.type = open and fd.name = /x and not proc.name in (a, b, c)";
        assert_eq!(checks(&[second, first], &EngineKind::WITH_EVENTS), []);
        let shadowed = [("R1".to_owned(), Check::Shadowed)];
        assert_eq!(checks(&[first, second], &EngineKind::WITH_EVENTS), shadowed);
        // The second rule also matches other types of events.
        let wider = "evt.type in (open, openat) and fd.name = /x";
        assert_eq!(
            checks(
                &["evt.type = open and fd.name = /x", wider],
                &EngineKind::WITH_EVENTS
            ),
            []
        );
    }

    #[test]
    fn rules_that_cannot_match_say_why() {
        let found = lint(
            &["evt.type = open and proc.name = a and proc.name = b"],
            &EngineKind::WITH_EVENTS,
        );
        assert_eq!(found[0].1, Check::Never);
        assert!(found[0].2.contains("cannot both hold"), "{found:?}");
        let by_cpu = "evt.type = openat and fd.name = /x and evt.cpu = 1";
        let found = lint(&[by_cpu], &[EngineKind::Notify]);
        assert_eq!((found.len(), found[0].1), (1, Check::Never));
        assert!(found[0].2.contains("`evt.cpu`"), "{found:?}");
        assert_eq!(checks(&[by_cpu], &[EngineKind::Ebpf]), []);
        let either = "evt.type = openat and (fd.name = /x or evt.cpu = 1)";
        assert_eq!(checks(&[either], &[EngineKind::Notify])[0].1, Check::Idle);
        let found = lint(
            &["evt.type = procexit and proc.name = x"],
            &[EngineKind::Notify],
        );
        assert_eq!(found[0].2, "its events are not reported");
    }

    #[test]
    fn outputs_without_a_value_and_frequent_calls_are_told() {
        let found = lint(
            &["evt.type = openat and fd.name = /x | %evt.cpu"],
            &[EngineKind::Notify],
        );
        assert_eq!((found.len(), found[0].1), (1, Check::Empty));
        let found = checks(
            &["evt.type = close and fd.name = /x"],
            &[EngineKind::Notify],
        );
        assert_eq!(found, [("R0".to_owned(), Check::Expensive)]);
    }
}
