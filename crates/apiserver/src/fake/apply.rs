//! How the API server in memory joins what writers apply.

use serde_json::{Map, Value};

/// A status after a writer that had applied `before` has applied `new`.
pub(super) fn applied(old: &Value, before: Option<&Value>, new: &Value) -> Value {
    // An object that has no status yet begins with an empty one.
    let mut status = old.as_object().cloned().unwrap_or_default();
    for key in before
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
    {
        if key != "conditions" {
            status.remove(key);
        }
    }
    let kinds = |status: Option<&Value>| -> Vec<Value> {
        let list = status.and_then(|status| status["conditions"].as_array());
        list.into_iter()
            .flatten()
            .map(|one| one["type"].clone())
            .collect()
    };
    let mut own = kinds(before);
    own.extend(kinds(Some(new)));
    let mut conditions = status
        .remove("conditions")
        .and_then(|all| all.as_array().cloned())
        .unwrap_or_default();
    conditions.retain(|one| !own.contains(&one["type"]));
    // A writer that applies no status takes its fields back.
    let mut new = new.as_object().cloned().unwrap_or_default();
    if let Some(Value::Array(more)) = new.remove("conditions") {
        conditions.extend(more);
    }
    status.extend(new);
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
    Value::Object(status)
}

/// Puts the fields of `new` into `old`.
pub(super) fn merge(old: &mut Value, new: &Value) {
    match (old.as_object_mut(), new) {
        (Some(fields), Value::Object(new)) => {
            for (key, value) in new {
                if value.is_null() {
                    fields.remove(key);
                    continue;
                }
                merge(fields.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => *old = new.clone(),
    }
}
