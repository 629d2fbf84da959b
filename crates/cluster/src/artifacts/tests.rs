use proptest::prelude::*;
use serde_json::json;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "tollgate".to_owned(),
        name: name.to_owned(),
    }
}

fn id(kind: ArtifactKind, name: &str) -> ArtifactId {
    ArtifactId {
        kind,
        key: key(name),
    }
}

fn object(kind: ArtifactKind, name: &str, spec: Value) -> ArtifactEvent {
    let metadata = json!({ "name": name, "namespace": "tollgate", "generation": 3 });
    ArtifactEvent::Object(kind, json!({ "metadata": metadata, "spec": spec }))
}

fn rules(name: &str, spec: Value) -> ArtifactEvent {
    object(ArtifactKind::Rulesfile, name, spec)
}

fn labels(pairs: &[(&str, &str)]) -> ArtifactEvent {
    let pairs = pairs.iter();
    let labels = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ArtifactEvent::Labels(labels.collect())
}

fn map(name: &str, pairs: &[(&str, &str)]) -> ArtifactEvent {
    let ArtifactEvent::Labels(data) = labels(pairs) else {
        unreachable!("labels are labels")
    };
    ArtifactEvent::ConfigMap(name.to_owned(), Some(data))
}

/// A node with the label `pool=web` that knows all objects.
fn node(events: Vec<ArtifactEvent>) -> Artifacts {
    let mut artifacts = Artifacts::default();
    artifacts.apply(labels(&[("pool", "web")]));
    events.into_iter().for_each(|event| artifacts.apply(event));
    for kind in ArtifactKind::ALL {
        artifacts.apply(ArtifactEvent::Synced(kind));
    }
    artifacts
}

/// A compiler to which a text is wrong that has the word `bad`, and one that has `uses X` without a text that has `has X`.
fn compile(sources: &AcceptedSources) -> Result<(), Vec<Problem>> {
    let texts = sources.texts(ArtifactKind::Rulesfile);
    let has = |word: &str| {
        texts
            .iter()
            .any(|text| text.text.contains(&format!("has {word}")))
    };
    let problem = |text: &&&SourceText| {
        let used = text.text.split("uses ").nth(1);
        text.text.contains("bad") || used.is_some_and(|word| !has(word.trim_end()))
    };
    let problems = texts.iter().filter(problem).map(|text| Problem {
        text: Some(text.name.clone()),
        message: format!("{}: it is wrong", text.name),
    });
    let problems: Vec<_> = problems.collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems),
    }
}

fn text_of(sources: &AcceptedSources) -> Vec<String> {
    let texts = sources.texts(ArtifactKind::Rulesfile);
    texts.iter().map(|text| text.text.clone()).collect()
}

fn settle(artifacts: &Artifacts, before: &AcceptedSources) -> Settled {
    artifacts.desired().unwrap().settle(before, compile)
}

#[test]
fn texts_are_loaded_by_priority_then_config_maps_then_names() {
    let both = json!({ "inlineRules": "inline b", "configMapRef": { "name": "m" } });
    let artifacts = node(vec![
        rules("b", both),
        rules("a", json!({ "inlineRules": "inline a" })),
        rules("z", json!({ "inlineRules": "first", "priority": 7 })),
        rules("c", json!({ "inlineRules": "last", "priority": 99 })),
        map("m", &[("rules.yaml", "map b")]),
    ]);
    let settled = settle(&artifacts, &AcceptedSources::default());
    assert_eq!(
        text_of(&settled.accepted),
        ["first", "map b", "inline a", "inline b", "last"]
    );
    assert!(settled.states.iter().all(|state| state.problem.is_none()));
    let names = settled.accepted.texts(ArtifactKind::Rulesfile);
    assert_eq!(names[1].name, "Rulesfile:tollgate/b:configMapRef");
}

#[test]
fn a_structure_becomes_yaml_and_a_selector_counts() {
    let rule = json!([{ "rule": "R", "condition": "evt.type = open\n  and fd.name = \"/a: b\"" }]);
    let other = json!({ "inlineRules": "x", "selector": { "matchLabels": { "pool": "db" } } });
    let own = json!({ "inlineRules": rule, "selector": { "matchExpressions":
        [{ "key": "pool", "operator": "In", "values": ["web"] }] } });
    let mut artifacts = node(vec![rules("other", other), rules("own", own)]);
    let desired = artifacts.desired().unwrap();
    assert_eq!(desired.artifacts.len(), 1);
    let texts = desired.artifacts[0].texts.as_ref().unwrap();
    assert!(
        texts[0].text.starts_with("---\n- rule: R\n  condition: "),
        "{}",
        texts[0].text
    );
    artifacts.apply(labels(&[("pool", "db")]));
    let desired = artifacts.desired().unwrap();
    assert_eq!(
        desired.artifacts[0].id,
        id(ArtifactKind::Rulesfile, "other")
    );
}

