//! The collector over HTTP, as senders and readers use it.

mod started;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use collector::{Collector, Settings, own_certificate};
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, FlushCompress};
use serde_json::{Value, json};
use serve::Address;
use store::{Scope, SqliteStore, TokenId};
use ureq::Agent;

use self::started::Started;

struct Fixture {
    started: Started,
    agents: String,
    viewer: String,
    operator: String,
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    Fixture {
        agents: started.token(Scope::Agents("web".to_owned())).1,
        viewer: started.token(Scope::Viewer).1,
        operator: started.token(Scope::Operator).1,
        started,
    }
}

/// Status and body of an answer.
type Answer = (u16, Value);

impl Fixture {
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let client = Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.started.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_vec()).expect("a request");
        let mut answer = client.run(request).expect("it answers");
        let text = answer.body_mut().read_to_string().expect("text");
        (
            answer.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(text.into()),
        )
    }

    fn bearer(&self, method: &str, path: &str, secret: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {secret}");
        self.request(method, path, &[("Authorization", &bearer)], body.as_bytes())
    }

    fn get(&self, path: &str) -> Value {
        let (status, answer) = self.bearer("GET", path, &self.viewer, "");
        assert_eq!(status, 200, "{answer}");
        answer
    }

    fn enrol(&self, host: &str) -> String {
        let body = json!({"host": host}).to_string();
        let (status, answer) = self.bearer("POST", "/api/v1/agents", &self.agents, &body);
        assert_eq!(status, 201, "{answer}");
        answer["secret"].as_str().expect("a secret").to_owned()
    }

    fn batch(&self, secret: &str, first: u64, body: &str) -> Answer {
        let headers = [
            ("Authorization", &*format!("Bearer {secret}")),
            ("Tollgate-Sequence", &*first.to_string()),
        ];
        self.request("POST", "/api/v1/batches", &headers, body.as_bytes())
    }
}

fn alert(rule: &str) -> String {
    let alert = json!({"rule": rule, "priority": "Warning", "output": "opened /etc/shadow",
                       "hostname": "claimed", "output_fields": {"proc.name": "cat", "fd.name": "/etc/shadow"}});
    alert.to_string()
}

#[test]
fn a_batch_is_acknowledged_and_stored_once_under_the_agents_own_name() {
    let fixture = fixture();
    let secret = fixture.enrol("box");
    let body = format!("{}\n{}\n", alert("a"), alert("b"));
    let (status, answer) = fixture.batch(&secret, 1, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        answer,
        json!({"acknowledged": 2, "stored": 2, "duplicates": 0, "missing": 0})
    );
    let (_, again) = fixture.batch(&secret, 1, &body);
    assert_eq!(
        again,
        json!({"acknowledged": 2, "stored": 0, "duplicates": 2, "missing": 0})
    );
    assert_eq!(fixture.batch(&secret, 3, "-\n-\n").1["acknowledged"], 4);
    let loss = r#"{"loss":"spool","count":7,"detail":"disk full"}"#;
    assert_eq!(fixture.batch(&secret, 5, loss).1["stored"], 1);

    let alerts = fixture.get("/api/v1/alerts?rule=a");
    assert_eq!(alerts["alerts"].as_array().expect("a list").len(), 1);
    assert_eq!(alerts["alerts"][0]["host"], "box");
    assert_eq!(alerts["alerts"][0]["alert"]["hostname"], "claimed");
    let id = alerts["alerts"][0]["id"].as_i64().expect("a number");
    let one = fixture.get(&format!("/api/v1/alerts/{id}"));
    assert_eq!(
        (&one["sequence"], &one["class"]),
        (&json!(1), &json!("web"))
    );
    let overview = fixture.get("/api/v1/overview");
    assert_eq!(overview["losses"][0]["count"], 7);
    assert_eq!(
        fixture.get("/api/v1/agents")["agents"][0]["acknowledged"],
        5
    );
}

#[test]
fn what_cannot_be_read_is_kept_beside_what_can() {
    let fixture = fixture();
    let secret = fixture.enrol("box");
    let body = format!("{}\nno JSON \u{1b}[2J\n{}\n", alert("a"), alert("b"));
    assert_eq!(fixture.batch(&secret, 1, &body).1["acknowledged"], 3);
    let alerts = fixture.get("/api/v1/alerts?rule=Collector%3A%20unreadable%20record");
    let output = alerts["alerts"][0]["alert"]["output"]
        .as_str()
        .expect("text");
    assert!(output.contains("no JSON"), "{output}");
}

