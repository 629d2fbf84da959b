//! The rule engine: a compiled rule set that evaluates events.

mod asked;
mod compiler;
mod count;
mod image;
mod options;
mod risk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use event::{Evaluator, Event, EventKind, Relevance};
use serde::{Deserialize, Serialize};

use crate::alert::{Alert, AlertDetails, AlertProcess};
use crate::compile::Ternary;
use crate::compile::check::Checker;
use crate::compile::eval::{Evaluation, EvaluationCache};
use crate::compile::opening::{Openable, Openings};
use crate::compile::program::{Entry, Program, Source};
use crate::compile::tree::Tree;
use crate::diagnostic::{Diagnostic, Location};
use crate::output::Template;
use crate::profile::{Profile, RuleCost};
use crate::ruleset::{Priority, Risk, Rule, Ruleset};

use compiler::Compiler;
pub use compiler::output_text;
use count::Counting;
pub use image::NotAnImage;
pub use options::{AppendOutput, EngineOptions, ExtraField, RuleMatching};
use risk::Search;

/// A rule that matched an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatch<'r> {
    /// Name of the rule.
    pub rule: &'r str,
    /// Its priority.
    pub priority: Priority,
    /// Whether a match starts a capture.
    pub capture: bool,
    /// Duration of the capture in milliseconds; 0 means the configured default.
    pub capture_duration_ms: u32,
}

/// Records events. Evaluating threads call it, so it must not block.
pub trait Recorder: Send + Sync {
    /// Returns true if events that no rule can match are recorded at present. Engines then read all facts of
    /// each event that rules concern, as if a rule were undecided.
    fn is_recording(&self) -> bool;

    /// Records an evaluated event with the rules that matched.
    fn record(&self, event: &Event<'_>, matched: &[RuleMatch<'_>]);
}

/// Receives alerts. Evaluating threads call it, so it must not block.
pub trait AlertSink: Send + Sync {
    /// Receives one alert.
    fn emit(&self, alert: Alert);
}

/// A compiled rule set.
pub struct Engine {
    pub(crate) program: Program,
    pub(crate) rules: Vec<CompiledRule>,
    rule_matching: RuleMatching,
    static_fields: Vec<(Arc<str>, String)>,
    /// Fields that explain an alert to people, and whether they are wanted.
    context: Template,
    adds_context: bool,
    clock: fn() -> u64,
    sink: Box<dyn AlertSink>,
    recorder: Option<Arc<dyn Recorder>>,
    concluded: AtomicU64,
    profile: Option<Profile>,
}

/// A rule in its evaluated form.
#[derive(Deserialize, Serialize)]
pub(crate) struct CompiledRule {
    pub(crate) name: Arc<str>,
    pub(crate) location: Location,
    warn_evttypes: bool,
    priority: Priority,
    pub(crate) source: Arc<str>,
    tags: Arc<[String]>,
    pub(crate) tree: Tree,
    template: Template,
    /// Named output fields with a template of their own.
    formatted: Vec<(Arc<str>, Template)>,
    capture: bool,
    capture_duration_ms: u32,
    pub(crate) count: Option<Counting>,
    pub(crate) risk: Option<Risk>,
    #[serde(skip)]
    matches: AtomicU64,
}

/// Number of matches of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatches<'e> {
    /// Name of the rule.
    pub rule: &'e str,
    /// Priority of the rule.
    pub priority: Priority,
    /// Event source of the rule.
    pub source: &'e str,
    /// Tags of the rule.
    pub tags: &'e [String],
    /// Number of matches.
    pub matches: u64,
}

/// Working memory of one thread.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) memo: EvaluationCache,
    openings: Openings,
    evaluated: u64,
}

impl Scratch {
    /// Returns how often events were prefiltered or evaluated with this memory.
    #[must_use]
    pub fn evaluated(&self) -> u64 {
        self.evaluated
    }
}

