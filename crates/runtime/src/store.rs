//! Notes about watched containers: one directory per container, removed with it.
//!
//! Two callers may use the same id with different state directories of the runtime (`--root`), so
//! the state directory is part of the name.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Groups;

const NOTE: &str = "container.json";
/// Name of the note while it is written.
const BEGUN: &str = "container.json.new";
const LOG: &str = "agent.log";
/// Part of the directory name for callers that use the runtime's default state directory.
const DEFAULT_ROOT: &str = "default";

/// Note about a container.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Id of the container.
    pub id: String,
    /// Directory of its `config.json`.
    pub bundle: PathBuf,
    /// The container has a mount namespace of its own.
    pub has_mounts: bool,
    /// Control groups of the container.
    pub groups: Groups,
    /// Policy that confines the container.
    #[serde(default)]
    pub policy: Option<PathBuf>,
    /// Runtime that created the container ([`Runtime::identity`](crate::Runtime::identity)). Notes
    /// without one are older than this field.
    #[serde(default)]
    pub runtime: Option<PathBuf>,
    /// The configuration, if the caller named one.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// State directory of the runtime, if the caller named one.
    #[serde(default)]
    pub root: Option<PathBuf>,
    /// The container is watched or confined.
    #[serde(default = "watched")]
    pub is_watched: bool,
}

/// Notes without the field are of builds that wrote none for other containers.
fn watched() -> bool {
    true
}

/// Version of the format of notes. A build that reads this version must understand every field that a newer build
/// writes into it; a field that changes what commands do to a container needs a new version.
const VERSION: u32 = 1;

/// A note as it is written.
#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    #[serde(flatten)]
    note: &'a Note,
}

/// The version of a note; those of the first builds have none.
#[derive(Deserialize)]
struct WrittenVersion {
    #[serde(default)]
    version: u32,
}

/// A note cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The id is not a plain directory name.
    #[error("cannot use the container id `{id}`: it is not a folder name")]
    BadId {
        /// The id.
        id: String,
    },
    /// The note is of a newer build.
    #[error("cannot read {}: it is of version {version}, and this program reads version {VERSION}", .path.display())]
    Newer {
        /// Path of the note.
        path: PathBuf,
        /// Version of the note.
        version: u32,
    },
    /// A file or directory cannot be created, read or removed.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
}

/// The directory of one container.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Returns the store of a container below `state`, by the runtime's state directory and the
    /// container's id.
    ///
    /// # Errors
    ///
    /// The id is not a plain directory name.
    pub fn new(state: &Path, root: Option<&Path>, id: &str) -> Result<Self, StoreError> {
        if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
            return Err(StoreError::BadId { id: id.to_owned() });
        }
        let root = root.map_or_else(|| DEFAULT_ROOT.to_owned(), escaped);
        Ok(Self {
            folder: state.join(root).join(id),
        })
    }

    /// Returns the path of the log of the container's watch.
    pub fn log(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// Returns the directory of the container.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of another file in the container's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates the directory with the note. Returns false if it exists already.
    ///
    /// # Errors
    ///
    /// The directory or the note cannot be created.
    pub fn begin(&self, note: &Note) -> Result<bool, StoreError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |cause| StoreError::Io {
                action,
                path,
                cause,
            }
        };
        let above = self.folder.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(above).map_err(io("make", above))?;
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            made => made.map_err(io("make", &self.folder))?,
        }
        let version = VERSION;
        let text = serde_json::to_vec(&Written { version, note }).expect("a note is plain data");
        // Written atomically, since this process may be killed at any moment.
        let (begun, file) = (self.folder.join(BEGUN), self.folder.join(NOTE));
        fs::write(&begun, text).map_err(io("write", &begun))?;
        fs::rename(&begun, &file).map_err(io("write", &file))?;
        Ok(true)
    }

    /// Reads the note; `None` if the container is not watched.
    ///
    /// # Errors
    ///
    /// The note exists and cannot be read, or a newer build wrote it.
    pub fn note(&self) -> Result<Option<Note>, StoreError> {
        let path = self.folder.join(NOTE);
        let io = |cause| StoreError::Io {
            action: "read",
            path: path.clone(),
            cause,
        };
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(io)?,
        };
        let broken = |error: serde_json::Error| io(error.into());
        let WrittenVersion { version } = serde_json::from_slice(&text).map_err(broken)?;
        if version > VERSION {
            return Err(StoreError::Newer { path, version });
        }
        serde_json::from_slice(&text).map(Some).map_err(broken)
    }

    /// Removes the directory. A missing one is not an error.
    ///
    /// # Errors
    ///
    /// Something cannot be removed.
    pub fn end(&self) -> Result<(), StoreError> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::Io {
                action: "remove",
                path: self.folder.clone(),
                cause: error,
            }),
            _ => Ok(()),
        }
    }
}

