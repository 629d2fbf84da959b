//! Bills of materials in CycloneDX: what a file of a release is made of.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::linked::Component;
use super::{Build, notices};

/// Version of CycloneDX's specification.
const SPECIFICATION: &str = "1.5";
/// What a bill of materials adds to the name of its file.
const SUFFIX: &str = ".cdx.json";

/// Writes a bill of materials beside each of `artefacts`, which contain `program`.
pub(super) fn write_all(root: &Path, program: &Path, artefacts: &[PathBuf]) -> Result<()> {
    let build = Build::of(program)?;
    let components = build.components(root)?;
    for artefact in artefacts {
        let name = artefact.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has no name", artefact.display()))?;
        let bill = bill(&build, &components, name, &digest(artefact)?, time()?)?;
        let file = artefact.with_file_name(format!("{name}{SUFFIX}"));
        let text = serde_json::to_string_pretty(&bill)? + "\n";
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Returns the time that files of a release have, in seconds since 1970.
fn time() -> Result<i64> {
    let variable = std::env::var("SOURCE_DATE_EPOCH");
    let variable = variable.context("SOURCE_DATE_EPOCH is not set: packaging/common.sh sets it")?;
    variable
        .parse()
        .with_context(|| format!("SOURCE_DATE_EPOCH is `{variable}`, and no number"))
}

/// Returns the SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut state = Sha256::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut piece);
        let length = length.with_context(|| format!("cannot read {}", path.display()))?;
        if length == 0 {
            break;
        }
        state.update(&piece[..length]);
    }
    let mut text = String::new();
    for byte in state.finalize() {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

/// Makes the bill of the artefact `name` with the SHA-256 `digest`.
fn bill(
    build: &Build,
    components: &[Component],
    name: &str,
    digest: &str,
    time: i64,
) -> Result<Value> {
    let time = jiff::Timestamp::from_second(time).context("SOURCE_DATE_EPOCH is no time")?;
    ensure!(digest.len() == 64, "`{digest}` is no SHA-256");
    let artefact = "artefact";
    let direct = components.iter().filter(|component| component.is_direct);
    let direct: Vec<&str> = direct.map(|component| component.purl.as_str()).collect();
    let mut dependencies = vec![json!({"ref": artefact, "dependsOn": direct})];
    let uses = |component: &Component| json!({"ref": component.purl, "dependsOn": component.uses});
    dependencies.extend(components.iter().map(uses));
    let parts: Result<Vec<Value>> = components.iter().map(part).collect();
    let mut properties = vec![
        json!({"name": "tollgate:target", "value": build.target}),
        json!({"name": "tollgate:static", "value": build.is_static.to_string()}),
        json!({"name": "tollgate:features", "value": build.features.join(",")}),
    ];
    if let Some(commit) = &build.commit {
        properties.push(json!({"name": "tollgate:commit", "value": commit}));
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": serial_number(digest),
        "version": 1,
        "metadata": {
            "timestamp": time.to_string(),
            "tools": {"components": [{"type": "application", "name": "tollgate-xtask", "version": env!("CARGO_PKG_VERSION")}]},
            "component": {
                "type": "file",
                "bom-ref": artefact,
                "name": name,
                "version": build.version,
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
                "properties": properties,
            },
        },
        "components": parts?,
        "dependencies": dependencies,
    }))
}

/// Describes a component.
fn part(component: &Component) -> Result<Value> {
    let mut part = json!({
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "scope": "required",
        "licenses": [{"expression": notices::expression(component)?}],
        "purl": component.purl,
    });
    if let Some(checksum) = &component.checksum {
        part["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(sources) = &component.sources {
        part["externalReferences"] = json!([{"type": "vcs", "url": sources}]);
    }
    Ok(part)
}

/// Makes a serial number of a digest: a UUID of version 8, which is the same for the same artefact.
fn serial_number(digest: &str) -> String {
    let part = |from: usize, to: usize| &digest[from..to];
    format!(
        "urn:uuid:{}-{}-8{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 15),
        part(15, 18),
        part(18, 30)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::release::repository;

    /// The bill of this machine's static build.
    fn usual() -> (Vec<Component>, Value) {
        let build = Build::usual().expect("rustc is installed");
        let components = build.components(&repository()).expect("cargo knows them");
        let digest = "0123456789abcdef".repeat(4);
        let bill = bill(
            &build,
            &components,
            "tollgate.tar.gz",
            &digest,
            1_700_000_000,
        );
        (components, bill.expect("all licences are known"))
    }

    /// The keys that the published schema of CycloneDX 1.5 requires, and what it says of their values.
    #[test]
    fn the_bill_has_what_the_specification_requires() {
        let (components, bill) = usual();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["specVersion"], "1.5");
        assert_eq!(
            bill["serialNumber"],
            "urn:uuid:01234567-89ab-8cde-8f01-23456789abcd"
        );
        assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
        let parts = bill["components"].as_array().expect("a list");
        assert_eq!(parts.len(), components.len());
        let mut names = BTreeSet::from(["artefact"]);
        for part in parts.iter().chain([&bill["metadata"]["component"]]) {
            for key in ["type", "name", "version", "bom-ref"] {
                assert!(
                    part[key].as_str().is_some_and(|text| !text.is_empty()),
                    "{key}: {part}"
                );
            }
            assert!(part["licenses"][0]["expression"].is_string(), "{part}");
            let hashes = part["hashes"].as_array().into_iter().flatten();
            for hash in hashes {
                assert_eq!(hash["alg"], "SHA-256");
                assert_eq!(hash["content"].as_str().map(str::len), Some(64), "{part}");
            }
        }
        for part in parts {
            assert!(
                names.insert(part["bom-ref"].as_str().expect("text")),
                "twice: {part}"
            );
        }
        for dependency in bill["dependencies"].as_array().expect("a list") {
            assert!(
                names.contains(dependency["ref"].as_str().expect("text")),
                "{dependency}"
            );
            let used: Vec<_> = dependency["dependsOn"]
                .as_array()
                .expect("a list")
                .iter()
                .collect();
            let unique: BTreeSet<_> = used
                .iter()
                .map(|name| name.as_str().expect("text"))
                .collect();
            assert_eq!(unique.len(), used.len(), "{dependency}");
            assert!(unique.is_subset(&names), "{dependency}");
        }
    }

    #[test]
    fn the_bill_lists_what_is_linked_and_nothing_else() {
        let (components, _) = usual();
        let find = |name: &str| components.iter().find(|component| component.name == name);
        for name in [
            "serde_json",
            "rustls",
            "libbpf-sys",
            "libelf",
            "glibc",
            "rust-std",
        ] {
            assert!(find(name).is_some(), "{name}");
        }
        // A tool of builds, of tests, a macro, a package of this repository, and one of another system.
        for name in ["cc", "insta", "serde_derive", "rules", "windows-sys"] {
            assert!(find(name).is_none(), "{name}");
        }
        let json = find("serde_json").expect("it is linked");
        assert!(json.is_direct && json.checksum.is_some());
        assert!(
            json.uses
                .iter()
                .any(|name| name.starts_with("pkg:cargo/itoa@")),
            "{json:?}"
        );
    }

    #[test]
    fn the_digest_is_that_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "abc").expect("it is ours");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(&file).expect("it is there"), expected);
    }
}
