//! What a process that loads plugins and the process that evaluates rules say to each other.
//!
//! A message is a frame: its length as four bytes, the least significant first, then a [`Request`] or a [`Reply`] in
//! postcard. The side that evaluates rules believes nothing: frames, lists and texts have limits, and [`Record::check`]
//! compares values with what was asked for. No type contains itself, so that no message makes its reader recurse.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// File name of the program that loads plugins.
pub const PROGRAM: &str = "tollgate-plugin-host";

/// Version of this protocol. The two programs are of one build; another version is refused.
pub const VERSION: u32 = 5;

/// Largest frame in bytes.
pub const MAX_FRAME: usize = 16 << 20;
/// Most fields of a plugin.
pub const MAX_FIELDS: usize = 4096;
/// Most values of a list.
pub const MAX_LIST: usize = 65_536;
/// Longest event of a plugin in bytes, without its header. A frame takes one with its values.
pub const MAX_EVENT_DATA: usize = (8 << 20) - 64;
/// Longest text of a description in bytes, the schema of a configuration excepted.
const MAX_DESCRIPTION: usize = 64 << 10;
/// Longest schema of a configuration in bytes.
const MAX_SCHEMA: usize = 1 << 20;

/// What the process that evaluates rules asks for.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Request {
    /// Load and initialize plugins, in this order. Comes first, once.
    Load {
        /// [`VERSION`] of who asks.
        version: u32,
        /// The plugins.
        plugins: Vec<PluginSpec>,
    },
    /// Open the source of the plugin [`Wanted::source`], and send events until it ends. Comes second, once.
    Open(Wanted),
    /// Open nothing, and wait for events that the plugin [`Wanted::source`] made before. Comes second, once, in place of `Open`.
    Replay(Wanted),
    /// Events that the source made before, to be answered by as many records in their order. Comes after `Replay`.
    Events(Vec<RecordedEvent>),
}

/// What each record carries.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Position in [`Request::Load`] of the plugin whose events they are.
    pub source: u32,
    /// The fields whose values it carries.
    pub fields: Vec<WantedField>,
    /// It carries the description by the plugin.
    pub with_info: bool,
    /// It carries the bytes of the event, for recordings.
    pub with_data: bool,
}

/// An event of a plugin from a capture.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedEvent {
    /// Number of the event in its capture.
    pub number: u64,
    /// Time in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Name of an asynchronous event; `None` for an event that the source itself made.
    pub asynchronous: Option<String>,
    /// The bytes of the plugin; at most [`MAX_EVENT_DATA`].
    pub data: Vec<u8>,
}

/// A plugin to load.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct PluginSpec {
    /// Its name.
    pub name: String,
    /// Path of its shared object.
    pub library: String,
    /// `init_config` as the plugin takes it.
    pub init_config: String,
    /// `open_params`; empty for plugins that only take fields.
    pub open_params: String,
}

/// A field that a rule asks for.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct WantedField {
    /// Position of the plugin in [`Request::Load`].
    pub plugin: u32,
    /// Position of the field in the plugin's list.
    pub field: u32,
    /// Its argument.
    pub argument: WantedArgument,
}

/// The argument of a field.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum WantedArgument {
    /// None.
    None,
    /// A number.
    Index(u64),
    /// A text.
    Key(String),
}

/// What the process that loads plugins says.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Reply {
    /// The plugins, as they describe themselves.
    Loaded(Vec<Description>),
    /// The source is open.
    Opened,
    /// Some events, in their order.
    Batch(Vec<Record>),
    /// The plugin works, and has no event.
    Idle,
    /// The source has no more events.
    Ended,
    /// So many events since the last such message a plugin could not parse. Rules see them.
    Unparsed(u64),
    /// Asynchronous events since the last such message that no rule sees.
    Missed(Missed),
    /// Something failed; nothing follows.
    Failed(String),
}

/// Counts asynchronous events that no rule sees.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Events for which the queue had no room, and those that waited in it when the source failed.
    pub lost: u64,
    /// Events that are malformed, have no name that their plugin announces, or came when the source was closed.
    pub refused: u64,
}

