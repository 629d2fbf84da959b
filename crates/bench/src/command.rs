//! The command line of `tollgate bench`, and its execution.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use regex::Regex;

use crate::client::Client;
use crate::execute::Processes;
use crate::host::Host;
use crate::limit::{BrokenLimit, Limit};
use crate::own_command::{self, OwnCommand};
use crate::part::Part;
use crate::plan::Plan;
use crate::record::{Recorder, Recording};
use crate::run::{Progress, RunEnd};
use crate::suite::{self, Apps, Engine, Lifecycle, Os, SuiteOptions, Syscalls, Unix};
use crate::summary::{self, Summary};
use crate::{
    Error, Stop, background_command, client, compare, pages, part, quick, run, unixbench_original,
};

/// Heading of these options in help texts.
const RESULTS: &str = "Result options";

/// Measure how much a subject slows a workload down.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// Verb to run
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// A command of the user's own
    #[command(flatten)]
    pub own: OwnCommand,
}

/// The verbs of `tollgate bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Measure common calls, opens, processes and shells in three minutes
    Quick(Quick),
    /// Run the twelve tests of UnixBench and compute its index
    Unix(Unix),
    /// Run the five operations of OSBench
    Os(Os),
    /// Measure single system calls: latency, neighbours, delay
    Syscalls(Syscalls),
    /// Measure the container life cycle with every installed OCI runtime
    Lifecycle(Lifecycle),
    /// Measure parts of tollgate: replay, alerts, start, filter size
    Engine(Engine),
    /// Measure real servers and jobs that are installed
    Apps(Apps),
    /// Run a plan, or compare two result folders
    Compare(Compare),
    /// Write the summary of a result folder as HTML, JSON and Markdown
    Report(Report),
    /// Run a command while a watcher runs; for plans
    #[command(hide = true)]
    Beside(WatcherCommand),
    /// Measure a load while a command runs; for plans
    #[command(hide = true)]
    Neighbour(BackgroundLoad),
    /// Run a command in other surroundings; for plans
    #[command(hide = true)]
    Inside(Inside),
    /// Start a server, ask it, and end it; for plans
    #[command(hide = true)]
    Client(ClientAndServer),
    /// Measure a part of tollgate; for plans
    #[command(hide = true)]
    Part(PartArgs),
    /// Run a command with a rule about so many calls; for plans
    #[command(hide = true)]
    Filter(Filter),
    /// Run a program of UnixBench itself; for plans
    #[command(hide = true)]
    Original(UnixBenchTest),
}

/// A watcher and a command.
#[derive(Args, Clone, Debug)]
pub struct WatcherCommand {
    /// WATCHER -- COMMAND
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A load, and what runs meanwhile.
#[derive(Args, Clone, Debug)]
pub struct BackgroundLoad {
    #[arg(long)]
    load: String,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Surroundings and a command.
#[derive(Args, Clone, Debug)]
pub struct Inside {
    #[arg(value_enum)]
    place: Surroundings,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Surroundings that a command line alone cannot make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Surroundings {
    QuarterCpu,
    Session,
}

/// Requests, and the server's command line.
#[derive(Args, Clone, Debug)]
pub struct ClientAndServer {
    #[command(flatten)]
    client: Client,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A part of tollgate, and for how long.
#[derive(Args, Clone, Debug)]
pub struct PartArgs {
    #[arg(value_enum)]
    part: Part,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// The size of a filter and a command.
#[derive(Args, Clone, Debug)]
pub struct Filter {
    size: String,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A test of UnixBench, and where UnixBench is.
#[derive(Args, Clone, Debug)]
pub struct UnixBenchTest {
    test: String,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value_t = 1)]
    copies: u16,
    folder: PathBuf,
}

/// `tollgate bench quick`.
#[derive(Args, Clone, Debug)]
pub struct Quick {
    /// Number of runs of each workload under each subject; a verdict needs 6
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Command line to measure, with {} in place of the workload; repeatable [default: tollgate run]
    #[arg(long = "subject", value_name = "NAME='wrapper {}'")]
    pub subjects: Vec<String>,
    /// Measure only workloads whose name matches this regular expression [default: all]
    #[arg(long, value_name = "REGEX")]
    pub workload: Option<Regex>,
    /// Seed of the random order of subjects in each round
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time limit in seconds: start no round that would end later
    #[arg(long, value_name = "SECONDS", default_value_t = 170)]
    pub budget: u64,
    /// Where the samples and the summary go
    #[command(flatten)]
    pub out: OutputOptions,
}

/// `tollgate bench compare`.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// Plan to run: TOML, or JSON if its name ends in .json
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "folders",
        required_unless_present = "folders"
    )]
    pub plan: Option<PathBuf>,
    /// Two result folders to compare: before and after
    #[arg(num_args = 2, value_name = "DIR", conflicts_with_all = ["out", "fail_if"])]
    pub folders: Vec<PathBuf>,
    /// Where the samples and the summary go
    #[command(flatten)]
    pub out: OutputOptions,
}

/// Where results go, and how they are printed.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputOptions {
    /// Write samples and summary to this folder [default: results/DATE-NAME]
    #[arg(long, help_heading = RESULTS, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long, help_heading = RESULTS)]
    pub json: bool,
    /// Exit with status 1 if LIMIT is true, such as 'index<0.9' or 'ratio:SUBJECT:WORKLOAD>6', where index is
    /// speed / native speed and ratio is time / native time; also drops and invalid; repeatable
    #[arg(long, value_name = "LIMIT", help_heading = RESULTS)]
    pub fail_if: Vec<String>,
}

