//! Fields of event sources that plugins supply.
//!
//! A source such as `k8s_audit` has the fields that its plugins describe, and those fields of the class `evt` that do
//! not concern a system call. Which plugins are there is known only when the program runs, so their fields are not in
//! the registry: whoever parses a name of such a source passes its [`SourceFields`].

use std::collections::{BTreeSet, HashMap};

use super::{ArgumentKind, Class, FieldError, FieldSpec, Source, Supplied, lookup};
use crate::{Event, Param, Value, ValueType, suggest};

/// Fields of the class `evt` that events of every source have.
const COMMON: &[&str] = &[
    "evt.num",
    "evt.time",
    "evt.time.s",
    "evt.time.iso8601",
    "evt.datetime",
    "evt.datetime.s",
    "evt.rawtime",
    "evt.rawtime.s",
    "evt.rawtime.ns",
    "evt.reltime",
    "evt.reltime.s",
    "evt.reltime.ns",
    "evt.outputtime",
    "evt.hostname",
    "evt.source",
];

/// Kind of the asynchronous events that plugins add to a source.
pub const ASYNC_EVENT: &str = "asyncevent";
/// Position of the name among the parameters of [`ASYNC_EVENT`].
const ASYNC_NAME: usize = 1;

/// Fields whose values differ from those of system calls. The kind of an asynchronous event does not say its name, and no
/// plugin is said to have made it, as in Falco.
static OF_PLUGINS: &[FieldSpec] = &[
    FieldSpec::new(
        "evt.type",
        ValueType::Text,
        Source::Event,
        |event, _| async_name(event).unwrap_or_else(|| Value::text(event.kind.name())),
        "`pluginevent`, or the name of an asynchronous event.",
    ),
    FieldSpec::new(
        "evt.is_async",
        ValueType::Bool,
        Source::Event,
        |event, _| Value::Bool(async_name(event).is_some()),
        "Whether the event is an asynchronous one, which a plugin adds to the source.",
    ),
    FieldSpec::new(
        "evt.asynctype",
        ValueType::Text,
        Source::Event,
        |event, _| Value::or_absent(async_name(event)),
        "Name of an asynchronous event.",
    ),
    FieldSpec::new(
        "evt.pluginname",
        ValueType::Text,
        Source::Event,
        |event, _| match async_name(event) {
            Some(_) => Value::Absent,
            None => Value::or_absent(event.world.plugin_name().map(Value::text)),
        },
        "Name of the plugin that made the event; an asynchronous event has none.",
    ),
    FieldSpec::new(
        PLUGIN_INFO,
        ValueType::Text,
        Source::Event,
        |event, _| event.world.plugin_info(),
        "The event as its plugin describes it; an asynchronous event has none.",
    ),
];

/// Returns the name of an asynchronous event; `None` for other events.
fn async_name<'a>(event: &Event<'a>) -> Option<Value<'a>> {
    (event.kind.name() == ASYNC_EVENT).then(|| match event.params.get(ASYNC_NAME) {
        Some(Param::Text(name)) => Value::Text(name),
        _ => Value::Unknown,
    })
}

/// Field that a plugin formats only if it is asked to.
pub const PLUGIN_INFO: &str = "evt.plugininfo";

/// A field as a plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginField {
    /// Full name without argument.
    pub name: String,
    /// Type of its values.
    pub ty: ValueType,
    /// Whether the value is a list.
    pub multi: bool,
    /// Syntax of the argument: none, a number, a name, or both.
    pub argument: ArgumentKind,
    /// Description of the field.
    pub description: String,
}

/// The fields of one event source other than `syscall`.
#[derive(Debug)]
pub struct SourceFields {
    source: String,
    classes: Vec<(Class, Vec<&'static FieldSpec>)>,
    by_name: HashMap<&'static str, &'static FieldSpec>,
    types: BTreeSet<String>,
}

impl SourceFields {
    /// Creates the table of a source; `plugins` are the plugins with their fields, in the order in which they are asked.
    /// If two plugins have a field of the same name, the first one supplies it.
    ///
    /// The descriptions stay in memory until the program ends, because plugins are loaded once.
    #[must_use]
    pub fn new(source: &str, plugins: &[(String, Vec<PluginField>)]) -> Self {
        let mut by_name: HashMap<&'static str, &'static FieldSpec> =
            Self::common().map(|spec| (spec.name, spec)).collect();
        let mut classes = Vec::new();
        for (plugin, fields) in plugins {
            let specs: Vec<&'static FieldSpec> = fields.iter().map(spec).collect();
            for spec in &specs {
                by_name.entry(spec.name).or_insert(spec);
            }
            if !specs.is_empty() {
                let class = Class {
                    name: plugin.clone().leak(),
                    description: "Fields of the plugin.",
                };
                classes.push((class, specs));
            }
        }
        Self {
            source: source.to_owned(),
            classes,
            by_name,
            types: BTreeSet::new(),
        }
    }

    /// Adds names of asynchronous events, which rules may compare with `evt.type`.
    #[must_use]
    pub fn with_types(mut self, names: &[String]) -> Self {
        self.types.extend(names.iter().cloned());
        self
    }