#[test]
fn what_is_not_known_is_not_taken_for_nothing() {
    let mut artifacts = Artifacts::default();
    artifacts.apply(ArtifactEvent::Synced(ArtifactKind::Rulesfile));
    artifacts.apply(labels(&[]));
    assert_eq!(artifacts.desired(), None, "the Configs are not known");
    artifacts.apply(ArtifactEvent::Synced(ArtifactKind::Config));
    assert_eq!(artifacts.desired(), Some(Desired::default()));
    artifacts.apply(rules("a", json!({ "configMapRef": { "name": "m" } })));
    assert_eq!(artifacts.config_maps(), BTreeSet::from(["m"]));
    assert_eq!(artifacts.desired(), None, "the ConfigMap is not known");
    artifacts.apply(ArtifactEvent::ConfigMap("m".to_owned(), None));
    let refusal = artifacts.desired().unwrap().artifacts[0]
        .texts
        .clone()
        .unwrap_err();
    assert_eq!(
        refusal,
        Refusal::unresolved("there is no ConfigMap `m`".to_owned())
    );
}

#[test]
fn each_mistake_in_an_object_is_its_own() {
    let oci = json!({ "ociArtifact": { "image": { "repository": "falcosecurity/rules" } } });
    for (spec, expected) in [
        (oci, "`ociArtifact` (falcosecurity/rules) is not supported"),
        (
            json!({ "inlineRules": { "rule": "R" } }),
            "`inlineRules` has to be a list of rules",
        ),
        (
            json!({ "inlineRules": "x", "priority": 100 }),
            "the priority 100 is not between 0 and 99",
        ),
        (
            json!({ "inlineRules": "x", "priority": -1 }),
            "invalid value",
        ),
        (
            json!({ "inlineRules": "x", "selector": { "matchExpressions": [{ "key": "k", "operator": "Like" }] } }),
            "unknown variant `Like`",
        ),
        (
            json!({ "configMapRef": { "name": "" } }),
            "`` cannot be the name of a ConfigMap",
        ),
        (
            json!({ "configMapRef": { "name": "../secrets/x" } }),
            "`../secrets/x` cannot be the name of a ConfigMap",
        ),
        (
            json!({ "configMapRef": { "name": "denied" } }),
            "the ConfigMap `denied` cannot be read: forbidden",
        ),
        (
            json!({ "configMapRef": { "name": "m" } }),
            "the ConfigMap `m` has no key `rules.yaml`",
        ),
    ] {
        let artifacts = node(vec![
            rules("a", spec),
            rules("b", json!({ "inlineRules": "good" })),
            map("m", &[("config.yaml", "x")]),
            ArtifactEvent::UnreadableConfigMap("denied".to_owned(), "forbidden".to_owned()),
        ]);
        let settled = settle(&artifacts, &AcceptedSources::default());
        let refusal = settled.states[0].problem.clone().unwrap();
        assert!(
            refusal.message.contains(expected),
            "{expected}: {}",
            refusal.message
        );
        assert_eq!(text_of(&settled.accepted), ["good"], "{expected}");
        assert_eq!(settled.states[1].problem, None, "{expected}");
    }
    let config = object(ArtifactKind::Config, "c", json!({ "config": ["x"] }));
    let settled = settle(&node(vec![config]), &AcceptedSources::default());
    let refusal = settled.states[0].problem.clone().unwrap();
    assert_eq!(refusal.message, "`config` has to be a group of settings");
}

#[test]
fn a_wrong_version_keeps_the_last_good_one_and_harms_no_other() {
    let mut artifacts = node(vec![
        rules("a", json!({ "inlineRules": "a1" })),
        rules("b", json!({ "inlineRules": "b1" })),
    ]);
    let first = settle(&artifacts, &AcceptedSources::default()).accepted;
    for wrong in [json!({ "inlineRules": "bad" }), json!({ "inlineRules": 7 })] {
        artifacts.apply(rules("a", wrong));
        artifacts.apply(rules("b", json!({ "inlineRules": "b2" })));
        let settled = settle(&artifacts, &first);
        assert_eq!(text_of(&settled.accepted), ["a1", "b2"]);
        assert!(settled.states[0].problem.is_some() && settled.states[0].is_earlier_in_force);
        assert_eq!(settled.states[1].problem, None);
        assert_eq!(settled.unusable, None);
    }
    // One that never was good is left out.
    artifacts.apply(rules("c", json!({ "inlineRules": "bad" })));
    let settled = settle(&artifacts, &first);
    assert!(!settled.states[2].is_earlier_in_force && settled.states[2].problem.is_some());
    assert_eq!(text_of(&settled.accepted), ["a1", "b2"]);
}

