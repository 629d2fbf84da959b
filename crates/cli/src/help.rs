//! The command line as users see it: verbs in groups, examples, and no hidden parts.
//!
//! Help texts, manual pages and completion scripts are all made from [`command_line`] and [`pages::PAGES`].

mod pages;

use std::fmt::Write as _;
use std::io::IsTerminal;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};

use crate::args::{Cli, STYLES};

pub(crate) use pages::{Example, Page};

/// The verbs of the program, grouped by purpose. Every visible verb is in one group.
pub(crate) const GROUPS: &[(&str, &[&str])] = &[
    (
        "Watch",
        &[
            "run", "watch", "top", "replay", "rules", "artifact", "falco",
        ],
    ),
    ("Confine", &["guard", "enforce", "policy", "learn"]),
    ("Containers", &["runtime"]),
    ("Fleet", &["serve", "alerts", "fleet", "node"]),
    ("Measure", &["bench", "generate"]),
    (
        "Tools",
        &[
            "config",
            "doctor",
            "demo",
            "completions",
            "copy",
            "man",
            "help",
            "version",
        ],
    ),
];

/// Largest width of help texts, in columns.
const WIDEST: usize = 100;

/// Returns the command line with groups of verbs and examples.
pub(crate) fn command_line() -> Command {
    let command = Cli::command();
    let verbs = groups(&command);
    with_examples(command, "").help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}\n{}Options:{}\n{{options}}{{after-help}}",
        verbs.ansi(),
        STYLES.get_header().render(),
        STYLES.get_header().render_reset(),
    ))
}

/// Returns the command line without hidden verbs and options.
pub(crate) fn visible() -> Command {
    without_hidden(&command_line())
}

/// Formats the verbs in their groups, wrapped to the width of the terminal.
fn groups(command: &Command) -> StyledStr {
    let names = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter());
    let widest = names.map(|name| name.len()).max().unwrap_or(0);
    let columns = columns().saturating_sub(widest + 4).max(20);
    let (header, literal) = (STYLES.get_header(), STYLES.get_literal());
    let mut text = StyledStr::new();
    for (group, verbs) in GROUPS {
        // Writing to a StyledStr cannot fail.
        let _ = writeln!(text, "{header}{group}:{header:#}");
        for name in *verbs {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            // A test fails for a verb without a text.
            let about = about.map(ToString::to_string).unwrap_or_default();
            let lines = wrap(&about, columns);
            let lines = lines.join(&format!("\n{}", " ".repeat(widest + 4)));
            let _ = writeln!(text, "  {literal}{name:widest$}{literal:#}  {lines}");
        }
        let _ = writeln!(text);
    }
    StyledStr::from(text.ansi().to_string().trim_end().to_owned() + "\n")
}

/// Returns the width of help texts: the terminal's, or that of `COLUMNS`, and at most the width that clap uses.
fn columns() -> usize {
    let terminal = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    let terminal = terminal.ok().map(|size| usize::from(size.ws_col));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal.filter(|width| *width > 0).or_else(variable);
    width.unwrap_or(WIDEST).min(WIDEST)
}

/// Returns the width of lines on the standard output if that is a terminal. A file or a pipe gets whole lines.
pub(crate) fn terminal_columns() -> Option<usize> {
    std::io::stdout().is_terminal().then(columns)
}

/// Breaks a text that begins at column `indent` between words, if the number of columns is known.
pub(crate) fn wrapped(text: &str, indent: usize, columns: Option<usize>) -> String {
    let Some(columns) = columns else {
        return text.to_owned();
    };
    let width = columns.saturating_sub(indent).max(20);
    wrap(text, width).join(&format!("\n{}", " ".repeat(indent)))
}

/// Breaks a text between words.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Adds the examples of [`pages::PAGES`] to the help of a verb and its subverbs.
fn with_examples(mut command: Command, path: &str) -> Command {
    if let Some(page) = Page::of(path) {
        let header = STYLES.get_header();
        let mut text = StyledStr::new();
        if let Some(notes) = command.get_after_help() {
            let _ = write!(text, "{}\n\n", notes.ansi());
        }
        let _ = write!(text, "{header}Examples:{header:#}");
        for Example(line, what) in page.examples {
            let _ = write!(text, "\n  {line}\n      {what}");
        }
        command = command.after_help(text);
    }
    let names: Vec<String> = command
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for name in names {
        let path = format!("{path} {name}");
        command = command.mut_subcommand(name, |verb| with_examples(verb, path.trim_start()));
    }
    command
}

fn without_hidden(command: &Command) -> Command {
    let mut copy = Command::new(command.get_name().to_owned())
        .styles(STYLES)
        .disable_help_subcommand(true)
        .disable_version_flag(command.is_disable_version_flag_set())
        .subcommand_required(command.is_subcommand_required_set())
        .subcommand_value_name("VERB")
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .subcommands(
            command
                .get_subcommands()
                .filter(|verb| !verb.is_hide_set())
                .map(without_hidden),
        );
    // Options may need one of a group.
    let is_shown = |id: &clap::Id| {
        let mut args = command.get_arguments();
        args.any(|arg| arg.get_id() == id && !arg.is_hide_set())
    };
    let groups = command.get_groups();
    let groups = groups.filter(|group| group.get_args().all(is_shown));
    copy = copy.groups(groups);
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(notes) = command.get_after_help() {
        copy = copy.after_help(notes.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy
}

#[cfg(test)]
mod tests;
