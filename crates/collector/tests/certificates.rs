//! Agents that a client certificate names.

mod started;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use collector::own_certificate;
use rcgen::date_time_ymd;
use serde_json::{Value, json};
use serve::{ClientAuthorities, ClientCertificates, ServerFiles};
use store::Scope;
use testing::Authority;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use self::started::Started;

/// Issues a certificate with these URIs and this serial number, that ends with the beginning of a year.
fn issue(authority: &Authority, uris: &[&str], serial: u64, until: i32) -> ClientCert {
    let issued = authority.issue(serial, uris, |params| {
        params.not_after = date_time_ymd(until, 1, 1);
    });
    let certificate = Certificate::from_pem(issued.certificate.pem().as_bytes()).expect("PEM");
    let key = PrivateKey::from_pem(issued.key.serialize_pem().as_bytes()).expect("PEM");
    ClientCert::new_with_certs(&[certificate], key)
}

fn of(authority: &Authority, uri: &str) -> ClientCert {
    issue(authority, &[uri], 1, 2999)
}

struct Fixture {
    started: Started,
    viewer: String,
    files: ServerFiles,
    folder: tempfile::TempDir,
}

/// Starts a collector that takes certificates of the authority, whose list revokes the serial number 7.
fn fixture(authority: &Authority) -> Fixture {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("ca"), &authority.pem).expect("writable");
    fs::write(path("list"), authority.revoke(7, 2999)).expect("writable");
    let made = own_certificate(folder.path(), &["127.0.0.1".to_owned()]);
    let files = ServerFiles {
        clients: ClientCertificates::Optional(ClientAuthorities {
            certificates: path("ca"),
            revocations: Some(path("list")),
            report: |_| {},
        }),
        ..made.expect("a certificate")
    };
    let started = started::start(|settings| settings.files = Some(files.clone()));
    Fixture {
        viewer: started.token(Scope::Viewer).1,
        started,
        files,
        folder,
    }
}

/// Someone who sends requests on connections of their own.
struct Client<'f> {
    agent: Agent,
    fixture: &'f Fixture,
}

impl Fixture {
    fn client(&self, certificate: Option<ClientCert>) -> Client<'_> {
        let trusted = fs::read(&self.files.certificates).expect("readable");
        let trusted = Certificate::from_pem(&trusted).expect("PEM");
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&[trusted]))
            .client_cert(certificate)
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            .tls_config(tls);
        Client {
            agent: config.build().new_agent(),
            fixture: self,
        }
    }

    fn get(&self, path: &str) -> Value {
        self.client(None).ask("GET", path, Some(&self.viewer), "").1
    }
}

impl Client<'_> {
    /// Returns status and answer.
    fn ask(&self, method: &str, path: &str, secret: Option<&str>, body: &str) -> (u16, Value) {
        let address = self.fixture.started.address;
        let mut request = ureq::http::Request::builder()
            .method(method)
            .header("tollgate-sequence", "1")
            .header("content-type", "application/json")
            .uri(format!("https://{address}{path}"));
        if let Some(secret) = secret {
            request = request.header("Authorization", format!("Bearer {secret}"));
        }
        let request = request.body(body.to_owned()).expect("a request");
        // A server that refuses a request before it has the body closes the connection, which this client may have kept.
        let answer = self.agent.run(request.clone());
        let answer = answer.or_else(|_closed| self.agent.run(request));
        let mut answer = answer.expect("it answers");
        let text = answer.body_mut().read_to_string().expect("text");
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (answer.status().as_u16(), value)
    }

    fn status(&self, method: &str, path: &str, secret: Option<&str>, body: &str) -> u16 {
        self.ask(method, path, secret, body).0
    }

    fn enrol(&self, secret: Option<&str>) -> (u16, Value) {
        self.ask("POST", "/api/v1/agents", secret, r#"{"host":"claimed"}"#)
    }

    /// Enrols, and returns the secret of the agent.
    fn enrolled(&self, secret: Option<&str>) -> String {
        let (status, answer) = self.enrol(secret);
        assert_eq!(status, 201, "{answer}");
        answer["secret"].as_str().expect("a secret").to_owned()
    }

    fn send(&self, secret: &str) -> (u16, Value) {
        self.ask("POST", "/api/v1/batches", Some(secret), ALERT)
    }
}

