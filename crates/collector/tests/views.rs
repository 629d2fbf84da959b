//! Pages about rules, policies and agents, with what agents say about themselves.

mod started;
mod visitor;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collector::{AlertToExplain, ClauseValue, MatchedClause, MatchedRule};
use serde_json::{Value, json};
use store::{NewBundle, Scope};

use self::started::Started;
use self::visitor::{Answer, HOSTILE, alert};

/// Answers what an attacker could have written, for rules that begin with `known`.
fn explain(asked: AlertToExplain<'_>) -> Result<Option<MatchedRule>, String> {
    let alert: Value = serde_json::from_str(asked.alert).map_err(|error| error.to_string())?;
    let rule = alert["rule"].as_str().ok_or("the alert has no rule")?;
    match rule {
        "unknown" => return Ok(None),
        "defect" => panic!("for the test"),
        "broken" => return Err(format!("the rules cannot be read: {}", HOSTILE[0])),
        _ => {}
    }
    let clause = |holds, value| MatchedClause {
        depth: 1,
        text: format!("proc.name = {rule}"),
        values: vec![(rule.to_owned(), value)],
        holds,
    };
    let text = alert["output"].as_str().ok_or("the alert has no text")?;
    let digest = asked.bundle.unwrap_or("own");
    Ok(Some(MatchedRule {
        clauses: vec![
            clause(Some(true), ClauseValue::Text(text.to_owned())),
            clause(None, ClauseValue::Unknown),
        ],
        holds: None,
        inferred: Some(rule.to_owned()),
        digests: vec![digest.to_owned()],
        is_of_bundle: asked.bundle.is_some(),
    }))
}

fn fixture() -> Started {
    started::start(|settings| settings.explain = Some(Arc::new(explain)))
}

/// Sends what an agent that has enrolled sends.
fn send(fixture: &Started, secret: &str, (method, path): (&str, &str), body: &str) -> Value {
    let bearer = format!("Bearer {secret}");
    let headers = [("Authorization", &*bearer), ("Tollgate-Sequence", "1")];
    let answer = fixture.request(method, path, &headers, body);
    assert!(answer.status < 300, "{path}: {}", answer.text);
    serde_json::from_str(&answer.text).expect("JSON")
}

/// Enrols an agent with an inventory, and returns its secret.
fn agent(fixture: &Started, inventory: &Value) -> String {
    let (_, token) = fixture.token(Scope::Agents("web".to_owned()));
    let body = json!({"host": "h"}).to_string();
    let answer = send(fixture, &token, ("POST", "/api/v1/agents"), &body);
    let secret = answer["secret"].as_str().expect("a secret").to_owned();
    let told = ("PUT", "/api/v1/inventory");
    send(fixture, &secret, told, &inventory.to_string());
    secret
}

/// Sends an alert as an agent.
fn raise(fixture: &Started, secret: &str, rule: &str) {
    let line = alert(rule, "x").body;
    send(fixture, secret, ("POST", "/api/v1/batches"), &line);
}

#[test]
fn an_alert_says_why_each_clause_matched_or_why_that_is_not_known() {
    let fixture = fixture();
    let bundle = NewBundle {
        version: 1,
        digest: "dd".to_owned(),
        key: "k".to_owned(),
        text: "of the bundle".to_owned(),
        actor: "test".to_owned(),
    };
    fixture.store.add_bundle(bundle).expect("writable");
    let rules = |digest: &str, bundle: &str| json!({"rules": digest, "bundle": {"digest": bundle}});
    let rows = [
        (json!({}), "known", "does not tell which rules"),
        (
            json!({"rules": "sha256:own"}),
            "known",
            "which the agent has now, too",
        ),
        (json!({"rules": "sha256:else"}), "known", "other rules"),
        (
            rules("sha256:of the bundle", "dd"),
            "known",
            "the agent's bundle, which",
        ),
        (
            rules("sha256:x", "ee"),
            "unknown",
            "bundle that this collector does not have",
        ),
        (json!({}), "unknown", "does not know this rule"),
        (
            json!({}),
            "broken",
            "cannot be evaluated: the rules cannot be read: &lt;script",
        ),
    ];
    for (inventory, rule, _) in &rows {
        let secret = agent(&fixture, inventory);
        raise(&fixture, &secret, rule);
    }
    let browser = fixture.user("ann", Scope::Viewer);
    for (at, (inventory, rule, part)) in rows.iter().enumerate() {
        let page = browser.get(&format!("/alerts/{}", at + 1)).text;
        assert!(page.contains("Why each clause matched"), "{page}");
        assert!(page.contains(part), "{inventory} {part}: {page}");
        let clauses = page.matches("proc.name = known").count();
        assert_eq!(clauses, if *rule == "known" { 2 } else { 0 }, "{page}");
        assert_eq!(page.contains(">not told<"), *rule == "known", "{page}");
    }
    // A policy has no clauses.
    let secret = agent(&fixture, &json!({}));
    raise(&fixture, &secret, "Policy violation");
    let page = browser.get(&format!("/alerts/{}", rows.len() + 1)).text;
    assert!(page.contains("Policy violation"), "{page}");
    assert!(!page.contains("Why each clause"), "{page}");
}

