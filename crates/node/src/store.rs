//! What an agent keeps on disk, so that one that starts without an API server decides as the one before.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::artifacts::AcceptedSources;
use kinds::{BehaviorReport, ObjectKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::follow::Position;
use crate::index::Objects;

/// File with what was observed of containers whose behaviour is modelled.
const BEHAVIOR: &str = "behavior.json";
/// File with how far alerts were read.
const POSITION: &str = "violations.json";
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

impl Body {
    /// Returns true if the policy has its hash.
    pub(crate) fn is_whole(&self) -> bool {
        kinds::policy_hash(&self.policy) == self.hash
    }
}

/// How a container is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// By a seccomp filter that the runtime installs.
    Seccomp,
    /// By tollgate's own runtime.
    Runtime,
    /// By the kernel, and by a seccomp filter if the policy has one.
    Kernel,
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
    /// That it is confined was found only after it had begun.
    #[serde(default)]
    pub(crate) is_late: bool,
    /// What the kernel has of it.
    #[serde(default)]
    pub(crate) kernel: Option<InKernel>,
    /// What of the policy is not enforced.
    pub(crate) gaps: Vec<String>,
    /// What a reader of the report has to know besides.
    pub(crate) notes: Vec<String>,
}

/// What the kernel has of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InKernel {
    /// Build of the programs that confine it. A record without it is of an agent that did not write it: another build.
    #[serde(default)]
    pub(crate) build: String,
    /// Number by which these programs name the container.
    pub(crate) number: u32,
    /// Hash of the policy that it has.
    pub(crate) hash: String,
    /// The runtime has installed a filter besides, which stays as it is.
    pub(crate) has_filter: bool,
}

impl Record {
    /// Whose policy it is.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Name of the policy's file for tollgate's runtime. No two policies share one: a namespace has no dot.
    pub(crate) fn policy_name(&self) -> String {
        policy_name(&self.namespace, &self.name, &self.hash)
    }
}

/// Begin of the names of all policy files that agents write.
const POLICY_FILES: &str = "kubernetes.";

/// Name of the policy's file for tollgate's runtime.
pub(crate) fn policy_name(namespace: &str, name: &str, hash: &str) -> String {
    let hash = hash.get(..16).unwrap_or(hash);
    format!("{POLICY_FILES}{namespace}.{name}-{hash}")
}

/// Writes a policy to where tollgate's runtime looks for it. A file that is there may be torn.
pub(crate) fn write_policy(folder: &Path, name: &str, policy: &str) -> Result<(), StoreError> {
    let path = folder.join(format!("{name}.yaml"));
    if fs::read(&path).is_ok_and(|old| old == policy.as_bytes()) {
        return Ok(());
    }
    write_file(&path, policy.as_bytes(), READABLE, Durability::Process)
}

/// Removes the policy files of agents but those whose names are `wanted`, which is asked after the folder is read:
/// a file that is written meanwhile stays.
pub(crate) fn retain_policies(
    folder: &Path,
    wanted: impl FnOnce() -> BTreeSet<String>,
) -> Result<(), StoreError> {
    if !folder.exists() {
        return Ok(());
    }
    let files = files(folder)?;
    let wanted = wanted();
    for path in files {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_yaml = path.extension().is_some_and(|ending| ending == "yaml");
        if is_yaml && stem.starts_with(POLICY_FILES) && !wanted.contains(&*stem) {
            remove(path)?;
        }
    }
    Ok(())
}

/// File with the sources of detection that are in force.
const SOURCES: &str = "sources.json";

/// The sources of detection that an agent with this folder had in force; none if there is no file.
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn read_sources(folder: &Path) -> Result<AcceptedSources, StoreError> {
    let path = folder.join(SOURCES);
    let read = || match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AcceptedSources::default()),
        file => {
            let limited = io::Read::take(io::BufReader::new(file?), MAX_FILE);
            serde_json::from_reader(limited).map_err(io::Error::from)
        }
    };
    read().map_err(|source| StoreError {
        verb: "read",
        path: path.clone(),
        source,
    })
}

/// What a written file survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The end of the process.
    Process,
    /// A loss of power.
    Power,
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
pub(crate) struct Store {
    folder: PathBuf,
    say: Say,
}

/// Takes messages for people.
pub(crate) type Say = Arc<dyn Fn(String) + Send + Sync>;

