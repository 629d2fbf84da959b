//! Log records of OpenTelemetry over HTTP, as an exporter sends them.

mod started;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use serde_json::{Value, json};
use store::Scope;
use ureq::Agent;
use ureq::http::HeaderMap;

use self::started::Started;

const PROTOBUF: (&str, &str) = ("Content-Type", "application/x-protobuf");
const JSON: (&str, &str) = ("Content-Type", "application/json; charset=utf-8");

struct Fixture {
    started: Started,
    agents: String,
    viewer: String,
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    Fixture {
        agents: started.token(Scope::Agents("web".to_owned())).1,
        viewer: started.token(Scope::Viewer).1,
        started,
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn content_type(&self) -> &str {
        self.headers["content-type"].to_str().expect("text")
    }

    fn json(&self) -> Value {
        assert_eq!(self.content_type(), "application/json");
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

impl Fixture {
    fn ask(
        &self,
        method: &str,
        path: &str,
        secret: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let client = Agent::config_builder().http_status_as_error(false).build();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .header("Authorization", format!("Bearer {secret}"))
            .uri(format!("http://{}{path}", self.started.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_vec()).expect("a request");
        let mut answer = client.new_agent().run(request).expect("it answers");
        let body = answer.body_mut().read_to_vec().expect("a body");
        Answer {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            body,
        }
    }

    fn send(&self, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.ask("POST", "/v1/logs", &self.agents, headers, body)
    }

    fn alerts(&self) -> Vec<Value> {
        let answer = self.ask("GET", "/api/v1/alerts", &self.viewer, &[], b"");
        answer.json()["alerts"].as_array().expect("a list").clone()
    }
}

fn text(text: &str) -> AnyValue {
    AnyValue {
        value: Some(Any::StringValue(text.to_owned())),
    }
}

fn request(severities: &[i32]) -> ExportLogsServiceRequest {
    let host = KeyValue {
        key: "host.name".to_owned(),
        value: Some(text("box")),
        ..KeyValue::default()
    };
    let record = |severity: &i32| LogRecord {
        severity_number: *severity,
        body: Some(text("opened")),
        event_name: "file.open".to_owned(),
        ..LogRecord::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(Resource {
                attributes: vec![host],
                ..Resource::default()
            }),
            scope_logs: vec![ScopeLogs {
                log_records: severities.iter().map(record).collect(),
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

#[test]
fn records_in_both_encodings_are_alerts_of_the_tokens_sender() {
    let fixture = fixture();
    let protobuf = request(&[13]).encode_to_vec();
    let answer = fixture.send(&[PROTOBUF], &protobuf);
    assert_eq!(
        (answer.status, answer.content_type()),
        (200, "application/x-protobuf")
    );
    let decoded = ExportLogsServiceResponse::decode(&*answer.body).expect("an answer");
    assert_eq!(decoded, ExportLogsServiceResponse::default());
    let packed = [PROTOBUF, ("Content-Encoding", "gzip")];
    assert_eq!(fixture.send(&packed, &gzip(&protobuf)).status, 200);
    let json = serde_json::to_vec(&request(&[13])).expect("JSON");
    let answer = fixture.send(&[JSON], &json);
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    let packed = [JSON, ("Content-Encoding", "gzip")];
    assert_eq!(fixture.send(&packed, &gzip(&json)).status, 200);
    let alerts = fixture.alerts();
    assert_eq!(alerts.len(), 4);
    for alert in alerts {
        assert_eq!(
            (&alert["rule"], &alert["host"]),
            (&json!("file.open"), &json!("box"))
        );
        assert_eq!(
            (&alert["priority"], &alert["alert"]["output"]),
            (&json!("Warning"), &json!("opened"))
        );
    }
    let agents = fixture
        .ask("GET", "/api/v1/agents", &fixture.viewer, &[], b"")
        .json();
    assert_eq!(
        agents["agents"].as_array().expect("a list").len(),
        1,
        "{agents}"
    );
    assert_eq!(
        (
            &agents["agents"][0]["class"],
            &agents["agents"][0]["direct"]
        ),
        (&json!("web"), &json!(true))
    );
}

#[test]
fn a_partial_success_says_how_many_records_were_rejected_and_why() {
    let fixture = fixture();
    let answer = fixture.send(&[PROTOBUF], &request(&[13, 99, -1]).encode_to_vec());
    let decoded = ExportLogsServiceResponse::decode(&*answer.body).expect("an answer");
    let partial = decoded.partial_success.expect("two were rejected");
    assert_eq!((answer.status, partial.rejected_log_records), (200, 2));
    let reason = "the severity number 99 is not from 0 to 24";
    assert_eq!(partial.error_message, reason);
    let json = serde_json::to_vec(&request(&[99])).expect("JSON");
    let expected = json!({"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": reason}});
    assert_eq!(fixture.send(&[JSON], &json).json(), expected);
    assert_eq!(fixture.alerts().len(), 1);
    let metrics = fixture
        .ask("GET", "/metrics", &fixture.viewer, &[], b"")
        .body;
    let metrics = String::from_utf8(metrics).expect("text");
    assert!(
        metrics.contains("records_total{result=\"rejected\"} 3"),
        "{metrics}"
    );
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Status, code, secret, headers and body.
type Case<'c> = (u16, i32, &'c str, &'c [(&'c str, &'c str)], &'c [u8]);

#[test]
fn what_is_refused_has_a_status_in_the_encoding_of_the_request() {
    let fixture = fixture();
    let body = request(&[13]).encode_to_vec();
    let zip = [PROTOBUF, ("Content-Encoding", "zstd")];
    let packed = [PROTOBUF, ("Content-Encoding", "gzip")];
    let agents = &*fixture.agents;
    let bomb = gzip(&vec![0; 17 << 20]);
    let cases: [Case<'_>; 7] = [
        (401, 16, "wrong", &[PROTOBUF], &body),
        (403, 7, &fixture.viewer, &[PROTOBUF], &body),
        (400, 3, agents, &[PROTOBUF], b"<html>"),
        (400, 3, agents, &packed, b"no gzip"),
        (413, 8, agents, &packed, &bomb),
        (413, 8, agents, &[PROTOBUF], &vec![0; 5 << 20]),
        (415, 3, agents, &zip, &body),
    ];
    for (status, code, secret, headers, body) in cases {
        let answer = fixture.ask("POST", "/v1/logs", secret, headers, body);
        assert_eq!(
            (answer.status, answer.content_type()),
            (status, "application/x-protobuf")
        );
        let decoded = Status::decode(&*answer.body).expect("a status");
        assert_eq!(decoded.code, code, "{decoded:?}");
        assert!(!decoded.message.is_empty());
    }
    let answer = fixture.ask("POST", "/v1/logs", "wrong", &[JSON], b"{}");
    assert_eq!((answer.status, &answer.json()["code"]), (401, &json!(16)));
    assert!(answer.headers.contains_key("www-authenticate"));
    for headers in [&[][..], &[("Content-Type", "text/plain")]] {
        let answer = fixture.send(headers, b"{}");
        let answer = (answer.status, answer.json());
        assert_eq!(answer.0, 415);
        let message = "unknown Content-Type: expected application/x-protobuf or application/json";
        assert_eq!(answer.1, json!({"code": 3, "message": message}));
    }
    // What a client has not written yet when it is refused is read as well.
    let large = vec![0; 20 << 20];
    for _ in 0..5 {
        assert_eq!(fixture.send(&[PROTOBUF], &large).status, 413);
    }
    assert_eq!(fixture.alerts().len(), 0);
}
