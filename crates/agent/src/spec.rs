//! Specification of an agent, in a form that one process can pass to another.
//!
//! The creators of an [`AgentSpec`] are the commands `run`, `enforce` and `learn`, `tollgate
//! runtime`, the keeper (by `AgentSpec::taking_over`), an agent that needs the host agent, and
//! the init process of a virtual machine. An executed process reads the specification from a
//! descriptor or a file ([`AgentSpec::receive`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use config::OnAgentDeath;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rustix::fs::SealFlags;
use serde::{Deserialize, Serialize};
pub use supervisor::AGENT_VERB;
use supervisor::TakeOver;
use sys::features::{self, KernelVersion};

use crate::confine::Optional;
use crate::options::{Detection, Interception};

/// Version of the encoding. Increment it with every change of [`AgentSpec`] or its parts.
pub const VERSION: u32 = 4;
/// Magic bytes of a specification; the version follows.
const MAGIC: &[u8; 8] = b"tgagent\n";
/// Maximum size in bytes; actual specifications have some KiB.
const LIMIT: u64 = 16 << 20;

/// Specification of an agent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AgentSpec {
    /// Rules for watching the command.
    pub detection: Detection,
    /// Policy of the command.
    pub confine: Optional,
    /// Interception of the command's calls.
    pub interception: Interception,
    /// What happens to the command's calls while no agent watches, because it was killed, stopped
    /// or starved.
    pub on_agent_death: OnAgentDeath,
    /// Time in milliseconds that calls wait for an agent without progress.
    pub agent_timeout: u64,
    /// What the agent watches, and the other agents involved.
    pub mode: StartMode,
    /// Set if the agent takes over a running workload from an agent that began in the same mode.
    pub takes_over: Option<TakeOver>,
    /// The command and its arguments; empty for [`StartMode::Host`].
    pub command: Vec<OsString>,
}

/// What an agent watches, and the other agents involved.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum StartMode {
    /// The command.
    Command,
    /// The command, to learn a policy. No other agent can take over, since it would not have this
    /// one's recording.
    Learn,
    /// The container created by the command, an OCI runtime.
    Container {
        /// The container.
        container: ContainerSpec,
        /// Directory in which exec sessions of the container find this agent, which also watches
        /// them.
        #[serde(with = "optional_path")]
        sessions: Option<PathBuf>,
    },
    /// Like `Container`, but the host agent watches the container.
    ContainerOfHost {
        /// The container.
        container: ContainerSpec,
        /// Directory in which the host agent is found.
        #[serde(with = "path")]
        agents: PathBuf,
    },
    /// The exec session started by the command, an OCI runtime. The agent of its container watches
    /// it.
    Session {
        /// The container of the session.
        container: ContainerSpec,
        /// Directory in which the agent of the container is found.
        #[serde(with = "path")]
        agent: PathBuf,
    },
    /// Containers that other agents hand over: this is the host agent.
    Host {
        /// Path prefix of the agent's files.
        #[serde(with = "path")]
        base: PathBuf,
    },
}

/// A container created by the command, an OCI runtime.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ContainerSpec {
    /// Id of the container.
    pub id: String,
    /// Directory of its `config.json`.
    #[serde(with = "path")]
    pub bundle: PathBuf,
    /// The container has a mount namespace of its own.
    pub has_mounts: bool,
    /// Directory of cached compiled filters, with which a runtime starts before rules are loaded.
    #[serde(with = "optional_path")]
    pub plans: Option<PathBuf>,
}

/// Encoded form: the specification, and the kernel that tests simulate.
#[derive(Deserialize, Serialize)]
struct Envelope<S> {
    pretended_kernel: Option<(u16, u16)>,
    spec: S,
}

impl StartMode {
    /// Returns the container named in the specification.
    pub(crate) fn container(&self) -> Option<&ContainerSpec> {
        match self {
            Self::Command | Self::Learn | Self::Host { .. } => None,
            Self::Container { container, .. }
            | Self::ContainerOfHost { container, .. }
            | Self::Session { container, .. } => Some(container),
        }
    }
}

