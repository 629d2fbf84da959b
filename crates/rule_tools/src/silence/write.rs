//! Writes the files of an exception, and never over another file.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::places::VARIABLE;
use config::rule_files::{RuleSources, is_builtin};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::text_file;
use rules::Rule;
use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Folder of tests, beside the rule files, which are not loaded from there.
const TESTS: &str = "tests";
/// Maximum number of exceptions of one rule.
const MOST: u32 = 10_000;

/// Paths of an exception and its test.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) rules: PathBuf,
    pub(super) test: PathBuf,
}

impl Target {
    /// Returns the paths for the exception of a rule: the named file, or a new one in the folder that all runs read.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] if the file exists, or the folder is not read or is read before the rule is defined;
    /// [`Exit::Unsupported`] if this user may not write there.
    pub(super) fn choose(
        output: Option<&Path>,
        rule: &Rule,
        sources: &RuleSources,
    ) -> Result<Self, Failure> {
        let target = match output {
            Some(output) => Self::named(output)?,
            None => Self::in_folder(rule, sources)?,
        };
        target.is_writable()?;
        Ok(target)
    }

    fn named(output: &Path) -> Result<Self, Failure> {
        let target = Self::at(output)?;
        match target.existing() {
            None => Ok(target),
            Some(path) => {
                let message = format!("cannot write {}: it exists", path.display());
                Err(Failure::new(Exit::BadInput, message).help("name a new file with --output"))
            }
        }
    }

    fn in_folder(rule: &Rule, sources: &RuleSources) -> Result<Self, Failure> {
        let refused = |why: String| {
            let message = format!("cannot write the exception to the folder of all runs: {why}");
            Failure::new(Exit::BadInput, message).help("name a file with --output, for --add-rules")
        };
        let folder = match &sources.folder {
            Some(folder) if sources.named.is_empty() => folder,
            Some(_) => {
                return Err(refused("-r and `rules_files` replace its rules".to_owned()));
            }
            None if sources.named.is_empty() => {
                return Err(refused(format!("{VARIABLE} is empty")));
            }
            None => return Err(refused("-r replaces its rules".to_owned())),
        };
        let defined = Path::new(&*rule.location.file);
        let is_there = defined.parent() == Some(folder);
        if !is_there && !is_builtin(&rule.location.file) {
            let file = defined.display();
            return Err(refused(format!(
                "it is loaded before {file}, which has the rule"
            )));
        }
        let name = format!("silence-{}", slug(&rule.name));
        // Files are loaded in the order of their names.
        let stem = defined.file_stem().unwrap_or_default().to_string_lossy();
        let name = match is_there && defined.file_name() > Some(OsStr::new(&name)) {
            true => format!("{stem}_{name}"),
            false => name,
        };
        for number in 1..=MOST {
            let target = Self::at(&folder.join(format!("{name}-{number}.yaml")))?;
            if target.existing().is_none() {
                return Ok(target);
            }
        }
        Err(refused(format!("{} has too many files", folder.display())))
    }

    fn at(rules: &Path) -> Result<Self, Failure> {
        let (Some(folder), Some(name)) = (rules.parent(), rules.file_name()) else {
            let message = format!("cannot write {}: it is no file", rules.display());
            return Err(Failure::new(Exit::BadInput, message).help("name a file with --output"));
        };
        Ok(Self {
            rules: rules.to_owned(),
            test: folder.join(TESTS).join(name),
        })
    }

    fn existing(&self) -> Option<&Path> {
        let mut paths = [self.rules.as_path(), self.test.as_path()].into_iter();
        paths.find(|path| fs::symlink_metadata(path).is_ok())
    }

