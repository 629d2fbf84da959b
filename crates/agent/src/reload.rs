//! Reloads rules and configuration while the command runs.
//!
//! The filter of the workload cannot be replaced: rules that it covers are adopted, and others are
//! refused by name. After any error the current rules stay in force, and the error is reported.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capture::notify::RulesHandle;
use config::Config;
use config::rule_files::Loaded;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::{EngineKind, Plan};
use outputs::{Dispatcher, Internal, Prepared, QueueAccount};
use rules::plan::UncoveredRule;
use rules::{AlertValue, Engine, EngineOptions, Priority, Recorder};

use super::bundles::{BundleFolder, BundleRecord};
use super::engine_options;
use super::engines::plan_for;
use super::plugins::Running;
use super::self_report::RulesRecord;
use super::servers::{self, ServerSet};
use super::sink::DeferredSink;
use super::watched_files::WatchedFiles;
use crate::observer::AlertObserver;
use crate::totals::{self, RuleTotal};
use crate::{digest, journal};

/// Callback that reads the configuration again.
pub(super) type ConfigSource = Box<dyn Fn() -> Result<Config, Failure> + Send + Sync>;

/// Everything that loading rules requires.
pub(super) struct Reloader {
    pub(super) config: ConfigSource,
    /// The configuration in force. Locked while another one is loaded.
    pub(super) settings: Mutex<Config>,
    /// The engine that executes the plan.
    pub(super) engine: EngineKind,
    /// The plan that the installed filter was compiled from.
    pub(super) installed: Plan,
    pub(super) sink: DeferredSink,
    pub(super) recorder: Option<Arc<dyn Recorder>>,
    pub(super) rulings: RulesHandle<Engine>,
    pub(super) matched: Arc<MatchCounts>,
    /// The rules in force, as reported.
    pub(super) record: Arc<RulesRecord>,
    /// Sources of plugins, which rules are loaded for as well.
    pub(super) plugins: Running,
    /// The bundle in force, as reported.
    pub(super) bundle: BundleRecord,
    pub(super) dispatcher: Dispatcher,
    pub(super) account: Arc<dyn QueueAccount>,
    pub(super) reception: Arc<ServerSet>,
    /// Who gets the alerts beside the outputs.
    pub(super) observer: Option<AlertObserver>,
    pub(super) quiet: bool,
}

impl Reloader {
    /// Applies the current configuration files: rules, outputs and servers, all or nothing.
    pub(super) fn reload(&self) {
        match self.try_reload() {
            Ok(()) if journal::is_falcos() => {
                let text = "SIGHUP received, restarting: rules and configuration are read again";
                journal::say(Priority::Informational, text);
            }
            Ok(()) => {}
            Err(failure) => {
                let cause = failure.render_as("").trim_end().replace('\n', " ");
                self.dispatcher.emit_internal_once(not_loaded(&cause));
            }
        }
    }

    /// Like [`Reloader::reload`], for a caller that reports the failure.
    pub(super) fn try_reload(&self) -> Result<(), Failure> {
        let mut settings = self.settings();
        let (count, refused) = self.load(&mut settings)?;
        self.announce(count, &refused);
        Ok(())
    }

    /// Returns the number of enabled rules in force.
    pub(super) fn rule_count(&self) -> u64 {
        self.rulings.evaluator().matches().count() as u64
    }

    /// Returns the folder of bundles, if this agent takes bundles.
    pub(super) fn bundle_folder(&self) -> Result<Option<BundleFolder>, Failure> {
        BundleFolder::of(&self.settings().outputs.collector)
    }

    /// Returns the files that the current configuration and rules were read from.
    pub(super) fn watched(&self) -> WatchedFiles {
        WatchedFiles::of(&self.settings())
    }