impl Store {
    /// Opens a folder, and makes it.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub(crate) fn open(folder: &Path, say: Say) -> Result<Self, StoreError> {
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
            say,
        })
    }

    /// The objects of the index; `None` if there is no file, or one that cannot be read.
    pub(crate) fn objects(&self) -> Option<Vec<Value>> {
        self.read(&self.folder.join("profiles.json"))
    }

    pub(crate) fn write_objects(&self, objects: &Objects) -> Result<(), StoreError> {
        self.write(
            &self.folder.join("profiles.json"),
            objects,
            Durability::Power,
        )
    }

    /// The policy of a profile; `None` if there is none, or one that is not whole.
    pub(crate) fn body(&self, key: &ObjectKey) -> Option<Body> {
        let body: Option<Body> = self.read(&self.body_path(key));
        body.filter(Body::is_whole)
    }

    pub(crate) fn write_body(&self, key: &ObjectKey, body: &Body) -> Result<(), StoreError> {
        self.write(&self.body_path(key), body, Durability::Power)
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

    pub(crate) fn write_sources(&self, sources: &AcceptedSources) -> Result<(), StoreError> {
        self.write(&self.folder.join(SOURCES), sources, Durability::Power)
    }

    /// What an agent before has observed of containers whose behaviour is modelled; `None` if it cannot be read.
    pub(crate) fn behavior(&self) -> Option<Vec<BehaviorReport>> {
        let path = self.folder.join(BEHAVIOR);
        let found = fs::symlink_metadata(&path);
        // An agent before that has left no such file has observed nothing.
        let is_absent = found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        match is_absent {
            true => Some(Vec::new()),
            false => self.read(&path),
        }
    }

    pub(crate) fn write_behavior(&self, reports: &[BehaviorReport]) -> Result<(), StoreError> {
        let path = self.folder.join(BEHAVIOR);
        match reports.is_empty() {
            true => remove(path),
            false => self.write(&path, &reports, Durability::Power),
        }
    }

    /// How far alerts of `tollgate runtime` were read.
    pub(crate) fn position(&self) -> Option<Position> {
        self.read(&self.folder.join(POSITION))
    }

    pub(crate) fn write_position(&self, position: &Position) -> Result<(), StoreError> {
        self.write(&self.folder.join(POSITION), position, Durability::Process)
    }

    /// All records of containers, by id.
    pub(crate) fn records(&self) -> Result<Vec<(String, Record)>, StoreError> {
        let mut all = Vec::new();
        for path in files(&self.folder.join("containers"))? {
            let id = path.file_stem().map(|id| id.to_string_lossy().into_owned());
            let is_ours = path.extension().is_some_and(|ending| ending == "json");
            if let (Some(id), true) = (id, is_ours)
                && let Some(record) = self.read(&path)
            {
                all.push((id, record));
            }
        }
        Ok(all)
    }

    pub(crate) fn write_record(&self, id: &str, record: &Record) -> Result<(), StoreError> {
        // No container outlives a loss of power, and the runtime waits.
        self.write(&self.record_path(id), record, Durability::Process)
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

    /// Reads a file, and deletes one that cannot be read: an agent that does not start because of it would never do.
    fn read<T: DeserializeOwned>(&self, path: &Path) -> Option<T> {
        let read = || {
            let file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let limited = io::Read::take(io::BufReader::new(file), MAX_FILE);
            serde_json::from_reader(limited)
                .map(Some)
                .map_err(io::Error::from)
        };
        read().unwrap_or_else(|source| {
            let path = path.to_owned();
            let error = StoreError {
                verb: "read",
                path: path.clone(),
                source,
            };
            (self.say)(format!("{}; it is removed", crate::chain(&error)));
            if let Err(error) = remove(path) {
                (self.say)(crate::chain(&error));
            }
            None
        })
    }

    /// Writes a file as a whole or not at all.
    fn write(
        &self,
        path: &Path,
        value: &impl Serialize,
        durability: Durability,
    ) -> Result<(), StoreError> {
        // Not by a text in memory: that of many profiles takes megabytes.
        write_with(path, PRIVATE, durability, |file| {
            serde_json::to_writer(file, value).map_err(io::Error::from)
        })
    }
}

/// Mode of policies, which say nothing that is secret.
const READABLE: u32 = 0o644;
/// Mode of what the agent keeps: settings of outputs may have credentials in them.
const PRIVATE: u32 = 0o600;

/// Writes a file as a whole or not at all.
fn write_file(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), StoreError> {
    write_with(path, mode, durability, |file| file.write_all(bytes))
}

fn write_with(
    path: &Path,
    mode: u32,
    durability: Durability,
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        let mut file = BufWriter::new(options.open(&new)?);
        content(&mut file)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        if durability == Durability::Power {
            file.sync_all()?;
        }
        fs::rename(&new, path)?;
        match path.parent() {
            Some(folder) if durability == Durability::Power => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
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