impl AgentSpec {
    /// Returns the specification of an agent that takes over from this one.
    pub(crate) fn taking_over(&self, takes_over: TakeOver) -> Self {
        Self {
            takes_over: Some(takes_over),
            confine: self.confine.of_successor(),
            ..self.clone()
        }
    }

    /// Returns the specification of the host agent for handed-over containers, without anything
    /// about a single container.
    pub(crate) fn of_host(&self, base: &Path) -> Self {
        Self {
            mode: StartMode::Host {
                base: base.to_owned(),
            },
            takes_over: None,
            command: Vec::new(),
            ..self.clone()
        }
    }

    /// Encodes the specification.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let pretended = features::pretended().map(|version| (version.major, version.minor));
        let envelope = Envelope {
            pretended_kernel: pretended,
            spec: self,
        };
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        postcard::to_extend(&envelope, head).expect("names and numbers can be written to memory")
    }

    /// Decodes a specification.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the bytes are from another version of the program, or are not a
    /// specification.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        Self::parse(bytes).map(|envelope| envelope.spec)
    }

    fn parse(bytes: &[u8]) -> Result<Envelope<Self>, Failure> {
        let refused =
            |why: String| Failure::new(Exit::BadInput, format!("cannot start an agent: {why}"));
        let after_magic = bytes.strip_prefix(MAGIC);
        let parted = after_magic.and_then(<[u8]>::split_first_chunk);
        let Some((version, body)) = parted else {
            return Err(refused("this is not a specification of one".to_owned())
                .help("`agent` is an internal verb"));
        };
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            let why = format!(
                "its specification has version {version}, and this build knows version {VERSION} alone"
            );
            return Err(refused(why).help(
                "an agent that it was to take over from goes on; start the command again to have this build \
                 watch it",
            ));
        }
        let damaged = |why: &dyn std::fmt::Display| {
            refused(format!("its specification is damaged: {why}")).help("start the command again")
        };
        match postcard::take_from_bytes(body) {
            Ok((envelope, [])) => Ok(envelope),
            Ok((_, rest)) => Err(damaged(&format!("{} bytes follow it", rest.len()))),
            Err(error) => Err(damaged(&error)),
        }
    }

    /// Reads the specification given to this process. `source` is the number of a descriptor, or
    /// the path of a file. Also adopts the simulated kernel of the sender.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if it cannot be read, or is not a specification of this version.
    pub fn receive(source: &OsStr) -> Result<Self, Failure> {
        let bytes = read(source).map_err(|error| {
            let source = source.display();
            let message =
                format!("cannot read the specification of an agent from `{source}`: {error}");
            Failure::new(Exit::BadInput, message).help("`agent` is an internal verb")
        })?;
        let envelope = Self::parse(&bytes)?;
        if let Some((major, minor)) = envelope.pretended_kernel {
            features::pretend(KernelVersion::new(major, minor));
        }
        Ok(envelope.spec)
    }
}

fn read(source: &OsStr) -> std::io::Result<Vec<u8>> {
    let number = source.to_str().and_then(|text| text.parse::<i32>().ok());
    let file = match number {
        Some(number) => {
            let copy = sys::fd::duplicate_number(number)?;
            if (0..=2).contains(&number) {
                sys::fd::replace_standard(File::open("/dev/null")?.as_fd(), number)?;
            } else {
                sys::fd::close_number(number);
            }
            let file = File::from(copy);
            // Whoever could write it could choose the rules.
            if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::WRITE) {
                return Err(std::io::Error::other("it is not sealed against writing"));
            }
            file
        }
        None => File::open(source)?,
    };
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(std::io::Error::other(format!(
            "it has more than {LIMIT} bytes"
        )));
    }
    Ok(bytes)
}

/// Encoding of a path, which may not be UTF-8.
pub(crate) mod path {
    use super::{Deserialize, OsString, Path, PathBuf, Serialize};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

/// Encoding of an optional path.
pub(crate) mod optional_path {
    use super::{Deserialize, OsString, PathBuf, Serialize};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| path.as_os_str()).serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Option::<OsString>::deserialize(from).map(|path| path.map(PathBuf::from))
    }
}

/// Encoding of a list of paths.
pub(crate) mod paths {
    use super::{Deserialize, OsString, PathBuf};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| path.as_os_str()))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<OsString>::deserialize(from)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests;