    /// Returns true if asynchronous events have this name.
    #[must_use]
    pub fn has_type(&self, name: &str) -> bool {
        self.types.contains(name)
    }

    /// Returns the name of the source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the fields of plugins, by plugin.
    pub fn classes(&self) -> impl Iterator<Item = (&Class, &[&'static FieldSpec])> {
        self.classes
            .iter()
            .map(|(class, specs)| (class, &specs[..]))
    }

    /// Returns the fields that every source has.
    pub fn common() -> impl Iterator<Item = &'static FieldSpec> {
        let known = COMMON.iter().filter_map(|name| lookup(name).ok());
        known.chain(OF_PLUGINS)
    }

    /// Returns the field of this name (without argument).
    ///
    /// # Errors
    ///
    /// Fails if the source has no such field; the error contains the nearest name.
    pub(super) fn lookup(&self, name: &str) -> Result<&'static FieldSpec, FieldError> {
        let known = self.by_name.get(name).copied();
        known.ok_or_else(|| FieldError::Unknown {
            name: name.to_owned(),
            suggestion: suggest::nearest(name, self.by_name.keys().copied()).map(str::to_owned),
        })
    }
}

fn spec(field: &PluginField) -> &'static FieldSpec {
    let mut spec = FieldSpec::new(
        field.name.clone().leak(),
        field.ty,
        Source::Plugin,
        // `Field::extract` asks the event's source by the whole field.
        |_, _| Value::Unknown,
        field.description.clone().leak(),
    )
    .with(field.argument);
    spec.multi = field.multi;
    debug_assert_eq!(spec.supplied, Supplied::Yes);
    Box::leak(Box::new(spec))
}

#[cfg(test)]
mod tests {
    use super::super::{Argument, Field};
    use super::*;

    fn fields() -> SourceFields {
        let field = |name: &str, argument| PluginField {
            name: name.to_owned(),
            ty: ValueType::Text,
            multi: false,
            argument,
            description: "d".to_owned(),
        };
        let own = vec![
            field("ka.verb", ArgumentKind::None),
            field("ka.value", ArgumentKind::IndexOrName { required: true }),
        ];
        SourceFields::new("k8s_audit", &[("k8saudit".to_owned(), own)])
    }

    #[test]
    fn a_source_has_the_fields_of_its_plugins_and_those_of_every_event() {
        let fields = fields();
        for name in COMMON
            .iter()
            .chain(&["evt.type", "evt.is_async", "evt.asynctype"])
        {
            assert_eq!(lookup(name).map(|spec| spec.name), Ok(*name));
        }
        let parse = |name, argument| Field::new_of(Some(&fields), name, argument);
        assert_eq!(
            parse("ka.verb", None).expect("it is there").spec.name,
            "ka.verb"
        );
        assert_eq!(
            parse("evt.time", None).expect("it is common").spec.name,
            "evt.time"
        );
        let value = parse("ka.value", Some("/a/b")).expect("it has an argument");
        assert_eq!(value.argument, Argument::Name("/a/b".into()));
    }

    #[test]
    fn an_asynchronous_event_has_its_name_as_type_and_no_plugin() {
        use crate::Stage;
        use crate::testing::{Arg, EventBuilder};
        let fields = fields();
        let shown = |builder: &EventBuilder, name| {
            let field = Field::new_of(Some(&fields), name, None).expect(name);
            format!("{:?}", field.extract(&builder.at(Stage::Exit)))
        };
        let own = EventBuilder::new("pluginevent");
        let added = EventBuilder::new(ASYNC_EVENT).arg("name", Arg::Text(b"ping".to_vec()));
        let text = |text: &str| format!("{:?}", Value::text(text));
        assert_eq!(shown(&own, "evt.type"), text("pluginevent"));
        assert_eq!(
            shown(&own, "evt.is_async"),
            format!("{:?}", Value::Bool(false))
        );
        assert_eq!(shown(&own, "evt.asynctype"), format!("{:?}", Value::Absent));
        assert_eq!(shown(&added, "evt.type"), text("ping"));
        assert_eq!(
            shown(&added, "evt.is_async"),
            format!("{:?}", Value::Bool(true))
        );
        assert_eq!(shown(&added, "evt.asynctype"), text("ping"));
        assert_eq!(
            shown(&added, "evt.pluginname"),
            format!("{:?}", Value::Absent)
        );
    }

    #[test]
    fn fields_of_system_calls_and_unknown_ones_are_refused_with_a_suggestion() {
        let fields = fields();
        let refused = |name| {
            Field::new_of(Some(&fields), name, None)
                .expect_err(name)
                .to_string()
        };
        assert!(refused("proc.name").contains("cannot find a field named `proc.name`"));
        assert!(refused("ka.verbs").contains("`ka.verb`"));
        assert!(refused("ka.value").contains("without an argument"));
        assert!(
            Field::new("ka.verb", None).is_err(),
            "it is no field of system calls"
        );
    }
}