#[test]
fn an_alert_is_shown_without_an_explanation_that_fails_or_has_no_turn() {
    let (begin, began) = channel();
    let (end, ended) = channel::<()>();
    let ended = Mutex::new(ended);
    let fixture = started::start(|settings| {
        settings.propose = Some(Arc::new(|_alert| Err("no exception".to_owned())));
        settings.explain = Some(Arc::new(move |asked: AlertToExplain<'_>| {
            if asked.alert.contains("slow") {
                begin.send(()).expect("the test waits");
                // Fails as soon as the test has dropped its end.
                let _ended = ended.lock().expect("no panic").recv();
            }
            explain(asked)
        }));
    });
    for rule in ["defect", "slow", "known"] {
        let secret = agent(&fixture, &json!({}));
        raise(&fixture, &secret, rule);
    }
    let browser = fixture.user("ann", Scope::Operator);
    let shows = |answer: Answer, rule: &str, problem: &str| {
        let text = answer.text;
        assert_eq!(answer.status, 200, "{text}");
        for part in [rule, "As the sender wrote it", "cannot be evaluated now: "] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains(problem), "{text}");
    };
    shows(browser.get("/alerts/1"), "defect", "has a defect");
    let proposed = browser.post("/alerts/1/exception", &[]);
    assert!(proposed.text.contains("no exception"), "{}", proposed.text);
    shows(proposed, "defect", "has a defect");
    std::thread::scope(|scope| {
        let slow = [(); 2].map(|()| scope.spawn(|| browser.get("/alerts/2")));
        for _ in &slow {
            began
                .recv_timeout(Duration::from_secs(30))
                .expect("it begins");
        }
        shows(browser.get("/alerts/3"), "known", "too many alerts");
        drop(end);
        for page in slow {
            let page = page.join().expect("it answers");
            assert!(page.text.contains("proc.name = slow"), "{}", page.text);
        }
    });
    let page = browser.get("/alerts/3").text;
    assert!(page.contains("proc.name = known"), "{page}");
}

#[test]
fn no_clause_becomes_markup() {
    let fixture = fixture();
    fixture.alerts(HOSTILE.map(|text| alert(text, text)).into());
    let browser = fixture.user("ann", Scope::Operator);
    let pages = (1..=HOSTILE.len()).map(|id| format!("/alerts/{id}"));
    for path in pages {
        let page = browser.get(&path).text;
        assert!(page.contains("proc.name = "), "{path}: {page}");
        is_safe(&path, &page);
    }
    assert_eq!(browser.post("/alerts/1/exception", &[]).status, 404);
}

/// Checks that no text of a sender became markup, or a character that controls what is shown.
fn is_safe(path: &str, page: &str) {
    for bad in [
        "<script>alert",
        "<img src=x",
        "<svg onload",
        "href=\"javascript:",
        " style=\"",
    ] {
        assert!(!page.contains(bad), "{path}: {bad}");
    }
    let is_bad = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2066}".contains(c);
    assert!(!page.contains(is_bad), "{path}: {page:?}");
}

/// An inventory in which an agent has put a text wherever it can put one.
fn hostile(text: &str) -> Value {
    let rule = json!({"rule": text, "evaluations": 64, "nanoseconds": 640});
    json!({
        "version": text, "kernel": text, "architecture": text, "engine": text, "rules": text, "rules_enabled": text,
        "policy": {
            "name": text, "digest": text, "audits": text, "enforcers": {text: text}, "reasons": {text: text},
            "gaps": [text],
        },
        "rule_times": {"events": 64, "nanoseconds": 640, "rules": [rule]},
        "spool": {"pending": text, "oldest_seconds": text},
    })
}

#[test]
fn no_inventory_becomes_markup() {
    let fixture = fixture();
    for text in HOSTILE {
        agent(&fixture, &hostile(text));
    }
    let browser = fixture.user("ann", Scope::Viewer);
    for path in ["/", "/fleet", "/policies", "/rules"] {
        let answer = browser.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.text.contains("&lt;script&gt;alert(1)"), "{path}");
        is_safe(path, &answer.text);
    }
}

#[test]
fn policies_and_rules_show_what_agents_enforce_and_measure_or_that_they_do_not_tell() {
    let fixture = fixture();
    let browser = fixture.user("ann", Scope::Viewer);
    let part_of = |path: &str, part: &str| {
        let page = browser.get(path).text;
        assert!(page.contains(part), "{path}: {part} in {page}");
        page
    };
    part_of("/policies", "No agent has a policy in force");
    part_of("/rules", "Not measured");
    agent(
        &fixture,
        &json!({
            "engine": "notify", "rules": "sha256:0123456789abcdef", "rules_enabled": 42,
            "policy": {
                "name": "web", "digest": "sha256:aa", "audits": true,
                "enforcers": {"Landlock": "fully enforced", "BPF": "not enforced"},
                "reasons": {"BPF": "the kernel has no BTF"}, "gaps": ["`disallow-mount`: no enforcer"],
            },
            "rule_times": {"events": 10, "nanoseconds": 50, "rules": [
                {"rule": "Read it", "evaluations": 5, "nanoseconds": 50}]},
            "spool": {"pending": 7, "oldest_seconds": 90},
        }),
    );
    // One of an earlier build.
    agent(
        &fixture,
        &json!({"engine": "ebpf", "policy": {"name": "web", "digest": "sha256:bb", "audits": false,
                "enforcers": {"BPF": "partially enforced"}}}),
    );
    let page = part_of("/policies", "the kernel has no BTF");
    for part in [
        "`disallow-mount`: no enforcer",
        "only reports",
        "denies",
        "reason not told",
        "/violations?host=h",
        "2 policies in force",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    let page = part_of("/rules", "5.0 ns");
    for part in [
        "Read it",
        "100.0 %",
        "10.0 ns",
        "1 agents: not measured",
        "0123456789ab",
        ">42<",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    let page = part_of("/", "Landlock (only report)");
    assert!(page.contains("ebpf"), "{page}");
    part_of("/fleet", "oldest 1 min");
    part_of("/violations?host=h", "No violation matches");
}