/// `tollgate bench report`.
#[derive(Args, Clone, Debug)]
pub struct Report {
    /// Result folder to summarise
    pub folder: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print a Markdown table
    #[arg(long)]
    pub markdown: bool,
    /// Result folder of an earlier run, oldest first, for the trend; repeatable
    #[arg(long, value_name = "DIR")]
    pub history: Vec<PathBuf>,
    /// Exit with status 1 if LIMIT is true, such as 'index<0.9' or 'ratio:SUBJECT:WORKLOAD>6'; repeatable
    #[arg(long, value_name = "LIMIT")]
    pub fail_if: Vec<String>,
}

/// Exit code after Ctrl-C, as a shell gives it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Executes `bench`, prints to `out`, and returns the program's exit code. `program` is the path of the running
/// program, which replaces `{tollgate}` in plans.
///
/// # Errors
///
/// If the input is invalid, a subject does not start, or a file cannot be written; [`Error::exit_code`]
/// distinguishes these.
pub fn execute(bench: &Bench, program: &Path, out: &mut dyn Write) -> Result<u8, Error> {
    let Some(verb) = &bench.verb else {
        if bench.own.command.is_empty() {
            return Err(Error::NothingToMeasure);
        }
        return own_command::execute(&bench.own, program, out);
    };
    match verb {
        Verb::Quick(quick) => measure(quick_plan(quick)?, program, &quick.out, out),
        Verb::Compare(Compare {
            plan: Some(path),
            out: place,
            ..
        }) => measure(Plan::load(path)?, program, place, out),
        Verb::Compare(Compare {
            folders,
            out: place,
            ..
        }) => {
            let comparison = compare(&folders[0], &folders[1])?;
            let text = match place.json {
                true => comparison.json(),
                false => comparison.text(),
            };
            print(out, &text)
        }
        Verb::Report(report) => report_again(report, out),
        Verb::Unix(suite) => run_suite(&suite.choice, &suite.out, suite.plan()?, program, out),
        Verb::Os(suite) => run_suite(&suite.choice, &suite.out, suite.plan()?, program, out),
        Verb::Syscalls(suite) => run_suite(&suite.choice, &suite.out, suite.plan()?, program, out),
        Verb::Lifecycle(suite) => {
            let (plan, missing) = suite.plan(program)?;
            note(&missing);
            run_suite(&suite.choice, &suite.out, plan, program, out)
        }
        Verb::Engine(suite) => run_suite(&suite.choice, &suite.out, suite.plan()?, program, out),
        Verb::Apps(suite) => {
            let missing = suite.missing().join(", ");
            if !missing.is_empty() {
                note(&[format!("skipped, not installed: {missing}")]);
            }
            run_suite(&suite.choice, &suite.out, suite.plan()?, program, out)
        }
        Verb::Client(ClientAndServer { client, words }) => print(out, &client::run(client, words)?),
        Verb::Part(PartArgs { part, seconds }) => print(out, &part::run(program, *part, *seconds)?),
        Verb::Filter(Filter { size, words }) => part::filter(program, size, words),
        Verb::Beside(beside) => background_command::beside(&beside.words),
        Verb::Neighbour(asked) => {
            background_command::neighbour(program, &asked.load, asked.seconds, &asked.words)
        }
        Verb::Inside(Inside { place, words }) => match place {
            Surroundings::QuarterCpu => background_command::quarter_cpu(words),
            Surroundings::Session => background_command::session(words),
        },
        Verb::Original(asked) => {
            let text =
                unixbench_original::run(&asked.folder, &asked.test, asked.seconds, asked.copies)?;
            print(out, &text)
        }
    }
}

