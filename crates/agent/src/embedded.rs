//! A detector in a program that has other work, too, such as the agent of a Kubernetes node. Its rules and settings are texts
//! that the program gives, and can replace at any time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use config::rule_files::{Loaded, NoSink};
use config::{FragmentProblem, Request};
use diagnostics::failure::Failure;
use event::EngineKind;
use outputs::Dispatcher;
use supervisor::attached::{self, Ends};
use supervisor::{Services, Source};
use sys::signal::{MaskChange, SignalSet, change_mask};

use crate::blueprint::{InForce, Origin, blueprint};
use crate::bundles::said;
use crate::given::GivenHandle;
pub use crate::given::{GivenFolders, GivenSources};
use crate::given_settings::{REFUSED, file_problems};
use crate::metrics::Counters;
use crate::options::{Detection, Interception};
use crate::reload::Reloader;
use crate::services::AgentRuntime;
use crate::settings::{configuration, engine_options};

/// A problem with given sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceProblem {
    /// Name of the text; `None` if none can be named.
    pub text: Option<String>,
    /// The problem, with its place.
    pub message: String,
}

/// Compiles sources without putting them in force.
///
/// # Errors
///
/// What is wrong with the settings, or else with the rules.
pub fn check(detection: &Detection, sources: &GivenSources) -> Result<(), Vec<SourceProblem>> {
    let detection = Detection {
        given: Some(Arc::new(GivenHandle::new(sources.clone()))),
        ..detection.clone()
    };
    let request = Request {
        layers: &detection.layers,
        file: detection.config.as_deref(),
        fragments: &sources.settings,
        options: &detection.options,
        mode: detection.manner,
    };
    let problems = request.fragment_problems(&REFUSED);
    if !problems.is_empty() {
        return Err(problems.into_iter().map(of_settings).collect());
    }
    let problems = of_files(&request, &detection);
    if !problems.is_empty() {
        return Err(problems);
    }
    let whole = |failure: Failure| {
        vec![SourceProblem {
            text: None,
            message: said(&failure),
        }]
    };
    let (config, _) = configuration(&detection, &Interception::default()).map_err(whole)?;
    let mut loaded = config.rule_sources().load();
    loaded.select(&config.rules);
    loaded.compile(&engine_options(&config, None), NoSink);
    let problems = of_rules(&loaded, sources);
    match problems.is_empty() {
        true => loaded.usable().map_err(whole),
        false => Err(problems),
    }
}

fn of_settings(problem: FragmentProblem) -> SourceProblem {
    SourceProblem {
        text: problem.fragment,
        message: problem.message,
    }
}

/// Problems with files that the settings name, each with the text that has named it.
fn of_files(request: &Request<'_>, detection: &Detection) -> Vec<SourceProblem> {
    // Settings that cannot be loaded are found before.
    let Ok(effective) = request.load() else {
        return Vec::new();
    };
    let problems = file_problems(&effective.config, detection.given_folders.as_ref());
    let problems = problems.into_iter().map(|problem| SourceProblem {
        text: request.fragment_with(problem.group).map(str::to_owned),
        message: problem.message,
    });
    problems.collect()
}

fn of_rules(loaded: &Loaded, sources: &GivenSources) -> Vec<SourceProblem> {
    let names: BTreeSet<&str> = sources.rules.iter().map(|(name, _)| &**name).collect();
    let errors = loaded.diagnostics.iter().filter(|one| one.is_error());
    let problems = errors.map(|error| {
        let file = &*error.location.file;
        let message = match &error.help {
            Some(help) => format!("{error} ({help})"),
            None => error.to_string(),
        };
        SourceProblem {
            text: names.contains(file).then(|| file.to_owned()),
            message,
        }
    });
    problems.collect()
}

/// A running detector. Belongs to the thread that has started it.
pub struct Embedded {
    runtime: Box<AgentRuntime>,
    ends: Ends,
    detector: EmbeddedDetector,
}

/// What other threads may do with a running detector.
#[derive(Clone)]
pub struct EmbeddedDetector {
    given: Arc<GivenHandle>,
    detection: Arc<Detection>,
    reloader: Arc<Reloader>,
    dispatcher: Dispatcher,
    counters: Counters,
}

/// Figures of a detector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Rules in force.
    pub rules: u64,
    /// Alerts so far.
    pub alerts: u64,
    /// Events that were lost.
    pub lost: u64,
}

/// Watches all processes of the host by the engine `ebpf`.
///
/// Preconditions: the process has one thread. Afterwards all its signals are blocked; [`Embedded::wait`] takes those that ask
/// for the end. After an error they are as they were.
///
/// # Errors
///
/// The sources cannot be used, or the engine does not work here.
pub fn start(mut detection: Detection, sources: GivenSources) -> Result<Embedded, Failure> {
    let given = Arc::new(GivenHandle::new(sources));
    detection.given = Some(Arc::clone(&given));
    let (in_force, origin) = (InForce::nothing("node"), Origin::Files);
    let made = blueprint(
        detection.clone(),
        Interception::default(),
        EngineKind::Ebpf,
        in_force,
        origin,
        None,
    )?;
    let unable = |error: anyhow::Error| {
        Failure::new(
            diagnostics::exit::Exit::Unsupported,
            format!("cannot start watching: {error:#}"),
        )
        .help("`tollgate doctor` shows what works here")
    };
    let started = or_unblocked(|| {
        let (listening, ends) = attached::begin(Source::Host)?;
        Ok((made.start(listening)?, ends))
    });
    let (runtime, ends) = started.map_err(unable)?;
    let detector = EmbeddedDetector {
        given,
        detection: Arc::new(detection),
        reloader: runtime.reloader(),
        dispatcher: runtime.dispatcher(),
        counters: runtime.counters(),
    };
    Ok(Embedded {
        runtime: Box::new(runtime),
        ends,
        detector,
    })
}

