//! Converts configuration and options to settings of filters, engines, recordings and outputs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abi::Arch;
use capture::notify::VerifyOptions;
use capture::ptrace;
use config::rule_files::{Loaded, is_builtin};
use config::{Config, Effective, IoUring, Places, Request, Verify};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::shell;
use event::EngineKind;
use outputs::{
    Channel, Dispatcher, Format, JsonParts, Prepared, QUEUE_CAPACITY, QueueCapacity, Settings,
    TimeFormat,
};
use policy::compile::seccomp::Profile;
use rules::{Engine, EngineOptions, Level, Recorder};
use seccomp::{Denials, FilterOptions, FilterProgram, SpecialCall};

use crate::bundles::{self, BundleFolder};
use crate::given_settings::why_unusable;
use crate::options::{Detection, Interception};
use crate::recording::{self, RecordOptions};
use crate::{channels, journal, responses};

/// Returns the configuration file with `-o` and the other options applied.
pub(super) fn configuration(
    detection: &Detection,
    interception: &Interception,
) -> Result<(Config, Vec<String>), Failure> {
    let own = configuration_with(detection, interception, None)?;
    let Some(folder) = BundleFolder::of(&own.0.outputs.collector)? else {
        return Ok(own);
    };
    let with =
        |content: &bundle::Content| configuration_with(detection, interception, Some(content));
    match last_usable(&folder, with) {
        Ok(None) => Ok(own),
        Ok(Some(with_bundle)) => Ok(with_bundle),
        Err(problem) => {
            // As without a collector: the agent's own rules are in force, and the collector hears why. A bundle must not
            // keep an agent from starting, or one that only another build can load would leave the host unwatched.
            let (config, mut warnings) = own;
            warnings.push(format!("the last bundle is not used: {problem}"));
            Ok((config, warnings))
        }
    }
}

/// Returns the configuration with the last good bundle, `None` if there was none, or why the bundle is not used.
fn last_usable(
    folder: &BundleFolder,
    with: impl Fn(&bundle::Content) -> Result<(Config, Vec<String>), Failure>,
) -> Result<Option<(Config, Vec<String>)>, String> {
    let Some(last) = folder.last_good()? else {
        return Ok(None);
    };
    let made = with(&last.content).map_err(|failure| bundles::said(&failure))?;
    bundles::check(&made.0).map_err(|failure| bundles::said(&failure))?;
    Ok(Some(made))
}

/// Returns the configuration with what a bundle says. Options of the command line go before settings of a bundle.
pub(super) fn configuration_with(
    detection: &Detection,
    interception: &Interception,
    bundle: Option<&bundle::Content>,
) -> Result<(Config, Vec<String>), Failure> {
    let settings = bundle.map_or(&[][..], |bundle| &bundle.settings);
    let options = [settings, &detection.options].concat();
    let given = detection.given.as_ref().map(|given| given.sources());
    let request = Request {
        layers: &detection.layers,
        file: detection.config.as_deref(),
        fragments: given.as_ref().map_or(&[][..], |given| &given.settings),
        options: &options,
        mode: detection.manner,
    };
    let Effective {
        mut config,
        warnings,
        ..
    } = request.load()?;
    if given.is_some()
        && let Some(why) = why_unusable(&config, detection.given_folders.as_ref())
    {
        return Err(Failure::new(Exit::BadInput, why)
            .help("take it out of the texts that the program is given"));
    }
    config.rules_folder.clone_from(&detection.rules_folder);
    config.added_rules.clone_from(&detection.add_rules);
    config.json_output |= detection.json || detection.stream.is_json();
    detection
        .stream
        .apply(&mut config.outputs.stdout, detection.manner);
    if !detection.rules.is_empty() {
        config.rules_files.clone_from(&detection.rules);
    }
    if let Some(given) = &given {
        config.given_rules.clone_from(&given.rules);
    }
    if detection.without_rules || given.is_some_and(|given| given.without_builtin) {
        // A file without rules, which also applies to reloads.
        config.rules_files = vec!["/dev/null".into()];
    }
    let files = bundle.map_or(&[][..], |bundle| &bundle.rules);
    if !detection.without_rules {
        let file = |file: &bundle::File| (file.name.clone(), file.text.clone());
        config.bundled_rules = files.iter().map(file).collect();
    }
    config.verify = interception.verify.unwrap_or(config.verify);
    config.io_uring = interception.io_uring.unwrap_or(config.io_uring);
    (config.responses.may_deny, config.responses.may_capture) = responses::needs(&config);
    Ok((config, warnings))
}

pub(super) fn verify_options(config: &Config, engine: EngineKind) -> VerifyOptions {
    VerifyOptions {
        verify: match config.verify {
            // A sandbox's memory cannot be read again, so it does not matter who may change it.
            _ if engine == EngineKind::Gvisor => capture::notify::Verify::Off,
            Verify::Off => capture::notify::Verify::Off,
            Verify::Sampled => capture::notify::Verify::Sampled,
            Verify::Always => capture::notify::Verify::Always,
        },
        deny_rings: config.io_uring == IoUring::Deny,
        may_deny: config.responses.may_deny && responses::holds_callers(engine),
    }
}

