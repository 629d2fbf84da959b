//! Selection of the underlying runtime.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names of runtimes in search order. gVisor's is only used on request, because it is another
/// kernel.
const NAMES: [&str; 4] = ["runc", "crun", "youki", "runsc"];
const UNASKED: usize = 3;
/// Directories of runtimes beyond `PATH`, which is often short for callers.
const FOLDERS: [&str; 5] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
];

/// An installed runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Path of the program.
    pub program: PathBuf,
    /// Words between the program and the runtime's command line.
    pub before: Vec<OsString>,
}

/// Word that makes this program run as the runtime `embedded`.
pub const EMBEDDED: &str = "embedded-runtime";

/// No underlying runtime can be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RuntimeError {
    /// The named runtime is not installed.
    #[error("cannot find the runtime {name}")]
    Missing {
        /// Name of the runtime.
        name: String,
    },
    /// No runtime was named, and none is installed.
    #[error("cannot find a runtime: neither {}", NAMES[..UNASKED].join(" nor "))]
    None,
    /// The named runtime is not part of this build.
    #[error("cannot use the runtime {name}: {why}")]
    NotBuilt {
        /// Name of the runtime.
        name: String,
        /// The missing part.
        why: &'static str,
    },
    /// The runtime is this program, which would call itself forever.
    #[error("cannot use the runtime {}: it is this program", .program.display())]
    Itself {
        /// Path of the program.
        program: PathBuf,
    },
}

impl Runtime {
    /// Finds the runtime by name or path; without a name, the first installed one, else the
    /// embedded one if this build has it.
    ///
    /// # Errors
    ///
    /// The runtime is not installed, is not part of this build, or is this program.
    pub fn find(
        asked: Option<&OsStr>,
        path: Option<&OsStr>,
        embedded: Embedded,
    ) -> Result<Self, RuntimeError> {
        let name = |name: &OsStr| name.to_string_lossy().into_owned();
        let found = match asked {
            Some(asked) if asked == "embedded" => return embedded.runtime(),
            Some(asked) if Path::new(asked).components().count() > 1 => {
                let program = PathBuf::from(asked);
                program.is_file().then_some(program)
            }
            Some(asked) => search(asked, path),
            None => NAMES[..UNASKED]
                .iter()
                .find_map(|name| search(OsStr::new(name), path)),
        };
        let Some(program) = found else {
            return match asked {
                Some(asked) => Err(RuntimeError::Missing { name: name(asked) }),
                None => embedded.runtime().map_err(|_not_built| RuntimeError::None),
            };
        };
        if is_this(&program) {
            return Err(RuntimeError::Itself { program });
        }
        let before = Vec::new();
        Ok(Self { program, before })
    }

    /// Returns true if gVisor, and not the kernel, handles the container's calls.
    pub fn is_gvisor(&self) -> bool {
        let name = self.program.file_name().map(OsStr::to_string_lossy);
        name.is_some_and(|name| name.contains("runsc"))
    }

    /// Returns true if the runtime is part of this program.
    pub fn is_embedded(&self) -> bool {
        !self.before.is_empty()
    }

    /// Returns a path that identifies the runtime, however it was named.
    pub fn identity(&self) -> PathBuf {
        if self.is_embedded() {
            return PathBuf::from("embedded");
        }
        // If the file has been removed, its former path is all that is known.
        std::fs::canonicalize(&self.program).unwrap_or_else(|_gone| self.program.clone())
    }

    /// Returns the name by which the runtime is called.
    pub fn name(&self) -> OsString {
        self.program
            .file_name()
            .unwrap_or(self.program.as_os_str())
            .to_owned()
    }
}

/// Availability of the embedded runtime in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embedded {
    /// The runtime is built in.
    BuiltIn,
    /// The runtime is not built in.
    LeftOut,
}

impl Embedded {
    fn runtime(self) -> Result<Runtime, RuntimeError> {
        match self {
            Self::BuiltIn => Ok(Runtime {
                program: "/proc/self/exe".into(),
                before: vec!["runtime".into(), EMBEDDED.into()],
            }),
            Self::LeftOut => Err(RuntimeError::NotBuilt {
                name: "embedded".to_owned(),
                why: "this program was built without the feature `embedded-runtime`",
            }),
        }
    }
}

fn search(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let in_path = path.into_iter().flat_map(std::env::split_paths);
    let folders = in_path.chain(FOLDERS.iter().map(PathBuf::from));
    let mut programs = folders.map(|folder| folder.join(name));
    programs.find(|program| program.is_file())
}

/// Returns true if a file is the running program.
fn is_this(program: &Path) -> bool {
    let own = std::env::current_exe().and_then(std::fs::canonicalize);
    let other = std::fs::canonicalize(program);
    matches!((own, other), (Ok(own), Ok(other)) if own == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_asked_for_is_taken_or_missed_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path().as_os_str());
        std::fs::write(folder.path().join("crun"), "x").unwrap();
        let find = |asked, path| Runtime::find(asked, path, Embedded::LeftOut);
        let found = find(Some(OsStr::new("crun")), path).unwrap();
        assert_eq!(found.program, folder.path().join("crun"));
        let error = find(Some(OsStr::new("no-such-runtime")), path).unwrap_err();
        assert_eq!(error.to_string(), "cannot find the runtime no-such-runtime");
        let by_path = folder.path().join("crun");
        assert!(find(Some(by_path.as_os_str()), None).is_ok());
        assert!(find(Some(OsStr::new("/no/such")), None).is_err());
    }

    #[test]
    fn what_this_release_has_not_is_said() {
        let error = Runtime::find(Some(OsStr::new("embedded")), None, Embedded::LeftOut);
        let error = error.unwrap_err();
        assert!(matches!(error, RuntimeError::NotBuilt { .. }), "{error}");
        let embedded = Runtime::find(Some(OsStr::new("embedded")), None, Embedded::BuiltIn);
        assert!(embedded.unwrap().is_embedded());
    }

    #[test]
    fn it_does_not_stand_in_for_itself() {
        let own = std::env::current_exe().unwrap();
        let error = Runtime::find(Some(own.as_os_str()), None, Embedded::LeftOut).unwrap_err();
        assert!(matches!(error, RuntimeError::Itself { .. }), "{error}");
    }

    #[test]
    fn gvisor_is_recognized_by_its_name() {
        let named = |name: &str| {
            Runtime {
                program: name.into(),
                before: Vec::new(),
            }
            .is_gvisor()
        };
        assert!(named("/opt/runsc") && named("runsc-debug") && !named("/usr/sbin/runc"));
    }
}