/// Starts what blocks signals. If it fails, nobody waits for these, so they are as before: a program that goes on without an
/// engine has to end when it is asked to.
fn or_unblocked<T>(start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let before = change_mask(MaskChange::Block, SignalSet::of(&[]))?;
    start().inspect_err(|_| {
        // It was the mask of this thread.
        let _ = change_mask(MaskChange::Set, before);
    })
}

impl Embedded {
    /// The part for other threads.
    #[must_use]
    pub fn detector(&self) -> EmbeddedDetector {
        self.detector.clone()
    }

    /// Waits for a signal that asks for the end, at most so long; true if there was one.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        self.ends.wait(limit)
    }

    /// Returns true if the engine has ended by itself: too many events were lost.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.runtime.has_ended()
    }

    /// Delivers what is left, and ends.
    pub fn finish(self) {
        self.runtime.let_go();
        self.runtime.finish();
    }
}

impl EmbeddedDetector {
    /// Compiles sources without putting them in force.
    ///
    /// # Errors
    ///
    /// As [`check`].
    pub fn check(&self, sources: &GivenSources) -> Result<(), Vec<SourceProblem>> {
        check(&self.detection, sources)
    }

    /// Puts sources in force: rules, outputs and servers, all or nothing.
    ///
    /// # Errors
    ///
    /// Why they are not in force; then what was in force before still is.
    pub fn replace(&self, sources: GivenSources) -> Result<(), String> {
        let before = self.given.replace(Arc::new(sources));
        self.reloader.try_reload().map_err(|failure| {
            self.given.replace(before);
            said(&failure)
        })
    }

    /// What it counts.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            rules: self.reloader.rule_count(),
            alerts: self.dispatcher.counters().emitted,
            lost: (self.counters)().drops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, condition: &str) -> String {
        format!(
            "- {{rule: {name}, desc: d, condition: {condition}, output: o, priority: NOTICE}}\n"
        )
    }

    fn given(rules: &[(&str, String)], settings: &[(&str, &str)]) -> GivenSources {
        let owned = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        GivenSources {
            without_builtin: false,
            rules: rules.iter().map(|(name, text)| owned(name, text)).collect(),
            settings: settings
                .iter()
                .map(|(name, text)| owned(name, text))
                .collect(),
        }
    }

    /// What is wrong with texts: nothing if they are accepted.
    fn problems(sources: &GivenSources) -> Vec<SourceProblem> {
        match check(&Detection::default(), sources) {
            Ok(()) => Vec::new(),
            Err(problems) => problems,
        }
    }

    #[test]
    fn given_rules_use_macros_of_the_builtin_ones_unless_these_are_left_out() {
        let mut sources = given(&[("one", rule("One", "spawned_process"))], &[]);
        assert_eq!(problems(&sources), []);
        sources.without_builtin = true;
        let problems = problems(&sources);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].text.as_deref(), Some("one"));
        assert!(
            problems[0].message.contains("spawned_process"),
            "{problems:?}"
        );
    }

    #[test]
    fn signals_are_blocked_by_a_start_unless_it_fails() {
        let mask = || change_mask(MaskChange::Block, SignalSet::of(&[])).expect("it is readable");
        let ends = [abi::Signal::SIGTERM.0, abi::Signal::SIGINT.0];
        for fails in [true, false] {
            // A mask belongs to a thread.
            let blocked = std::thread::spawn(move || {
                let _ = or_unblocked(|| {
                    let _orders = supervisor::signals::orders()?;
                    change_mask(MaskChange::Block, SignalSet::of(&ends))?;
                    anyhow::ensure!(!fails, "no engine");
                    Ok(())
                });
                ends.map(|signal| mask().contains(signal))
            });
            let blocked = blocked.join().expect("it does not panic");
            assert_eq!(blocked, [!fails; 2]);
        }
    }

    #[test]
    fn each_problem_names_its_text() {
        let good = ("good", rule("Good", "evt.type = open"));
        let bad = ("bad", rule("Bad", "evt.typo = open"));
        let found = problems(&given(&[good.clone(), bad], &[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].text.as_deref(), Some("bad"));
        for (settings, expected) in [
            ("json_output: perhaps\n", "s:1:14"),
            (
                "program_output: {enabled: true, program: id}\n",
                "starts no program on the node",
            ),
            ("outputs: {rte: 1}\n", "unknown key `outputs.rte`"),
        ] {
            let found = problems(&given(
                std::slice::from_ref(&good),
                &[("base", "json_output: true\n"), ("s", settings)],
            ));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].text.as_deref(), Some("s"), "{found:?}");
            assert!(found[0].message.contains(expected), "{found:?}");
        }
    }
}
