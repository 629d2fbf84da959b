//! Writes an exception, with its test, so that an alert is not raised again.

pub(crate) mod alert;
mod candidate;
mod count;
mod evaluation;
mod exception;
mod list;
mod own_action;
mod propose;
mod variant;
mod write;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use config::rule_files::RuleFile;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use self::alert::Alert;
use self::candidate::{Candidate, candidates};
use self::count::Count;
use self::evaluation::{EventText, RulesUnderTest};
use self::exception::{TestCase, TestRules, rule_file, test_file};
use self::list::Listing;
use self::own_action::judge;
pub use self::own_action::{OwnAction, PlayRule};
use self::variant::Detected;
use self::write::Target;
use crate::{RuleFiles, test};

pub use self::propose::{Proposed, propose};

/// An alert to silence.
#[derive(Debug)]
pub struct SilenceOptions {
    /// File with the alert in JSON; `-` is the standard input.
    pub alert: PathBuf,
    /// Number of the alert in the file, from 1 on.
    pub number: Option<u64>,
    /// Number of the candidate to write, from 1 on; `None` asks on a terminal, and takes the first elsewhere.
    pub choose: Option<u64>,
    /// Captures or files of alerts in which each candidate's effect is counted.
    pub against: Vec<PathBuf>,
    /// Write an exception that silences the rule altogether.
    pub force: bool,
    /// The rules.
    pub rules: RuleFiles,
    /// File to write; the folder of all runs without one.
    pub output: Option<PathBuf>,
    /// Write nothing.
    pub dry_run: bool,
    /// Print JSON.
    pub json: bool,
    /// Plays the action that a rule is for.
    pub play: PlayRule,
}

/// A candidate, and what it does.
struct Proposal {
    candidate: Candidate,
    /// The rules with the exception.
    rules: RulesUnderTest,
    /// The alert is gone.
    silences: bool,
    /// First variant that the rule still detects.
    left: Option<usize>,
    /// For each file of `--against`.
    counts: Vec<Count>,
}

/// Proposes exceptions to the rule of an alert, and writes one with its test.
///
/// # Errors
///
/// The alert or the rules cannot be used, no exception fits, or the files cannot be written.
pub fn execute(args: &SilenceOptions) -> Outcome {
    let alert = Alert::read(&args.alert, args.number)?;
    let sources = args.rules.sources()?;
    let files = sources.read();
    let rules = RulesUnderTest::load(files.clone(), &alert.rule)?;
    let event = rules.event(&alert)?;
    let variants = variant::detected(&alert, &event, &rules);
    let options = options(&alert, &event, &rules, &variants)?;
    let options = counted(options, &alert, args, &files)?;
    let listing = Listing {
        alert: &alert,
        options: &options,
        against: &args.against,
    };
    if !args.json {
        terminal::print(&listing.text())?;
    }
    if args.dry_run {
        return match args.json {
            true => terminal::print(&format!("{}\n", listing.json(None))),
            false => Ok(Exit::Ok),
        };
    }
    // Before the user is asked.
    let target = Target::choose(args.output.as_deref(), rules.rule(), &sources)?;
    let Some(number) = chosen(args, options.len())? else {
        return terminal::print("nothing written\n");
    };
    let option = &options[number];
    is_acceptable(option, args.force)?;
    let own = judge(args.play, &rules, &option.rules)?;
    own.is_acceptable(&option.candidate.condition(), args.force)?;
    write(args, &alert, &event, &variants, option, &target)?;
    let written = Written {
        number,
        target: &target,
        own: &own,
    };
    terminal::print(&match args.json {
        true => format!("{}\n", listing.json(Some(&written))),
        false => {
            let others = option.rules.alerts(&event);
            report(option, &variants, &written, args) + &also(&others)
        }
    })
}

/// What was written and checked.
struct Written<'w> {
    /// Index of the candidate.
    number: usize,
    target: &'w Target,
    own: &'w OwnAction,
}

/// Evaluates the candidates.
fn options(
    alert: &Alert,
    event: &EventText,
    rules: &RulesUnderTest,
    variants: &[Detected],
) -> Result<Vec<Proposal>, Failure> {
    let mut options = Vec::new();
    for candidate in candidates(alert) {
        let text = rule_file(alert, &candidate, "tests");
        let after = rules.with("exception", &text)?;
        let is_left = |variant: &Detected| {
            let without = variant.is_certain.then_some(true);
            after.matches(&variant.event) == without
        };
        options.push(Proposal {
            silences: after.matches(event) == Some(false),
            left: variants.iter().position(is_left),
            counts: Vec::new(),
            rules: after,
            candidate,
        });
    }
    // A value that was changed on the way to the alert, which no exception can compare.
    options.retain(|option| option.silences);
    if options.is_empty() {
        let message = format!(
            "cannot silence `{}`: the alert names no program, file or server that an exception could compare",
            alert.rule
        );
        return Err(Failure::new(Exit::BadInput, message).help(
            "add fields such as %proc.exepath and %fd.name to the output of the rule (append_output)",
        ));
    }
    Ok(options)
}

/// Counts what the candidates silence in the files of `--against`.
fn counted(
    mut options: Vec<Proposal>,
    alert: &Alert,
    args: &SilenceOptions,
    files: &[RuleFile],
) -> Result<Vec<Proposal>, Failure> {
    for path in &args.against {
        let (alerts, others) = count::alerts(path, &alert.rule, files)?;
        if others > 0 {
            let path = path.display();
            terminal::complain(&format!(
                "tollgate: warning: {path}: {others} lines are no alerts in JSON, and are not counted\n"
            ));
        }
        for option in &mut options {
            option
                .counts
                .push(count::count(&option.candidate, alert, &alerts));
        }
    }
    Ok(options)
}