/// A plugin as it describes itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Description {
    /// Name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Whom to ask.
    pub contact: String,
    /// Version of the plugin.
    pub version: String,
    /// Version of the plugin API that it needs.
    pub required_api: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Number of the plugin in events; 0 without a source of its own.
    pub id: u32,
    /// Event source that it is; empty without one.
    pub source: String,
    /// Event sources whose events it takes fields from; empty for all.
    pub extracts_from: Vec<String>,
    /// Its fields.
    pub fields: Vec<FieldDescription>,
    /// JSON schema of `init_config`; empty without one.
    pub schema: String,
    /// Event sources whose events it parses; empty for all.
    pub parses_from: Vec<String>,
    /// It parses system calls, too.
    pub parses_system_calls: bool,
    /// Event sources to which it adds asynchronous events; empty for all.
    pub adds_to: Vec<String>,
    /// Names of its asynchronous events; empty if it makes none.
    pub async_events: Vec<String>,
}

/// What a plugin can do.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the capabilities of the plugin API are independent"
)]
pub struct Capabilities {
    /// It is an event source.
    pub sourcing: bool,
    /// It takes fields from events.
    pub extraction: bool,
    /// It reads events to keep state.
    pub parsing: bool,
    /// It adds asynchronous events to sources.
    pub async_events: bool,
    /// It acts when a capture starts and stops.
    pub listening: bool,
}

/// A field as its plugin describes it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct FieldDescription {
    /// Full name.
    pub name: String,
    /// Type of its values.
    pub ty: FieldType,
    /// Whether it has several values.
    pub is_list: bool,
    /// Its argument.
    pub argument: ArgumentDescription,
    /// What it is.
    pub description: String,
}

/// The argument of a field as its plugin describes it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ArgumentDescription {
    /// The field needs one.
    pub is_required: bool,
    /// It may be a number.
    pub is_index: bool,
    /// It may be a text.
    pub is_key: bool,
}

/// Type of a field of a plugin.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum FieldType {
    /// Text.
    Text,
    /// Unsigned number of 64 bits.
    Uint,
    /// Boolean.
    Bool,
    /// Duration in nanoseconds.
    RelTime,
    /// Time in nanoseconds since the epoch.
    AbsTime,
    /// Address.
    Ip,
    /// Network.
    Net,
}

/// One event.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// Time in nanoseconds since the epoch.
    pub time_ns: u64,
    /// The event as its plugin describes it: absent if it was not asked for, or the plugin describes none.
    pub info: FieldValue,
    /// Name of an asynchronous event; `None` for an event that the source itself made.
    pub asynchronous: Option<String>,
    /// Values of the wanted fields, in their order.
    pub values: Vec<FieldValue>,
    /// The bytes of the event; `None` if they were not asked for.
    pub data: Option<Vec<u8>>,
}

/// Value of a field of one event.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FieldValue {
    /// The event has no such value.
    Absent,
    /// The plugin could not say.
    Unknown,
    /// One value.
    One(Scalar),
    /// Several values.
    Many(Vec<Scalar>),
}

/// A single value.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Scalar {
    /// Text; need not be UTF-8.
    Text(Vec<u8>),
    /// Number, time or duration.
    Uint(u64),
    /// Boolean.
    Bool(bool),
    /// Address.
    Ip(IpAddr),
}

/// A message that is not one.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The other side is gone, or the deadline has passed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A frame is longer than [`MAX_FRAME`].
    #[error("a message of {0} bytes, above the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// A frame holds no message.
    #[error("a message that cannot be read: {0}")]
    Malformed(#[from] postcard::Error),
    /// A message has more than a limit allows, or what was not asked for.
    #[error("a message with {0}")]
    Invalid(String),
}

/// Writes one frame.
///
/// # Errors
///
/// Fails if the message is too long or the other side is gone.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> Result<(), ProtocolError> {
    let mut frame = vec![0; 4];
    frame.extend(postcard::to_allocvec(message)?);
    let length = frame.len() - 4;
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
    let header = header.ok_or(ProtocolError::TooLong(length))?;
    frame[..4].copy_from_slice(&header.to_le_bytes());
    to.write_all(&frame)?;
    Ok(to.flush()?)
}

/// Reads one frame. Reserves no more memory than has arrived.
///
/// # Errors
///
/// Fails if the frame is too long or holds no message, or the other side is gone.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, ProtocolError> {
    let mut header = [0; 4];
    from.read_exact(&mut header)?;
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(ProtocolError::TooLong(length));
    }
    let mut frame = Vec::new();
    let limit = u64::try_from(length).unwrap_or(u64::MAX);
    from.by_ref().take(limit).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(postcard::from_bytes(&frame)?)
}

