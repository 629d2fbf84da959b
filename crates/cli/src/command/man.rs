//! `tollgate man`: prints manual pages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use super::help::find;
use crate::args::Man;
use crate::help::{Example, Page, visible};

/// Runs the verb.
pub(crate) fn execute(args: &Man) -> Outcome {
    if let Some(folder) = &args.output {
        return write_all(folder);
    }
    let command = find(visible(), &args.verb)?;
    terminal::print(&page(&command, &args.verb.join(" ")))
}

fn write_all(folder: &Path) -> Outcome {
    let mut program = visible();
    program.build();
    let write = |command: &Command, path: &str| {
        let file = folder.join(format!("{}.1", page_name(path)));
        fs::write(&file, page(command, path)).map_err(|cause| {
            let message = format!("cannot write {}: {cause}", file.display());
            Failure::new(Exit::BadInput, message).help("name a writable folder that exists")
        })
    };
    write(&program, "")?;
    let mut open: Vec<(String, &Command)> = own(&program, "");
    while let Some((path, command)) = open.pop() {
        write(command, &path)?;
        open.extend(own(command, &path));
    }
    Ok(Exit::Ok)
}

/// Returns the verbs of a command with their paths.
fn own<'c>(command: &'c Command, path: &str) -> Vec<(String, &'c Command)> {
    let verbs = command.get_subcommands();
    let with_path = |verb: &'c Command| {
        let path = format!("{path} {}", verb.get_name());
        (path.trim_start().to_owned(), verb)
    };
    verbs.map(with_path).collect()
}

/// Returns the name of a page, such as `tollgate-rules-check`.
fn page_name(path: &str) -> String {
    format!("tollgate {path}").trim_end().replace(' ', "-")
}

