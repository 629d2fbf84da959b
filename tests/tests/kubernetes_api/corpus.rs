//! The manifests of crate `kinds`, of every shape: an API server says of each what the library says without one.

use std::path::Path;

use apiserver::real::until;
use e2e::need_api_server;
use kinds::validate::Installation;
use serde_json::Value;

use super::installed::{Installed, NAMESPACE};

#[path = "../../../crates/kinds/tests/corpus/mod.rs"]
mod manifests;

use manifests::{Manifest, Verdict};

const HERE: Installation<'_> = Installation {
    namespace: NAMESPACE,
    behavior_modeling: true,
};

/// What the API server says of a manifest under strict validation, as a list like that of the library.
fn said(installed: &Installed, object: &Value) -> Vec<String> {
    let tried = installed.try_create(object);
    tried.err().iter().map(ToString::to_string).collect()
}

/// Both say the same of a manifest, and what it says itself.
fn compare(installed: &Installed, one: &Manifest) -> Option<String> {
    let offline = manifests::refusals(&one.object, HERE);
    if let Some(difference) = one.server.difference(&one.name, &offline) {
        return Some(difference);
    }
    // Policies of admission come into force some time after they were written.
    let settled = until(|| {
        let found = said(installed, &one.object);
        match found.is_empty() == offline.is_empty() {
            true => Ok(found),
            false => Err(format!("{}: {found:?}, and offline {offline:?}", one.name)),
        }
    });
    match settled {
        Ok(found) => one.server.difference(&one.name, &found),
        Err(difference) => Some(difference),
    }
}

#[test]
fn a_server_takes_and_refuses_the_manifests_that_the_library_takes_and_refuses() {
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/kinds");
    let all = manifests::read(&folder);
    let differences = all.iter().filter_map(|one| compare(&installed, one));
    let differences: Vec<String> = differences.collect();
    assert!(differences.is_empty(), "{differences:#?}");
    let policies = all.iter().filter(|one| one.loads != Verdict::None);
    let policies = policies.filter(|one| manifests::load_problems(&one.object).is_some());
    assert!(policies.count() >= 15);
    println!("{} manifests", all.len());
}
