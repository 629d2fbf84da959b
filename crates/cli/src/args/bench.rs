//! The command line of `tollgate bench`.

#[cfg(feature = "bench")]
mod options;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use regex::Regex;

/// Headings of options in help texts.
const MEASUREMENT: &str = "Measurement options";
const RESULTS: &str = "Result options";
const OWN: &str = "Options for CMD";

/// `tollgate bench`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    /// Verb to run
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    own: OwnCommand,
}

/// `tollgate bench -- CMD`.
#[derive(Args, Clone, Debug)]
struct OwnCommand {
    /// Number of rounds; each runs CMD plain, plain again and watched; a verdict needs 6 [default: 10 or
    /// more, by the time that CMD takes]
    #[arg(long, value_name = "N", help_heading = OWN, requires = "command",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Number of rounds before those that count
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = OWN)]
    warmup: u32,
    /// Run this shell command before each run of CMD, such as 'make clean'
    #[arg(long, value_name = "SHELL", help_heading = OWN, requires = "command")]
    prepare: Option<String>,
    /// Capture engine that CMD is watched by
    #[arg(long, value_enum, default_value_t = super::Engine::Auto, hide_possible_values = true,
          value_name = "auto|notify|ptrace|ebpf", help_heading = OWN)]
    engine: super::Engine,
    /// Go on if CMD fails
    #[arg(long, help_heading = OWN, requires = "command")]
    ignore_failure: bool,
    /// Show what CMD prints [default: discard it]
    #[arg(long, help_heading = OWN, requires = "command")]
    show_output: bool,
    /// Seed of the random order in each round
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = OWN)]
    seed: u64,
    /// Write all times to FILE, with the keys of hyperfine
    #[arg(long, value_name = "FILE", help_heading = OWN, requires = "command")]
    export_json: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = OWN, requires = "command")]
    json: bool,
    /// The command and its arguments, after --
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// The verbs of `tollgate bench`.
#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Measure common calls, opens, processes and shells in three minutes
    Quick(Quick),
    /// Run the twelve tests of UnixBench and compute its index
    Unix(Unix),
    /// Run the five operations of OSBench
    Os(Suite),
    /// Measure single system calls: latency, neighbours, delay
    Syscalls(Syscalls),
    /// Measure the container life cycle with every installed OCI runtime
    Lifecycle(Suite),
    /// Measure parts of tollgate: replay, alerts, start, filter size
    Engine(Suite),
    /// Measure real servers and jobs that are installed
    Apps(Suite),
    /// Run a plan, or compare two result folders
    Compare(Compare),
    /// Write the summary of a result folder as HTML, JSON and Markdown
    Report(Report),
    #[command(flatten)]
    Plans(PlanVerb),
}

