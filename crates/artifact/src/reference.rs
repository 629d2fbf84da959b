//! References: where an artefact is, and which of its versions is meant.

use std::fmt;

use crate::ArtifactError;
use crate::form::{Digest, check_name};

/// Tag without one in a reference.
const DEFAULT_TAG: &str = "latest";

/// What a user asks for: a reference, or a name of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A name of an index.
    Name {
        /// The name.
        name: String,
        /// The tag, if one is given.
        tag: Option<String>,
        /// The digest, if one is given.
        digest: Option<Digest>,
    },
    /// A complete reference.
    Reference(Reference),
}

/// An artefact of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host, and port if it has one.
    pub registry: String,
    /// Path of the repository.
    pub repository: String,
    /// The tag. It counts only without a digest.
    pub tag: String,
    /// The digest to which the artefact is pinned.
    pub digest: Option<Digest>,
}

impl Wanted {
    /// Parses `REGISTRY/REPOSITORY[:TAG][@DIGEST]` or `NAME[:TAG][@DIGEST]`.
    ///
    /// # Errors
    ///
    /// If it is neither.
    pub fn parse(text: &str) -> Result<Self, ArtifactError> {
        let wrong = |problem: String| ArtifactError::Reference {
            text: text.to_owned(),
            problem,
        };
        let (place, digest) = match text.split_once('@') {
            None => (text, None),
            Some((place, digest)) => {
                let digest = Digest::try_from(digest.to_owned()).map_err(wrong)?;
                (place, Some(digest))
            }
        };
        let (place, tag) = match place.rsplit_once(':') {
            // A colon before a slash is that of a port.
            Some((before, after)) if !after.contains('/') => (before, Some(after)),
            _ => (place, None),
        };
        if let Some(tag) = tag {
            check_tag(tag).map_err(wrong)?;
        }
        let tag = tag.map(str::to_owned);
        let Some((registry, repository)) = place.split_once('/') else {
            check_name(place).map_err(wrong)?;
            let name = place.to_owned();
            return Ok(Self::Name { name, tag, digest });
        };
        let reference = Reference::new(registry, repository).map_err(wrong)?;
        Ok(Self::Reference(reference.with(tag, digest)))
    }
}

impl Reference {
    /// Makes a reference to the latest artefact of a repository.
    pub(crate) fn new(registry: &str, repository: &str) -> Result<Self, String> {
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
        let is_registry = registry == "localhost" || registry.contains(['.', ':']);
        if !is_registry || !registry.bytes().all(is_host) || registry.len() > 255 {
            return Err(format!(
                "`{}` is no registry: expected a host such as ghcr.io or localhost:5000",
                registry.escape_debug()
            ));
        }
        let port = match registry.rsplit_once(']') {
            Some((_, rest)) => rest.strip_prefix(':'),
            None => registry.split_once(':').map(|(_, port)| port),
        };
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port != 0)) {
            return Err(format!(
                "the port of `{registry}` is no number from 1 to 65535"
            ));
        }
        let is_part = |part: &str| {
            let ends = [part.bytes().next(), part.bytes().last()];
            let is_end = |byte: Option<u8>| {
                byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            };
            let is_inner = |byte: u8| is_end(Some(byte)) || b"-_.".contains(&byte);
            ends.into_iter().all(is_end) && part.bytes().all(is_inner) && !part.contains("..")
        };
        if repository.len() > 255 || !repository.split('/').all(is_part) {
            return Err(format!(
                "`{}` is no repository: expected parts of a-z, 0-9, `-`, `_` and `.`, with slashes between them",
                repository.escape_debug()
            ));
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: DEFAULT_TAG.to_owned(),
            digest: None,
        })
    }

    pub(crate) fn with(mut self, tag: Option<String>, digest: Option<Digest>) -> Self {
        if let Some(tag) = tag {
            self.tag = tag;
        }
        self.digest = digest;
        self
    }

    /// Returns registry and repository, as a signature names them.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// Returns what a registry is asked for.
    pub(crate) fn version(&self) -> &str {
        self.digest.as_ref().map_or(&*self.tag, Digest::as_str)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.digest {
            Some(digest) => write!(f, "{}@{digest}", self.place()),
            None => write!(f, "{}:{}", self.place(), self.tag),
        }
    }
}

/// Checks a tag, as the specification of distribution limits it.
pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let starts = !tag.starts_with(['.', '-']);
    match (1..=128).contains(&tag.len()) && starts && tag.bytes().all(is_good) {
        true => Ok(()),
        false => Err(format!("`{}` is no tag", tag.escape_debug())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_names_are_told_apart() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            (
                "ghcr.io/falcosecurity/rules/falco-rules",
                "ghcr.io/falcosecurity/rules/falco-rules:latest",
            ),
            ("localhost:5000/a:1.2.0", "localhost:5000/a:1.2.0"),
            ("localhost/a", "localhost/a:latest"),
        ] {
            match Wanted::parse(text) {
                Ok(Wanted::Reference(found)) => assert_eq!(found.to_string(), expected),
                other => panic!("{text}: {other:?}"),
            }
        }
        let pinned = Wanted::parse(&format!("r.io/a:1@{digest}")).expect("it is a reference");
        let Wanted::Reference(pinned) = pinned else {
            panic!("{pinned:?}");
        };
        assert_eq!(pinned.to_string(), format!("r.io/a@{digest}"));
        assert!(matches!(
            Wanted::parse("falco-rules:3"),
            Ok(Wanted::Name { tag: Some(tag), .. }) if tag == "3"
        ));
        for bad in [
            "",
            "r.io/",
            "r.io/A",
            "r.io/a/../b",
            "r.io/a:",
            "r.io/a@sha256:12",
            "a b",
            "-x",
            "r.io/a:x:y",
            "host/a",
        ] {
            assert!(Wanted::parse(bad).is_err(), "{bad}");
        }
    }
}
