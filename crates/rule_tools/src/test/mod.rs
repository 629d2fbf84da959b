//! Tests of rules: described or recorded events, and the alerts that they must raise.

mod load;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agent::plugins::{Plugins, SourceEngines};
use config::rule_files::{Loaded, RuleSources};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal::{self, Colour};
use rules::diagnostic::closest;
use rules::trace::Tracer;
use rules::{Alert, AlertSink, Code, Engine, EngineOptions, Level, RuleMatching};
use serde_json::json;
use yaml::settings::Problem;

use self::load::{Events, Expected, Suite, Test};
use crate::described_event::unusable;
use crate::options::RulesWithPlugins;
use crate::{RuleFiles, event_explanation as explained};

/// Files of tests to run.
#[derive(Debug)]
pub struct TestOptions {
    /// The files.
    pub files: Vec<PathBuf>,
    /// The rules; if none are named, those that each file names.
    pub rules: RuleFiles,
    /// Print JSON, one object a line for each test.
    pub json: bool,
}

/// Runs the tests of files and prints their results; exit status 1 if a test fails.
///
/// # Errors
///
/// A file, its rules or a capture cannot be read, or a test names a rule that does not exist.
pub fn execute(args: &TestOptions) -> Outcome {
    let (mut passed, mut failed) = (0, 0);
    for file in &args.files {
        let suite = read(file)?;
        let bench = Bench::new(&args.rules, &suite)?;
        for test in &suite.tests {
            let faults = bench.faults(test)?;
            if faults.is_empty() {
                passed += 1;
            } else {
                failed += 1;
            }
            terminal::print(&line(args.json, test, &faults))?;
        }
    }
    if !args.json {
        terminal::print(&format!("{passed} passed, {failed} failed\n"))?;
    }
    Ok(if failed > 0 { Exit::Failed } else { Exit::Ok })
}

/// Runs the tests of a file, and returns what differs from what they expect.
pub(super) fn faults(file: &Path) -> Result<Vec<String>, Failure> {
    let suite = read(file)?;
    let bench = Bench::new(&RuleFiles::default(), &suite)?;
    let mut faults = Vec::new();
    for test in &suite.tests {
        faults.extend(bench.faults(test)?);
    }
    Ok(faults)
}

/// Runs the tests of a file against given rules, and returns what differs from what they expect. The rules that the file
/// names do not count, but its level does.
///
/// # Errors
///
/// The file or the rules cannot be read, a test names a rule that does not exist, or a capture that is not below `folder`.
pub fn faults_of(
    file: &Path,
    folder: &Path,
    sources: &RuleSources,
) -> Result<Vec<String>, Failure> {
    let suite = read(file)?;
    for test in &suite.tests {
        let Events::Capture(path) = &test.events else {
            continue;
        };
        let leads_out = |part| matches!(part, Component::ParentDir);
        if !path.starts_with(folder) || path.components().any(leads_out) {
            let message = format!("the capture {} is not beside the tests", path.display());
            return Err(unusable(&Problem::new(&test.origin, message)));
        }
    }
    let mut sources = sources.clone();
    sources.level = suite.level.unwrap_or(sources.level);
    let bench = Bench::of(&sources, &suite)?;
    let mut faults = Vec::new();
    for test in &suite.tests {
        let found = bench.faults(test)?;
        faults.extend(
            found
                .into_iter()
                .map(|fault| format!("{}: {fault}", test.name)),
        );
    }
    Ok(faults)
}

fn read(file: &Path) -> Result<Suite, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        let message = format!("cannot read {}: {error}", file.display());
        Failure::new(Exit::BadInput, message).help("name a file of tests, in YAML")
    })?;
    load::read(file, &text).map_err(|mut problem| {
        let form = "the page docs/howto/write-rules.md shows the form of such files";
        problem.help.get_or_insert_with(|| form.to_owned());
        unusable(&problem)
    })
}

