//! The form of artefacts: media types of falcoctl, manifests of the OCI, and the configuration.

use std::fmt;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::{ArtifactError, limits};

pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// A digest: `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Returns the digest of content.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let hash = digest(&SHA256, bytes);
        let mut text = "sha256:".to_owned();
        for byte in hash.as_ref() {
            text.push_str(&format!("{byte:02x}"));
        }
        Self(text)
    }

    /// Parses a digest; `None` for another form or algorithm.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_good = digits.len() == 64 && digits.bytes().all(is_hex);
        is_good.then(|| Self(text.to_owned()))
    }

    /// Returns the digits without the algorithm.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn check(&self, bytes: &[u8], what: &'static str) -> Result<(), ArtifactError> {
        let found = Self::of(bytes);
        match found == *self {
            true => Ok(()),
            false => Err(ArtifactError::Digest {
                what,
                expected: self.clone(),
                found,
            }),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| {
            format!(
                "`{}` is no digest: expected sha256: and 64 digits",
                text.escape_debug()
            )
        })
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

/// What an artefact has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data that a plug-in reads.
    Asset,
    /// A shared library for Falco.
    Plugin,
    /// Rules.
    Rulesfile,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Asset, Self::Plugin, Self::Rulesfile];

    /// Returns falcoctl's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asset => "asset",
            Self::Plugin => "plugin",
            Self::Rulesfile => "rulesfile",
        }
    }

    /// Returns the kind with this name of falcoctl's.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn config_type(self) -> String {
        format!("application/vnd.cncf.falco.{}.config.v1+json", self.name())
    }

    pub(crate) fn layer_type(self) -> String {
        format!("application/vnd.cncf.falco.{}.layer.v1+tar.gz", self.name())
    }

    fn of_config(media_type: &str) -> Option<Self> {
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.config_type() == media_type)
    }
}

/// A part of a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) annotations: serde_json::Map<String, serde_json::Value>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: Digest, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size: bytes.len() as u64,
            platform: None,
            annotations: serde_json::Map::new(),
        }
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(key.to_owned(), value.into().into());
        self
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)?.as_str()
    }
}

/// Which machines a part is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
}

impl Platform {
    /// Returns this machine's, in the words of Go.
    pub(crate) fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            architecture: architecture.to_owned(),
            os: std::env::consts::OS.to_owned(),
        }
    }
}

/// A manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) annotations: serde_json::Map<String, serde_json::Value>,
}

impl Manifest {
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            config,
            layers,
            annotations: serde_json::Map::new(),
        }
    }

    pub(crate) fn read(bytes: &[u8], what: &'static str) -> Result<Self, ArtifactError> {
        let manifest: Self = json(bytes, what)?;
        if manifest.schema_version != 2 {
            let problem = format!("its schema version is {}, not 2", manifest.schema_version);
            return Err(ArtifactError::form(what, problem));
        }
        if manifest.layers.len() > limits::PARTS {
            return Err(ArtifactError::form(
                what,
                format!("it has more than {} layers", limits::PARTS),
            ));
        }
        Ok(manifest)
    }

    /// Returns the kind of an artefact, and its only layer.
    pub(crate) fn artifact(&self) -> Result<(Kind, &Descriptor), ArtifactError> {
        let what = "the manifest";
        let found = &self.config.media_type;
        let kind = Kind::of_config(found).ok_or_else(|| {
            let expected = Kind::Rulesfile.config_type();
            let problem = format!(
                "the media type of its configuration is `{}`; rules have `{expected}`",
                found.escape_debug()
            );
            ArtifactError::form(what, problem)
        })?;
        let [layer] = &*self.layers else {
            let problem = format!("it has {} layers instead of one", self.layers.len());
            return Err(ArtifactError::form(what, problem));
        };
        if layer.media_type != kind.layer_type() {
            let problem = format!(
                "the media type of its layer is `{}`, not `{}`",
                layer.media_type.escape_debug(),
                kind.layer_type()
            );
            return Err(ArtifactError::form(what, problem));
        }
        Ok((kind, layer))
    }
}

/// The manifests of an artefact for several platforms.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Platforms {
    pub(crate) schema_version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
}

impl Platforms {
    /// Returns the manifest for this machine.
    pub(crate) fn here(&self) -> Result<&Descriptor, ArtifactError> {
        let what = "the index of manifests";
        if self.manifests.len() > limits::PARTS {
            return Err(ArtifactError::form(
                what,
                format!("it has more than {} manifests", limits::PARTS),
            ));
        }
        let here = Platform::here();
        let mut fitting = self.manifests.iter();
        let fitting = fitting.find(|manifest| manifest.platform.as_ref() == Some(&here));
        fitting.ok_or_else(|| {
            let problem = format!("it has no manifest for {}/{}", here.os, here.architecture);
            ArtifactError::form(what, problem)
        })
    }
}