    fn settings(&self) -> MutexGuard<'_, Config> {
        // The value is replaced as a whole.
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, settings: &mut Config) -> Result<(usize, Vec<UncoveredRule>), Failure> {
        let config = (self.config)()?;
        let environment = self.plugins.environment();
        let mut loaded = config.rule_sources().load_with(&environment);
        let idle: Vec<_> = loaded.select(&config.rules);
        for selection in idle {
            journal::warn(&format!("warning: {}", selection.complaint()));
        }
        let options = engine_options(&config, self.recorder.clone());
        let served = match self.engine {
            EngineKind::Ebpf | EngineKind::Scap | EngineKind::Nodriver => {
                all(&mut loaded, &options, &self.sink)?
            }
            // Sandbox sessions keep the configuration that they were started with.
            EngineKind::Notify | EngineKind::Ptrace | EngineKind::Gvisor => {
                served(&mut loaded, &options, &self.sink, &self.installed)?
            }
        };
        let of_plugins = self.plugins.compile(&mut loaded, &options, &self.sink);
        loaded.usable()?;
        log_rules(&loaded);
        let count = served.evaluator.matches().count();
        let digest = digest::of_rules(&loaded.files, &config.rules);
        let outputs = self.outputs(settings, &config)?;
        if settings.has_other_servers(&config) {
            self.reception.exchange(settings, &config)?;
        }
        if let Some(outputs) = outputs {
            self.exchange(outputs)?;
        }
        self.matched.retire(self.matched.in_force());
        let plan = plan_for(self.engine, served.plan);
        let paths: Vec<_> = served.evaluator.paths().into_iter().collect();
        self.rulings
            .replace(Arc::new(served.evaluator), &plan, &paths);
        self.matched.replace_of_plugins(&of_plugins);
        self.plugins.replace(of_plugins);
        self.record.replace(digest, count, served.refused.len());
        if let Some(problem) = self.bundle.renew(&config) {
            journal::warn(&format!("warning: the last bundle is not used: {problem}"));
        }
        self.dispatcher.report_again();
        if settings.log != config.log {
            journal::reopen(config.log, config.time_format_iso_8601);
        }
        let left = settings.keep(config);
        if !left.is_empty() {
            self.dispatcher.emit_internal_once(Internal {
                rule: "Tollgate internal: settings not taken over",
                priority: Priority::Warning,
                message: format!(
                    "settings have changed that only a restart puts into force ({})",
                    left.join(", ")
                ),
                fields: vec![("tollgate.settings", AlertValue::Text(left.join(", ")))],
            });
        }
        Ok((count, served.refused))
    }

    /// Opens the outputs of a new configuration if they differ. A mistake changes nothing.
    fn outputs(&self, old: &Config, new: &Config) -> Result<Option<Prepared>, Failure> {
        if !old.has_other_outputs(new) {
            return Ok(None);
        }
        let further = servers::channel(new, self.reception.alerts());
        let observer = self.observer.as_ref().map(AlertObserver::channel);
        let further = further.into_iter().chain(observer);
        let prepared = super::outputs(new, self.quiet, further)?;
        Ok(Some(prepared.accounting(Arc::clone(&self.account))))
    }

    fn exchange(&self, outputs: Prepared) -> Result<(), Failure> {
        self.dispatcher
            .replace(outputs)
            .map_err(|error| Failure::from_error(Exit::Unsupported, &error))
    }

    /// Reports which rules are in force.
    pub(super) fn announce(&self, count: usize, refused: &[UncoveredRule]) {
        let noun = if count == 1 { "rule" } else { "rules" };
        self.dispatcher.emit_internal_once(Internal {
            rule: "Tollgate internal: rules loaded",
            priority: Priority::Notice,
            message: format!("{count} {noun} in force, {} refused", refused.len()),
            fields: vec![
                ("tollgate.rules", AlertValue::Uint(count as u64)),
                ("tollgate.refused", AlertValue::Uint(refused.len() as u64)),
            ],
        });
        for UncoveredRule { rule, calls } in refused {
            let calls = calls.iter().copied().collect::<Vec<_>>().join(", ");
            self.dispatcher.emit_internal_once(Internal {
                rule: "Tollgate internal: rule refused",
                priority: Priority::Error,
                message: format!(
                    "rule {rule} needs calls that the filter of the running command lets pass \
                     ({calls}); it comes into force when the command is started again"
                ),
                fields: vec![
                    ("tollgate.rule", AlertValue::Text(rule.to_string())),
                    ("tollgate.calls", AlertValue::Text(calls)),
                ],
            });
        }
    }
}

/// Returns the alert that rules or configuration were not loaded again: for Falco, its own, which is in the log, too.
fn not_loaded(cause: &str) -> Internal {
    let message = format!("the old rules remain in force: {cause}");
    if !journal::is_falcos() {
        return Internal {
            rule: "Tollgate internal: rules not loaded",
            priority: Priority::Error,
            message,
            fields: Vec::new(),
        };
    }
    let rule = "Falco internal: hot restart failure";
    let message = format!("{rule}: {message}");
    journal::say(Priority::Critical, &message);
    Internal {
        rule,
        priority: Priority::Critical,
        message,
        fields: Vec::new(),
    }
}

