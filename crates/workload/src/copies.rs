//! Several processes that run the same load at once.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::measure::{EVENT_RATE, LoadResult};
use crate::{Error, LoadOptions};

/// Runs the requested number of copies of `program workload ...`, and adds up their operations. The time is the
/// mean of their times, as in UnixBench, so that the figure is the rate of all together.
pub(crate) fn run(options: &LoadOptions, program: &Path) -> Result<LoadResult, Error> {
    let copies: Vec<Result<Child, Error>> = (0..options.copies)
        .map(|_| start(options, program))
        .collect();
    let mut all = Vec::new();
    // Every copy that was started is waited for, also if one of them failed.
    let ended: Vec<_> = copies
        .into_iter()
        .map(|copy| copy.and_then(finish))
        .collect();
    for measured in ended {
        all.push(measured?);
    }
    let count = u32::from(options.copies);
    let rates = all.iter().filter_map(|copy| copy.extra.get(EVENT_RATE));
    // The other figures are about one process.
    let extra = rates
        .copied()
        .reduce(|sum, rate| sum + rate)
        .map(|rate| (EVENT_RATE.to_owned(), rate));
    Ok(LoadResult {
        operations: all.iter().map(|copy| copy.operations).sum(),
        elapsed: all.iter().map(|copy| copy.elapsed).sum::<Duration>() / count,
        windows: Vec::new(),
        extra: extra.into_iter().collect(),
    })
}

/// Processes that make the same calls until this is dropped.
pub(crate) struct Attackers {
    processes: Vec<Child>,
}

impl Attackers {
    pub(crate) fn start(options: &LoadOptions, program: &Path) -> Result<Self, Error> {
        let mut attackers = Self {
            processes: Vec::new(),
        };
        let endless = LoadOptions {
            seconds: 86_400.0,
            operations: None,
            ..options.clone()
        };
        for _ in 0..options.attackers {
            attackers.processes.push(start(&endless, program)?);
        }
        if options.attackers > 0 {
            // Lets all processes get under way.
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(attackers)
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // A process that has ended already needs no signal.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn start(options: &LoadOptions, program: &Path) -> Result<Child, Error> {
    let mut command = Command::new(program);
    command.args(["workload", &options.name]);
    match options.operations {
        Some(operations) => command.args(["--operations", &operations.to_string()]),
        None => command.args(["--seconds", &options.seconds.to_string()]),
    };
    command.args(["--threads", &options.threads.to_string()]);
    command.args(["--rate", &options.rate.to_string()]);
    if options.classic {
        command.arg("--classic");
    }
    if let Some(path) = &options.path {
        command.arg("--path").arg(path);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::file("start", program))
}

fn finish(copy: Child) -> Result<LoadResult, Error> {
    let output = copy
        .wait_with_output()
        .map_err(Error::call("wait for a copy"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match LoadResult::parse(&said) {
        Some(measured) if output.status.success() => Ok(measured),
        _ => Err(Error::Unexpected {
            expected: "the result of a copy".to_owned(),
            got: format!("{said:?}, {}", output.status),
        }),
    }
}
