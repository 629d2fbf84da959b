//! Builds the [`AgentSpec`] of a container from the settings and the container's note.

use std::path::PathBuf;

use agent::confine::{Optional, PolicyStrictness};
use agent::options::{Detection, Interception};
use agent::spec::{AgentSpec, ContainerSpec, StartMode};
use config::{OnAgentDeath, WatchedBy, rule_files};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EngineKind;

use crate::settings::{FIELDS, Settings};
use crate::{Note, settings};

/// Time in milliseconds that calls wait for an agent without progress, as in `tollgate run`.
const AGENT_TIMEOUT: u64 = 1000;
/// Path of the bundle inside a virtual machine.
const BUNDLE_IN_MACHINE: &str = "/bundle";

impl Settings {
    /// Builds the specification of an agent on this host. Alerts go to the configured outputs, or
    /// to [`ALERTS`](crate::settings::ALERTS) if there are none.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if a setting does not work for a container, or the directory of the
    /// default file cannot be created.
    pub fn agent_spec(&self, note: &Note, mode: StartMode) -> Result<AgentSpec, Failure> {
        let mut options = Vec::new();
        if !self.has_output() {
            settings::make_alert_folder()?;
            options.push("json_output=true".to_owned());
            options.push("file_output.enabled=true".to_owned());
            options.push(format!("file_output.filename={}", settings::ALERTS));
        }
        // The standard output belongs to the container.
        options.push("stdout_output.enabled=false".to_owned());
        self.spec_with(note, mode, options)
    }

    /// Builds the specification of an agent inside a container's virtual machine, without the alert
    /// file and the command, and the files that it needs there.
    ///
    /// # Errors
    ///
    /// [`Exit::Unsupported`] if a setting does not work in a virtual machine.
    pub fn agent_spec_in_machine(&self, note: &Note) -> Result<(AgentSpec, Vec<PathBuf>), Failure> {
        if self.config.runtime.agent == WatchedBy::Host {
            let message =
                "cannot watch a virtual machine with a host agent: it has an agent of its own";
            return Err(Failure::new(Exit::Unsupported, message)
                .help("use --agent container with the runtime vm, or `runtime.agent: container`"));
        }
        let mut files = Vec::new();
        files.extend(self.config.files.iter().cloned());
        let rules = self.config.rule_sources().read().into_iter();
        let rules = rules.filter(|file| !rule_files::is_builtin(&file.name));
        files.extend(rules.map(|file| PathBuf::from(&*file.name)));
        files.extend(note.policy.clone());
        let mut options = Vec::new();
        if !self.has_output() {
            options.push("json_output=true".to_owned());
        }
        for option in ["file_output.enabled=true", "stdout_output.enabled=false"] {
            options.push(option.to_owned());
        }
        let mode = StartMode::Container {
            container: ContainerSpec {
                id: note.id.clone(),
                bundle: BUNDLE_IN_MACHINE.into(),
                has_mounts: true,
                plans: None,
            },
            sessions: None,
        };
        Ok((self.spec_with(note, mode, options)?, files))
    }

    fn spec_with(
        &self,
        note: &Note,
        mode: StartMode,
        mut options: Vec<String>,
    ) -> Result<AgentSpec, Failure> {
        // Whatever the configuration says: alerts of rules that name no field of the container have its name, too.
        options.insert(0, FIELDS.to_owned());
        let has_policy = note.policy.is_some();
        let runtime = &self.config.runtime;
        Ok(AgentSpec {
            detection: Detection {
                config: self.file.clone(),
                layers: self.config.layers.clone(),
                rules_folder: self.config.rules_folder.clone(),
                options,
                quiet: true,
                ..Detection::default()
            },
            confine: Optional {
                policy: note.policy.clone(),
                how: PolicyStrictness {
                    audit: has_policy && runtime.audit,
                    accept_partial: match has_policy {
                        true => runtime.accept_partial.clone(),
                        false => Vec::new(),
                    },
                },
                guard: None,
            },
            interception: Interception {
                engine: Some(EngineKind::Notify),
                ..Interception::default()
            },
            on_agent_death: match self.denies_unwatched()? {
                true => OnAgentDeath::Deny,
                false => OnAgentDeath::Continue,
            },
            agent_timeout: AGENT_TIMEOUT,
            mode,
            takes_over: None,
            command: Vec::new(),
        })
    }
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
            config: None,
            root: None,
            is_watched: true,
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
        let (spec, _) = usual.agent_spec_in_machine(&note()).unwrap();
        assert_eq!(spec.on_agent_death, OnAgentDeath::Continue);
        assert!(usual.suits_sandboxes().is_ok());

        let denies = settings(WatchedBy::Container, OnAgentDeath::Deny);
        let (spec, _) = denies.agent_spec_in_machine(&note()).unwrap();
        assert_eq!(spec.on_agent_death, OnAgentDeath::Deny);
        assert!(denies.suits_sandboxes().is_err());

        for refused in [
            settings(WatchedBy::Host, OnAgentDeath::Continue),
            settings(WatchedBy::Container, OnAgentDeath::Kill),
        ] {
            assert!(refused.agent_spec_in_machine(&note()).is_err());
            assert!(refused.suits_sandboxes().is_err());
        }
    }

    #[test]
    fn only_a_container_with_a_policy_is_confined() {
        let mut settings = settings(WatchedBy::Container, OnAgentDeath::Continue);
        settings.config.runtime.audit = true;
        settings.config.runtime.accept_partial = vec!["x".to_owned()];
        let (free, _) = settings.agent_spec_in_machine(&note()).unwrap();
        assert!(free.confine.policy.is_none() && !free.confine.how.audit);
        assert!(free.confine.how.accept_partial.is_empty());
        let confined = Note {
            policy: Some("/p.yaml".into()),
            ..note()
        };
        let (spec, files) = settings.agent_spec_in_machine(&confined).unwrap();
        assert_eq!(spec.confine.policy, Some("/p.yaml".into()));
        assert!(spec.confine.how.audit);
        assert_eq!(spec.confine.how.accept_partial, ["x"]);
        assert_eq!(files, [PathBuf::from("/p.yaml")]);
    }
}
