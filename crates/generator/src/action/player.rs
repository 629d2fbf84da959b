//! Playing of actions from another process: one process for each, with a deadline.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use workload::Error;

use super::{Action, MARK, Outcome, PerformOptions, Scratch};
use crate::detector::CONFIG_VARIABLE;
use crate::scenario::Scenario;

/// Time limit of an action, longer than any takes; one waits for six seconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// Options of a [`Player`].
#[derive(Clone, Debug, Default)]
pub struct PlayerOptions {
    /// True to take this for a container, false for none. `None`: detect it.
    pub container: Option<bool>,
    /// Allow changes to system folders where overlays cannot cover them.
    pub touch_system: bool,
    /// Addresses that actions contact in the real network.
    pub allow_network: Vec<IpAddr>,
    /// User to play as.
    pub user: Option<String>,
    /// Words to put before the command that plays, such as a detector that starts it.
    pub prefix: Vec<String>,
}

/// Player of actions, each in a process of its own.
#[derive(Debug)]
pub struct Player {
    scratch: Scratch,
    program: PathBuf,
    options: PlayerOptions,
}

impl Player {
    /// Creates a player with a folder of its own, removed when this is dropped.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made.
    pub fn new(program: PathBuf, options: PlayerOptions) -> Result<Self, Error> {
        Ok(Self {
            scratch: Scratch::new(&program)?,
            program,
            options,
        })
    }

    /// Returns the folder of this run.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the command that plays an action and prints its outcome as a line of JSON.
    #[must_use]
    pub fn command(&self, action: &Action) -> Command {
        let args = PerformOptions {
            name: action.name.to_owned(),
            scratch: self.scratch.path().into(),
            spawned: None,
            container: self.options.container,
            touch_system: self.options.touch_system,
            allow_network: self.options.allow_network.clone(),
            user: None,
            after: 0,
        };
        let mut words = self.options.prefix.clone();
        words.push(self.program.display().to_string());
        words.extend(["generate", "perform", action.name].map(str::to_owned));
        words.extend(args.arguments());
        words.extend(self.options.user.iter().map(|user| format!("--as={user}")));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env(MARK, self.scratch.path())
            .env(CONFIG_VARIABLE, "")
            .stdin(Stdio::null());
        command
    }

    /// Plays one action to its end.
    pub fn play(&self, action: &Action) -> Outcome {
        self.play_printing(action).0
    }

    /// Plays one action to its end. Also returns the output, such as that of a detector that started the
    /// command.
    pub fn play_printing(&self, action: &Action) -> (Outcome, String) {
        self.run(self.command(action))
    }

    /// Plays a described test to its end. Also returns the output.
    pub fn play_scenario(&self, scenario: &Scenario) -> (Outcome, String) {
        let mut settings = Vec::new();
        settings.extend(self.options.touch_system.then(|| "--unsafe".to_owned()));
        for address in &self.options.allow_network {
            settings.push(format!("--allow-network={address}"));
        }
        let prefix = &self.options.prefix;
        match crate::scenario::command(scenario, &self.program, &self.scratch, prefix, &settings) {
            Ok(mut command) => {
                command.env(CONFIG_VARIABLE, "");
                self.run(command)
            }
            Err(error) => (Outcome::of(Err(error.into())), String::new()),
        }
    }

    fn run(&self, mut command: Command) -> (Outcome, String) {
        let failed = |error: String| Outcome::Failed { error };
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => {
                let (out, said) = self.follow(child);
                (outcome(&out).unwrap_or_else(|| failed(said)), out)
            }
            Err(error) => {
                let said = format!("cannot start the process that plays it: {error}");
                (failed(said), String::new())
            }
        }
    }

    /// Returns the output and error output of a process until its end. Kills the process at the deadline.
    fn follow(&self, mut child: Child) -> (String, String) {
        let (sender, texts) = mpsc::channel();
        let mut pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it is piped")),
            Box::new(child.stderr.take().expect("it is piped")),
        ];
        std::thread::spawn(move || {
            let read = |pipe: &mut Box<dyn Read + Send>| {
                let mut bytes = Vec::new();
                // The bytes before an error are kept.
                let _ = pipe.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let [out, err] = &mut pipes;
            // After the deadline the receiver is gone.
            let _ = sender.send((read(out), read(err)));
        });
        let texts = texts.recv_timeout(DEADLINE).ok();
        if texts.is_none() {
            self.scratch.end_processes();
        }
        let _ = child.kill();
        // The process has ended by now.
        let status = child.wait();
        match texts {
            Some((out, err)) if !err.trim().is_empty() => (out, err.trim().to_owned()),
            Some((out, _)) => (
                out,
                status.map_or_else(
                    |error| error.to_string(),
                    |status| format!("its process exited with {status}"),
                ),
            ),
            None => (
                String::new(),
                format!("did not exit within {} s", DEADLINE.as_secs()),
            ),
        }
    }
}

/// Parses the last line of JSON that is an outcome: programs that the action started may print, too.
pub(super) fn outcome(printed: &str) -> Option<Outcome> {
    printed
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_found_among_other_lines() {
        let printed = "hello\n{\"outcome\":\"skipped\",\"reason\":\"r\"}\nbye\n";
        let reason = "r".to_owned();
        assert_eq!(outcome(printed), Some(Outcome::Skipped { reason }));
        assert_eq!(outcome("hello"), None);
    }
}
