//! The command line of runc, which crun, youki and runsc share: global options, a command, its
//! options and its arguments.
//!
//! The command line is passed on unchanged. The parser extracts only what a stand-in needs: the
//! command, the container's id, its bundle, and the locations of the runtime's state and log.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Meaning of a command for a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Creates a container that waits to be started.
    Create,
    /// Removes a container.
    Delete,
    /// Starts another program in a container.
    Exec,
    /// Changes or reports state and starts no program.
    Plain,
    /// Creates a container from a checkpoint.
    Restore,
    /// Creates and starts a container.
    Run,
    /// Starts the first program of a container.
    Start,
}

/// Commands of runc, with the options of each that take a value (long names, then the short one).
const COMMANDS: &[(&str, Verb, &[&str])] = &[
    ("checkpoint", Verb::Plain, &[]),
    (
        "create",
        Verb::Create,
        &[
            "bundle",
            "b",
            "console-socket",
            "pid-file",
            "pidfd-socket",
            "preserve-fds",
        ],
    ),
    ("delete", Verb::Delete, &[]),
    ("events", Verb::Plain, &["interval"]),
    (
        "exec",
        Verb::Exec,
        &[
            "console-socket",
            "pidfd-socket",
            "cwd",
            "env",
            "e",
            "user",
            "u",
            "additional-gids",
            "g",
            "process",
            "p",
            "pid-file",
            "process-label",
            "apparmor",
            "cap",
            "c",
            "preserve-fds",
            "cgroup",
        ],
    ),
    ("features", Verb::Plain, &[]),
    ("kill", Verb::Plain, &[]),
    ("list", Verb::Plain, &[]),
    ("pause", Verb::Plain, &[]),
    ("ps", Verb::Plain, &[]),
    ("restore", Verb::Restore, &[]),
    ("resume", Verb::Plain, &[]),
    (
        "run",
        Verb::Run,
        &[
            "bundle",
            "b",
            "console-socket",
            "pid-file",
            "pidfd-socket",
            "preserve-fds",
        ],
    ),
    ("spec", Verb::Plain, &[]),
    ("start", Verb::Start, &[]),
    ("state", Verb::Plain, &[]),
    ("update", Verb::Plain, &[]),
];

/// Global options that take a value: of runc, crun, youki and runsc.
const GLOBAL_WITH_VALUE: &[&str] = &[
    "root",
    "log",
    "log-format",
    "criu",
    "rootless",
    "cgroup-manager",
    "log-level",
    "platform",
    "network",
    "debug-log",
    "overlay2",
    "directfs",
    "host-uds",
    "l",
];
/// Options of the stand-in itself, which are not passed on.
const OWN_WITH_VALUE: &[&str] = &["agent", "config", "runtime"];

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `--runtime`: the underlying runtime.
    pub runtime: Option<OsString>,
    /// `--agent`: which agent watches containers.
    pub agent: Option<OsString>,
    /// `--config`: the stand-in's configuration.
    pub config: Option<PathBuf>,
    /// Global options that are passed on.
    pub global: Vec<OsString>,
    /// `--root`, from this process's working directory on.
    pub root: Option<PathBuf>,
    /// `--log`.
    pub log: Option<PathBuf>,
    /// `--log-format json` was given.
    pub log_is_json: bool,
    /// The command.
    pub call: Option<Call>,
}

/// A command with its options and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Meaning of the command.
    pub verb: Verb,
    /// The command and all words after it.
    pub words: Vec<OsString>,
    /// `--bundle`.
    pub bundle: Option<PathBuf>,
    /// `--detach` was given.
    pub detaches: bool,
    /// `--help` was given.
    pub asks_for_help: bool,
    /// The first argument that is not an option: the container's id, for commands that take one.
    pub id: Option<String>,
    /// Options in order, by name without dashes.
    pub options: Vec<(String, Option<OsString>)>,
    /// The arguments after the id.
    pub rest: Vec<OsString>,
}

/// A command line is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CommandLineError {
    /// An option that needs a value is the last word.
    #[error("cannot read the command line: --{name} needs a value")]
    NoValue {
        /// The option.
        name: String,
    },
    /// The container's id is not UTF-8.
    #[error("cannot use the container id {}: it is not valid UTF-8", .id.display())]
    BadId {
        /// The id.
        id: OsString,
    },
}