impl Description {
    /// Checks lengths, counts and names.
    ///
    /// # Errors
    ///
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), ProtocolError> {
        let invalid = |what: String| Err(ProtocolError::Invalid(what));
        let texts = [
            &self.name,
            &self.description,
            &self.contact,
            &self.version,
            &self.required_api,
            &self.source,
        ];
        let of_fields = self
            .fields
            .iter()
            .flat_map(|field| [&field.name, &field.description]);
        let mut all = texts
            .into_iter()
            .chain(of_fields)
            .chain(&self.extracts_from)
            .chain(&self.parses_from)
            .chain(&self.adds_to);
        if all.any(|text| text.len() > MAX_DESCRIPTION) || self.schema.len() > MAX_SCHEMA {
            return invalid("a description that is too long".to_owned());
        }
        let lists = [
            &self.extracts_from,
            &self.parses_from,
            &self.adds_to,
            &self.async_events,
        ];
        if self.fields.len() > MAX_FIELDS || lists.iter().any(|list| list.len() > MAX_FIELDS) {
            return invalid(format!("more than {MAX_FIELDS} fields, sources or names"));
        }
        if !is_name(&self.name) || !(self.source.is_empty() || is_name(&self.source)) {
            return invalid(format!(
                "the name `{}` or source `{}`, which is none",
                self.name.escape_default(),
                self.source.escape_default()
            ));
        }
        if let Some(name) = self.async_events.iter().find(|name| !is_async_name(name)) {
            return invalid(format!(
                "the name `{}` of an asynchronous event, which is none",
                name.escape_default()
            ));
        }
        let is_bad = |field: &&FieldDescription| !is_name(&field.name) || !field.name.contains('.');
        if let Some(field) = self.fields.iter().find(is_bad) {
            let name = field.name.escape_default();
            return invalid(format!(
                "the field `{name}`, which is no name such as `a.b`"
            ));
        }
        Ok(())
    }
}

/// Returns true for a name of a plugin, source or field.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= 256 && text.bytes().all(is_allowed)
}

/// Returns true for a name that an asynchronous event can have. Rules compare it, and outputs show it.
#[must_use]
pub fn is_async_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control)
}

impl Record {
    /// Checks that the values are those of the wanted fields, whose types and whether they are lists `wanted` says, and that
    /// the record has the bytes of its event if they were asked for, and else has none.
    ///
    /// # Errors
    ///
    /// Names what is wrong.
    pub fn check(
        &self,
        wanted: &[(FieldType, bool)],
        with_data: bool,
    ) -> Result<(), ProtocolError> {
        self.check_data(with_data)?;
        if self.values.len() != wanted.len() {
            let (found, wanted) = (self.values.len(), wanted.len());
            let what = format!("{found} values in place of {wanted}");
            return Err(ProtocolError::Invalid(what));
        }
        let info = [(&self.info, &(FieldType::Text, false))];
        for (value, (ty, is_list)) in self.values.iter().zip(wanted).chain(info) {
            let fits = match value {
                FieldValue::Absent | FieldValue::Unknown => true,
                FieldValue::One(scalar) => !is_list && scalar.has_type(*ty),
                FieldValue::Many(scalars) => {
                    *is_list
                        && scalars.len() <= MAX_LIST
                        && scalars.iter().all(|scalar| scalar.has_type(*ty))
                }
            };
            if !fits {
                let what = "a value of another type than its field has".to_owned();
                return Err(ProtocolError::Invalid(what));
            }
        }
        Ok(())
    }

    fn check_data(&self, with_data: bool) -> Result<(), ProtocolError> {
        let what = match &self.data {
            Some(_) if !with_data => "the bytes of an event, which were not asked for".to_owned(),
            None if with_data => "an event without its bytes".to_owned(),
            Some(data) if data.len() > MAX_EVENT_DATA => {
                format!("{} bytes of an event, above {MAX_EVENT_DATA}", data.len())
            }
            _ => return Ok(()),
        };
        Err(ProtocolError::Invalid(what))
    }
}

impl Scalar {
    fn has_type(&self, ty: FieldType) -> bool {
        match self {
            Self::Text(_) => ty == FieldType::Text,
            Self::Uint(_) => {
                matches!(
                    ty,
                    FieldType::Uint | FieldType::RelTime | FieldType::AbsTime
                )
            }
            Self::Bool(_) => ty == FieldType::Bool,
            Self::Ip(_) => matches!(ty, FieldType::Ip | FieldType::Net),
        }
    }
}

#[cfg(test)]
mod tests;
