//! Manifests of every shape, with what an API server says of each. A test with a real one is in `tests/tests/kubernetes_api`.

mod corpus;

use std::collections::BTreeSet;
use std::path::Path;

use corpus::Verdict;
use kinds::validate::Installation;
use serde_json::Value;

const HERE: Installation<'_> = Installation {
    namespace: "tollgate",
    behavior_modeling: true,
};

fn manifests() -> Vec<corpus::Manifest> {
    corpus::read(Path::new(env!("CARGO_MANIFEST_DIR")))
}

#[test]
fn each_manifest_is_taken_or_refused_and_loads_as_it_says() {
    let all = manifests();
    let mut differences = Vec::new();
    for one in &all {
        let refusals = corpus::refusals(&one.object, HERE);
        differences.extend(one.server.difference(&one.name, &refusals));
        if one.server == Verdict::Taken {
            let problems = corpus::load_problems(&one.object);
            assert_eq!(
                problems.is_none(),
                one.loads == Verdict::None,
                "{}",
                one.name
            );
            // None is expected here, which was just asserted.
            let problems = problems.unwrap_or_default();
            differences.extend(one.loads.difference(&one.name, &problems));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
    let taken = all
        .iter()
        .filter(|one| one.server == Verdict::Taken)
        .count();
    assert!(
        taken >= 20 && all.len() - taken >= 12,
        "{taken} of {}",
        all.len()
    );
}

/// Fields that no manifest has to have: only the status subresource takes a status. The type of `data.profile` is that of an
/// ArmorProfile.
const LEFT_OUT: [&str; 5] = [
    ".apiVersion",
    ".kind",
    ".metadata",
    ".status",
    ".data.profile",
];

/// The paths of all fields of a schema.
fn fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let items = schema.get("items").unwrap_or(schema);
    for (key, field) in items["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        if !LEFT_OUT.contains(&path.as_str()) {
            found.insert(path.clone());
            fields(field, &path, found);
        }
    }
}

/// The paths of an object that its schema knows.
fn used(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    found.insert(path.to_owned());
    for one in value.as_array().into_iter().flatten() {
        used(one, path, found);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        used(value, &format!("{path}.{key}"), found);
    }
}

#[test]
fn the_manifests_that_are_taken_have_every_field_of_the_four_kinds() {
    let all = manifests();
    let policies: &[&str] = &["VarmorPolicy", "VarmorClusterPolicy"];
    // Both kinds of policies have one schema.
    for kinds in [policies, &["ArmorProfile"], &["ArmorProfileModel"]] {
        let (mut wanted, mut found) = (BTreeSet::new(), BTreeSet::new());
        fields(&corpus::schema(kinds[0]), "", &mut wanted);
        let taken = all.iter().filter(|one| one.server == Verdict::Taken);
        for kind in kinds {
            let mut own = taken
                .clone()
                .filter(|one| one.object["kind"] == *kind)
                .peekable();
            assert!(own.peek().is_some(), "no {kind}");
            own.for_each(|one| used(&one.object, "", &mut found));
        }
        let missing: Vec<_> = wanted.difference(&found).collect();
        assert!(missing.is_empty(), "{}: {missing:#?}", kinds[0]);
    }
}
