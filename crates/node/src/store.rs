//! What an agent keeps on disk, so that one that starts without an API server decides as the one before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kinds::ObjectKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum length in bytes of a file that is read.
const MAX_FILE: u64 = 256 << 20;

/// The policy of an ArmorProfile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Body {
    /// Hash of the policy.
    pub(crate) hash: String,
    /// The policy as JSON.
    pub(crate) policy: String,
}

/// How a container is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// By a seccomp filter that the runtime installs.
    Seccomp,
    /// By tollgate's own runtime.
    Runtime,
}

/// A container that was confined when it was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Namespace of the ArmorProfile.
    pub(crate) namespace: String,
    /// Name of the ArmorProfile.
    pub(crate) name: String,
    /// Hash of the policy.
    pub(crate) hash: String,
    pub(crate) way: Way,
    /// What of the policy is not enforced.
    pub(crate) gaps: Vec<String>,
    /// What a reader of the report has to know besides.
    pub(crate) notes: Vec<String>,
}

/// A file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct StoreError {
    /// What was to be done.
    verb: &'static str,
    /// The file.
    path: PathBuf,
    /// The cause.
    #[source]
    source: io::Error,
}

/// The folder of an agent.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Opens a folder, and makes it.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        for name in ["bodies", "containers"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|source| StoreError {
                verb: "make",
                path,
                source,
            })?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The objects of the index; `None` if there is no file.
    pub(crate) fn objects(&self) -> Result<Option<Vec<Value>>, StoreError> {
        self.read(&self.folder.join("profiles.json"))
    }

    pub(crate) fn write_objects(&self, objects: &[&Value]) -> Result<(), StoreError> {
        self.write(&self.folder.join("profiles.json"), &objects)
    }

    pub(crate) fn body(&self, key: &ObjectKey) -> Result<Option<Body>, StoreError> {
        self.read(&self.body_path(key))
    }

    pub(crate) fn write_body(&self, key: &ObjectKey, body: &Body) -> Result<(), StoreError> {
        self.write(&self.body_path(key), body)
    }

    pub(crate) fn remove_body(&self, key: &ObjectKey) -> Result<(), StoreError> {
        remove(self.body_path(key))
    }

    /// Removes the bodies of all profiles but those that are `wanted`.
    pub(crate) fn retain_bodies(
        &self,
        wanted: impl Fn(&ObjectKey) -> bool,
    ) -> Result<(), StoreError> {
        for path in files(&self.folder.join("bodies"))? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let key = stem.split_once('~').map(|(namespace, name)| ObjectKey {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            });
            if !key.is_some_and(|key| wanted(&key)) {
                remove(path)?;
            }
        }
        Ok(())
    }

    /// All records of containers, by id.
    pub(crate) fn records(&self) -> Result<Vec<(String, Record)>, StoreError> {
        let mut all = Vec::new();
        for path in files(&self.folder.join("containers"))? {
            let id = path.file_stem().map(|id| id.to_string_lossy().into_owned());
            let is_ours = path.extension().is_some_and(|ending| ending == "json");
            if let (Some(id), true) = (id, is_ours)
                && let Some(record) = self.read(&path)?
            {
                all.push((id, record));
            }
        }
        Ok(all)
    }

    pub(crate) fn write_record(&self, id: &str, record: &Record) -> Result<(), StoreError> {
        self.write(&self.record_path(id), record)
    }

    pub(crate) fn remove_record(&self, id: &str) -> Result<(), StoreError> {
        remove(self.record_path(id))
    }

    /// Names of objects have no `~`.
    fn body_path(&self, key: &ObjectKey) -> PathBuf {
        let name = format!("{}~{}.json", key.namespace, key.name);
        self.folder.join("bodies").join(name)
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join("containers").join(format!("{id}.json"))
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        let failed = |source| StoreError {
            verb: "read",
            path: path.to_owned(),
            source,
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let limited = io::Read::take(io::BufReader::new(file), MAX_FILE);
        serde_json::from_reader(limited).map_err(|error| failed(error.into()))
    }

    /// Writes a file as a whole or not at all.
    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
        write_file(path, &serde_json::to_vec(value).expect("it is JSON"))
    }
}

/// Writes a file as a whole or not at all.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        fs::rename(&new, path)
    };
    write().map_err(|source| StoreError {
        verb: "write",
        path: path.to_owned(),
        source,
    })
}

/// The files of a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(folder).and_then(|all| {
        all.map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
    });
    entries.map_err(|source| StoreError {
        verb: "read",
        path: folder.to_owned(),
        source,
    })
}

fn remove(path: PathBuf) -> Result<(), StoreError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StoreError {
            verb: "remove",
            path,
            source,
        }),
        _ => Ok(()),
    }
}
