//! `tollgate bench -- CMD`: the time of a command without tollgate and under it.
//!
//! Each round runs the command plain, plain again (the control) and watched, in random order, so that a drift of
//! the machine meets all of them.

mod result;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::result::{Result as Compared, Run};
use crate::execute::{Execution, Executor, Invocation, Output, Processes};
use crate::order::Schedule;
use crate::record::{self, Exit};
use crate::{Error, Stop};

/// What a round runs, in the order of the report.
const SUBJECTS: [&str; 3] = ["plain", "plain again", "watched"];
const WATCHED: usize = 2;
/// Rounds without `--rounds`: at least as many as hyperfine runs, and more of quick commands, until their time
/// adds up to [`ENOUGH`].
const ROUNDS: u32 = 10;
const MOST_ROUNDS: u32 = 100;
const ENOUGH: Duration = Duration::from_secs(9);
/// A command that takes longer is killed: nobody waits for the rounds of one that hangs.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Exit code after Ctrl-C, as a shell gives it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Options of `tollgate bench -- CMD`.
#[derive(Clone, Debug)]
pub struct OwnCommand {
    /// Number of rounds. `None`: 10 or more, by the time that the command takes.
    pub rounds: Option<u32>,
    /// Number of rounds before those that count.
    pub warmup: u32,
    /// Shell command to run before each run of the command.
    pub prepare: Option<String>,
    /// Engine of `tollgate run`, as its option `--engine` takes it.
    pub engine: String,
    /// Goes on if the command fails.
    pub ignore_failure: bool,
    /// Shows what the command prints.
    pub show_output: bool,
    /// Seed of the random order in each round.
    pub seed: u64,
    /// File for all times.
    pub export_json: Option<PathBuf>,
    /// Prints JSON.
    pub json: bool,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// Why no further round is run.
#[derive(Debug, PartialEq)]
enum End {
    Complete,
    Interrupted,
}

/// Measures the command and prints the result. Returns the program's exit code.
pub(crate) fn execute(
    asked: &OwnCommand,
    program: &Path,
    out: &mut dyn Write,
) -> Result<u8, Error> {
    if asked.command.is_empty() {
        return Err(Error::NothingToMeasure);
    }
    let stop = Stop::on_signals()?;
    let output = match asked.show_output {
        true => Output::Shown,
        false => Output::Discarded,
    };
    let mut processes = Processes::with_output(&stop, output);
    let (compared, end) = compare(asked, program, &mut processes, &stop)?;
    let json = compared.json();
    if let Some(path) = &asked.export_json {
        record::write(path, &json)?;
    }
    let text = match asked.json {
        true => json,
        false => compared.text(),
    };
    crate::output::print(out, &text)?;
    Ok(match end {
        End::Complete => 0,
        End::Interrupted => INTERRUPTED,
    })
}

/// Runs all rounds.
fn compare(
    asked: &OwnCommand,
    program: &Path,
    executor: &mut dyn Executor,
    stop: &Stop,
) -> Result<(Compared, End), Error> {
    let mut compared = Compared::new(asked.command.clone(), asked.engine.clone(), asked.seed);
    let mut rounds = Rounds {
        asked,
        program,
        executor,
        schedule: Schedule::new(1, SUBJECTS.len(), asked.seed),
    };
    for _ in 0..asked.warmup {
        if rounds.next(stop)?.is_none() {
            return Ok((compared, End::Interrupted));
        }
    }
    let start = Instant::now();
    for number in 1.. {
        let progress = Progress::new(number, asked.rounds);
        progress.show();
        let round = rounds.next(stop)?;
        progress.clear();
        let Some(round) = round else {
            return Ok((compared, End::Interrupted));
        };
        compared.push(round);
        let is_last = match asked.rounds {
            Some(rounds) => number >= rounds,
            None => number >= MOST_ROUNDS || (number >= ROUNDS && start.elapsed() >= ENOUGH),
        };
        if is_last {
            break;
        }
    }
    Ok((compared, End::Complete))
}

struct Rounds<'a> {
    asked: &'a OwnCommand,
    program: &'a Path,
    executor: &'a mut dyn Executor,
    schedule: Schedule,
}

impl Rounds<'_> {
    /// Runs each subject once. `None` if the user ended it: a round counts as a whole or not at all.
    fn next(&mut self, stop: &Stop) -> Result<Option<[Run; 3]>, Error> {
        let mut round = [Run::default(); 3];
        for slot in self.schedule.next_round() {
            if let Some(prepare) = &self.asked.prepare {
                let words = ["sh", "-c", prepare].map(str::to_owned).to_vec();
                let done = self.run(words)?;
                if let Some(how) = done.exit.failure().filter(|_| !stop.is_requested()) {
                    return Err(failed("--prepare", prepare, &how, &done, ""));
                }
            }
            let done = self.run(self.words(slot.subject))?;
            if stop.is_requested() || done.exit == Exit::Interrupted {
                return Ok(None);
            }
            if let Some(how) = done.exit.failure().filter(|_| !self.asked.ignore_failure) {
                let line = crate::command_line::join(&self.asked.command);
                let help = "; --ignore-failure measures commands that fail";
                return Err(failed(SUBJECTS[slot.subject], &line, &how, &done, help));
            }
            round[slot.subject] = Run::from(&done);
        }
        Ok(Some(round))
    }

    fn words(&self, subject: usize) -> Vec<String> {
        let mut words = Vec::new();
        if subject == WATCHED {
            words.push(self.program.display().to_string());
            let options = ["run", "-q", "--engine", &self.asked.engine, "--"];
            words.extend(options.map(str::to_owned));
        }
        words.extend(self.asked.command.iter().cloned());
        words
    }

    fn run(&mut self, argv: Vec<String>) -> Result<Execution, Error> {
        // Up to a page: the size of the environment moves the stack, which can change times.
        let padding = usize::try_from(self.schedule.sample_seed() % 4096).unwrap_or(0);
        self.executor.execute(&Invocation {
            argv,
            padding,
            timeout: TIMEOUT,
        })
    }
}

