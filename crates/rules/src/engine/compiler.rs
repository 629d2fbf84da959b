//! Compilation of rules into their evaluated form.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::count::Counting;
use super::risk::Sum;
use super::{AppendOutput, CompiledRule, EngineOptions, ExtraField};
use crate::compile::check::{Checker, Problem};
use crate::compile::doubt::DEPRECATED;
use crate::compile::operand::OperandId;
use crate::compile::tree::Tree;
use crate::condition::ast::{SourceId, Span};
use crate::condition::parser::parse_operand;
use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::output::Template;
use crate::ruleset::{Count, Counted, Rule, Ruleset};

/// Returns the output of a rule with the configured additions.
#[must_use]
pub fn output_text(rule: &Rule, append_output: &[AppendOutput]) -> String {
    let mut text = rule.output.text.clone();
    for append in additions(rule, append_output) {
        if let Some(extra) = &append.extra_output {
            text.push(' ');
            text.push_str(extra);
        }
    }
    text
}

fn additions<'a>(
    rule: &Rule,
    append_output: &'a [AppendOutput],
) -> impl Iterator<Item = &'a AppendOutput> {
    append_output
        .iter()
        .filter(|append| append.applies_to(rule))
}

/// Returns the fields that the configuration adds to the alerts of a rule.
fn extra_fields<'a>(
    rule: &Rule,
    options: &'a EngineOptions,
) -> impl Iterator<Item = &'a ExtraField> {
    additions(rule, &options.append_output).flat_map(|append| &append.extra_fields)
}

