//! Cargo packages that are linked into a program: which, by what licence, and which of them uses which.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{BESIDE, Build, PACKAGE, output};

/// Something that is linked into the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) version: String,
    /// Package URL, which is its name in a bill of materials.
    pub(super) purl: String,
    /// Licence as an SPDX expression; `None` if the package names none.
    pub(super) license: Option<String>,
    /// Web address of the sources, where the package names one.
    pub(super) sources: Option<String>,
    /// SHA-256 of the package, in hexadecimal digits.
    pub(super) checksum: Option<String>,
    /// Package URLs of what it uses itself.
    pub(super) uses: Vec<String>,
    /// Files with the texts of the licence.
    pub(super) texts: Vec<PathBuf>,
    /// Whether the program itself, not another package, uses it.
    pub(super) is_direct: bool,
}

/// Name and version.
type Key = (String, String);

/// Returns the packages that are linked into a build, sorted by name and version.
pub(super) fn components(root: &Path, build: &Build) -> Result<Vec<Component>> {
    let features = build.features.join(",");
    let options = ["--no-default-features", "--features", features.as_str()];
    let mut edges = edges(&tree(root, PACKAGE, build, &options)?)?;
    // The programs that are packed beside it have none of its features.
    for package in BESIDE {
        for (user, used) in self::edges(&tree(root, package, build, &[])?)? {
            let known = edges.entry(user).or_default();
            let new: Vec<_> = used
                .into_iter()
                .filter(|key| !known.contains(key))
                .collect();
            known.extend(new);
        }
    }
    let mut metadata = cargo(root);
    metadata.args(["metadata", "--format-version", "1", "--filter-platform"]);
    let metadata: Value = serde_json::from_str(&output(metadata.arg(&build.target))?)
        .context("cannot parse cargo's metadata")?;
    let lock = root.join("Cargo.lock");
    let lock =
        fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let checksums = checksums(&lock);
    let packages = packages(&metadata)?;
    join(&edges, &packages, &checksums)
}

/// Returns what `cargo tree` prints of a package.
fn tree(root: &Path, package: &str, build: &Build, options: &[&str]) -> Result<String> {
    let mut tree = cargo(root);
    tree.args(["tree", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "depth", "--format", " {p}"]);
    tree.args(["--package", package, "--target", &build.target]);
    output(tree.args(options))
}

fn cargo(root: &Path) -> Command {
    // The cargo that runs this program, or that of the path.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["--locked", "--quiet"]);
    command
}

/// Parses the output of `cargo tree`: each package with those that it uses.
fn edges(tree: &str) -> Result<BTreeMap<Key, Vec<Key>>> {
    let mut edges: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
    let mut path: Vec<Key> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        let depth = words.next().and_then(|depth| depth.parse::<usize>().ok());
        let name = words.next();
        let version = words.next().and_then(|version| version.strip_prefix('v'));
        let (Some(depth), Some(name), Some(version)) = (depth, name, version) else {
            anyhow::bail!("cannot parse the line `{line}` of cargo tree");
        };
        let key = (name.to_owned(), version.to_owned());
        path.truncate(depth);
        if let Some(user) = path.last() {
            let used = edges.entry(user.clone()).or_default();
            if !used.contains(&key) {
                used.push(key.clone());
            }
        }
        edges.entry(key.clone()).or_default();
        path.push(key);
    }
    Ok(edges)
}