pub(super) fn record_options(detection: &Detection) -> Option<RecordOptions> {
    let rotation = &detection.rotation;
    Some(RecordOptions {
        path: detection.write.clone()?,
        rotation: recording::Rotation {
            bytes: rotation.write_size.map(|mib| mib << 20),
            time: rotation.write_time.map(Duration::from_secs),
            events: rotation.write_events,
            keep: rotation.write_keep,
        },
    })
}

/// Returns the options for compiling the rules of `config`. `recorder` receives each recorded
/// event.
pub fn engine_options(config: &Config, recorder: Option<Arc<dyn Recorder>>) -> EngineOptions {
    EngineOptions {
        recorder,
        profile: config.metrics.enabled.then_some(rules::profile::SAMPLED),
        priority: config.priority,
        rule_matching: config.rule_matching,
        append_output: config.append_output.clone(),
        context: config.outputs.stdout.shows_context(config.json_output),
        static_fields: config
            .static_fields
            .iter()
            .map(|(name, text)| (name.as_str().into(), text.clone()))
            .collect(),
        ..EngineOptions::default()
    }
}

/// Returns a one-line summary of warnings about rules, with the command that shows them all.
pub(super) fn summary_of_warnings(loaded: &Loaded) -> Option<String> {
    let warnings = || loaded.diagnostics.iter().filter(|it| !it.is_error());
    let count = warnings().count();
    let noun = match count {
        0 => return None,
        1 => "warning",
        _ => "warnings",
    };
    let mut command = "tollgate rules check".to_owned();
    let enabled = loaded.ruleset.rules.iter().filter(|rule| rule.enabled);
    let level = enabled.map(|rule| Level::of_tags(&rule.tags)).max();
    if let Some(level) = level.filter(|level| *level > Level::default()) {
        command += &format!(" --level {level}");
    }
    // All files, because rules use lists and macros of others; not those that are read anyway, nor those that a bundle or
    // a program gives, which have no path.
    let has_builtin = loaded.files.iter().any(|file| is_builtin(&file.name));
    let option = if has_builtin { "--add-rules " } else { "" };
    let folder = Places::of_user().ok().and_then(|places| places.rules);
    for file in &loaded.files {
        let path = Path::new(&*file.name);
        let is_read = has_builtin && path.parent() == folder.as_deref();
        if path.exists() && !is_read {
            command += &format!(" {option}{}", shell::quoted(&file.name));
        }
    }
    Some(format!(
        "{count} {noun} about the rules; `{command}` shows them"
    ))
}

/// Returns warnings about the files that the user named whose rules are off because of their levels.
pub(super) fn level_warnings(loaded: &Loaded, config: &Config) -> Vec<String> {
    let named = config.rules_files.iter().chain(&config.added_rules);
    let warnings = loaded.level_warnings(named).into_iter();
    warnings
        .map(|warning| format!("warning: {warning}"))
        .collect()
}

/// Returns a warning if a forensic rule is on, and no output takes its alerts, which no counter then shows.
pub(super) fn unsent_forensic(config: &Config, rules: &Engine) -> Option<String> {
    let outputs = &config.outputs;
    let is_taken = config.ignores_levels || outputs.stdout.enabled || outputs.file.enabled;
    let mut forensic = rules
        .rule_matches()
        .filter(|rule| Level::of_tags(rule.tags) == Level::Forensic);
    let rule = forensic.next().filter(|_| !is_taken)?.rule;
    Some(format!(
        "warning: alerts of level forensic, such as those of `{rule}`, go nowhere: only --log, stdout_output and \
         file_output take them"
    ))
}

/// Prints warnings about levels of rules, and the summary of the other ones about rules.
pub fn warn(loaded: &Loaded, config: &Config, rules: &Engine) {
    let levels = level_warnings(loaded, config);
    for warning in levels.iter().chain(&unsent_forensic(config, rules)) {
        journal::warn(warning);
    }
    if let Some(summary) = summary_of_warnings(loaded) {
        journal::warn(&summary);
    }
}

/// Creates the error for a machine without a table of calls.
pub fn unknown_machine() -> Failure {
    Failure::new(
        Exit::Unsupported,
        format!("cannot watch programs on {}", std::env::consts::ARCH),
    )
    .help("use an x86-64 or aarch64 host")
}

