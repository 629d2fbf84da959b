//! What can go wrong, with the next step.

use std::io;
use std::path::PathBuf;

use crate::form::Digest;

/// What has name and version of an artefact, in [`ArtifactError::Form`].
pub(crate) const CONFIGURATION: &str = "the configuration";

/// An artefact cannot be read, believed, installed or published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// A reference cannot be parsed.
    #[error("cannot read the reference `{text}`: {problem}")]
    Reference {
        /// The reference.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A name is in no index.
    #[error("cannot find `{name}`: no index has it{}", near.as_ref().map_or_else(String::new, |near| format!("; did you mean `{near}`?")))]
    Unknown {
        /// The name.
        name: String,
        /// A name that is nearly the same.
        near: Option<String>,
    },
    /// Something does not have its form.
    #[error("cannot use {what}: {problem}")]
    Form {
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Something is larger than what is accepted.
    #[error("cannot use {what}: it has more than {limit} bytes")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// The largest size that is accepted.
        limit: u64,
    },
    /// Content is not what its digest says.
    #[error("refusing {what}: its digest is {found}, not {expected}")]
    Digest {
        /// What it is.
        what: &'static str,
        /// The digest that names it.
        expected: Digest,
        /// The digest of its content.
        found: Digest,
    },
    /// The registry has no such artefact.
    #[error("cannot find {reference}: the registry has no such artefact")]
    Missing {
        /// Its reference.
        reference: String,
    },
    /// The registry cannot be reached.
    #[error("cannot reach {url}")]
    Request {
        /// The address.
        url: String,
        /// The cause.
        source: io::Error,
    },
    /// The registry refuses.
    #[error("the registry refuses {url}: status {status}{text}")]
    Status {
        /// The address.
        url: String,
        /// Status of HTTP.
        status: u16,
        /// What it says, after a colon.
        text: String,
    },
    /// The client for the registry cannot be made.
    #[error(transparent)]
    Client(#[from] outputs::HttpError),
    /// A file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was to be done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An artefact has no signature.
    #[error("refusing {reference}: it is not signed")]
    Unsigned {
        /// Its reference.
        reference: String,
    },
    /// No signature of an artefact is one of the keys over it.
    #[error("refusing {reference}: {problem}")]
    Signature {
        /// Its reference.
        reference: String,
        /// Why.
        problem: String,
    },
    /// A key cannot be read.
    #[error("cannot read the key: {problem}")]
    Key {
        /// What is wrong.
        problem: &'static str,
    },
    /// An older version than the installed one.
    #[error("refusing {name} {offered}: the newer version {installed} is installed")]
    RollBack {
        /// Name of the artefact.
        name: String,
        /// The version of the registry.
        offered: semver::Version,
        /// The version that is installed.
        installed: semver::Version,
    },
    /// A version with other content than it had.
    #[error("refusing {name} {version}: it was installed as {installed}, and is now {offered}")]
    Republished {
        /// Name of the artefact.
        name: String,
        /// The version.
        version: semver::Version,
        /// The digest that was installed.
        installed: Digest,
        /// The digest of the registry.
        offered: Digest,
    },
    /// An artefact that this program cannot install.
    #[error("cannot install {name}: {problem}")]
    Unsupported {
        /// Name of the artefact.
        name: String,
        /// Why.
        problem: String,
    },
    /// The caller refuses the rules.
    #[error("cannot install {names}: {problem}")]
    Rules {
        /// Names of the artefacts.
        names: String,
        /// What the check says.
        problem: String,
    },
}

impl ArtifactError {
    pub(crate) fn form(what: &'static str, problem: impl Into<String>) -> Self {
        Self::Form {
            what,
            problem: problem.into(),
        }
    }

    /// Returns the next step.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self {
            Self::Reference { .. } => {
                "write REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST, or a name of an index and --index"
            }
            Self::Unknown { .. } => {
                "`tollgate artifact search --index FILE` lists the names of an index"
            }
            Self::Form { .. } | Self::TooLarge { .. } => {
                "ask whoever published it; nothing was installed"
            }
            Self::Digest { .. } => {
                "the registry or the way to it changed the artefact; nothing was installed"
            }
            Self::Missing { .. } => "check the repository and the tag",
            // What answers a handshake of TLS by something else (rustls).
            Self::Request { source, .. } if source.to_string().contains("InvalidContentType") => {
                "it does not speak TLS; --plain-http asks a registry without it"
            }
            Self::Request { .. } => {
                "check the address; --ca names the authority of a private registry"
            }
            Self::Status { .. } => {
                "--auth-file names a file with credentials, as `docker login` writes it"
            }
            Self::Client(_) => "--ca names a file of certificates in PEM form",
            Self::File { .. } => "check the path and its rights",
            Self::Unsigned { .. } => {
                "sign it with `cosign sign --key`, or accept what nobody has signed by --allow-unsigned"
            }
            Self::Signature { .. } => {
                "check the key and who published the artefact; nothing was installed"
            }
            Self::Key { .. } => "name a PEM file with an ECDSA P-256 or ed25519 key",
            Self::RollBack { .. } => {
                "--allow-rollback installs it all the same; nothing was changed"
            }
            Self::Republished { .. } => {
                "a new content needs a new version; --allow-rollback installs it all the same"
            }
            Self::Unsupported { .. } => "nothing was installed",
            Self::Rules { .. } => {
                "the rules that are installed stay in force; ask whoever published these"
            }
        }
    }

    /// Returns the next step of who publishes.
    #[must_use]
    pub fn help_to_publish(&self) -> &'static str {
        match self {
            // Its version is the tag, unless it is given.
            Self::Form { what, .. } if *what == CONFIGURATION => {
                "give it a version by the tag, as in REGISTRY/REPOSITORY:1.2.0, or by --artifact-version, and a name by \
                 --name; nothing was published"
            }
            Self::Form { .. } => "correct it; nothing was published",
            Self::TooLarge { .. } => "publish less at a time; nothing was published",
            Self::Digest { .. } => "the registry or the way to it changed what was sent",
            Self::Unsupported { .. } => "nothing was published",
            _ => self.help(),
        }
    }

    /// Whether the network or the registry is at fault, so that a later try may succeed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Request { .. })
            || matches!(self, Self::Status { status, .. } if *status >= 500 || *status == 429)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_publishes_is_told_how_and_not_whom_to_ask() {
        let version = ArtifactError::form(CONFIGURATION, "`x` is no version");
        assert!(version.help_to_publish().contains("--artifact-version"));
        let large = ArtifactError::TooLarge {
            what: "the rules",
            limit: 1,
        };
        for error in [version, large] {
            assert!(error.help().contains("ask whoever published it"));
            assert!(error.help_to_publish().contains("nothing was published"));
        }
    }

    #[test]
    fn a_registry_without_tls_is_asked_by_plain_http() {
        let of = |text: &str| ArtifactError::Request {
            url: "https://localhost:5000/v2/".to_owned(),
            source: io::Error::other(text.to_owned()),
        };
        let error = of("received corrupt message of type InvalidContentType");
        assert!(error.help().contains("--plain-http"));
        assert!(!of("Connection refused").help().contains("--plain-http"));
    }
}
