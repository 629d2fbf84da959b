//! The layer of an artefact: a compressed archive with a rule file, and its tests in a folder `tests`.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use tar::{Archive, Builder, EntryType, Header};

use crate::{ArtifactError, limits};

/// Folder of tests in an archive. Rules are not loaded from there.
const TESTS: &str = "tests";

/// A file of a test: a suite in YAML, or what one refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestFile {
    /// Path below the folder of tests. Each part is a plain name.
    pub path: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl TestFile {
    /// Whether it has tests in it, and not only what tests refer to.
    #[must_use]
    pub fn is_suite(&self) -> bool {
        is_yaml(&self.path)
    }
}

/// What an archive has in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Name of the rule file.
    pub name: String,
    /// The rules.
    pub rules: String,
    /// Files of tests.
    pub tests: Vec<TestFile>,
    /// Number of other files, such as a licence. They are not installed.
    pub others: usize,
}

impl Content {
    /// Unpacks an archive into memory.
    ///
    /// # Errors
    ///
    /// It is damaged or too large, has anything but files with plain relative paths, or not exactly one rule file.
    pub(crate) fn unpack(layer: &[u8]) -> Result<Self, ArtifactError> {
        let mut rules = Vec::new();
        let (mut tests, mut others) = (Vec::<TestFile>::new(), 0);
        for (path, bytes) in files(layer)? {
            match (test_path(&path), is_yaml(&path)) {
                // Of different folders `tests`: one would hide the other.
                (Some(path), _) if tests.iter().any(|test| test.path == path) => {
                    let path = path.display();
                    return Err(wrong(format!("the test `{path}` is in it twice")));
                }
                (Some(path), _) => tests.push(TestFile { path, bytes }),
                (None, true) => rules.push((path, bytes)),
                (None, false) => others += 1,
            }
        }
        let count = rules.len();
        let Ok([(path, bytes)]) = <[_; 1]>::try_from(rules) else {
            return Err(wrong(format!(
                "it has {count} rule files outside of a folder `{TESTS}`; artefacts with exactly one can be installed"
            )));
        };
        let name = path.file_name().map(|name| name.to_string_lossy());
        let name = name.ok_or_else(|| wrong("a rule file has no name"))?;
        let rules = String::from_utf8(bytes)
            .map_err(|error| wrong(format!("`{name}` is no UTF-8 text: {error}")))?;
        Ok(Self {
            name: name.into_owned(),
            rules,
            tests,
            others,
        })
    }

    /// Packs an archive. The same content gives the same bytes.
    ///
    /// # Errors
    ///
    /// It is too large, or a name is too long.
    pub(crate) fn pack(&self) -> Result<Vec<u8>, ArtifactError> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
        add(&mut builder, Path::new(&self.name), self.rules.as_bytes())?;
        for test in &self.tests {
            add(
                &mut builder,
                &Path::new(TESTS).join(&test.path),
                &test.bytes,
            )?;
        }
        let encoder = builder.into_inner().map_err(|error| broken(&error))?;
        let layer = encoder.finish().map_err(|error| broken(&error))?;
        if layer.len() as u64 > limits::LAYER {
            return Err(ArtifactError::TooLarge {
                what: "the archive",
                limit: limits::LAYER,
            });
        }
        // Whoever installs it has to be able to.
        Self::unpack(&layer)?;
        Ok(layer)
    }
}

fn add<W: Write>(builder: &mut Builder<W>, path: &Path, bytes: &[u8]) -> Result<(), ArtifactError> {
    let mut header = Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_entry_type(EntryType::Regular);
    builder
        .append_data(&mut header, path, bytes)
        .map_err(|error| broken(&error))
}

fn wrong(problem: impl Into<String>) -> ArtifactError {
    ArtifactError::form("the archive", problem)
}

fn broken(error: &io::Error) -> ArtifactError {
    wrong(error.to_string())
}

/// Reads the files of an archive, in its order.
fn files(layer: &[u8]) -> Result<Vec<(PathBuf, Vec<u8>)>, ArtifactError> {
    let bounded = Bounded {
        inner: MultiGzDecoder::new(layer),
        left: limits::UNPACKED,
    };
    let mut archive = Archive::new(bounded);
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    let mut count = 0;
    for entry in archive.entries().map_err(|error| broken(&error))? {
        let mut entry = entry.map_err(|error| broken(&error))?;
        count += 1;
        if count > limits::ENTRIES {
            return Err(wrong(format!(
                "it has more than {} entries",
                limits::ENTRIES
            )));
        }
        let kind = entry.header().entry_type();
        // What `git archive` writes first: a comment on the whole archive.
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        let path = plain(&entry.path_bytes())?;
        match kind {
            EntryType::Directory => continue,
            EntryType::Regular => {}
            _ => {
                let path = path.display();
                return Err(wrong(format!("`{path}` is neither a file nor a folder")));
            }
        }
        let mut bytes = Vec::new();
        entry
            .read_to_end(&mut bytes)
            .map_err(|error| broken(&error))?;
        if !seen.insert(path.clone()) {
            return Err(wrong(format!("`{}` is in it twice", path.display())));
        }
        files.push((path, bytes));
    }
    Ok(files)
}

