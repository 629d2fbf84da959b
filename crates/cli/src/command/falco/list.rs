//! `--list`, `--list-events` and `-i`.

use agent::version::DRIVER_SCHEMA_VERSION;
use event::field::{ArgumentKind, Class, FieldSpec, SourceFields, Supplied, docs};
use event::{Category, EventKind, ParamSpec, ParamType};
use rules::load::SYSCALL_SOURCE;
use serde_json::{Value, json};

use super::args::Format;
use super::describe::wrap;
use rule_tools::words;

/// A class with its fields and the source of its events.
pub(super) struct Group<'a> {
    source: &'a str,
    class: &'a Class,
    fields: Vec<&'static FieldSpec>,
}

/// Returns the classes of system calls.
pub(super) fn of_syscalls<'a>() -> impl Iterator<Item = Group<'a>> {
    docs().map(|(class, fields)| Group {
        source: SYSCALL_SOURCE,
        class,
        fields: fields.iter().collect(),
    })
}

/// Returns the classes of a source of plugins.
pub(super) fn of_plugins<'a>(
    source: &'a str,
    fields: &'a SourceFields,
) -> impl Iterator<Item = Group<'a>> {
    static COMMON: Class = Class {
        name: "evt",
        description: "Fields that events of every source have.",
    };
    let common = Group {
        source,
        class: &COMMON,
        fields: SourceFields::common().collect(),
    };
    let own = fields.classes().map(move |(class, fields)| Group {
        source,
        class,
        fields: fields.to_vec(),
    });
    std::iter::once(common).chain(own)
}

/// Start and end of the column of descriptions.
const DESCRIPTION: usize = 30;
const WIDTH: usize = 120;