const ALERT: &str = r#"{"rule":"r","priority":"Error","output":"o","hostname":"claimed"}"#;

fn reason(answer: &Value) -> &str {
    answer["error"].as_str().expect("a reason")
}

#[test]
fn an_agent_is_whom_its_certificate_names_and_not_what_it_claims() {
    let authority = Authority::new();
    let fixture = fixture(&authority);
    let client = fixture.client(Some(of(&authority, "tollgate://web/box-1")));
    let secret = client.enrolled(None);
    let own = Some(&*secret);
    let inventory = r#"{"host":"claimed"}"#;
    assert_eq!(
        client.status("PUT", "/api/v1/inventory", own, inventory),
        200
    );
    assert_eq!(client.send(&secret).0, 200);
    let bundle = client.ask("GET", "/api/v1/bundle", own, "");
    assert_eq!(bundle, (200, json!({"bundle": null})));
    // What comes without an enrolment, too.
    assert_eq!(client.status("POST", "/", None, ALERT), 200);
    let alerts = fixture.get("/api/v1/alerts");
    let alerts = alerts["alerts"].as_array().expect("a list").iter();
    let hosts: Vec<_> = alerts.map(|alert| &alert["host"]).collect();
    assert_eq!(hosts, ["box-1", "box-1"]);
    let agents = fixture.get("/api/v1/agents");
    for agent in agents["agents"].as_array().expect("a list") {
        assert_eq!(
            (&agent["class"], &agent["host"]),
            (&json!("web"), &json!("box-1"))
        );
    }
    // A second process of the same machine is an agent of its own.
    assert_ne!(client.enrolled(None), secret);
}

#[test]
fn the_secret_of_an_agent_counts_only_with_what_it_enrolled_with() {
    let authority = Authority::new();
    let fixture = fixture(&authority);
    let class = fixture.started.token(Scope::Agents("web".to_owned())).1;
    let of = |uri: &str| fixture.client(Some(of(&authority, uri)));
    let (own, none) = (of("tollgate://web/box-1"), fixture.client(None));
    let secret = own.enrolled(None);
    for thief in [
        of("tollgate://web/box-2"),
        of("tollgate://db/box-1"),
        fixture.client(None),
    ] {
        let (status, answer) = thief.send(&secret);
        assert_eq!(status, 401);
        let why = reason(&answer);
        assert!(
            why.contains("the certificate that it enrolled with"),
            "{why}"
        );
    }
    // A renewed certificate names the same agent.
    let renewed = fixture.client(Some(issue(&authority, &["tollgate://web/box-1"], 99, 2999)));
    assert_eq!(renewed.send(&secret).0, 200);
    // And an agent of a token is not taken over by a certificate, of whatever name.
    let of_token = none.enrolled(Some(&class));
    assert_eq!(none.send(&of_token).0, 200);
    for name in ["tollgate://web/claimed", "tollgate://web/box-1"] {
        let (status, answer) = of(name).send(&of_token);
        assert_eq!(status, 401);
        assert!(reason(&answer).contains("no certificate"), "{answer}");
    }
}

