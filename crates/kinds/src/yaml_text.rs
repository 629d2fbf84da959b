//! JSON as YAML that people read.

use serde_json::Value;

/// The objects as a stream of YAML documents.
///
/// ```
/// let object = serde_json::json!({"kind": "A", "list": [{"b": "yes"}], "none": {}});
/// assert_eq!(kinds::yaml_text::stream(&[object]), "---\nkind: A\nlist:\n- b: \"yes\"\nnone: {}\n");
/// ```
#[must_use]
pub fn stream(objects: &[Value]) -> String {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        value(&mut out, object, 0, "");
    }
    out
}

/// Appends a value. `begun` is what the line has already that the value may stand behind.
fn value(out: &mut String, content: &Value, indent: usize, begun: &str) {
    match content {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (key, field)) in fields.iter().enumerate() {
                match index {
                    0 => out.push_str(begun),
                    _ => out.extend(std::iter::repeat_n(' ', indent)),
                }
                out.push_str(&scalar(key));
                out.push(':');
                nested(out, field, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                match index {
                    0 => out.push_str(begun),
                    _ => out.extend(std::iter::repeat_n(' ', indent)),
                }
                value(out, item, indent + 2, "- ");
            }
        }
        other => {
            out.push_str(begun);
            out.push_str(&inline(other));
            out.push('\n');
        }
    }
}

/// Appends the value of a key, on the lines below it or behind it.
fn nested(out: &mut String, field: &Value, indent: usize) {
    let spaces = |count: usize| " ".repeat(count);
    match field {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            value(out, field, indent + 2, &spaces(indent + 2));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            value(out, field, indent, &spaces(indent));
        }
        other => {
            out.push(' ');
            out.push_str(&inline(other));
            out.push('\n');
        }
    }
}

fn inline(content: &Value) -> String {
    match content {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// The text, in quotes unless every reader of YAML takes it for a text without them.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let lower = text.to_lowercase();
    let has_meaning = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    match is_word && !has_meaning.contains(&lower.as_str()) {
        true => text.to_owned(),
        false => yaml::quote::scalar(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_back(text: &str) -> Value {
        let (documents, error) = yaml::read(&"t".into(), text);
        assert!(error.is_none(), "{text}");
        from_node(&documents[0])
    }

    fn from_node(node: &yaml::Node) -> Value {
        match &node.kind {
            yaml::Kind::Mapping(pairs) => {
                let pairs = pairs.iter();
                let key = |key: &yaml::Node| key.scalar().unwrap().text().to_owned();
                Value::Object(
                    pairs
                        .map(|(name, value)| (key(name), from_node(value)))
                        .collect(),
                )
            }
            yaml::Kind::Sequence(items) => items.iter().map(from_node).collect(),
            _ => json!(node.scalar().unwrap().text()),
        }
    }

    #[test]
    fn nested_lists_and_mappings_are_read_as_they_were() {
        let object = json!({
            "a": [["x", "y z"], [], [{"b": {"c": ["1"]}, "d": "e"}]],
            "f": {"g": {"h": "- i"}, "j": {}},
            "x-k: l": "a\nb # c",
        });
        let text = stream(std::slice::from_ref(&object));
        let expected = object.to_string();
        let read = read_back(&text);
        assert_eq!(read.to_string(), expected, "{text}");
    }

    #[test]
    fn every_definition_is_read_as_it_was_made() {
        for crd in crate::crd::all() {
            let read = read_back(&stream(std::slice::from_ref(&crd)));
            assert_eq!(read["spec"]["names"], crd["spec"]["names"]);
            let rules =
                "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
            assert_eq!(read.pointer(rules), crd.pointer(rules));
        }
    }
}
