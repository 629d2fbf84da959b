//! A registry as a folder: the OCI's image layout, which other tools copy from and to registries.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::form::{Descriptor, INDEX_TYPE, json, to_json};
use crate::{ArtifactError, Digest, Sink, Source, limits};

/// Annotation with the tag of a manifest.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A folder in the form of the image layout.
#[derive(Debug)]
pub struct Layout {
    folder: PathBuf,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tags {
    schema_version: u64,
    media_type: String,
    manifests: Vec<Descriptor>,
}

impl Layout {
    /// Makes the folder, unless it exists.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn create(folder: &Path) -> Result<Self, ArtifactError> {
        let layout = Self {
            folder: folder.to_owned(),
        };
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(|source| file("create", &blobs, source))?;
        layout.write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(layout)
    }

    /// Opens a folder to read it.
    #[must_use]
    pub fn open(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ArtifactError> {
        let path = self.folder.join(name);
        let opened = match fs::File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|source| file("read", &path, source))?,
        };
        let mut bytes = Vec::new();
        let read = opened.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|source| file("read", &path, source))?;
        match bytes.len() as u64 > limit {
            true => Err(ArtifactError::TooLarge {
                what: "a file of the layout",
                limit,
            }),
            false => Ok(Some(bytes)),
        }
    }

    /// Writes a file in one step.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ArtifactError> {
        let path = self.folder.join(name);
        let written = tempfile::NamedTempFile::new_in(&self.folder).and_then(|mut new| {
            new.write_all(bytes)?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            new.as_file().set_permissions(mode)?;
            new.persist(&path).map_err(|error| error.error)
        });
        written.map_err(|source| file("write", &path, source))?;
        Ok(())
    }

    fn tags(&self) -> Result<Vec<Descriptor>, ArtifactError> {
        let Some(bytes) = self.read("index.json", limits::MANIFEST)? else {
            return Ok(Vec::new());
        };
        let tags: Tags = json(&bytes, "index.json of the layout")?;
        Ok(tags.manifests)
    }
}

fn file(action: &'static str, path: &Path, source: std::io::Error) -> ArtifactError {
    ArtifactError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

impl Source for Layout {
    fn manifest(&self, version: &str) -> Result<Option<(Vec<u8>, Option<String>)>, ArtifactError> {
        if let Some(digest) = Digest::parse(version) {
            let bytes = self.read(&blob_name(&digest), limits::MANIFEST)?;
            return Ok(bytes.map(|bytes| (bytes, None)));
        }
        let tags = self.tags()?;
        let tagged = tags
            .iter()
            .find(|it| it.annotation(REF_NAME) == Some(version));
        let Some(tagged) = tagged else {
            return Ok(None);
        };
        let bytes = self.read(&blob_name(&tagged.digest), limits::MANIFEST)?;
        Ok(bytes.map(|bytes| (bytes, Some(tagged.media_type.clone()))))
    }

    fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ArtifactError> {
        let bytes = self.read(&blob_name(digest), limit)?;
        bytes.ok_or_else(|| ArtifactError::Missing {
            reference: format!("{}@{digest}", self.folder.display()),
        })
    }
}

impl Sink for Layout {
    fn put_blob(&self, bytes: &[u8]) -> Result<Digest, ArtifactError> {
        let digest = Digest::of(bytes);
        self.write(&blob_name(&digest), bytes)?;
        Ok(digest)
    }

    fn put_manifest(
        &self,
        tag: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest, ArtifactError> {
        let digest = self.put_blob(bytes)?;
        let mut manifests = self.tags()?;
        manifests.retain(|known| known.annotation(REF_NAME) != Some(tag));
        manifests.push(Descriptor::new(media_type, digest.clone(), bytes).with(REF_NAME, tag));
        let tags = Tags {
            schema_version: 2,
            media_type: INDEX_TYPE.to_owned(),
            manifests,
        };
        self.write("index.json", &to_json(&tags, "index.json of the layout")?)?;
        Ok(digest)
    }
}
