//! The calls that each rule needs, and their cost by measured figures.

mod figures;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

use abi::Syscall;
use config::rule_files::NoSink;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use event::{EventKind, Plan, Reason};
use rules::load::SYSCALL_SOURCE;
use rules::{Engine, EngineOptions};
use serde_json::{Value, json};
use yaml::quote::comment;

pub use self::figures::WatchMode;
use self::figures::{Figures, WorkloadPrice};
use crate::RuleFiles;

/// Rules whose cost is estimated, and the figures to do it by.
#[derive(Debug)]
pub struct CostOptions {
    /// The rules.
    pub rules: RuleFiles,
    /// Capture whose events are counted, and on which the rules are timed.
    pub capture: Option<PathBuf>,
    /// Engine whose cost is shown.
    pub engine: WatchMode,
    /// Folder of a run of `tollgate bench compare`; published figures without one.
    pub figures: Option<PathBuf>,
    /// Print JSON.
    pub json: bool,
}

/// Prints the calls that each rule needs, and their cost.
///
/// # Errors
///
/// The rules have errors, or the figures or the capture cannot be read.
pub fn execute(args: &CostOptions) -> Outcome {
    let figures = Figures::of(args.figures.as_deref(), args.engine)?;
    // Rules of plugins need no system call, and so no plugin is asked.
    let mut loaded = args.rules.load_to_show()?;
    let is_other = |rule: &&rules::Rule| rule.enabled && rule.source != SYSCALL_SOURCE;
    let others = loaded.ruleset.rules.iter().filter(is_other);
    let others: Vec<_> = others
        .map(|rule| (rule.source.clone(), Arc::clone(&rule.name)))
        .collect();
    let options = EngineOptions {
        // A replay has no deadline, so each evaluation can be timed.
        profile: args.capture.is_some().then_some(NonZeroU64::MIN),
        ..EngineOptions::default()
    };
    let (engine, _plan) = loaded.compile(&options, NoSink);
    loaded.usable()?;
    if let Some(capture) = &args.capture {
        replay::evaluate(capture, &engine)?;
    }
    let (plan, _warnings) = engine.plan_for_rules();
    let bill = EvaluationCost::new(&engine, &plan, &figures, args.capture.is_some());
    terminal::print(&if args.json {
        let mut json = bill.json(&figures, args.engine);
        let others = others.iter();
        json["rules_of_plugins"] = others
            .map(|(source, rule)| json!({ "rule": &**rule, "source": source }))
            .collect();
        format!("{json}\n")
    } else {
        bill.text(&figures, args.engine) + &text_of_others(&others)
    })
}

/// Formats the rules of sources of plugins with these sources.
fn text_of_others(others: &[(String, Arc<str>)]) -> String {
    let mut out = String::new();
    if !others.is_empty() {
        out.push_str(
            "\nRules of plugins need no system call; what an event costs depends on the plugin:\n",
        );
    }
    for (source, rule) in others {
        out.push_str(&format!("  {} ({})\n", comment(rule), comment(source)));
    }
    out
}

/// Cost of all rules.
struct EvaluationCost<'e> {
    rules: Vec<Item<'e>>,
    /// All calls that the plan needs, each with the rules that need it.
    calls: BTreeMap<Syscall, BTreeSet<&'e str>>,
    is_measured: bool,
}

/// Cost of one rule.
struct Item<'e> {
    name: &'e str,
    calls: Vec<Syscall>,
    /// Calls that no other rule needs.
    alone: Vec<Syscall>,
    /// Measurements with a capture.
    measured: Option<Measured>,
}

/// Measurements of a rule with a capture.
struct Measured {
    uses: Vec<EventUse>,
    evaluations: u64,
    nanoseconds: u64,
    matches: u64,
}

/// Events of one type that a rule needs.
struct EventUse {
    count: u64,
    /// True if they start programs.
    is_start: bool,
    /// Number of rules that need them.
    rules: u64,
}

impl<'e> EvaluationCost<'e> {
    fn new(engine: &'e Engine, plan: &'e Plan, figures: &Figures, is_measured: bool) -> Self {
        let mut calls: BTreeMap<Syscall, BTreeSet<&str>> = BTreeMap::new();
        let mut kinds: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for (call, planned) in &plan.calls {
            let kind = EventKind::of_syscall(*call).index();
            for reason in &planned.reasons {
                if let Reason::Rule(name) = reason {
                    calls.entry(*call).or_default().insert(name);
                    kinds.entry(kind).or_default().insert(name);
                }
            }
        }
        let evaluated: Vec<(EventKind, u64)> = engine.evaluated().collect();
        let uses = |name: &str| {
            let used = evaluated.iter().filter_map(|(kind, count)| {
                let rules = kinds.get(&kind.index())?;
                rules.contains(name).then(|| EventUse {
                    count: *count,
                    is_start: kind.changes().image,
                    rules: u64::try_from(rules.len()).unwrap_or(u64::MAX),
                })
            });
            used.collect()
        };
        let costs: BTreeMap<_, _> = engine.costs().map(|cost| (cost.rule, cost)).collect();
        let rules = engine.matches().map(|(name, matches)| {
            let of_rule = calls.iter().filter(|(_, rules)| rules.contains(name));
            let alone = of_rule.clone().filter(|(_, rules)| rules.len() == 1);
            Item {
                name,
                alone: alone.map(|(call, _)| *call).collect(),
                calls: of_rule.map(|(call, _)| *call).collect(),
                measured: costs.get(name).map(|cost| Measured {
                    uses: uses(name),
                    evaluations: cost.evaluations,
                    nanoseconds: cost.nanoseconds,
                    matches,
                }),
            }
        });
        let mut rules: Vec<Item<'_>> = rules.collect();
        rules.sort_by(|a, b| {
            let share =
                |item: &Item<'_>| item.measured.as_ref().map_or(0.0, |m| m.share_ns(figures));
            let calls = |item: &Item<'_>| (item.alone.len(), item.calls.len());
            share(b).total_cmp(&share(a)).then(calls(b).cmp(&calls(a)))
        });
        Self {
            rules,
            calls,
            is_measured,
        }
    }

