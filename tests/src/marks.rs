//! Runs whose alerts are counted: each open of a file called `mark` is one.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Finished, Limited, Watch};

/// Rule that fires when a file called `mark` is opened.
pub const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name process=%proc.name
  priority: WARNING
";

/// Script that opens the file three times.
pub const THRICE: &str = "for n in 1 2 3; do : < %W/mark; done";

/// Creates a run of a shell script whose work folder has a file called `mark`, under the rule [`MARK`].
pub fn marking(script: &str) -> Watch {
    marking_by(script, MARK)
}

/// Like [`marking`], under another rule.
pub fn marking_by(script: &str, rule: &str) -> Watch {
    let watch = Watch::script(script).rules(rule);
    fs::create_dir_all(work(&watch))
        .and_then(|()| fs::write(work(&watch).join("mark"), ""))
        .expect("the scratch folder is writable");
    watch
}

/// Returns the work folder of a run.
pub fn work(watch: &Watch) -> PathBuf {
    watch.scratch().path().join("work")
}

/// Adds settings, each `KEY=VALUE`.
pub fn set(watch: Watch, settings: &[&str]) -> Watch {
    settings
        .iter()
        .fold(watch, |watch, setting| watch.option("-o").option(*setting))
}

/// Returns the lines that are alerts of [`MARK`].
pub fn marks(text: &str) -> Vec<String> {
    let is_mark = |line: &&str| line.contains("marked file=");
    text.lines().filter(is_mark).map(str::to_owned).collect()
}

/// Runs without `--quiet`, which `Watch` gives.
pub fn run_loudly(watch: &Watch, limit: std::time::Duration) -> Finished {
    let words = watch.command_line();
    let mut command = Command::new(&words[0]);
    command.args(words[1..].iter().filter(|word| *word != "--quiet"));
    command.stdin(Stdio::null());
    Limited::start(&mut command, limit).finish(b"")
}
