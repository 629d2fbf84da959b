//! What is linked into the program and is no package of cargo: libraries in C, and the library of Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::linked::Component;
use super::{Build, output};

/// The table of the libraries in C.
const TABLE: &str = "packaging/native.tsv";

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'t> {
    name: &'t str,
    license: &'t str,
    debian: &'t str,
    sources: &'t str,
    /// Whether only a static program has it.
    only_static: bool,
}

/// Returns the components of a build, as they are installed on this machine, which must be the one that built it.
pub(super) fn components(root: &Path, build: &Build) -> Result<Vec<Component>> {
    let table = root.join(TABLE);
    let table =
        fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
    let mut components = Vec::new();
    for row in rows(&table)? {
        if build.is_static || !row.only_static {
            components.push(component(&row)?);
        }
    }
    components.push(rust()?);
    Ok(components)
}

fn rows(table: &str) -> Result<Vec<Row<'_>>> {
    let lines = table.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    lines.map(|(number, line)| row(number + 1, line)).collect()
}

fn row(number: usize, line: &str) -> Result<Row<'_>> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [name, license, debian, sources, when] = columns[..] else {
        bail!("{TABLE}:{number}: five columns are needed, separated by tabs");
    };
    let only_static = match when {
        "always" => false,
        "static" => true,
        other => bail!("{TABLE}:{number}: `{other}` is neither `always` nor `static`"),
    };
    Ok(Row {
        name,
        license,
        debian,
        sources,
        only_static,
    })
}

/// Describes a library of Debian.
fn component(row: &Row<'_>) -> Result<Component> {
    let mut query = Command::new("dpkg-query");
    let version = output(query.args(["--show", "--showformat", "${Version}", row.debian]));
    let version = version.with_context(|| format!("cannot tell the version of {}", row.debian))?;
    Ok(Component {
        name: row.name.to_owned(),
        purl: format!("pkg:deb/debian/{}@{}", row.debian, escape(&version)),
        version,
        license: Some(row.license.to_owned()),
        sources: Some(row.sources.to_owned()),
        checksum: None,
        uses: Vec::new(),
        texts: vec![
            Path::new("/usr/share/doc")
                .join(row.debian)
                .join("copyright"),
        ],
        is_direct: true,
    })
}

/// Describes the library of Rust.
fn rust() -> Result<Component> {
    let about = output(Command::new("rustc").arg("-vV"))?;
    let version = about
        .lines()
        .find_map(|line| line.strip_prefix("release: "));
    let version = version
        .context("rustc does not say its version")?
        .to_owned();
    let root = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let texts = rust_texts(Path::new(root.trim_end()))?;
    Ok(Component {
        name: "rust-std".to_owned(),
        purl: format!("pkg:generic/rust-std@{version}"),
        version,
        license: Some("MIT OR Apache-2.0".to_owned()),
        sources: Some("https://github.com/rust-lang/rust".to_owned()),
        checksum: None,
        uses: Vec::new(),
        texts,
        is_direct: true,
    })
}

/// Finds what the library of Rust says about copyright, as rustup and as Debian install it.
fn rust_texts(root: &Path) -> Result<Vec<PathBuf>> {
    let rustup = root.join("share/doc/rust/COPYRIGHT-library.html");
    let debian = ["libstd-rust-web-dev", "libstd-rust-dev"]
        .map(|package| Path::new("/usr/share/doc").join(package).join("copyright"));
    let found = [rustup]
        .into_iter()
        .chain(debian)
        .find(|path| path.is_file());
    let found = found.context(
        "cannot find the copyright of Rust's library: rustup's `share/doc/rust` lacks it",
    )?;
    Ok(vec![found])
}

/// Escapes a version for a package URL.
fn escape(version: &str) -> String {
    version
        .replace('%', "%25")
        .replace('+', "%2B")
        .replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_errors_name_the_line() {
        let table = "# name\nlibx\tMIT\tlibx-dev\thttps://x.example/\tstatic\n";
        let [row] = &rows(table).expect("it is correct")[..] else {
            panic!("{table}")
        };
        assert_eq!(
            (row.name, row.license, row.only_static),
            ("libx", "MIT", true)
        );
        for (line, message) in [
            (
                "libx\tMIT\n",
                "packaging/native.tsv:1: five columns are needed, separated by tabs",
            ),
            (
                "a\tb\tc\td\tnever\n",
                "packaging/native.tsv:1: `never` is neither `always` nor `static`",
            ),
        ] {
            let error = rows(line).expect_err("it is wrong");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn a_version_is_escaped_for_a_package_url() {
        assert_eq!(escape("1:2.0+dfsg-1"), "1%3A2.0%2Bdfsg-1");
    }
}