/// Formats the page of the verb `path`, in the macros of man(7).
fn page(command: &Command, path: &str) -> String {
    let name = page_name(path);
    let about = command.get_about().map(ToString::to_string);
    // A test walks the whole tree: every visible verb and option has a text.
    let about = about.unwrap_or_default();
    let mut out = Roff::default();
    out.line(&format!(
        ".TH {} 1 \"\" \"tollgate {}\" \"Tollgate Manual\"",
        escape(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION")
    ));
    out.section("NAME");
    out.text(&format!("{name} - {}", about.trim_end()));
    out.section("SYNOPSIS");
    synopsis(&mut out, command);
    out.section("DESCRIPTION");
    out.text(&format!("{about}."));
    if let Some(notes) = command.get_after_help() {
        let notes = notes.to_string();
        // `split` has at least one part.
        let notes = notes.split("Examples:\n").next().unwrap_or_default();
        out.paragraphs(notes.trim_end());
    }
    options(&mut out, command);
    verbs(&mut out, command, path);
    if path == "run" {
        stats_file(&mut out);
        configuration_keys(&mut out);
    }
    if let Some(page) = Page::of(path) {
        closing(&mut out, page);
    }
    out.text
}

fn synopsis(out: &mut Roff, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let name = command.get_bin_name().unwrap_or(command.get_name());
    // A usage begins with the name; else the name alone is right.
    let rest = usage.strip_prefix(name).unwrap_or_default();
    out.line(&format!("\\fB{}\\fR{}", escape(name), escape(rest)));
}

/// Formats options under their headings, after positional arguments.
fn options(out: &mut Roff, command: &Command) {
    let arguments: Vec<&Arg> = command.get_arguments().collect();
    if arguments.is_empty() {
        return;
    }
    out.section("OPTIONS");
    let (positional, named): (Vec<&Arg>, Vec<&Arg>) =
        arguments.into_iter().partition(|arg| arg.is_positional());
    positional.iter().for_each(|arg| option(out, arg));
    let mut headings = vec![None];
    for arg in &named {
        let heading = arg.get_help_heading();
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    // Help and version come last, as in the help text.
    headings.rotate_left(1);
    let is_grouped = headings.len() > 1;
    for heading in headings {
        if is_grouped {
            out.subsection(heading.unwrap_or("Other options"));
        }
        let of_heading = named.iter().filter(|arg| arg.get_help_heading() == heading);
        of_heading.for_each(|arg| option(out, arg));
    }
}

fn option(out: &mut Roff, arg: &Arg) {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short
        .into_iter()
        .chain(long)
        .map(|name| format!("\\fB{}\\fR", escape(&name)))
        .collect();
    let mut term = names.join(", ");
    let takes_value = arg
        .get_num_args()
        .is_some_and(|number| number.takes_values());
    if let Some(values) = arg.get_value_names().filter(|_| takes_value) {
        let value = format!("\\fI{}\\fR", escape(&values.join(" ")));
        let is_optional = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
        term.push_str(&match (names.is_empty(), is_optional) {
            (true, _) => value,
            (false, true) => format!("[={value}]"),
            (false, false) => format!(" {value}"),
        });
    }
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults = arg.get_default_values();
    if takes_value && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let values: Vec<_> = defaults
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(text, " [default: {}]", values.join(", "));
    }
    out.definition(&term, &text);
}

fn verbs(out: &mut Roff, command: &Command, path: &str) {
    let verbs = own(command, path);
    if verbs.is_empty() {
        return;
    }
    out.section("VERBS");
    for (path, verb) in verbs {
        let about = verb.get_about().map(ToString::to_string);
        let term = format!("\\fB{}\\fR(1)", escape(&page_name(&path)));
        out.definition(&term, &about.unwrap_or_default());
    }
}

/// Formats the sections that are not made from the command line.
fn closing(out: &mut Roff, page: &Page) {
    out.section("EXIT STATUS");
    for (code, meaning) in page.exits.rows() {
        out.definition(&format!("\\fB{code}\\fR"), meaning);
    }
    out.section("EXAMPLES");
    for Example(line, what) in page.examples {
        out.definition(&format!("\\fB{}\\fR", escape(line)), what);
    }
    if !page.files.is_empty() {
        out.section("FILES");
        for (file, what) in page.files {
            out.definition(&format!("\\fI{}\\fR", escape(file)), what);
        }
    }
    out.section("SEE ALSO");
    let above = (!page.path.is_empty()).then_some("");
    let pages = above.iter().chain(page.see_also);
    let pages: Vec<_> = pages
        .map(|path| format!("\\fB{}\\fR(1)", escape(&page_name(path))))
        .collect();
    out.line(&pages.join(",\n"));
}

/// Formats the keys of a line of the stats file.
fn stats_file(out: &mut Roff) {
    out.section("STATS FILE");
    out.text("The file of -s has one JSON object a line, one for each interval and one at the end of CMD.");
    for (keys, meaning) in [
        (
            "\\fBcur\\fR, \\fBdelta\\fR",
            "totals since the start, and since the line before: events, drops, preemptions",
        ),
        (
            "\\fBevents\\fR",
            "system calls that the filter handed over to the program, also those that were rejected at once",
        ),
        (
            "\\fBfiltered_in_kernel\\fR",
            "null: no process can count the calls that the seccomp filter lets pass, so that events is not the \
             number of calls of CMD",
        ),
        ("\\fBcounters\\fR", "number of events by result"),
        (
            "\\fBalerts\\fR",
            "number of alerts: emitted, suppressed by outputs.rate, and raised by the program about itself. \
             For each channel: queued, delivered, pending, lost because the queue was full or a write failed, \
             timeouts, and restarts of the program that receives them",
        ),
    ] {
        out.definition(keys, meaning);
    }
}

fn configuration_keys(out: &mut Roff) {
    out.section("CONFIGURATION KEYS");
    out.text("Names and meanings are those of Falco.");
    for key in config::key_names() {
        out.line(".br");
        out.line(&format!("\\fB{}\\fR", escape(key)));
    }
}

/// Builder of a page.
#[derive(Default)]
struct Roff {
    text: String,
}

impl Roff {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.line(&format!(".SH {name}"));
    }

    fn subsection(&mut self, name: &str) {
        self.line(&format!(".SS {name}"));
    }

    /// Appends a line of text without markup.
    fn text(&mut self, text: &str) {
        let text = escape(text);
        // A dot or an apostrophe at the beginning would make the line a request.
        if text.starts_with(['.', '\'']) {
            self.text.push_str("\\&");
        }
        self.line(&text);
    }

    fn definition(&mut self, term: &str, text: &str) {
        self.line(".TP");
        self.line(term);
        self.text(text);
    }

    /// Appends paragraphs. Lines that begin with blanks are kept as they are.
    fn paragraphs(&mut self, text: &str) {
        let mut is_literal = false;
        let mut is_new = true;
        for line in text.lines() {
            let wants_literal = line.starts_with(' ') || is_literal && line.is_empty();
            if wants_literal != is_literal {
                self.line(if wants_literal { ".PP\n.nf" } else { ".fi" });
                is_new = !wants_literal;
                is_literal = wants_literal;
            }
            match (line.is_empty(), is_literal) {
                (true, true) => self.line(".sp"),
                (true, false) => is_new = true,
                (false, _) => {
                    if is_new && !is_literal {
                        self.line(".PP");
                    }
                    is_new = false;
                    self.text(line);
                }
            }
        }
        if is_literal {
            self.line(".fi");
        }
    }
}

/// Escapes the characters that roff(7) interprets.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
        .replace('`', "\\(ga")
        .replace('^', "\\(ha")
        .replace('~', "\\(ti")
}
