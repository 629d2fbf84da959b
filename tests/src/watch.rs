//! Runs of a command under `tollgate run`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::binary::{program, which};
use crate::container::{CONTAINER_ID, Container, network_prefix};
use crate::group::Group;
use crate::recording;
use crate::{Alert, Engine, Finished, Identity, Limited, Scratch};

/// Placeholder for the work folder in commands.
const WORK: &str = "%W";

/// The work folder inside containers: part of the overlay.
const WORK_INSIDE: &str = "/var/tmp/e2e";

/// What a run takes over from the environment of the tests: where programs are.
const INHERITED: [&str; 4] = ["PATH", "TMPDIR", "CARGO_HOME", "RUSTUP_HOME"];

/// Gives a command the environment that it has wherever the tests run. Without HOME and SHELL, bash and Python ask the
/// name service: connections that a test would count.
pub fn same_environment(command: &mut Command) -> &mut Command {
    let inherited = INHERITED.iter();
    let inherited = inherited.filter_map(|name| Some((name, std::env::var_os(name)?)));
    command
        .env_clear()
        .envs(inherited)
        .envs(std::env::home_dir().map(|home| ("HOME", home)))
        .envs([
            ("TOLLGATE_CONFIG_DIR", ""),
            ("SHELL", "/bin/sh"),
            ("TERM", "xterm"),
            ("LANG", "C.UTF-8"),
        ])
}

/// Location of the program and its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// Both outside any container.
    Host,
    /// Both outside, in a network namespace with addresses of its own.
    HostNetwork,
    /// Both in a container; the program is its first process.
    Inside,
    /// The program outside, the workload in a container that it starts.
    Below,
}

/// A run under `tollgate run`, before it starts.
#[derive(Debug)]
pub struct Watch {
    place: Environment,
    identity: Identity,
    engine: Engine,
    options: Vec<String>,
    command: Vec<String>,
    environment: Vec<(String, String)>,
    input: Vec<u8>,
    limit: Duration,
    json: bool,
    terminal: bool,
    is_recorded: bool,
    is_watched: bool,
    scratch: Scratch,
    program: PathBuf,
    /// Keeps the lower layer while the run lasts.
    container: Option<Container>,
    /// Control group by which the container is known from outside.
    group: Option<Group>,
}

/// Result of a run.
#[derive(Debug)]
pub struct WatchResult {
    /// Alerts, in the order written.
    pub alerts: Vec<Alert>,
    /// The lines of the alerts, whatever their format.
    pub log: String,
    /// Standard output, which is the workload's alone.
    pub printed: String,
    /// The last line of the stats file.
    pub stats: Option<Value>,
    /// Exit status and output.
    pub finished: Finished,
    /// The scratch folder, with what the workload left there.
    pub scratch: Scratch,
}

impl Watch {
    /// Creates a run of `command`, in which `%W` stands for a folder that the workload may write.
    pub fn new<S: AsRef<str>>(command: impl IntoIterator<Item = S>) -> Self {
        let scratch = Scratch::new();
        // The build folder may be closed to other users.
        let program = scratch.program(&program(), "tollgate");
        Self {
            place: Environment::Host,
            identity: Identity::Root,
            engine: Engine::under_test(),
            options: Vec::new(),
            command: command
                .into_iter()
                .map(|word| word.as_ref().to_owned())
                .collect(),
            environment: Vec::new(),
            input: Vec::new(),
            limit: Duration::from_secs(60),
            json: true,
            terminal: false,
            is_recorded: recording::is_wanted(),
            is_watched: true,
            scratch,
            program,
            container: None,
            group: None,
        }
    }

    /// Creates a run of a shell script.
    pub fn script(script: &str) -> Self {
        Self::new(["sh", "-c", script])
    }

    /// Replaces the command, for commands that name files of the scratch folder.
    pub fn command(mut self, command: impl IntoIterator<Item = String>) -> Self {
        self.command = command.into_iter().collect();
        self
    }