fn quick_plan(quick: &Quick) -> Result<Plan, Error> {
    let subjects = quick.subjects.iter().map(|text| quick::subject(text));
    quick::plan(quick::QuickOptions {
        rounds: quick.rounds,
        seed: quick.seed,
        budget_seconds: quick.budget,
        subjects: subjects.collect::<Result<_, _>>()?,
        workload: quick.workload.clone(),
    })
}

/// Prints notes to standard error. Ignores a failed write, which is no reason not to measure.
fn note(lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn run_suite(
    choice: &SuiteOptions,
    place: &OutputOptions,
    plan: Plan,
    program: &Path,
    out: &mut dyn Write,
) -> Result<u8, Error> {
    if choice.list {
        return print(out, &suite::list(&plan));
    }
    measure(plan, program, place, out)
}

fn report_again(report: &Report, out: &mut dyn Write) -> Result<u8, Error> {
    let limits = limits(&report.fail_if)?;
    let recording = Recording::load(&report.folder)?;
    let history = report.history.iter().map(|folder| Recording::load(folder));
    let history = history.collect::<Result<Vec<_>, _>>()?;
    let (summary, broken) = write_forms(&report.folder, &recording, &limits, &history)?;
    print(out, &form(&summary, report.json, report.markdown))?;
    Ok(verdict(&broken))
}

fn limits(texts: &[String]) -> Result<Vec<Limit>, Error> {
    texts.iter().map(|text| text.parse()).collect()
}

/// Writes every file of a results folder that is derived from its samples.
fn write_forms(
    folder: &Path,
    recording: &Recording,
    limits: &[Limit],
    history: &[Recording],
) -> Result<(Summary, Vec<BrokenLimit>), Error> {
    let summary = summary::write(folder, recording)?;
    let broken: Vec<Vec<BrokenLimit>> = limits
        .iter()
        .map(|limit| limit.broken(&summary))
        .collect::<Result<_, _>>()?;
    let broken = broken.concat();
    pages::write(folder, recording, &summary, &broken, history)?;
    Ok((summary, broken))
}

/// Prints the limits that are broken. Returns exit code 1 if there are any.
fn verdict(broken: &[BrokenLimit]) -> u8 {
    for limit in broken {
        // A closed standard error is ignored; the exit status reports the failure, too.
        let _ = writeln!(std::io::stderr(), "tollgate: limit broken: {}", limit.said);
    }
    u8::from(!broken.is_empty())
}

/// Runs `plan` and writes the report, also when the run ends early.
fn measure(
    plan: Plan,
    program: &Path,
    place: &OutputOptions,
    out: &mut dyn Write,
) -> Result<u8, Error> {
    let limits = limits(&place.fail_if)?;
    let plan = plan.with_program(program);
    let folder = place.out.clone().unwrap_or_else(|| free_folder(&plan.name));
    let mut host = Host::observe(&plan);
    let mut recorder = Recorder::create(&folder, &plan, &host)?;
    let stop = Stop::on_signals()?;
    let mut meter = Meter::new();
    let ended = run::run(
        &plan,
        &mut Processes::new(&stop),
        &mut recorder,
        &stop,
        &mut |progress| {
            meter.show(progress);
        },
    );
    meter.clear();
    host.finish();
    recorder.write_host(&host)?;
    let ended = ended?;
    let (summary, broken) = write_forms(&folder, &Recording::load(&folder)?, &limits, &[])?;
    print(out, &form(&summary, place.json, false))?;
    let note = match ended {
        RunEnd::Complete => "",
        RunEnd::BudgetUsed => " (stopped early: time limit reached)",
        RunEnd::Interrupted => " (stopped early: interrupted)",
    };
    meter.say(&format!(
        "samples, summary and report.html: {}{note}",
        folder.display()
    ));
    let code = verdict(&broken).max(measured(&summary));
    Ok(if ended == RunEnd::Interrupted {
        INTERRUPTED
    } else {
        code
    })
}

/// Prints the subjects that have no valid sample. Returns exit code 1 if there are any.
fn measured(summary: &Summary) -> u8 {
    let failed = summary.failed_subjects();
    for (subject, reason) in &failed {
        // A closed standard error is ignored; the exit status reports the failure, too.
        let _ = writeln!(
            std::io::stderr(),
            "tollgate: cannot measure {subject}: every sample failed: {reason}\n  \
             help: run the subject's command line by hand"
        );
    }
    u8::from(!failed.is_empty())
}

fn form(summary: &Summary, json: bool, markdown: bool) -> String {
    match (json, markdown) {
        (true, _) => summary.json(),
        (_, true) => summary.markdown(),
        _ => summary.text(),
    }
}

pub(crate) fn print(out: &mut dyn Write, text: &str) -> Result<u8, Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader (`head`, a pager) closed the pipe.
        Err(source) if source.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(source) => Err(Error::Print { source }),
        Ok(()) => Ok(0),
    }
}

