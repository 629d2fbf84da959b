//! The OpenAPI document says what the collector does: each of its operations answers with what it declares.

mod started;

use serde_json::{Value, json};
use store::Scope;
use ureq::Agent;

use self::started::Started;

struct Fixture {
    started: Started,
    tokens: [(&'static str, String); 4],
}

fn fixture() -> Fixture {
    let started = started::start(|_| {});
    let token = |scope| started.token(scope).1;
    let tokens = [
        ("a token of agents", token(Scope::Agents("a".to_owned()))),
        ("a token of a viewer", token(Scope::Viewer)),
        ("a token of an operator", token(Scope::Operator)),
        ("the secret of an agent", String::new()),
    ];
    let mut fixture = Fixture { started, tokens };
    let (_, answer) = fixture.ask(
        "post",
        "/api/v1/agents",
        "a token of agents",
        r#"{"host":"h"}"#,
    );
    let secret = answer["secret"].as_str().expect("a secret").to_owned();
    fixture.tokens[3].1 = secret;
    let alert = r#"{"rule":"r","priority":"Error","output":"o","output_fields":{"proc.name":"p"}}"#;
    let body = format!("{alert}\n{{\"loss\":\"unwatched\",\"count\":3}}\n");
    let (status, _) = fixture.ask("post", "/api/v1/batches", "the secret of an agent", &body);
    assert_eq!(status, 200);
    let inventory = r#"{"captures": true}"#;
    let (status, _) = fixture.ask(
        "put",
        "/api/v1/inventory",
        "the secret of an agent",
        inventory,
    );
    assert_eq!(status, 200);
    fixture
}

impl Fixture {
    fn ask(&self, method: &str, path: &str, who: &str, body: &str) -> (u16, Value) {
        let address = self.started.address;
        let secret = self.tokens.iter().find(|(name, _)| *name == who);
        let mut request = ureq::http::Request::builder()
            .method(&*method.to_uppercase())
            .header("tollgate-sequence", "1")
            .header("content-type", "application/json")
            .uri(format!("http://{address}{path}"));
        if let Some((_, secret)) = secret {
            request = request.header("Authorization", format!("Bearer {secret}"));
        }
        let client = Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let request = request.body(body.to_owned()).expect("a request");
        let mut answer = client.run(request).expect("it answers");
        let text = answer.body_mut().read_to_string().expect("text");
        let content_type = answer.headers().get("content-type");
        if content_type.is_some_and(|it| it == "application/octet-stream") {
            // A file, which has no schema.
            assert_eq!(text, "scap");
            return (answer.status().as_u16(), Value::Null);
        }
        if content_type.is_some_and(|it| it == "text/plain; version=0.0.4") {
            return (answer.status().as_u16(), Value::String(text));
        }
        let value = serde_json::from_str(&text);
        (
            answer.status().as_u16(),
            value.unwrap_or_else(|_| panic!("{method} {path}: {text}")),
        )
    }
}

/// Says where a value differs from its schema.
fn differs(document: &Value, schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#'));
        return differs(document, schema.expect("it exists"), value, place);
    }
    if let Some(all) = schema["allOf"].as_array() {
        return all
            .iter()
            .find_map(|schema| differs(document, schema, value, place));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = match &schema["type"] {
        Value::String(name) => name == kind,
        Value::Array(names) => names.iter().any(|name| name == kind),
        _ => false,
    };
    if !is_kind {
        return Some(format!("{place}: {value} is no {}", schema["type"]));
    }
    if let Some(known) = schema["enum"]
        .as_array()
        .filter(|known| !known.contains(value))
    {
        return Some(format!("{place}: {value} is not in {known:?}"));
    }
    let required = schema["required"].as_array().into_iter().flatten();
    let missing = required
        .filter_map(Value::as_str)
        .find(|name| value.get(name).is_none());
    if let Some(name) = missing {
        return Some(format!("{place}: there is no `{name}`"));
    }
    let members = schema["properties"].as_object().into_iter().flatten();
    let of_members = members.filter_map(|(name, schema)| {
        differs(
            document,
            schema,
            value.get(name)?,
            &format!("{place}.{name}"),
        )
    });
    let items = value.as_array().into_iter().flatten();
    let of_items =
        items.filter_map(|item| differs(document, &schema["items"], item, &format!("{place}[]")));
    of_members.chain(of_items).next()
}

/// Body with which an operation succeeds.
fn body(operation: &str) -> &'static str {
    match operation {
        "sendAlert" | "sendAlertToRoot" => r#"{"rule":"r","priority":"Debug"}"#,
        "announceCapture" => r#"{"rule":"r","time_ns":1,"before_ms":2,"after_ms":3}"#,
        "enrol" => r#"{"host":"h"}"#,
        "heartbeat" => {
            r#"{"kernel":"6.1","captures":true,"labels":{"tier":"db"},"bundle":{"digest":null,"refused":null}}"#
        }
        "sendBatch" => "-\n",
        "requestCapture" => r#"{"agent":1,"seconds":1}"#,
        "sendChunk" => "scap",
        "endCapture" => r#"{"chunks":1,"events":1,"lost":0,"failure":null}"#,
        "sendLogs" => {
            r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{},{"severityNumber":99}]}]}]}"#
        }
        "acknowledge" => r#"{"acknowledged":true,"note":"n"}"#,
        _ => "",
    }
}

