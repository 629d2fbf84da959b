//! What `tollgate runtime` is configured to do. Its callers choose its command line, so what is wanted
//! of it comes from a file.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use oci::{Note, Spec, Store, Verb};

use super::annotations;
use crate::args::OnAgentDeath;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::rule_files;
use crate::supervise;
use config::{self, CompatMode, Config, WatchedBy};

/// Where the configuration is looked for if nobody names it.
const CONFIG: &str = "/etc/tollgate/runtime.yaml";
const CONFIG_VARIABLE: &str = "TOLLGATE_RUNTIME_CONFIG";
/// What is noted of containers: not longer than the machine runs.
const STATE: &str = "/run/tollgate/runtime";
const STATE_VARIABLE: &str = "TOLLGATE_RUNTIME_STATE";
/// Where alerts go without a configuration.
const ALERTS: &str = "/var/log/tollgate/alerts.jsonl";
/// Where policies are that annotations may name.
const POLICIES: &str = "/etc/tollgate/policies";
/// What every alert says of its container without a configuration.
const FIELDS: &str = "append_output[]={extra_fields: [container.id, container.name, \
                      container.image.repository, container.annotations, k8s.ns.name, k8s.pod.name, \
                      k8s.pod.labels]}";

/// What is configured, and where that was read.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) config: Config,
    file: Option<PathBuf>,
    /// What of the configuration has no effect.
    pub(super) warnings: Vec<String>,
    /// Where containers are noted.
    pub(super) state: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        let user = rustix::process::geteuid();
        let state = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
        let of_user = || {
            let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !user.is_root())?;
            Some(PathBuf::from(folder).join("tollgate/runtime"))
        };
        Self {
            config: Config::default(),
            file: None,
            warnings: Vec::new(),
            state: state.or_else(of_user).unwrap_or_else(|| STATE.into()),
        }
    }
}