    /// Runs the command below shells that have these names, the outermost first. Each waits for the next.
    pub fn below(mut self, names: &[&str]) -> Self {
        for name in names.iter().rev() {
            let shell = self.scratch.program(&which("bash"), name);
            let mut words = vec![shell.display().to_string()];
            // More than one command, so that the shell does not become the last one.
            words.extend(["-c", r#""$0" "$@"; exit $?"#].map(str::to_owned));
            words.append(&mut self.command);
            self.command = words;
        }
        self
    }

    /// Returns the program's path, which every user can execute; valid in containers, too.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Sets the environment.
    pub fn place(mut self, place: Environment) -> Self {
        self.place = place;
        self.container =
            matches!(place, Environment::Inside | Environment::Below).then(Container::new);
        self
    }

    /// Sets the user.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Sets the capture engine.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Loads rules from text.
    pub fn rules(self, text: &str) -> Self {
        let name = format!("rules-{}.yaml", self.options.len());
        let path = self.scratch.file(&name, 0o644, text);
        self.option("-r").option(path.display().to_string())
    }

    /// Loads rules from a file. The run gets a copy that it can reach.
    ///
    /// # Panics
    /// If the file cannot be read.
    pub fn rules_file(self, file: &PathBuf) -> Self {
        let text = fs::read_to_string(file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        self.rules(&text)
    }

    /// Adds an argument of `tollgate run`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Sets an environment variable. Not for containers, which start with an empty environment.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the command's standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Sets the time limit.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Gives the program the id of the container: by an option, or by a control group of that name where the
    /// program watches from outside.
    pub fn container_id(self) -> Self {
        if self.engine == Engine::Ebpf {
            return Self {
                group: Some(Group::of_container(CONTAINER_ID)),
                ..self
            };
        }
        self.option("--container-id").option(CONTAINER_ID)
    }

    /// Prints alerts as text.
    pub fn text(mut self) -> Self {
        self.json = false;
        self
    }

    /// Runs the command in the same environment as the same user, without the program under test.
    pub fn unwatched(mut self) -> Self {
        self.is_watched = false;
        self.is_recorded = false;
        self
    }

    /// Records the run, replays the recording, and compares the alerts.
    pub fn recorded(mut self) -> Self {
        self.is_recorded = true;
        self
    }

    /// Runs on a terminal.
    pub fn terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// Returns the folder for the run's files; it has the same path in containers.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Copies the folder `tests/fixtures/NAME` beside the work folder.
    pub fn with_fixtures(self, name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name);
        for entry in fs::read_dir(folder).expect("it is part of the repository") {
            let entry = entry.expect("it is part of the repository");
            let copy = format!("{name}/{}", entry.file_name().display());
            let text = fs::read(entry.path()).expect("it is part of the repository");
            self.scratch.file(&copy, 0o644, text);
        }
        self
    }

    /// Starts the run.
    pub fn start(&self) -> Limited {
        let words = self.command_line();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped());
        same_environment(&mut command).envs(self.environment.iter().cloned());
        Limited::start(&mut command, self.limit)
    }

    /// Runs to the end.
    pub fn run(self) -> WatchResult {
        let finished = self.start().finish(&self.input);
        self.watched(finished)
    }

    /// Reads the results of a finished run.
    pub fn watched(self, finished: Finished) -> WatchResult {
        // If the program could not start, there is no file.
        let log = fs::read_to_string(self.alert_log()).unwrap_or_default();
        let alerts: Vec<Alert> = match self.json {
            true => log.lines().filter_map(parsed).collect(),
            false => Vec::new(),
        };
        let printed = finished.stdout.clone();
        let stats = fs::read_to_string(self.scratch.path().join("stats")).ok();
        let last = stats.as_deref().and_then(|text| text.lines().last());
        let stats = last.and_then(|line| serde_json::from_str(line).ok());
        let recorded = recording::file(self.scratch.path());
        // If the program could not start, there is no recording.
        if self.is_recorded && self.json && recorded.exists() {
            let replayed = recording::replay(&self.program, &self.options, &recorded);
            recording::compare(&alerts, &replayed);
        }
        WatchResult {
            alerts,
            log,
            printed,
            stats,
            finished,
            scratch: self.scratch,
        }
    }

    /// Returns the file of the run's alerts.
    pub fn alert_log(&self) -> PathBuf {
        self.scratch.path().join("alerts")
    }

    /// Returns the whole command line, to repeat a run by hand.
    pub fn command_line(&self) -> Vec<String> {
        let tollgate = match self.place {
            Environment::Inside if self.engine != Engine::Ebpf => {
                "/usr/local/bin/tollgate".to_owned()
            }
            _ => self.program.display().to_string(),
        };
        let mut run = vec![tollgate, "run".to_owned(), "--quiet".to_owned()];
        run.extend(pretended_kernel());
        run.extend(self.engine.options().iter().map(|word| (*word).to_owned()));
        run.extend(self.json.then(|| "--json".to_owned()));
        run.extend(["--log".to_owned(), self.alert_log().display().to_string()]);
        run.extend(["-o", "rule_matching=all", "-s"].map(str::to_owned));
        run.push(self.scratch.path().join("stats").display().to_string());
        if self.is_recorded {
            let file = recording::file(self.scratch.path());
            run.extend(["-w".to_owned(), file.display().to_string()]);
        }
        run.extend(self.options.iter().cloned());
        run.push("--".to_owned());
        if !self.is_watched {
            run.clear();
        }

        let work = self.work_folder();
        let command = self.command.iter().map(|word| word.replace(WORK, &work));
        let container = || {
            let container = self
                .container
                .as_ref()
                .expect("the place is in a container");
            container.prefix(self.scratch.path(), &self.program)
        };
        let identity = self.identity.prefix();
        let place = match self.engine {
            Engine::Ebpf => return self.watched_from_outside(run, container),
            _ => self.place,
        };
        let words: Vec<String> = match place {
            Environment::Host => chain([identity, run, command.collect()]),
            Environment::HostNetwork => chain([network_prefix(), identity, run, command.collect()]),
            Environment::Inside => chain([container(), identity, run, command.collect()]),
            Environment::Below => chain([run, container(), identity, command.collect()]),
        };
        self.with_terminal(words)
    }

    /// Returns the command line with the program on the host, where the engine ebpf works, and the workload in
    /// its environment.
    fn watched_from_outside(
        &self,
        run: Vec<String>,
        container: impl Fn() -> Vec<String>,
    ) -> Vec<String> {
        let work = self.work_folder();
        let command = self.command.iter().map(|word| word.replace(WORK, &work));
        let identity = self.identity.prefix();
        let words = match self.place {
            Environment::Host => chain([run, identity, command.collect()]),
            Environment::HostNetwork => chain([network_prefix(), run, identity, command.collect()]),
            Environment::Inside | Environment::Below => {
                let group = self.group.as_ref().map_or_else(Vec::new, Group::prefix);
                let mut container = container();
                if self.terminal {
                    // Seen from outside, a container's first shell has a parent. Rules recognise shells that a
                    // runtime started by the parent's name.
                    let runtime = self.scratch.program(&which("unshare"), "runc");
                    container[0] = runtime.display().to_string();
                }
                chain([run, group, container, identity, command.collect()])
            }
        };
        self.with_terminal(words)
    }

    fn with_terminal(&self, words: Vec<String>) -> Vec<String> {
        if self.terminal {
            on_terminal(&words)
        } else {
            words
        }
    }

    fn work_folder(&self) -> String {
        match self.place {
            Environment::Inside | Environment::Below => WORK_INSIDE.to_owned(),
            Environment::Host | Environment::HostNetwork => {
                let folder = self.scratch.path().join("work");
                fs::create_dir_all(&folder)
                    .and_then(|()| fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)))
                    .expect("the scratch folder is writable");
                folder.display().to_string()
            }
        }
    }
}

