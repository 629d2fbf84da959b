//! What the begin of an alert says that is too long to be read: a program must not hide what it does by a long command line.

use serde_json::{Map, Value, json};

/// Name of a rule that is not known.
pub(crate) const UNKNOWN: &str = "unknown";
/// Members of alerts that are looked for. Values that are too long to be there as a whole are left out.
const MEMBERS: [&str; 11] = [
    "container.id",
    "container.name",
    "evt.type",
    "k8s.ns.name",
    "k8s.pod.name",
    "policy.action",
    "policy.enforcer",
    "policy.errno",
    "policy.operation",
    "policy.rule",
    "proc.name",
];

/// An alert of what is known. One whose rule is not known counts as a violation.
pub(crate) fn alert(head: &[u8]) -> Value {
    let mut fields = Map::new();
    for name in MEMBERS {
        if let Some(text) = member(head, name) {
            fields.insert(name.to_owned(), Value::from(text));
        }
    }
    fields
        .entry("policy.rule")
        .or_insert_with(|| Value::from(UNKNOWN));
    json!({ "time": member(head, "time"), "tags": ["policy"], "output_fields": fields })
}

/// The text that a member has. Texts of programs are inside of strings, where a quote has a backslash before it: none of them can
/// look like a member.
fn member(head: &[u8], name: &str) -> Option<String> {
    let begin = format!("\"{name}\":\"");
    let at = head
        .windows(begin.len())
        .position(|window| window == begin.as_bytes())?;
    let value = &head[at + begin.len() - 1..];
    let mut values = serde_json::Deserializer::from_slice(value).into_iter::<String>();
    values.next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_what_is_left_and_texts_do_not_look_like_them() {
        let text = json!({ "output": "\"policy.rule\":\"none\"", "output_fields": {
            "container.id": "65c3b4d6b9ca", "policy.rule": "disallow-\"mount", "proc.name": "\"evt.type\":\"x" } });
        let text = text.to_string();
        let found = alert(text.as_bytes());
        let fields = json!({ "container.id": "65c3b4d6b9ca", "policy.rule": "disallow-\"mount",
            "proc.name": "\"evt.type\":\"x" });
        assert_eq!(found["output_fields"], fields);
        let end = text.find("mount").unwrap();
        let found = alert(&text.as_bytes()[..end]);
        assert_eq!(found["output_fields"]["policy.rule"], UNKNOWN);
        assert_eq!(found["output_fields"]["container.id"], "65c3b4d6b9ca");
    }
}
