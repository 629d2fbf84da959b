use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde_json::{Value, json};
use store::NewAlert;

use super::*;

const NOW: i64 = 1_800_000_000_000_000_000;

fn any(value: Any) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn text(text: &str) -> AnyValue {
    any(Any::StringValue(text.to_owned()))
}

fn pair(key: &str, value: AnyValue) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(value),
        ..KeyValue::default()
    }
}

fn request(records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let attributes = vec![
        pair("host.name", text("box")),
        pair("service.name", text("shop")),
    ];
    let scope = InstrumentationScope {
        name: "lib".to_owned(),
        ..InstrumentationScope::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(Resource {
                attributes,
                ..Resource::default()
            }),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope),
                log_records: records,
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    }
}

fn alert(record: LogRecord) -> (NewAlert, Value) {
    let sorted = sort(&request(vec![record]), NOW).expect("within the bounds");
    assert_eq!(sorted.rejected, 0, "{}", sorted.reason);
    let Some(Record::Alert(alert, _)) = sorted.accepted.into_iter().next() else {
        panic!("no alert")
    };
    let body = serde_json::from_str(&alert.body).expect("JSON");
    (alert, body)
}

#[test]
fn a_record_becomes_an_alert_of_its_host_with_its_attributes() {
    let list = vec![any(Any::IntValue(-1)), AnyValue::default()];
    let pairs = vec![pair("k", any(Any::BoolValue(true)))];
    let record = LogRecord {
        time_unix_nano: 1_767_323_045_000_000_006,
        severity_number: 13,
        body: Some(text("opened")),
        event_name: "file.open".to_owned(),
        trace_id: vec![0xab, 1],
        attributes: vec![
            pair("proc.name", text("cat")),
            pair("fd.name", text("/proc/12/mem")),
            pair("service.name", text("of the record")),
            pair("list", any(Any::ArrayValue(ArrayValue { values: list }))),
            pair("map", any(Any::KvlistValue(KeyValueList { values: pairs }))),
            pair("bytes", any(Any::BytesValue(vec![0, 255]))),
            pair("nan", any(Any::DoubleValue(f64::NAN))),
            pair("none", AnyValue::default()),
        ],
        ..LogRecord::default()
    };
    let (alert, body) = alert(record);
    assert_eq!(
        (&*alert.rule, &*alert.host, &*alert.program, &*alert.object),
        ("file.open", "box", "cat", "/proc/*/mem")
    );
    assert_eq!(
        (&*alert.message, alert.severity.name()),
        ("opened", "Warning")
    );
    assert_eq!(alert.time_ns, 1_767_323_045_000_000_006);
    let fields = json!({
        "proc.name": "cat", "fd.name": "/proc/12/mem", "service.name": "of the record",
        "list": [-1, null], "map": {"k": true}, "bytes": "AP8=", "nan": "NaN", "none": null,
        "trace_id": "ab01",
    });
    assert_eq!(body["output_fields"], fields);
    assert_eq!(
        (&body["source"], &body["tags"]),
        (&json!("otlp"), &json!([]))
    );
}

#[test]
fn names_of_falco_come_back_from_their_attributes() {
    let tags = vec![text("host"), text("T1555")];
    let record = LogRecord {
        event_name: "other".to_owned(),
        attributes: vec![
            pair("falco.rule", text("Mark")),
            pair("falco.source", text("syscall")),
            pair(
                "falco.tags",
                any(Any::ArrayValue(ArrayValue { values: tags })),
            ),
        ],
        ..LogRecord::default()
    };
    let (alert, body) = alert(record);
    assert_eq!((&*alert.rule, alert.time_ns), ("Mark", NOW));
    assert_eq!(body["source"], "syscall");
    assert_eq!(body["tags"], json!(["host", "T1555"]));
    assert_eq!(body["output_fields"], json!({"service.name": "shop"}));
}

