//! Bundles and roll-outs.

use super::*;
use labels::{Labels, Selector};

use crate::bundles::{
    Assigned, Assignment, BundleId, BundleReport, Gate, NewBundle, Rollout, Target, ranked,
};

for_each_database! {
    a_bundle_is_kept_once_and_assigned_with_the_one_before,
    a_bundle_that_was_not_found_good_is_none_to_go_back_to,
    a_roll_out_counts_what_its_agents_report,
    a_halted_roll_out_stays_so_until_it_is_changed,
    an_agent_does_not_fill_the_audit_log,
    roll_outs_of_one_class_are_for_the_agents_that_their_selectors_match,
    a_roll_out_counts_the_agents_that_its_selector_matches,
    roll_outs_of_the_same_rank_are_a_conflict_unless_no_agent_can_match_both,
    labels_that_change_are_recorded_once_a_minute,
}

fn bundle(store: &dyn Store, version: u64) -> BundleId {
    let bundle = NewBundle {
        version,
        digest: format!("d{version}"),
        key: "tgk_x".to_owned(),
        text: format!("text {version}"),
        actor: "ann".to_owned(),
    };
    store.add_bundle(bundle).expect("it is kept")
}

fn assign(store: &dyn Store, bundle: BundleId, percent: u8, gate: Gate) -> bool {
    let assignment = Assignment {
        target: web(),
        priority: 0,
        bundle,
        percent,
        gate,
        actor: "ann".to_owned(),
    };
    store.assign(assignment).expect("writable") == Assigned::Done
}

fn web() -> Target {
    Target::class("web")
}

/// Agents of the class `web` that this selector matches.
fn target(selector: &str) -> Target {
    Target {
        selector: Selector::parse(selector).expect(selector),
        ..web()
    }
}

/// Assigns a bundle to all agents that a selector matches.
fn assign_to(store: &dyn Store, selector: &str, priority: i32, bundle: BundleId) -> Assigned {
    let assignment = Assignment {
        target: target(selector),
        priority,
        bundle,
        percent: 100,
        gate: Gate::default(),
        actor: "ann".to_owned(),
    };
    store.assign(assignment).expect("writable")
}

fn rollout(store: &dyn Store) -> Rollout {
    let rollouts = store.rollouts().expect("readable");
    assert_eq!(rollouts.len(), 1);
    rollouts[0].clone()
}

fn report(refused: Option<&str>) -> BundleReport {
    BundleReport {
        digest: "d1".to_owned(),
        refused: refused.map(str::to_owned),
    }
}

fn versions(rollout: &Rollout) -> (u64, Option<u64>) {
    let previous = rollout.previous.as_ref().map(|it| it.version);
    (rollout.bundle.version, previous)
}

fn a_bundle_is_kept_once_and_assigned_with_the_one_before(fixture: &Fixture) {
    let store = &*fixture.store;
    let (first, second) = (bundle(store, 1), bundle(store, 2));
    assert_eq!(bundle(store, 1), first);
    assert_eq!(store.bundles().expect("readable").len(), 2);
    let text = store.bundle_text(second).expect("readable");
    assert_eq!(text.as_deref(), Some("text 2"));
    assert!(!assign(store, BundleId(99), 10, Gate::default()));
    assert!(assign(store, first, 100, Gate::default()));
    assert!(
        !store.roll_back(&web(), "ann").expect("writable"),
        "nothing was before"
    );
    assert!(assign(store, second, 10, Gate::default()));
    assert_eq!(versions(&rollout(store)), (2, Some(1)));
    // Of the same bundle, to more agents.
    assert!(assign(store, second, 100, Gate::default()));
    assert_eq!(versions(&rollout(store)), (2, Some(1)));
    assert_eq!(rollout(store).percent, 100);
    assert!(store.roll_back(&web(), "ben").expect("writable"));
    assert_eq!(versions(&rollout(store)), (1, Some(2)));
    assert!(
        !store
            .roll_back(&Target::class("db"), "ben")
            .expect("writable")
    );
    let (of_agent, _) = store.rollouts_of(fixture.agent).expect("readable");
    assert_eq!((of_agent.len(), versions(&of_agent[0])), (1, (1, Some(2))));
    let (of_nobody, labels) = store.rollouts_of(AgentId(99)).expect("readable");
    assert!(of_nobody.is_empty() && labels.is_empty());
    let audit = store.audit(10).expect("readable");
    let actions: Vec<_> = audit
        .iter()
        .map(|entry| (&*entry.actor, &*entry.action))
        .collect();
    assert_eq!(
        actions[..3],
        [
            ("ben", "roll back bundle"),
            ("ann", "assign bundle"),
            ("ann", "assign bundle")
        ]
    );
}