    /// Checks that this user may create the files.
    fn is_writable(&self) -> Result<(), Failure> {
        let above = self.rules.ancestors().skip(1);
        let above = above.map(|path| match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        });
        let existing = above.into_iter().find(|path| path.exists());
        let folder = existing.unwrap_or(Path::new("/"));
        match accessat(CWD, folder, Access::WRITE_OK, AtFlags::EACCESS) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.cannot(&self.rules, &error.into())),
        }
    }

    fn cannot(&self, path: &Path, error: &std::io::Error) -> Failure {
        let message = format!("cannot write {}: {error}", path.display());
        let exit = match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::Unsupported,
            _ => Exit::BadInput,
        };
        Failure::new(exit, message).help(match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "run this as root (sudo), or write a file of your own with --output FILE, and load it with \
                 --add-rules FILE"
            }
            kind => text_file::next_step(kind),
        })
    }

    /// Creates both files, readable by all users whatever the umask, and missing folders. If the second cannot be
    /// created, removes the first.
    pub(super) fn write(&self, rules: &str, test: &str) -> Result<(), Failure> {
        for (path, text) in [(&self.rules, rules), (&self.test, test)] {
            let written = self.make_folder(path).and_then(|()| create(path, text));
            if let Err(error) = written {
                if path != &self.rules {
                    // The failure is reported. The test is not there, or is somebody else's.
                    let _ = fs::remove_file(&self.rules);
                }
                return Err(self.cannot(path, &error));
            }
        }
        Ok(())
    }

    fn make_folder(&self, path: &Path) -> std::io::Result<()> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let missing = folder.into_iter().flat_map(Path::ancestors);
        let missing =
            missing.take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let mut missing: Vec<_> = missing.collect();
        missing.reverse();
        for folder in missing {
            fs::create_dir(folder)?;
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Removes the files that [`Target::write`] created.
    pub(super) fn remove(&self) {
        for path in [&self.rules, &self.test] {
            // The failure that led here is reported.
            let _ = fs::remove_file(path);
        }
    }
}

fn create(path: &Path, text: &str) -> std::io::Result<()> {
    text_file::create_with(path, 0o644, |file| {
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o644))
    })
}

/// Returns the name of a rule as a part of a file's name.
fn slug(rule: &str) -> String {
    let words = rule.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let slug: String = words
        .join("-")
        .to_ascii_lowercase()
        .chars()
        .take(80)
        .collect();
    match slug.is_empty() {
        true => "rule".to_owned(),
        false => slug,
    }
}

#[cfg(test)]
mod tests {
    use rules::Level;

    use super::*;

    #[test]
    fn an_exception_to_a_hunting_rule_goes_to_the_folder_of_all_runs() {
        let dir = tempfile::tempdir().expect("a folder");
        let sources = RuleSources {
            folder: Some(dir.path().join("rules.d")),
            level: Level::Forensic,
            ..RuleSources::default()
        };
        let loaded = sources.load();
        for name in ["Read ssh information", "Read sensitive file untrusted"] {
            let rule = loaded.ruleset.rule(name).expect("it is built in");
            let target = Target::choose(None, rule, &sources).expect(name);
            assert_eq!(target.rules.parent(), sources.folder.as_deref());
        }
    }

    #[test]
    fn files_are_new_and_nothing_is_overwritten() {
        assert_eq!(slug("Read  ../sensitive file"), "read-sensitive-file");
        assert_eq!(slug("../.."), "rule");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("rules.d/a.yaml");
        let target = Target::named(&path).expect("it is new");
        target.write("rules", "test").expect("it can be written");
        assert_eq!(target.test, dir.path().join("rules.d/tests/a.yaml"));
        let mode = |path: &Path| {
            fs::metadata(path)
                .expect("it is there")
                .permissions()
                .mode()
        };
        assert_eq!(mode(&target.rules) & 0o777, 0o644);
        assert_eq!(mode(&dir.path().join("rules.d")) & 0o777, 0o755);
        let failure = target.write("other", "other").expect_err("it exists");
        assert!(failure.render().contains("exists"), "{}", failure.render());
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "rules");
        assert!(Target::named(&path).is_err());
    }

    #[test]
    fn a_full_disk_is_not_a_matter_of_root() {
        let target = Target::at(Path::new("/rules.d/a.yaml")).expect("a file");
        let help = |kind: ErrorKind| target.cannot(&target.rules, &kind.into()).render();
        let full = help(ErrorKind::StorageFull);
        assert!(
            full.contains("free some space") && !full.contains("root"),
            "{full}"
        );
        assert!(help(ErrorKind::PermissionDenied).contains("as root (sudo)"));
    }

    #[test]
    fn a_test_that_cannot_be_written_leaves_no_exception() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.yaml");
        let target = Target::named(&path).expect("it is new");
        fs::write(dir.path().join("tests"), "no folder").expect("it can be written");
        target.write("rules", "test").expect_err("tests is a file");
        assert!(!path.exists());
    }
}