#[test]
fn a_token_beside_a_certificate_is_refused_and_without_one_tokens_are_as_before() {
    let authority = Authority::new();
    let fixture = fixture(&authority);
    let class = fixture.started.token(Scope::Agents("db".to_owned())).1;
    let client = fixture.client(Some(of(&authority, "tollgate://web/box-1")));
    for path in ["/api/v1/agents", "/", "/v1/logs"] {
        let (status, answer) = client.ask("POST", path, Some(&class), r#"{"host":"claimed"}"#);
        assert_eq!(status, 403, "{path}: {answer}");
        assert!(answer.to_string().contains("send one of both"), "{answer}");
    }
    let none = fixture.client(None);
    assert_eq!(none.enrol(None).0, 401);
    assert_eq!(none.status("POST", "/", None, ALERT), 401);
    assert_eq!(none.status("POST", "/", Some(&class), ALERT), 200);
    none.enrolled(Some(&class));
    // A certificate lets nobody read, and does not disturb a reader.
    for path in ["/api/v1/alerts", "/metrics"] {
        assert_eq!(client.status("GET", path, None, ""), 401, "{path}");
        assert_eq!(
            client.status("GET", path, Some(&fixture.viewer), ""),
            200,
            "{path}"
        );
    }
}

#[test]
fn a_certificate_that_does_not_count_is_refused_with_the_reason() {
    let authority = Authority::new();
    let fixture = fixture(&authority);
    let good = "tollgate://web/box-1";
    let foreign = of(&Authority::new(), good);
    let class = fixture.started.token(Scope::Agents("web".to_owned())).1;
    for (certificate, why) in [
        (issue(&authority, &[good], 1, 2021), "has expired"),
        (issue(&authority, &[good], 7, 2999), "is revoked"),
        (
            of(&authority, "spiffe://web/box-1"),
            "tollgate://CLASS/NAME; this one has another",
        ),
        (issue(&authority, &[], 1, 2999), "this one has none"),
        (
            issue(&authority, &[good, "tollgate://web/box-2"], 1, 2999),
            "this one has 2",
        ),
        (foreign, "certificate"),
    ] {
        let client = fixture.client(Some(certificate));
        // A token that is right makes it no better.
        for secret in [None, Some(&*class)] {
            let (status, answer) = client.enrol(secret);
            assert_eq!(status, 403, "{why}: {answer}");
            assert!(reason(&answer).contains(why), "{why}: {answer}");
            assert_eq!(client.status("POST", "/", secret, ALERT), 403, "{why}");
        }
    }
    let agents = fixture.get("/api/v1/agents");
    assert_eq!(agents["agents"], json!([]));
    let tokens = fixture.started.store.tokens().expect("readable");
    assert_eq!(tokens.len(), 2, "no name has a row");
    let metrics = fixture.get("/metrics").to_string();
    assert!(
        metrics.contains(r#"refused_total{cause=\"certificate\"} 24"#),
        "{metrics}"
    );
}

#[test]
fn what_is_revoked_is_refused_at_once_on_the_connection_that_it_has() {
    let authority = Authority::new();
    let fixture = fixture(&authority);
    let client = fixture.client(Some(issue(&authority, &["tollgate://web/box-1"], 8, 2999)));
    let other = fixture.client(Some(of(&authority, "tollgate://web/box-2")));
    let (secret, others) = (client.enrolled(None), other.enrolled(None));
    assert_eq!(client.send(&secret).0, 200);
    // By the list of its authority: the agent keeps its secret, should that be a mistake.
    let list = fixture.folder.path().join("list");
    fs::write(&list, authority.revoke(8, 2999)).expect("writable");
    let (status, answer) = client.send(&secret);
    assert_eq!(
        (status, reason(&answer)),
        (403, "the certificate is revoked")
    );
    assert_eq!(other.send(&others).0, 200);
    fs::write(&list, authority.revoke(7, 2999)).expect("writable");
    assert_eq!(client.send(&secret).0, 200);
    // Without a list, nobody.
    fs::remove_file(&list).expect("it is there");
    for (client, secret) in [(&client, &secret), (&other, &others)] {
        let (status, answer) = client.send(secret);
        assert_eq!(status, 403);
        assert!(reason(&answer).contains("cannot read"), "{answer}");
    }
    fs::write(&list, authority.revoke(7, 2999)).expect("writable");
    // By the name, as a token.
    let tokens = fixture.started.store.tokens().expect("readable");
    let of_name = |it: &&store::Token| it.certificate.as_deref() == Some("box-1");
    let token = tokens.iter().find(of_name).expect("it is listed").id;
    let revoked = fixture.started.store.revoke_token(token, "test");
    assert!(revoked.expect("writable"));
    assert_eq!(client.send(&secret).0, 401);
    let (status, answer) = client.enrol(None);
    let why = "the name web/box-1 in the certificate is revoked";
    assert_eq!((status, reason(&answer)), (403, why));
    assert_eq!(client.status("POST", "/", None, ALERT), 403);
    assert_eq!(other.send(&others).0, 200);
}
