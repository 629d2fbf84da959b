//! Reads an artefact, and believes nothing that is not verified.

use crate::archive::Content;
use crate::form::{self, Config, Manifest, Platforms};
use crate::signature::{self, PublicKey, Trust};
use crate::{ArtifactError, Digest, Kind, Reference, Source, checked_blob, limits};

/// An artefact that was read.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Digest of the manifest, or of the index of manifests, that the reference names. It is what is signed.
    pub digest: Digest,
    /// The key that signed it; `None` if signatures were not read.
    pub key: Option<PublicKey>,
    /// What it has in it.
    pub kind: Kind,
    /// Its configuration.
    pub config: Config,
    /// Digest of its layer.
    pub layer_digest: Digest,
    /// The rules and tests; `None` for other kinds, whose layer is not unpacked.
    pub content: Option<Content>,
}

/// Reads what a reference names: a manifest, with its digest and the type that the registry says.
pub(crate) fn root(
    source: &dyn Source,
    reference: &Reference,
) -> Result<(Digest, Vec<u8>, Option<String>), ArtifactError> {
    let found = source.manifest(reference.version())?;
    let (bytes, said) = found.ok_or_else(|| ArtifactError::Missing {
        reference: reference.to_string(),
    })?;
    if let Some(pinned) = &reference.digest {
        pinned.check(&bytes, "the manifest")?;
    }
    Ok((Digest::of(&bytes), bytes, said))
}

/// Reads an artefact, and verifies signature and digests.
///
/// # Errors
///
/// It cannot be read, has another form or size than artefacts have, or is not what it has to be.
pub fn fetch(
    source: &dyn Source,
    reference: &Reference,
    trust: &Trust,
) -> Result<Fetched, ArtifactError> {
    let root = root(source, reference)?;
    fetch_root(source, reference, trust, root)
}

pub(crate) fn fetch_root(
    source: &dyn Source,
    reference: &Reference,
    trust: &Trust,
    (digest, bytes, said): (Digest, Vec<u8>, Option<String>),
) -> Result<Fetched, ArtifactError> {
    let key = match trust {
        Trust::Nobody => None,
        Trust::Keys { keys, signed_as } => {
            let signed_as = signed_as.as_deref();
            Some(signature::verify(
                source, reference, &digest, keys, signed_as,
            )?)
        }
    };
    let manifest = match form::is_index(&bytes, said.as_deref())? {
        false => bytes,
        true => {
            let platforms: Platforms = form::json(&bytes, "the index of manifests")?;
            let here = platforms.here()?;
            let found = source.manifest(here.digest.as_str())?;
            let (bytes, _) = found.ok_or_else(|| ArtifactError::Missing {
                reference: format!("{}@{}", reference.place(), here.digest),
            })?;
            here.digest.check(&bytes, "the manifest")?;
            bytes
        }
    };
    let manifest = Manifest::read(&manifest, "the manifest")?;
    let (kind, layer) = manifest.artifact()?;
    let config = checked_blob(
        source,
        &manifest.config,
        "the configuration",
        limits::CONFIG,
    )?;
    let config = Config::read(&config)?;
    let archive = checked_blob(source, layer, "the layer", limits::LAYER)?;
    let content = match kind {
        Kind::Rulesfile => Some(Content::unpack(&archive)?),
        Kind::Asset | Kind::Plugin => None,
    };
    Ok(Fetched {
        digest,
        key,
        kind,
        config,
        layer_digest: layer.digest.clone(),
        content,
    })
}
