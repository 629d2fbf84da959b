//! Entries for fuzzing: what registries and index files say, without a registry.

use std::path::Path;

use crate::form::{Manifest, Platforms, is_index};
use crate::state::Store;
use crate::{ArtifactError, Config, Content, Digest, Kind, State};

/// Unpacks a layer, and packs what is in it again.
///
/// # Errors
///
/// The layer is refused.
pub fn layer(bytes: &[u8]) -> Result<(Content, Result<Content, ArtifactError>), ArtifactError> {
    let content = Content::unpack(bytes)?;
    let again = content.pack().and_then(|layer| Content::unpack(&layer));
    Ok((content, again))
}

/// Reads a manifest, or an index of manifests. Returns the kind of the artefact and the digests that are fetched next.
///
/// # Errors
///
/// It is refused.
pub fn manifest(bytes: &[u8]) -> Result<(Option<Kind>, Vec<Digest>), ArtifactError> {
    if is_index(bytes, None)? {
        let platforms: Platforms = crate::form::json(bytes, "the index")?;
        return Ok((None, vec![platforms.here()?.digest.clone()]));
    }
    let manifest = Manifest::read(bytes, "the manifest")?;
    let (kind, layer) = manifest.artifact()?;
    let digests = vec![manifest.config.digest.clone(), layer.digest.clone()];
    Ok((Some(kind), digests))
}

/// Reads a configuration. Returns it with its name and version.
///
/// # Errors
///
/// It is refused.
pub fn configuration(bytes: &[u8]) -> Result<(Config, String, String), ArtifactError> {
    let config = Config::read(bytes)?;
    let (name, version) = config.identity()?;
    Ok((config, name, version.to_string()))
}

/// Returns a parameter of a registry's challenge to log in.
#[must_use]
pub fn challenge(text: &str, name: &str) -> Option<String> {
    crate::registry::parameter(text, name)
}

/// Reads the state of a folder of rule files, and writes it again. Returns what is read before and after that.
///
/// # Errors
///
/// The file is refused.
pub fn state(folder: &Path, bytes: &[u8]) -> Result<(State, State), ArtifactError> {
    let store = Store::open(folder)?;
    store.replace(&store.path(), bytes)?;
    let read = store.read()?;
    store.write(&read)?;
    Ok((read, store.read()?))
}
