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
mod options;
mod osbench;
mod registry;
mod split_words;
pub mod unixbench;

use std::io::Write;
use std::path::Path;

pub use error::Error;
pub use load::expect_count;
pub use measure::LoadResult;
pub use options::{Handler, LoadOptions, MAX_PARALLEL, MAX_SECONDS};
pub use registry::{WORKLOADS, Workload, find, nearest};
pub use split_words::split_words;

use measure::Setup;

/// Runs a load, prints its result line to `out` and problems to standard error. Returns the exit code: 0, 2 for
/// invalid input, or 4 if a call returned an unexpected result.
///
/// Loads that need another process start `PROGRAM workload NAME --role ROLE ...`. That command line must call
/// this function again.
pub fn run(options: &LoadOptions, program: &Path, out: &mut dyn Write) -> u8 {
    let Err(error) = try_run(options, program, out) else {
        return 0;
    };
    let text = format!("tollgate: workload {}: {}", options.name, error.chain());
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "{text}");
    error.exit_code()
}

fn try_run(options: &LoadOptions, program: &Path, out: &mut dyn Write) -> Result<(), Error> {
    if options.name == "list" {
        return registry::list(out);
    }
    let workload = find(&options.name)?;
    if let Some(role) = &options.role {
        return load::play(role, options, out);
    }
    let measured = if options.copies > 1 {
        copies::run(options, program)?
    } else {
        let setup = Setup::new(options, program)?;
        if options.classic {
            measure::settle(1, 2);
        }
        let _attackers = copies::Attackers::start(options, program)?;
        if let Some(file) = &options.started {
            std::fs::write(file, "started\n").map_err(Error::file("write", file))?;
        }
        workload.measure(&setup)?
    };
    writeln!(out, "{}", measured.json(workload.name))
        .and_then(|()| out.flush())
        .map_err(|source| Error::Print { source })
}
