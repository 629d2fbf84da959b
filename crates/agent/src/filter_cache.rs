//! Cache of compiled filters and rules, so that a container runtime can start before the rules are
//! loaded.
//!
//! Loading rules takes longer than a runtime takes to create a container. But no rule is evaluated
//! until the container's first program starts: the runtime only needs the filter, which depends on
//! rules, configuration and program version alone. If the filter is cached, the runtime starts at
//! once, and the rules are loaded in parallel. Compiled rules are cached, too: on a machine with
//! few processors, all work beside the runtime slows it down.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use config::Config;
use config::rule_files::RuleFile;
use diagnostics::text_file;
use event::Plan;
use rules::{Engine, EngineOptions};
use seccomp::FilterProgram;

use super::identity;
use super::sink::DeferredSink;

/// Maximum number of cached files, two for a filter: one of some tens of KiB, and one twice as
/// large.
const KEPT: usize = 32;
/// Magic bytes of a file, with the version of its format.
const MAGIC: &[u8; 8] = b"tgplan1\n";

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
        let bytes = read(folder, file)?;
        let [key, program, handover] = parts(&bytes)?;
        (key == expected).then_some(())?;
        Some(Self {
            program: FilterProgram::from_bytes(program)?,
            handover: handover.to_vec(),
        })
    }

    /// Writes the file atomically.
    fn write(&self, folder: &Path, file: &Path, key: &[u8]) -> std::io::Result<()> {
        write(
            folder,
            file,
            [key, &self.program.to_bytes(), &self.handover],
        )
    }
}

/// Cache entry of the compiled rules of a filter.
pub(super) struct KeptRules {
    key: Key,
    folder: PathBuf,
    pub(super) program: FilterProgram,
    pub(super) sources: Sources,
}

impl KeptRules {
    /// Reads the compiled rules, if they are cached.
    pub(super) fn read(
        &self,
        options: &EngineOptions,
        sink: &DeferredSink,
    ) -> Option<(Engine, Plan)> {
        let bytes = read(&self.folder, &self.file())?;
        let [key, program, image] = parts(&bytes)?;
        let is_it = *key == self.key.bytes && *program == self.program.to_bytes();
        is_it.then_some(())?;
        // An invalid image is created again.
        Engine::from_image(image, options, Box::new(sink.clone())).ok()
    }

    /// Writes the compiled rules. A failure only costs the next container some time.
    pub(super) fn keep(&self, engine: &Engine, plan: &Plan) {
        let write = || -> std::io::Result<()> {
            if ready(&self.folder)? {
                let image = engine.to_image(plan);
                let parts = [&*self.key.bytes, &self.program.to_bytes(), &image];
                write(&self.folder, &self.file(), parts)?;
            }
            Ok(())
        };
        // A failure only costs the next container some time.
        let _ = write();
    }

    fn file(&self) -> PathBuf {
        self.key.file(&self.folder).with_extension("rules")
    }
}

impl Key {
    /// Returns the cache entry of the compiled rules of this filter.
    pub(super) fn rules_of(
        self,
        folder: PathBuf,
        program: FilterProgram,
        sources: Sources,
    ) -> KeptRules {
        KeptRules {
            key: self,
            folder,
            program,
            sources,
        }
    }

    /// Creates the key. `policy` is the filter's further input. Returns `None` if some input cannot
    /// be read.
    pub(super) fn new(sources: &Sources, policy: &str) -> Option<Self> {
        // Another build of this program may compile another filter.
        let program = fs::metadata("/proc/self/exe").ok()?;
        let program = (
            program.dev(),
            program.ino(),
            program.size(),
            program.mtime_nsec(),
            program.mtime(),
        );
        let mut bytes = format!("{:?}\n", sources.config).into_bytes();
        for file in &sources.files {
            bytes.extend_from_slice(file.name.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(file.text.as_ref().ok()?.as_bytes());
            bytes.push(0);
        }
        let rules = hash(&bytes);
        bytes.extend_from_slice(format!("{program:?}\n{policy}\n").as_bytes());
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

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns true if no other user can write to the directory, whose contents are trusted.
pub(super) fn is_private(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == own && found.permissions().mode() & 0o022 == 0
    })
}

/// Creates the directory and makes room. Returns false if its contents cannot be trusted.
fn ready(folder: &Path) -> std::io::Result<bool> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)?;
    let is_private = is_private(folder);
    if is_private {
        make_room(folder)?;
    }
    Ok(is_private)
}

/// Removes all files when there are too many; those still in use are created again.
fn make_room(folder: &Path) -> std::io::Result<()> {
    let files: Vec<_> = fs::read_dir(folder)?.flatten().collect();
    if files.len() >= KEPT {
        for file in files {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Reads a file that no other user can have written.
fn read(folder: &Path, file: &Path) -> Option<Vec<u8>> {
    if !is_private(folder) {
        return None;
    }
    // A file that cannot be read is created again.
    text_file::read_bytes(file).ok()
}

/// Writes a file of several parts atomically.
fn write<const N: usize>(folder: &Path, file: &Path, parts: [&[u8]; N]) -> std::io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let mut written = tempfile::NamedTempFile::new_in(folder)?;
    written.write_all(&bytes)?;
    written.persist(file)?;
    Ok(())
}

/// Splits a file into its parts.
fn parts<const N: usize>(bytes: &[u8]) -> Option<[&[u8]; N]> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut found = [&bytes[..0]; N];
    for one in &mut found {
        (*one, rest) = part(rest)?;
    }
    Some(found)
}

/// Splits off a length and that many bytes.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn rules_are_found_by_the_same_key_and_filter_alone() {
        let folder = tempfile::tempdir().unwrap();
        let plans = folder.path().to_owned();
        let rules = |text: &str| {
            let sources = Sources::read(Config::default());
            key(text).rules_of(plans.clone(), kept().program, sources)
        };
        let sink = DeferredSink::default();
        let options = EngineOptions::default();
        let mut loaded = config::rule_files::load(&[]);
        let (engine, plan) = loaded.compile(&options, sink.clone());
        let one = rules("one");
        assert!(one.read(&options, &sink).is_none());
        one.keep(&engine, &plan);
        let (read, read_plan) = one.read(&options, &sink).expect("they are kept");
        assert!(read.matches().eq(engine.matches()));
        assert_eq!(read_plan, plan);

        let other = rules("two");
        fs::copy(one.file(), other.file()).unwrap();
        assert!(other.read(&options, &sink).is_none());
        let mut with_other_filter = rules("one");
        let native = abi::Arch::native().expect("a known machine");
        let tracing = capture::ptrace::filter_options(native);
        let other = seccomp::compile(&event::Plan::default(), &tracing);
        with_other_filter.program = other.expect("an empty plan");
        assert!(with_other_filter.read(&options, &sink).is_none());

        let whole = fs::read(one.file()).unwrap();
        fs::write(one.file(), &whole[..whole.len() - 1]).unwrap();
        assert!(one.read(&options, &sink).is_none());
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
