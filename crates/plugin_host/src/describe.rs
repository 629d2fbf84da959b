//! What a plugin says about itself.

use plugin::protocol::{
    ArgumentDescription, Capabilities, Description, FieldDescription, FieldType,
};
use serde::Deserialize;

use crate::abi::{Library, Text};

/// Version of the plugin API that this program has: major and minor.
const API: (u64, u64) = (3, 12);
/// The source of system calls, whose fields are built in.
pub(crate) const SYSCALL_SOURCE: &str = "syscall";

/// A field in the JSON of `plugin_get_fields`. What it does not have may be left out or null.
#[derive(Deserialize)]
struct Field {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(rename = "isList")]
    is_list: Option<bool>,
    arg: Option<Argument>,
    desc: Option<String>,
}

#[derive(Default, Deserialize)]
struct Argument {
    #[serde(rename = "isRequired")]
    is_required: Option<bool>,
    #[serde(rename = "isIndex")]
    is_index: Option<bool>,
    #[serde(rename = "isKey")]
    is_key: Option<bool>,
}

/// Checks that this program has the version of the plugin API that a plugin needs. Returns its minor version, by which
/// structures differ.
pub(crate) fn check_api(library: &Library) -> Result<u64, String> {
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
        return Ok(minor);
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
    // Without this function a plugin takes fields from the events of its own source, or of all.
    let named = library.text(Text::ExtractSources).unwrap_or_default();
    let mut extracts_from = list(&named)?;
    // A plugin that makes events takes fields from these, and from those of others only if it names them.
    if capabilities.sourcing && !source.is_empty() && !extracts_from.contains(&source) {
        extracts_from.push(source.clone());
    }
    let fields = match capabilities.extraction {
        true => fields(&text(Text::Fields, "fields")?)?,
        false => Vec::new(),
    };
    let async_events = match capabilities.async_events {
        true => list(&text(Text::AsyncEvents, "asynchronous events")?)?,
        false => Vec::new(),
    };
    if capabilities.async_events && async_events.is_empty() {
        return Err(
            "it adds events to sources, but names none in plugin_get_async_events".to_owned(),
        );
    }
    Ok(Description {
        name: text(Text::Name, "name")?,
        description: text(Text::Description, "description")?,
        contact: text(Text::Contact, "contact")?,
        version: text(Text::Version, "version")?,
        required_api: text(Text::RequiredApi, "API version")?,
        capabilities,
        id: library.id(),
        parses_from: parsed_sources(library, capabilities, &source)?,
        // Known when it is initialized.
        parses_system_calls: false,
        adds_to: added_sources(library, capabilities, &source)?,
        async_events,
        source,
        extracts_from,
        fields,
        // Only shown, and empty for a plugin that describes no configuration.
        schema: library.schema().unwrap_or_default(),
    })
}

/// Returns the sources whose events a plugin parses; empty for all.
fn parsed_sources(
    library: &Library,
    capabilities: Capabilities,
    own: &str,
) -> Result<Vec<String>, String> {
    // Without this function a plugin parses the events of its own source, or of all.
    let mut sources = list(&library.text(Text::ParseSources).unwrap_or_default())?;
    if sources.is_empty() && capabilities.sourcing && !own.is_empty() {
        sources.push(own.to_owned());
    }
    Ok(sources)
}

/// Returns the sources to which a plugin adds asynchronous events; empty for all.
fn added_sources(
    library: &Library,
    capabilities: Capabilities,
    own: &str,
) -> Result<Vec<String>, String> {
    // Without this function a plugin adds events to its own source, or to all.
    let mut sources = list(&library.text(Text::AsyncSources).unwrap_or_default())?;
    // As in Falco a plugin that makes events adds to these, and to others only if it names them.
    if capabilities.sourcing && !own.is_empty() && !sources.iter().any(|known| known == own) {
        sources.push(own.to_owned());
    }
    Ok(sources)
}

/// Turns the description of a plugin that takes no fields from events of plugins into one that says so.
pub(crate) fn only_from_system_calls(description: &mut Description) {
    description.fields.clear();
    description.extracts_from = vec![SYSCALL_SOURCE.to_owned()];
}

/// Reads a list of sources or of names. A plugin that names none may say so with an empty text, or with empty names.
fn list(json: &str) -> Result<Vec<String>, String> {
    if json.is_empty() {
        return Ok(Vec::new());
    }
    let mut sources: Vec<String> = serde_json::from_str(json)
        .map_err(|error| format!("its list of sources or events is no JSON: {error}"))?;
    sources.retain(|source| !source.is_empty());
    Ok(sources)
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
    // What the JSON leaves out is false in the API: no list, no argument.
    let argument = field.arg.unwrap_or_default();
    Ok(FieldDescription {
        name: field.name,
        ty,
        is_list: field.is_list.unwrap_or_default(),
        argument: ArgumentDescription {
            is_required: argument.is_required.unwrap_or_default(),
            is_index: argument.is_index.unwrap_or_default(),
            is_key: argument.is_key.unwrap_or_default(),
        },
        description: field.desc.unwrap_or_default(),
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
        // As the SDK for Rust writes them.
        let json = r#"[{"type":"string","name":"a.b","isList":null,"arg":null,"desc":null},
            {"type":"bool","name":"a.c","arg":{"isRequired":null,"isIndex":true,"isKey":null}}]"#;
        let fields = super::fields(json).expect("it is good");
        assert_eq!(fields[0].argument, ArgumentDescription::default());
        assert!(!fields[0].is_list && fields[1].argument.is_index);
        assert!(super::fields(r#"[{"type":"int128","name":"a.b"}]"#).is_err());
        assert!(super::fields("{").is_err());
    }
}