    fn text(&self, figures: &Figures, by: WatchMode) -> String {
        let mut out = format!(
            "PRICES with the engine {}, measured in {}\n",
            by.name(),
            figures.origin
        );
        for (what, price) in [
            ("a call that no rule needs", &figures.untouched),
            ("a trapped call", &figures.looked_at),
            ("a program that is started", &figures.started),
        ] {
            out.push_str(&format!(
                "  {what:26} {:>10}   {} with and without, {} samples\n",
                time(price.ns),
                price.workload,
                price.samples
            ));
        }
        out.push_str(&format!(
            "\nThese rules need {} system calls. `alone` counts the calls that no other rule needs.\n\n",
            self.calls.len()
        ));
        let width = self
            .rules
            .iter()
            .map(|item| item.name.chars().count())
            .max();
        let width = width.unwrap_or(0).max(4);
        out.push_str(&format!("{:width$}  calls  alone", "RULE"));
        if self.is_measured {
            out.push_str("     events      share       alone  evaluations       each  matches");
        }
        out.push('\n');
        for item in &self.rules {
            out.push_str(&item.text(width, figures));
        }
        out
    }

    fn json(&self, figures: &Figures, by: WatchMode) -> Value {
        let price = |price: &WorkloadPrice| json!({ "ns": price.ns, "workload": price.workload, "samples": price.samples });
        json!({
            "figures": {
                "origin": figures.origin,
                "engine": by.name(),
                "untouched": price(&figures.untouched),
                "looked_at": price(&figures.looked_at),
                "started": price(&figures.started),
            },
            "calls": self.calls.iter().map(|(call, rules)| {
                json!({ "call": call.name(), "rules": rules })
            }).collect::<Vec<_>>(),
            "rules": self.rules.iter().map(|item| item.json(figures)).collect::<Vec<_>>(),
        })
    }
}

impl Item<'_> {
    fn text(&self, width: usize, figures: &Figures) -> String {
        let mut out = format!(
            "{:width$}  {:>5}  {:>5}",
            self.name,
            self.calls.len(),
            self.alone.len()
        );
        if let Some(measured) = &self.measured {
            out.push_str(&format!(
                " {:>10} {:>10}  {:>10}  {:>11} {:>10}  {:>7}",
                measured.events(),
                time(measured.share_ns(figures)),
                time(measured.alone_ns(figures)),
                measured.evaluations,
                measured.each_ns().map_or_else(|| "-".to_owned(), time),
                measured.matches
            ));
        }
        out.push('\n');
        if !self.alone.is_empty() {
            let names: Vec<_> = self.alone.iter().map(|call| call.name()).collect();
            out.push_str(&format!("  only for it: {}\n", names.join(", ")));
        }
        out
    }

    fn json(&self, figures: &Figures) -> Value {
        let names = |calls: &[Syscall]| calls.iter().map(|call| call.name()).collect::<Vec<_>>();
        let measured = self.measured.as_ref().map(|measured| {
            json!({
                "events": measured.events(),
                "share_ns": measured.share_ns(figures),
                "alone_ns": measured.alone_ns(figures),
                "evaluations": measured.evaluations,
                "evaluation_ns": measured.each_ns(),
                "matches": measured.matches,
            })
        });
        json!({
            "rule": self.name,
            "calls": names(&self.calls),
            "alone": names(&self.alone),
            "measured": measured,
        })
    }
}

impl Measured {
    fn events(&self) -> u64 {
        self.uses.iter().map(|used| used.count).sum()
    }

    /// Returns the rule's share of the cost, if all rules that need an event share its cost equally.
    fn share_ns(&self, figures: &Figures) -> f64 {
        let shares = self
            .uses
            .iter()
            .map(|used| used.price_ns(figures) / float(used.rules));
        shares.sum()
    }

    /// Returns the cost that would be saved without the rule.
    fn alone_ns(&self, figures: &Figures) -> f64 {
        let alone = self.uses.iter().filter(|used| used.rules == 1);
        alone.map(|used| used.price_ns(figures)).sum()
    }

    /// Returns the mean time of one evaluation of the condition, in nanoseconds.
    fn each_ns(&self) -> Option<f64> {
        (self.evaluations > 0).then(|| float(self.nanoseconds) / float(self.evaluations))
    }
}

impl EventUse {
    fn price_ns(&self, figures: &Figures) -> f64 {
        let price = if self.is_start {
            &figures.started
        } else {
            &figures.looked_at
        };
        float(self.count) * price.ns
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn time(ns: f64) -> String {
    match ns {
        0.0 => "0".to_owned(),
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}