/// Parses cargo's lock file: packages of the registry, and their SHA-256.
fn checksums(lock: &str) -> BTreeMap<Key, String> {
    let entries = lock.split("[[package]]").skip(1);
    let parse = |entry: &str| {
        let value = |key: &str| {
            let lines = &mut entry.lines();
            let quoted = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            quoted.map(|value| value.trim_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    entries.filter_map(parse).collect()
}

/// Returns cargo's metadata by package.
fn packages(metadata: &Value) -> Result<BTreeMap<Key, &Value>> {
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo's metadata have no packages")?;
    let key = |package: &Value| {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        Some((text("name")?, text("version")?))
    };
    let keyed = packages.iter().map(|package| {
        let key = key(package).context("a package of cargo's metadata has no name or version")?;
        Ok((key, package))
    });
    keyed.collect()
}

fn join(
    edges: &BTreeMap<Key, Vec<Key>>,
    packages: &BTreeMap<Key, &Value>,
    checksums: &BTreeMap<Key, String>,
) -> Result<Vec<Component>> {
    // A package without a source is one of this repository.
    let foreign = |key: &Key| {
        packages
            .get(key)
            .is_some_and(|found| !found["source"].is_null())
    };
    let purl = |(name, version): &Key| format!("pkg:cargo/{name}@{version}");
    let mut components = Vec::new();
    for (key, used) in edges {
        let package = packages.get(key);
        let package =
            package.with_context(|| format!("cargo's metadata lack {} {}", key.0, key.1))?;
        if !foreign(key) {
            continue;
        }
        let manifest = package["manifest_path"].as_str();
        let manifest =
            manifest.with_context(|| format!("cargo does not say where {} is", key.0))?;
        let folder = Path::new(manifest).parent();
        let folder = folder.with_context(|| format!("{manifest} is in no folder"))?;
        let is_direct = edges
            .iter()
            .any(|(user, used)| !foreign(user) && used.contains(key));
        components.push(Component {
            name: key.0.clone(),
            version: key.1.clone(),
            purl: purl(key),
            license: package["license"].as_str().map(str::to_owned),
            sources: package["repository"].as_str().map(str::to_owned),
            checksum: checksums.get(key).cloned(),
            uses: used.iter().map(purl).collect(),
            texts: texts(folder, package["license_file"].as_str())?,
            is_direct,
        });
    }
    Ok(components)
}

/// Returns the files of a package that have the text of its licence, sorted by name.
fn texts(folder: &Path, named: Option<&str>) -> Result<Vec<PathBuf>> {
    const BEGINNINGS: [&str; 6] = [
        "licen",
        "copying",
        "copyright",
        "notice",
        "unlicense",
        "authors",
    ];
    let mut texts: Vec<PathBuf> = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry
            .with_context(|| format!("cannot list {}", folder.display()))?
            .path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().to_lowercase());
        let is_text = name.is_some_and(|name| {
            BEGINNINGS
                .iter()
                .any(|beginning| name.starts_with(beginning))
        });
        if is_text && path.is_file() {
            texts.push(path);
        }
    }
    let named = named.map(|name| folder.join(name));
    texts.extend(named.filter(|path| path.is_file() && !texts.contains(path)));
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        (name.to_owned(), "1.0.0".to_owned())
    }

    #[test]
    fn the_lines_of_cargo_tree_become_edges() {
        let tree = "0 cli v1.0.0 (/src/cli)\n1 a v1.0.0\n2 b v1.0.0\n1 b v1.0.0 (*)\n1 c v1.0.0\n";
        let edges = edges(tree).expect("it is correct");
        assert_eq!(edges[&key("cli")], [key("a"), key("b"), key("c")]);
        assert_eq!(edges[&key("a")], [key("b")]);
        assert!(edges[&key("b")].is_empty() && edges[&key("c")].is_empty());
        let error = super::edges("1 a\n").expect_err("it has no version");
        assert_eq!(
            error.to_string(),
            "cannot parse the line `1 a` of cargo tree"
        );
    }

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"0a\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"1.0.0\"\ndependencies = [\n \"a\",\n]\n";
        let checksums = checksums(lock);
        assert_eq!(checksums.len(), 1);
        assert_eq!(checksums[&key("a")], "0a");
    }

    #[test]
    fn packages_of_this_repository_are_no_components_and_their_uses_are_direct() {
        let metadata = serde_json::json!({"packages": [
            {"name": "cli", "version": "1.0.0", "source": null, "manifest_path": "/none/Cargo.toml"},
            {"name": "a", "version": "1.0.0", "source": "registry", "license": "MIT",
             "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")},
            {"name": "b", "version": "1.0.0", "source": "registry", "license": null,
             "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")},
        ]});
        let edges = edges("0 cli v1.0.0 (/src)\n1 a v1.0.0\n2 b v1.0.0\n").expect("it is correct");
        let packages = packages(&metadata).expect("they are complete");
        let joined = join(&edges, &packages, &BTreeMap::new()).expect("all are known");
        let [a, b] = &joined[..] else {
            panic!("{joined:?}")
        };
        assert_eq!(a.uses, ["pkg:cargo/b@1.0.0"]);
        assert!(a.is_direct && !b.is_direct);
        assert_eq!(
            (a.license.as_deref(), b.license.as_deref()),
            (Some("MIT"), None)
        );
    }
}
