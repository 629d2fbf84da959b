//! Pages of a list, read object by object: a page of large objects is never in memory as a whole.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// What a page says besides its objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageEnd {
    /// Resource version of the list.
    pub(crate) version: String,
    /// Token of the next page; empty if this is the last.
    pub(crate) token: String,
}

/// Reads a page, and gives each of its objects.
///
/// # Errors
///
/// If it is no list as Kubernetes has it, or ends too early. Objects before the mistake were given already.
pub(crate) fn read_page(
    page: impl Read,
    mut each: impl FnMut(Value),
) -> Result<PageEnd, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_reader(page);
    let end = reader.deserialize_map(Page { each: &mut each })?;
    reader.end().map(|()| end)
}

struct Page<'f, Each> {
    each: &'f mut Each,
}

impl<'de, Each: FnMut(Value)> Visitor<'de> for Page<'_, Each> {
    type Value = PageEnd;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PageEnd, A::Error> {
        let mut end = PageEnd::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" => map.next_value_seed(Items { each: self.each })?,
                "metadata" => {
                    let metadata: Value = map.next_value()?;
                    // The last page has no token, and old servers send no version.
                    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
                    end = PageEnd {
                        version: text("resourceVersion"),
                        token: text("continue"),
                    };
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(end)
    }
}

/// The objects of a page. `null` is none.
struct Items<'f, Each> {
    each: &'f mut Each,
}

impl<'de, Each: FnMut(Value)> DeserializeSeed<'de> for Items<'_, Each> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, items: D) -> Result<(), D::Error> {
        items.deserialize_option(self)
    }
}

impl<'de, Each: FnMut(Value)> Visitor<'de> for Items<'_, Each> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the objects of a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, items: D) -> Result<(), D::Error> {
        items.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(object) = items.next_element::<Value>()? {
            (self.each)(object);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> (Vec<Value>, Result<PageEnd, String>) {
        let mut given = Vec::new();
        let end = read_page(text.as_bytes(), |object| given.push(object));
        (given, end.map_err(|error| error.to_string()))
    }

    #[test]
    fn objects_are_given_wherever_the_metadata_stand() {
        let metadata = r#""metadata": {"resourceVersion": "7", "continue": "t"}"#;
        let items = r#""items": [{"a": 1}, {"b": [2]}]"#;
        for text in [
            format!(r#"{{"kind": "List", {metadata}, {items}}}"#),
            format!(r#"{{{items}, "x": {{"y": []}}, {metadata}}}"#),
        ] {
            let (given, end) = read(&text);
            assert_eq!(given, [json!({ "a": 1 }), json!({ "b": [2] })]);
            let end = end.expect("it is a list");
            assert_eq!((&*end.version, &*end.token), ("7", "t"));
        }
        // A server writes no objects as null.
        let (given, end) = read(&format!(r#"{{{metadata}, "items": null}}"#));
        assert!(given.is_empty() && end.is_ok());
    }

    #[test]
    fn what_is_no_list_or_ends_too_early_is_an_error() {
        for (text, count) in [
            ("[]", 0),
            ("7", 0),
            (r#"{"items": 7}"#, 0),
            (r#"{"items": [1, 2"#, 1),
            (r#"{"items": []} x"#, 0),
            ("", 0),
        ] {
            let (given, end) = read(text);
            assert!(given.len() >= count && end.is_err(), "{text}");
        }
        let deep = format!(r#"{{"items": [{}"#, "[".repeat(100_000));
        assert!(read(&deep).1.is_err());
    }
}