#[test]
fn each_operation_answers_as_the_document_says() {
    let fixture = fixture();
    let (status, document) = fixture.ask("get", "/api/v1/openapi.json", "nobody", "");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let paths = document["paths"].as_object().expect("paths");
    let mut seen = 0;
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("a name");
            let needs = operation["description"].as_str().expect("who may");
            let needs = needs.trim_start_matches("Needs: ").trim_end_matches('.');
            let path = path.replace("{id}", "1").replace("{number}", "0");
            let (status, answer) = fixture.ask(method, &path, needs, body(id));
            let declared = &operation["responses"][status.to_string()];
            assert!(
                (200..300).contains(&status) && declared.is_object(),
                "{id}: {status} {answer}"
            );
            let kind = match id {
                "metrics" => "text/plain",
                _ => "application/json",
            };
            let schema = &declared["content"][kind]["schema"];
            match schema.is_null() {
                true => assert_eq!(id, "downloadCapture"),
                false => assert_eq!(differs(&document, schema, &answer, id), None, "{answer}"),
            }
            seen += 1;
            if operation["security"].as_array().is_some_and(Vec::is_empty) {
                continue;
            }
            let (anonymous, answer) = fixture.ask(method, &path, "nobody", body(id));
            assert_eq!(anonymous, 401, "{id}");
            let declared = &operation["responses"]["401"];
            let error = &declared["content"]["application/json"]["schema"];
            assert_eq!(differs(&document, error, &answer, id), None);
        }
    }
    // `routes.rs` compares them with the router.
    assert_eq!(seen, 24);
}

#[test]
fn each_declared_filter_is_known_and_no_other_is() {
    let fixture = fixture();
    let (_, document) = fixture.ask("get", "/api/v1/openapi.json", "nobody", "");
    for path in ["/api/v1/alerts", "/api/v1/groups", "/api/v1/overview"] {
        let parameters = &document["paths"][path]["get"]["parameters"];
        for parameter in parameters.as_array().expect("filters") {
            let name = parameter["name"].as_str().expect("a name");
            let (status, answer) =
                fixture.ask("get", &format!("{path}?{name}="), "a token of a viewer", "");
            assert_eq!(status, 200, "{name}: {answer}");
        }
        let (status, _) = fixture.ask(
            "get",
            &format!("{path}?colour=red"),
            "a token of a viewer",
            "",
        );
        assert_eq!(status, 400);
    }
}