fn a_bundle_that_was_not_found_good_is_none_to_go_back_to(fixture: &Fixture) {
    let store = &*fixture.store;
    let [good, halted, partial, last] = [1, 2, 3, 4].map(|version| bundle(store, version));
    assign(store, good, 100, Gate::default());
    assign(store, halted, 10, Gate::default());
    assert!(store.halt(&web(), halted, "why").expect("writable"));
    // The other nine tenths must not get the halted one now.
    assign(store, partial, 10, Gate::default());
    assert_eq!(versions(&rollout(store)), (3, Some(1)));
    assign(store, last, 10, Gate::default());
    assert_eq!(versions(&rollout(store)), (4, Some(1)));
    assert!(store.roll_back(&web(), "ann").expect("writable"));
    assert_eq!(versions(&rollout(store)), (1, None));
    assign(store, last, 100, Gate::default());
    store.halt(&web(), last, "why").expect("writable");
    assign(store, partial, 100, Gate::default());
    assert_eq!(versions(&rollout(store)), (3, Some(1)));
    // A bundle is not the one before itself.
    store.halt(&web(), partial, "why").expect("writable");
    assign(store, good, 100, Gate::default());
    assert_eq!(versions(&rollout(store)), (1, None));
    assign(store, partial, 100, Gate::default());
    assert_eq!(versions(&rollout(store)), (3, Some(1)));
}

fn a_roll_out_counts_what_its_agents_report(fixture: &Fixture) {
    let store = &*fixture.store;
    assign(store, bundle(store, 1), 100, Gate::default());
    let health = || rollout(store).health;
    assert_eq!((health().agents, health().in_force), (1, 0));
    send(fixture, Some(1), vec![alert(1, "r", "m")]);
    assert!(
        store
            .note_bundle(fixture.agent, report(None))
            .expect("writable")
    );
    assert!(
        !store
            .note_bundle(fixture.agent, report(None))
            .expect("writable"),
        "it is known"
    );
    assert_eq!((health().in_force, health().records), (1, 0));
    // What came before the bundle is not counted against it.
    let loss = |time_ns| {
        Record::Loss(Loss {
            time_ns,
            kind: LossKind::DroppedEvents,
            count: 7,
            detail: String::new(),
        })
    };
    let batch = Batch {
        sender: fixture.agent,
        first: Some(2),
        records: vec![loss(1), loss(now_ns() + HOUR)],
        received_ns: 7,
    };
    append(store, batch).expect("it is stored");
    assert_eq!((health().records, health().losses), (2, 7));
    let gate = |losses, alerts| Gate {
        losses,
        alerts,
        failures: None,
    };
    assert_eq!(health().problem(&gate(Some(7), Some(2))), None);
    let problem = health().problem(&gate(Some(6), None)).expect("too many");
    assert!(problem.contains("lost 7"), "{problem}");
    let problem = health().problem(&gate(None, Some(1))).expect("too many");
    assert!(problem.contains("2 alerts a minute"), "{problem}");
    assert!(
        store
            .note_bundle(fixture.agent, report(Some("why")))
            .expect("writable")
    );
    assert_eq!((health().in_force, health().refused), (0, 1));
}

fn a_halted_roll_out_stays_so_until_it_is_changed(fixture: &Fixture) {
    let store = &*fixture.store;
    let (first, second) = (bundle(store, 1), bundle(store, 2));
    let gate = Gate {
        failures: Some(0),
        ..Gate::default()
    };
    assign(store, first, 10, gate);
    store
        .note_bundle(fixture.agent, report(Some("why")))
        .expect("writable");
    let problem = rollout(store)
        .health
        .problem(&gate)
        .expect("an agent refused it");
    assert!(
        !store.halt(&web(), second, &problem).expect("writable"),
        "another one"
    );
    assert!(store.halt(&web(), first, &problem).expect("writable"));
    assert!(!store.halt(&web(), first, "again").expect("writable"));
    assert_eq!(
        rollout(store).halted.as_deref(),
        Some("agents that refused the bundle: 1")
    );
    // Whoever goes on knows of the refusals until then.
    assign(store, first, 20, gate);
    assert_eq!(
        (rollout(store).halted, rollout(store).health.refused),
        (None, 0)
    );
}

