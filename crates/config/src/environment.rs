//! Expands `${NAME}` in values to the environment variable, or to nothing if it is not set.
//! `$${NAME}` is the literal text `${NAME}`.

use yaml::settings::{Entry, Node, Value};

/// Expands every value of a tree. Names of keys stay unchanged.
pub(crate) fn expand(node: &mut Node, variable: &impl Fn(&str) -> Option<String>) {
    match &mut node.value {
        Value::Null => {}
        Value::Scalar { text, .. } => {
            if let Some(expanded) = expanded(text, variable) {
                *text = expanded;
            }
        }
        Value::List(items) => items.iter_mut().for_each(|item| expand(item, variable)),
        Value::Map(entries) => entries
            .iter_mut()
            .for_each(|Entry { node, .. }| expand(node, variable)),
    }
}

/// Returns the text with its variables expanded; `None` if it has none.
fn expanded(text: &str, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut is_changed = false;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let is_escaped = from.starts_with("$${");
        let opened = from.strip_prefix(if is_escaped { "$${" } else { "${" });
        let Some((name, after)) = opened.and_then(|opened| opened.split_once('}')) else {
            out.push('$');
            rest = &from[1..];
            continue;
        };
        is_changed = true;
        if is_escaped {
            out.push_str("${");
            out.push_str(name);
            out.push('}');
        } else if let Some(value) = variable(name) {
            out.push_str(&value);
        }
        rest = after;
    }
    out.push_str(rest);
    is_changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("box".to_owned()),
            "ON" => Some("true".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_and_escapes_kept() {
        for (text, expected) in [
            ("${HOST}", Some("box")),
            ("http://${HOST}:80/${HOST}", Some("http://box:80/box")),
            ("[${NONE}]", Some("[]")),
            ("$${HOST} and ${HOST}", Some("${HOST} and box")),
            ("a $ sign, $HOST and ${HOST", None),
            ("$x ${HOST}", Some("$x box")),
            ("plain", None),
        ] {
            assert_eq!(expanded(text, &variable).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_expanded_value_in_quotes_can_be_a_boolean() {
        let mut node =
            yaml::settings::read("c", "a: '${ON}'\nb: ['$${ON}', 'true']\n").expect("good YAML");
        expand(&mut node, &variable);
        let Value::Map(entries) = &node.value else {
            panic!("{node:?}")
        };
        assert_eq!(entries[0].node.boolean(), Ok(true));
        let items = entries[1].node.list().expect("a list");
        assert_eq!(items[0].text(), Ok("${ON}"));
        assert_eq!(items[1].boolean(), Ok(true));
    }
}
