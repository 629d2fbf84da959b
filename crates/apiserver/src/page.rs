//! Pages of a list, read object by object: a page of large objects is never in memory as a whole.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What a page says besides its objects.
#[derive(Debug, PartialEq, Eq)]
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
/// If it is no list as Kubernetes has it, or ends too early: one without `items` or `metadata` would say that nothing exists. Objects before
/// the mistake were given already.
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
        let (mut items, mut end) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" if items.is_some() => return Err(A::Error::duplicate_field("items")),
                "items" => items = Some(map.next_value_seed(Items { each: self.each })?),
                "metadata" if end.is_some() => return Err(A::Error::duplicate_field("metadata")),
                "metadata" => end = Some(end_of(&map.next_value()?)?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        items.ok_or_else(|| A::Error::missing_field("items"))?;
        end.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

/// What the metadata of a list say. The last page has no token, and old servers send no version.
fn end_of<E: Error>(metadata: &Map<String, Value>) -> Result<PageEnd, E> {
    let text = |key: &str| match metadata.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(E::custom(format!("`metadata.{key}` is no text"))),
    };
    Ok(PageEnd {
        version: text("resourceVersion")?,
        token: text("continue")?,
    })
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
        while let Some(object) = items.next_element::<Map<String, Value>>()? {
            (self.each)(Value::Object(object));
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
            (r#"{"metadata": {}, "items": [{}, {}"#, 1),
            (r#"{"metadata": {}, "items": []} x"#, 0),
            (r#"{"metadata": {}, "items": [{}, 1]}"#, 1),
            ("", 0),
            // Without one of these, nothing would exist.
            ("{}", 0),
            (r#"{"kind": "Status", "metadata": {}, "code": 500}"#, 0),
            (r#"{"items": [{}]}"#, 1),
            (r#"{"metadata": {}}"#, 0),
            (r#"{"metadata": null, "items": []}"#, 0),
            (r#"{"metadata": [], "items": []}"#, 0),
            (r#"{"metadata": {"continue": 7}, "items": []}"#, 0),
            (r#"{"metadata": {}, "metadata": {}, "items": []}"#, 0),
            (r#"{"metadata": {}, "items": [], "items": []}"#, 0),
        ] {
            let (given, end) = read(text);
            assert!(given.len() >= count && end.is_err(), "{text}");
        }
        let deep = format!(r#"{{"items": [{}"#, r#"{"a":"#.repeat(100_000));
        assert!(read(&deep).1.is_err());
    }
}