impl CommandLine {
    /// Parses a command line without the program name.
    ///
    /// # Errors
    ///
    /// A value is missing, or the id is not UTF-8.
    pub fn parse(words: &[OsString]) -> Result<Self, CommandLineError> {
        let mut line = Self::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let Some(option) = Flag::of(word) else {
                let words = std::iter::once(word).chain(rest).cloned().collect();
                line.call = Some(Call::parse(words)?);
                break;
            };
            let is_own = OWN_WITH_VALUE.contains(&option.name.as_str());
            let takes_value = is_own || GLOBAL_WITH_VALUE.contains(&option.name.as_str());
            if !is_own {
                line.global.push(word.clone());
            }
            let value = match option.value {
                Some(value) => Some(value),
                None if takes_value => {
                    let value = rest.next().ok_or_else(|| option.no_value())?.clone();
                    if !is_own {
                        line.global.push(value.clone());
                    }
                    Some(value)
                }
                None => None,
            };
            line.note(&option.name, value);
        }
        Ok(line)
    }

    fn note(&mut self, name: &str, value: Option<OsString>) {
        let Some(value) = value else { return };
        match name {
            "agent" => self.agent = Some(value),
            "runtime" => self.runtime = Some(value),
            "config" => self.config = Some(value.into()),
            "root" => {
                // Fails without a working directory, where the runtime cannot use a relative path either.
                let absolute = std::path::absolute(&value);
                self.root = Some(absolute.unwrap_or_else(|_| value.into()));
            }
            "log" => self.log = Some(value.into()),
            "log-format" => self.log_is_json = value == "json",
            _ => {}
        }
    }
}

impl Call {
    fn parse(words: Vec<OsString>) -> Result<Self, CommandLineError> {
        let name = words
            .first()
            .map(|name| name.to_string_lossy().into_owned());
        let known = COMMANDS
            .iter()
            .find(|(known, ..)| Some(*known) == name.as_deref());
        let (verb, with_value) =
            known.map_or((Verb::Plain, &[][..]), |(_, verb, with)| (*verb, *with));
        let mut call = Self {
            verb,
            words: Vec::new(),
            bundle: None,
            detaches: false,
            asks_for_help: false,
            id: None,
            options: Vec::new(),
            rest: Vec::new(),
        };
        let mut rest = words.iter().skip(1);
        while let Some(word) = rest.next() {
            if word == "--" {
                call.id = rest.next().map(id).transpose()?;
                call.rest.extend(rest.cloned());
                break;
            }
            let Some(option) = Flag::of(word) else {
                if call.id.is_some() {
                    call.rest.push(word.clone());
                    continue;
                }
                call.id = Some(id(word)?);
                // The rest is a command line for the container, or options in crun's position.
                if verb == Verb::Exec {
                    let dashes = rest.clone().next().is_some_and(|word| word == "--");
                    call.rest.extend(rest.skip(usize::from(dashes)).cloned());
                    break;
                }
                continue;
            };
            let value = match &option.value {
                Some(value) => Some(value.clone()),
                None if with_value.contains(&option.name.as_str()) => {
                    Some(rest.next().ok_or_else(|| option.no_value())?.clone())
                }
                None => None,
            };
            match (option.name.as_str(), &value) {
                ("bundle" | "b", Some(value)) => call.bundle = Some(value.into()),
                ("detach" | "d", value) => {
                    call.detaches = value.as_ref().is_none_or(|word| word != "false");
                }
                ("help" | "h", None) => call.asks_for_help = true,
                _ => {}
            }
            call.options.push((option.name, value));
        }
        call.words = words;
        Ok(call)
    }

    /// Returns the name of the command.
    #[must_use]
    pub fn name(&self) -> std::borrow::Cow<'_, str> {
        self.words
            .first()
            .map_or_else(Default::default, |word| word.to_string_lossy())
    }

    /// Returns true if the command reports about a container and changes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        matches!(&*self.name(), "state" | "ps" | "events")
    }

    /// Returns the values of an option that has these names.
    pub fn values<'a>(&'a self, names: &'a [&'a str]) -> impl Iterator<Item = &'a OsStr> {
        let named = |(name, _): &&(String, Option<OsString>)| names.contains(&name.as_str());
        let options = self.options.iter().filter(named);
        options.filter_map(|(_, value)| value.as_deref())
    }

    /// Returns true if an option without a value is given.
    pub fn has(&self, names: &[&str]) -> bool {
        let is_on = |value: &Option<OsString>| value.as_ref().is_none_or(|word| word != "false");
        let mut options = self.options.iter();
        options.any(|(name, value)| names.contains(&name.as_str()) && is_on(value))
    }
}

fn id(word: &OsString) -> Result<String, CommandLineError> {
    let id = word.to_str().map(str::to_owned);
    id.ok_or_else(|| CommandLineError::BadId { id: word.clone() })
}

/// `--name` or `--name=value`. Go programs accept one dash as well as two.
struct Flag {
    name: String,
    value: Option<OsString>,
}

