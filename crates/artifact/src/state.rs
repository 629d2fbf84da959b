//! What is installed: a file beside the rules.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{ArtifactError, Digest, limits};

/// Folder of the state in the folder of rule files. Rules are not loaded from there.
const FOLDER: &str = ".artifacts";
/// Version of the form of the file.
const FORM: u64 = 1;

/// An artefact that is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Installed {
    /// Its version.
    pub version: semver::Version,
    /// Digest of its manifest.
    pub digest: Digest,
    /// The registry that it came from.
    pub registry: String,
    /// Its repository there.
    pub repository: String,
    /// The tag or digest that was asked for.
    pub asked: String,
    /// Digest of the key that signed it; `None` if no signature was asked for.
    pub key: Option<Digest>,
    /// Name of the rule file.
    pub file: String,
    /// Digest of the rule file.
    pub file_digest: Digest,
    /// One more than that of the artefacts that it needs: files are loaded in the order of their ranks.
    pub rank: u32,
    /// Names of the artefacts that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

/// All artefacts that are installed, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(pub BTreeMap<String, Installed>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    form: u64,
    artifacts: BTreeMap<String, Installed>,
}

/// The folder of rule files, for one process at a time.
pub(crate) struct Store {
    pub(crate) folder: PathBuf,
    inner: PathBuf,
    /// Dropping it gives the folder to others.
    _lock: File,
}

impl Store {
    /// Makes the folder, unless it exists, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<Self, ArtifactError> {
        let inner = folder.join(FOLDER);
        fs::create_dir_all(&inner).map_err(|source| failed("create", &inner, source))?;
        let path = inner.join("lock");
        let lock = File::create(&path).map_err(|source| failed("write", &path, source))?;
        lock.try_lock().map_err(|error| {
            let source = match error {
                fs::TryLockError::WouldBlock => {
                    io::Error::new(ErrorKind::WouldBlock, "another installation is under way")
                }
                fs::TryLockError::Error(error) => error,
            };
            failed("lock", &path, source)
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            inner,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.inner.join("state.json")
    }

    pub(crate) fn read(&self) -> Result<State, ArtifactError> {
        let path = self.path();
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::default()),
            read => read.map_err(|source| failed("read", &path, source))?,
        };
        let damaged = |problem: String| failed("read", &path, io::Error::other(problem));
        if bytes.len() as u64 > limits::INDEX {
            return Err(damaged("it is too large".to_owned()));
        }
        let text: Text =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match text.form {
            FORM => Ok(State(text.artifacts)),
            other => Err(damaged(format!(
                "it has the form {other}, this build knows {FORM}"
            ))),
        }
    }

    pub(crate) fn write(&self, state: &State) -> Result<(), ArtifactError> {
        let text = Text {
            form: FORM,
            artifacts: state.0.clone(),
        };
        let bytes = crate::form::to_json(&text, "the state")?;
        self.replace(&self.path(), &bytes)
    }

    /// Writes a file in one step: whoever reads it, and whenever this machine stops, has the old or the new content.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), ArtifactError> {
        let written = tempfile::NamedTempFile::new_in(&self.inner).and_then(|mut new| {
            new.write_all(bytes)?;
            new.as_file()
                .set_permissions(Permissions::from_mode(0o644))?;
            new.as_file().sync_all()?;
            new.persist(path).map_err(|error| error.error)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
        });
        written.map_err(|source| failed("write", path, source))
    }

    /// Returns the digest of a rule file; `None` if there is none.
    pub(crate) fn digest(&self, file: &str) -> Result<Option<Digest>, ArtifactError> {
        let path = self.folder.join(file);
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed("read", &path, source)),
            Ok(bytes) => Ok(Some(Digest::of(&bytes))),
        }
    }

    /// Removes the rule file of an older version.
    pub(crate) fn remove(&self, file: &str) -> Result<(), ArtifactError> {
        let path = self.folder.join(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("remove", &path, error))
            }
            _ => Ok(()),
        }
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> ArtifactError {
    ArtifactError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