/// Returns the index of the chosen candidate; `None` if the user wants none.
fn chosen(args: &SilenceOptions, count: usize) -> Result<Option<usize>, Failure> {
    if let Some(number) = args.choose {
        return index(number, count).map(Some);
    }
    let asks = io::stderr().is_terminal() && !args.json;
    let Some(mut input) = asks.then(answers).flatten() else {
        return Ok(Some(0));
    };
    terminal::complain(&format!(
        "Write which one? 1 to {count}, or q for none [1] "
    ));
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    let length = read.map_err(|error| {
        Failure::new(Exit::BadInput, format!("cannot read the answer: {error}"))
            .help("choose with --choose N")
    })?;
    match answer.trim() {
        // The end of the input is no consent.
        _ if length == 0 => Ok(None),
        "" => Ok(Some(0)),
        "q" | "n" => Ok(None),
        number => match number.parse() {
            Ok(number) => index(number, count).map(Some),
            Err(_) => index(0, count).map(Some),
        },
    }
}

/// Returns the terminal: the alert may come from the standard input.
fn answers() -> Option<Box<dyn BufRead>> {
    if io::stdin().is_terminal() {
        return Some(Box::new(io::stdin().lock()));
    }
    let terminal = File::open("/dev/tty").ok()?;
    Some(Box::new(BufReader::new(terminal)))
}

fn index(number: u64, count: usize) -> Result<usize, Failure> {
    let index = usize::try_from(number)
        .ok()
        .and_then(|number| number.checked_sub(1));
    index.filter(|index| *index < count).ok_or_else(|| {
        let message = "cannot write the exception: there is no such candidate";
        Failure::new(Exit::BadInput, message).help(format!("choose a number from 1 to {count}"))
    })
}

fn is_acceptable(option: &Proposal, force: bool) -> Result<(), Failure> {
    if option.left.is_some() || force {
        return Ok(());
    }
    let message = format!(
        "cannot write the exception `{}`: it would silence the rule altogether",
        option.candidate.condition()
    );
    Err(Failure::new(Exit::BadInput, message).help(
        "choose a narrower candidate; or turn the rule off by `rules: [{disable: {rule: NAME}}]` in the \
         configuration, or use --force",
    ))
}

/// Writes the files and runs the test. If that fails, removes them.
fn write(
    args: &SilenceOptions,
    alert: &Alert,
    event: &EventText,
    variants: &[Detected],
    option: &Proposal,
    target: &Target,
) -> Result<(), Failure> {
    let name = target
        .rules
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let absolute = |paths: &[PathBuf]| -> Vec<String> {
        let paths = paths
            .iter()
            .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        paths.map(|path| path.display().to_string()).collect()
    };
    let mut added = absolute(&args.rules.added);
    added.push(format!("../{name}"));
    let files = TestRules {
        named: absolute(&args.rules.named),
        added,
        level: option.rules.rule().level(),
    };
    let mut tests = vec![TestCase {
        name: "the alert is not raised again".to_owned(),
        event,
        alerts: option.rules.alerts_of_level(event),
    }];
    let left = option.left.map(|left| &variants[left]);
    tests.extend(
        left.filter(|variant| variant.is_certain)
            .map(|variant| TestCase {
                name: format!("still detected: {}", variant.title),
                event: &variant.event,
                alerts: option.rules.alerts_of_level(&variant.event),
            }),
    );
    let rules = rule_file(alert, &option.candidate, &format!("tests/{name}"));
    target.write(&rules, &test_file(&files, &tests))?;
    let faults = match test::faults(&target.test) {
        Ok(faults) if faults.is_empty() => return Ok(()),
        Ok(faults) => faults.join("; "),
        Err(failure) => failure.message().to_owned(),
    };
    target.remove();
    let message = format!("cannot write the exception: its test fails: {faults}");
    Err(Failure::new(Exit::Internal, message).help("write it by hand: docs/howto/write-rules.md"))
}

/// Formats the other rules that match the event: with `rule_matching: first` the next one alerts instead.
fn also(rules: &[String]) -> String {
    let line = |rule: &String| format!("note     the rule `{rule}` matches this event, too\n");
    rules.iter().map(line).collect()
}

/// Formats what was written and checked.
fn report(
    option: &Proposal,
    variants: &[Detected],
    written: &Written<'_>,
    args: &SilenceOptions,
) -> String {
    let show = |path: &Path| path.display().to_string();
    let target = written.target;
    let mut out = format!("wrote    {}\n", show(&target.rules));
    out.push_str(&format!("         {}\n", show(&target.test)));
    out.push_str("checked  the alert is gone\n");
    out.push_str(&match option.left.map(|left| &variants[left]) {
        Some(variant) if variant.is_certain => format!("         detected: {}\n", variant.title),
        Some(variant) => format!(
            "         as before: {} (the alert lacks fields that the rule needs, so this has no test)\n",
            variant.title
        ),
        None => "         not detected: the same, by another program (--force)\n".to_owned(),
    });
    out.push_str(&format!("         {}\n", written.own.sentence()));
    out.push_str(&match args.output {
        None => "next     running monitors load it on SIGHUP, or by themselves with watch_config_files: true\n"
            .to_owned(),
        Some(_) => format!("next     load it with --add-rules {}\n", show(&target.rules)),
    });
    out
}