/// Lists all fields in Falco's format.
pub(super) fn fields(
    groups: &[Group<'_>],
    format: Format,
    names_only: bool,
    verbose: bool,
) -> String {
    if names_only {
        let names = groups.iter().flat_map(|group| group.fields.iter());
        let names: Vec<_> = names.map(|field| field.name).collect();
        return match format {
            Format::Json => pretty(&json!({ "fieldnames": names })),
            Format::Text | Format::Markdown => {
                names.iter().map(|name| format!("{name}\n")).collect()
            }
        };
    }
    match format {
        Format::Text => groups
            .iter()
            .map(|group| text_class(group, verbose))
            .collect(),
        Format::Markdown => groups.iter().map(markdown_class).collect(),
        Format::Json => {
            let classes: Vec<_> = groups.iter().map(json_class).collect();
            pretty(&json!({ "fieldclasses": classes }))
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns the description of a field, with a note if it is never set.
fn description(field: &FieldSpec) -> String {
    match field.supplied {
        Supplied::Yes => field.description.to_owned(),
        Supplied::No(why) => format!("{} Never set here: {why}.", field.description),
    }
}

fn text_class(group: &Group<'_>, verbose: bool) -> String {
    let Group {
        source,
        class,
        fields,
    } = group;
    let described = wrap(class.description, DESCRIPTION, WIDTH);
    let mut out = format!(
        "-------------------------------\n{:DESCRIPTION$}{}\n{:DESCRIPTION$}{described}\n\
         {:DESCRIPTION$}{source} \n\n",
        "Field Class:", class.name, "Description:", "Event Sources:",
    );
    for field in fields {
        if field.name.len() > DESCRIPTION {
            out.push_str(&format!("{}\n{:DESCRIPTION$}", field.name, ""));
        } else {
            out.push_str(&format!("{:DESCRIPTION$}", field.name));
        }
        let mut text = description(field);
        let tags = tags(field);
        if !tags.is_empty() {
            text = format!("({}) {text}", tags.join(","));
        }
        if verbose {
            text = format!("(Type: {}) {text}", words::value_type(field.ty));
        }
        out.push_str(&wrap(&text, DESCRIPTION, WIDTH));
        out.push('\n');
    }
    out.push('\n');
    out
}

/// Returns Falco's tags for the argument and value of a field.
fn tags(field: &FieldSpec) -> Vec<&'static str> {
    let mut tags = Vec::new();
    if let Some((required, index, key)) = argument(field.argument) {
        tags.push(if required {
            "ARG_REQUIRED"
        } else {
            "ARG_ALLOWED"
        });
        tags.extend(index.then_some("ARG_INDEX"));
        tags.extend(key.then_some("ARG_KEY"));
    }
    tags.extend(field.multi.then_some("EPF_IS_LIST"));
    tags.sort_unstable();
    tags
}

/// Returns whether the argument is required, can be a number, and can be a name.
fn argument(kind: ArgumentKind) -> Option<(bool, bool, bool)> {
    match kind {
        ArgumentKind::None => None,
        ArgumentKind::Index { required } => Some((required, true, false)),
        ArgumentKind::Name { required } | ArgumentKind::Suffix { required, .. } => {
            Some((required, false, true))
        }
        ArgumentKind::IndexOrName { required } => Some((required, true, true)),
        ArgumentKind::Label | ArgumentKind::Param => Some((true, false, true)),
    }
}

fn markdown_class(group: &Group<'_>) -> String {
    let Group {
        source,
        class,
        fields,
    } = group;
    let mut out = format!(
        "## Field Class: {}\n\n{}\n\nEvent Sources: {source} \n\nName | Type | Description\n\
         :----|:-----|:-----------\n",
        class.name, class.description
    );
    for field in fields {
        let ty = words::value_type(field.ty);
        let ty = if field.multi {
            format!("LIST({ty})")
        } else {
            ty.to_owned()
        };
        let text = description(field).replace('|', "\\|");
        out.push_str(&format!("`{}` | {ty} | {text}\n", field.name));
    }
    out.push('\n');
    out
}

fn json_class(group: &Group<'_>) -> Value {
    let Group {
        source,
        class,
        fields,
    } = group;
    let fields: Vec<_> = fields
        .iter()
        .map(|field| {
            let argument = argument(field.argument).map(|(required, index, key)| {
                let types = [(index, "INDEX"), (key, "KEY")];
                let types: Vec<_> = types
                    .iter()
                    .filter(|(takes, _)| *takes)
                    .map(|(_, word)| word)
                    .collect();
                json!({ "required": required, "type": types })
            });
            json!({
                "argument": argument,
                "desc": description(field),
                "is_list": field.multi,
                "name": field.name,
                "type": words::value_type(field.ty),
            })
        })
        .collect();
    json!({
        "desc": class.description,
        "event_sources": [source],
        "fields": fields,
        "name": class.name,
    })
}

/// Lists all event types in Falco's format. An event stands for a call and its result, so there are no enter
/// events.
pub(super) fn events(format: Format) -> String {
    let (meta, calls): (Vec<_>, Vec<_>) =
        EventKind::all().partition(|kind| matches!(kind.spec().category, Category::Internal));
    let groups = [("Syscall events", calls), ("Metaevents", meta)];
    if format == Format::Json {
        let mut all = json!({ "schema_version": DRIVER_SCHEMA_VERSION });
        for (name, kinds) in groups {
            all[name] = kinds.into_iter().map(json_event).collect();
        }
        return pretty(&all);
    }
    let mut out =
        format!("The events below are valid for Falco *Schema Version*: {DRIVER_SCHEMA_VERSION}\n");
    for (name, kinds) in groups {
        out.push_str(&format!("## {name}\n\n"));
        if format == Format::Markdown {
            out.push_str("Default | Dir | Name | Params \n:-------|:----|:-----|:-----\n");
        }
        for kind in kinds {
            let params = kind.spec().params.iter();
            let params = params.map(|param| text_param(param, format));
            let params = params.collect::<Vec<_>>().join(", ");
            let name = kind.name();
            out.push_str(&match format {
                Format::Markdown => format!("Yes | `<` | `{name}` | {params}\n"),
                Format::Text | Format::Json => format!("< {name}({params})\n"),
            });
        }
        out.push('\n');
    }
    out
}

/// Formats a parameter, such as `FLAGS32 **flags**: O_LARGEFILE, O_DIRECTORY`.
fn text_param(param: &ParamSpec, format: Format) -> String {
    let mut out = format!("{} **{}**", type_word(param), param.name);
    let names = flag_names(param);
    if !names.is_empty() {
        let name = |name: &&str| match format {
            Format::Markdown => format!("*{name}*"),
            Format::Text | Format::Json => (*name).to_owned(),
        };
        let names: Vec<_> = names.iter().map(name).collect();
        out.push_str(&format!(": {}", names.join(", ")));
    }
    out
}

fn json_event(kind: EventKind) -> Value {
    let params = kind.spec().params.iter().map(|param| {
        let mut value = json!({ "name": param.name, "type": type_word(param) });
        let names = flag_names(param);
        if !names.is_empty() {
            value["flags"] = json!(names);
        }
        value
    });
    json!({
        "available": true,
        "dir": "<",
        "name": kind.name(),
        "params": params.collect::<Vec<_>>(),
    })
}

fn flag_names(param: &ParamSpec) -> Vec<&'static str> {
    match param.ty {
        ParamType::Flags(set) | ParamType::Enum(set) => set.names().collect(),
        _ => Vec::new(),
    }
}

/// Returns Falco's word for a type. Falco's numbers have sizes; here all have that of a register.
fn type_word(param: &ParamSpec) -> &'static str {
    match param.ty {
        ParamType::Errno => "ERRNO",
        ParamType::Fd => "FD",
        ParamType::Int => "INT64",
        ParamType::Uint | ParamType::Hex => "UINT64",
        ParamType::Mode => "MODE",
        ParamType::Flags(_) => "FLAGS32",
        ParamType::Enum(_) => "ENUMFLAGS32",
        ParamType::Path => "FSPATH",
        ParamType::Text => "CHARBUF",
        ParamType::Texts => "CHARBUFARRAY",
        ParamType::Pid => "PID",
        ParamType::Uid => "UID",
        ParamType::Gid => "GID",
        ParamType::Signal => "SIGTYPE",
        ParamType::Tuple => "SOCKTUPLE",
        ParamType::Bytes => "BYTEBUF",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_listed_in_each_form() {
        let all: Vec<_> = of_syscalls().collect();
        let text = fields(&all, Format::Text, false, true);
        assert!(
            text.contains("Field Class:                  evt\n"),
            "{text}"
        );
        assert!(
            text.contains("\nproc.name                     (Type: CHARBUF) "),
            "{text}"
        );
        let markdown = fields(&all, Format::Markdown, false, false);
        assert!(
            markdown.contains("\n`proc.name` | CHARBUF | "),
            "{markdown}"
        );
        let json: Value =
            serde_json::from_str(&fields(&all, Format::Json, false, false)).expect("JSON");
        let classes = json["fieldclasses"].as_array().expect("an array");
        let listed = classes.iter().flat_map(|class| {
            let fields = class["fields"].as_array().expect("an array");
            fields.iter()
        });
        let count = listed.clone().count();
        let aname = listed.clone().find(|field| field["name"] == "proc.aname");
        let aname = aname.expect("it is listed");
        assert_eq!(
            aname["argument"],
            json!({ "required": false, "type": ["INDEX"] })
        );
        assert_eq!(
            fields(&all, Format::Text, true, false).lines().count(),
            count
        );
    }

    #[test]
    fn events_are_listed_in_each_form() {
        let text = events(Format::Text);
        assert!(text.contains("\n< openat("), "{text}");
        assert!(text.contains("O_CLOEXEC"), "{text}");
        assert!(events(Format::Markdown).contains("\nYes | `<` | `openat` | FD **fd**"));
        let json: Value = serde_json::from_str(&events(Format::Json)).expect("JSON");
        let calls = json["Syscall events"].as_array().expect("an array");
        assert!(calls.iter().any(|event| event["name"] == "openat"));
    }
}
