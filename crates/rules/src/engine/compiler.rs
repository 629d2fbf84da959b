//! Compilation of rules into their evaluated form.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::count::Counting;
use super::{AppendOutput, CompiledRule, EngineOptions, ExtraField};
use crate::compile::check::{Checker, Problem};
use crate::condition::ast::SourceId;
use crate::condition::parser::parse_operand;
use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::output::Template;
use crate::ruleset::{Count, Rule, Ruleset};

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
    /// Compiles one rule; `None` if it has errors.
    pub(super) fn rule(&mut self, rule: &Rule) -> Option<CompiledRule> {
        let (tree, mut problems) = self.checker.condition(&rule.condition);
        let template = self.output(rule, &mut problems);
        let formatted = self.formatted(rule, &mut problems);
        let count = self.count(rule);
        let has_sound_count = rule.count.is_some() == count.is_some();
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
        let over = usize::try_from(count.over).expect("the loader bounds it");
        let within_ns = u64::from(count.within_ms) * 1_000_000;
        Some(Counting::new(over, within_ns, by, distinct))
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
            match Template::new(&format!("%{name}"), rule.output.source, &mut self.checker) {
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
        // A faulty macro that several rules use is reported once, not once per rule.
        let known = |other: &Diagnostic| {
            other.code == diagnostic.code
                && other.location == diagnostic.location
                && other.message == diagnostic.message
        };
        if !self.diagnostics.iter().any(known) {
            self.diagnostics.push(diagnostic);
        }
    }
}

/// Fields that explain an alert: who, with which ancestors, on what, where.
const CONTEXT: &str = "%proc.pid %user.name %user.uid %proc.name %proc.pname %proc.aname[2] %proc.aname[3] \
                       %proc.aname[4] %fd.name %fs.path.name %fs.path.target %proc.cmdline %container.id \
                       %container.name";

/// Falco's old spelling for the two fields below.
const CONTAINER_INFO: &str = "%container.info";
const CONTAINER_INFO_FIELDS: &str = "container_id=%container.id container_name=%container.name";