fn an_agent_does_not_fill_the_audit_log(fixture: &Fixture) {
    let store = &*fixture.store;
    assign(store, bundle(store, 1), 100, Gate::default());
    let note = |digest: &str, refused: Option<String>| {
        let digest = digest.to_owned();
        let report = BundleReport { digest, refused };
        store.note_bundle(fixture.agent, report).expect("writable")
    };
    let recorded = || -> Vec<_> {
        let audit = store.audit(1000).expect("readable");
        let of_agent = audit
            .iter()
            .filter(|entry| entry.actor.starts_with("agent "));
        of_agent.map(|entry| entry.action.clone()).collect()
    };
    assert!(!note("d7", None), "nobody knows that bundle");
    assert!(note("d1", None));
    for reason in 0..20 {
        assert!(note("d1", Some(reason.to_string())));
        assert!(note("d1", None));
    }
    assert_eq!(recorded(), ["refuse bundle", "take bundle"]);
    assert_eq!(rollout(store).health.in_force, 1);
    // What is in force now is another one.
    assert!(note("d7", None) && !note("d8", Some("why".to_owned())));
    assert_eq!((rollout(store).health.in_force, recorded().len()), (0, 2));
}

fn roll_outs_of_one_class_are_for_the_agents_that_their_selectors_match(fixture: &Fixture) {
    let store = &*fixture.store;
    let [all, db, zone] = [1, 2, 3].map(|version| bundle(store, version));
    assert_eq!(assign_to(store, "", 0, all), Assigned::Done);
    assert_eq!(assign_to(store, "tier=db", 0, db), Assigned::Done);
    assert_eq!(
        assign_to(store, "tier in (db), zone", 0, zone),
        Assigned::Done
    );
    let decide = |labels: &str| {
        let labels = Labels::parse(labels).expect("valid");
        store.set_labels(fixture.agent, &labels).expect("writable");
        let (rollouts, kept) = store.rollouts_of(fixture.agent).expect("readable");
        assert_eq!(kept, labels);
        let ranked = ranked(&rollouts, &labels).expect("it is decided");
        ranked
            .iter()
            .map(|it| it.bundle.version)
            .collect::<Vec<_>>()
    };
    assert_eq!(decide("tier=web"), [1]);
    assert_eq!(decide("tier=db,zone=b"), [3, 2, 1]);
    // The priority goes before the number of tests.
    assert_eq!(assign_to(store, "tier=db", 5, db), Assigned::Done);
    assert_eq!(decide("tier=db,zone=b"), [2, 3, 1]);
    assert!(store.halt(&target("tier=db"), db, "why").expect("writable"));
    let halted: Vec<_> = store
        .rollouts()
        .expect("readable")
        .into_iter()
        .map(|it| it.halted.is_some())
        .collect();
    assert_eq!(halted, [false, true, false]);
    assert!(
        store
            .unassign(&target("tier==db"), "ann")
            .expect("writable")
    );
    assert!(!store.unassign(&target("tier=db"), "ann").expect("writable"));
    assert_eq!(decide("tier=db,zone=b"), [3, 1]);
    let audit = store.audit(100).expect("readable");
    let has = |action: &str, object: &str| {
        audit
            .iter()
            .any(|it| it.action == action && it.object.contains(object))
    };
    assert!(
        has("end roll-out", "class web, selector tier=db") && has("halt roll-out", "tier=db: why")
    );
    assert!(
        has(
            "assign bundle",
            "100 % of class web, selector tier=db, priority 5"
        ),
        "{audit:?}"
    );
}

