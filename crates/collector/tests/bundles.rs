//! Roll-outs over the interface of agents, and the page.

mod started;

use collector::add_user;
use serde_json::{Value, json};
use store::{Assigned, Assignment, BundleId, Gate, NewBundle, Scope, Target};
use ureq::Agent;

use self::started::Started;

const PASSWORD: &str = "correct horse battery";

/// Agents of the class, enough for a tenth of them to be some.
const AGENTS: usize = 60;

struct Fixture {
    started: Started,
    /// Secrets of agents.
    agents: Vec<String>,
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    let (_, token) = started.token(Scope::Agents("web".to_owned()));
    let mut fixture = Fixture {
        started,
        agents: Vec::new(),
    };
    for _ in 0..AGENTS {
        let body = json!({"host": "h"});
        let (status, answer) = fixture.ask("POST", "/api/v1/agents", &token, &body);
        assert_eq!(status, 201);
        let secret = answer["secret"].as_str().expect("a secret");
        fixture.agents.push(secret.to_owned());
    }
    fixture
}

fn digest(version: u64) -> String {
    format!("{version:064x}")
}

fn client() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .build()
        .new_agent()
}

impl Fixture {
    fn ask(&self, method: &str, path: &str, secret: &str, body: &Value) -> (u16, Value) {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.started.address))
            .header("Authorization", format!("Bearer {secret}"))
            .body(body.to_string())
            .expect("a request");
        let mut answer = client().run(request).expect("it answers");
        let text = answer.body_mut().read_to_string().expect("text");
        let value = serde_json::from_str(&text).expect("JSON");
        (answer.status().as_u16(), value)
    }

    /// Shows a sign of life of an agent with what it says about its bundle, and returns which one it is to have.
    fn live(&self, agent: usize, bundle: &Value) -> Option<String> {
        let body = json!({"bundle": bundle});
        let (status, answer) = self.ask("PUT", "/api/v1/inventory", &self.agents[agent], &body);
        assert_eq!(status, 200, "{answer}");
        answer["bundle"].as_str().map(str::to_owned)
    }

    /// Returns the agents that are to have this bundle.
    fn offered(&self, digest: &str) -> Vec<usize> {
        let none = json!({"digest": null, "refused": null});
        let is_offered = |agent: &usize| self.live(*agent, &none).as_deref() == Some(digest);
        (0..AGENTS).filter(is_offered).collect()
    }

    fn bundle(&self, version: u64) -> BundleId {
        let bundle = NewBundle {
            version,
            digest: digest(version),
            key: "tgk_x".to_owned(),
            text: format!("text {version}"),
            actor: "test".to_owned(),
        };
        self.started.store.add_bundle(bundle).expect("writable")
    }

    fn assign(&self, bundle: BundleId, percent: u8) {
        self.assign_to("", bundle, percent);
    }

    /// Assigns a bundle to a part of the agents that a selector matches.
    fn assign_to(&self, selector: &str, bundle: BundleId, percent: u8) {
        let assignment = Assignment {
            target: Target {
                selector: selector.parse().expect("a selector"),
                ..Target::class("web")
            },
            priority: 0,
            bundle,
            percent,
            gate: Gate {
                failures: Some(0),
                ..Gate::default()
            },
            actor: "test".to_owned(),
        };
        let assigned = self.started.store.assign(assignment).expect("writable");
        assert_eq!(assigned, Assigned::Done);
    }
}

#[test]
fn a_bundle_goes_to_a_part_of_the_agents_and_then_to_all() {
    let fixture = fixture();
    assert!(fixture.offered(&digest(1)).is_empty());
    fixture.assign(fixture.bundle(1), 100);
    assert_eq!(fixture.offered(&digest(1)).len(), AGENTS);
    let second = fixture.bundle(2);
    fixture.assign(second, 10);
    let tenth = fixture.offered(&digest(2));
    assert!((1..AGENTS / 3).contains(&tenth.len()), "{tenth:?}");
    assert_eq!(fixture.offered(&digest(1)).len(), AGENTS - tenth.len());
    assert_eq!(fixture.offered(&digest(2)), tenth);
    let (_, answer) = fixture.ask(
        "GET",
        "/api/v1/bundle",
        &fixture.agents[tenth[0]],
        &json!(null),
    );
    assert_eq!(answer["bundle"], "text 2");
    fixture.assign(second, 50);
    let half = fixture.offered(&digest(2));
    assert!(tenth.iter().all(|agent| half.contains(agent)) && half.len() > tenth.len());
    fixture.assign(second, 100);
    assert_eq!(fixture.offered(&digest(2)).len(), AGENTS);
    // An agent that pins no key is offered nothing.
    assert_eq!(fixture.live(0, &json!(null)), None);
}

