//! The parts of a bundle's `config.json` that a stand-in needs.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Maximum size of the file; real ones have some ten KiB.
const SIZE_LIMIT: u64 = 16 << 20;

/// Part of the OCI runtime specification's configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Spec {
    /// Annotations by key.
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    linux: Option<Linux>,
    #[serde(default)]
    process: Option<Process>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Process {
    #[serde(default)]
    env: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Linux {
    #[serde(default)]
    namespaces: Option<Vec<Namespace>>,
    #[serde(default)]
    seccomp: Option<Seccomp>,
    #[serde(default, rename = "cgroupsPath")]
    cgroups_path: Option<String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Seccomp {
    #[serde(default, rename = "listenerPath")]
    listener_path: Option<PathBuf>,
}

/// A bundle cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not a valid configuration.
    #[error("cannot understand {}", .path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: serde_json::Error,
    },
}

impl Spec {
    /// Reads the configuration of a bundle.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not valid JSON of that form.
    pub fn read(bundle: &Path) -> Result<Self, SpecError> {
        let path = bundle.join("config.json");
        let read = || {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(&path)?;
            file.take(SIZE_LIMIT).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Self::parse(&bytes).map_err(|cause| SpecError::Parse { path, cause }),
            Err(cause) => Err(SpecError::Read { path, cause }),
        }
    }

    /// Parses the text of a `config.json`.
    ///
    /// # Errors
    ///
    /// It is not valid JSON of that form.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Returns true if the container has a mount namespace of its own.
    pub fn has_own_mounts(&self) -> bool {
        let namespaces = self
            .linux
            .iter()
            .filter_map(|linux| linux.namespaces.as_ref());
        namespaces
            .flatten()
            .any(|namespace| namespace.kind == "mount")
    }

    /// Returns an environment variable of the container's first program. The last value of a name
    /// counts.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let environment = self.process.as_ref()?.env.as_ref()?;
        let mut given = environment.iter().rev();
        given.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns the requested path of the container's control groups.
    pub fn cgroups_path(&self) -> Option<&str> {
        self.linux.as_ref()?.cgroups_path.as_deref()
    }

    /// Returns the socket of another program that wants to receive the container's seccomp
    /// notifications.
    pub fn listener(&self) -> Option<&Path> {
        let seccomp = self.linux.as_ref()?.seccomp.as_ref()?;
        let path = seccomp.listener_path.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Spec, SpecError> {
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("config.json"), text).unwrap();
        Spec::read(bundle.path())
    }

    #[test]
    fn mounts_listener_and_annotations_are_read() {
        let spec = read(
            r#"{"ociVersion":"1.0.2","annotations":{"a":"b"},"linux":{"namespaces":[{"type":"pid"},
            {"type":"mount"}],"seccomp":{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/x"}}}"#,
        )
        .unwrap();
        assert!(spec.has_own_mounts());
        assert_eq!(spec.listener(), Some(Path::new("/x")));
        assert_eq!(spec.annotations["a"], "b");
    }

    #[test]
    fn the_environment_is_the_first_programs() {
        let spec = read(r#"{"process":{"env":["PATH=/a","X=PATH=/c","PATH=/b","PATHS=/d"]}}"#);
        assert_eq!(spec.unwrap().variable("PATH"), Some("/b"));
        assert_eq!(read("{}").unwrap().variable("PATH"), None);
    }

    #[test]
    fn what_is_left_out_or_null_is_not_there() {
        for text in [
            "{}",
            r#"{"linux":{}}"#,
            r#"{"linux":{"namespaces":null,"seccomp":null}}"#,
        ] {
            let spec = read(text).unwrap();
            assert!(
                !spec.has_own_mounts() && spec.listener().is_none(),
                "{text}"
            );
        }
        let none = read(r#"{"linux":{"seccomp":{"listenerPath":""}}}"#).unwrap();
        assert_eq!(none.listener(), None);
    }

    #[test]
    fn what_is_no_configuration_is_an_error_that_names_the_file() {
        let error = read("17").unwrap_err();
        assert!(error.to_string().ends_with("config.json"), "{error}");
        let error = Spec::read(Path::new("/no/such/bundle")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such/bundle/config.json");
    }
}
