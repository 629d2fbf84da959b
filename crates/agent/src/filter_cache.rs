//! Cache of compiled filters and rules, so that a container runtime can start before the rules are
//! loaded.
//!
//! Loading rules takes longer than a runtime takes to create a container. But no rule is evaluated
//! until the container's first program starts: the runtime only needs the filter, which depends on
//! rules, configuration and program version alone. If the filter is cached, the runtime starts at
//! once, and the rules are loaded in parallel. Compiled rules are cached beside it
//! ([`super::rules_cache`]): on a machine with few processors, all work beside the runtime slows it down.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::Config;
use config::rule_files::RuleFile;
use seccomp::FilterProgram;

use super::cache_files::{self, hash, parts, ready};
use super::identity;

/// Input of rules and filter, read once: a cache entry is made from exactly the input of its key.
#[derive(Clone)]
pub(super) struct Sources {
    pub(super) config: Config,
    pub(super) files: Vec<RuleFile>,
}

impl Sources {
    pub(super) fn read(config: Config) -> Self {
        Self {
            files: config.rule_sources().read(),
            config,
        }
    }
}

/// Encoded input of a filter.
pub(super) struct Key {
    bytes: Vec<u8>,
    /// Hash of rules and configuration.
    pub(super) rules: u64,
}

/// A cached filter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CachedFilter {
    pub(super) program: FilterProgram,
    /// Handover state for an agent that takes over.
    pub(super) handover: Vec<u8>,
}

/// File name of the filter that a container's agent leaves to exec sessions, in the container's
/// directory.
const LEFT: &str = "agent.filter";

impl CachedFilter {
    /// Writes the filter for the container's exec sessions.
    pub(super) fn leave_in(&self, folder: &Path) -> std::io::Result<()> {
        self.write(folder, &folder.join(LEFT), &Self::readers()?)
    }

    /// What [`CachedFilter::leave_in`] has left, if it is for this program and for who sees the same mounts and pids.
    pub(super) fn left_in(folder: &Path) -> Option<Self> {
        Self::read(folder, &folder.join(LEFT), &Self::readers().ok()?)
    }

    fn readers() -> std::io::Result<Vec<u8>> {
        Ok(format!("{}\n{:?}\n", identity::build()?, identity::view()?).into_bytes())
    }

    /// Reads a file that was written with the same key.
    fn read(folder: &Path, file: &Path, expected: &[u8]) -> Option<Self> {
        let bytes = cache_files::read(folder, file)?;
        let [key, program, handover] = parts(&bytes)?;
        (key == expected).then_some(())?;
        Some(Self {
            program: FilterProgram::from_bytes(program)?,
            handover: handover.to_vec(),
        })
    }

    /// Writes the file atomically.
    fn write(&self, folder: &Path, file: &Path, key: &[u8]) -> std::io::Result<()> {
        cache_files::write(
            folder,
            file,
            [key, &self.program.to_bytes(), &self.handover],
        )
    }
}

/// Returns what tells this program's file from another build.
pub(super) fn program_identity() -> std::io::Result<String> {
    let program = fs::metadata("/proc/self/exe")?;
    let parts = (
        program.dev(),
        program.ino(),
        program.size(),
        program.mtime_nsec(),
        program.mtime(),
    );
    Ok(format!("{parts:?}"))
}

impl Key {
    /// Creates the key. `policy` is the filter's further input. Returns `None` if some input cannot
    /// be read.
    pub(super) fn new(sources: &Sources, policy: &str) -> Option<Self> {
        // Another build of this program may compile another filter.
        let program = program_identity().ok()?;
        let mut bytes = format!("{:?}\n", sources.config).into_bytes();
        for file in &sources.files {
            bytes.extend_from_slice(file.name.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(file.text.as_ref().ok()?.as_bytes());
            bytes.push(0);
        }
        let rules = hash(&bytes);
        bytes.extend_from_slice(format!("{program}\n{policy}\n").as_bytes());
        Some(Self { bytes, rules })
    }

    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:016x}", hash(&self.bytes)))
    }

    /// Looks up the entry of the key. The whole key is compared; its hash only names the file.
    pub(super) fn look_up(&self, folder: &Path) -> Option<CachedFilter> {
        CachedFilter::read(folder, &self.file(folder), &self.bytes)
    }

    /// Writes the entry. A failure only costs the next container some time.
    pub(super) fn keep(&self, folder: &Path, kept: &CachedFilter) {
        let write = || -> std::io::Result<()> {
            if ready(folder)? {
                kept.write(folder, &self.file(folder), &self.bytes)?;
            }
            Ok(())
        };
        // A failure only costs the next container some time.
        let _ = write();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cache_files::KEPT;

    fn key(text: &str) -> Key {
        let bytes = text.as_bytes().to_vec();
        Key { bytes, rules: 0 }
    }

    fn kept() -> CachedFilter {
        let native = abi::Arch::native().expect("a known machine");
        let options = seccomp::FilterOptions::notify(native);
        let program = seccomp::compile(&event::Plan::default(), &options);
        CachedFilter {
            program: program.expect("an empty plan"),
            handover: b"handover".to_vec(),
        }
    }

    #[test]
    fn what_is_kept_is_found_by_the_same_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plans = folder.path().join("plans");
        let one = key("one");
        assert_eq!(one.look_up(&plans), None);
        one.keep(&plans, &kept());
        assert_eq!(one.look_up(&plans), Some(kept()));
        let other = key("two");
        fs::copy(one.file(&plans), other.file(&plans)).unwrap();
        assert_eq!(other.look_up(&plans), None);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let plans = folder.path().join("plans");
        let one = key("one");
        one.keep(&plans, &kept());
        fs::set_permissions(&plans, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(one.look_up(&plans), None);
    }

    #[test]
    fn what_is_broken_is_not_found_and_there_is_an_end_to_what_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let plans = folder.path().join("plans");
        let one = key("one");
        one.keep(&plans, &kept());
        let whole = fs::read(one.file(&plans)).unwrap();
        for len in [0, 7, 12, 20, whole.len() - 1] {
            fs::write(one.file(&plans), &whole[..len]).unwrap();
            assert_eq!(one.look_up(&plans), None, "{len}");
        }
        for number in 0..3 * KEPT {
            key(&number.to_string()).keep(&plans, &kept());
        }
        assert!(fs::read_dir(&plans).unwrap().count() <= KEPT);
    }
}