impl Settings {
    /// Reads the configuration: the file named, or the one in the variable, or the usual one if it is
    /// there.
    pub(super) fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let named = named.map(Path::to_owned);
        let in_variable = || std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
        let usual = || Path::new(CONFIG).exists().then(|| CONFIG.into());
        let file = named.or_else(in_variable).or_else(usual);
        // An agent that takes over runs in another folder.
        let file = file.map(std::path::absolute).transpose().map_err(|cause| {
            Failure::new(
                Exit::BadInput,
                format!("cannot find the configuration: {cause}"),
            )
            .help("name a file with --config")
        })?;
        let (config, warnings) = config::load(file.as_deref(), &[], CompatMode::Tollgate)?;
        Ok(Self {
            config,
            file,
            warnings,
            ..Self::default()
        })
    }

    /// The command line of `tollgate run` that watches a container, up to its CMD.
    pub(super) fn words(
        &self,
        note: &Note,
        verb: Verb,
        store: &Store,
    ) -> Result<Vec<OsString>, Failure> {
        let mut words: Vec<OsString> = ["tollgate", "run", "--quiet", "--engine", "notify"]
            .map(OsString::from)
            .into();
        let mut option = |key: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            let mut word = OsString::from(key);
            word.push("=");
            word.push(value);
            words.push(word);
        };
        match &self.file {
            Some(file) => option("--config", file),
            None => option("--option", &FIELDS),
        }
        if !self.has_output() {
            make_usual_folder()?;
            option("--option", &"json_output=true");
            option("--option", &"file_output.enabled=true");
            option("--option", &format!("file_output.filename={ALERTS}"));
        }
        // It is the container's.
        option("--option", &"stdout_output.enabled=false");
        if self.denies_unwatched()? {
            option("--on-agent-death", &"deny");
        }
        if let Some(policy) = &note.policy {
            option("--policy", policy);
            for rule in &self.config.runtime.accept_partial {
                option("--accept-partial", rule);
            }
        }
        option("--told-container", &note.id);
        option("--told-bundle", &note.bundle);
        if note.has_mounts {
            // Beside the notes of containers, not among them.
            let above = self.state.parent().unwrap_or(Path::new("/"));
            let mut word = OsString::from("--told-plans=");
            word.push(above.join("plans"));
            words.push(word);
        } else {
            words.push("--told-host-mounts".into());
        }
        if note.policy.is_some() && self.config.runtime.audit {
            words.push("--audit".into());
        }
        if self.config.runtime.agent == WatchedBy::Host {
            self.can_be_watched_by_host()?;
            let above = self.state.parent().unwrap_or(Path::new("/"));
            let mut word = OsString::from("--told-agent=");
            word.push(above.join("agents"));
            words.push(word);
        } else if self.shares_agents() {
            let mut word = OsString::from(match verb {
                Verb::Exec => "--told-session=",
                _ => "--told-door=",
            });
            word.push(store.folder());
            words.push(word);
        }
        Ok(words)
    }

    /// Whether alerts go anywhere but to the standard output.
    fn has_output(&self) -> bool {
        let config = &self.config;
        config.syslog_enabled
            || config.file_output.enabled
            || config.program_output.enabled
            || config.http_output.enabled
    }

    /// Whether the agent of a container watches its exec sessions, too. Each session is recorded by itself, and
    /// where processes may look into their descendants alone, a session is none of that agent's.
    fn shares_agents(&self) -> bool {
        !self.config.capture.enabled && !supervise::sees_descendants_only()
    }

    /// Whether calls are refused while nobody watches.
    fn denies_unwatched(&self) -> Result<bool, Failure> {
        match self.config.runtime.on_agent_death {
            OnAgentDeath::Continue => Ok(false),
            OnAgentDeath::Deny => Ok(true),
            OnAgentDeath::Kill => {
                let message = "cannot kill containers whose agent has died: their processes are \
                               descendants of none of ours";
                Err(Failure::new(Exit::Unsupported, message)
                    .help("use `runtime.on_agent_death: deny` or `continue`"))
            }
        }
    }

    /// Refuses what a sandbox of gVisor cannot have: its calls are told to a `watch --gvisor`, and wait for
    /// nobody.
    pub(super) fn suits_sandboxes(&self) -> Result<(), Failure> {
        let (why, key) = if self.config.runtime.agent == WatchedBy::Host {
            ("an agent of the host", "runtime.agent")
        } else if self.config.runtime.on_agent_death != OnAgentDeath::Continue {
            (
                "something done when an agent dies",
                "runtime.on_agent_death",
            )
        } else {
            return Ok(());
        };
        let message =
            format!("cannot give a sandbox of gVisor {why}: `watch --gvisor` is told of its calls");
        Err(Failure::new(Exit::Unsupported, message).help(format!(
            "take `{key}` or --agent away, or use another runtime"
        )))
    }

    /// What is said on the command line goes before the configuration.
    pub(super) fn watched_by(&mut self, agent: &OsStr) -> Result<(), Failure> {
        self.config.runtime.agent = match agent.to_str() {
            Some("container") => WatchedBy::Container,
            Some("host") => WatchedBy::Host,
            _ => {
                let message = format!("cannot have containers watched by `{}`", agent.display());
                return Err(Failure::new(Exit::BadInput, message)
                    .help("use --agent container or --agent host"));
            }
        };
        Ok(())
    }

    fn can_be_watched_by_host(&self) -> Result<(), Failure> {
        let refused = |why: &str, help: &str| {
            let message = format!("cannot have containers watched by one agent: {why}");
            Err(Failure::new(Exit::Unsupported, message).help(help.to_owned()))
        };
        if supervise::sees_descendants_only() {
            return refused(
                "processes may look into their descendants alone, and containers are none of its",
                "become root or get CAP_SYS_PTRACE, or use --agent container",
            );
        }
        if self.config.capture.enabled {
            return refused(
                "`capture` is enabled, and each recording is one container's",
                "use --agent container, or take `capture` out of the configuration",
            );
        }
        Ok(())
    }

    /// The command line of `tollgate run` for a machine in which the container is, up to the name of the
    /// file for alerts, and the files that it needs there.
    pub(super) fn words_in_machine(
        &self,
        note: &Note,
    ) -> Result<(Vec<String>, Vec<PathBuf>), Failure> {
        if self.config.runtime.agent == WatchedBy::Host {
            let message = "cannot have a machine watched by an agent of the host: it has its own";
            return Err(Failure::new(Exit::Unsupported, message)
                .help("use --agent container with the runtime vm, or `runtime.agent: container`"));
        }
        let mut words = ["run", "--quiet", "--engine", "notify"]
            .map(String::from)
            .to_vec();
        if self.denies_unwatched()? {
            words.push("--on-agent-death=deny".to_owned());
        }
        let mut files = Vec::new();
        match &self.file {
            Some(_) => {
                files.extend(self.config.files.iter().cloned());
                words.extend(
                    files
                        .first()
                        .map(|file| format!("--config={}", file.display())),
                );
                let rules = &self.config.rules_files;
                if !rules.is_empty() {
                    let named = rule_files::read_all(rules).into_iter();
                    files.extend(named.map(|file| PathBuf::from(&*file.name)));
                }
            }
            None => words.push(format!("--option={FIELDS}")),
        }
        if !self.has_output() {
            words.push("--option=json_output=true".to_owned());
        }
        for option in ["file_output.enabled=true", "stdout_output.enabled=false"] {
            words.push(format!("--option={option}"));
        }
        words.push(format!("--told-container={}", note.id));
        words.push("--told-bundle=/bundle".to_owned());
        if let Some(policy) = &note.policy {
            words.push(format!("--policy={}", policy.display()));
            files.push(policy.clone());
            let accepted = self.config.runtime.accept_partial.iter();
            words.extend(accepted.map(|rule| format!("--accept-partial={rule}")));
            words.extend(self.config.runtime.audit.then(|| "--audit".to_owned()));
        }
        Ok((words, files))
    }

    /// The file to which alerts of a machine are appended. They come out of it as text, which no other
    /// output takes.
    pub(super) fn alerts_of_machine(&self) -> Result<PathBuf, Failure> {
        let config = &self.config;
        let others = [
            ("syslog_output", config.syslog_enabled),
            ("program_output", config.program_output.enabled),
            ("http_output", config.http_output.enabled),
            ("grpc", config.grpc.enabled),
            ("webserver", config.webserver.enabled),
        ];
        let other = others.iter().find(|(_, is_enabled)| *is_enabled);
        let Some((name, _)) = other else {
            if config.file_output.enabled {
                return Ok(config.file_output.filename.clone());
            }
            make_usual_folder()?;
            return Ok(ALERTS.into());
        };
        let message = format!(
            "cannot watch a container in a machine: {name} is enabled, which cannot be reached from there"
        );
        Err(Failure::new(Exit::Unsupported, message)
            .help("use file_output alone in the configuration of the runtime vm"))
    }

    /// The policy of a container: the one that its annotation names, else that of the configuration.
    /// Annotations name files of one folder and nothing else, because whoever writes them need not be who
    /// runs this machine.
    pub(super) fn policy(&self, spec: &Spec) -> Result<Option<PathBuf>, Failure> {
        let options = &self.config.runtime;
        let path = match (spec.annotations.get(annotations::POLICY), &*options.policy) {
            (Some(name), _) => self.named(name)?,
            (None, "") => return Ok(None),
            (None, path) if path.contains('/') => PathBuf::from(path),
            (None, name) => self.named(name)?,
        };
        let path = std::path::absolute(&path).unwrap_or(path);
        match path.is_file() {
            true => Ok(Some(path)),
            false => Err(no_policy(&format!("there is no {}", path.display()))),
        }
    }

    fn named(&self, name: &str) -> Result<PathBuf, Failure> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(no_policy(&format!("`{name}` is no name of a policy")));
        }
        let folder = match self.config.runtime.policies.as_os_str() {
            folder if folder.is_empty() => Path::new(POLICIES),
            folder => Path::new(folder),
        };
        Ok(folder.join(format!("{name}.yaml")))
    }
}

