//! Roll-outs over the interface of agents, and the page.

use std::net::SocketAddr;
use std::sync::Arc;

use collector::{Collector, NewSecret, Settings, add_user};
use serde_json::{Value, json};
use serve::Address;
use store::{Assignment, BundleId, Gate, NewBundle, NewToken, Scope, SqliteStore, Store};
use ureq::Agent;

const PASSWORD: &str = "correct horse battery";

/// Agents of the class, enough for a tenth of them to be some.
const AGENTS: usize = 60;

struct Fixture {
    store: Arc<dyn Store>,
    address: SocketAddr,
    /// Secrets of agents.
    agents: Vec<String>,
    _collector: Collector,
    _folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let store = SqliteStore::open(&folder.path().join("s.db")).expect("a new store");
    let store: Arc<dyn Store> = store.into();
    let settings = Settings {
        listen: Address::Tcp("127.0.0.1:0".to_owned()),
        files: None,
        max_age: None,
        max_bytes: None,
        propose: None,
    };
    let collector = Collector::start(settings, Arc::clone(&store)).expect("a free port");
    let mut fixture = Fixture {
        store,
        address: collector.address().expect("a port"),
        agents: Vec::new(),
        _collector: collector,
        _folder: folder,
    };
    let secret = NewSecret::of_token().expect("random numbers");
    let token = NewToken {
        scope: Scope::Agents("web".to_owned()),
        hash: secret.hash,
        expires_ns: None,
        actor: "test".to_owned(),
    };
    fixture.store.create_token(token).expect("writable");
    for _ in 0..AGENTS {
        let body = json!({"host": "h"});
        let (status, answer) = fixture.ask("POST", "/api/v1/agents", &secret.text, &body);
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
            .uri(format!("http://{}{path}", self.address))
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
        self.store.add_bundle(bundle).expect("writable")
    }

    fn assign(&self, bundle: BundleId, percent: u8) {
        let assignment = Assignment {
            class: "web".to_owned(),
            bundle,
            percent,
            gate: Gate {
                failures: Some(0),
                ..Gate::default()
            },
            actor: "test".to_owned(),
        };
        assert!(self.store.assign(assignment).expect("writable"));
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
    let halted = fixture.store.rollouts().expect("readable")[0]
        .halted
        .clone();
    assert_eq!(halted.as_deref(), Some("agents that refused the bundle: 1"));
    let audit = fixture.store.audit(200).expect("readable");
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
    add_user(&*fixture.store, (name, PASSWORD), role, "test").expect("it is added");
    let base = format!("http://{}", fixture.address);
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
            ("bundle", &second.0.to_string()),
        ];
        let answer = client()
            .post(format!("http://{}/rollouts/back", fixture.address))
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
        fixture.store.rollouts().expect("readable")[0]
            .bundle
            .version,
        2
    );
    assert_eq!(roll_back(&cookie, &token), 303);
    assert_eq!(fixture.offered(&digest(1)).len(), AGENTS);
    // A second click does not roll forward again.
    assert_eq!(roll_back(&cookie, &token), 409);
    assert_eq!(fixture.store.audit(1).expect("readable")[0].actor, "olga");
}
