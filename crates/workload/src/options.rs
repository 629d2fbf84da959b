//! The options of a load.

use std::path::PathBuf;

/// A load and its options.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Name of the load. `list` prints all loads instead.
    pub name: String,
    /// Time for which each thread repeats the operation, in seconds: above 0 and at most [`MAX_SECONDS`].
    pub seconds: f64,
    /// Number of operations of each thread, instead of a time. Not 0.
    pub operations: Option<u64>,
    /// Number of threads that repeat the operation at the same time: 1 to [`MAX_PARALLEL`].
    pub threads: u16,
    /// Number of copies of the load, each a process of its own: 1 to [`MAX_PARALLEL`]. Their operations are added
    /// up and their times averaged.
    pub copies: u16,
    /// Settle and warm up before the clock runs, for as long as UnixBench does.
    pub classic: bool,
    /// Time every operation and report percentiles.
    pub latency: bool,
    /// Number of processes that repeat the same meanwhile, to delay this one: up to [`MAX_PARALLEL`].
    pub attackers: u16,
    /// Operations of each thread in a second, with pauses in between. 0: as many as it can.
    pub rate: u64,
    /// System call of the load `study`.
    pub call: String,
    /// Program in the containers of the load `container`: hello, pause or yes.
    pub program: String,
    /// Command line of the OCI runtime of that load.
    pub runtime: String,
    /// Number of processes, for loads that start some: 1 to [`MAX_PARALLEL`].
    pub processes: u16,
    /// File to open or program to run. `None`: the load's own.
    pub path: Option<PathBuf>,
    /// File to which the load writes what a watcher must see.
    pub oracle: Option<PathBuf>,
    /// Microseconds between two SIGALRM, for loads that arm a timer. 0: none.
    pub alarm_us: u64,
    /// How processes of such a load handle SIGALRM.
    pub handler: Handler,
    /// Role of this process, if a load started it.
    pub role: Option<String>,
    /// File that the load makes when its clock starts.
    pub started: Option<PathBuf>,
}

/// Longest time of a load, in seconds: one day.
pub const MAX_SECONDS: f64 = 86_400.0;

/// Highest number of threads, copies, attackers or processes.
pub const MAX_PARALLEL: u16 = 1024;

impl LoadOptions {
    /// Returns the options of this load with their defaults.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            seconds: 1.0,
            operations: None,
            threads: 1,
            copies: 1,
            classic: false,
            latency: false,
            attackers: 0,
            rate: 0,
            call: "getpid".to_owned(),
            program: "hello".to_owned(),
            runtime: "runc".to_owned(),
            processes: 8,
            path: None,
            oracle: None,
            alarm_us: 1000,
            handler: Handler::Both,
            role: None,
            started: None,
        }
    }
}

/// How a process handles a signal that arrives during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Half of the processes in one way, half in the other.
    Both,
    /// Without SA_RESTART: the call may end with EINTR.
    Interrupt,
    /// With SA_RESTART: the kernel makes the call again.
    Restart,
}
