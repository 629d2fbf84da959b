//! Threads of a plugin call the handler of asynchronous events until the very end of the process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use plugin::protocol::{Missed, PluginSpec, Reply, Wanted, WantedArgument, WantedField};
use plugin::{Helper, HelperError, Limits};

fn compiled(folder: &Path, name: &str, options: &[&str], init_config: &str) -> PluginSpec {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let library = folder.join(name);
    let compiled = Command::new("gcc")
        .args(["-O1", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(fixtures.join(format!("{name}.c")))
        .args(options)
        .output()
        .expect("gcc is installed");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    PluginSpec {
        name: name.to_owned(),
        library: library.display().to_string(),
        init_config: init_config.to_owned(),
        open_params: "4".to_owned(),
    }
}

/// A program with an open source, to which a plugin adds events.
struct Opened {
    helper: Helper,
    /// Where the plugin writes what the handler answers.
    answers: PathBuf,
    names: Vec<Option<String>>,
    missed: Missed,
    _folder: tempfile::TempDir,
}

impl Opened {
    /// Opens the source of `toy_plugin` in the mode `mode`; `async_plugin`, compiled with `options`, adds events to it.
    fn new(mode: &str, added: &str, options: &[&str], wanted: &Wanted) -> Self {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let answers = folder.path().join("answers");
        let mode = format!("{{\"mode\":\"{mode}\"}}");
        let added = format!("{added} {}", answers.display());
        let plugins = [
            compiled(folder.path(), "toy_plugin", &[], &mode),
            compiled(folder.path(), "async_plugin", options, &added),
        ];
        let limits = Limits {
            program: env!("CARGO_BIN_EXE_tollgate-plugin-host").into(),
            deadline: Duration::from_secs(10),
            memory: None,
        };
        let mut helper = Helper::start(&limits).expect("it starts");
        let described = helper.load(&plugins).expect("they can be loaded");
        assert_eq!(described[1].async_events, ["ping", "pong"]);
        helper.open(wanted).expect("it opens");
        Self {
            helper,
            answers,
            names: Vec::new(),
            missed: Missed::default(),
            _folder: folder,
        }
    }

    /// Reads to the end of the source.
    fn read(&mut self) -> Result<(), HelperError> {
        while self.read_one()? {}
        Ok(())
    }

    /// Reads a message. Returns false at the end of the source.
    fn read_one(&mut self) -> Result<bool, HelperError> {
        match self.helper.reply()? {
            Reply::Batch(records) => {
                let names = records.into_iter().map(|record| record.asynchronous);
                self.names.extend(names);
            }
            Reply::Missed(missed) => {
                self.missed.lost += missed.lost;
                self.missed.refused += missed.refused;
            }
            Reply::Idle => {}
            Reply::Ended => return Ok(false),
            other => panic!("{other:?}"),
        }
        Ok(true)
    }

    /// Waits for the end of the program, and returns what the handler answered.
    fn answers(&mut self) -> Vec<String> {
        let Err(HelperError::Ended(ending)) = self.helper.reply() else {
            panic!("it does not end");
        };
        assert!(ending.status.success(), "{ending}");
        let answers = std::fs::read_to_string(&self.answers).expect("the plugin has written it");
        answers.lines().map(str::to_owned).collect()
    }
}

/// Returns the names of events: those of the source have none.
fn names(words: &str) -> Vec<Option<String>> {
    let words = words.split_whitespace();
    words
        .map(|word| (word != "own").then(|| word.to_owned()))
        .collect()
}

#[test]
fn the_handler_answers_after_the_end_of_the_source_and_of_the_program() {
    let mut opened = Opened::new("plain", "first", &[], &Wanted::default());
    opened.read().expect("nothing fails");
    // The last one is added while the plugin stops.
    assert_eq!(opened.names, names("own ping pong ping own own own ping"));
    assert_eq!(opened.missed, Missed::default());
    let answers = opened.answers();
    assert_eq!(
        answers[3..],
        ["stopping: 0 ", "ended: 1 the event source is closed"]
    );
}

/// Each thread of the plugin tries again until there is room, and the plugin waits for its threads when it stops.
#[test]
fn a_flood_does_not_keep_a_source_from_ending() {
    let mut opened = Opened::new("plain", "flood", &[], &Wanted::default());
    opened.read().expect("nothing hangs");
    let shown = opened.names.iter().flatten().count();
    let shown = u64::try_from(shown).expect("they are few");
    // Four threads send 6000 events, and one that has to be taken; the last event is sent when they are gone.
    let sent = shown + opened.missed.lost;
    assert!(sent > 4 * 6000 + 4, "{sent}");
    assert_eq!(opened.missed.refused, 0);
    let answers = opened.answers();
    let again = answers.iter().filter(|line| line.starts_with("again: 0"));
    assert_eq!(again.count(), 4, "{answers:#?}");
    assert!(answers.contains(&"stopping: 0 ".to_owned()), "{answers:#?}");
}

#[test]
fn a_source_ends_when_that_is_asked_and_sends_what_plugins_add_until_then() {
    let mut opened = Opened::new("stay", "first", &[], &Wanted::default());
    while opened.names.len() < 7 {
        assert!(opened.read_one().expect("nothing fails"), "it has ended");
    }
    opened.helper.ask_for_the_end();
    opened.read().expect("nothing fails");
    assert_eq!(opened.names, names("own ping pong ping own own own ping"));
    assert_eq!(opened.missed, Missed::default());
}

#[test]
fn a_failure_counts_the_events_behind_it_and_ends_the_program_without_destructors() {
    let wanted = Wanted {
        fields: vec![WantedField {
            plugin: 1,
            field: 0,
            argument: WantedArgument::None,
        }],
        ..Wanted::default()
    };
    let options = ["-DEXTRACTS=\"[\\\"toy\\\"]\"", "-DTYPES=402"];
    let mut opened = Opened::new("stay", "first cheat", &options, &wanted);
    let Err(HelperError::Plugin(cause)) = opened.read() else {
        panic!("nothing fails");
    };
    assert_eq!(cause, "it returns 5 values for field `toyasync.data`");
    // The first event came before the failure, the second one caused it, and the third one is behind it.
    assert_eq!(opened.names, names("own ping"));
    assert_eq!((opened.missed.lost, opened.missed.refused), (2, 0));
    let answers = opened.answers();
    assert_eq!(answers, ["good: 0 ", "good: 0 ", "good: 0 "]);
}