/// The verbs that only plans use.
#[derive(Clone, Debug, Subcommand)]
enum PlanVerb {
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

/// `tollgate bench beside`: a watcher and a command.
#[derive(Args, Clone, Debug)]
struct WatcherCommand {
    /// WATCHER -- COMMAND
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// `tollgate bench neighbour`: a load, and what runs meanwhile.
#[derive(Args, Clone, Debug)]
struct BackgroundLoad {
    #[arg(long)]
    load: String,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// `tollgate bench inside`: surroundings and a command.
#[derive(Args, Clone, Debug)]
struct Inside {
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

/// `tollgate bench client`: requests, and the server's command line.
#[derive(Args, Clone, Debug)]
struct ClientAndServer {
    #[arg(value_enum)]
    server: Server,
    /// The command, or the path
    #[arg(long)]
    ask: String,
    #[arg(long)]
    clients: u32,
    #[arg(long)]
    requests: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A server that has a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Server {
    Redis,
    Nginx,
    Apache,
}

/// `tollgate bench part`: a part of tollgate, and for how long.
#[derive(Args, Clone, Debug)]
struct PartArgs {
    #[arg(value_enum)]
    part: Part,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// A part of tollgate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Events of a recording, evaluated by rules
    ReplayRules,
    /// Events of a recording, searched by a condition
    ReplayFilter,
    /// From a call to its alert
    AlertLatency,
    /// `tollgate run` of a program that does nothing
    Start,
}

/// `tollgate bench filter`: the size of a filter and a command.
#[derive(Args, Clone, Debug)]
struct Filter {
    size: String,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// `tollgate bench original`: a test of UnixBench, and where UnixBench is.
#[derive(Args, Clone, Debug)]
struct UnixBenchTest {
    test: String,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value_t = 1)]
    copies: u16,
    folder: PathBuf,
}

/// `tollgate bench quick`.
#[derive(Args, Clone, Debug)]
struct Quick {
    /// Number of runs of each workload under each subject; a verdict needs 6
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Command line to measure, with {} in place of the workload; repeatable [default: tollgate run]
    #[arg(long = "subject", value_name = "NAME='wrapper {}'")]
    subjects: Vec<String>,
    /// Measure only workloads whose name matches this regular expression [default: all]
    #[arg(long, value_name = "REGEX")]
    workload: Option<Regex>,
    /// Seed of the random order of subjects in each round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time limit in seconds: start no round that would end later
    #[arg(long, value_name = "SECONDS", default_value_t = 170)]
    budget: u64,
    #[command(flatten)]
    out: Output,
}

/// `tollgate bench os`, `lifecycle`, `engine` and `apps`.
#[derive(Args, Clone, Debug)]
struct Suite {
    #[command(flatten)]
    choice: SuiteArgs,
    #[command(flatten)]
    out: Output,
}

/// `tollgate bench syscalls`.
#[derive(Args, Clone, Debug)]
struct Syscalls {
    #[command(flatten)]
    choice: SuiteArgs,
    #[command(flatten)]
    out: Output,
    /// Number of calls in a sample [default: 50 million; 200,000 with --quick]
    #[arg(help_heading = MEASUREMENT, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    calls: Option<u64>,
}

/// `tollgate bench unix`.
#[derive(Args, Clone, Debug)]
struct Unix {
    #[command(flatten)]
    choice: SuiteArgs,
    #[command(flatten)]
    out: Output,
    /// Number of parallel copies of each test; repeatable [default: 1 and the number of CPUs]
    #[arg(help_heading = MEASUREMENT, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    copies: Vec<u16>,
    /// Measure as UnixBench does: three or ten passes of 10 to 60 seconds each, without the worst third; takes
    /// hours
    #[arg(help_heading = MEASUREMENT, long, conflicts_with_all = ["rounds", "precision", "quick", "seconds"])]
    classic: bool,
    /// With --classic: number of passes of the long tests; other tests make a third of them [default: 10]
    #[arg(help_heading = MEASUREMENT, long, short = 'i', value_name = "N", requires = "classic",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    passes: Option<u32>,
    /// Length of one sample in seconds
    #[arg(help_heading = MEASUREMENT, long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Also measure the original programs of a built UnixBench in DIR, the folder with `pgms`
    #[arg(help_heading = MEASUREMENT, long, value_name = "DIR")]
    unixbench: Option<PathBuf>,
}

/// Options of every suite.
#[derive(Args, Clone, Debug)]
struct SuiteArgs {
    /// Subject to measure: a name that --list shows, or NAME='wrapper {}' with {} in place of the workload;
    /// repeatable [default: those that work here]
    #[arg(help_heading = MEASUREMENT, long = "subject", value_name = "NAME")]
    subjects: Vec<String>,
    /// Measure only workloads whose name matches this regular expression [default: all]
    #[arg(help_heading = MEASUREMENT, long, value_name = "REGEX")]
    workload: Option<Regex>,
    /// Number of runs of each workload under each subject; a verdict needs 6 [default: by suite]
    #[arg(help_heading = MEASUREMENT, long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Add rounds until every ratio is known to PERCENT percent, or --budget is used up
    #[arg(help_heading = MEASUREMENT, long, value_name = "PERCENT")]
    precision: Option<f64>,
    /// Time limit in seconds: start no round that would end later [default: by suite]
    #[arg(help_heading = MEASUREMENT, long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Take short samples, to check that everything works
    #[arg(help_heading = MEASUREMENT, long)]
    quick: bool,
    /// Environment of all runs, native ones too
    #[arg(help_heading = MEASUREMENT, long, value_enum, default_value_t = Environment::Plain, hide_possible_values = true,
          value_name = "plain|container|quarter-cpu|session")]
    setup: Environment,
    /// Load rules from this file for tollgate subjects; repeatable [default: the built-in rules]
    #[arg(help_heading = MEASUREMENT, short = 'r', long = "rules", value_name = "RULES")]
    rules: Vec<PathBuf>,
    /// Seed of the random order of subjects in each round
    #[arg(help_heading = MEASUREMENT, long, default_value_t = 1)]
    seed: u64,
    /// List workloads and named subjects, and exit
    #[arg(help_heading = MEASUREMENT, long)]
    list: bool,
}

/// Where commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Environment {
    /// As they are
    Plain,
    /// In new namespaces, with the capabilities that Docker leaves
    Container,
    /// In a control group with a quarter of a processor, agent included
    QuarterCpu,
    /// In a session that enters a container from outside, as `docker exec` does
    Session,
}

/// `tollgate bench compare`.
#[derive(Args, Clone, Debug)]
struct Compare {
    /// Plan to run: TOML, or JSON if its name ends in .json
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "folders",
        required_unless_present = "folders"
    )]
    plan: Option<PathBuf>,
    /// Two result folders to compare: before and after
    #[arg(num_args = 2, value_name = "DIR", conflicts_with_all = ["out", "fail_if"])]
    folders: Vec<PathBuf>,
    #[command(flatten)]
    out: Output,
}

