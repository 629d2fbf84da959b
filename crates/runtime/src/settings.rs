//! Settings of the runtime. They come from a file, because callers choose the command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use config::trust::{self, is_initial_user_namespace};
use config::{Config, Effective, OnAgentDeath, Places, Request, WatchedBy};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::Spec;
use crate::annotations;

/// Default path of the configuration.
const CONFIG: &str = "/etc/tollgate/runtime.yaml";
const CONFIG_VARIABLE: &str = "TOLLGATE_RUNTIME_CONFIG";
/// Directory of container notes, which do not survive a reboot.
const STATE: &str = "/run/tollgate/runtime";
const STATE_VARIABLE: &str = "TOLLGATE_RUNTIME_STATE";
/// Set by podman for its commands in the user namespace of a user who is not root.
const ROOTLESS_VARIABLE: &str = "_CONTAINERS_ROOTLESS_UID";
/// Default file for alerts, used if no output is configured.
pub const ALERTS: &str = "/var/log/tollgate/alerts.jsonl";
/// Default directory of policies that annotations can name.
const POLICIES: &str = "/etc/tollgate/policies";
/// Fields added to every alert, as an option of `tollgate run`.
pub const FIELDS: &str = "append_output[]={extra_fields: [container.id, container.name, \
                      container.image.repository, container.annotations, k8s.ns.name, k8s.pod.name, \
                      k8s.pod.labels]}";

/// The configuration of the runtime.
#[derive(Debug)]
pub struct Settings {
    /// The parsed settings.
    pub config: Config,
    /// The main configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Warnings about settings without effect.
    pub warnings: Vec<String>,
    /// Directory of container notes.
    pub state: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        let mut folders = note_folders();
        Self {
            config: Config::default(),
            file: None,
            warnings: Vec::new(),
            state: folders.swap_remove(0),
        }
    }
}

impl Settings {
    /// Reads the configuration: the named file, else the one in the environment variable, else the
    /// default one if it exists.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the file cannot be read or a setting is wrong.
    pub fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let named = named.map(Path::to_owned);
        let in_variable = || std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
        let usual = || Path::new(CONFIG).exists().then(|| CONFIG.into());
        let file = named.or_else(in_variable).or_else(usual);
        if file.as_deref() == Some(Path::new(CONFIG)) {
            trust::check(Path::new(CONFIG)).map_err(|error| {
                let message = format!("cannot use configuration {CONFIG}: {}", error.cause());
                Failure::new(Exit::BadInput, message).help(error.fix())
            })?;
        }
        // An agent that takes over runs in another working directory.
        let file = file.map(std::path::absolute).transpose().map_err(|cause| {
            Failure::new(
                Exit::BadInput,
                format!("cannot find the configuration: {cause}"),
            )
            .help("name a file with --config")
        })?;
        // Not the user's file: callers such as containerd choose the environment.
        let places = Places::of_machine()?;
        let request = Request {
            layers: &places.files,
            file: file.as_deref(),
            ..Request::default()
        };
        let Effective {
            mut config,
            warnings,
            ..
        } = request.load()?;
        config.rules_folder.clone_from(&places.rules);
        Ok(Self {
            config,
            file,
            warnings,
            ..Self::default()
        })
    }

    /// Returns true if an output other than the standard output is enabled.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let mut enabled = self.config.outputs.enabled();
        enabled.any(|output| output != "stdout_output")
    }

    /// Returns true if calls are refused while no agent runs.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if the setting is to kill containers then.
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

    /// Checks that the settings work for a gVisor sandbox, whose calls are reported to `watch
    /// --gvisor` and do not wait for an agent.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if a setting does not.
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

    /// Returns the file for alerts of a virtual machine. They leave the machine as text, which no
    /// other output accepts.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if another output is enabled, or the default directory cannot be
    /// created.
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

    /// Returns the policy of a container: the one that its annotation names, else the configured
    /// one.
    ///
    /// Annotations can name only files of one directory, because their author is not necessarily an
    /// administrator of the host.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the name is invalid or there is no such file.
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

/// Returns the directories of container notes: the one for new notes, then others that may have notes of this user.
#[must_use]
pub fn note_folders() -> Vec<PathBuf> {
    if let Some(state) = std::env::var_os(STATE_VARIABLE) {
        return vec![state.into()];
    }
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let of_user = of_user.map(|folder| PathBuf::from(folder).join("tollgate/runtime"));
    folders_for(of_user, caller())
}

fn folders_for(of_user: Option<PathBuf>, caller: Caller) -> Vec<PathBuf> {
    let of_machine = || PathBuf::from(STATE);
    match (of_user, caller) {
        (None, _) | (_, Caller::Root) => vec![of_machine()],
        (Some(of_user), Caller::User) => vec![of_user],
        // podman sets the variable for some of its commands only: its notes may be in either.
        (Some(of_user), Caller::Rootless) => vec![of_user, of_machine()],
        (Some(of_user), Caller::Nested) => vec![of_machine(), of_user],
    }
}

/// The user who calls the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// Root of the machine.
    Root,
    /// Root of a user namespace that podman made for another user.
    Rootless,
    /// Root of another user namespace, as in a container.
    Nested,
    /// Another user.
    User,
}

fn caller() -> Caller {
    if !rustix::process::geteuid().is_root() {
        Caller::User
    } else if is_initial_user_namespace() == Some(true) {
        Caller::Root
    } else if std::env::var_os(ROOTLESS_VARIABLE).is_some() {
        Caller::Rootless
    } else {
        Caller::Nested
    }
}

/// Creates the directory of [`ALERTS`].
///
/// # Errors
///
/// [`Exit::Unsupported`] if it cannot be created.
pub fn make_alert_folder() -> Result<(), Failure> {
    let folder = Path::new(ALERTS).parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|cause| {
        let folder = folder.display();
        let help = match caller() == Caller::Root {
            true => format!("write a configuration to {CONFIG}"),
            false => "name a configuration with a file_output that you may write: \
                      `podman --runtime-flag config=FILE`, or --config FILE"
                .to_owned(),
        };
        Failure::new(Exit::Unsupported, format!("cannot make {folder}: {cause}")).help(help)
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

    #[test]
    fn notes_are_below_the_folder_of_a_user_only_for_podman_and_for_users() {
        let of = |caller| folders_for(Some("/run/user/0/t".into()), caller);
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(of(Caller::Root), paths(&[STATE]));
        assert_eq!(of(Caller::Rootless), paths(&["/run/user/0/t", STATE]));
        // A service and a shell of the same container have different variables.
        assert_eq!(of(Caller::Nested), paths(&[STATE, "/run/user/0/t"]));
        assert_eq!(of(Caller::User), paths(&["/run/user/0/t"]));
        for caller in [Caller::Root, Caller::Rootless, Caller::Nested, Caller::User] {
            assert_eq!(folders_for(None, caller), paths(&[STATE]));
        }
    }
}