#[test]
fn falcos_body_is_taken_with_a_bearer_token_or_as_a_password() {
    let fixture = fixture();
    for path in ["/", "/api/v1/"] {
        let (status, answer) = fixture.bearer("POST", path, &fixture.agents, &alert("falco"));
        assert_eq!(status, 200, "{answer}");
    }
    let basic = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        format!("token:{}", fixture.agents),
    );
    let basic = format!("Basic {basic}");
    let (status, _) = fixture.request(
        "POST",
        "/",
        &[("Authorization", &basic)],
        alert("falco").as_bytes(),
    );
    assert_eq!(status, 200);
    let groups = fixture.get("/api/v1/groups");
    assert_eq!(
        (
            &groups["groups"][0]["count"],
            &groups["groups"][0]["object"]
        ),
        (&json!(3), &json!("/etc/shadow"))
    );
    let (status, answer) = fixture.bearer("POST", "/", &fixture.agents, "text");
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn every_page_asks_who_it_is_and_what_for() {
    let fixture = fixture();
    let agent = fixture.enrol("box");
    let rows: [(&str, &str, [u16; 5]); 9] = [
        // Without a token, and as token of agents, agent, viewer, operator.
        ("POST", "/", [401, 400, 403, 403, 403]),
        ("POST", "/api/v1/agents", [401, 400, 403, 403, 403]),
        ("POST", "/api/v1/batches", [401, 403, 400, 403, 403]),
        ("PUT", "/api/v1/inventory", [401, 403, 400, 403, 403]),
        ("GET", "/api/v1/alerts", [401, 403, 403, 200, 200]),
        ("GET", "/api/v1/agents", [401, 403, 403, 200, 200]),
        (
            "PUT",
            "/api/v1/groups/1/acknowledgement",
            [401, 403, 403, 403, 400],
        ),
        ("GET", "/metrics", [401, 403, 403, 200, 200]),
        ("GET", "/healthz", [200; 5]),
    ];
    for (method, path, expected) in rows {
        let anonymous = fixture.request(method, path, &[], b"x").0;
        let mut statuses = vec![anonymous];
        for secret in [&fixture.agents, &agent, &fixture.viewer, &fixture.operator] {
            statuses.push(fixture.bearer(method, path, secret, "x").0);
        }
        assert_eq!(statuses, expected, "{method} {path}");
    }
    // Token 1 is that of the agents. It ends what enrolled with it.
    assert!(
        fixture
            .started
            .store
            .revoke_token(TokenId(1), "test")
            .expect("writable")
    );
    assert_eq!(fixture.batch(&agent, 1, &alert("a")).0, 401);
    assert_eq!(fixture.bearer("GET", "/unknown", &agent, "").0, 404);
}

#[test]
fn an_acknowledgement_hides_a_group_and_is_in_the_audit_log() {
    let fixture = fixture();
    fixture.bearer("POST", "/", &fixture.agents, &alert("a"));
    let id = fixture.get("/api/v1/groups")["groups"][0]["id"]
        .as_i64()
        .expect("a number");
    let path = format!("/api/v1/groups/{id}/acknowledgement");
    let body = r#"{"acknowledged":true,"note":"known"}"#;
    assert_eq!(fixture.bearer("PUT", &path, &fixture.operator, body).0, 200);
    assert_eq!(fixture.get("/api/v1/groups")["groups"], json!([]));
    let shown = fixture.get("/api/v1/groups?acknowledged=true");
    assert_eq!(shown["groups"][0]["acknowledged_by"], "token 3");
    let audit = fixture.started.store.audit(1).expect("readable");
    assert_eq!(
        (&*audit[0].actor, &*audit[0].action),
        ("token 3", "acknowledge")
    );
}

#[test]
fn a_filter_that_is_not_understood_is_refused() {
    let fixture = fixture();
    for query in [
        "severity=loud",
        "from=yesterday",
        "limit=-1",
        "after=x",
        "hots=a",
        "group=a",
    ] {
        let path = format!("/api/v1/groups?{query}");
        let (status, answer) = fixture.bearer("GET", &path, &fixture.viewer, "");
        assert_eq!(status, 400, "{query}: {answer}");
    }
    fixture.get("/api/v1/groups?severity=&rule=&host=&from=&limit=");
}