impl Flag {
    fn of(word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let bytes = bytes
            .strip_prefix(b"--")
            .or_else(|| bytes.strip_prefix(b"-"))?;
        if bytes.is_empty() {
            return None;
        }
        let mut parts = bytes.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or(bytes)).into_owned();
        let value = parts.next().map(|value| OsString::from_vec(value.to_vec()));
        Some(Self { name, value })
    }

    fn no_value(&self) -> CommandLineError {
        CommandLineError::NoValue {
            name: self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        CommandLine::parse(&words).unwrap()
    }

    #[test]
    fn a_call_of_conmons_is_understood_and_passed_on_whole() {
        let line = parse(
            "--root=/run/runc --log-format=json --log /l/oci-log --systemd-cgroup --config /c.yaml \
             create --bundle /b --pid-file /p -console-socket /s abc",
        );
        assert_eq!(line.root.as_deref(), Some("/run/runc".as_ref()));
        assert_eq!(line.log.as_deref(), Some("/l/oci-log".as_ref()));
        assert!(line.log_is_json);
        assert_eq!(line.config.as_deref(), Some("/c.yaml".as_ref()));
        let global = [
            "--root=/run/runc",
            "--log-format=json",
            "--log",
            "/l/oci-log",
            "--systemd-cgroup",
        ];
        assert_eq!(line.global, global.map(OsString::from));
        let call = line.call.unwrap();
        assert_eq!((call.verb, call.id.as_deref()), (Verb::Create, Some("abc")));
        assert_eq!(call.bundle.as_deref(), Some("/b".as_ref()));
        assert_eq!(call.words.len(), 8);
    }

    #[test]
    fn what_runs_in_a_container_is_no_option_of_the_runtime() {
        let call = parse("exec --user 1000:1000 -e A=B -t abc sh --bundle /x --detach")
            .call
            .unwrap();
        assert_eq!((call.verb, call.id.as_deref()), (Verb::Exec, Some("abc")));
        assert_eq!((call.bundle, call.detaches), (None, false));
        let call = parse("exec -d -- abc -x").call.unwrap();
        assert_eq!((call.id.as_deref(), call.detaches), (Some("abc"), true));
        assert_eq!(call.rest, ["-x"]);
    }

    #[test]
    fn options_and_arguments_can_be_asked_for() {
        let call = parse("exec -e A=1 --env=B=2 --tty abc -- ls -e x")
            .call
            .unwrap();
        let values: Vec<_> = call.values(&["env", "e"]).collect();
        assert_eq!(values, ["A=1", "B=2"]);
        assert_eq!(
            (call.has(&["t", "tty"]), call.has(&["detach"])),
            (true, false)
        );
        assert_eq!(call.rest, ["ls", "-e", "x"]);
        let call = parse("kill --all abc KILL").call.unwrap();
        assert_eq!(
            (call.id.as_deref(), call.has(&["a", "all"])),
            (Some("abc"), true)
        );
        assert_eq!(call.rest, ["KILL"]);
        assert!(
            !parse("delete --force=false abc")
                .call
                .unwrap()
                .has(&["force"])
        );
    }

    #[test]
    fn options_after_the_id_count_as_crun_takes_them() {
        let call = parse("run abc -d --bundle=/b").call.unwrap();
        assert_eq!(call.id.as_deref(), Some("abc"));
        assert_eq!((call.bundle, call.detaches), (Some("/b".into()), true));
        assert!(!parse("run --detach=false abc").call.unwrap().detaches);
    }

    #[test]
    fn commands_that_nobody_knows_are_passed_on() {
        let call = parse("newfangled --x 1 abc").call.unwrap();
        assert_eq!((call.verb, call.words.len()), (Verb::Plain, 4));
        assert_eq!(parse("restore abc").call.unwrap().verb, Verb::Restore);
        assert_eq!(parse("--version").call, None);
    }

    #[test]
    fn options_without_their_value_are_refused() {
        for line in ["--runtime", "--root", "create --bundle"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(matches!(
                CommandLine::parse(&words),
                Err(CommandLineError::NoValue { .. })
            ));
        }
    }

    #[test]
    fn a_state_folder_is_the_same_from_every_working_directory() {
        let line = parse("--root states kill --all a");
        assert_eq!(line.root, std::path::absolute("states").ok());
        assert_eq!(line.global, ["--root", "states"]);
        let call = line.call.unwrap();
        assert_eq!((&*call.name(), call.only_reads()), ("kill", false));
        assert!(parse("--debug state a").call.unwrap().only_reads());
    }

    #[test]
    fn the_runtime_is_not_passed_on() {
        let line = parse("--runtime crun --agent=host --debug list -q");
        assert_eq!(line.agent.as_deref(), Some(OsStr::new("host")));
        assert_eq!(line.runtime.as_deref(), Some(OsStr::new("crun")));
        assert_eq!(line.global, [OsString::from("--debug")]);
    }
}
