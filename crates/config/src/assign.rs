//! `-o KEY=VALUE`.
//!
//! ```text
//! assignment = path "=" value
//! path       = name { "." name | "[" [ number ] "]" }
//! ```
//!
//! `a[1]` replaces an item of a list or appends one right after its last; `a[]` always appends. A
//! backslash escapes a dot, a bracket or an equal sign in a name. A name right after a list means that key of
//! each of its items. As in Falco, the value is plain text, unless it begins with `{`: then it is YAML.

use std::path::Path;
use std::sync::Arc;

use yaml::settings::{self, Entry, Node, Origin, Problem, Value};

use super::keys::KEYS;

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Item(usize),
    Append,
}

/// Maximum length of a list extended by index. Setting items in order never reaches it, since one
/// past the end is allowed.
const MAX_ITEMS: usize = 10_000;

/// Applies an assignment to `root`.
pub(crate) fn assign(root: &mut Node, assignment: &str) -> Result<(), Problem> {
    let origin = Origin::Option(Arc::from(assignment));
    let (path, value) = split(assignment, &origin)?;
    let value = relocate(parse_value(value, &origin)?, &origin).value;
    if let [list @ Step::Name(name), Step::Name(_), ..] = &path[..]
        && is_list(name)
    {
        let list = descend(root, list, &origin)?;
        if list.value == Value::Null {
            list.value = Value::List(Vec::new());
        }
    }
    set(root, &path, &value, &origin)
}

/// Returns true for a setting that is a list, so that a name after it is a key of its items.
fn is_list(path: &str) -> bool {
    let found = KEYS.iter().find(|setting| setting.path == path);
    found.is_some_and(|setting| setting.json_type == "array")
}

/// Sets what `path` leads to below `node`.
fn set(node: &mut Node, path: &[Step], value: &Value, origin: &Origin) -> Result<(), Problem> {
    let Some((step, path)) = path.split_first() else {
        node.value = value.clone();
        node.origin = origin.clone();
        return Ok(());
    };
    if let (Step::Name(_), Value::List(items)) = (step, &mut node.value)
        && items.iter().all(|item| matches!(item.value, Value::Map(_)))
    {
        if items.is_empty() {
            let empty = Value::Map(Vec::new());
            let origin = origin.clone();
            items.push(Node {
                origin,
                value: empty,
            });
        }
        for item in items {
            set(descend(item, step, origin)?, path, value, origin)?;
        }
        return Ok(());
    }
    set(descend(node, step, origin)?, path, value, origin)
}

/// Returns a path as the value of an assignment. A brace at its start would make it YAML.
#[must_use]
pub fn path_value(path: &Path) -> String {
    let path = path.to_string_lossy();
    if path.starts_with('{') {
        format!("./{path}")
    } else {
        path.into_owned()
    }
}

fn parse_value(value: &str, origin: &Origin) -> Result<Node, Problem> {
    if value.starts_with('{') {
        return settings::read("", value).map_err(|problem| Problem {
            origin: origin.clone(),
            ..problem
        });
    }
    let value = Value::Scalar {
        text: value.to_owned(),
        quoted: value.is_empty(),
    };
    Ok(Node {
        origin: origin.clone(),
        value,
    })
}

/// Replaces positions inside the value, which mean nothing to the user, by the option's.
fn relocate(node: Node, origin: &Origin) -> Node {
    let value = match node.value {
        Value::List(items) => Value::List(
            items
                .into_iter()
                .map(|item| relocate(item, origin))
                .collect(),
        ),
        Value::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|entry| Entry {
                    origin: origin.clone(),
                    node: relocate(entry.node, origin),
                    ..entry
                })
                .collect(),
        ),
        value => value,
    };
    Node {
        origin: origin.clone(),
        value,
    }
}

