//! The settings as a JSON schema.

use serde_json::{Map, Value, json};

use super::keys::KEYS;

/// Returns the JSON schema of all settings that have an effect. Keys that are not listed cause a
/// warning.
#[must_use]
pub fn schema() -> Value {
    let mut root = Map::new();
    for key in KEYS.iter() {
        let mut group = &mut root;
        let mut names = key.path.split('.').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                group.insert(name.to_owned(), json!({ "type": key.json_type }));
                break;
            }
            let child = group
                .entry(name)
                .or_insert_with(|| json!({ "type": "object", "properties": {} }));
            group = child["properties"]
                .as_object_mut()
                .expect("a group has properties, because no key is another's beginning");
        }
    }
    json!({
        "$schema": "http://json-schema.org/draft-06/schema#",
        "type": "object",
        "properties": root,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_type_where_it_belongs() {
        let schema = schema();
        let properties = &schema["properties"];
        assert_eq!(properties["json_output"]["type"], "boolean");
        let ring = &properties["engine"]["properties"]["modern_ebpf"]["properties"];
        assert_eq!(ring["buf_size_preset"]["type"], "integer");
        assert_eq!(properties["rules"]["type"], "array");
    }
}