/// Whether bytes are an index of manifests: by what they say themselves, else by what the registry says.
pub(crate) fn is_index(bytes: &[u8], said: Option<&str>) -> Result<bool, ArtifactError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        media_type: Option<String>,
    }
    let own: Typed = json(bytes, "the manifest")?;
    match own.media_type.as_deref().or(said) {
        Some(INDEX_TYPE) => Ok(true),
        Some(MANIFEST_TYPE) => Ok(false),
        other => {
            let problem = match other {
                Some(other) => format!("unknown media type `{}`", other.escape_debug()),
                None => "it has no media type".to_owned(),
            };
            Err(ArtifactError::form("the manifest", problem))
        }
    }
}

/// Another artefact, or a property of the program, and the version that is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameAndVersion {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: String,
}

impl NameAndVersion {
    /// Parses `NAME:VERSION`.
    ///
    /// # Errors
    ///
    /// If the text has no colon, or no version after it.
    pub fn parse(text: &str) -> Result<Self, ArtifactError> {
        let wrong = |problem: &str| ArtifactError::Reference {
            text: text.to_owned(),
            problem: problem.to_owned(),
        };
        let (name, version) = text
            .split_once(':')
            .ok_or_else(|| wrong("expected NAME:VERSION"))?;
        version_of(version).map_err(|problem| wrong(&problem))?;
        Ok(Self {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    }
}

/// An artefact that another one needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Its name.
    pub name: String,
    /// The lowest version.
    pub version: String,
    /// Artefacts that do as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<NameAndVersion>,
}

impl Dependency {
    /// Parses `NAME:VERSION|ALTERNATIVE:VERSION|...`.
    ///
    /// # Errors
    ///
    /// As [`NameAndVersion::parse`].
    pub fn parse(text: &str) -> Result<Self, ArtifactError> {
        let all: Result<Vec<_>, _> = text.split('|').map(NameAndVersion::parse).collect();
        let mut all = all?;
        let first = all.remove(0);
        Ok(Self {
            name: first.name,
            version: first.version,
            alternatives: all,
        })
    }

    /// Returns it and its alternatives.
    pub(crate) fn choices(&self) -> Vec<NameAndVersion> {
        let first = NameAndVersion {
            name: self.name.clone(),
            version: self.version.clone(),
        };
        let rest = self.alternatives.iter().cloned();
        std::iter::once(first).chain(rest).collect()
    }
}

/// The configuration of an artefact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Its name in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Artefacts that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// What it needs of the program, such as `engine_version_semver`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<NameAndVersion>,
}

impl Config {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let what = "the configuration";
        let config: Self = json(bytes, what)?;
        let choices = config
            .dependencies
            .iter()
            .map(|it| 1 + it.alternatives.len());
        if choices.sum::<usize>() + config.requirements.len() > limits::PARTS {
            let problem = format!("it has more than {} dependencies", limits::PARTS);
            return Err(ArtifactError::form(what, problem));
        }
        Ok(config)
    }

    /// Returns name and version, which falcoctl lets a publisher leave out.
    pub(crate) fn identity(&self) -> Result<(String, semver::Version), ArtifactError> {
        let what = crate::error::CONFIGURATION;
        let wrong = |problem: String| ArtifactError::form(what, problem);
        let name = self.name.clone();
        let name = name.ok_or_else(|| wrong("it has no name".to_owned()))?;
        check_name(&name).map_err(wrong)?;
        let version = self.version.as_deref();
        let version = version.ok_or_else(|| wrong("it has no version".to_owned()))?;
        Ok((name, version_of(version).map_err(wrong)?))
    }
}

/// Parses a version.
pub(crate) fn version_of(text: &str) -> Result<semver::Version, String> {
    let shown = text.escape_debug();
    if text.len() > 100 {
        return Err("its version is too long".to_owned());
    }
    semver::Version::parse(text)
        .map_err(|error| format!("`{shown}` is no version such as 1.2.0: {error}"))
}

/// Checks a name, which becomes a part of the name of a file.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts = name
        .bytes()
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric());
    match starts && name.len() <= 100 && name.bytes().all(is_good) {
        true => Ok(()),
        false => Err(format!(
            "`{}` is no name of an artefact: expected letters, digits, `-`, `_` and `.`",
            name.escape_debug()
        )),
    }
}

pub(crate) fn json<'b, T: Deserialize<'b>>(
    bytes: &'b [u8],
    what: &'static str,
) -> Result<T, ArtifactError> {
    serde_json::from_slice(bytes).map_err(|error| ArtifactError::form(what, error.to_string()))
}

pub(crate) fn to_json<T: Serialize>(
    value: &T,
    what: &'static str,
) -> Result<Vec<u8>, ArtifactError> {
    serde_json::to_vec(value).map_err(|error| ArtifactError::form(what, error.to_string()))
}
