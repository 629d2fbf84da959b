//! What a plugin says about itself.

use plugin::protocol::{ArgumentDescription, Description, FieldDescription, FieldType};
use serde::Deserialize;

use crate::abi::{Library, Text};

/// Version of the plugin API that this program has: major and minor.
const API: (u64, u64) = (3, 12);

/// A field in the JSON of `plugin_get_fields`.
#[derive(Deserialize)]
struct Field {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(rename = "isList", default)]
    is_list: bool,
    #[serde(default)]
    arg: Argument,
    #[serde(default)]
    desc: String,
}

#[derive(Default, Deserialize)]
struct Argument {
    #[serde(rename = "isRequired", default)]
    is_required: bool,
    #[serde(rename = "isIndex", default)]
    is_index: bool,
    #[serde(rename = "isKey", default)]
    is_key: bool,
}

/// Checks that this program has the version of the plugin API that a plugin needs.
pub(crate) fn check_api(library: &Library) -> Result<(), String> {
    let Some(text) = library.text(Text::RequiredApi) else {
        return Err(
            "it is no plugin: it has no function `plugin_get_required_api_version`".to_owned(),
        );
    };
    let mut numbers = text.trim().split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    let (Some(major), Some(minor)) = (major, minor) else {
        return Err(format!("`{text}` is no version of the plugin API"));
    };
    if major == API.0 && minor <= API.1 {
        return Ok(());
    }
    Err(format!(
        "it needs version {text} of the plugin API, and this program has {}.{}.0",
        API.0, API.1
    ))
}

/// Asks a plugin what it is.
pub(crate) fn describe(library: &Library) -> Result<Description, String> {
    let capabilities = library.capabilities();
    let text = |which, what: &str| {
        library
            .text(which)
            .ok_or_else(|| format!("it does not say its {what}"))
    };
    // The API has an empty text for a plugin whose events are of no source of its own, or that makes none.
    let source = library.text(Text::Source).unwrap_or_default();
    let extracts_from = match library.text(Text::ExtractSources) {
        Some(json) => list(&json)?,
        None if capabilities.sourcing && !source.is_empty() => vec![source.clone()],
        None => Vec::new(),
    };
    let fields = match capabilities.extraction {
        true => fields(&text(Text::Fields, "fields")?)?,
        false => Vec::new(),
    };
    Ok(Description {
        name: text(Text::Name, "name")?,
        description: text(Text::Description, "description")?,
        contact: text(Text::Contact, "contact")?,
        version: text(Text::Version, "version")?,
        required_api: text(Text::RequiredApi, "API version")?,
        capabilities,
        id: library.id(),
        source,
        extracts_from,
        fields,
        // Only shown, and empty for a plugin that describes no configuration.
        schema: library.schema().unwrap_or_default(),
    })
}

fn list(json: &str) -> Result<Vec<String>, String> {
    serde_json::from_str(json).map_err(|error| format!("its list of sources is no JSON: {error}"))
}

fn fields(json: &str) -> Result<Vec<FieldDescription>, String> {
    let fields: Vec<Field> = serde_json::from_str(json)
        .map_err(|error| format!("its list of fields cannot be read: {error}"))?;
    fields.into_iter().map(field).collect()
}

fn field(field: Field) -> Result<FieldDescription, String> {
    let ty = match field.ty.as_str() {
        "string" => FieldType::Text,
        "uint64" => FieldType::Uint,
        "bool" => FieldType::Bool,
        "reltime" => FieldType::RelTime,
        "abstime" => FieldType::AbsTime,
        "ipaddr" => FieldType::Ip,
        "ipnet" => FieldType::Net,
        other => {
            return Err(format!(
                "its field `{}` has the unknown type `{other}`",
                field.name
            ));
        }
    };
    Ok(FieldDescription {
        name: field.name,
        ty,
        is_list: field.is_list,
        argument: ArgumentDescription {
            is_required: field.arg.is_required,
            is_index: field.arg.is_index,
            is_key: field.arg.is_key,
        },
        description: field.desc,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_their_arguments() {
        let json = r#"[{"type":"string","name":"a.b","isList":true,"arg":{"isRequired":true,"isKey":true},"desc":"d"}]"#;
        let fields = fields(json).expect("it is good");
        assert_eq!(fields[0].ty, FieldType::Text);
        assert!(fields[0].is_list && fields[0].argument.is_required && fields[0].argument.is_key);
        assert!(super::fields(r#"[{"type":"int128","name":"a.b"}]"#).is_err());
        assert!(super::fields("{").is_err());
    }
}