#[test]
fn a_change_that_breaks_another_object_waits() {
    let mut artifacts = node(vec![
        rules("a", json!({ "inlineRules": "has macro" })),
        rules("b", json!({ "inlineRules": "uses macro" })),
    ]);
    let first = settle(&artifacts, &AcceptedSources::default()).accepted;
    let name = id(ArtifactKind::Rulesfile, "a");
    artifacts.apply(ArtifactEvent::Gone(name.clone()));
    let settled = settle(&artifacts, &first);
    assert_eq!(text_of(&settled.accepted), ["has macro", "uses macro"]);
    assert_eq!(settled.kept, [name]);
    artifacts.apply(ArtifactEvent::Gone(id(ArtifactKind::Rulesfile, "b")));
    let settled = settle(&artifacts, &first);
    assert_eq!((text_of(&settled.accepted), settled.kept), (vec![], vec![]));
}

#[test]
fn what_no_compiler_takes_any_more_is_left_out() {
    let artifacts = node(vec![
        rules("a", json!({ "inlineRules": "bad" })),
        rules("b", json!({ "inlineRules": "b1" })),
    ]);
    let before = artifacts
        .desired()
        .unwrap()
        .settle(&AcceptedSources::default(), |_| Ok(()));
    let settled = settle(&artifacts, &before.accepted);
    assert_eq!(text_of(&settled.accepted), ["b1"]);
    assert!(settled.states[0].problem.is_some() && !settled.states[0].is_earlier_in_force);
}

#[test]
fn a_failure_to_put_sources_in_force_is_a_problem_of_what_changed() {
    let mut artifacts = node(vec![rules("a", json!({ "inlineRules": "a1" }))]);
    let before = settle(&artifacts, &AcceptedSources::default()).accepted;
    artifacts.apply(rules("b", json!({ "inlineRules": "b1" })));
    let settled = settle(&artifacts, &before).refused(&before, "the disk is full");
    assert_eq!(settled.accepted, before);
    assert_eq!(settled.states[0].problem, None);
    let refusal = settled.states[1].problem.clone().unwrap();
    assert_eq!(refusal.message, "the disk is full");
}

#[test]
fn a_config_map_that_cannot_be_read_any_more_keeps_its_last_text() {
    let reference = json!({ "configMapRef": { "name": "m.x-1" } });
    let mut artifacts = node(vec![
        rules("a", reference),
        map("m.x-1", &[("rules.yaml", "a1")]),
    ]);
    let first = settle(&artifacts, &AcceptedSources::default()).accepted;
    let unreadable = ArtifactEvent::UnreadableConfigMap("m.x-1".to_owned(), "no".to_owned());
    artifacts.apply(unreadable);
    artifacts.apply(rules("b", json!({ "inlineRules": "b1" })));
    let settled = settle(&artifacts, &first);
    assert_eq!(text_of(&settled.accepted), ["a1", "b1"]);
    let state = &settled.states[0];
    assert!(state.is_earlier_in_force && state.problem.as_ref().unwrap().is_unresolved);
}