#[test]
fn a_refusal_halts_the_roll_out_and_no_further_agent_gets_the_bundle() {
    let fixture = fixture();
    fixture.assign(fixture.bundle(1), 100);
    fixture.assign(fixture.bundle(2), 50);
    let half = fixture.offered(&digest(2));
    let (first, second) = (half[0], half[1]);
    let has_it = json!({"digest": digest(2), "refused": null});
    assert_eq!(fixture.live(first, &has_it).as_deref(), Some(&*digest(2)));
    let refuses = json!({"digest": digest(1), "refused": {"digest": digest(2), "reason": "the rules are wrong"}});
    assert_eq!(fixture.live(second, &refuses).as_deref(), Some(&*digest(1)));
    assert!(fixture.offered(&digest(2)).is_empty());
    // Who has it keeps it until someone rolls back.
    assert_eq!(fixture.live(first, &has_it).as_deref(), Some(&*digest(2)));
    let halted = fixture.started.store.rollouts().expect("readable")[0]
        .halted
        .clone();
    assert_eq!(halted.as_deref(), Some("agents that refused the bundle: 1"));
    let audit = fixture.started.store.audit(200).expect("readable");
    let refusal = audit.iter().find(|entry| entry.action == "refuse bundle");
    let refusal = refusal.expect("it is recorded");
    assert!(
        refusal.object.contains("the rules are wrong"),
        "{refusal:?}"
    );
    assert!(audit.iter().any(|entry| entry.action == "halt roll-out"));
}

/// Logs in and returns the cookie, and the token of forms.
fn browser(fixture: &Fixture, name: &str, role: Scope) -> (String, String, String) {
    add_user(&*fixture.started.store, (name, PASSWORD), role, "test").expect("it is added");
    let base = format!("http://{}", fixture.started.address);
    let login = client()
        .post(format!("{base}/login"))
        .send_form([("name", name), ("password", PASSWORD)])
        .expect("it answers");
    let cookie = login.headers()["set-cookie"].to_str().expect("text");
    let cookie = cookie.split(';').next().expect("one").to_owned();
    let page = client()
        .get(format!("{base}/rollouts"))
        .header("Cookie", &cookie)
        .call();
    let page = page
        .expect("it answers")
        .body_mut()
        .read_to_string()
        .expect("text");
    let token = page
        .split("name=\"token\" value=\"")
        .nth(1)
        .expect("a form");
    let token = token.split('"').next().expect("a value").to_owned();
    (cookie, token, page)
}

#[test]
fn an_operator_rolls_back_with_one_click_and_a_viewer_does_not() {
    let fixture = fixture();
    fixture.assign(fixture.bundle(1), 100);
    let second = fixture.bundle(2);
    fixture.assign(second, 10);
    let roll_back = |cookie: &str, token: &str| {
        let form = [
            ("token", token),
            ("class", "web"),
            ("selector", ""),
            ("bundle", &second.0.to_string()),
        ];
        let answer = client()
            .post(format!("http://{}/rollouts/back", fixture.started.address))
            .header("Cookie", cookie)
            .send_form(form);
        answer.expect("it answers").status().as_u16()
    };
    let (cookie, token, page) = browser(&fixture, "vic", Scope::Viewer);
    assert!(
        page.contains("version 2") && !page.contains("Roll back to"),
        "{page}"
    );
    assert_eq!(roll_back(&cookie, &token), 403);
    let (cookie, token, page) = browser(&fixture, "olga", Scope::Operator);
    assert!(
        page.contains("Roll back to 1") && page.contains("halts beyond 0 refusals"),
        "{page}"
    );
    assert_eq!(roll_back(&cookie, "wrong"), 403);
    assert_eq!(
        fixture.started.store.rollouts().expect("readable")[0]
            .bundle
            .version,
        2
    );
    assert_eq!(roll_back(&cookie, &token), 303);
    assert_eq!(fixture.offered(&digest(1)).len(), AGENTS);
    // A second click does not roll forward again.
    assert_eq!(roll_back(&cookie, &token), 409);
    assert_eq!(
        fixture.started.store.audit(1).expect("readable")[0].actor,
        "olga"
    );
}