/// The folder of the file for alerts that is used without a configuration.
fn make_usual_folder() -> Result<(), Failure> {
    let folder = Path::new(ALERTS).parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|cause| {
        let folder = folder.display();
        Failure::new(Exit::Unsupported, format!("cannot make {folder}: {cause}"))
            .help(format!("write a configuration to {CONFIG}"))
    })
}

fn no_policy(why: &str) -> Failure {
    Failure::new(
        Exit::BadInput,
        format!("cannot confine the container: {why}"),
    )
    .help(format!(
        "`runtime.policy` and the annotation `{}` name NAME.yaml in `runtime.policies`, which is \
         {POLICIES} if it is not set",
        annotations::POLICY
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            id: "c".to_owned(),
            bundle: "/b".into(),
            has_mounts: true,
            groups: oci::Groups::default(),
            policy: None,
            runtime: None,
        }
    }

    fn settings(agent: WatchedBy, on_agent_death: OnAgentDeath) -> Settings {
        let mut settings = Settings::default();
        settings.config.runtime.agent = agent;
        settings.config.runtime.on_agent_death = on_agent_death;
        settings
    }

    #[test]
    fn what_a_machine_or_a_sandbox_cannot_have_is_refused_and_not_ignored() {
        let usual = settings(WatchedBy::Container, OnAgentDeath::Continue);
        let (words, _) = usual.words_in_machine(&note()).unwrap();
        assert!(!words.iter().any(|word| word.contains("agent-death")));
        assert!(usual.suits_sandboxes().is_ok());

        let denies = settings(WatchedBy::Container, OnAgentDeath::Deny);
        let (words, _) = denies.words_in_machine(&note()).unwrap();
        assert!(words.contains(&"--on-agent-death=deny".to_owned()));
        assert!(denies.suits_sandboxes().is_err());

        for refused in [
            settings(WatchedBy::Host, OnAgentDeath::Continue),
            settings(WatchedBy::Container, OnAgentDeath::Kill),
        ] {
            assert!(refused.words_in_machine(&note()).is_err());
            assert!(refused.suits_sandboxes().is_err());
        }
    }
}
