//! Publishes rules.

use crate::archive::Content;
use crate::form::{Descriptor, MANIFEST_TYPE, Manifest, to_json};
use crate::signature::{self, SigningKey};
use crate::{ArtifactError, Config, Digest, Kind, Reference, Sink, TestFile};

/// What is published.
#[derive(Clone, Debug)]
pub struct Package {
    /// Name, version, dependencies and requirements.
    pub config: Config,
    /// Name of the rule file.
    pub file: String,
    /// The rules.
    pub rules: String,
    /// Files of tests.
    pub tests: Vec<TestFile>,
}

/// What was published.
#[derive(Clone, Debug)]
pub struct PushResult {
    /// Digest of the manifest.
    pub digest: Digest,
    /// Digest of the layer.
    pub layer_digest: Digest,
}

/// Writes an artefact, gives it the tag of the reference and further ones, and signs it.
///
/// The same package gives the same digests.
///
/// # Errors
///
/// Name or version cannot be used, the rules are too large, or the sink refuses.
pub fn push(
    sink: &dyn Sink,
    reference: &Reference,
    package: &Package,
    tags: &[String],
    key: Option<&SigningKey>,
) -> Result<PushResult, ArtifactError> {
    package.config.identity()?;
    for tag in tags {
        crate::reference::check_tag(tag).map_err(|problem| ArtifactError::Reference {
            text: tag.clone(),
            problem,
        })?;
    }
    if reference.digest.is_some() {
        return Err(ArtifactError::Reference {
            text: reference.to_string(),
            problem: "an artefact is published under a tag, not under a digest".to_owned(),
        });
    }
    let content = Content {
        name: package.file.clone(),
        rules: package.rules.clone(),
        tests: package.tests.clone(),
        others: 0,
    };
    let layer = content.pack()?;
    let layer_digest = sink.put_blob(&layer)?;
    // falcoctl takes the name of what it downloads from the title.
    let stem = package
        .file
        .trim_end_matches(".yaml")
        .trim_end_matches(".yml");
    let layer = Descriptor::new(&Kind::Rulesfile.layer_type(), layer_digest.clone(), &layer)
        .with("org.opencontainers.image.title", format!("{stem}.tar.gz"));
    let config = to_json(&package.config, "the configuration")?;
    let config = Descriptor::new(
        &Kind::Rulesfile.config_type(),
        sink.put_blob(&config)?,
        &config,
    );
    let manifest = to_json(&Manifest::new(config, vec![layer]), "the manifest")?;
    let digest = Digest::of(&manifest);
    // Signed before a tag points to it, because somebody may follow the tag.
    if let Some(key) = key {
        signature::sign(sink, reference, &digest, key)?;
    }
    for tag in tags.iter().chain([&reference.tag]) {
        sink.put_manifest(tag, MANIFEST_TYPE, &manifest)?;
    }
    Ok(PushResult {
        digest,
        layer_digest,
    })
}