#[test]
fn a_record_without_a_rule_has_the_name_of_its_event_or_scope() {
    let attributes = vec![pair("event.name", text("e"))];
    let with_event = LogRecord {
        attributes,
        ..LogRecord::default()
    };
    assert_eq!(alert(with_event).0.rule, "e");
    assert_eq!(alert(LogRecord::default()).0.rule, "lib");
    let mut request = request(vec![LogRecord::default()]);
    request.resource_logs[0].scope_logs[0].scope = None;
    request.resource_logs[0].resource = None;
    let sorted = sort(&request, NOW).expect("within the bounds");
    let [Record::Alert(alert, _)] = &sorted.accepted[..] else {
        panic!("no alert")
    };
    assert_eq!((&*alert.rule, &*alert.host), ("OTLP log record", ""));
}

#[test]
fn severities_are_those_that_the_own_output_sends_and_all_between() {
    let of = |severity_number, severity_text: &str| {
        let record = LogRecord {
            severity_number,
            severity_text: severity_text.to_owned(),
            ..LogRecord::default()
        };
        alert(record).0.severity.name()
    };
    // What `outputs` makes of Falco's priorities, the most urgent first.
    let sent = [21, 19, 18, 17, 13, 10, 9, 5];
    let names = store::Severity::all().map(store::Severity::name);
    for (number, name) in sent.into_iter().zip(names) {
        assert_eq!(of(number, "misleading"), name, "{number}");
    }
    for (number, name) in [
        (1, "Debug"),
        (12, "Notice"),
        (16, "Warning"),
        (20, "Alert"),
        (24, "Emergency"),
    ] {
        assert_eq!(of(number, ""), name, "{number}");
    }
    for (text, name) in [
        ("WARN", "Warning"),
        ("Critical", "Critical"),
        ("fatal", "Emergency"),
        ("", "Informational"),
        ("SEVERE", "Informational"),
    ] {
        assert_eq!(of(0, text), name, "{text}");
    }
}

#[test]
fn a_record_that_cannot_be_an_alert_is_rejected_and_others_are_not() {
    let bad_number = LogRecord {
        severity_number: 25,
        ..LogRecord::default()
    };
    let no_name = LogRecord {
        attributes: vec![pair("", text("x"))],
        ..LogRecord::default()
    };
    let too_long = LogRecord {
        body: Some(text(&"x".repeat(alert::MAX_ALERT))),
        ..LogRecord::default()
    };
    let index = LogRecord {
        body: Some(any(Any::StringValueStrindex(3))),
        ..LogRecord::default()
    };
    let records = vec![bad_number, LogRecord::default(), no_name, too_long, index];
    let sorted = sort(&request(records), NOW).expect("within the bounds");
    assert_eq!((sorted.accepted.len(), sorted.rejected), (1, 4));
    assert_eq!(sorted.reason, "the severity number 25 is not from 0 to 24");
}

#[test]
fn attributes_of_a_resource_are_not_multiplied_beyond_a_bound() {
    let mut request = request(vec![LogRecord::default(); 1000]);
    let resource = request.resource_logs[0]
        .resource
        .as_mut()
        .expect("it has one");
    resource
        .attributes
        .push(pair("large", text(&"x".repeat(100_000))));
    let refusal = sort(&request, NOW).expect_err("100 MB");
    assert_eq!(refusal.status, StatusCode::PAYLOAD_TOO_LARGE);
    let too_many = self::request(vec![LogRecord::default(); MAX_RECORDS + 1]);
    let refusal = sort(&too_many, NOW).expect_err("too many");
    assert!(
        refusal.message.contains("more than 10000"),
        "{}",
        refusal.message
    );
}

/// Returns a field that has a message, as it is on the wire.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend(content);
    out
}

