//! The field registry: every field that a rule may name, its data source and its evaluation.
//!
//! A rule file says `proc.aname[2]`; [`Field::parse`] finds the [`FieldSpec`] and validates the argument;
//! [`Field::extract`] returns the value for one event. A known value never changes: before the stage that
//! [`Field::dependency`] returns, the value is [`Value::Unknown`]; from then on it equals the value at
//! [`Stage::Exit`]. This makes rejecting a call early sound.

mod ancestry;
mod argument;
mod container;
mod coverage;
mod dependency;
mod evt;
mod fd;
mod fs_path;
mod group;
mod k8s;
mod param;
mod path;
mod proc;
mod source;
mod syscall;
mod text;
mod thread;
mod time;
mod user;

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use argument::{Argument, ArgumentKind, FieldError};
pub use dependency::{DescriptorFact, ProcessFact, Source};
pub use fd::connection_name;
pub use path::{is_plain, normalize};
pub use source::{ASYNC_EVENT, PLUGIN_INFO, PluginField, SourceFields};

use crate::{Event, EventKind, FieldName, ParamType, Stage, Value, ValueType};

/// A class of fields, named by the first part of their names.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Name: `evt`, `proc`, `fd`, ...
    pub name: &'static str,
    /// Common subject of the class's fields.
    pub description: &'static str,
}

/// Whether this program can compute a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supplied {
    /// Supported, as far as the engine has the data.
    Yes,
    /// Never supported: the name is known so that rules which use the field load, and the value is always
    /// [`Value::Absent`]. Holds the reason.
    No(&'static str),
}

/// Cost of a field, for ordering tests. A hint: only the order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// A load or a comparison.
    Free,
    /// Text is built from available data.
    Text,
    /// Reads the calling process's program, which an engine remembers.
    Remembered,
    /// May query [`crate::SystemInfo`] about the calling process.
    Process,
    /// May query [`crate::SystemInfo`] about other processes or users.
    Far,
    /// May inspect files.
    File,
    /// May inspect namespaces and control groups.
    Container,
}

/// Function that computes a field for an event whose stage is high enough.
pub type Extract = for<'e, 'a> fn(&'e Event<'a>, &Argument) -> Value<'a>;

/// One row of the registry.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Full name without argument.
    pub name: &'static str,
    /// Type of its values. That of `evt.rawarg` depends on the parameter: see [`Field::ty`].
    pub ty: ValueType,
    /// Syntax of the argument.
    pub argument: ArgumentKind,
    /// Whether the value may be a [`Value::List`]. If the argument is an index, only without an index.
    pub multi: bool,
    /// Data that the field is computed from.
    pub source: Source,
    /// Cost of computing the field.
    pub cost: Cost,
    /// Whether this program can compute the field.
    pub supplied: Supplied,
    /// Whether rules compare this address field with host names: the evaluator must then resolve the name
    /// with [`crate::SystemInfo::addresses`].
    pub host_name: bool,
    /// Description of the field for documentation.
    pub description: &'static str,
    /// Computes the field. Call [`Field::extract`], which checks the stage first.
    pub extract: Extract,
    /// Formats the known parts of a value that is unknown as a whole: see [`Field::shown`].
    pub known_parts: Option<Extract>,
}

impl FieldSpec {
    /// Creates a field without an argument whose data is at hand.
    const fn new(
        name: &'static str,
        ty: ValueType,
        source: Source,
        extract: Extract,
        description: &'static str,
    ) -> Self {
        Self {
            name,
            ty,
            argument: ArgumentKind::None,
            multi: false,
            source,
            cost: source.cost(),
            supplied: Supplied::Yes,
            host_name: false,
            description,
            extract,
            known_parts: None,
        }
    }

    /// Creates a field that this program knows by name only.
    const fn absent(
        name: &'static str,
        ty: ValueType,
        reason: &'static str,
        description: &'static str,
    ) -> Self {
        let mut spec = Self::new(name, ty, Source::Nowhere, |_, _| Value::Absent, description);
        spec.supplied = Supplied::No(reason);
        spec
    }

    /// Sets the argument kind.
    const fn with(mut self, argument: ArgumentKind) -> Self {
        self.argument = argument;
        self
    }

    /// Marks the field as multi-valued.
    const fn many(mut self) -> Self {
        self.multi = true;
        self
    }

    /// Marks the field as compared with host names.
    const fn named_host(mut self) -> Self {
        self.host_name = true;
        self
    }

