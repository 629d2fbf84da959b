//! Cargo.lock: where crates come from, and which are built in several versions.
//!
//! A part of what cargo-deny checks, without a tool that has to be compiled first. Advisories need a database from the
//! network: RELEASING.md has the step.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::tree::{Finding, Tree};

const FILE: &str = "Cargo.lock";
/// The only source of crates that are not ours, in two parts: its host is in no other file.
const REGISTRY: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

/// Crates in several versions: name, number of versions, and why each of them stays.
const DUPLICATES: [(&str, usize, &str); 28] = [
    (
        "base64",
        2,
        "async-nats, opentelemetry-proto and postgres-protocol are behind",
    ),
    ("block-buffer", 2, "as digest"),
    ("const-oid", 2, "as digest: der is behind"),
    ("cpufeatures", 2, "as digest"),
    ("crypto-common", 2, "as digest"),
    (
        "darling",
        2,
        "macros at build time: libcontainer's derive_builder is behind",
    ),
    ("darling_core", 2, "as darling"),
    ("darling_macro", 2, "as darling"),
    (
        "digest",
        2,
        "ed25519-dalek, with which async-nats signs, is behind",
    ),
    (
        "embedded-io",
        2,
        "postcard names both, and this build has neither",
    ),
    ("fallible-iterator", 2, "postgres and rusqlite differ"),
    ("getrandom", 2, "ring and async-nats's nkeys are behind"),
    (
        "itertools",
        3,
        "criterion for benchmarks; prost and ratatui; libcontainer's pathrs",
    ),
    ("linux-raw-sys", 2, "as rustix"),
    ("nix", 2, "libcontainer is behind"),
    ("rand", 2, "async-nats's nkeys is behind"),
    ("rand_core", 2, "as rand and digest"),
    ("rustix", 2, "libcontainer's which is behind"),
    ("sha2", 2, "as digest"),
    ("signal-hook", 2, "crossterm is behind"),
    ("strum", 2, "libcontainer's oci-spec is behind"),
    ("strum_macros", 2, "as strum"),
    ("syn", 2, "macros at build time: many crates are behind"),
    (
        "synstructure",
        2,
        "macros at build time: asn1-rs-derive is behind",
    ),
    ("thiserror", 2, "libcontainer's protobuf is behind"),
    ("thiserror-impl", 2, "as thiserror"),
    ("wasi", 2, "for another system: never built"),
    ("windows-sys", 2, "for another system: never built"),
];

/// A package of the lock file.
struct Package<'t> {
    name: &'t str,
    version: &'t str,
    /// `None` for our own crates.
    source: Option<&'t str>,
    /// Whether a source other than a folder has a checksum.
    has_checksum: bool,
    line: usize,
}

/// Reports crates from elsewhere than the registry, crates without a checksum, and versions that the table does not name.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let packages = packages(&tree.file(FILE)?.text);
    let mut findings = sources(&packages);
    findings.extend(duplicates(&packages, &DUPLICATES));
    Ok(findings)
}

fn finding(line: usize, message: String) -> Finding {
    Finding {
        path: FILE.to_owned(),
        line,
        message,
    }
}

/// Parses what cargo writes: one key a line.
fn packages(text: &str) -> Vec<Package<'_>> {
    let mut packages: Vec<Package<'_>> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line == "[[package]]" {
            packages.push(Package {
                name: "",
                version: "",
                source: None,
                has_checksum: false,
                line: number + 1,
            });
        }
        let (Some((key, value)), Some(package)) = (line.split_once(" = "), packages.last_mut())
        else {
            continue;
        };
        let value = value.trim_matches('"');
        match key {
            "name" => package.name = value,
            "version" => package.version = value,
            "source" => package.source = Some(value),
            "checksum" => package.has_checksum = true,
            _ => {}
        }
    }
    packages
}

fn sources(packages: &[Package<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some(source) = package.source else {
            continue;
        };
        let Package { name, version, .. } = package;
        if source != REGISTRY {
            let message = format!(
                "{name} {version} comes from {source}; take it from the registry, which keeps what was published"
            );
            findings.push(finding(package.line, message));
        } else if !package.has_checksum {
            let message = format!("{name} {version} has no checksum; run cargo update -p {name}");
            findings.push(finding(package.line, message));
        }
    }
    findings
}

fn duplicates(packages: &[Package<'_>], accepted: &[(&str, usize, &str)]) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<&Package<'_>>> = BTreeMap::new();
    for package in packages {
        by_name.entry(package.name).or_default().push(package);
    }
    let mut findings = Vec::new();
    for (name, versions) in &by_name {
        let row = accepted.iter().find(|(accepted, ..)| accepted == name);
        let expected = row.map_or(1, |(_, count, _)| *count);
        if versions.len() == expected {
            continue;
        }
        let list: Vec<_> = versions.iter().map(|package| package.version).collect();
        let list = list.join(", ");
        let message = if versions.len() > expected {
            format!(
                "{name} is built in versions {list}; use one of them, or add a row with the reason to xtask/src/lockfile.rs"
            )
        } else {
            format!(
                "{name} is built in version {list} alone; mend its row in xtask/src/lockfile.rs"
            )
        };
        findings.push(finding(versions[0].line, message));
    }
    for (name, ..) in accepted {
        if !by_name.contains_key(name) {
            let message =
                format!("{name} is no dependency; remove its row in xtask/src/lockfile.rs");
            findings.push(finding(1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"version = 4

[[package]]
name = "cli"
version = "0.1.0"
dependencies = [
 "one",
]

[[package]]
name = "one"
version = "1.0.0"
source = "REGISTRY"
checksum = "00"

[[package]]
name = "one"
version = "2.0.0"
source = "REGISTRY"

[[package]]
name = "two"
version = "1.0.0"
source = "git+https://example.com/two#0123"
"#;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn crates_come_from_the_registry_with_a_checksum() {
        let lock = LOCK.replace("REGISTRY", REGISTRY);
        let found = messages(&sources(&packages(&lock)));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("Cargo.lock:16: one 2.0.0 has no checksum; "),
            "{found:?}"
        );
        let elsewhere = "Cargo.lock:21: two 1.0.0 comes from git+https://example.com/two#0123; ";
        assert!(found[1].starts_with(elsewhere), "{found:?}");
    }

    #[test]
    fn versions_are_those_of_the_table() {
        let packages = packages(LOCK);
        let found = |accepted: &[(&str, usize, &str)]| messages(&duplicates(&packages, accepted));
        assert_eq!(found(&[("one", 2, "reason")]), Vec::<String>::new());
        let more = found(&[]);
        assert_eq!(more.len(), 1, "{more:?}");
        assert!(
            more[0].starts_with("Cargo.lock:10: one is built in versions 1.0.0, 2.0.0; "),
            "{more:?}"
        );
        let stale = found(&[("one", 3, "reason"), ("three", 2, "reason")]);
        assert_eq!(stale.len(), 2, "{stale:?}");
        assert!(
            stale[0].contains("one is built in version 1.0.0, 2.0.0 alone; "),
            "{stale:?}"
        );
        assert!(stale[1].contains("three is no dependency; "), "{stale:?}");
    }

    #[test]
    fn rows_have_reasons_and_are_sorted() {
        assert!(DUPLICATES.is_sorted_by_key(|(name, ..)| *name));
        for (name, count, reason) in DUPLICATES {
            assert!(count > 1 && !reason.is_empty(), "{name}");
        }
    }
}