pub(super) struct Compiler<'a> {
    pub(super) ruleset: &'a Ruleset,
    pub(super) options: &'a EngineOptions,
    pub(super) checker: Checker,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Compiler<'_> {
    /// Compiles rules; those with errors are left out. Sums of risk come last, and match only events that one of the
    /// other rules with a weight matches.
    pub(super) fn rules<'r>(&mut self, rules: impl Iterator<Item = &'r Rule>) -> Vec<CompiledRule> {
        let (sums, others): (Vec<&Rule>, Vec<&Rule>) = rules.partition(|rule| rule.sums_risk());
        let mut compiled: Vec<_> = others
            .into_iter()
            .filter_map(|rule| self.rule(rule))
            .collect();
        let signals = compiled.iter().filter(|rule| rule.risk.is_some());
        let signals = Tree::any(signals.map(|rule| rule.tree.clone()).collect());
        for rule in sums {
            let Some(mut sum) = self.rule(rule) else {
                continue;
            };
            if signals == Tree::Const(false) {
                let message = "the rule sums weights, and no enabled rule has one: it never alerts";
                let problem = Diagnostic::new(
                    Code::DoubtfulCondition,
                    rule.location.clone(),
                    message.to_owned(),
                );
                let problem = problem.with_help("give rules a weight, such as `risk: 30`");
                self.diagnostics
                    .push(problem.in_item(format!("rule {}", rule.name)));
            }
            let both = Tree::all(vec![signals.clone(), sum.tree]);
            sum.tree = both.merge(&mut self.checker.atoms, &self.checker.operands);
            compiled.push(sum);
        }
        compiled
    }

    /// Compiles one rule; `None` if it has errors.
    pub(super) fn rule(&mut self, rule: &Rule) -> Option<CompiledRule> {
        let (tree, of_condition) = self.checker.condition(&rule.condition);
        // As in Falco, the problems of the output come first.
        let mut problems = Vec::new();
        let template = self.output(rule, &mut problems);
        let formatted = self.formatted(rule, &mut problems);
        problems.extend(of_condition);
        let count = self.count(rule);
        let has_sound_count = rule.count.is_some() == count.is_some() && self.is_no_loop(rule);
        let has_sound_exceptions = self.exceptions(rule);
        let is_error = |problem: &Problem| problem.code.severity() == Severity::Error;
        let broken = problems.iter().any(is_error);
        let forgiven = rule.skip_if_unknown_filter
            && problems
                .iter()
                .filter(|problem| is_error(problem))
                .all(|problem| problem.unknown);
        for mut problem in problems {
            if forgiven && is_error(&problem) {
                problem.code = Code::UnknownFilter;
                problem.message += "; the rule is left out";
            }
            self.report(rule, problem);
        }
        if broken || !has_sound_exceptions || !has_sound_count {
            return None;
        }
        let tree = tree.merge(&mut self.checker.atoms, &self.checker.operands);
        Some(CompiledRule {
            name: Arc::clone(&rule.name),
            location: rule.location.clone(),
            warn_evttypes: rule.warn_evttypes,
            priority: rule.priority,
            source: rule.source.as_str().into(),
            tags: rule.tags.iter().cloned().collect(),
            tree,
            template: template?,
            formatted: formatted?,
            capture: rule.capture,
            capture_duration_ms: rule.capture_duration_ms,
            count,
            risk: rule.risk,
            matches: AtomicU64::new(0),
        })
    }

    /// Compiles the `count` of a rule; `None` if it has none or is faulty, which is reported.
    fn count(&mut self, rule: &Rule) -> Option<Counting> {
        let count = rule.count.as_ref()?;
        let by = self.count_template(rule, count, &count.by)?;
        let distinct = match count.distinct.is_empty() {
            true => None,
            false => Some(self.count_template(rule, count, &count.distinct)?),
        };
        let within_ns = u64::from(count.within_ms) * 1_000_000;
        let sum = match &count.of {
            Counted::Matches => None,
            Counted::Risk { below } => Some(Sum::new(below.clone())),
        };
        Some(Counting::new(count.over, within_ns, by, distinct, sum))
    }

    /// Reports a rule that sums weights and has one. Returns false if there is that problem.
    fn is_no_loop(&mut self, rule: &Rule) -> bool {
        if rule.risk.is_none() || !rule.sums_risk() {
            return true;
        }
        let message = "a rule with `risk_over` sums the weights of others, and cannot have `risk`";
        let problem = Diagnostic::new(Code::Validate, rule.location.clone(), message.to_owned());
        self.diagnostics
            .push(problem.in_item(format!("rule {}", rule.name)));
        false
    }

    fn count_template(
        &mut self,
        rule: &Rule,
        count: &Count,
        fields: &[String],
    ) -> Option<Template> {
        let text: Vec<_> = fields.iter().map(|field| format!("%{field}")).collect();
        match Template::new(&text.join("\0"), rule.output.source, &mut self.checker) {
            Ok(template) => Some(template),
            Err(problems) => {
                for problem in problems {
                    let message = format!("`count`: {}", problem.message);
                    let diagnostic = Diagnostic::new(problem.code, count.location.clone(), message);
                    self.diagnostics
                        .push(diagnostic.in_item(format!("rule {}", rule.name)));
                }
                None
            }
        }
    }

    /// Checks the fields of exceptions without values, which are no part of the condition yet. Returns false if
    /// one is unknown.
    fn exceptions(&mut self, rule: &Rule) -> bool {
        let mut all_known = true;
        for exception in rule.exceptions.iter().filter(|it| it.values == 0) {
            for field in &exception.fields {
                let parsed = parse_operand(field, SourceId(0)).map_err(|error| error.message);
                let known = parsed.and_then(|operand| {
                    let mut checker = Checker::of(self.options.source.clone());
                    let checked = checker.output_operand(&operand);
                    checked.map_err(|problems| problems.into_iter().map(|it| it.message).collect())
                });
                if let Err(reason) = known {
                    all_known = false;
                    let message = format!("exception `{}`: {reason}", exception.name);
                    let location = exception.location.clone();
                    self.diagnostics.push(
                        Diagnostic::new(Code::Validate, location, message)
                            .in_item(format!("rule {}", rule.name)),
                    );
                }
            }
        }
        all_known
    }

    /// Compiles the fields that explain an alert. No engine is asked for more because of them: what is not
    /// known when a rule matches is left out.
    pub(super) fn context(&mut self) -> Template {
        // Events of plugins have no process.
        let text = match self.options.source {
            None => CONTEXT,
            Some(_) => "",
        };
        Template::new(text, SourceId(0), &mut self.checker).expect("the fields exist")
    }

    fn output(&mut self, rule: &Rule, problems: &mut Vec<Problem>) -> Option<Template> {
        let mut text = output_text(rule, &self.options.append_output);
        if text.contains(CONTAINER_INFO) {
            let message = format!("`{CONTAINER_INFO}` is an old notation");
            let diagnostic = Diagnostic::new(Code::DeprecatedItem, rule.location.clone(), message)
                .in_item(format!("rule {}", rule.name))
                .with_help(format!("write `{CONTAINER_INFO_FIELDS}`"));
            self.diagnostics.push(diagnostic);
            text = text.replace(CONTAINER_INFO, CONTAINER_INFO_FIELDS);
        }
        problems.extend(deprecated(&text, rule.output.source));
        let mut template = match Template::new(&text, rule.output.source, &mut self.checker) {
            Ok(template) => Some(template),
            Err(found) => {
                problems.extend(found);
                None
            }
        };
        for field in extra_fields(rule, self.options) {
            let ExtraField::Field(name) = field else {
                continue;
            };
            let text = format!("%{name}");
            problems.extend(deprecated(&text, rule.output.source));
            match Template::new(&text, rule.output.source, &mut self.checker) {
                Ok(extra) => {
                    if let Some(template) = &mut template {
                        template.report_also(&extra);
                    }
                }
                Err(found) => problems.extend(found),
            }
        }
        template
    }

    fn formatted(
        &mut self,
        rule: &Rule,
        problems: &mut Vec<Problem>,
    ) -> Option<Vec<(Arc<str>, Template)>> {
        let mut templates = Some(Vec::new());
        for field in extra_fields(rule, self.options) {
            let ExtraField::Formatted { name, format } = field else {
                continue;
            };
            problems.extend(deprecated(format, rule.output.source));
            match Template::new(format, rule.output.source, &mut self.checker) {
                Ok(template) => {
                    if let Some(templates) = &mut templates {
                        templates.push((name.as_str().into(), template));
                    }
                }
                Err(found) => {
                    problems.extend(found);
                    templates = None;
                }
            }
        }
        templates
    }

    fn report(&mut self, rule: &Rule, problem: Problem) {
        let location = self.ruleset.locate(problem.span);
        let mut diagnostic = Diagnostic::new(problem.code, location, problem.message)
            .in_item(format!("rule {}", rule.name));
        diagnostic.help = problem.help;
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }
}

