//! Settings of the runtime. Its callers choose its command line, so they come from a file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use config::rule_files;
use config::{CompatMode, Config, OnAgentDeath, WatchedBy};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::annotations;
use crate::{Note, Spec};

/// Where the configuration is looked for if nobody names it.
const CONFIG: &str = "/etc/tollgate/runtime.yaml";
const CONFIG_VARIABLE: &str = "TOLLGATE_RUNTIME_CONFIG";
/// What is noted of containers: not longer than the machine runs.
const STATE: &str = "/run/tollgate/runtime";
const STATE_VARIABLE: &str = "TOLLGATE_RUNTIME_STATE";
/// The file that alerts are appended to if no output is configured.
pub const ALERTS: &str = "/var/log/tollgate/alerts.jsonl";
/// Where policies are that annotations may name.
const POLICIES: &str = "/etc/tollgate/policies";
/// The fields that every alert has if no configuration is named, as an option of `tollgate run`.
pub const FIELDS: &str = "append_output[]={extra_fields: [container.id, container.name, \
                      container.image.repository, container.annotations, k8s.ns.name, k8s.pod.name, \
                      k8s.pod.labels]}";

/// The configuration of the runtime.
#[derive(Debug)]
pub struct Settings {
    /// The settings.
    pub config: Config,
    /// The main configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Settings that have no effect.
    pub warnings: Vec<String>,
    /// The folder in which containers are noted.
    pub state: PathBuf,
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
    /// Reads the configuration: the file named, or the one in the environment variable, or the usual one if it exists.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if it cannot be read or a setting is wrong.
    pub fn load(named: Option<&Path>) -> Result<Self, Failure> {
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

    /// Returns true if an output is enabled besides the standard output.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let mut enabled = self.config.outputs.enabled();
        enabled.any(|output| output != "stdout_output")
    }

    /// Returns true if calls are refused while no agent runs.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if containers are to be killed then.
    pub fn denies_unwatched(&self) -> Result<bool, Failure> {
        match self.config.runtime.on_agent_death {
            OnAgentDeath::Continue => Ok(false),
            OnAgentDeath::Deny => Ok(true),
            OnAgentDeath::Kill => {
                let message = "cannot kill containers when their agent dies: their processes are not \
                descendants of tollgate";
                Err(Failure::new(Exit::Unsupported, message)
                    .help("use `runtime.on_agent_death: deny` or `continue`"))
            }
        }
    }

    /// Checks that the settings suit a sandbox of gVisor, whose calls are reported to `watch --gvisor` and wait for no
    /// agent.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if one does not.
    pub fn suits_sandboxes(&self) -> Result<(), Failure> {
        let (why, key) = if self.config.runtime.agent == WatchedBy::Host {
            ("a host agent", "runtime.agent")
        } else if self.config.runtime.on_agent_death != OnAgentDeath::Continue {
            ("an action for a dead agent", "runtime.on_agent_death")
        } else {
            return Ok(());
        };
        let message =
            format!("cannot use {why} with a gVisor sandbox: `watch --gvisor` receives its calls");
        Err(Failure::new(Exit::Unsupported, message)
            .help(format!("remove `{key}` or --agent, or use another runtime")))
    }

    /// Overrides `runtime.agent` by the option `--agent`.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if `agent` is neither `container` nor `host`.
    pub fn watched_by(&mut self, agent: &OsStr) -> Result<(), Failure> {
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

    /// The command line of `tollgate run` inside the virtual machine of a container, without the name of the file for
    /// alerts; and the files that it needs there.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if a setting does not work in a virtual machine.
    pub fn words_in_machine(&self, note: &Note) -> Result<(Vec<String>, Vec<PathBuf>), Failure> {
        if self.config.runtime.agent == WatchedBy::Host {
            let message =
                "cannot watch a virtual machine with a host agent: it has an agent of its own";
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

    /// The file that alerts of a virtual machine are appended to. They leave it as text, which no other output takes.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if another output is enabled, or the usual folder cannot be made.
    pub fn alerts_of_machine(&self) -> Result<PathBuf, Failure> {
        let config = &self.config;
        let of_text = ["stdout_output", "file_output"];
        let mut others = config.outputs.enabled();
        let other = others
            .find(|output| !of_text.contains(output))
            .or(config.grpc.enabled.then_some("grpc"))
            .or(config.webserver.enabled.then_some("webserver"));
        let Some(name) = other else {
            if config.outputs.file.enabled {
                return Ok(config.outputs.file.filename.clone());
            }
            make_alert_folder()?;
            return Ok(ALERTS.into());
        };
        let message = format!(
            "cannot watch a container in a virtual machine: {name} is enabled, but cannot be reached from there"
        );
        Err(Failure::new(Exit::Unsupported, message)
            .help("use file_output alone in the configuration of the runtime vm"))
    }

    /// The policy of a container: the one that its annotation names, else that of the configuration.
    ///
    /// Annotations name files of one folder and nothing else, because whoever writes them need not be who
    /// runs this machine.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the name is none of a policy, or there is no such file.
    pub fn policy(&self, spec: &Spec) -> Result<Option<PathBuf>, Failure> {
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
            return Err(no_policy(&format!("`{name}` is not a policy name")));
        }
        let folder = match self.config.runtime.policies.as_os_str() {
            folder if folder.is_empty() => Path::new(POLICIES),
            folder => Path::new(folder),
        };
        Ok(folder.join(format!("{name}.yaml")))
    }
}

/// Makes the folder of [`ALERTS`].
///
/// # Errors
///
/// [`Exit::Unsupported`] if it cannot be made.
pub fn make_alert_folder() -> Result<(), Failure> {
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
            groups: crate::Groups::default(),
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
