//! What a release says about the code in it: bills of materials and licences.

mod linked;
mod native;
mod notices;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::tree::{Finding, Tree};
use linked::Component;

/// The package that the program is built from.
const PACKAGE: &str = "cli";
/// The packages of the programs that are packed beside it: the one that loads plugins, and in the image the operator.
const BESIDE: [&str; 2] = ["plugin_host", "operator"];

/// What `tollgate version --json` says about a program.
struct Build {
    version: String,
    /// `None` if the program was built outside a clone.
    commit: Option<String>,
    features: Vec<String>,
    /// Target of the build, such as `x86_64-unknown-linux-gnu`.
    target: String,
    /// Whether the C library is linked into the program.
    is_static: bool,
}

impl Build {
    /// Asks a program.
    fn of(program: &Path) -> Result<Self> {
        let text = output(Command::new(program).args(["version", "--json"]))?;
        let object: Value = serde_json::from_str(&text)
            .with_context(|| format!("cannot parse what {} says of itself", program.display()))?;
        let text = |key: &str| {
            let value = object[key].as_str().map(str::to_owned);
            value.with_context(|| format!("{} does not say its {key}", program.display()))
        };
        let features = object["features"].as_array();
        let features =
            features.with_context(|| format!("{} does not say its features", program.display()))?;
        Ok(Self {
            version: text("version")?,
            commit: object["commit"].as_str().map(str::to_owned),
            features: features
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            target: text("target")?,
            is_static: object["static"].as_bool().with_context(|| {
                format!("{} does not say whether it is static", program.display())
            })?,
        })
    }

    /// Returns the build that `make static` makes on this machine.
    fn usual() -> Result<Self> {
        let rustc = output(Command::new("rustc").arg("-vV"))?;
        let target = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: None,
            features: vec!["default".to_owned()],
            target: target.context("rustc does not say its host")?.to_owned(),
            is_static: true,
        })
    }

    /// Returns everything that is linked into the program and is not of this repository.
    fn components(&self, root: &Path) -> Result<Vec<Component>> {
        let mut components = linked::components(root, self)?;
        components.extend(native::components(root, self)?);
        Ok(components)
    }
}

/// Runs `sbom PROGRAM ARTEFACT...` or `notices PROGRAM FILE`; returns false if `words` are neither.
pub(crate) fn run(words: &[PathBuf]) -> Result<bool> {
    let [verb, program, files @ ..] = words else {
        return Ok(false);
    };
    match (verb.to_str(), files) {
        (Some("sbom"), [_, ..]) => sbom::write_all(&Tree::root()?, program, files)?,
        (Some("notices"), [file]) => notices::write(&Tree::root()?, program, file)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reports packages that are linked into the program under a licence that does not allow it, or without a text.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    // What is not of cargo is chosen by hand, and read where a release is packed.
    let components = linked::components(&tree.root, &Build::usual()?)?;
    ensure!(!components.is_empty(), "cargo lists no dependency");
    let problems = components.iter().filter_map(|component| {
        let problem = notices::texts(component).err()?;
        Some(Finding {
            path: "Cargo.lock".to_owned(),
            line: 1,
            message: format!("{problem:#}; use another package, or see RELEASING.md"),
        })
    });
    Ok(problems.collect())
}

/// Runs a command that must succeed, and returns its output.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let result = command.output();
    let result = result.with_context(|| format!("cannot run {name}"))?;
    if !result.status.success() {
        let message = String::from_utf8_lossy(&result.stderr);
        bail!("{name} failed, {}: {}", result.status, message.trim_end());
    }
    String::from_utf8(result.stdout).with_context(|| format!("{name} wrote no text"))
}

/// A package of the workspace, by which tests name its folder.
#[cfg(test)]
fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in it").to_owned()
}