#[test]
fn large_bodies_are_refused_also_behind_compression() {
    let fixture = fixture();
    let secret = fixture.enrol("box");
    let large = vec![b'\n'; (4 << 20) + 1];
    let bearer = format!("Bearer {secret}");
    let headers = [("Authorization", &*bearer), ("Tollgate-Sequence", "1")];
    assert_eq!(
        fixture
            .request("POST", "/api/v1/batches", &headers, &large)
            .0,
        413
    );
    let bomb = bomb();
    assert!(bomb.len() < 1 << 20);
    let headers = [headers[0], headers[1], ("Content-Encoding", "gzip")];
    assert_eq!(
        fixture
            .request("POST", "/api/v1/batches", &headers, &bomb)
            .0,
        413
    );
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(alert("a").as_bytes()).expect("memory");
    let small = encoder.finish().expect("memory");
    assert_eq!(
        fixture
            .request("POST", "/api/v1/batches", &headers, &small)
            .0,
        200
    );
}

/// Becomes more than 16 MiB. A full flush makes the same mebibyte usable again.
fn bomb() -> Vec<u8> {
    let mut piece = Vec::with_capacity(1 << 16);
    let mut compress = Compress::new(Compression::fast(), false);
    compress
        .compress_vec(&vec![b'\n'; 1 << 20], &mut piece, FlushCompress::Full)
        .expect("memory");
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    [&head[..], &piece.repeat(17)].concat()
}

#[test]
fn names_that_attackers_choose_control_no_terminal() {
    let fixture = fixture();
    let hostile = "\u{1b}]0;x\u{7}\u{202e}\u{9b}2J<script>alert(1)</script>=cmd|' /C calc'!A0";
    let body = json!({"rule": hostile, "priority": "Error", "output": hostile, "hostname": hostile,
                      "output_fields": {"proc.name": hostile, "fd.name": hostile}});
    let (status, _) = fixture.bearer("POST", "/", &fixture.agents, &body.to_string());
    assert_eq!(status, 200);
    for path in [
        "/api/v1/alerts",
        "/api/v1/groups",
        "/api/v1/overview",
        "/api/v1/alerts?rule=%1b",
    ] {
        let mut stream = TcpStream::connect(fixture.started.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a limit");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
            fixture.viewer
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let bad = answer
            .chars()
            .find(|c| !c.is_ascii() || (c.is_control() && !"\r\n".contains(*c)));
        assert_eq!(bad, None, "{path}: {answer}");
        assert!(
            answer.contains("x-content-type-options: nosniff"),
            "{answer}"
        );
    }
    let alerts = fixture.get("/api/v1/alerts");
    assert_eq!(alerts["alerts"][0]["alert"]["rule"], hostile);
}

#[test]
fn tls_is_1_3_with_a_certificate_of_its_own_that_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let files = own_certificate(folder.path(), &names).expect("writable");
    let first = std::fs::read(&files.certificates).expect("it is there");
    let again = own_certificate(folder.path(), &names).expect("readable");
    assert_eq!(std::fs::read(&again.certificates).expect("kept"), first);
    let mode = std::fs::metadata(&files.key)
        .expect("it is there")
        .permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o600
    );
    let store = SqliteStore::open(&folder.path().join("s.db")).expect("a new store");
    let settings = Settings {
        listen: Address::Tcp("127.0.0.1:0".to_owned()),
        files: Some(files),
        max_age: None,
        max_bytes: None,
        propose: None,
        explain: None,
        browse: None,
        capture_on: None,
        oidc: None,
        queue: None,
    };
    let collector = Collector::start(settings, store.into()).expect("a free port");
    let address = collector.address().expect("a port");
    for (versions, is_taken) in [
        (&[&rustls::version::TLS13], true),
        (&[&rustls::version::TLS12], false),
    ] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        for certificate in <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::pem_slice_iter(&first) {
            roots.add(certificate.expect("PEM")).expect("a certificate");
        }
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("known versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "127.0.0.1".try_into().expect("a name");
        let mut session = rustls::ClientConnection::new(Arc::new(config), name).expect("a session");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a limit");
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        let asked = tls.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        // The server may close without a farewell.
        let _ = tls.read_to_end(&mut answer);
        assert_eq!(
            asked.is_ok() && answer.starts_with(b"HTTP/1.1 200"),
            is_taken
        );
    }
}