impl Engine {
    /// Compiles the enabled rules. Rules with errors are left out and reported as diagnostics; as in Falco, also
    /// errors of disabled rules are.
    pub fn new(
        ruleset: &Ruleset,
        options: &EngineOptions,
        sink: Box<dyn AlertSink>,
    ) -> (Self, Vec<Diagnostic>) {
        let mut compiler = Compiler {
            ruleset,
            options,
            checker: Checker::of(options.source.clone()),
            diagnostics: Vec::new(),
        };
        let of_source: Vec<&Rule> = ruleset
            .rules
            .iter()
            .filter(|rule| rule.source == options.source_name())
            .collect();
        // A rule that only adds to a risk raises no alert that the priority could be about.
        let wanted =
            |rule: &&Rule| rule.enabled && (rule.priority <= options.priority || rule.is_silent());
        let rules = compiler.rules(of_source.iter().copied().filter(wanted));
        let context = compiler.context();
        let Compiler {
            checker,
            mut diagnostics,
            ..
        } = compiler;
        // What they compare must not become a part of the program.
        let mut disabled = Compiler {
            ruleset,
            options,
            checker: Checker::of(options.source.clone()),
            diagnostics,
        };
        for rule in of_source.into_iter().filter(|rule| !wanted(rule)) {
            disabled.rule(rule);
        }
        diagnostics = disabled.diagnostics;
        let outputs: Vec<Vec<_>> = rules.iter().map(|rule| rule.operands().collect()).collect();
        let sources: Vec<Source<'_>> = rules
            .iter()
            .zip(&outputs)
            .map(|(rule, outputs)| Source {
                tree: &rule.tree,
                outputs,
            })
            .collect();
        let program = Program::new(checker.operands, checker.atoms, &sources);
        let engine = Self::of(program, rules, context, options, sink);
        if options.source.is_none() {
            diagnostics.extend(engine.unrestricted(ruleset));
        }
        (engine, diagnostics)
    }

    fn of(
        program: Program,
        rules: Vec<CompiledRule>,
        context: Template,
        options: &EngineOptions,
        sink: Box<dyn AlertSink>,
    ) -> Self {
        Self {
            context,
            adds_context: options.context,
            program,
            profile: options
                .profile
                .map(|every| Profile::new(rules.len(), every)),
            rules,
            rule_matching: options.rule_matching,
            static_fields: options.static_fields.clone(),
            clock: options.clock,
            recorder: options.recorder.clone(),
            sink,
            concluded: AtomicU64::new(0),
        }
    }

    /// Returns the number of fully evaluated events.
    #[must_use]
    pub fn concluded(&self) -> u64 {
        self.concluded.load(Ordering::Relaxed)
    }

    /// Returns the names of the evaluated rules with their number of matches, in load order.
    pub fn matches(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rules
            .iter()
            .map(|rule| (&*rule.name, rule.matches.load(Ordering::Relaxed)))
    }

