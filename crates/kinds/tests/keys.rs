//! Compares the schema of policies with the keys that crate `policy` reads, which its own test compares with
//! `docs/reference/policy-language.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const PAGE: &str = "../../docs/reference/policy-language.md";

/// Mappings of the page that a policy does not have: the top of a file, the object itself, profiles that an object
/// has as one text, and another kind of object.
const NOT_IN_POLICY: [&str; 9] = [
    "the file",
    "spec",
    "customProfile",
    "customProfile.syscalls[0]",
    "ArmorProfileModel",
    "data",
    "data.profile",
    "data.dynamicResult",
    "data.dynamicResult.seccomp",
];

/// The headings of the page, each with the keys of its first table.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(path).expect("the page is part of the repository");
    let sections = text.split("\n## `").skip(1);
    let read = |section: &str| {
        let (what, rest) = section
            .split_once('`')
            .expect("a heading ends in a backquote");
        let table = rest
            .split("\n| key |")
            .nth(1)
            .expect("a section has a table");
        let rows = table
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with('|'));
        let keys = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        (what.to_owned(), keys.map(str::to_owned).collect())
    };
    sections.map(read).collect()
}

/// The schema of the items of a list, or the schema itself.
fn items(schema: &Value) -> &Value {
    schema.get("items").unwrap_or(schema)
}

/// All schemas that have the name `name` somewhere below `schema`.
fn named<'s>(schema: &'s Value, name: &str, found: &mut Vec<&'s Value>) {
    let properties = items(schema).get("properties").and_then(Value::as_object);
    for (key, property) in properties.into_iter().flatten() {
        if key == name {
            found.push(items(property));
        }
        named(property, name, found);
    }
}

fn keys(schema: &Value) -> BTreeSet<String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flatten()
        .map(|(key, _)| key.clone())
        .collect()
}

#[test]
fn the_schema_has_the_keys_that_the_loader_reads() {
    let crds = kinds::crd::all();
    let schema = &crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut compared = 0;
    for (what, documented) in documented() {
        if NOT_IN_POLICY.contains(&what.as_str()) {
            continue;
        }
        let path = what.replace("[0]", "");
        let mut parts = path.split('.');
        let mut found = Vec::new();
        named(schema, parts.next().expect("a path has a part"), &mut found);
        for part in parts {
            let schemas = found
                .into_iter()
                .filter_map(|schema| schema.get("properties"));
            found = schemas.filter_map(|all| all.get(part)).map(items).collect();
        }
        assert!(!found.is_empty(), "the schema has no `{what}`");
        // `appArmor` and `seccomp` name profiles here, and results elsewhere.
        let same = found.iter().any(|schema| keys(schema) == documented);
        assert!(
            same,
            "`{what}` has other keys: {:?}",
            found.iter().map(|schema| keys(schema)).collect::<Vec<_>>()
        );
        compared += 1;
    }
    assert!(compared > 25, "only {compared} mappings were compared");
}