#[test]
fn a_config_that_cannot_be_put_in_force_takes_no_rules_with_it() {
    let config = |text: &str| object(ArtifactKind::Config, "c", json!({ "config": text }));
    let gone = object(ArtifactKind::Config, "gone", json!({ "config": "g" }));
    let mut artifacts = node(vec![
        rules("a", json!({ "inlineRules": "a1" })),
        config("c1"),
        gone,
    ]);
    let before = settle(&artifacts, &AcceptedSources::default()).accepted;
    artifacts.apply(rules("a", json!({ "inlineRules": "a2" })));
    let only_rules = settle(&artifacts, &before);
    assert_eq!(only_rules.without_changed_configs(&before, "no"), None);
    artifacts.apply(config("c2"));
    artifacts.apply(object(
        ArtifactKind::Config,
        "new",
        json!({ "config": "n" }),
    ));
    artifacts.apply(ArtifactEvent::Gone(id(ArtifactKind::Config, "gone")));
    let settled = settle(&artifacts, &before);
    let rest = settled.without_changed_configs(&before, "no").unwrap();
    assert_eq!(text_of(&rest.accepted), ["a2"]);
    let configs = |sources: &AcceptedSources| {
        let texts = sources.texts(ArtifactKind::Config).into_iter();
        texts.map(|text| text.text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(configs(&rest.accepted), ["c1", "g"]);
    assert_eq!(rest.kept, [id(ArtifactKind::Config, "gone")]);
    let said = |state: &ArtifactState| {
        let message = state.problem.as_ref().map(|one| one.message.clone());
        (
            state.id.key.name.clone(),
            message,
            state.is_earlier_in_force,
        )
    };
    let no = || Some("no".to_owned());
    let expected = [
        ("a".to_owned(), None, false),
        ("c".to_owned(), no(), true),
        ("new".to_owned(), no(), false),
    ];
    assert_eq!(rest.states.iter().map(said).collect::<Vec<_>>(), expected);
}

#[test]
fn stored_sources_lose_only_what_no_longer_compiles() {
    let artifacts = node(vec![
        rules("a", json!({ "inlineRules": "bad" })),
        rules("b", json!({ "inlineRules": "b1" })),
        object(ArtifactKind::Config, "c", json!({ "config": "c1" })),
    ]);
    let stored = artifacts
        .desired()
        .unwrap()
        .settle(&AcceptedSources::default(), |_| Ok(()))
        .accepted;
    let settled = stored.settle_again(compile);
    assert_eq!(text_of(&settled.accepted), ["b1"]);
    assert_eq!(settled.accepted.artifacts.len(), 2, "the Config stays");
    assert!(settled.states[0].problem.is_some() && settled.states[1].problem.is_none());
    let left = stored.without(ArtifactKind::Config).artifacts;
    assert!(left.iter().all(|one| one.kind == ArtifactKind::Rulesfile));
}

/// What an object of a generated history says.
fn spec(number: u8) -> Value {
    match number {
        0 => json!({ "inlineRules": "has macro", "priority": 20 }),
        1 => json!({ "inlineRules": "uses macro" }),
        2 => json!({ "inlineRules": "bad" }),
        3 => json!({ "configMapRef": { "name": "m" }, "inlineRules": "good" }),
        4 => json!({ "inlineRules": "other", "selector": { "matchLabels": { "pool": "web" } } }),
        _ => json!({ "inlineRules": 7 }),
    }
}

/// The object of a change, by number, and the event.
fn change() -> impl Strategy<Value = (usize, ArtifactEvent)> {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let kind = ArtifactKind::Rulesfile;
    prop_oneof![
        4 => (0..3_usize, 0..6_u8).prop_map(|(index, number)| (index, rules(NAMES[index], spec(number)))),
        1 => (0..3_usize).prop_map(move |index| (index, ArtifactEvent::Gone(id(kind, NAMES[index])))),
        1 => prop::option::of("[ab]").prop_map(|text| (3, match text {
            None => ArtifactEvent::ConfigMap("m".to_owned(), None),
            Some(text) => map("m", &[("rules.yaml", &text)]),
        })),
        1 => prop::sample::select(vec!["web", "db"]).prop_map(|pool| (4, labels(&[("pool", pool)]))),
        1 => Just((5, ArtifactEvent::Synced(kind))),
    ]
}

proptest! {
    #[test]
    fn any_order_that_keeps_that_of_each_object_gives_the_same(
        (changes, order) in prop::collection::vec(change(), 0..24)
            .prop_flat_map(|changes| { let count = changes.len(); (Just(changes), prop::collection::vec(any::<u32>(), count)) })
    ) {
        let mut straight = node(Vec::new());
        changes.iter().for_each(|(_, event)| straight.apply(event.clone()));
        // Objects are drawn in another order; each gives its changes in its own.
        let mut queues: BTreeMap<usize, Vec<&ArtifactEvent>> = BTreeMap::new();
        for (object, event) in changes.iter().rev() {
            queues.entry(*object).or_default().push(event);
        }
        let mut other = node(Vec::new());
        for draw in order {
            let objects: Vec<usize> = queues.keys().copied().collect();
            let object = objects[draw as usize % objects.len()];
            let queue = queues.get_mut(&object).unwrap();
            other.apply(queue.pop().unwrap().clone());
            if queue.is_empty() {
                queues.remove(&object);
            }
        }
        prop_assert_eq!(straight.desired(), other.desired());
    }

    #[test]
    fn what_is_accepted_compiles_and_no_object_in_force_is_lost_to_a_wrong_version(
        changes in prop::collection::vec(change(), 0..24)
    ) {
        let mut artifacts = node(Vec::new());
        let mut before = AcceptedSources::default();
        for (_, event) in changes {
            artifacts.apply(event);
            let Some(desired) = artifacts.desired() else { continue };
            let settled = desired.settle(&before, compile);
            prop_assert_eq!(compile(&settled.accepted), Ok(()));
            prop_assert_eq!(&settled.unusable, &None);
            let has = |sources: &AcceptedSources, id: &ArtifactId| sources.artifacts.iter().any(|one| one.id() == *id);
            for state in &settled.states {
                let is_in_force = has(&settled.accepted, &state.id);
                prop_assert_eq!(is_in_force, state.problem.is_none() || state.is_earlier_in_force);
                prop_assert!(is_in_force || !has(&before, &state.id));
            }
            // Nothing changes a second time.
            let again = desired.settle(&settled.accepted, compile);
            prop_assert_eq!(&again.accepted, &settled.accepted);
            before = settled.accepted;
        }
    }
}