fn line(is_json: bool, test: &Test, faults: &[String]) -> String {
    let passed = faults.is_empty();
    if is_json {
        let object = json!({
            "test": test.name,
            "at": test.origin.to_string(),
            "passed": passed,
            "faults": faults,
        });
        return format!("{object}\n");
    }
    let (word, colour) = if passed {
        ("ok    ", Colour::Good)
    } else {
        ("FAILED", Colour::Bad)
    };
    let word = if terminal::wants_colour() {
        terminal::paint(word, colour)
    } else {
        word.to_owned()
    };
    let mut out = format!("{word}  {}\n", test.name);
    for fault in faults {
        out.push_str(&format!("        {fault}\n"));
    }
    out
}

/// A sink that keeps alerts.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<Alert>>>);

impl AlertSink for Kept {
    fn emit(&self, alert: Alert) {
        let mut alerts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        alerts.push(alert);
    }
}

/// The rules that a test file uses.
struct Bench {
    loaded: Loaded,
    level: Level,
    engine: Engine,
    alerts: Kept,
    /// The plugins that the rules ask for, and the rules of their sources.
    plugins: Plugins,
    sources: SourceEngines,
}

impl Bench {
    /// Loads the rules of the command line, or those of the file.
    fn new(rules: &RuleFiles, suite: &Suite) -> Result<Self, Failure> {
        let mut rules = rules.clone();
        if rules.named.is_empty() {
            rules.named.clone_from(&suite.rules);
        }
        rules.level = rules.level.or(suite.level);
        let mut sources = rules.sources()?;
        sources.added.splice(0..0, suite.added.iter().cloned());
        Self::with(rules.load_from(&sources)?, sources.level, suite)
    }

    /// Loads given rules, without plugins.
    fn of(sources: &RuleSources, suite: &Suite) -> Result<Self, Failure> {
        let rules = RulesWithPlugins {
            loaded: sources.load(),
            plugins: None,
        };
        Self::with(rules, sources.level, suite)
    }

    fn with(mut rules: RulesWithPlugins, level: Level, suite: &Suite) -> Result<Self, Failure> {
        let options = EngineOptions {
            rule_matching: RuleMatching::All,
            ..EngineOptions::default()
        };
        let alerts = Kept::default();
        let sources = rules.compile_sources_with(&options, &alerts);
        let RulesWithPlugins {
            mut loaded,
            plugins,
        } = rules;
        let (engine, _plan) = loaded.compile(&options, alerts.clone());
        loaded.usable()?;
        let bench = Self {
            loaded,
            level,
            engine,
            alerts,
            // Without plugins their events are counted only.
            plugins: plugins.unwrap_or_default(),
            sources,
        };
        for test in &suite.tests {
            for expected in &test.expected {
                bench.check_rule(expected)?;
            }
        }
        Ok(bench)
    }

    /// Checks that the rule is evaluated: a test of a rule that is not is a mistake.
    fn check_rule(&self, expected: &Expected) -> Result<(), Failure> {
        let name = &expected.rule;
        let known = self.loaded.ruleset.rule(name);
        if known.is_some_and(|rule| rule.enabled) {
            return Ok(());
        }
        let (what, help) = match known {
            Some(rule) if rule.level() > self.level => (
                "is not enabled",
                format!(
                    "write `level: {}` into the file, or use --level",
                    rule.level()
                ),
            ),
            Some(_) => ("is not enabled", "enable it in the rule file".to_owned()),
            None if self.is_of_unknown_source(name) => (
                "has a source that no loaded plugin has",
                "`-c FILE` names the configuration with its plugin".to_owned(),
            ),
            None => {
                let names = self.loaded.ruleset.rules.iter().map(|rule| &*rule.name);
                let help = match closest(name, names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "`tollgate rules list` shows all".to_owned(),
                };
                ("does not exist", help)
            }
        };
        let problem = Problem::new(&expected.origin, format!("the rule `{name}` {what}"));
        Err(unusable(&problem.help(help)))
    }

    /// Returns true if a rule was left out because no plugin has its source.
    fn is_of_unknown_source(&self, name: &str) -> bool {
        let context = format!("rule {name}");
        let mut problems = self.loaded.diagnostics.iter();
        problems.any(|problem| problem.code == Code::UnknownSource && problem.context == context)
    }

