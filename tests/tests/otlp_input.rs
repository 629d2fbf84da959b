//! Alerts that go out as log records, and come in at `tollgate serve` as log records, are the same.

use e2e::Scratch;
use e2e::collector::{Collector, get, token};
use e2e::marks::{self, THRICE};
use serde_json::Value;

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name process=%proc.name dup=%evt.num
  priority: WARNING
  tags: [host, T1555]
";

/// Returns the fields of an alert as a record has them: without those that have no value.
fn present(fields: &Value) -> serde_json::Map<String, Value> {
    let fields = fields.as_object().expect("fields").clone();
    fields.into_iter().filter(|(_, it)| !it.is_null()).collect()
}

#[test]
fn alerts_that_the_own_collector_takes_are_what_was_sent() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let sender = token(&store, &["--agent-class", "web"]);
    let reader = token(&store, &["--role", "viewer"]);
    let collector = Collector::without_tls(&store, "127.0.0.1:0");
    let endpoint = format!("otlp_output.endpoint=http://{}", collector.address());
    let header = format!("otlp_output.headers={{Authorization: Bearer {sender}}}");
    for further in [
        "otlp_output.protocol=http/json",
        "otlp_output.compression=gzip",
    ] {
        let watched = {
            let enabled = "otlp_output.enabled=true";
            let watch = marks::marking_by(THRICE, MARK);
            marks::set(watch, &[enabled, &endpoint, &header, further]).run()
        };
        let is_mark = |line: &&str| line.contains("marked file=");
        let sent = watched.log.lines().filter(is_mark);
        let sent = sent.map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
        let mut sent: Vec<Value> = sent.collect();
        assert_eq!(sent.len(), 3, "{}", watched.story());
        sent.reverse();
        // The latest first.
        let kept = get(
            collector.address(),
            "/api/v1/alerts?rule=Mark&limit=3",
            &reader,
        );
        let kept = kept["alerts"].as_array().expect("a list");
        assert_eq!(kept.len(), 3, "{kept:?}");
        for (kept, sent) in kept.iter().zip(&sent) {
            let alert = &kept["alert"];
            for member in ["hostname", "priority", "rule", "source", "tags", "time"] {
                assert_eq!(alert[member], sent[member], "{member}");
            }
            let output = sent["output"].as_str().expect("a text");
            let (_, message) = output.split_once("Warning ").expect("a priority");
            assert_eq!(alert["output"], message);
            let mut fields = present(&alert["output_fields"]);
            assert_eq!(fields.remove("service.name"), Some("tollgate".into()));
            let sent_fields = present(&sent["output_fields"]);
            for (name, value) in &fields {
                assert_eq!(Some(value), sent_fields.get(name), "{name}");
            }
            assert!(fields.contains_key("proc.name") && fields.contains_key("fd.name"));
            assert_eq!(
                (&kept["host"], &kept["program"]),
                (&sent["hostname"], &fields["proc.name"])
            );
        }
    }
}