    /// Returns the evaluated rules with priority, source, tags and number of matches, in load order.
    pub fn rule_matches(&self) -> impl Iterator<Item = RuleMatches<'_>> {
        self.rules.iter().map(|rule| RuleMatches {
            rule: &rule.name,
            priority: rule.priority,
            source: &rule.source,
            tags: &rule.tags,
            matches: rule.matches.load(Ordering::Relaxed),
        })
    }

    /// Returns the costs of the rules; empty if profiling is off.
    pub fn costs(&self) -> impl Iterator<Item = RuleCost<'_>> {
        let timed = self.profile.iter().flat_map(Profile::rules);
        let costs = self.rules.iter().zip(timed);
        costs.map(|(rule, (evaluations, nanoseconds))| RuleCost {
            rule: &rule.name,
            evaluations,
            nanoseconds,
        })
    }

    /// Returns the number of evaluated events by kind, without kinds that had none; empty if profiling is
    /// off.
    pub fn evaluated(&self) -> impl Iterator<Item = (EventKind, u64)> {
        let kinds = self.profile.iter().flat_map(Profile::kinds);
        kinds.filter(|(_, count)| *count > 0)
    }

    /// Returns the fields that the output of a rule reports, if the rule is evaluated.
    #[must_use]
    pub fn output_fields(&self, rule: &str) -> Option<Vec<&str>> {
        let rule = self.rules.iter().find(|known| &*known.name == rule)?;
        Some(rule.template.field_names().collect())
    }

    /// Returns the analysis of openings of a kind; `None` if every event must be seen.
    fn openable(&self, kind: event::EventKind) -> Option<&Openable> {
        if self.recorder.is_some() || self.profile.is_some() {
            return None;
        }
        self.program.kind(kind).openable.as_ref()
    }

    /// Returns true if an event opens a file and no rule can match that, whichever process opens it.
    fn is_ruled_out(&self, scratch: &mut Scratch, event: &Event<'_>) -> bool {
        let Some(openable) = self.openable(event.kind) else {
            return false;
        };
        let Some(opening) = openable.opening(event) else {
            return false;
        };
        let Scratch { memo, openings, .. } = scratch;
        match openings.is_ruled_out(&opening) {
            Some(is_ruled_out) => return is_ruled_out,
            None if openings.are_resting() => return false,
            None => {}
        }
        let mut evaluation = Evaluation::new(&self.program, memo, event).of_opening(openable);
        let mut entries = self.program.kind(event.kind).entries.iter();
        let is_ruled_out = entries.all(|entry| evaluation.rule(entry) == Ternary::False);
        openings.remember(&opening, is_ruled_out);
        is_ruled_out
    }

    fn is_recording(&self) -> bool {
        let recorder = self.recorder.as_ref();
        recorder.is_some_and(|recorder| recorder.is_recording())
    }

    pub(crate) fn alert(
        &self,
        rule: &CompiledRule,
        evaluation: &mut Evaluation<'_, '_, '_>,
    ) -> Alert {
        let event = evaluation.event();
        let mut fields = rule.template.values(evaluation);
        for (name, template) in &rule.formatted {
            let text = template.message(evaluation);
            fields.push((Arc::clone(name), crate::alert::AlertValue::Text(text)));
        }
        let added = self.static_fields.iter();
        fields.extend(added.map(|(name, text)| {
            let text = crate::alert::AlertValue::Text(text.clone());
            (Arc::clone(name), text)
        }));
        let context = match self.adds_context {
            true => self.context.values(evaluation),
            false => Vec::new(),
        };
        Alert {
            details: AlertDetails {
                file: Some(Arc::clone(&rule.location.file)),
                line: rule.location.line,
                context,
                process: (event.world.plugin_name().is_none())
                    .then(|| AlertProcess::of(event.process)),
            },
            time_ns: event.time_ns,
            made_ns: (self.clock)(),
            rule: Arc::clone(&rule.name),
            priority: rule.priority,
            source: Arc::clone(&rule.source),
            tags: Arc::clone(&rule.tags),
            hostname: event.world.host_name().into(),
            message: rule.template.message(evaluation),
            fields,
        }
    }
}

