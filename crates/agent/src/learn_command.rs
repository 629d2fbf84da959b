//! Records what a command does, and writes a policy from it: `tollgate learn`.

use std::ffi::OsString;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::OnAgentDeath;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::EngineKind;
use policy::Enforcers;
use sys::poll::{self, PollFd};

use crate::confine::Optional;
use crate::learn::{self, Learner, Observations};
use crate::options::{AlertStream, Detection, Interception};
use crate::policy_files;
use crate::spec::{AgentSpec, StartMode};

/// A command, and where what it does is written.
#[derive(Debug)]
pub struct LearnOptions {
    /// Path of the policy.
    pub output: PathBuf,
    /// Path of the model, to which the behaviour is added.
    pub model: Option<PathBuf>,
    /// Number of runs of the command, all for one policy.
    pub runs: u32,
    /// Seconds after which the policy is written, unless the command ends earlier.
    pub duration: Option<u64>,
    /// Enforcers that the policy names.
    pub enforcers: Enforcers,
    /// Where alerts go.
    pub stream: AlertStream,
    /// Print no warnings.
    pub quiet: bool,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// Runs a command, records what it does, and writes a policy.
///
/// # Errors
///
/// The files cannot be read or written, the command cannot be run, or no policy was written although the command
/// succeeded.
pub fn execute(args: LearnOptions) -> Outcome {
    for file in std::iter::once(&args.output).chain(&args.model) {
        learn::can_write(file)?;
    }
    if let Some(model) = &args.model {
        learn::are_two(&args.output, model)?;
    }
    let known = match earlier_runs(&args)? {
        EarlierRuns::Failed(exit) => return Ok(exit),
        EarlierRuns::Known(model) => model.map(|model| *model),
    };
    let own = sys::credential::capabilities(0);
    // If the capabilities cannot be read, assumes that there are some.
    let is_privileged = own.map_or(true, |sets| sets.permitted.0 != 0);
    let (written, ready) = std::io::pipe().map_err(|error| {
        Failure::new(Exit::Unsupported, format!("cannot make a pipe: {error}"))
            .help("raise the limit of open files (`ulimit -n`)")
    })?;
    let output = args.output.clone();
    let learner = Learner {
        output: args.output,
        model: args.model,
        duration: args.duration.map(Duration::from_secs),
        machine: policy_files::machine(),
        enforcers: args.enforcers,
        is_privileged,
        quiet: args.quiet,
        seen: Mutex::new(Some(Observations::new(known.clone().unwrap_or_default()))),
        earlier: known,
        ready,
    };
    let detection = Detection {
        quiet: args.quiet,
        stream: args.stream,
        without_rules: true,
        learner: Some(Arc::new(learner)),
        stats_interval: 5000,
        ..Detection::default()
    };
    let outcome = crate::run(learning(detection, args.command));
    match outcome {
        // The command was run to get a policy, so a missing policy is a failure.
        Ok(Exit::Command(0)) if !has_byte(written) => {
            let message = format!("no policy was written to {}", output.display());
            Err(Failure::new(Exit::BadInput, message).help("the message above shows the reason"))
        }
        outcome => outcome,
    }
}

/// Result of the runs before the last one.
enum EarlierRuns {
    /// The command failed, and learning ends with its exit status.
    Failed(Exit),
    /// The behaviour in these runs and in those of the model; `None` if this is the first run.
    Known(Option<Box<policy::Model>>),
}

/// Runs the command until one run is left. Each run is a process of its own, which adds to a model.
fn earlier_runs(args: &LearnOptions) -> Result<EarlierRuns, Failure> {
    let cannot = |what: &str, cause: &std::io::Error| {
        Failure::new(Exit::Unsupported, format!("cannot {what}: {cause}"))
            .help("run it several times with --model FILE")
    };
    let folder;
    let path = match (&args.model, args.runs) {
        (Some(path), _) => path.clone(),
        (None, 1) => return Ok(EarlierRuns::Known(None)),
        (None, _) => {
            folder = tempfile::tempdir().map_err(|error| cannot("keep the model", &error))?;
            folder.path().join("model.json")
        }
    };
    for run in 1..args.runs {
        let mut command = std::process::Command::new("/proc/self/exe");
        command
            .args(["learn", "-q", "--enforcer", &args.enforcers.joined(), "-o"])
            .arg(&args.output)
            .arg("--model")
            .arg(&path)
            .args(args.duration.map(|seconds| format!("--duration={seconds}")))
            .arg("--")
            .args(&args.command);
        let status = command
            .status()
            .map_err(|error| cannot("run the command", &error))?;
        if !status.success() {
            let code = status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(u8::MAX);
            terminal::complain(&format!(
                "tollgate: run {run} of {} failed with {status}; the policy is of the runs until then\n",
                args.runs
            ));
            return Ok(EarlierRuns::Failed(Exit::Command(code)));
        }
    }
    let known = learn::read(&path)?;
    Ok(EarlierRuns::Known(known.map(Box::new)))
}

/// Returns the specification of a run without rules, observed by a learner.
fn learning(detection: Detection, command: Vec<OsString>) -> AgentSpec {
    AgentSpec {
        detection,
        confine: Optional::default(),
        interception: Interception {
            engine: Some(EngineKind::Notify),
            ..Interception::default()
        },
        // Another agent would not know what this one had seen.
        on_agent_death: OnAgentDeath::Kill,
        agent_timeout: 60_000,
        mode: StartMode::Learn,
        takes_over: None,
        command,
    }
}

fn has_byte(mut pipe: PipeReader) -> bool {
    let is_there = poll::poll(
        &mut [PollFd::new(pipe.as_fd(), poll::IN)],
        Some(Duration::ZERO),
    );
    is_there.is_ok_and(|ready| ready > 0) && pipe.read(&mut [0]).is_ok_and(|count| count > 0)
}