/// Search for the only container of an id, whatever state directory its runtime has.
#[derive(Debug, Default)]
pub struct OnlyNote {
    found: Vec<(Note, PathBuf)>,
    /// Notes and folders that cannot be read.
    pub unreadable: Vec<StoreError>,
}

impl OnlyNote {
    /// Looks for notes about containers of this id below a directory of notes. A file between the directories of
    /// notes is none.
    pub fn look(&mut self, state: &Path, id: &str) {
        let io = |cause| StoreError::Io {
            action: "read",
            path: state.to_owned(),
            cause,
        };
        let roots = match fs::read_dir(state) {
            Ok(roots) => roots,
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => return self.unreadable.push(io(error)),
        };
        for root in roots {
            let store = root.map_err(io).and_then(|root| {
                let mut store = Store::new(state, None, id)?;
                store.folder = root.path().join(id);
                Ok(store)
            });
            match store.and_then(|store| store.note()) {
                Ok(note) => self.found.extend(note.map(|note| (note, state.to_owned()))),
                Err(error) => self.unreadable.push(error),
            }
        }
    }

    /// Returns the note and the directory of notes that has it. `None` if there are several. A note that cannot be
    /// read may be a second one; a file where a directory of notes is expected is not.
    #[must_use]
    pub fn take(mut self) -> Option<(Note, PathBuf)> {
        let is_stray = |error: &StoreError| matches!(error, StoreError::Io { cause, .. } if cause.kind() == ErrorKind::NotADirectory);
        let is_only = self.found.len() == 1 && self.unreadable.iter().all(is_stray);
        is_only.then(|| self.found.remove(0))
    }
}

