//! From a log record to the JSON of an alert.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use serde_json::{Map, Number, Value, json};
use store::Severity;

/// Rule of a record that names none.
const NO_RULE: &str = "OTLP log record";

/// Attributes in which tollgate sends what is no field of an alert, and which become that again.
const RULE: &str = "falco.rule";
const SOURCE: &str = "falco.source";
const TAGS: &str = "falco.tags";

/// What the records of a scope have in common.
pub(super) struct Origin<'r> {
    host: &'r str,
    attributes: &'r [KeyValue],
    scope: &'r str,
}

impl<'r> Origin<'r> {
    pub(super) fn of(logs: &'r ResourceLogs, scope: &'r ScopeLogs) -> Self {
        // Both may be missing: a request may come without a resource, and a resource without a host. An alert without a host
        // has an empty name, as one of Falco has.
        let attributes = logs.resource.as_ref().map_or(&[][..], |it| &it.attributes);
        Self {
            host: named(attributes, "host.name").unwrap_or(""),
            attributes,
            scope: scope.scope.as_ref().map_or("", |scope| &scope.name),
        }
    }
}

/// Returns the alert of a record as Falco writes it.
///
/// # Errors
///
/// The reason why the record cannot be one.
pub(super) fn alert(record: &LogRecord, origin: &Origin<'_>) -> Result<String, String> {
    let fields = fields(record, origin)?;
    let attributes = &record.attributes;
    let given = [
        named(attributes, RULE),
        Some(&*record.event_name),
        named(attributes, "event.name"),
        Some(origin.scope),
        Some(NO_RULE),
    ];
    let rule = given.into_iter().flatten().find(|name| !name.is_empty());
    let output = match record.body.as_ref().map(value).transpose()? {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    let tags = attributes.iter().find(|it| it.key == TAGS);
    let tags = tags
        .and_then(|it| it.value.as_ref())
        .map(value)
        .transpose()?;
    let mut alert = json!({
        "hostname": origin.host,
        "output": output,
        "output_fields": fields,
        "priority": severity(record)?.name(),
        "rule": rule,
        "source": named(attributes, SOURCE).unwrap_or("otlp"),
        "tags": tags.filter(Value::is_array).unwrap_or_else(|| json!([])),
    });
    let times = [record.time_unix_nano, record.observed_time_unix_nano];
    if let Some(time) = times.into_iter().find(|time| *time > 0) {
        let time = Timestamp::from_nanosecond(time.into()).map_err(|error| error.to_string())?;
        // With nine digits, as alerts have it.
        alert["time"] = format!("{time:.9}").into();
    }
    serde_json::to_string(&alert).map_err(|error| error.to_string())
}

/// Returns the attributes of a record and its resource. Of one name, that of the record counts.
fn fields(record: &LogRecord, origin: &Origin<'_>) -> Result<Map<String, Value>, String> {
    let mut fields = Map::new();
    let of_resource = origin.attributes.iter().filter(|it| it.key != "host.name");
    let of_record = record.attributes.iter();
    let of_record = of_record.filter(|it| ![RULE, SOURCE, TAGS].contains(&&*it.key));
    for attribute in of_resource.chain(of_record) {
        if attribute.key.is_empty() {
            return Err("an attribute has no name".to_owned());
        }
        let value = attribute.value.as_ref().map_or(Ok(Value::Null), value)?;
        fields.insert(attribute.key.clone(), value);
    }
    if record.severity_number == 0 && !record.severity_text.is_empty() {
        fields.insert(
            "severity_text".to_owned(),
            record.severity_text.as_str().into(),
        );
    }
    for (name, id) in [("trace_id", &record.trace_id), ("span_id", &record.span_id)] {
        if !id.is_empty() && !fields.contains_key(name) {
            let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            fields.insert(name.to_owned(), hex.into());
        }
    }
    Ok(fields)
}

/// Returns the text of an attribute.
fn named<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text),
        _ => None,
    }
}

fn value(any: &AnyValue) -> Result<Value, String> {
    Ok(match &any.value {
        None => Value::Null,
        Some(Any::StringValue(text)) => text.as_str().into(),
        Some(Any::BoolValue(value)) => (*value).into(),
        Some(Any::IntValue(number)) => (*number).into(),
        // JSON has no number for what is infinite.
        Some(Any::DoubleValue(number)) => {
            Number::from_f64(*number).map_or_else(|| number.to_string().into(), Value::Number)
        }
        Some(Any::BytesValue(bytes)) => STANDARD.encode(bytes).into(),
        Some(Any::ArrayValue(list)) => list.values.iter().map(value).collect::<Result<_, _>>()?,
        Some(Any::KvlistValue(list)) => {
            let pair = |pair: &KeyValue| {
                let value = pair.value.as_ref().map_or(Ok(Value::Null), value)?;
                Ok::<_, String>((pair.key.clone(), value))
            };
            Value::Object(list.values.iter().map(pair).collect::<Result<_, _>>()?)
        }
        Some(Any::StringValueStrindex(_)) => {
            return Err("a value is an index of a table, which log records do not have".to_owned());
        }
    })
}

/// Returns the severity of a record by its number, which says the most; without one, by its text.
fn severity(record: &LogRecord) -> Result<Severity, String> {
    let name = match record.severity_number {
        1..=8 => "Debug",
        9 => "Informational",
        10..=12 => "Notice",
        13..=16 => "Warning",
        17 => "Error",
        18 => "Critical",
        19 | 20 => "Alert",
        21..=24 => "Emergency",
        0 => by_text(&record.severity_text),
        other => return Err(format!("the severity number {other} is not from 0 to 24")),
    };
    Ok(Severity::named(name).unwrap_or(Severity::DEBUG))
}

/// Names of severities that others use, beside those of Falco.
fn by_text(text: &str) -> &'static str {
    match text.to_ascii_lowercase().as_str() {
        "trace" => "Debug",
        "warn" => "Warning",
        "err" => "Error",
        "crit" => "Critical",
        "emerg" | "fatal" | "panic" => "Emergency",
        // OpenTelemetry has a record without a severity, or with an unknown one, for information.
        name => Severity::named(name).map_or("Informational", Severity::name),
    }
}
