//! Load generators that state which events a monitor must see.
//!
//! Each load is one file in `load/` and one row in [`WORKLOADS`]. Most are a loop around one system call. The
//! loop is timed inside the process, in batches, so that the start of the process (and whatever a subject does
//! at that moment) is not counted. The result is one line of JSON:
//!
//! ```json
//! {"workload":"getppid","operations":2151000,"elapsed_ns":200010033,"windows":[92.1,92.0]}
//! ```
//!
//! `windows` holds, for each of up to twenty slices of the run, the fastest batch of the slice in nanoseconds
//! per operation: short disturbances do not affect it.
//!
//! Every load checks its own work: a call that returns another result than expected ends the load with an
//! error, so that no load is fast because it failed.

mod copies;
mod error;
mod latency;
mod load;
mod measure;
mod osbench;
mod registry;
mod split_words;
pub mod unixbench;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};

pub use error::Error;
pub use load::expect_count;
pub use measure::LoadResult;
pub use registry::{WORKLOADS, Workload, find, nearest};
pub use split_words::split_words;

use measure::Setup;

/// Run one load generator
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Its name; `list` shows all
    pub name: String,
    /// How long each thread repeats the operation
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub seconds: f64,
    /// How often each thread repeats the operation, instead of for a time
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Threads that do the same at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Copies of the load, each a process of its own, whose operations are added up and whose times
    /// are averaged
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub copies: u16,
    /// Settle and warm up before the clock runs for as long as UnixBench does
    #[arg(long)]
    pub classic: bool,
    /// Time every operation and report percentiles
    #[arg(long)]
    pub latency: bool,
    /// Processes that repeat the same meanwhile, to delay this one
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub attackers: u16,
    /// Operations that each thread makes in a second, with pauses in between; 0 for as many as it can
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// The call that the load `study` makes
    #[arg(long, default_value = "getpid")]
    pub call: String,
    /// What the containers of the load `container` run: hello, pause or yes
    #[arg(long, default_value = "hello")]
    pub program: String,
    /// The command line of the OCI runtime that it uses
    #[arg(long, default_value = "runc")]
    pub runtime: String,
    /// Processes, for loads that start some
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub processes: u16,
    /// The file to open or program to run, instead of the load's own
    #[arg(long)]
    pub path: Option<PathBuf>,
    /// Where a load writes what a watcher must see
    #[arg(long)]
    pub oracle: Option<PathBuf>,
    /// Time between two SIGALRM, for loads that arm a timer; 0 for none
    #[arg(long, default_value_t = 1000)]
    pub alarm_us: u64,
    /// How the processes of such a load handle SIGALRM
    #[arg(long, value_enum, default_value_t = Handler::Both)]
    pub handler: Handler,
    /// For the processes that a load starts: what they are
    #[arg(long, hide = true)]
    pub role: Option<String>,
}

#[cfg(test)]
impl Args {
    /// Returns arguments for this number of operations of a load, with all other options at their defaults.
    pub(crate) fn for_tests(name: &str, operations: u64) -> Self {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            args: Args,
        }
        let operations = operations.to_string();
        let line = ["workload", name, "--operations", &operations];
        <Program as clap::Parser>::parse_from(line).args
    }
}

/// How a process handles a signal that arrives during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Handler {
    /// Half of the processes in one way, half in the other
    Both,
    /// Without SA_RESTART: the call may end with EINTR
    Interrupt,
    /// With SA_RESTART: the kernel makes the call again
    Restart,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("expected a number of seconds above 0 and up to 86400".to_owned()),
    }
}

/// Runs a load, prints its result line to `out` and problems to standard error. Returns the exit code: 0, 2 for
/// invalid input, or 4 if a call returned an unexpected result.
///
/// Loads that need another process start `PROGRAM workload NAME --role ROLE ...`. That command line must call
/// this function again.
pub fn run(args: &Args, program: &Path, out: &mut dyn Write) -> u8 {
    let Err(error) = try_run(args, program, out) else {
        return 0;
    };
    let text = format!("tollgate: workload {}: {}", args.name, error.chain());
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "{text}");
    error.exit_code()
}

fn try_run(args: &Args, program: &Path, out: &mut dyn Write) -> Result<(), Error> {
    if args.name == "list" {
        return registry::list(out);
    }
    let workload = find(&args.name)?;
    if let Some(role) = &args.role {
        return load::play(role, args, out);
    }
    let measured = if args.copies > 1 {
        copies::run(args, program)?
    } else {
        let setup = Setup::new(args, program)?;
        if args.classic {
            measure::settle(1, 2);
        }
        let _attackers = copies::Attackers::start(args, program)?;
        workload.measure(&setup)?
    };
    writeln!(out, "{}", measured.json(workload.name))
        .and_then(|()| out.flush())
        .map_err(|source| Error::Print { source })
}
