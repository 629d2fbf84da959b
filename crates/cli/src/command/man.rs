//! `tollgate man`.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};
use clap_mangen::Man as Page;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use crate::args::{Cli, Man};

/// Runs the verb.
pub(crate) fn execute(args: &Man) -> Outcome {
    let mut command = Cli::command();
    command.build();
    for verb in &args.verb {
        let Some(found) = command.find_subcommand(verb).cloned() else {
            return Err(unknown(&command, verb));
        };
        command = found;
    }
    let page = page(command, &args.verb).map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("cannot make the manual page: {error}"),
        )
    })?;
    terminal::print(&page)
}

fn unknown(command: &Command, verb: &str) -> Failure {
    let verbs: Vec<_> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| verb.get_name().to_owned())
        .collect();
    let failure = Failure::new(
        Exit::BadInput,
        format!("cannot find a manual page: no verb `{verb}`"),
    );
    if verbs.is_empty() {
        return failure.help(format!("{} has no verbs of its own", command.get_name()));
    }
    failure.help(format!("one of {}", verbs.join(", ")))
}

fn page(command: Command, verb: &[String]) -> std::io::Result<String> {
    let mut page = Vec::new();
    Page::new(command).render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    let is_run = verb.first().is_some_and(|verb| verb == "run");
    if verb.is_empty() || is_run {
        write_exit_status(&mut page);
    }
    if is_run {
        page.push_str(STATS_FILE);
        write_keys(&mut page);
    }
    Ok(page)
}

/// What a line of the stats file means.
const STATS_FILE: &str = r#".SH "STATS FILE"
One JSON object a line, each interval and at the end of CMD.
.TP
\fBcur\fR, \fBdelta\fR
totals since the start, and what was added since the line before: events, drops, preemptions
.TP
\fBevents\fR
every planned call that reached the program, also those that a predicate discarded at once
.TP
\fBfiltered_in_kernel\fR
null: a call that the seccomp filter lets pass is not visible to any process, so that events is not
the number of calls of CMD
.TP
\fBpieces\fR
what became of the events
.TP
\fBalerts\fR
emitted, suppressed by outputs.rate, raised by the program about itself; by channel: queued,
delivered, and lost because the queue was full, writing failed or the receiver refused them, waiting;
how often the other end did not answer or read in time, and how often a program was started anew
"#;

fn write_exit_status(page: &mut String) {
    page.push_str(".SH \"EXIT STATUS\"\n");
    for (code, meaning) in Exit::MEANINGS {
        let _ = writeln!(page, ".TP\n\\fB{code}\\fR\n{meaning}");
    }
}

fn write_keys(page: &mut String) {
    page.push_str(".SH \"CONFIGURATION KEYS\"\nNames and meanings are those of Falco.\n");
    for key in config::key_names() {
        let _ = writeln!(page, ".br\n\\fB{}\\fR", key.replace('-', "\\-"));
    }
}
