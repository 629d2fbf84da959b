//! Restriction of a container's first program.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::constant::SOCK_SEQPACKET;
use capture::notify::{Caller, FirstProgram};
use container::KnownContainer;
use enforce::{Confinement, Container, DeferredConfinement, Prepared};
use event::Pid;
use outputs::{Dispatcher, Internal};
use policy::compile::NarrowedPolicy;
use rules::{AlertValue, Priority};
use supervisor::SharedState;

use crate::confine::{self, PolicyStrictness};
use crate::journal;
use crate::spec::AgentSpec;

/// The restriction, and its source for the parts that must be created inside the container.
#[derive(Debug)]
pub(super) struct InitProcessPolicy {
    pub(super) elsewhere: DeferredConfinement,
    pub(super) policy: PathBuf,
    pub(super) how: PolicyStrictness,
    pub(super) container: String,
    pub(super) bundle: PathBuf,
    /// Keeps the container's AppArmor profile loaded before a process uses it.
    pub(super) kept: Option<Confinement>,
}

/// The restriction for containers that start later.
#[derive(Clone, Debug)]
pub(super) struct Restriction {
    pub(super) elsewhere: DeferredConfinement,
    pub(super) policy: PathBuf,
    pub(super) how: PolicyStrictness,
}

/// The word by which [`FirstProgram::prepare`] has this program make the ruleset.
pub const RULESET: &str = "landlock-ruleset";
/// Rule name of the alert about a refused exec.
const RULE: &str = "Tollgate internal: container not confined";

impl Restriction {
    /// Returns the restriction of one of these containers.
    pub(super) fn of(self, container: &KnownContainer) -> InitProcessPolicy {
        InitProcessPolicy {
            elsewhere: self.elsewhere,
            policy: self.policy,
            how: self.how,
            container: container.id.clone(),
            bundle: container.bundle.clone(),
            kept: None,
        }
    }
}

impl InitProcessPolicy {
    /// Returns the restriction of the container that a specification names, if it has a policy for it.
    pub(super) fn of_spec(
        spec: &AgentSpec,
        elsewhere: Option<DeferredConfinement>,
    ) -> Option<Self> {
        let container = spec.mode.container()?;
        Some(Self {
            elsewhere: elsewhere?,
            policy: spec.confine.policy.clone()?,
            how: spec.confine.how.clone(),
            container: container.id.clone(),
            bundle: container.bundle.clone(),
            kept: None,
        })
    }

    /// Returns the restriction for the container's exec sessions.
    pub(super) fn to_others(&self) -> Restriction {
        Restriction {
            elsewhere: self.elsewhere.clone(),
            policy: self.policy.clone(),
            how: self.how.clone(),
        }
    }

    pub(super) fn start(
        mut self,
        shared_state: Arc<SharedState>,
        dispatcher: Dispatcher,
    ) -> Arc<dyn FirstProgram> {
        Arc::new(Running {
            kept: Mutex::new(self.kept.take()),
            prepared: Mutex::default(),
            first: self,
            shared_state,
            dispatcher,
        })
    }
}

struct Running {
    first: InitProcessPolicy,
    kept: Mutex<Option<Confinement>>,
    /// Processes between preparation and restriction.
    prepared: Mutex<HashMap<Pid, Prepared>>,
    shared_state: Arc<SharedState>,
    dispatcher: Dispatcher,
}

impl Running {
    fn prepared(&self) -> MutexGuard<'_, HashMap<Pid, Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the policy, and the container's mounts by which its files are identified.
    fn read(&self, pid: Pid) -> Result<(NarrowedPolicy, String), Box<dyn Error + Send + Sync>> {
        let policy = confine::read(&self.first.policy, &self.first.how)
            .map_err(|failure| failure.render())?;
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", pid.0))?;
        Ok((policy, mounts))
    }
}

impl FirstProgram for Running {
    /// Creates the Landlock ruleset in a process that has entered the container's mounts, because
    /// its rules concern files as the container sees them.
    fn prepare(&self, pid: Pid) -> Result<Option<OwnedFd>, Box<dyn Error + Send + Sync>> {
        let first = &self.first;
        let read = || self.read(pid);
        let prepared = first.elsewhere.prepare(&Container { read: &read })?;
        let needs_descriptor = prepared.needs_descriptor();
        self.prepared().insert(pid, prepared);
        if !needs_descriptor {
            return Ok(None);
        }
        let (ours, theirs) = sys::socket::pair(SOCK_SEQPACKET.i32())?;
        let mut words: Vec<OsString> = vec!["runtime".into(), RULESET.into()];
        words.push(pid.0.to_string().into());
        words.push(first.bundle.clone().into());
        words.push(first.policy.clone().into());
        words.push(first.how.audit.to_string().into());
        words.extend(first.how.accept_partial.iter().map(OsString::from));
        let output = Command::new("/proc/self/exe")
            .arg0("tollgate")
            .args(words)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.trim().to_owned().into());
        }
        let (_, ruleset) = sys::socket::receive_fd(ours.as_fd(), &mut [0])?;
        ruleset
            .map(Some)
            .ok_or_else(|| "the ruleset of Landlock was not handed over".into())
    }

    fn restrict(
        &self,
        caller: &Caller,
        given: Option<i32>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let prepared = self.prepared().remove(&caller.pid());
        let prepared = prepared.ok_or("nothing was prepared to confine it by")?;
        let applied = prepared.apply(caller, given);
        let applied = applied.inspect_err(|_error| prepared.discard())?;
        if let Some(number) = applied.number {
            self.shared_state.set_tenant(number);
        }
        self.shared_state.set_lacked(applied.lacked);
        Ok(())
    }

    fn restricted(&self, pid: Pid, outcome: Result<(), &(dyn Error + 'static)>) {
        let Err(error) = outcome else {
            drop(
                self.kept
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
            return self.shared_state.first_begins();
        };
        if let Some(prepared) = self.prepared().remove(&pid) {
            prepared.discard();
        }
        let container = &self.first.container;
        let mut cause = error.to_string();
        let mut next = error.source();
        while let Some(error) = next {
            cause.push_str(&format!(": {error}"));
            next = error.source();
        }
        let message = format!(
            "a program of container {container} was not started, because it could not be confined: {cause}"
        );
        journal::warn(&message);
        let text = |text: &str| AlertValue::Text(text.to_owned());
        self.dispatcher.emit_internal(Internal {
            rule: RULE,
            priority: Priority::Critical,
            message,
            fields: vec![
                ("container.id", text(container)),
                ("cause", text(&cause)),
                ("proc.pid", AlertValue::Int(i64::from(pid.0))),
            ],
        });
    }
}
