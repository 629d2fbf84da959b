//! The command line of `tollgate workload`, and its conversion to the options of crate `workload`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use workload::{LoadOptions, MAX_PARALLEL, MAX_SECONDS};

/// `tollgate workload`.
#[derive(Args, Clone, Debug)]
#[command(about = "Run one load generator")]
pub(crate) struct Workload {
    /// Its name; `list` shows all
    name: String,
    /// How long each thread repeats the operation
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
    /// How often each thread repeats the operation, instead of for a time
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// Threads that do the same at the same time
    #[arg(long, default_value_t = 1, value_parser = parallel(1))]
    threads: u16,
    /// Copies of the load, each a process of its own, whose operations are added up and whose times
    /// are averaged
    #[arg(long, default_value_t = 1, value_parser = parallel(1))]
    copies: u16,
    /// Settle and warm up before the clock runs for as long as UnixBench does
    #[arg(long)]
    classic: bool,
    /// Time every operation and report percentiles
    #[arg(long)]
    latency: bool,
    /// Processes that repeat the same meanwhile, to delay this one
    #[arg(long, default_value_t = 0, value_parser = parallel(0))]
    attackers: u16,
    /// Operations that each thread makes in a second, with pauses in between; 0 for as many as it can
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// The call that the load `study` makes
    #[arg(long, default_value = "getpid")]
    call: String,
    /// What the containers of the load `container` run: hello, pause or yes
    #[arg(long, default_value = "hello")]
    program: String,
    /// The command line of the OCI runtime that it uses
    #[arg(long, default_value = "runc")]
    runtime: String,
    /// Processes, for loads that start some
    #[arg(long, default_value_t = 8, value_parser = parallel(1))]
    processes: u16,
    /// The file to open or program to run, instead of the load's own
    #[arg(long)]
    path: Option<PathBuf>,
    /// Where a load writes what a watcher must see
    #[arg(long)]
    oracle: Option<PathBuf>,
    /// Time between two SIGALRM, for loads that arm a timer; 0 for none
    #[arg(long, default_value_t = 1000)]
    alarm_us: u64,
    /// How the processes of such a load handle SIGALRM
    #[arg(long, value_enum, default_value_t = Handler::Both)]
    handler: Handler,
    /// For the processes that a load starts: what they are
    #[arg(long, hide = true)]
    role: Option<String>,
    /// A file that is made when the clock starts
    #[arg(long, hide = true)]
    started: Option<PathBuf>,
}

/// How a process handles a signal that arrives during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Handler {
    /// Half of the processes in one way, half in the other
    Both,
    /// Without SA_RESTART: the call may end with EINTR
    Interrupt,
    /// With SA_RESTART: the kernel makes the call again
    Restart,
}

/// Returns a parser for a number of threads or processes.
fn parallel(least: i64) -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(least..=i64::from(MAX_PARALLEL))
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => Ok(seconds),
        _ => Err(format!(
            "expected a number of seconds above 0 and up to {MAX_SECONDS}"
        )),
    }
}

impl From<Workload> for LoadOptions {
    fn from(args: Workload) -> Self {
        Self {
            name: args.name,
            seconds: args.seconds,
            operations: args.operations,
            threads: args.threads,
            copies: args.copies,
            classic: args.classic,
            latency: args.latency,
            attackers: args.attackers,
            rate: args.rate,
            call: args.call,
            program: args.program,
            runtime: args.runtime,
            processes: args.processes,
            path: args.path,
            oracle: args.oracle,
            alarm_us: args.alarm_us,
            handler: args.handler.into(),
            role: args.role,
            started: args.started,
        }
    }
}

impl From<Handler> for workload::Handler {
    fn from(args: Handler) -> Self {
        match args {
            Handler::Both => Self::Both,
            Handler::Interrupt => Self::Interrupt,
            Handler::Restart => Self::Restart,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        load: Workload,
    }

    #[test]
    fn a_command_line_without_options_gives_the_defaults_of_the_load() {
        let load = Program::try_parse_from(["workload", "getppid"])
            .unwrap()
            .load;
        let (parsed, default) = (LoadOptions::from(load), LoadOptions::new("getppid"));
        assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    }
}