#[test]
fn small_bodies_with_many_messages_are_refused_before_they_are_decoded() {
    let records = field(2, &[0x12, 0].repeat(200_001));
    let attributes = field(2, &field(2, &[0x32, 0].repeat(500_001)));
    let values = field(6, &field(2, &field(5, &[0x0a, 0].repeat(500_001))));
    for inner in [
        [0x0a, 0].repeat(200_001),
        field(1, &records),
        field(1, &attributes),
        field(1, &field(2, &field(2, &values))),
        // In a group, which no message here has.
        field(1, &[&[0x7b], &*records, &[0x7c]].concat()),
    ] {
        let refusal = Encoding::Protobuf.decode(&inner).expect_err("too many");
        assert_eq!(
            refusal.status,
            StatusCode::PAYLOAD_TOO_LARGE,
            "{}",
            refusal.message
        );
    }
    let in_records = |what: &str, number: usize| {
        let all = format!("{what},").repeat(number);
        format!(
            r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{}]}}]}}]}}"#,
            &all[..all.len() - 1]
        )
    };
    let attributes = format!(r#"{{"attributes":[{}{{}}]}}"#, "{},".repeat(500_001));
    for text in [
        in_records("{}", 200_001),
        in_records(&attributes, 1),
        in_records("[]", 200_001),
        in_records("0", 1_000_002),
    ] {
        let refusal = Encoding::Json
            .decode(text.as_bytes())
            .expect_err("too many");
        assert_eq!(
            refusal.status,
            StatusCode::PAYLOAD_TOO_LARGE,
            "{}",
            refusal.message
        );
    }
    // Brackets and commas in a text are none.
    let body = format!(
        r#"{{"body":{{"stringValue":"\\\"{}"}}}}"#,
        "[{,".repeat(500_000)
    );
    let request = Encoding::Json.decode(in_records(&body, 1).as_bytes());
    request.expect("one record");
}

#[test]
fn what_is_no_request_is_refused_with_the_reason() {
    let mut deep = Vec::new();
    for _ in 0..200 {
        deep = field(1, &field(5, &deep));
    }
    let deep = field(1, &field(2, &field(2, &field(5, &deep))));
    for bytes in [&b"\xff\xff"[..], &[0x0a, 5, 1], &[0x0e], &deep, b"<html>"] {
        let refusal = Encoding::Protobuf.decode(bytes).expect_err("hostile");
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        assert!(
            refusal.message.starts_with("cannot read the request: "),
            "{}",
            refusal.message
        );
    }
    let deep = format!("{{\"resourceLogs\":{}", "[".repeat(100_000));
    let level = r#"{"arrayValue":{"values":["#;
    let values = format!(
        r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{}{}"#,
        level.repeat(5000),
        "]}}".repeat(5000)
    );
    for text in [
        "",
        "[]",
        "[[]]",
        "\"x\"",
        "{",
        "{\"resourceLogs\":7}",
        "{\"resourceLogs\":[{\"scopeLogs\":[{\"logRecords\":[{\"timeUnixNano\":\"-1\"}]}]}]}",
        "{\"resourceLogs\":[{\"scopeLogs\":[{\"logRecords\":[{\"traceId\":\"zz\"}]}]}]}",
        &deep,
        &values,
    ] {
        let refusal = Encoding::Json.decode(text.as_bytes()).expect_err(text);
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        assert!(refusal.message.len() < 1000, "{}", refusal.message);
    }
}

#[test]
fn unknown_members_and_fields_are_passed_over() {
    let json =
        r#"{"new":[1],"resourceLogs":[{"new":{},"scopeLogs":[{"logRecords":[{"new":"x"}]}]}]}"#;
    let request = Encoding::Json.decode(json.as_bytes()).expect("it is one");
    assert_eq!(request.resource_logs[0].scope_logs[0].log_records.len(), 1);
    let record = [&[0x7a, 1, b'x'][..], &[0x10, 9]].concat();
    let bytes = field(1, &field(2, &field(2, &record)));
    let request = Encoding::Protobuf.decode(&bytes).expect("it is one");
    let record = &request.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(record.severity_number, 9);
}

#[test]
fn an_empty_list_in_json_has_to_be_written() {
    let of = |list: &str| {
        let json = format!(
            r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{{"arrayValue":{list}}}}}]}}]}}]}}"#
        );
        Encoding::Json.decode(json.as_bytes())
    };
    of(r#"{"values":[]}"#).expect("it is one");
    let refusal = of("{}").expect_err("it is not written");
    assert!(
        refusal.message.contains("missing field `values`"),
        "{}",
        refusal.message
    );
}