#[test]
fn a_part_is_one_of_the_agents_that_a_selector_matches_and_labels_can_change() {
    let fixture = fixture();
    fixture.assign(fixture.bundle(1), 100);
    let second = fixture.bundle(2);
    let (none, tiers) = (json!({"digest": null, "refused": null}), ["db", "web"]);
    let live = |agent: usize, tier: &str| {
        let body = json!({"bundle": none, "labels": {"tier": tier}});
        let (status, answer) =
            fixture.ask("PUT", "/api/v1/inventory", &fixture.agents[agent], &body);
        assert_eq!(status, 200, "{answer}");
        answer["bundle"].as_str().map(str::to_owned)
    };
    let offered = || -> Vec<_> {
        let is_offered = |agent: &usize| live(*agent, tiers[agent % 2]) == Some(digest(2));
        (0..AGENTS).filter(is_offered).collect()
    };
    assert!(offered().is_empty());
    fixture.assign_to("tier=db", second, 40);
    let part = offered();
    // Every second agent matches.
    assert!((4..AGENTS / 2 - 4).contains(&part.len()), "{part:?}");
    assert!(part.iter().all(|agent| agent % 2 == 0), "{part:?}");
    let outside = (0..AGENTS).find(|agent| agent % 2 == 0 && !part.contains(agent));
    // The roll-out has no bundle before: those outside of the part have that of the whole class.
    assert_eq!(live(outside.expect("one"), "db"), Some(digest(1)));
    fixture.assign_to("tier in (db)", second, 100);
    assert_eq!(offered().len(), AGENTS / 2);
    assert_eq!(live(1, "db"), Some(digest(2)));
    assert_eq!(live(1, "web"), Some(digest(1)));
    let reader = reader(&fixture);
    let (_, answer) = fixture.ask("GET", "/api/v1/agents", &reader, &json!(null));
    let agents = answer["agents"].as_array().expect("agents");
    let of_db: Vec<_> = agents.iter().filter(|it| it["bundle"] == 2).collect();
    assert_eq!(of_db.len(), AGENTS / 2, "{answer}");
    for agent in of_db {
        assert_eq!(agent["labels"], json!({"tier": "db"}));
        assert_eq!(
            agent["bundle_why"],
            "class web, selector tier=db: in the 100 %"
        );
    }
    let (_, answer) = fixture.ask("GET", "/api/v1/rollouts", &reader, &json!(null));
    let rollout = &answer["rollouts"][1];
    assert_eq!(
        (&rollout["selector"], &rollout["agents"]),
        (&json!("tier=db"), &json!(AGENTS / 2))
    );
}

#[test]
fn labels_that_are_not_valid_are_refused_and_the_ones_before_stay() {
    let fixture = fixture();
    let put = |labels: Value| {
        let body = json!({"labels": labels});
        fixture.ask("PUT", "/api/v1/inventory", &fixture.agents[0], &body)
    };
    assert_eq!(put(json!({"tier": "db"})).0, 200);
    let many: Value = (0..33).map(|n| (format!("k{n}"), json!("v"))).collect();
    for bad in [
        json!({"tier": "<b>"}),
        json!({"tier": null}),
        json!(["tier"]),
        many,
    ] {
        let (status, answer) = put(bad);
        assert_eq!(status, 400, "{answer}");
        let error = answer["error"].as_str().expect("why");
        assert!(error.starts_with("the labels cannot be used: "), "{error}");
    }
    let labels = fixture.started.store.agents().expect("readable");
    let labels: Vec<_> = labels
        .iter()
        .map(|agent| agent.labels.to_string())
        .collect();
    assert_eq!(labels.iter().filter(|it| *it == "tier=db").count(), 1);
    // The page escapes what it shows, and shows labels and reasons.
    fixture.assign(fixture.bundle(1), 100);
    let has_key = json!({"bundle": {"digest": null, "refused": null}, "labels": {"tier": "db"}});
    fixture.ask("PUT", "/api/v1/inventory", &fixture.agents[0], &has_key);
    let (cookie, _, _) = browser(&fixture, "vic", Scope::Viewer);
    let page = client()
        .get(format!("http://{}/fleet", fixture.started.address))
        .header("Cookie", &cookie)
        .call()
        .expect("it answers")
        .body_mut()
        .read_to_string()
        .expect("text");
    assert!(
        page.contains("tier=db") && page.contains("class web: in the 100 %"),
        "{page}"
    );
}

/// Returns a token of a viewer.
fn reader(fixture: &Fixture) -> String {
    fixture.started.token(Scope::Viewer).1
}