/// Checks a path: relative, without `..`, of plain names.
fn plain(bytes: &[u8]) -> Result<PathBuf, ArtifactError> {
    let shown = || String::from_utf8_lossy(bytes).escape_debug().to_string();
    if bytes.len() > limits::NAME {
        return Err(wrong(format!(
            "a name has more than {} bytes",
            limits::NAME
        )));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| wrong(format!("`{}` is no UTF-8 text: {error}", shown())))?;
    if text.chars().any(char::is_control) {
        return Err(wrong(format!("`{}` has control characters", shown())));
    }
    let mut path = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(wrong(format!("`{}` leads out of it", shown())));
            }
        }
    }
    Ok(path)
}

/// Returns the path below the folder of tests, if a path is there.
fn test_path(path: &Path) -> Option<PathBuf> {
    let mut components = path.components();
    components.find(|component| component.as_os_str() == TESTS)?;
    let below = components.as_path();
    (!below.as_os_str().is_empty()).then(|| below.to_owned())
}

fn is_yaml(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("yaml" | "yml"))
}

/// A reader that fails after a number of bytes, so that a small file cannot fill the memory.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(format!(
                "it unpacks to more than {} bytes",
                limits::UNPACKED
            ))
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs entries without any check; a path is written as it is.
    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, kind, bytes) in entries {
            let mut header = Header::new_ustar();
            let name = &mut header.as_old_mut().name;
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_entry_type(*kind);
            if kind.is_symlink() {
                header.set_link_name("/etc/passwd").expect("it is short");
            }
            header.set_cksum();
            builder.append(&header, *bytes).expect("a Vec takes all");
        }
        let encoder = builder.into_inner().expect("a Vec takes all");
        encoder.finish().expect("a Vec takes all")
    }

    const RULES: &[u8] = b"- list: a\n  items: []\n";

    #[test]
    fn an_archive_gives_what_was_packed() {
        let content = Content {
            name: "web.yaml".to_owned(),
            rules: "- list: a\n  items: []\n".to_owned(),
            tests: vec![TestFile {
                path: "a.yaml".into(),
                bytes: b"tests: []".to_vec(),
            }],
            others: 0,
        };
        let layer = content.pack().expect("it can be packed");
        assert_eq!(layer, content.pack().expect("it can be packed again"));
        assert_eq!(Content::unpack(&layer).expect("it is good"), content);
        // As falcoctl packs a folder.
        let folder = packed(&[
            ("rules/", EntryType::Directory, b""),
            ("rules/web.yaml", EntryType::Regular, RULES),
            ("rules/LICENSE", EntryType::Regular, b"x"),
        ]);
        let found = Content::unpack(&folder).expect("it is good");
        assert_eq!((&*found.name, found.others), ("web.yaml", 1));
    }

    #[test]
    fn archives_that_lead_out_or_have_more_than_files_are_refused() {
        let file = EntryType::Regular;
        for (entries, problem) in [
            (vec![("../a.yaml", file, RULES)], "leads out of it"),
            (vec![("a/../../b.yaml", file, RULES)], "leads out of it"),
            (vec![("/etc/a.yaml", file, RULES)], "leads out of it"),
            (vec![("a.yaml", EntryType::Symlink, b"")], "neither a file"),
            (vec![("a.yaml", EntryType::Link, b"")], "neither a file"),
            (vec![("a.yaml", EntryType::Fifo, b"")], "neither a file"),
            (vec![("a\u{1b}.yaml", file, RULES)], "control characters"),
            (
                vec![("a.yaml", file, RULES), ("./a.yaml", file, RULES)],
                "twice",
            ),
            (
                vec![
                    ("a/tests/x.yaml", file, RULES),
                    ("b/tests/x.yaml", file, RULES),
                ],
                "the test `x.yaml` is in it twice",
            ),
            (
                vec![("a.yaml", file, RULES), ("b.yml", file, RULES)],
                "2 rule files",
            ),
            (vec![("tests/a.yaml", file, RULES)], "0 rule files"),
            (vec![("a.yaml", file, b"\xff")], "no UTF-8"),
        ] {
            let error = Content::unpack(&packed(&entries)).expect_err(problem);
            assert!(error.to_string().contains(problem), "{error}");
        }
        let many: Vec<_> = (0..=limits::ENTRIES)
            .map(|number| format!("{number}"))
            .collect();
        let many: Vec<_> = many.iter().map(|name| (&**name, file, RULES)).collect();
        let error = Content::unpack(&packed(&many)).expect_err("too many");
        assert!(error.to_string().contains("entries"), "{error}");
    }

    #[test]
    fn a_small_archive_cannot_fill_the_memory() {
        // The whole limit, with a real archive, is in `tests/tests/artifacts`: it takes long without optimization.
        let mut reader = Bounded {
            inner: &[0; 100][..],
            left: 99,
        };
        let error = reader.read_to_end(&mut Vec::new()).expect_err("too long");
        assert!(error.to_string().contains("unpacks to more"), "{error}");
        let layer = packed(&[("a.yaml", EntryType::Regular, RULES)]);
        for damaged in [&layer[..layer.len() / 2], b"no archive", b""] {
            assert!(Content::unpack(damaged).is_err());
        }
    }
}