/// Where results go, and how they are printed.
#[derive(Args, Clone, Debug)]
struct Output {
    /// Write samples and summary to this folder [default: results/DATE-NAME]
    #[arg(long, help_heading = RESULTS, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long, help_heading = RESULTS)]
    json: bool,
    /// Exit with status 1 if LIMIT is true, such as 'index<0.9' or 'ratio:SUBJECT:WORKLOAD>6', where index is
    /// speed / native speed and ratio is time / native time; also drops and invalid; repeatable
    #[arg(long, value_name = "LIMIT", help_heading = RESULTS)]
    fail_if: Vec<String>,
}

/// `tollgate bench report`.
#[derive(Args, Clone, Debug)]
struct Report {
    /// Result folder to summarise
    folder: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Result folder of an earlier run, oldest first, for the trend; repeatable
    #[arg(long, value_name = "DIR")]
    history: Vec<PathBuf>,
    /// Exit with status 1 if LIMIT is true, such as 'index<0.9' or 'ratio:SUBJECT:WORKLOAD>6'; repeatable
    #[arg(long, value_name = "LIMIT")]
    fail_if: Vec<String>,
}

#[cfg(test)]
mod tests {
    use bench::options;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: Bench,
    }

    fn parse(line: &str) -> Result<options::Verb, clap::Error> {
        let words = workload::split_words(line).unwrap();
        Ok(Program::try_parse_from(words)?.bench.into())
    }

    #[test]
    fn quick_takes_its_options() {
        let line = "bench quick --rounds 3 --subject 'a=x {}' --subject 'b=y {}' --workload ^op \
                    --seed 9 --budget 5 --out /nowhere";
        let options::Verb::Quick(quick) = parse(line).unwrap() else {
            panic!("quick")
        };
        assert_eq!((quick.rounds, quick.seed, quick.budget), (3, 9, 5));
        assert_eq!(quick.subjects, ["a=x {}", "b=y {}"]);
        assert_eq!(quick.out.out, Some(PathBuf::from("/nowhere")));
        assert!(quick.workload.unwrap().is_match("open_close"));
    }

    #[test]
    fn a_command_needs_two_dashes_and_no_verb() {
        let line = "bench --rounds 7 --engine ptrace -- make -j2";
        let options::Verb::Own(own) = parse(line).unwrap() else {
            panic!("own")
        };
        assert_eq!((own.rounds, own.engine.as_str()), (Some(7), "ptrace"));
        assert_eq!(own.command, ["make", "-j2"]);
        for wrong in ["make", "--rounds 7", "--rounds 0 -- make", "quick -- make"] {
            assert!(parse(&format!("bench {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn compare_takes_a_plan_or_two_folders() {
        let plan = parse("bench compare --plan p.toml").unwrap();
        assert!(
            matches!(plan, options::Verb::Plan(path, _) if path == std::path::Path::new("p.toml"))
        );
        let folders = parse("bench compare a b").unwrap();
        assert!(
            matches!(folders, options::Verb::Compare(compare) if compare.folders == ["a", "b"].map(PathBuf::from))
        );
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

    #[test]
    fn a_suite_without_options_has_the_defaults_of_suites() {
        let options::Verb::Os(suite, _) = parse("bench os").unwrap() else {
            panic!("os")
        };
        let default = options::SuiteOptions::default();
        assert_eq!(format!("{:?}", suite.choice), format!("{default:?}"));
    }

    /// Crate `bench` writes these names into the command lines of plans.
    #[test]
    fn servers_and_environments_are_parsed_by_the_names_that_plans_use() {
        fn name(value: &impl ValueEnum) -> String {
            value.to_possible_value().unwrap().get_name().to_owned()
        }
        for server in Server::value_variants() {
            assert_eq!(name(server), options::Server::from(*server).name());
        }
        for setup in Environment::value_variants() {
            assert_eq!(name(setup), options::Environment::from(*setup).name());
        }
    }
}