fn failed(subject: &str, line: &str, how: &str, done: &Execution, help: &str) -> Error {
    let last = done
        .stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty());
    let last = last.map_or_else(String::new, |line| format!(": {line}"));
    Error::CommandFailed {
        subject: subject.to_owned(),
        line: line.to_owned(),
        reason: format!("{how}{last}{help}"),
    }
}

/// The round that runs, on standard error if that is a terminal.
struct Progress(Option<String>);

impl Progress {
    fn new(number: u32, of: Option<u32>) -> Self {
        let of = of.map_or_else(String::new, |of| format!("/{of}"));
        Self(
            std::io::stderr()
                .is_terminal()
                .then(|| format!("round {number}{of}")),
        )
    }

    fn show(&self) {
        if let Some(line) = &self.0 {
            Self::write(&format!("\r\x1b[K{line}"));
        }
    }

    fn clear(&self) {
        if self.0.is_some() {
            Self::write("\r\x1b[K");
        }
    }

    /// Writes progress. Ignores a failed write, which is no reason to stop measuring.
    fn write(text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs nothing: watched commands take twice as long as plain ones.
    struct Pretended {
        ran: Vec<String>,
        exit: Exit,
    }

    impl Executor for Pretended {
        fn execute(&mut self, invocation: &Invocation) -> Result<Execution, Error> {
            let is_watched = invocation.argv.iter().any(|word| word == "run");
            let count = u64::try_from(self.ran.len()).expect("few");
            self.ran.push(invocation.argv.join(" "));
            let base = if is_watched { 2000 } else { 1000 };
            Ok(Execution {
                wall: Duration::from_micros(base + count % 7),
                user: Duration::ZERO,
                sys: Duration::ZERO,
                max_rss_kib: 1,
                exit: self.exit,
                stdout: String::new(),
                stderr: "line\nwhy\n".to_owned(),
            })
        }
    }

    type Measured = (Result<(Compared, End), Error>, Vec<String>);

    fn measured(rounds: u32, exit: Exit) -> Measured {
        let asked = OwnCommand {
            rounds: Some(rounds),
            warmup: 2,
            prepare: Some("sync".to_owned()),
            engine: "auto".to_owned(),
            ignore_failure: false,
            show_output: false,
            seed: 1,
            export_json: None,
            json: false,
            command: vec!["make".to_owned(), "-j2".to_owned()],
        };
        let mut executor = Pretended {
            ran: Vec::new(),
            exit,
        };
        let stop = Stop::new().unwrap();
        let result = compare(&asked, Path::new("/bin/tollgate"), &mut executor, &stop);
        (result, executor.ran)
    }

    #[test]
    fn each_round_runs_all_three_with_preparation_before_each() {
        let (result, ran) = measured(7, Exit::Code(0));
        let (compared, end) = result.unwrap();
        assert_eq!(end, End::Complete);
        assert_eq!(ran.len(), (7 + 2) * 3 * 2);
        assert!(ran.iter().step_by(2).all(|line| line == "sh -c sync"));
        let watched = "/bin/tollgate run -q --engine auto -- make -j2";
        assert_eq!(ran.iter().filter(|line| *line == watched).count(), 9);
        let text = compared.text();
        assert!(
            text.contains("watched takes 2.00 times as long as plain"),
            "{text}"
        );
        assert!(text.contains("slower"), "{text}");
    }

    #[test]
    fn too_few_rounds_have_no_headline() {
        let (result, _) = measured(5, Exit::Code(0));
        let compared = result.unwrap().0;
        let text = compared.text();
        assert!(text.contains("no ratio: too few rounds"), "{text}");
        assert!(!text.contains("watched takes"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&compared.json()).unwrap();
        assert!(json["ratio"].is_null(), "{json}");
        assert_eq!(json["verdict"], "too few rounds");
        assert_eq!(json["results"][2]["times"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn a_failing_command_is_reported_with_its_exit_code() {
        let (result, ran) = measured(7, Exit::Code(3));
        assert_eq!(ran.len(), 1, "the preparation failed first");
        let error = result.unwrap_err();
        assert!(error.to_string().contains("exit status 3: why"), "{error}");
        assert_eq!(error.exit_code(), 1);
    }
}
