//! Alerts as log records of OpenTelemetry.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use rules::{Alert, AlertValue, Priority};

use crate::channel::Delivery;

/// Builds one request of all alerts, with a resource per host.
pub(super) fn request(
    alerts: &[Arc<Delivery>],
    resource: &[(String, String)],
) -> ExportLogsServiceRequest {
    let mut all: Vec<(&str, Vec<LogRecord>)> = Vec::new();
    for alert in alerts.iter().map(|delivery| delivery.alert()) {
        let record = record(alert);
        match all.iter_mut().find(|(host, _)| *host == &*alert.hostname) {
            Some((_, records)) => records.push(record),
            None => all.push((&alert.hostname, vec![record])),
        }
    }
    let resource_logs = all.into_iter().map(|(host, log_records)| ResourceLogs {
        resource: Some(Resource {
            attributes: resource_attributes(resource, host),
            ..Resource::default()
        }),
        scope_logs: vec![ScopeLogs {
            scope: Some(InstrumentationScope {
                name: "tollgate".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            log_records,
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    });
    ExportLogsServiceRequest {
        resource_logs: resource_logs.collect(),
    }
}

/// Returns the resource attributes. The user's settings override `host.name`.
fn resource_attributes(resource: &[(String, String)], host: &str) -> Vec<KeyValue> {
    let set = resource.iter().map(|(name, value)| text(name, value));
    let has_host = resource.iter().any(|(name, _)| name == "host.name");
    let host = (!has_host).then(|| text("host.name", host));
    set.chain(host).collect()
}

fn record(alert: &Alert) -> LogRecord {
    let tags = alert.tags.iter().map(|tag| string(tag)).collect();
    let own = [
        text("falco.rule", &alert.rule),
        text("falco.source", &alert.source),
        attribute("falco.tags", Value::ArrayValue(ArrayValue { values: tags })),
    ];
    let fields = alert.fields.iter().filter_map(|(name, value)| {
        // An attribute without a value is omitted.
        Some(attribute(name, any(value)?.value?))
    });
    LogRecord {
        time_unix_nano: alert.time_ns,
        observed_time_unix_nano: alert.made_ns,
        severity_number: severity(alert.priority).into(),
        severity_text: alert.priority.to_string(),
        body: Some(string(&alert.message)),
        attributes: own.into_iter().chain(fields).collect(),
        ..LogRecord::default()
    }
}

/// Maps a priority to a severity number, like the syslog mapping of OpenTelemetry's log data model.
fn severity(priority: Priority) -> SeverityNumber {
    match priority {
        Priority::Emergency => SeverityNumber::Fatal,
        Priority::Alert => SeverityNumber::Error3,
        Priority::Critical => SeverityNumber::Error2,
        Priority::Error => SeverityNumber::Error,
        Priority::Warning => SeverityNumber::Warn,
        Priority::Notice => SeverityNumber::Info2,
        Priority::Informational => SeverityNumber::Info,
        Priority::Debug => SeverityNumber::Debug,
    }
}

fn any(value: &AlertValue) -> Option<AnyValue> {
    let value = match value {
        AlertValue::Absent => return None,
        AlertValue::Bool(value) => Value::BoolValue(*value),
        AlertValue::Int(value) => Value::IntValue(*value),
        AlertValue::Uint(value) => match i64::try_from(*value) {
            Ok(value) => Value::IntValue(value),
            // OpenTelemetry has no larger integer type.
            Err(_too_large) => Value::StringValue(value.to_string()),
        },
        AlertValue::Float(value) => Value::DoubleValue(*value),
        AlertValue::Text(text) => Value::StringValue(text.clone()),
        AlertValue::List(values) => {
            // In a list the index of a value matters, so an absent one stays as an empty value.
            let values = values.iter().map(|value| any(value).unwrap_or_default());
            Value::ArrayValue(ArrayValue {
                values: values.collect(),
            })
        }
    };
    Some(AnyValue { value: Some(value) })
}

fn string(text: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text.to_owned())),
    }
}

fn text(name: &str, value: &str) -> KeyValue {
    attribute(name, Value::StringValue(value.to_owned()))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::testing::deliveries;
    use crate::format::{Format, Formatter};

    fn alert() -> Alert {
        let mut alert = deliveries(1, Format::default()).remove(0).alert().clone();
        alert.time_ns = 1_795_248_942_000_000_007;
        alert.tags = vec!["host".to_owned(), "T1555".to_owned()].into();
        alert.fields = vec![
            ("proc.name".into(), AlertValue::Text("cat".to_owned())),
            ("user.name".into(), AlertValue::Absent),
            ("evt.rawres".into(), AlertValue::Int(-2)),
            ("evt.rawtime".into(), AlertValue::Uint(u64::MAX)),
            ("fd.is_server".into(), AlertValue::Bool(true)),
            (
                "proc.aname".into(),
                AlertValue::List(vec![AlertValue::Absent, AlertValue::Uint(3)]),
            ),
        ];
        alert
    }

    #[test]
    fn an_alert_is_a_record_with_its_fields_as_attributes() {
        let record = record(&alert());
        assert_eq!(record.time_unix_nano, 1_795_248_942_000_000_007);
        assert_eq!(record.severity_number, i32::from(SeverityNumber::Info2));
        assert_eq!(record.severity_text, "Notice");
        assert_eq!(record.body, Some(string("n=0")));
        let list = ArrayValue {
            values: vec![
                AnyValue::default(),
                AnyValue {
                    value: Some(Value::IntValue(3)),
                },
            ],
        };
        let tags = vec![string("host"), string("T1555")];
        let expected = [
            text("falco.rule", "t"),
            text("falco.source", "internal"),
            attribute("falco.tags", Value::ArrayValue(ArrayValue { values: tags })),
            text("proc.name", "cat"),
            attribute("evt.rawres", Value::IntValue(-2)),
            text("evt.rawtime", "18446744073709551615"),
            attribute("fd.is_server", Value::BoolValue(true)),
            attribute("proc.aname", Value::ArrayValue(list)),
        ];
        assert_eq!(record.attributes, expected);
    }

    #[test]
    fn more_urgent_priorities_have_larger_numbers() {
        let numbers = Priority::ALL
            .iter()
            .map(|priority| i32::from(severity(*priority)));
        let numbers: Vec<_> = numbers.collect();
        assert_eq!(numbers, [21, 19, 18, 17, 13, 10, 9, 5]);
    }

    #[test]
    fn each_host_has_its_resource() {
        let formatter = Arc::new(Formatter::new(Format::default()));
        let of = |host: &str| {
            let mut alert = alert();
            alert.hostname = host.into();
            Arc::new(Delivery::new(alert, Arc::clone(&formatter)))
        };
        let set = [("service.name".to_owned(), "s".to_owned())];
        let request = request(&[of("a"), of("b"), of("a")], &set);
        let [a, b] = &request.resource_logs[..] else {
            panic!("{request:?}")
        };
        let attributes = |logs: &ResourceLogs| logs.resource.clone().unwrap().attributes;
        let expected = |host| [text("service.name", "s"), text("host.name", host)];
        assert_eq!(attributes(a), expected("a"));
        assert_eq!(attributes(b), expected("b"));
        assert_eq!(a.scope_logs[0].log_records.len(), 2);
        let set = [("host.name".to_owned(), "mine".to_owned())];
        assert_eq!(resource_attributes(&set, "a"), [text("host.name", "mine")]);
    }
}
