//! Dependencies between our crates: compares the table in ARCHITECTURE.md with cargo's metadata.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::tree::{Finding, Tree};

/// The document that holds the table.
const DOCUMENT: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- dependencies: begin -->";
const END: &str = "<!-- dependencies: end -->";
/// Entry of the table for a crate that may depend on every other one.
const ANYTHING: &str = "anything";

/// Crates that call the kernel; a crate that uses one is not pure.
const KERNEL_CRATES: [&str; 6] = ["caps", "libc", "linux-raw-sys", "nix", "procfs", "rustix"];

/// The parser of command lines, and the crates that may use it: those with a program of their own, and
/// `runtime_embedded`, which takes runc's command line by liboci-cli.
const COMMAND_LINE_PARSER: &str = "clap";
const HAS_COMMAND_LINE: [&str; 4] = ["cli", "kubectl", "operator", "runtime_embedded"];

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    line: usize,
    allowed: Vec<String>,
    pub(crate) pure: bool,
}

/// A package, from cargo's metadata.
struct Package {
    manifest: String,
    /// Names, and whether each is one of our crates. Excludes dependencies for tests.
    dependencies: Vec<(String, bool)>,
}

/// Parses the table of the document: crate name to row.
pub(crate) fn table(tree: &Tree) -> Result<BTreeMap<String, Row>> {
    parse_table(&tree.file(DOCUMENT)?.text)
}

/// Reports dependencies that the table does not allow, and rows and crates without a partner.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    Ok(compare(&table(tree)?, &packages(tree)?))
}

fn compare(table: &BTreeMap<String, Row>, packages: &BTreeMap<String, Package>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, package) in packages {
        let mut report = |message: String| {
            findings.push(Finding {
                path: package.manifest.clone(),
                line: 1,
                message,
            });
        };
        let Some(row) = table.get(name) else {
            report(format!(
                "crate `{name}` has no row in the table of {DOCUMENT}; add one"
            ));
            continue;
        };
        for (dependency, is_ours) in &package.dependencies {
            if *is_ours && !row.allows(dependency) {
                report(format!(
                    "`{name}` may not depend on `{dependency}`: see {DOCUMENT}"
                ));
            }
            if dependency == COMMAND_LINE_PARSER && !HAS_COMMAND_LINE.contains(&name.as_str()) {
                report(format!(
                    "`{name}` may not depend on `{COMMAND_LINE_PARSER}`: parse command lines in `cli`"
                ));
            }
            if row.pure && KERNEL_CRATES.contains(&dependency.as_str()) {
                report(format!(
                    "`{name}` is pure and may not depend on `{dependency}`"
                ));
            }
        }
    }
    for (name, row) in table
        .iter()
        .filter(|(name, _)| !packages.contains_key(*name))
    {
        let message = format!("the table names `{name}`, which is no crate here; remove the row");
        findings.push(Finding {
            path: DOCUMENT.to_owned(),
            line: row.line,
            message,
        });
    }
    findings
}

impl Row {
    fn allows(&self, dependency: &str) -> bool {
        self.allowed
            .iter()
            .any(|name| name == dependency || name == ANYTHING)
    }
}

/// Parses rows such as ``| `rules` | `abi`, `event` | yes |``.
fn parse_table(text: &str) -> Result<BTreeMap<String, Row>> {
    let (before, after) = text
        .split_once(BEGIN)
        .with_context(|| format!("cannot find `{BEGIN}` in {DOCUMENT}"))?;
    let (body, _) = after
        .split_once(END)
        .with_context(|| format!("cannot find `{END}` in {DOCUMENT}"))?;
    let first_line = before.lines().count() + 1;
    let mut rows = BTreeMap::new();
    for (offset, text) in body.lines().enumerate() {
        let cells: Vec<&str> = text
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, allowed, pure] = cells[..] else {
            continue;
        };
        // The heading and the ruler below it have no crate name.
        let Some(name) = name
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'))
        else {
            continue;
        };
        let line = first_line + offset;
        ensure!(
            matches!(pure, "yes" | "no"),
            "cannot read {DOCUMENT}, line {line}: `pure` must be yes or no, not `{pure}`"
        );
        let allowed = allowed
            .split(',')
            .map(|name| name.trim().trim_matches('`').to_owned())
            .filter(|name| !name.is_empty() && name != "nothing")
            .collect();
        rows.insert(
            name.to_owned(),
            Row {
                line,
                allowed,
                pure: pure == "yes",
            },
        );
    }
    ensure!(
        !rows.is_empty(),
        "cannot find a row between `{BEGIN}` and `{END}` in {DOCUMENT}"
    );
    Ok(rows)
}

