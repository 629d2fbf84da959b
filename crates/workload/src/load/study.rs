//! A published experiment: one call, repeated some million times, timed from outside and from inside.
//!
//! The loop runs in a process of its own. From outside, wait4(2) gives its time in user mode and in the kernel,
//! as time(1) does; from inside, the process reads clock(3)'s clock before and after its loop.

use std::process::{Command, Stdio};
use std::time::Instant;

use wait4::Wait4;

use crate::Error;
use crate::measure::{LoadResult, Setup};

/// The calls of the experiment.
const CALLS: [&str; 5] = ["getpid", "getppid", "gettimeofday", "getuid", "times"];

pub(crate) fn run(setup: &Setup) -> Result<LoadResult, Error> {
    let call = setup.options.call.as_str();
    if !CALLS.contains(&call) {
        return Err(Error::Unexpected {
            expected: format!("--call with one of {}", CALLS.join(", ")),
            got: format!("`{call}`"),
        });
    }
    let operations = setup.options.operations.unwrap_or(1_000_000).to_string();
    let output = setup.scratch().join("output");
    let file = std::fs::File::create(&output).map_err(Error::file("create", &output))?;
    let start = Instant::now();
    let mut child = Command::new(&setup.program)
        .args([
            "workload",
            &format!("raw_{call}"),
            "--operations",
            &operations,
        ])
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()
        .map_err(Error::file("start", &setup.program))?;
    let ended = child.wait4().map_err(Error::call("wait for the loop"))?;
    let real = start.elapsed();
    let said = std::fs::read_to_string(&output).map_err(Error::file("read", &output))?;
    let mut measured = LoadResult::parse(&said)
        .filter(|_| ended.status.success())
        .ok_or_else(|| Error::Unexpected {
            expected: "the result of the loop".to_owned(),
            got: format!("{said:?}, {}", ended.status),
        })?;
    let (user, kernel) = (ended.rusage.utime, ended.rusage.stime);
    let clock = measured.extra.get("clock_ms").copied().unwrap_or(f64::NAN);
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let outside = milliseconds(user) + milliseconds(kernel);
    for (name, value) in [
        ("real_ms", milliseconds(real)),
        ("user_ms", milliseconds(user)),
        ("sys_ms", milliseconds(kernel)),
        ("time_minus_clock_ms", outside - clock),
    ] {
        measured.extra.insert(name.to_owned(), value);
    }
    measured.windows.clear();
    Ok(measured)
}
