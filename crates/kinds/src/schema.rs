//! Reads `data/schema.txt` and makes structural schemas of OpenAPI from it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The table of all types.
const TABLE: &str = include_str!("../data/schema.txt");

/// Pattern of a quantity such as `100m` or `1.5Gi`, as Kubernetes reads it.
const QUANTITY: &str = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))?$";

/// A line of the table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read line {line} of the table of schemas: {cause}")]
pub(crate) struct BadLine {
    pub(crate) line: usize,
    pub(crate) cause: String,
}

/// The types of a table.
#[derive(Debug, Default)]
pub(crate) struct Types(BTreeMap<String, Vec<(usize, Line)>>);

#[derive(Debug)]
enum Line {
    Field {
        name: String,
        required: bool,
        shape: String,
        meaning: String,
    },
    Keyword(String, Value),
    Rule {
        rule: String,
        message: String,
    },
}

impl Types {
    /// The types of `data/schema.txt`.
    pub(crate) fn load() -> Self {
        Self::parse(TABLE).expect("a test reads the table")
    }

    pub(crate) fn parse(table: &str) -> Result<Self, BadLine> {
        let mut types = Self::default();
        let mut current = None;
        for (index, text) in table.lines().enumerate() {
            let line = index + 1;
            let bad = |cause: &str| BadLine {
                line,
                cause: cause.to_owned(),
            };
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if let Some(name) = text.strip_prefix('[') {
                let name = name.strip_suffix(']').ok_or_else(|| bad("no `]`"))?;
                if types.0.insert(name.to_owned(), Vec::new()).is_some() {
                    return Err(bad("the type is defined twice"));
                }
                current = Some(name.to_owned());
                continue;
            }
            let parsed = parse_line(text).map_err(bad)?;
            let lines = current.as_ref().and_then(|name| types.0.get_mut(name));
            lines
                .ok_or_else(|| bad("no type has begun"))?
                .push((line, parsed));
        }
        Ok(types)
    }

    /// The schema of a type, with all types that it refers to written out.
    pub(crate) fn schema(&self, name: &str) -> Result<Value, BadLine> {
        let lines = self.0.get(name).ok_or_else(|| BadLine {
            line: 0,
            cause: format!("there is no type `{name}`"),
        })?;
        let mut schema = Map::from_iter([("type".to_owned(), json!("object"))]);
        let (mut properties, mut required, mut rules) = (Map::new(), Vec::new(), Vec::new());
        for (line, content) in lines {
            match content {
                Line::Field {
                    name,
                    required: is_required,
                    shape,
                    meaning,
                } => {
                    let mut field = self.shape(shape).map_err(|error| BadLine {
                        line: if error.line == 0 { *line } else { error.line },
                        ..error
                    })?;
                    field["description"] = json!(meaning);
                    properties.insert(name.clone(), field);
                    required.extend(is_required.then(|| json!(name)));
                }
                Line::Keyword(key, value) => {
                    schema.insert(key.clone(), value.clone());
                }
                Line::Rule { rule, message } => {
                    rules.push(json!({ "rule": rule, "message": message }));
                }
            }
        }
        for (key, empty, value) in [
            (
                "properties",
                properties.is_empty(),
                Value::Object(properties),
            ),
            ("required", required.is_empty(), Value::Array(required)),
            (
                "x-kubernetes-validations",
                rules.is_empty(),
                Value::Array(rules),
            ),
        ] {
            if !empty {
                schema.insert(key.to_owned(), value);
            }
        }
        Ok(Value::Object(schema))
    }

    /// The schema of the type of a field, such as `[string]{minItems=1}`.
    fn shape(&self, shape: &str) -> Result<Value, BadLine> {
        let begins = |c: char| shape.starts_with(c);
        let end = match (begins('['), begins('{')) {
            (true, _) => shape.find(']').map(|end| end + 1),
            (_, true) => shape.find('}').map(|end| end + 1),
            _ => shape.find('{').or(Some(shape.len())),
        };
        let (base, keywords) = shape.split_at(end.unwrap_or(shape.len()));
        let inner = || &base[1..base.len() - 1];
        let mut schema = if begins('[') {
            json!({ "type": "array", "items": self.shape(inner())? })
        } else if begins('{') {
            json!({ "type": "object", "additionalProperties": self.shape(inner())? })
        } else {
            match base {
                "string" | "integer" | "boolean" => json!({ "type": base }),
                "int32" | "int64" => json!({ "type": "integer", "format": base }),
                "date-time" => json!({ "type": "string", "format": base }),
                "any" => json!({ "x-kubernetes-preserve-unknown-fields": true }),
                "quantity" => json!({
                    "anyOf": [{ "type": "integer" }, { "type": "string" }],
                    "pattern": QUANTITY,
                    "x-kubernetes-int-or-string": true,
                }),
                name => self.schema(name)?,
            }
        };
        add_keywords(&mut schema, keywords).map_err(|cause| BadLine { line: 0, cause })?;
        Ok(schema)
    }
}