/// Returns the members of the workspace, by name.
fn packages(tree: &Tree) -> Result<BTreeMap<String, Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(&tree.root)
        .output()
        .context("cannot start `cargo metadata`")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cannot run `cargo metadata`: {stderr}"
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .context("cannot read what `cargo metadata` printed")?;
    let members = metadata["packages"]
        .as_array()
        .context("cannot find packages in metadata")?;
    members.iter().map(|member| package(tree, member)).collect()
}

fn package(tree: &Tree, member: &Value) -> Result<(String, Package)> {
    let text = |value: &Value, key: &str| -> Result<String> {
        let found = value[key]
            .as_str()
            .with_context(|| format!("cannot find `{key}`"))?;
        Ok(found.to_owned())
    };
    let manifest = text(member, "manifest_path")?;
    let root = format!("{}/", tree.root.display());
    let dependencies = member["dependencies"]
        .as_array()
        .context("cannot find the dependencies of a package in metadata")?
        .iter()
        .filter(|dependency| dependency["kind"] != "dev")
        .map(|dependency| Ok((text(dependency, "name")?, dependency["path"].is_string())))
        .collect::<Result<_>>()?;
    let manifest = manifest.strip_prefix(&root).unwrap_or(&manifest).to_owned();
    Ok((
        text(member, "name")?,
        Package {
            manifest,
            dependencies,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
title
<!-- dependencies: begin -->
| crate | may depend on | pure |
|---|---|---|
| `abi` | nothing | yes |
| `sys` | `abi` | no |
| `cli` | anything | no |
<!-- dependencies: end -->
";

    fn found(name: &str, dependencies: &[(&str, bool)]) -> Vec<String> {
        let table = parse_table(TABLE).unwrap();
        let mut packages: BTreeMap<String, Package> = ["abi", "sys", "cli"]
            .map(|name| {
                (
                    name.to_owned(),
                    Package {
                        manifest: String::new(),
                        dependencies: vec![],
                    },
                )
            })
            .into();
        let dependencies = dependencies
            .iter()
            .map(|(name, ours)| ((*name).to_owned(), *ours))
            .collect();
        packages.insert(
            name.to_owned(),
            Package {
                manifest: String::new(),
                dependencies,
            },
        );
        compare(&table, &packages)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn rows_hold_line_permissions_and_purity() {
        let rows = parse_table(TABLE).unwrap();
        assert_eq!(
            rows["abi"],
            Row {
                line: 5,
                allowed: vec![],
                pure: true
            }
        );
        assert_eq!(
            rows["sys"],
            Row {
                line: 6,
                allowed: vec!["abi".into()],
                pure: false
            }
        );
    }

    #[test]
    fn allowed_dependencies_are_not_reported() {
        assert_eq!(found("sys", &[("abi", true), ("libc", false)]), [""; 0]);
        assert_eq!(found("cli", &[("abi", true), ("sys", true)]), [""; 0]);
    }

    #[test]
    fn a_dependency_against_the_direction_is_reported() {
        assert_eq!(
            found("sys", &[("cli", true)])[0],
            "`sys` may not depend on `cli`: see ARCHITECTURE.md"
        );
    }

    #[test]
    fn a_pure_crate_with_a_kernel_crate_is_reported() {
        assert_eq!(
            found("abi", &[("libc", false)]),
            ["`abi` is pure and may not depend on `libc`"]
        );
    }

    #[test]
    fn a_command_line_below_cli_is_reported() {
        assert_eq!(found("cli", &[("clap", false)]), [""; 0]);
        assert_eq!(
            found("sys", &[("clap", false)]),
            ["`sys` may not depend on `clap`: parse command lines in `cli`"]
        );
    }

    #[test]
    fn a_crate_without_a_row_is_reported() {
        assert!(found("extra", &[])[0].contains("has no row"));
    }

    #[test]
    fn a_row_without_a_crate_is_reported() {
        let table = parse_table(TABLE).unwrap();
        let findings = compare(&table, &BTreeMap::new());
        assert_eq!(findings.len(), 3);
        assert_eq!(findings[0].line, 5);
    }

    #[test]
    fn a_table_with_a_bad_cell_is_an_error_with_its_line() {
        let text = TABLE.replace("| nothing | yes |", "| nothing | maybe |");
        assert!(
            parse_table(&text)
                .unwrap_err()
                .to_string()
                .contains("line 5")
        );
    }
}