fn descend<'n>(node: &'n mut Node, step: &Step, origin: &Origin) -> Result<&'n mut Node, Problem> {
    let empty = || Node {
        origin: origin.clone(),
        value: Value::Null,
    };
    match step {
        Step::Name(name) => {
            if node.value == Value::Null {
                node.value = Value::Map(Vec::new());
            }
            let described = node.describe();
            let Value::Map(entries) = &mut node.value else {
                let message = format!("cannot set `{name}` inside {described}");
                return Err(Problem::new(origin, message));
            };
            let at = entries
                .iter()
                .position(|entry| entry.key == *name)
                .unwrap_or_else(|| {
                    let key = name.clone();
                    entries.push(Entry {
                        key,
                        origin: origin.clone(),
                        node: empty(),
                    });
                    entries.len() - 1
                });
            Ok(&mut entries[at].node)
        }
        Step::Item(_) | Step::Append => {
            if node.value == Value::Null {
                node.value = Value::List(Vec::new());
            }
            let described = node.describe();
            let Value::List(items) = &mut node.value else {
                let message = format!("cannot set an item of {described}");
                return Err(Problem::new(origin, message));
            };
            let at = match step {
                Step::Item(at) => *at,
                Step::Append | Step::Name(_) => items.len(),
            };
            if at > items.len() || at >= MAX_ITEMS {
                let count = items.len();
                let message = format!("cannot set item {at} of a list of {count}");
                return Err(
                    Problem::new(origin, message).help("items count from 0; use [] to add one")
                );
            }
            if at == items.len() {
                items.push(empty());
            }
            Ok(&mut items[at])
        }
    }
}

/// Splits at the first equal sign without a backslash before it.
fn split<'a>(assignment: &'a str, origin: &Origin) -> Result<(Vec<Step>, &'a str), Problem> {
    let malformed = |message: &str| {
        Problem::new(origin, message)
            .help("write it as `-o outputs.rate=5` or `-o rules_files[0]=a.yaml`")
    };
    let mut steps = Vec::new();
    let mut rest = assignment;
    loop {
        if let Some(index) = rest.strip_prefix('[') {
            let Some((index, after)) = index.split_once(']') else {
                return Err(malformed("a `]` is missing"));
            };
            let item = match index {
                "" => Some(Step::Append),
                number => number.parse().ok().map(Step::Item),
            };
            steps.push(item.ok_or_else(|| malformed(&format!("invalid item number `{index}`")))?);
            rest = after;
        } else {
            let (name, after) = take_name(rest);
            if name.is_empty() {
                return Err(malformed("the key has an empty part"));
            }
            steps.push(Step::Name(name));
            rest = after;
        }
        match rest.chars().next() {
            Some('=') => return Ok((steps, &rest[1..])),
            Some('.') => rest = &rest[1..],
            Some('[') => {}
            Some(_) => return Err(malformed("after a `]` comes `.`, `[` or `=`")),
            None => return Err(malformed("`=` is missing")),
        }
    }
}

