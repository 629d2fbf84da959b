//! The process that plays actions, and its output and that of its detector.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::action::{Action, MARK, RoundOrder, RoundResult, Scratch};
use crate::alerts::Alert;
use crate::options::{BenchOptions, PlayOptions};

/// Time limit for a worker to start, and to end a round beyond its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that plays on command.
pub(super) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Alerts that arrived on the same pipe.
    pub(super) alerts: Vec<Alert>,
    /// Removed when the process has ended.
    _scratch: Scratch,
}

impl Worker {
    /// Starts a worker, with `prefix` before its command.
    pub(super) fn start(
        program: &Path,
        args: &BenchOptions,
        actions: &[&'static Action],
        prefix: &[String],
    ) -> Result<Self, Failure> {
        let failure = |error: std::io::Error| {
            Failure::new(Exit::Internal, format!("cannot start what plays: {error}"))
        };
        let scratch = Scratch::new(program)
            .map_err(|error| Failure::from_error(Exit::Unsupported, &error))?;
        let mut words = prefix.to_vec();
        words.push(program.display().to_string());
        words.extend(["generate", "work"].map(str::to_owned));
        words.push(actions[0].name.to_owned());
        words.extend(
            actions[1..]
                .iter()
                .map(|action| format!("--and={}", action.name)),
        );
        words.push(format!("--threads={}", args.threads));
        words.extend(["--scratch".to_owned(), scratch.path().display().to_string()]);
        words.extend(settings(&args.play));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env(MARK, scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failure)?;
        let orders = child.stdin.take();
        let out = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            orders,
            lines,
            alerts: Vec::new(),
            _scratch: scratch,
        })
    }

    /// Starts a round.
    pub(super) fn order(&mut self, order: RoundOrder) -> Result<(), Failure> {
        let line = serde_json::to_string(&order).expect("it is plain data");
        let written = self
            .orders
            .as_mut()
            .map(|orders| writeln!(orders, "{line}"));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Takes what arrives until a moment. Returns the round's result if it is among it.
    pub(super) fn listen(&mut self, until: Instant) -> Result<Option<RoundResult>, Failure> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            };
            if let Some(alert) = Alert::parse(&line) {
                self.alerts.push(alert);
            } else if let Ok(worked) = serde_json::from_str::<RoundResult>(&line) {
                return Ok(Some(worked));
            } else if let Some(reason) = refusal(&line) {
                return Err(Failure::new(Exit::Unsupported, format!("cannot play here: {reason}"))
                    .help("choose other actions; `tollgate generate list --long` shows what each needs"));
            }
        }
    }

    /// Returns the time at which a round's result is overdue.
    pub(super) fn deadline(duration: Duration) -> Instant {
        Instant::now() + duration + PATIENCE
    }

    fn ended(&mut self) -> Failure {
        // The worker may have refused just before.
        let refused = self.lines.try_iter().find_map(|line| refusal(&line));
        let why = refused.unwrap_or_else(|| match self.child.wait() {
            Ok(status) => format!("it exited with {status}"),
            Err(error) => error.to_string(),
        });
        Failure::new(Exit::Unsupported, format!("cannot go on playing: {why}"))
            .help("`tollgate generate run` with the same actions shows what is wrong")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The worker ends with its orders, and a detector that started it ends with it.
        drop(self.orders.take());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(play: &PlayOptions) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(play.container.map(|answer| format!("--container={answer}")));
    all.extend(play.touch_system.then(|| "--unsafe".to_owned()));
    all.extend(
        play.allow_network
            .iter()
            .map(|address| format!("--allow-network={address}")),
    );
    all.extend(play.user.iter().map(|user| format!("--as={user}")));
    all
}

fn refusal(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(value.get("refused")?.as_str()?.to_owned())
}