    /// Sets the function that formats a partly known value.
    const fn in_parts(mut self, known_parts: Extract) -> Self {
        self.known_parts = Some(known_parts);
        self
    }

    /// Returns the class that this field is listed under.
    pub fn class(&self) -> &'static Class {
        CLASSES
            .iter()
            .find(|(_, fields)| fields.iter().any(|field| field.name == self.name))
            .map(|(class, _)| class)
            .expect("every field stands in the table of a class")
    }
}

/// Classes in the order of the documentation, each with its fields.
static CLASSES: &[(Class, &[FieldSpec])] = &[
    (evt::CLASS, evt::FIELDS),
    (syscall::CLASS, syscall::FIELDS),
    (proc::CLASS, proc::FIELDS),
    (thread::CLASS, thread::FIELDS),
    (user::CLASS, user::FIELDS),
    (group::CLASS, group::FIELDS),
    (fd::CLASS, fd::FIELDS),
    (fd::LIST_CLASS, fd::LIST_FIELDS),
    (fs_path::CLASS, fs_path::FIELDS),
    (container::CLASS, container::FIELDS),
    (k8s::CLASS, k8s::FIELDS),
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static FieldSpec>> = LazyLock::new(|| {
    docs()
        .flat_map(|(_, fields)| fields)
        .map(|f| (f.name, f))
        .collect()
});

/// Returns all classes with their fields, for documentation.
pub fn docs() -> impl Iterator<Item = (&'static Class, &'static [FieldSpec])> {
    CLASSES.iter().map(|(class, fields)| (class, *fields))
}

/// Returns the field of this name (without argument).
///
/// # Errors
///
/// Fails if there is no such field; the error contains the nearest name.
pub fn lookup(name: &str) -> Result<&'static FieldSpec, FieldError> {
    BY_NAME
        .get(name)
        .copied()
        .ok_or_else(|| FieldError::Unknown {
            name: name.to_owned(),
            suggestion: crate::suggest::nearest(name, BY_NAME.keys().copied()).map(str::to_owned),
        })
}

/// A field with its argument, as a rule names it.
#[derive(Clone, Debug)]
pub struct Field {
    /// The row of the registry.
    pub spec: &'static FieldSpec,
    /// The validated argument.
    pub argument: Argument,
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.spec.name == other.spec.name && self.argument == other.argument
    }
}

impl Eq for Field {}

impl std::hash::Hash for Field {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.spec.name.hash(state);
        self.argument.hash(state);
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.spec.name)?;
        match (&self.argument, self.spec.argument) {
            (Argument::None, _) => Ok(()),
            (Argument::Name(name), ArgumentKind::Suffix { .. }) => write!(f, ".{name}"),
            (Argument::Param(param), _) => write!(f, ".{}", param.name()),
            (Argument::Index(index), _) => write!(f, "[{index}]"),
            (Argument::Name(name), _) => write!(f, "[{name}]"),
        }
    }
}

/// Serializes in the syntax of rules.
impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        Self::parse(text).map_err(de::Error::custom)
    }
}