/// Returns the name at the start of `text`, unescaped, and the remaining text.
fn take_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            '.' | '=' | '[' => return (name, &text[at..]),
            c => name.push(c),
        }
    }
    (name, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Node {
        settings::read("c.yaml", "outputs:\n  rate: 1\nrules_files: [a, b]\n").unwrap()
    }

    fn find<'n>(node: &'n Node, key: &str) -> &'n Node {
        let Value::Map(entries) = &node.value else {
            panic!("{key}")
        };
        &entries.iter().find(|entry| entry.key == key).unwrap().node
    }

    #[test]
    fn nested_names_items_and_escapes_are_set() {
        let mut root = root();
        for assignment in [
            "outputs.rate=5",
            "outputs.max_burst=7",
            "rules_files[1]=B",
            "rules_files[2]=c",
            "rules_files[]=d",
            "deep.a[0].b[0].c=v=w",
            r"dotted\.name=x",
        ] {
            assign(&mut root, assignment).unwrap_or_else(|problem| panic!("{problem:?}"));
        }
        assert_eq!(find(find(&root, "outputs"), "rate").number(), Ok(5.0));
        assert_eq!(find(find(&root, "outputs"), "max_burst").integer(), Ok(7));
        let files = find(&root, "rules_files").list().unwrap();
        let files: Vec<_> = files.iter().map(|file| file.text().unwrap()).collect();
        assert_eq!(files, ["a", "B", "c", "d"]);
        let a = &find(find(&root, "deep"), "a").list().unwrap()[0];
        let b = &find(a, "b").list().unwrap()[0];
        assert_eq!(find(b, "c").text(), Ok("v=w"));
        assert_eq!(find(&root, "dotted.name").text(), Ok("x"));
    }

    #[test]
    fn a_value_is_text_unless_it_begins_with_a_brace() {
        let mut root = root();
        for value in [
            "*", "&a", "!x", "%a %b", "@a", "#a", "[x]", "a: b", "a # b", "'q'", "null", "~", "",
        ] {
            assign(&mut root, &format!("rules_files[0]={value}")).unwrap();
            let files = find(&root, "rules_files").list().unwrap();
            assert_eq!(files[0].text(), Ok(value));
        }
        assign(&mut root, "rules[]={disable: {rule: '*'}}").unwrap();
        let rule = &find(&root, "rules").list().unwrap()[0];
        assert_eq!(find(find(rule, "disable"), "rule").text(), Ok("*"));
        assert_eq!(rule.origin.to_string(), "-o rules[]={disable: {rule: '*'}}");
        assert!(assign(&mut root, "rules[]={disable").is_err());
    }

    #[test]
    fn a_name_after_a_list_sets_that_key_of_each_item() {
        let text = "append_output: [{suggested_output: true}, {extra_output: x}]\nrules: []\n";
        let mut root = settings::read("c.yaml", text).unwrap();
        assign(&mut root, "append_output.suggested_output=false").unwrap();
        assign(&mut root, "rules.disable.rule=*").unwrap();
        for item in find(&root, "append_output").list().unwrap() {
            assert_eq!(find(item, "suggested_output").boolean(), Ok(false));
        }
        let rule = &find(&root, "rules").list().unwrap()[0];
        assert_eq!(find(find(rule, "disable"), "rule").text(), Ok("*"));
    }

    #[test]
    fn a_name_after_an_absent_or_null_list_begins_its_first_item() {
        for text in [
            "outputs: {rate: 1}\n",
            "append_output:\n",
            "append_output: ~\n",
        ] {
            let mut root = settings::read("c.yaml", text).unwrap();
            assign(&mut root, "append_output.suggested_output=false").unwrap();
            // What `-pk` stands for comes after it.
            assign(&mut root, "append_output[]={suggested_output: true}").unwrap();
            let items = find(&root, "append_output").list().unwrap();
            let values: Vec<_> = items
                .iter()
                .map(|item| find(item, "suggested_output").boolean().unwrap())
                .collect();
            assert_eq!(values, [false, true], "{text}");
        }
    }

    #[test]
    fn malformed_assignments_are_refused() {
        for (assignment, message) in [
            ("outputs", "`=` is missing"),
            ("=5", "the key has an empty part"),
            ("a..b=5", "the key has an empty part"),
            ("a[=5", "a `]` is missing"),
            ("a[x]=5", "invalid item number `x`"),
            ("a[0]b=5", "after a `]` comes `.`, `[` or `=`"),
            ("rules_files[9]=x", "cannot set item 9 of a list of 2"),
            ("outputs[0]=x", "cannot set an item of a group of settings"),
            ("outputs.rate.x=1", "cannot set `x` inside `1`"),
            ("rules_files.x=1", "cannot set `x` inside a list"),
        ] {
            let problem = assign(&mut root(), assignment).unwrap_err();
            assert_eq!(problem.message, message, "{assignment}");
            assert_eq!(problem.origin.to_string(), format!("-o {assignment}"));
        }
    }
}