fn a_roll_out_counts_the_agents_that_its_selector_matches(fixture: &Fixture) {
    let store = &*fixture.store;
    let [all, db, zone] = [1, 2, 3].map(|version| bundle(store, version));
    let other = enrol(store, TokenId(1), 7, "other");
    for (selector, bundle) in [("", all), ("tier=db", db), ("tier=db,zone", zone)] {
        assert_eq!(assign_to(store, selector, 0, bundle), Assigned::Done);
    }
    let labels = Labels::parse("tier=db,zone=b").expect("valid");
    store.set_labels(fixture.agent, &labels).expect("writable");
    let counts = || -> Vec<_> {
        let rollouts = store.rollouts().expect("readable");
        let count = |it: &Rollout| {
            (
                it.target.selector.to_string(),
                it.health.agents,
                it.health.in_force,
            )
        };
        rollouts.iter().map(count).collect()
    };
    let in_force = |agent, digest: &str| {
        let report = BundleReport {
            digest: digest.to_owned(),
            refused: None,
        };
        assert!(store.note_bundle(agent, report).expect("writable"));
    };
    in_force(fixture.agent, "d2");
    in_force(other, "d2");
    let of = |selector: &str, agents, in_force| (selector.to_owned(), agents, in_force);
    // The other agent has the bundle, and is none of those that the selector matches.
    assert_eq!(
        counts(),
        [of("", 2, 0), of("tier=db", 1, 1), of("tier=db,zone", 1, 0)]
    );
}

fn roll_outs_of_the_same_rank_are_a_conflict_unless_no_agent_can_match_both(fixture: &Fixture) {
    let store = &*fixture.store;
    let (one, two) = (bundle(store, 1), bundle(store, 2));
    assert_eq!(assign_to(store, "tier=db", 0, one), Assigned::Done);
    assert_eq!(assign_to(store, "tier=web", 0, two), Assigned::Done);
    let conflict = Assigned::Conflict(target("tier=db"));
    assert_eq!(assign_to(store, "zone=b", 0, two), conflict);
    assert_eq!(
        assign_to(store, "zone=b", 0, BundleId(99)),
        Assigned::UnknownBundle
    );
    assert_eq!(store.rollouts().expect("readable").len(), 2);
    assert_eq!(assign_to(store, "zone=b", 1, two), Assigned::Done);
    // The same selector in other words, and another class.
    assert_eq!(assign_to(store, "tier in (db)", 0, two), Assigned::Done);
    assert_eq!(assign_to(store, "zone=b", 0, two), conflict);
    let rollouts = store.rollouts().expect("readable");
    let same = [
        rollouts[0].clone(),
        Rollout {
            target: target("zone=b"),
            ..rollouts[0].clone()
        },
    ];
    let labels = Labels::parse("tier=db,zone=b").expect("valid");
    let error = ranked(&same, &labels)
        .expect_err("nobody can say")
        .to_string();
    assert!(
        error.contains("selector tier=db") && error.contains("selector zone=b"),
        "{error}"
    );
}

fn labels_that_change_are_recorded_once_a_minute(fixture: &Fixture) {
    let store = &*fixture.store;
    let set = |labels: &str| {
        let labels = Labels::parse(labels).expect("valid");
        store.set_labels(fixture.agent, &labels).expect("writable")
    };
    assert!(!set("") && set("tier=db") && !set("tier=db"));
    for n in 0..20 {
        assert!(set(&format!("tier=n{n}")));
    }
    let agents = store.agents().expect("readable");
    assert_eq!(agents[0].labels.to_string(), "tier=n19");
    let recorded = || -> Vec<_> {
        let audit = store.audit(1000).expect("readable");
        let changes = audit.iter().filter(|it| it.action == "change labels");
        changes.map(|it| it.object.clone()).collect()
    };
    assert!(!set("tier=n19"));
    assert_eq!(recorded(), ["tier=db"]);
    // Labels that were not recorded in the minute of their change are, as long as the agent has them.
    fixture.place.let_a_minute_pass();
    assert!(!set("tier=n19") && !set("tier=n19"));
    assert_eq!(recorded(), ["tier=n19", "tier=db"]);
    fixture.place.let_a_minute_pass();
    assert!(!set("tier=n19"));
    assert_eq!(recorded(), ["tier=n19", "tier=db"], "they did not change");
    assert!(set(""));
    assert_eq!(recorded()[0], "");
}
