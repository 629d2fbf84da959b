//! The webhook, asked as an API server asks it.

use apiserver::{Access, ApiError, Client};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::{Webhook, WebhookSettings};

const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tollgate-webhook";
const OTHER: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/tollgate-webhook";
const SECRET: &str = "/api/v1/namespaces/tollgate/secrets/tollgate-webhook";

/// Starts an operator with a webhook.
fn serve(server: &FakeApiserver, settings: WebhookSettings) -> Webhook {
    serve_and_say(server, settings, |_| {})
}

fn serve_and_say(
    server: &FakeApiserver,
    settings: WebhookSettings,
    say: impl Fn(String) + Send + 'static,
) -> Webhook {
    server.put(
        SECRET,
        json!({ "metadata": { "name": "tollgate-webhook", "namespace": "tollgate" } }),
    );
    for (path, name) in [
        (CONFIGURATION, "pods.marks.tollgate.dev"),
        (OTHER, "policies.tollgate.dev"),
    ] {
        server.put(
            path,
            json!({ "metadata": { "name": "tollgate-webhook" },
            "webhooks": [{ "name": name, "clientConfig": { "url": "https://localhost/" } }] }),
        );
    }
    let client = Client::new(&server.access(), "tollgate-operator").unwrap();
    let operator = Operator::new(client, super::settings("one"));
    let webhook = operator.serve_webhook(settings, say).unwrap();
    thread::spawn(move || operator.run(|_| {}));
    webhook
}

fn settings() -> WebhookSettings {
    WebhookSettings {
        names: vec!["localhost".to_owned()],
        check: Duration::from_millis(50),
        ..WebhookSettings::new("127.0.0.1:0".parse().unwrap())
    }
}

fn bundle(object: &Value) -> Option<String> {
    let bundle = object["webhooks"][0]["clientConfig"]["caBundle"].as_str()?;
    String::from_utf8(STANDARD.decode(bundle).unwrap()).ok()
}

/// Asks as an API server that trusts what the configuration says now.
fn ask(
    server: &FakeApiserver,
    webhook: &Webhook,
    path: &str,
    body: &Value,
) -> Result<Value, ApiError> {
    let trusted = wait(server, CONFIGURATION, |object| bundle(object).is_some());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, bundle(&trusted).unwrap()).unwrap();
    let address = format!("https://localhost:{}", webhook.address.port());
    let access = Access::files(&address, Some(file), None, None);
    let client = Client::new(&access, "tester").unwrap();
    client.attempt("POST", path, &[], Some(body))
}

fn question(object: Value) -> Value {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "kind": { "kind": object["kind"] }, "operation": "CREATE", "namespace": "demo",
        "object": object } })
}

fn workload() -> Value {
    json!({ "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "template": { "metadata": {}, "spec": {} } } })
}

/// Asks until the webhook knows all policies.
fn answered(server: &FakeApiserver, webhook: &Webhook, path: &str, body: &Value) -> Value {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match ask(server, webhook, path, body) {
            Ok(answer) => return answer["response"].clone(),
            Err(error) => assert!(
                Instant::now() < end,
                "{}",
                crate::error_text::chain_of(&error)
            ),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn workloads_are_marked_and_hostile_questions_are_refused() {
    let server = FakeApiserver::start().unwrap();
    server.put(POLICY, simple());
    let webhook = serve(&server, settings());
    let answer = answered(&server, &webhook, "/mutate", &question(workload()));
    assert_eq!(
        (&answer["uid"], &answer["allowed"]),
        (&json!("u-1"), &json!(true))
    );
    let patch = STANDARD.decode(answer["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(
        patch[1]["path"],
        "/spec/template/metadata/annotations/profile.tollgate.dev~1varmor-demo-web"
    );
    let answer = answered(&server, &webhook, "/validate", &question(simple()));
    assert_eq!(answer, json!({ "uid": "u-1", "allowed": true }));
    let mut wrong = question(workload());
    wrong["request"]["object"]["metadata"]["labels"] = json!(7);
    let answer = answered(&server, &webhook, "/mutate", &wrong);
    assert_eq!(
        (&answer["allowed"], &answer["status"]["code"]),
        (&json!(false), &json!(400))
    );
    let mut nameless = question(workload());
    nameless["request"]["uid"] = json!(7);
    let huge = question(json!({ "kind": "Pod", "data": "x".repeat(9 << 20) }));
    for (body, path, code) in [
        (nameless, "/mutate", 400),
        (json!({}), "/validate", 400),
        (question(workload()), "/other", 404),
        (huge, "/mutate", 413),
    ] {
        let error = ask(&server, &webhook, path, &body).unwrap_err();
        // A server that reads no further may have closed the connection before the client has the answer.
        let is_closed = code == 413 && error.code().is_none();
        assert!(error.code() == Some(code) || is_closed, "{error:?}");
    }
    // It serves on.
    let answer = answered(&server, &webhook, "/mutate", &question(workload()));
    assert_eq!(answer["allowed"], true);
}

#[test]
fn policies_that_are_old_for_long_give_no_answers_until_the_api_server_is_back() {
    let server = FakeApiserver::start().unwrap();
    server.put(POLICY, simple());
    let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let saying = std::sync::Arc::clone(&said);
    let webhook = serve_and_say(
        &server,
        WebhookSettings {
            stale: Duration::from_millis(500),
            ..settings()
        },
        move |message| saying.lock().unwrap().push(message),
    );
    answered(&server, &webhook, "/mutate", &question(workload()));
    server.fail(100_000);
    server.expire();
    let begun = Instant::now();
    let end = begun + Duration::from_secs(20);
    let error = loop {
        match ask(&server, &webhook, "/mutate", &question(workload())) {
            Ok(_) => assert!(Instant::now() < end, "it answers on"),
            Err(error) => break error,
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(error.code(), Some(503), "{error:?}");
    assert!(begun.elapsed() >= Duration::from_millis(500));
    thread::sleep(Duration::from_millis(300));
    server.fail(0);
    answered(&server, &webhook, "/mutate", &question(workload()));
    let said = said.lock().unwrap();
    let stale = said
        .iter()
        .filter(|one| one.contains("about policies for too long"));
    assert_eq!(stale.count(), 1, "{said:?}");
}

#[test]
fn certificates_are_replaced_before_their_end_and_no_question_fails() {
    testing::need_slow!();
    let server = FakeApiserver::start().unwrap();
    let webhook = serve(
        &server,
        WebhookSettings {
            lifetime: Duration::from_secs(24),
            settle: Duration::from_secs(2),
            ..settings()
        },
    );
    answered(&server, &webhook, "/mutate", &question(workload()));
    let mut presented = std::collections::BTreeSet::new();
    let end = Instant::now() + Duration::from_secs(90);
    let mut asked = 0;
    while presented.len() < 3 {
        assert!(Instant::now() < end, "{} certificates", presented.len());
        let answer = ask(&server, &webhook, "/mutate", &question(workload()));
        answer.unwrap_or_else(|error| panic!("{asked}: {}", crate::error_text::chain_of(&error)));
        asked += 1;
        let secret = server.get(SECRET).unwrap();
        presented.insert(secret["data"]["tls.crt"].to_string());
        thread::sleep(Duration::from_millis(50));
    }
    println!("{asked} questions, no failure");
}
