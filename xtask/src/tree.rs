//! The repository's text files, read once for all checks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders without source files.
const SKIPPED_FOLDERS: [&str; 2] = [".git", "target"];

/// A text file of the repository.
pub(crate) struct File {
    /// Path from the root, with `/` as separator.
    pub(crate) path: String,
    pub(crate) text: String,
}

#[cfg(test)]
impl File {
    /// Makes a file for tests.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }
}

/// All text files below the root.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.message)
    }
}

impl Tree {
    /// Returns the folder of the repository that this package is part of.
    pub(crate) fn root() -> Result<PathBuf> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("cannot find the repository: start this with `cargo run -p xtask -- check`")?;
        let root = Path::new(&package)
            .parent()
            .context("cannot find the repository: this package has no parent folder")?;
        Ok(root.to_path_buf())
    }

    /// Reads the repository that this package is part of.
    pub(crate) fn read() -> Result<Tree> {
        let root = Self::root()?;
        let mut files = Vec::new();
        read_folder(&root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { root, files })
    }

    /// Returns the file at `path`, or an error that names it.
    pub(crate) fn file(&self, path: &str) -> Result<&File> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .with_context(|| format!("cannot find {path} in {}", self.root.display()))
    }
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Vec<File>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot inspect {name}"))?;
        let path = format!("{prefix}{name}");
        if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            read_folder(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
            // Files that are not text, such as recorded captures, have no words to check.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File { path, text });
            }
        }
    }
    Ok(())
}