pub(super) fn compile(
    plan: &event::Plan,
    profile: &Profile,
    engine: EngineKind,
    denials: Denials,
    config: &Config,
) -> Result<FilterProgram, Failure> {
    let native = Arch::native().ok_or_else(unknown_machine)?;
    let io_uring = match config.io_uring {
        IoUring::Deny => SpecialCall::RefuseUnlessRule,
        IoUring::Allow => SpecialCall::AsPlanned,
    };
    let compiled = match engine {
        EngineKind::Notify => {
            let options = FilterOptions {
                io_uring,
                denials,
                ..FilterOptions::notify(native)
            };
            seccomp::compile_with(plan, profile, &options)
        }
        // The engine ebpf needs no filter for itself.
        EngineKind::Ebpf | EngineKind::Gvisor | EngineKind::Scap | EngineKind::Nodriver => {
            seccomp::compile_with(
                &event::Plan::default(),
                profile,
                &FilterOptions::confine(native),
            )
        }
        EngineKind::Ptrace => {
            let options = FilterOptions {
                io_uring,
                ..ptrace::filter_options(native)
            };
            seccomp::compile_with(plan, profile, &options)
        }
    };
    compiled.map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("simplify the rule; `tollgate rules explain` shows the calls that it needs")
    })
}

/// Opens the channels and prepares the dispatcher, without threads.
pub fn outputs(
    config: &Config,
    quiet: bool,
    further: impl IntoIterator<Item = Box<dyn Channel>>,
) -> Result<Prepared, Failure> {
    let mut channels = channels::open(config)?;
    channels.extend(further);
    Ok(Dispatcher::prepare(settings(config, quiet), channels))
}

fn settings(config: &Config, quiet: bool) -> Settings {
    let on_problem = move |problem: &str| {
        if !quiet {
            journal::warn(problem);
        }
    };
    Settings {
        format: format(
            config.json_output,
            config.json_parts,
            config.time_format_iso_8601,
        ),
        buffered: config.buffered_outputs,
        capacity: match config.queue_capacity {
            Some(alerts) => QueueCapacity {
                alerts,
                ..QUEUE_CAPACITY
            },
            None => QUEUE_CAPACITY,
        },
        throttle: config.throttle,
        ignores_levels: config.ignores_levels,
        log: (journal::is_falcos() && !config.tollgate_internal).then(|| {
            let log = |alert: &rules::Alert| {
                // The message may have names that the workload has chosen.
                let message = outputs::visible(&alert.message);
                journal::write(alert.priority, &format!("{}: {message}", alert.rule))
            };
            Arc::new(log) as outputs::OnInternal
        }),
        ..Settings::new(
            decoder::host::host_name().into(),
            std::sync::Arc::new(on_problem),
        )
    }
}

fn format(json: bool, parts: JsonParts, iso_8601: bool) -> Format {
    let time = if iso_8601 {
        TimeFormat::Iso8601
    } else {
        TimeFormat::Clock
    };
    if json {
        Format::Json(parts, time)
    } else {
        Format::Text(time)
    }
}

#[cfg(test)]
mod tests {
    use config::rule_files::{self, NoSink, RuleFile, RuleSources};

    use super::*;

    #[test]
    fn the_command_that_shows_warnings_has_the_options_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my rules.yaml");
        std::fs::write(&path, "- list: unused words\n  items: []\n  odd: 1\n").unwrap();
        let shown = |sources: &RuleSources| {
            let mut loaded = sources.load();
            loaded.compile(&EngineOptions::default(), NoSink);
            // No warning is an empty text, which the test refuses.
            summary_of_warnings(&loaded).unwrap_or_default()
        };
        let file = format!("'{}'", path.display());
        let named = RuleSources {
            named: vec![path.clone()],
            ..RuleSources::default()
        };
        let summary = shown(&named);
        assert!(
            summary.contains(&format!("`tollgate rules check {file}` ")),
            "{summary}"
        );
        let added = RuleSources {
            added: vec![path],
            level: Level::Hunting,
            ..RuleSources::default()
        };
        let summary = shown(&added);
        let command = format!("`tollgate rules check --level hunting --add-rules {file}` ");
        assert!(summary.contains(&command), "{summary}");
    }

    #[test]
    fn forensic_rules_without_an_output_that_takes_them_are_warned_of() {
        let rule = "- {rule: R, desc: d, condition: evt.type = open, output: o, priority: INFO, tags: [TAG]}\n";
        let warns = |tag: &str, change: fn(&mut Config)| {
            let file = RuleFile {
                name: "own.yaml".into(),
                text: Ok(rule.replace("TAG", tag)),
            };
            let mut loaded = rule_files::load_read(vec![file]);
            let (engine, _) = loaded.compile(&EngineOptions::default(), NoSink);
            let mut config = Config::default();
            config.outputs.stdout.enabled = false;
            config.outputs.http.enabled = true;
            change(&mut config);
            unsent_forensic(&config, &engine).is_some()
        };
        assert!(warns("level_forensic", |_| ()));
        assert!(!warns("level_hunting", |_| ()));
        assert!(!warns("level_forensic", |config| config
            .outputs
            .stdout
            .enabled = true));
        assert!(!warns("level_forensic", |config| config
            .outputs
            .file
            .enabled = true));
        assert!(!warns("level_forensic", |config| config.ignores_levels = true));
    }

    #[test]
    fn outputs_ignore_levels_where_the_configuration_does() {
        for ignores_levels in [false, true] {
            let config = Config {
                ignores_levels,
                ..Config::default()
            };
            assert_eq!(settings(&config, true).ignores_levels, ignores_levels);
        }
    }
}
