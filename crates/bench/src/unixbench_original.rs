//! UnixBench's own programs, run as its script runs them, with a result line in this project's format.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use workload::unixbench::{LANGUAGE, TESTS, Test};

use crate::Error;
use crate::options::UnixBenchTest;

/// Output and duration of one program.
struct OriginalRun {
    count: f64,
    elapsed: Duration,
}

/// Runs as many copies of a test's program as asked. Returns the line of JSON that the runner reads.
///
/// # Errors
///
/// If the test does not exist, or a program does not start or prints no result.
pub(crate) fn run(options: &UnixBenchTest) -> Result<String, Error> {
    let test = TESTS
        .iter()
        .find(|test| test.name == options.test)
        .ok_or_else(|| Error::Option {
            option: options.test.clone(),
            reason: "UnixBench's index has no such test".to_owned(),
        })?;
    let temporary = crate::scratch()?;
    let start = Instant::now();
    let children: Vec<Result<Child, Error>> = (0..options.copies)
        .map(|_| spawn(&options.folder, temporary.path(), test, options.seconds))
        .collect();
    // Waits for all before it returns the first failure.
    let passed: Vec<Result<OriginalRun, Error>> = children
        .into_iter()
        .map(|child| finish(child?, test, start))
        .collect();
    let passed: Vec<OriginalRun> = passed.into_iter().collect::<Result<_, _>>()?;
    Ok(line(test, &passed))
}

fn spawn(folder: &Path, temporary: &Path, test: &Test, seconds: f64) -> Result<Child, Error> {
    let programs = folder.join("pgms");
    let duration = format!("{seconds:.0}");
    let copy = |block: &str, blocks: &str| {
        let folder = temporary.to_string_lossy().into_owned();
        [
            "-c", "-t", &duration, "-d", &folder, "-b", block, "-m", blocks,
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let scripts = |count: &str| {
        vec![
            duration.clone(),
            programs.join("multi.sh").to_string_lossy().into_owned(),
            count.to_owned(),
        ]
    };
    let (program, arguments) = match test.name {
        "fstime" => ("fstime", copy("1024", "2000")),
        "fsbuffer" => ("fstime", copy("256", "500")),
        "fsdisk" => ("fstime", copy("4096", "8000")),
        "shell1" => ("looper", scripts("1")),
        "shell8" => ("looper", scripts("8")),
        "whetstone-double" => ("whetstone-double", Vec::new()),
        name => (name, vec![duration.clone()]),
    };
    let program = programs.join(program);
    Command::new(&program)
        .args(&arguments)
        .current_dir(folder.join("testdir"))
        .env("LANG", LANGUAGE)
        .env_remove("LC_ALL")
        .env("UB_BINDIR", &programs)
        .env("UB_TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Start {
            program: program.to_string_lossy().into_owned(),
            line: format!("{} {}", program.display(), arguments.join(" ")),
            source,
        })
}

fn finish(child: Child, test: &Test, start: Instant) -> Result<OriginalRun, Error> {
    let output = child
        .wait_with_output()
        .map_err(Error::supervise("wait for", test.name))?;
    let elapsed = start.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    parse(&said, elapsed).ok_or_else(|| Error::Stage {
        reason: format!("{} printed no result: {}", test.name, said.trim()),
    })
}

/// Parses the last of the lines `COUNT|number|timebase|unit`. With a timebase the number is a count of
/// operations within the time, without one a rate.
fn parse(said: &str, elapsed: Duration) -> Option<OriginalRun> {
    let (count, timebase) = said.lines().rev().find_map(|line| {
        let mut words = line.strip_prefix("COUNT|")?.split('|');
        let count: f64 = words.next()?.trim().parse().ok()?;
        Some((count, words.next()?.trim().parse::<f64>().ok()?))
    })?;
    let elapsed = if timebase == 0.0 {
        Duration::from_secs(1)
    } else {
        elapsed.div_f64(timebase)
    };
    (count > 0.0).then_some(OriginalRun { count, elapsed })
}

/// Formats the result. Rates of copies add up. The time per operation is chosen so that our weight gives the
/// same score.
fn line(test: &Test, passed: &[OriginalRun]) -> String {
    let score: f64 = passed
        .iter()
        .map(|one| one.count / one.elapsed.as_secs_f64())
        .sum();
    let operations = 1_000_000_000_u64;
    let elapsed = test.weight * 1e9 / score * operations as f64;
    format!("{{\"operations\":{operations},\"elapsed_ns\":{elapsed:.0}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(name: &str, said: &str, seconds: u64) -> f64 {
        let test = TESTS.iter().find(|test| test.name == name).unwrap();
        let passed = parse(said, Duration::from_secs(seconds)).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line(test, &[passed])).unwrap();
        let figure = line["elapsed_ns"].as_f64().unwrap() / line["operations"].as_f64().unwrap();
        test.score(figure)
    }

    /// Pasted from the programs of UnixBench 6.
    #[test]
    fn real_output_gives_the_scores_of_its_script() {
        assert!((score("syscall", "COUNT|671635|1|lps\n", 2) - 335_817.5).abs() < 0.1);
        assert!(
            (score(
                "whetstone-double",
                "COUNT|4681.881|0|MWIPS\nTIME|10.1\n",
                30
            ) - 4681.881)
                .abs()
                < 0.01
        );
        let copy = "COUNT|700|0|KBps\nTIME|2.0\nCOUNT|163346|0|KBps\nTIME|2.0\n";
        assert!((score("fstime", copy, 9) - 163_346.0).abs() < 0.1);
        assert!((score("shell1", "COUNT|45|60|lpm\n", 3) - 900.0).abs() < 0.1);
        assert!(parse("no result", Duration::from_secs(1)).is_none());
    }
}