/// Returns `results/DATE-NAME`, with a number appended from the second run of a day on.
fn free_folder(name: &str) -> PathBuf {
    let date = jiff::Zoned::now().date();
    let first = PathBuf::from(format!("results/{date}-{name}"));
    std::iter::once(first.clone())
        .chain((2..).map(|n| PathBuf::from(format!("results/{date}-{name}-{n}"))))
        .find(|folder| !folder.exists())
        .unwrap_or(first)
}

/// Progress on standard error: one line that is rewritten on a terminal, one line for each round otherwise.
struct Meter {
    terminal: bool,
    round: u32,
}

impl Meter {
    fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            round: 0,
        }
    }

    fn show(&mut self, progress: Progress<'_>) {
        let Progress {
            sample,
            round,
            rounds,
            left,
        } = progress;
        let left = left.as_secs();
        if self.terminal {
            let line = format!(
                "round {round}/{rounds}  {} under {}  about {left} s left",
                sample.workload, sample.subject
            );
            self.write(&format!("\r\x1b[K{line}"));
        } else if round != self.round {
            self.say(&format!("round {round}/{rounds}, about {left} s left"));
        }
        self.round = round;
    }

    fn clear(&self) {
        if self.terminal {
            self.write("\r\x1b[K");
        }
    }

    fn say(&self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    /// Writes progress. Ignores a failed write, which is no reason to stop measuring.
    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: Bench,
    }

    fn parse(line: &str) -> Result<Verb, clap::Error> {
        let words = crate::command_line::split(line).unwrap();
        Ok(Program::try_parse_from(words)?.bench.verb.expect("it has a verb"))
    }

    #[test]
    fn quick_takes_its_options() {
        let line = "bench quick --rounds 3 --subject 'a=x {}' --subject 'b=y {}' --workload ^op \
                    --seed 9 --budget 5 --out /nowhere";
        let Verb::Quick(quick) = parse(line).unwrap() else {
            panic!("quick")
        };
        assert_eq!((quick.rounds, quick.seed, quick.budget), (3, 9, 5));
        assert_eq!(quick.subjects, ["a=x {}", "b=y {}"]);
        assert_eq!(quick.out.out, Some(PathBuf::from("/nowhere")));
        assert!(quick.workload.unwrap().is_match("open_close"));
    }

    #[test]
    fn a_command_needs_two_dashes_and_no_verb() {
        let bench = |line: &str| {
            let words = crate::command_line::split(line).unwrap();
            Program::try_parse_from(words).map(|program| program.bench)
        };
        let own = bench("bench --rounds 7 --engine ptrace -- make -j2").unwrap();
        assert!(own.verb.is_none());
        assert_eq!(own.own.command, ["make", "-j2"]);
        for wrong in ["bench make", "bench --rounds 7", "bench --rounds 0 -- make", "bench quick -- make"] {
            assert!(bench(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn compare_takes_a_plan_or_two_folders() {
        assert!(parse("bench compare --plan p.toml").is_ok());
        assert!(parse("bench compare a b").is_ok());
        for wrong in [
            "compare",
            "compare a",
            "compare a b c",
            "compare --plan p a b",
            "compare a b --fail-if ratio>2",
            "compare a b --out c",
        ] {
            assert!(parse(&format!("bench {wrong}")).is_err(), "{wrong}");
        }
        assert!(parse("bench quick --workload (").is_err());
        assert!(parse("bench quick --rounds 0").is_err());
    }

    fn quick(subject: &str, workload: &str) -> u8 {
        let folder = tempfile::tempdir().unwrap();
        let line = format!(
            "bench quick --rounds 1 --workload '{workload}' --subject \"{subject}\" --out {}",
            folder.path().join("results").display()
        );
        let bench = Bench {
            verb: Some(parse(&line).unwrap()),
            own: OwnCommand::default(),
        };
        // A program that plays the workloads; one of the two prints a figure.
        let program = folder.path().join("program");
        let text = "#!/bin/sh\ncase $2 in umask) exit 3; esac\n\
                    echo '{\"operations\": 10, \"elapsed_ns\": 1000}'\n";
        std::fs::write(&program, text).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        execute(&bench, &program, &mut Vec::new()).unwrap()
    }

    #[test]
    fn a_subject_that_always_fails_ends_with_1_and_one_that_sometimes_fails_does_not() {
        assert_eq!(quick("broken=sh -c 'exit 4' {}", "^getppid$"), 1);
        assert_eq!(quick("env=env {}", "^(getppid|umask)$"), 0);
    }

    /// Runs real processes from plan to summary, then makes the summary again from the folder alone.
    #[test]
    fn a_plan_of_true_runs_and_can_be_reported_again() {
        let folder = tempfile::tempdir().unwrap();
        let (plan, results) = (
            folder.path().join("plan.toml"),
            folder.path().join("results"),
        );
        let text = "name = 'smoke'\nrounds = 6\n\
            [[workload]]\nname = 'true'\ncommand = 'true'\nfigure = 'wall'\n\
            [[subject]]\nname = 'shell'\nwrapper = \"sh -c '{}'\"\n\
            [[subject]]\nname = 'broken'\nwrapper = \"sh -c 'exit 4' {}\"\n";
        std::fs::write(&plan, text).unwrap();
        let place = OutputOptions {
            out: Some(results.clone()),
            json: false,
            fail_if: vec!["invalid:shell>0".to_owned()],
        };
        let compare = Compare {
            plan: Some(plan),
            folders: Vec::new(),
            out: place,
        };
        let mut printed = Vec::new();
        let bench = Bench {
            verb: Some(Verb::Compare(compare)),
            own: OwnCommand::default(),
        };
        let code = execute(&bench, Path::new("/nowhere"), &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(code, 1, "every sample of `broken` failed");
        assert!(printed.contains("left out: 6 of 6 samples of true under broken: exit status 4"));
        let samples = std::fs::read_to_string(results.join("samples.jsonl")).unwrap();
        assert_eq!(samples.lines().count(), 24);
        for file in [
            "plan.json",
            "host.json",
            "summary.txt",
            "summary.md",
            "summary.json",
            "report.html",
            "junit.xml",
        ] {
            assert!(results.join(file).exists(), "{file}");
        }
        let report = Report {
            folder: results,
            json: false,
            markdown: false,
            history: Vec::new(),
            fail_if: vec!["invalid:broken>5".to_owned()],
        };
        let mut again = Vec::new();
        let bench = Bench {
            verb: Some(Verb::Report(report)),
            own: OwnCommand::default(),
        };
        let code = execute(&bench, Path::new("/nowhere"), &mut again).unwrap();
        assert_eq!(code, 1, "six samples of `broken` failed");
        assert_eq!(String::from_utf8(again).unwrap(), printed);
    }
}
