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
pub const VERSION: u32 = 3;
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
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use config::{IoUring, Verify};
    use serde_reflection::{ContainerFormat, Samples, Tracer, TracerConfig};

    use super::*;
    use crate::confine::PolicyStrictness;
    use crate::guard::GuardSpec;
    use crate::options::{AlertFormat, AlertStream, Refusal};

    fn take_over() -> TakeOver {
        let json = serde_json::json!({"generation": 2, "descriptors": [3, 4]});
        serde_json::from_value(json).expect("its fields")
    }

    /// Something of everything, with paths and words that are no text.
    fn full() -> AgentSpec {
        let odd = || PathBuf::from(OsStr::from_bytes(b"/odd\xff"));
        AgentSpec {
            detection: Detection {
                rules: vec![odd(), "/r".into()],
                add_rules: vec![odd()],
                rules_folder: Some(odd()),
                layers: vec![odd(), "/l".into()],
                config: Some(odd()),
                options: vec!["a=b".to_owned()],
                json: true,
                write: Some(odd()),
                rotation: crate::options::Rotation {
                    write_size: Some(1),
                    write_time: Some(2),
                    write_events: Some(3),
                    write_keep: Some(4),
                },
                stats: Some(odd()),
                stream: AlertStream {
                    log: Some(odd()),
                    is_beside_command: true,
                    format: Some(AlertFormat::Line),
                    is_wide: true,
                },
                stats_interval: 7,
                pidfile: Some(odd()),
                container_id: Some("id".to_owned()),
                ring_kib: Some(64),
                judges: std::num::NonZeroUsize::new(3),
                hooks: capture::ebpf::Hooks::Raw,
                manner: config::CompatMode::Falco,
                ..Detection::default()
            },
            confine: Optional {
                policy: Some(odd()),
                how: PolicyStrictness {
                    audit: true,
                    accept_partial: vec!["x".to_owned()],
                },
                guard: Some(GuardSpec {
                    policy: "policy:".to_owned(),
                    report: Some(3),
                    options: [("r".to_owned(), "--o".to_owned())].into(),
                    ask: true,
                    environment: Some("A=b".to_owned()),
                }),
            },
            interception: Interception {
                engine: Some(event::EngineKind::Notify),
                verify: Some(Verify::Always),
                io_uring: Some(IoUring::Allow),
                refuse: vec![Refusal::NonDumpable],
                ..Interception::default()
            },
            on_agent_death: OnAgentDeath::Deny,
            agent_timeout: 1234,
            mode: StartMode::Container {
                container: ContainerSpec {
                    id: "c".to_owned(),
                    bundle: odd(),
                    has_mounts: true,
                    plans: Some(odd()),
                },
                sessions: Some(odd()),
            },
            takes_over: Some(take_over()),
            command: vec!["runc".into(), OsStr::from_bytes(b"\xfe").to_owned()],
        }
    }

    fn refusal(bytes: &[u8]) -> String {
        AgentSpec::decode(bytes).expect_err("refused").render()
    }

    #[test]
    fn a_specification_is_read_as_it_was_written() {
        let spec = full();
        let again = AgentSpec::decode(&spec.encode()).expect("this version");
        assert_eq!(format!("{again:?}"), format!("{spec:?}"));
        for spec in of_each_mode() {
            let again = AgentSpec::decode(&spec.encode()).expect("this version");
            assert_eq!(again.mode, spec.mode);
        }
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let mut bytes = full().encode();
        bytes[MAGIC.len()] += 1;
        let text = refusal(&bytes);
        let expected = format!(
            "cannot start an agent: its specification has version {}, and this build knows version {VERSION} alone",
            VERSION + 1
        );
        assert!(text.contains(&expected), "{text}");
        // Whatever follows the number.
        bytes.truncate(MAGIC.len() + 4);
        assert!(refusal(&bytes).contains(&expected));
    }

    /// A specification of each start mode. A mode that is missing here does not compile.
    fn of_each_mode() -> Vec<AgentSpec> {
        let container = full().mode.container().expect("it has one").clone();
        let first = StartMode::Command;
        let following = |mode: &StartMode| match mode {
            StartMode::Command => Some(StartMode::Learn),
            StartMode::Learn => Some(full().mode),
            StartMode::Container { .. } => Some(StartMode::ContainerOfHost {
                container: container.clone(),
                agents: "/agents".into(),
            }),
            StartMode::ContainerOfHost { .. } => Some(StartMode::Session {
                container: container.clone(),
                agent: "/agent".into(),
            }),
            StartMode::Session { .. } => Some(StartMode::Host { base: "/b".into() }),
            StartMode::Host { .. } => None,
        };
        let modes = std::iter::successors(Some(first), following);
        modes.map(|mode| AgentSpec { mode, ..full() }).collect()
    }

    /// The layout of everything that a specification can have: each type that it contains, with the
    /// names and types of fields and all variants, in order.
    fn layout() -> String {
        let mut tracer = Tracer::new(TracerConfig::default());
        let mut samples = Samples::new();
        for spec in of_each_mode() {
            let envelope = Envelope {
                pretended_kernel: Some((6, 1)),
                spec,
            };
            let traced = tracer.trace_value(&mut samples, &envelope);
            traced.expect("a value");
        }
        let mut whole = vec!["OsString".to_owned(), "StartMode".to_owned()];
        macro_rules! all_variants {
            ($($kind:ty),*) => {$(
                tracer.trace_simple_type::<$kind>().expect("a type");
                let name = std::any::type_name::<$kind>().rsplit("::").next();
                whole.extend(name.map(str::to_owned));
            )*};
        }
        all_variants!(
            AlertFormat,
            capture::ebpf::Hooks,
            config::CompatMode,
            event::EngineKind,
            IoUring,
            OnAgentDeath,
            Refusal,
            Verify
        );
        // Fails if a type was not seen, for example behind an option without a value.
        let registry = tracer.registry().expect("all types are known");
        for (name, format) in &registry {
            let is_enum = matches!(format, ContainerFormat::Enum(_));
            assert!(
                !is_enum || whole.contains(name),
                "trace all variants of {name}"
            );
        }
        let types = registry
            .iter()
            .map(|(name, format)| format!("{name}: {format:?}\n"));
        types.collect()
    }

    #[test]
    fn a_changed_form_has_a_new_version() {
        let layout = layout();
        for variant in [
            "Command",
            "Learn",
            "Container",
            "ContainerOfHost",
            "Session",
            "Host",
        ] {
            assert!(layout.contains(&format!("name: \"{variant}\"")), "{layout}");
        }
        // FNV-1a over the layout and what is written: where this fails, raise `VERSION` and note the
        // new number.
        let bytes = [layout.into_bytes(), full().encode()].concat();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((VERSION, hash), (3, 0xce1a_b4fa_c18c_fb52));
    }

    #[test]
    fn bytes_after_a_specification_are_refused() {
        let mut bytes = full().encode();
        bytes.push(0);
        let text = refusal(&bytes);
        assert!(text.contains("is damaged: 1 bytes follow it"), "{text}");
    }

    #[test]
    fn what_is_no_specification_or_a_part_of_one_is_refused() {
        let bytes = full().encode();
        for bytes in [&b""[..], b"tgagent", b"tgplan1\n\0\0\0\0", b"#!/bin/sh\n"] {
            let text = refusal(bytes);
            assert!(
                text.contains("this is not a specification of one"),
                "{text}"
            );
        }
        for length in MAGIC.len() + 4..bytes.len() {
            let text = refusal(&bytes[..length]);
            assert!(text.contains("is damaged"), "{length}: {text}");
        }
    }

    #[test]
    fn the_agent_of_the_host_knows_nothing_of_the_container() {
        let of_host = |change: fn(&mut AgentSpec)| {
            let mut spec = full();
            change(&mut spec);
            spec.of_host(Path::new("/b")).encode()
        };
        let usual = of_host(|_| ());
        let other_container = of_host(|spec| {
            spec.mode = StartMode::ContainerOfHost {
                container: ContainerSpec {
                    id: "other".to_owned(),
                    ..spec.mode.container().expect("it has one").clone()
                },
                agents: "/agents".into(),
            };
            spec.command.clear();
        });
        assert_eq!(usual, other_container);
        assert_ne!(usual, of_host(|spec| spec.confine.how.audit = false));
        assert_ne!(usual, of_host(|spec| spec.detection.config = None));
    }

    #[test]
    fn a_specification_comes_by_descriptor_or_file() {
        use std::os::fd::IntoRawFd;
        let bytes = full().encode();
        let number = supervisor::in_memory(&bytes).expect("memory").into_raw_fd();
        let received = AgentSpec::receive(OsStr::new(&number.to_string())).expect("it is there");
        assert_eq!(received.encode(), bytes);
        assert!(sys::fd::duplicate_number(number).is_err(), "it stayed open");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("written");
        let received = AgentSpec::receive(file.path().as_os_str()).expect("it is there");
        assert_eq!(received.encode(), bytes);
        assert!(AgentSpec::receive(OsStr::new("/nothing")).is_err());
    }
}