/// Writes the files of new rules and Falco's warnings of them to the log, as at Falco's start.
fn log_rules(loaded: &Loaded) {
    if !journal::is_falcos() {
        return;
    }
    journal::say(Priority::Informational, "Loading rules from:");
    for file in &loaded.files {
        journal::say(Priority::Informational, &format!("   {}", file.name));
    }
    let warnings = loaded.diagnostics.iter();
    let mut warnings = warnings
        .filter(|it| !it.is_error() && it.code.is_falcos())
        .peekable();
    if warnings.peek().is_some() {
        journal::warn(loaded.render(warnings).trim_end());
    }
}

/// Rules that the installed filter covers.
pub(super) struct FilteredRules {
    pub(super) evaluator: Engine,
    pub(super) plan: Plan,
    pub(super) refused: Vec<UncoveredRule>,
}

/// Compiles those rules that the filter of `installed` covers.
pub(super) fn served(
    loaded: &mut Loaded,
    options: &EngineOptions,
    sink: &DeferredSink,
    installed: &Plan,
) -> Result<FilteredRules, Failure> {
    let (mut evaluator, mut plan) = loaded.compile(options, sink.clone());
    loaded.usable()?;
    let refused = evaluator.unserved(installed);
    if !refused.is_empty() {
        let is_refused = |name: &str| refused.iter().any(|rule| &*rule.rule == name);
        loaded.ruleset.disable(is_refused);
        (evaluator, plan) = loaded.compile(options, sink.clone());
    }
    Ok(FilteredRules {
        evaluator,
        plan,
        refused,
    })
}

/// Compiles all rules, for an engine whose filter can be replaced.
fn all(
    loaded: &mut Loaded,
    options: &EngineOptions,
    sink: &DeferredSink,
) -> Result<FilteredRules, Failure> {
    let (evaluator, _) = loaded.compile(options, sink.clone());
    loaded.usable()?;
    let plan = evaluator.plan_for_results();
    Ok(FilteredRules {
        evaluator,
        plan,
        refused: Vec::new(),
    })
}

/// Match counts of rules, summed over all rule sets.
pub(super) struct MatchCounts {
    rulings: RulesHandle<Engine>,
    /// The rules of plugins' sources.
    of_plugins: Mutex<Vec<Arc<Engine>>>,
    retired: Mutex<Retired>,
}

#[derive(Default)]
struct Retired {
    /// Totals of rule sets that are no longer used.
    totals: Vec<RuleTotal>,
    /// The previous rule sets, which may still be evaluating an event.
    last: Vec<Arc<Engine>>,
}

impl MatchCounts {
    pub(super) fn new(rulings: RulesHandle<Engine>, of_plugins: &[(String, Arc<Engine>)]) -> Self {
        Self {
            rulings,
            of_plugins: Mutex::new(without_names(of_plugins)),
            retired: Mutex::default(),
        }
    }

    /// Returns the rules in force: those of system calls, then those of plugins' sources.
    pub(super) fn in_force(&self) -> Vec<Arc<Engine>> {
        let of_plugins = self.of_plugins.lock();
        let of_plugins = of_plugins.unwrap_or_else(PoisonError::into_inner);
        let of_syscalls = self.rulings.evaluator();
        std::iter::once(of_syscalls)
            .chain(of_plugins.iter().cloned())
            .collect()
    }

    pub(super) fn total(&self) -> u64 {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let before: u64 = retired.totals.iter().map(|total| total.matches).sum();
        let in_force = self.in_force();
        let engines = retired.last.iter().chain(&in_force);
        before + engines.map(|engine| matches(engine)).sum::<u64>()
    }

    /// Returns the totals of all rules that have matched.
    pub(super) fn by_rule(&self) -> Vec<RuleTotal> {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = retired.totals.clone();
        for engine in retired.last.iter().chain(&self.in_force()) {
            totals::add(&mut totals, engine);
        }
        totals
    }

    /// Keeps the counts of rules that others are about to replace.
    fn retire(&self, engines: Vec<Arc<Engine>>) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        for last in std::mem::replace(&mut retired.last, engines) {
            totals::add(&mut retired.totals, &last);
        }
    }

    /// Counts the matches of other rules of plugins' sources from now on.
    fn replace_of_plugins(&self, engines: &[(String, Arc<Engine>)]) {
        let mut of_plugins = self
            .of_plugins
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *of_plugins = without_names(engines);
    }
}

fn without_names(engines: &[(String, Arc<Engine>)]) -> Vec<Arc<Engine>> {
    let engines = engines.iter().map(|(_, engine)| Arc::clone(engine));
    engines.collect()
}

fn matches(engine: &Engine) -> u64 {
    engine.matches().map(|(_, matches)| matches).sum()
}
