//! Options of `tollgate bench`, without the syntax of a command line.

use std::path::PathBuf;

use regex::Regex;

pub use crate::client::{Requests, Server};
pub use crate::part::Part;
pub use crate::suite::{Apps, Engine, Environment, Lifecycle, Os, SuiteOptions, Syscalls, Unix};

/// The verbs of `tollgate bench`. Plans use those from [`Verb::Beside`] on; they are no interface for users.
#[derive(Clone, Debug)]
pub enum Verb {
    /// Measure common calls, opens, processes and shells in three minutes.
    Quick(Quick),
    /// Run the twelve tests of UnixBench and compute its index.
    Unix(Unix, OutputOptions),
    /// Run the five operations of OSBench.
    Os(Os, OutputOptions),
    /// Measure single system calls: latency, neighbours, delay.
    Syscalls(Syscalls, OutputOptions),
    /// Measure the container life cycle with every installed OCI runtime.
    Lifecycle(Lifecycle, OutputOptions),
    /// Measure parts of tollgate: replay, alerts, start, filter size.
    Engine(Engine, OutputOptions),
    /// Measure real servers and jobs that are installed.
    Apps(Apps, OutputOptions),
    /// Run a plan.
    Plan(PathBuf, OutputOptions),
    /// Compare two result folders.
    Compare(Compare),
    /// Write the summary of a result folder as HTML, JSON and Markdown.
    Report(Report),
    /// Run a command while a watcher runs.
    Beside {
        /// WATCHER -- COMMAND.
        words: Vec<String>,
    },
    /// Measure a load while a command runs.
    Neighbour {
        /// Name of the load.
        load: String,
        /// Time that the load runs, in seconds.
        seconds: f64,
        /// The command.
        words: Vec<String>,
    },
    /// Run a command in other surroundings.
    Inside {
        /// The surroundings.
        surroundings: Surroundings,
        /// The command.
        words: Vec<String>,
    },
    /// Start a server, ask it, and end it.
    Client {
        /// The requests.
        requests: Requests,
        /// Command line of the server.
        words: Vec<String>,
    },
    /// Measure a part of tollgate.
    Part {
        /// The part.
        part: Part,
        /// Time to measure, in seconds.
        seconds: f64,
    },
    /// Run a command with a rule about so many calls.
    Filter {
        /// Number of calls, or `opens`.
        size: String,
        /// The command.
        words: Vec<String>,
    },
    /// Run a program of UnixBench itself.
    Original(UnixBenchTest),
}

/// Surroundings that a command line alone cannot make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surroundings {
    /// A control group with a quarter of a processor.
    QuarterCpu,
    /// A session that enters a container from outside.
    Session,
}

/// A test of UnixBench, and where UnixBench is.
#[derive(Clone, Debug)]
pub struct UnixBenchTest {
    /// Name of the test.
    pub test: String,
    /// Length of a sample in seconds.
    pub seconds: f64,
    /// Number of parallel copies.
    pub copies: u16,
    /// Folder of a built UnixBench.
    pub folder: PathBuf,
}

/// Options of `tollgate bench quick`.
#[derive(Clone, Debug)]
pub struct Quick {
    /// Number of runs of each workload under each subject. Not 0; a verdict needs 6.
    pub rounds: u32,
    /// Command lines to measure: `NAME='wrapper {}'`. Empty: `tollgate run`.
    pub subjects: Vec<String>,
    /// Measures only workloads whose name matches. `None`: all.
    pub workload: Option<Regex>,
    /// Seed of the random order of subjects in each round.
    pub seed: u64,
    /// Time limit in seconds: no round starts that would end later.
    pub budget: u64,
    /// Where the samples and the summary go.
    pub out: OutputOptions,
}

/// Options of `tollgate bench compare` with two folders.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Result folders: before and after.
    pub folders: [PathBuf; 2],
    /// Print the comparison as JSON.
    pub json: bool,
}

/// Where results go, and how they are printed.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// Folder for samples and summary. `None`: `results/DATE-NAME`.
    pub out: Option<PathBuf>,
    /// Print the summary as JSON.
    pub json: bool,
    /// Exit with status 1 if one of these limits is true, such as `index<0.9`.
    pub fail_if: Vec<String>,
}

/// Options of `tollgate bench report`.
#[derive(Clone, Debug)]
pub struct Report {
    /// Result folder to summarise.
    pub folder: PathBuf,
    /// Print JSON.
    pub json: bool,
    /// Print a Markdown table.
    pub markdown: bool,
    /// Result folders of earlier runs, oldest first, for the trend.
    pub history: Vec<PathBuf>,
    /// Exit with status 1 if one of these limits is true, such as `index<0.9`.
    pub fail_if: Vec<String>,
}
