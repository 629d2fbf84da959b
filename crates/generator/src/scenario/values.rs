//! Properties of resources and calls by name, and arguments that refer to them.

use std::collections::BTreeMap;

use abi::Arch;
use abi::flags::FlagSet;
use serde_json::{Map, Value};

/// Values by path, such as `cs1.client.fd`.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<String, Value>);

/// Arguments of one call.
pub(super) struct Arguments<'values> {
    given: &'values Map<String, Value>,
    values: &'values Values,
}

impl Values {
    pub(super) fn put(&mut self, path: String, value: impl Into<Value>) {
        self.0.insert(path, value.into());
    }

    /// Returns the value of an argument, after following its reference.
    fn resolve(&self, value: &Value) -> Result<Value, String> {
        let Some(path) = value.as_str().and_then(reference) else {
            return Ok(value.clone());
        };
        self.0
            .get(path)
            .cloned()
            .ok_or_else(|| format!("nothing before it has `{path}`"))
    }
}

/// Returns the path in `${ path }`.
pub(super) fn reference(text: &str) -> Option<&str> {
    Some(text.strip_prefix("${")?.strip_suffix('}')?.trim())
}

impl<'values> Arguments<'values> {
    pub(super) fn new(given: &'values Map<String, Value>, values: &'values Values) -> Self {
        Self { given, values }
    }

    /// Returns all arguments with references followed, for later calls to refer to.
    pub(super) fn resolved(&self) -> Result<Vec<(String, Value)>, String> {
        let mut all = Vec::new();
        for (name, value) in self.given {
            if let Value::Object(parts) = value {
                for (part, value) in parts {
                    all.push((format!("{name}.{part}"), self.values.resolve(value)?));
                }
            } else {
                all.push((name.clone(), self.values.resolve(value)?));
            }
        }
        Ok(all)
    }

    fn get(&self, path: &str) -> Result<Option<Value>, String> {
        let value = match path.split_once('.') {
            Some((outer, inner)) => self.given.get(outer).and_then(|outer| outer.get(inner)),
            None => self.given.get(path),
        };
        value.map(|value| self.values.resolve(value)).transpose()
    }

    pub(super) fn text(&self, path: &str) -> Result<String, String> {
        match self.get(path)? {
            Some(Value::String(text)) => Ok(text),
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => Err(format!("the argument `{path}` is missing")),
        }
    }

    pub(super) fn text_or(&self, path: &str, default: &str) -> Result<String, String> {
        match self.get(path)? {
            None => Ok(default.to_owned()),
            Some(_) => self.text(path),
        }
    }

    /// Returns a number, or the sum of flags of a set with `|` between their names.
    pub(super) fn number(&self, path: &str, set: Option<&str>) -> Result<i64, String> {
        match self.get(path)? {
            Some(Value::Number(number)) => number
                .as_i64()
                .ok_or_else(|| format!("`{path}` is not a whole number")),
            Some(Value::String(text)) => {
                sum(&text, set).ok_or_else(|| format!("invalid value `{text}` of `{path}`"))
            }
            _ => Err(format!("the argument `{path}` is missing")),
        }
    }

    pub(super) fn number_or(
        &self,
        path: &str,
        set: Option<&str>,
        default: i64,
    ) -> Result<i64, String> {
        match self.get(path)? {
            None => Ok(default),
            Some(_) => self.number(path, set),
        }
    }
}

fn sum(text: &str, set: Option<&str>) -> Option<i64> {
    let set = set.and_then(FlagSet::from_name);
    text.split('|').map(str::trim).try_fold(0_i64, |sum, word| {
        let value = match word.parse::<i64>() {
            Ok(number) => number,
            // Not a flag of a set: the base of relative paths.
            Err(_name) if word == "AT_FDCWD" => -100,
            Err(_name) => i64::try_from(set?.value_of(Arch::native()?, word)?).ok()?,
        };
        Some(sum | value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_follow_references_and_know_flags() {
        let mut values = Values::default();
        values.put("cs1.client.fd".to_owned(), 7);
        let given =
            json!({"fd": "${ cs1.client.fd }", "flags": "O_CREAT|O_RDWR", "how": {"mode": 5}});
        let given = given.as_object().unwrap();
        let arguments = Arguments::new(given, &values);
        assert_eq!(arguments.number("fd", None), Ok(7));
        assert_eq!(arguments.number("flags", Some("open")), Ok(0o102));
        assert_eq!(arguments.number("how.mode", None), Ok(5));
        assert_eq!(arguments.number_or("how.flags", Some("open"), 3), Ok(3));
        assert!(arguments.number("flags", Some("signal")).is_err());
        assert!(arguments.text("none").is_err());
        let resolved = arguments.resolved().unwrap();
        assert!(resolved.contains(&("how.mode".to_owned(), json!(5))));
    }

    #[test]
    fn references_to_nothing_are_errors() {
        let given = json!({"fd": "${x.fd}"});
        let values = Values::default();
        let arguments = Arguments::new(given.as_object().unwrap(), &values);
        assert_eq!(
            arguments.number("fd", None),
            Err("nothing before it has `x.fd`".to_owned())
        );
    }
}