/// Escapes a path as one file name. The mapping is injective.
fn escaped(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.replace('%', "%25").replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            id: "abc".to_owned(),
            bundle: "/b".into(),
            has_mounts: true,
            groups: Groups::default(),
            policy: None,
            runtime: Some("/usr/bin/runc".into()),
            config: None,
            root: None,
            is_watched: true,
        }
    }

    #[test]
    fn a_note_lasts_until_the_end_and_is_made_once() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), Some(Path::new("/run/runc")), "abc").unwrap();
        assert_eq!(store.note().unwrap(), None);
        assert!(store.begin(&note()).unwrap());
        assert!(!store.begin(&note()).unwrap());
        assert_eq!(store.note().unwrap(), Some(note()));
        store.end().unwrap();
        store.end().unwrap();
        assert_eq!(store.note().unwrap(), None);
    }

    #[test]
    fn a_note_that_was_not_written_to_its_end_is_none_and_goes() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), None, "abc").unwrap();
        fs::create_dir_all(&store.folder).unwrap();
        fs::write(store.folder.join(BEGUN), "{\"id\":").unwrap();
        assert_eq!(store.note().unwrap(), None);
        assert!(!store.begin(&note()).unwrap());
        store.end().unwrap();
        assert!(store.begin(&note()).unwrap());
    }

    #[test]
    fn the_same_id_of_another_runtime_is_another_container() {
        let state = Path::new("/s");
        let folder =
            |root: Option<&str>| Store::new(state, root.map(Path::new), "a").unwrap().folder;
        assert_ne!(folder(Some("/run/a")), folder(None));
        assert_ne!(folder(Some("/run/a/b")), folder(Some("/run/a%2Fb")));
    }

    fn only(state: &Path) -> OnlyNote {
        let mut only = OnlyNote::default();
        only.look(state, "abc");
        only
    }

    #[test]
    fn a_container_is_found_under_any_folder_of_states_if_it_is_the_only_one() {
        let state = tempfile::tempdir().unwrap();
        let find = || only(state.path()).take().map(|(note, _)| note);
        assert!(only(Path::new("/no/such")).take().is_none());
        assert_eq!(find(), None);
        for (root, found) in [("/run/a", Some(note())), ("/run/b", None)] {
            let store = Store::new(state.path(), Some(Path::new(root)), "abc").unwrap();
            store.begin(&note()).unwrap();
            assert_eq!(find(), found, "{root}");
        }
    }

    #[test]
    fn a_stray_file_hides_no_container_and_an_unreadable_note_is_not_passed_over() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), Some(Path::new("/run/a")), "abc").unwrap();
        store.begin(&note()).unwrap();
        fs::write(state.path().join("stray"), "").unwrap();
        let with_stray = only(state.path());
        assert_eq!(with_stray.unreadable.len(), 1, "{with_stray:?}");
        assert_eq!(with_stray.take().unwrap().0, note());
        let other = Store::new(state.path(), Some(Path::new("/run/b")), "abc").unwrap();
        other.begin(&note()).unwrap();
        fs::write(other.file(NOTE), "{").unwrap();
        let with_broken = only(state.path());
        assert_eq!(with_broken.unreadable.len(), 2, "{with_broken:?}");
        assert!(with_broken.take().is_none());
    }

    #[test]
    fn an_id_that_leads_elsewhere_is_refused() {
        for id in ["", "..", ".", "a/b", "../x"] {
            let error = Store::new(Path::new("/s"), None, id).unwrap_err();
            assert!(matches!(error, StoreError::BadId { .. }), "{id}");
        }
    }

    /// Notes as earlier builds wrote them.
    const RECORDED: [&str; 3] = [
        r#"{"id":"abc","bundle":"/b","has_mounts":true,"groups":["/sys/fs/cgroup/pids/abc"]}"#,
        r#"{"id":"abc","bundle":"/b","has_mounts":true,"groups":["/sys/fs/cgroup/pids/abc"],
            "policy":"/etc/tollgate/policies/web.yaml","runtime":"/usr/sbin/runc"}"#,
        r#"{"id":"abc","bundle":"/b","has_mounts":true,"groups":["/sys/fs/cgroup/pids/abc"],"policy":null,
            "runtime":"/usr/sbin/runc","config":"/home/u/t.yaml","root":"/run/other","is_watched":true}"#,
    ];

    #[test]
    fn notes_of_earlier_builds_are_read() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), None, "abc").unwrap();
        fs::create_dir_all(&store.folder).unwrap();
        for (number, text) in RECORDED.iter().enumerate() {
            fs::write(store.file(NOTE), text).unwrap();
            let note = store.note().unwrap().unwrap();
            assert_eq!((&*note.id, note.is_watched), ("abc", true), "{text}");
            let groups = serde_json::to_value(&note.groups).unwrap();
            assert_eq!(groups, serde_json::json!(["/sys/fs/cgroup/pids/abc"]));
            assert_eq!(note.runtime.is_some(), number > 0);
            assert_eq!(
                note.root.as_deref(),
                (number > 1).then_some(Path::new("/run/other"))
            );
        }
    }

    #[test]
    fn a_note_of_a_newer_build_is_refused_and_not_guessed() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), None, "abc").unwrap();
        store.begin(&note()).unwrap();
        let text = fs::read_to_string(store.file(NOTE)).unwrap();
        let newer = text.replace("\"version\":1", "\"version\":2");
        assert_ne!(newer, text);
        fs::write(store.file(NOTE), newer).unwrap();
        let error = store.note().unwrap_err();
        assert!(
            matches!(error, StoreError::Newer { version: 2, .. }),
            "{error}"
        );
        let mut only = OnlyNote::default();
        only.look(state.path(), "abc");
        assert!(only.take().is_none());
    }

    #[test]
    fn a_part_of_a_note_and_one_with_a_broken_byte_are_errors() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), None, "abc").unwrap();
        store.begin(&note()).unwrap();
        let whole = fs::read(store.file(NOTE)).unwrap();
        for len in 0..whole.len() {
            fs::write(store.file(NOTE), &whole[..len]).unwrap();
            assert!(store.note().is_err(), "{len}");
            let mut broken = whole.clone();
            broken[len] = 0xff;
            fs::write(store.file(NOTE), broken).unwrap();
            assert!(store.note().is_err(), "{len}");
        }
    }

    #[test]
    fn a_note_that_is_none_is_an_error() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path(), None, "abc").unwrap();
        store.begin(&note()).unwrap();
        fs::write(store.file(NOTE), "{").unwrap();
        assert!(matches!(
            store.note(),
            Err(StoreError::Io { action: "read", .. })
        ));
    }
}
