use std::sync::Mutex;

use cluster::artifacts::AcceptedArtifact;
use serde_json::json;

use super::*;

/// An engine that opens no output of a text with the word `closed`.
#[derive(Default)]
struct Engine {
    tried: Mutex<Vec<AcceptedSources>>,
}

impl Detector for Engine {
    fn check(&self, _: &AcceptedSources) -> Result<(), Vec<Problem>> {
        Ok(())
    }

    fn replace(&self, sources: &AcceptedSources) -> Result<(), String> {
        self.tried.lock().expect("no panic").push(sources.clone());
        let mut texts = sources.artifacts.iter().flat_map(|one| &one.texts);
        match texts.any(|text| text.text.contains("closed")) {
            true => Err("cannot open it".to_owned()),
            false => Ok(()),
        }
    }

    fn figures(&self) -> DetectorFigures {
        DetectorFigures::default()
    }
}

/// What comes of these objects: kind, name and text.
fn wanted(objects: &[(ArtifactKind, &str, &str)], before: &AcceptedSources) -> Settled {
    let mut artifacts = Artifacts::default();
    artifacts.apply(ArtifactEvent::Labels(BTreeMap::new()));
    for (kind, name, text) in objects {
        let field = match kind {
            ArtifactKind::Rulesfile => "inlineRules",
            ArtifactKind::Config => "config",
        };
        let metadata = json!({ "name": name, "namespace": "tollgate" });
        let object = json!({ "metadata": metadata, "spec": { field: text } });
        artifacts.apply(ArtifactEvent::Object(*kind, object));
    }
    for kind in ArtifactKind::ALL {
        artifacts.apply(ArtifactEvent::Synced(kind));
    }
    let desired = artifacts.desired().expect("all is known");
    desired.settle(before, |_| Ok(()))
}

fn names(sources: &AcceptedSources) -> Vec<&str> {
    sources.artifacts.iter().map(|one| &*one.name).collect()
}

const RULES: (ArtifactKind, &str, &str) = (ArtifactKind::Rulesfile, "r", "rules");
const CLOSED: (ArtifactKind, &str, &str) = (ArtifactKind::Config, "c", "closed");

#[test]
fn a_config_whose_output_cannot_be_opened_keeps_no_rules_out_of_force() {
    let (engine, before) = (Engine::default(), AcceptedSources::default());
    let (settled, is_whole) = put_in_force(&engine, &before, wanted(&[RULES, CLOSED], &before));
    assert!(!is_whole && settled.unusable.is_none());
    assert_eq!(names(&settled.accepted), ["r"]);
    let of = |name: &str| {
        settled
            .states
            .iter()
            .find(|state| state.id.key.name == name)
    };
    let cause = of("c").and_then(|state| state.problem.clone());
    assert_eq!(
        cause.map(|one| one.message).as_deref(),
        Some("cannot open it")
    );
    assert_eq!(of("r").and_then(|state| state.problem.clone()), None);
    // The same is tried again, and changes nothing.
    let before = settled.accepted;
    let (settled, is_whole) = put_in_force(&engine, &before, wanted(&[RULES, CLOSED], &before));
    assert!(!is_whole && settled.accepted == before);
    assert_eq!(engine.tried.lock().expect("no panic").len(), 3);
}

#[test]
fn what_rules_alone_cannot_bring_into_force_stays_as_it_was() {
    let (engine, before) = (Engine::default(), AcceptedSources::default());
    let closed = (ArtifactKind::Rulesfile, "r", "closed");
    let (settled, is_whole) = put_in_force(&engine, &before, wanted(&[closed, CLOSED], &before));
    assert!(!is_whole && settled.accepted == before);
    assert!(settled.states.iter().all(|state| state.problem.is_some()));
    assert_eq!(settled.unusable.as_deref(), Some("cannot open it"));
    let (settled, is_whole) = put_in_force(&engine, &before, wanted(&[RULES], &before));
    assert!(is_whole && settled.accepted.artifacts.len() == 1);
    let kinds = settled.accepted.artifacts.iter();
    let rules = |one: &AcceptedArtifact| one.kind == ArtifactKind::Rulesfile;
    assert!(kinds.into_iter().all(rules));
}

#[test]
fn only_answers_about_one_object_are_taken_for_one() {
    for code in [400, 403, 404, 410, 422] {
        assert!(is_about_object(Some(code)), "{code}");
    }
    for code in [401, 429, 500, 503] {
        assert!(!is_about_object(Some(code)), "{code}");
    }
    assert!(!is_about_object(None));
}