impl Field {
    /// Parses a field in the syntax of rules and output formats: `proc.aname[2]`, `evt.arg.flags`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such field or the argument does not fit it.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let (name, bracket) = match text.split_once('[') {
            None => (text, None),
            Some((name, rest)) => match rest.strip_suffix(']') {
                Some(argument) => (name, Some(argument)),
                None => {
                    return Err(FieldError::Unclosed {
                        field: text.to_owned(),
                    });
                }
            },
        };
        Self::new(name, bracket)
    }

    /// Creates a field from a name and the optional text in brackets after it.
    ///
    /// # Errors
    ///
    /// Fails if there is no such field or the argument does not fit it.
    pub fn new(name: &str, bracket: Option<&str>) -> Result<Self, FieldError> {
        Self::new_of(None, name, bracket)
    }

    /// Like [`Field::new`], for a field of the source that `fields` describes; `None` is `syscall`.
    ///
    /// # Errors
    ///
    /// Fails if the source has no such field or the argument does not fit it.
    pub fn new_of(
        fields: Option<&SourceFields>,
        name: &str,
        bracket: Option<&str>,
    ) -> Result<Self, FieldError> {
        let (spec, suffix) = match fields {
            None => split_suffix(name)?,
            Some(fields) => (fields.lookup(name)?, None),
        };
        let argument = argument::resolve(spec, suffix, bracket)?;
        Ok(Self { spec, argument })
    }

    /// Returns the type of the field's values.
    pub fn ty(&self) -> ValueType {
        match (&self.argument, self.spec.source) {
            (Argument::Param(param), Source::RawParam) => raw_type(param.ty()),
            _ => self.spec.ty,
        }
    }

    /// Returns true if the value may be a [`Value::List`].
    pub fn multi(&self) -> bool {
        self.spec.multi && !matches!(self.argument, Argument::Index(_))
    }

    /// Returns the data that the field is computed from.
    pub fn depends_on(&self) -> Source {
        self.spec.source
    }

    /// Returns the earliest stage at which the value for this kind of event can be known. Below it
    /// [`Field::extract`] returns [`Value::Unknown`].
    pub fn dependency(&self, kind: EventKind) -> Stage {
        dependency::stage(self.spec.source, &self.argument, kind)
    }

    /// Returns true if the value for a call that opens a file depends only on the opening itself: the name
    /// that was passed, if it is absolute, flags, mode and result. The value is then the same for every
    /// process.
    pub fn is_of_opening(&self) -> bool {
        use DescriptorFact as Fact;
        match self.spec.source {
            Source::Result | Source::OpenFlags | Source::OpenMode | Source::OpenResult => true,
            Source::Descriptor(Fact::TypeChar | Fact::Kind | Fact::Name | Fact::FileName) => true,
            // `fd.uid` contains the thread id.
            Source::Descriptor(Fact::Number) => self.spec.name == "fd.num",
            _ => false,
        }
    }

    /// Returns the index of the parameter that alone determines the value for this kind of event
    /// (`evt.arg.NAME`, `evt.rawarg.NAME`).
    pub fn param_index(&self, kind: EventKind) -> Option<usize> {
        match self.spec.source {
            Source::Param | Source::RawParam => self.argument.param_index(kind),
            _ => None,
        }
    }

    /// Returns the field as its plugin is asked for it.
    #[must_use]
    pub fn in_plugin(&self) -> FieldName<'_> {
        let (index, key) = match &self.argument {
            Argument::None | Argument::Param(_) => (None, None),
            Argument::Index(index) => (Some(*index), None),
            Argument::Name(name) => (None, Some(&**name)),
        };
        FieldName {
            name: self.spec.name,
            index,
            key,
        }
    }

    /// Returns the value for an event, or [`Value::Unknown`] if its stage is too low.
    pub fn extract<'a>(&self, event: &Event<'a>) -> Value<'a> {
        if event.stage < self.dependency(event.kind) {
            return Value::Unknown;
        }
        if self.spec.source == Source::Plugin {
            return event.world.plugin_field(self.in_plugin(), event.arena);
        }
        (self.spec.extract)(event, &self.argument)
    }

    /// Returns the text to print for an unknown value: its known parts, at any stage. Comparisons must not
    /// use this value, because they have to stay undecided.
    pub fn shown<'a>(&self, event: &Event<'a>) -> Value<'a> {
        match self.spec.known_parts {
            Some(known_parts) => known_parts(event, &self.argument),
            None => Value::Unknown,
        }
    }
}

/// Splits `evt.arg.flags` into the field `evt.arg` and the suffix `flags`.
fn split_suffix(name: &str) -> Result<(&'static FieldSpec, Option<&str>), FieldError> {
    if let Some(spec) = BY_NAME.get(name) {
        return Ok((spec, None));
    }
    for (dot, _) in name.rmatch_indices('.') {
        let Some(spec) = BY_NAME.get(&name[..dot]) else {
            continue;
        };
        if matches!(
            spec.argument,
            ArgumentKind::Suffix { .. } | ArgumentKind::Label | ArgumentKind::Param
        ) {
            return Ok((spec, Some(&name[dot + 1..])));
        }
    }
    lookup(name).map(|spec| (spec, None))
}

fn raw_type(ty: ParamType) -> ValueType {
    match ty {
        ParamType::Errno | ParamType::Fd | ParamType::Int | ParamType::Pid => ValueType::Int,
        ParamType::Uint
        | ParamType::Hex
        | ParamType::Mode
        | ParamType::Flags(_)
        | ParamType::Enum(_)
        | ParamType::Uid
        | ParamType::Gid
        | ParamType::Signal => ValueType::Uint,
        ParamType::Path => ValueType::Path,
        ParamType::Text | ParamType::Texts | ParamType::Tuple | ParamType::Bytes => ValueType::Text,
    }
}