impl Evaluator for Engine {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch {
            memo: EvaluationCache::new(&self.program),
            openings: Openings::default(),
            evaluated: 0,
        }
    }

    fn concerns(&self, kind: event::EventKind) -> bool {
        !self.program.kind(kind).entries.is_empty()
    }

    fn has_ruled_out(
        &self,
        scratch: &mut Scratch,
        opening: &event::Opening<'_>,
    ) -> Option<event::ImpossibleOpen> {
        let openable = self.openable(opening.kind)?;
        let simple = openable.simplify(opening);
        let is_ruled_out = scratch.openings.is_ruled_out(&simple) == Some(true);
        is_ruled_out.then_some(event::ImpossibleOpen {
            alike_from: openable.alike_from(),
        })
    }

    fn prefilter(&self, scratch: &mut Scratch, event: &Event<'_>) -> Relevance {
        scratch.evaluated += 1;
        let entries = &self.program.kind(event.kind).entries;
        // Thread id 0 marks an engine's query about a hypothetical call.
        let profile = self.profile.as_ref().filter(|_| event.tid != event::Tid(0));
        if entries.is_empty() {
            if let Some(profile) = profile {
                profile.evaluated(event.kind);
            }
            return Relevance::Reject;
        }
        // Hypothetical calls, marked by thread id 0, are not recorded.
        if event.stage < event::Stage::Exit && event.tid != event::Tid(0) && self.is_recording() {
            return Relevance::Undecided;
        }
        let mut evaluation = Evaluation::new(&self.program, &mut scratch.memo, event);
        let mut weight = Relevance::Reject;
        let candidates = evaluation.candidates();
        let entries = entries.iter().enumerate();
        let timed = profile.filter(|profile| profile.is_timed(scratch.evaluated));
        let mut search = Search::default();
        for (_, entry) in entries.filter(|(position, _)| candidates.has(*position)) {
            if !search.goes_on(&self.rules[entry.rule]) {
                continue;
            }
            match truth(&mut evaluation, entry, timed) {
                Ternary::False => {}
                Ternary::Unknown => return Relevance::Undecided,
                Ternary::True if entry.output_stage > event.stage => return Relevance::Undecided,
                Ternary::True => {
                    weight = Relevance::Settled;
                    search.has_signal |= self.rules[entry.rule].risk.is_some();
                    search.has_ended |= self.ends_search(entry);
                }
            }
        }
        if let (Some(profile), Relevance::Reject) = (profile, weight) {
            profile.evaluated(event.kind);
        }
        weight
    }

    fn evaluate(&self, scratch: &mut Scratch, event: &Event<'_>) -> Vec<Arc<str>> {
        scratch.evaluated += 1;
        self.concluded.fetch_add(1, Ordering::Relaxed);
        if self.is_ruled_out(scratch, event) {
            return Vec::new();
        }
        let mut evaluation = Evaluation::new(&self.program, &mut scratch.memo, event);
        let mut undecided = Vec::new();
        let mut matched = Vec::new();
        let candidates = evaluation.candidates();
        let entries = self.program.kind(event.kind).entries.iter().enumerate();
        if let Some(profile) = &self.profile {
            profile.evaluated(event.kind);
        }
        let profile = self.profile.as_ref();
        let timed = profile.filter(|profile| profile.is_timed(scratch.evaluated));
        let mut search = Search::default();
        let mut signal = None;
        for (_, entry) in entries.filter(|(position, _)| candidates.has(*position)) {
            if !search.goes_on(&self.rules[entry.rule]) {
                continue;
            }
            match truth(&mut evaluation, entry, timed) {
                Ternary::False => {}
                Ternary::Unknown => undecided.push(Arc::clone(&self.rules[entry.rule].name)),
                Ternary::True => {
                    let rule = &self.rules[entry.rule];
                    let alerted = self.match_rule(entry.rule, &mut signal, &mut evaluation);
                    search.has_signal = signal.is_some();
                    if !alerted {
                        continue;
                    }
                    if self.recorder.is_some() {
                        matched.push(RuleMatch {
                            rule: &rule.name,
                            priority: rule.priority,
                            capture: rule.capture,
                            capture_duration_ms: rule.capture_duration_ms,
                        });
                    }
                    search.has_ended |= self.ends_search(entry);
                }
            }
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(event, &matched);
        }
        undecided
    }
}

/// Evaluates the condition of a rule, and measures the time if `timed` is given.
#[inline]
fn truth(
    evaluation: &mut Evaluation<'_, '_, '_>,
    entry: &Entry,
    timed: Option<&Profile>,
) -> Ternary {
    match timed {
        None => evaluation.rule(entry),
        Some(profile) => profile.time(entry.rule, || evaluation.rule(entry)),
    }
}