    /// Returns the alerts about the events of a capture, those of plugins included.
    fn alerts_of_capture(&self, path: &Path) -> Result<Vec<Alert>, Failure> {
        let mut of_plugins = self.plugins.recorded(&self.sources)?;
        replay::evaluate_with(path, &self.engine, &mut of_plugins)?;
        of_plugins.complete()?;
        if let (events @ 1.., plugins) = of_plugins.of_others() {
            let message = format!(
                "cannot test with {}: it has {events} events of plugins that the rules do not ask for (numbers: {plugins})",
                path.display()
            );
            return Err(Failure::new(Exit::BadInput, message)
                .help("`-c FILE` names the configuration with the plugins"));
        }
        let mut kept = self.alerts.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *kept))
    }

    /// Returns the differences from what the test expects.
    fn faults(&self, test: &Test) -> Result<Vec<String>, Failure> {
        let alerts = match &test.events {
            Events::Given(given) => self.engine.evaluate_synthetic(given).alerts,
            Events::Capture(path) => self.alerts_of_capture(path)?,
        };
        let mut faults = Vec::new();
        for expected in &test.expected {
            faults.extend(self.fault(test, expected, &alerts));
        }
        let is_expected = |alert: &&Alert| {
            let mut expected = test.expected.iter();
            expected.any(|expected| expected.rule == *alert.rule)
        };
        let mut unexpected: Vec<&Alert> =
            alerts.iter().filter(|alert| !is_expected(alert)).collect();
        unexpected.dedup_by_key(|alert| Arc::clone(&alert.rule));
        faults.extend(unexpected.iter().map(|alert| {
            format!(
                "{}: unexpected alert of `{}`: {}",
                test.origin, alert.rule, alert.message
            )
        }));
        Ok(faults)
    }

    fn fault(&self, test: &Test, expected: &Expected, alerts: &[Alert]) -> Option<String> {
        let of_rule: Vec<&Alert> = alerts
            .iter()
            .filter(|alert| *alert.rule == *expected.rule)
            .collect();
        let at = &expected.origin;
        if of_rule.is_empty() && expected.count != Some(0) {
            return Some(format!(
                "{at}: no alert of `{}`{}",
                expected.rule,
                self.why_not(test, expected)
            ));
        }
        let count = u64::try_from(of_rule.len()).unwrap_or(u64::MAX);
        if let Some(wanted) = expected.count
            && wanted != count
        {
            return Some(format!(
                "{at}: {count} alerts of `{}`, expected {wanted}",
                expected.rule
            ));
        }
        // One alert that matches is enough. If none does, the first difference is reported.
        let mut differences = of_rule.iter().map(|alert| difference(expected, alert));
        let first = differences.next()??;
        if differences.any(|other| other.is_none()) {
            return None;
        }
        Some(format!("{at}: `{}`: {first}", expected.rule))
    }

    fn why_not(&self, test: &Test, expected: &Expected) -> String {
        let Events::Given(given) = &test.events else {
            return String::new();
        };
        let rule = self.loaded.ruleset.rule(&expected.rule);
        let rule = rule.expect("it was checked when the tests were read");
        let clause = Tracer::new(&self.loaded.ruleset, rule).explain_given(given);
        let reasons = clause.reasons();
        let reasons = reasons.iter().map(|reason| {
            format!(
                "\n          {}: {}",
                reason.location,
                explained::sentence(reason)
            )
        });
        format!(", because{}", reasons.collect::<String>())
    }
}

/// Returns the difference between an alert and the expected one, if any.
fn difference(expected: &Expected, alert: &Alert) -> Option<String> {
    let priority = alert.priority.name();
    if let Some(wanted) = &expected.priority
        && !wanted.eq_ignore_ascii_case(priority)
    {
        return Some(format!("the priority is {priority}, expected {wanted}"));
    }
    if let Some(wanted) = &expected.output
        && !alert.message.contains(wanted.as_str())
    {
        return Some(format!(
            "the output does not contain `{wanted}`: {}",
            alert.message
        ));
    }
    expected.fields.iter().find_map(|(name, wanted)| {
        let value = alert.fields.iter().find(|(known, _)| **known == **name);
        match value {
            None => Some(format!("the output has no field `{name}`")),
            Some((_, value)) => {
                let found = explained::shown(value);
                (found != *wanted).then(|| format!("`{name}` is `{found}`, expected `{wanted}`"))
            }
        }
    })
}