impl CompiledRule {
    /// Returns the operands of the rule's outputs and counts.
    pub(crate) fn operands(&self) -> impl Iterator<Item = OperandId> {
        let formatted = self
            .formatted
            .iter()
            .flat_map(|(_, template)| template.operands());
        let counted = self.count.iter().flat_map(Counting::operands);
        self.template.operands().chain(formatted).chain(counted)
    }
}

/// Returns a warning for each deprecated field that an output names. Like Falco, looks for the name alone: a
/// transformer may enclose it, and `evt.latency.ns` counts as `evt.latency`, too.
fn deprecated(output: &str, source: SourceId) -> impl Iterator<Item = Problem> {
    DEPRECATED.iter().filter_map(move |(field, why)| {
        let at = output.find(field)?;
        let end = at + field.len();
        let span = Span::new(source, u32::try_from(at).ok()?, u32::try_from(end).ok()?);
        let message = format!("`{field}` is deprecated and stands in the rule's output: {why}");
        let problem = Problem::new(Code::DeprecatedItem, span, message);
        Some(problem.help("leave the field out"))
    })
}

/// Fields that explain an alert: who, with which ancestors, on what, where.
const CONTEXT: &str = "%proc.pid %user.name %user.uid %proc.name %proc.pname %proc.aname[2] %proc.aname[3] \
                       %proc.aname[4] %fd.name %fs.path.name %fs.path.target %proc.cmdline %container.id \
                       %container.name";

/// Falco's old spelling for the two fields below.
const CONTAINER_INFO: &str = "%container.info";
const CONTAINER_INFO_FIELDS: &str = "container_id=%container.id container_name=%container.name";