impl WatchResult {
    /// Returns the alerts of one rule.
    pub fn of(&self, rule: &str) -> Vec<&Alert> {
        self.alerts
            .iter()
            .filter(|alert| alert.rule == rule)
            .collect()
    }

    /// Returns the exit status as a shell gives it.
    pub fn code(&self) -> i32 {
        self.finished.code()
    }

    /// Formats everything that helps to understand a failure.
    pub fn story(&self) -> String {
        let alerts: String = self
            .alerts
            .iter()
            .map(|alert| format!("  {alert}\n"))
            .collect();
        format!(
            "exit status {}\nalerts:\n{alerts}printed:\n{}\nstandard error:\n{}\nstats: {}",
            self.code(),
            self.printed,
            self.finished.stderr,
            self.stats
                .as_ref()
                .map_or_else(|| "none".to_owned(), Value::to_string),
        )
    }
}

/// Reads a line of the alert log, which holds nothing but alerts. An agent that takes over from one that was killed while
/// it wrote begins a new line, also if the last one is complete after all: that one is empty.
fn parsed(line: &str) -> Option<Alert> {
    (!line.is_empty()).then(|| Alert::parse(line).unwrap_or_else(|| panic!("no alert: {line}")))
}

/// Returns options that make the program behave as on the kernel that `TOLLGATE_TEST_KERNEL` names.
fn pretended_kernel() -> Vec<String> {
    let version = std::env::var("TOLLGATE_TEST_KERNEL").ok();
    version.map_or_else(Vec::new, |version| {
        vec!["--pretend-kernel".to_owned(), version]
    })
}

fn chain<const N: usize>(parts: [Vec<String>; N]) -> Vec<String> {
    parts.into_iter().flatten().collect()
}

/// Returns the command line on a terminal of its own, made by script(1).
fn on_terminal(words: &[String]) -> Vec<String> {
    let quoted: Vec<_> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    let script = which("script").display().to_string();
    let options = ["--quiet", "--return", "--flush", "--command"].map(str::to_owned);
    let mut all = vec![script];
    all.extend(options);
    all.push(format!("exec {}", quoted.join(" ")));
    all.push("/dev/null".to_owned());
    all
}