/// Adds the keywords of `{KEY=JSON,KEY=JSON}`.
fn add_keywords(schema: &mut Value, text: &str) -> Result<(), String> {
    let Some(mut rest) = text.strip_prefix('{') else {
        return match text.is_empty() {
            true => Ok(()),
            false => Err(format!("`{text}` after the type")),
        };
    };
    loop {
        let (key, value) = rest.split_once('=').ok_or("a keyword without a value")?;
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<Value>();
        let parsed = values.next().ok_or("a keyword without a value")?;
        schema[key] = parsed.map_err(|error| format!("the value of `{key}`: {error}"))?;
        rest = &value[values.byte_offset()..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None if rest == "}" => return Ok(()),
            None => return Err(format!("`{rest}` after the value of `{key}`")),
        }
    }
}

fn parse_line(text: &str) -> Result<Line, &'static str> {
    if let Some(rest) = text.strip_prefix("= ") {
        let (key, value) = rest.split_once(' ').ok_or("a keyword without a value")?;
        let Ok(value) = serde_json::from_str(value) else {
            return Err("a value that is no JSON");
        };
        return Ok(Line::Keyword(key.to_owned(), value));
    }
    let (content, meaning) = text.split_once(" -- ").ok_or("no ` -- MEANING`")?;
    if let Some(rule) = content.strip_prefix("? ") {
        return Ok(Line::Rule {
            rule: rule.to_owned(),
            message: meaning.to_owned(),
        });
    }
    let (name, shape) = content.split_once(' ').ok_or("a field without a type")?;
    Ok(Line::Field {
        required: name.ends_with('!'),
        name: name.trim_end_matches('!').to_owned(),
        shape: shape.trim().to_owned(),
        meaning: meaning.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_every_type_in_it_has_a_schema() {
        let types = Types::parse(TABLE).unwrap();
        for name in types.0.keys() {
            types.schema(name).unwrap();
        }
    }

    #[test]
    fn a_type_becomes_an_object_with_its_fields_rules_and_keywords() {
        let table = "[A]\n= x-kubernetes-map-type \"atomic\"\nb! [B]{minItems=1} -- Bs.\nc {int64} -- Cs.\n\
            ? has(self.c) -- needs c\n[B]\nd any -- D.\n";
        let schema = Types::parse(table).unwrap().schema("A").unwrap();
        let expected = json!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "b": {
                    "type": "array",
                    "items": { "type": "object", "properties": {
                        "d": { "x-kubernetes-preserve-unknown-fields": true, "description": "D." } } },
                    "minItems": 1,
                    "description": "Bs.",
                },
                "c": {
                    "type": "object",
                    "additionalProperties": { "type": "integer", "format": "int64" },
                    "description": "Cs.",
                },
            },
            "required": ["b"],
            "x-kubernetes-validations": [{ "rule": "has(self.c)", "message": "needs c" }],
        });
        assert_eq!(schema, expected);
    }

    #[test]
    fn a_line_that_means_nothing_is_an_error_with_its_number() {
        let error = |table: &str| {
            let types = Types::parse(table)?;
            types.schema("A").map(|_| ())
        };
        for (table, line, cause) in [
            ("[A]\n[A]\n", 2, "the type is defined twice"),
            ("a string -- A.\n", 1, "no type has begun"),
            ("[A]\na -- A.\n", 2, "a field without a type"),
            ("[A]\na B -- A.\n", 2, "there is no type `B`"),
            ("[A]\na string{x} -- A.\n", 2, "a keyword without a value"),
            ("[A]\na string{x=1 -- A.\n", 2, "`` after the value of `x`"),
        ] {
            let cause = cause.to_owned();
            assert_eq!(error(table), Err(BadLine { line, cause }), "{table}");
        }
    }
}
