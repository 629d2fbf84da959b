//! Calls the functions of a plugin: the only unsafe code of this program.
//!
//! A plugin runs in this process with all its rights, so nothing here can protect the process from it; that is why the
//! process has nothing else to do. What a plugin returns is checked as far as that is possible before it is used: null
//! pointers, lengths against limits, and lengths against each other. A pointer that leads nowhere ends the process, which
//! its parent counts.

mod functions;
mod handler;
mod tables;
mod values;

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr;

use falco_plugin_api::{
    plugin_api, ss_instance_t, ss_plugin_async_event_handler_t, ss_plugin_event,
    ss_plugin_event_input, ss_plugin_event_parse_input, ss_plugin_field_extract_input,
    ss_plugin_init_input, ss_plugin_owner_t, ss_plugin_rc, ss_plugin_rc_SS_PLUGIN_EOF as EOF,
    ss_plugin_rc_SS_PLUGIN_SUCCESS as SUCCESS, ss_plugin_rc_SS_PLUGIN_TIMEOUT as TIMEOUT,
    ss_plugin_schema_type_SS_PLUGIN_SCHEMA_JSON as JSON_SCHEMA, ss_plugin_t,
};
use plugin::protocol::{FieldValue, Scalar};

pub(crate) use self::handler::Owner;
pub(crate) use self::values::AskedField;
use self::values::{raw_field, value};
use crate::event::{self, Buffer, HEADER};

/// Longest text that is taken from a plugin, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 20;
/// Most events of a batch.
const MAX_BATCH: usize = 65_536;
/// Most types of events that a plugin takes fields from: there are as many numbers.
const MAX_TYPES: usize = 65_536;

/// A function that names types of events.
type TypesFunction = unsafe extern "C-unwind" fn(*mut u32, *mut ss_plugin_t) -> *mut u16;

/// A library whose functions are found.
pub(crate) struct Library {
    api: plugin_api,
}

/// An initialized plugin, and its open source.
pub(crate) struct Plugin {
    library: Library,
    state: *mut ss_plugin_t,
    instance: *mut ss_instance_t,
    /// The plugin may keep the pointer.
    _config: CString,
    /// Name of the source in the events that are passed back.
    source: CString,
}

/// What a call for events returns.
pub(crate) enum Batch {
    Events {
        events: Vec<Buffer>,
        /// There are no events after these.
        is_last: bool,
    },
    Nothing,
    Ended,
}

/// Texts that a library says without being initialized.
#[derive(Clone, Copy)]
pub(crate) enum Text {
    RequiredApi,
    Name,
    Description,
    Contact,
    Version,
    Source,
    ExtractSources,
    Fields,
    ParseSources,
    AsyncSources,
    AsyncEvents,
}

impl Library {
    /// Loads a library. Its constructors run.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        let name = CString::new(bytes).map_err(|_nul| "its path has a NUL byte".to_owned())?;
        // SAFETY: `name` is a C string. What constructors of the library do is the library's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: returns null or a C string that stays valid until the next call of this thread.
            let message = unsafe { libc::dlerror() };
            return Err(text_at(message, MAX_TEXT).unwrap_or_else(|| "dlopen failed".to_owned()));
        }
        // Never closed: the process ends with its plugins.
        Ok(Self {
            api: functions::all(handle),
        })
    }

    /// Returns a text; `None` if the plugin has no such function, or returns none.
    pub(crate) fn text(&self, which: Text) -> Option<String> {
        let (sourcing, extraction) = (&self.api.__bindgen_anon_1, &self.api.__bindgen_anon_2);
        let function = match which {
            Text::RequiredApi => self.api.get_required_api_version,
            Text::Name => self.api.get_name,
            Text::Description => self.api.get_description,
            Text::Contact => self.api.get_contact,
            Text::Version => self.api.get_version,
            Text::Source => sourcing.get_event_source,
            Text::ExtractSources => extraction.get_extract_event_sources,
            Text::Fields => extraction.get_fields,
            Text::AsyncSources => self.api.__bindgen_anon_4.get_async_event_sources,
            Text::AsyncEvents => self.api.__bindgen_anon_4.get_async_events,
            Text::ParseSources => self.api.__bindgen_anon_3.get_parse_event_sources,
        };
        let function = function?;
        // SAFETY: the API lets these functions be called at any time.
        let text = unsafe { function() };
        text_at(text, MAX_TEXT)
    }

    /// Returns the JSON schema of the configuration, if the plugin has one.
    pub(crate) fn schema(&self) -> Option<String> {
        let function = self.api.get_init_schema?;
        let mut kind = 0;
        // SAFETY: the API lets it be called at any time; `kind` can be written.
        let text = unsafe { function(&raw mut kind) };
        text_at(text, MAX_TEXT).filter(|_| kind == JSON_SCHEMA)
    }

    /// Returns the number of the plugin; 0 without one.
    pub(crate) fn id(&self) -> u32 {
        let function = self.api.__bindgen_anon_1.get_id;
        // SAFETY: the API lets it be called at any time.
        function.map_or(0, |function| unsafe { function() })
    }

    /// Returns what the plugin can do, by the functions that it has.
    pub(crate) fn capabilities(&self) -> plugin::protocol::Capabilities {
        let source = &self.api.__bindgen_anon_1;
        let extract = &self.api.__bindgen_anon_2;
        plugin::protocol::Capabilities {
            sourcing: source.open.is_some()
                && source.close.is_some()
                && source.next_batch.is_some(),
            extraction: extract.get_fields.is_some() && extract.extract_fields.is_some(),
            parsing: self.api.__bindgen_anon_3.parse_event.is_some(),
            async_events: self.api.__bindgen_anon_4.set_async_event_handler.is_some(),
            listening: self.api.__bindgen_anon_5.capture_open.is_some(),
        }
    }

    /// Returns the configuration as the plugin expects it: one that has a schema takes JSON, and relies on it.
    fn completed<'c>(&self, config: &'c str) -> Result<&'c str, String> {
        match (self.schema(), config) {
            (None, _) => Ok(config),
            (Some(_), "") => Ok("{}"),
            (Some(_), _) => serde_json::from_str::<serde::de::IgnoredAny>(config)
                .map(|_json| config)
                .map_err(|error| format!("its init_config has to be JSON: {error}")),
        }
    }

    /// Initializes the plugin, which needs this minor version of the API.
    pub(crate) fn init(self, config: &str, minor: u64) -> Result<Plugin, String> {
        let nul = |_nul| "a text of its configuration has a NUL byte".to_owned();
        let config = CString::new(self.completed(config)?).map_err(nul)?;
        // As in a description: empty for a plugin that makes no events.
        let source = CString::new(self.text(Text::Source).unwrap_or_default()).map_err(nul)?;
        let missing = |what: &str| format!("it has no function `plugin_{what}`");
        let capabilities = self.capabilities();
        let init = self.api.init.ok_or_else(|| missing("init"))?;
        let input = ss_plugin_init_input {
            config: config.as_ptr(),
            owner: ptr::null_mut(),
            get_owner_last_error: Some(tables::last_error),
            tables: match capabilities.extraction || capabilities.parsing {
                true => tables::init_input(),
                false => ptr::null(),
            },
            log_fn: Some(log),
        };
        let mut rc: ss_plugin_rc = SUCCESS;
        let state = tables::initializing(minor, || {
            // SAFETY: `input` is filled as the API says, and lives during the call; `config` lives as long as the plugin.
            unsafe { init(&raw const input, &raw mut rc) }
        });
        let plugin = Plugin {
            library: self,
            state,
            instance: ptr::null_mut(),
            _config: config,
            source,
        };
        match rc {
            SUCCESS if !state.is_null() => Ok(plugin),
            SUCCESS => Err("it returns no state, but success".to_owned()),
            _ => Err(plugin.error("cannot be initialized", rc)),
        }
    }
}

impl Plugin {
    /// Opens the source.
    pub(crate) fn open(&mut self, params: &str) -> Result<(), String> {
        let open = self.library.api.__bindgen_anon_1.open;
        let open = open.ok_or("it has no function `plugin_open`")?;
        let params =
            CString::new(params).map_err(|_nul| "its open_params have a NUL byte".to_owned())?;
        let mut rc: ss_plugin_rc = SUCCESS;
        // SAFETY: `state` is initialized; `params` and `rc` live during the call.
        self.instance = unsafe { open(self.state, params.as_ptr(), &raw mut rc) };
        match rc {
            SUCCESS if !self.instance.is_null() => Ok(()),
            SUCCESS => Err("it opens nothing, but reports success".to_owned()),
            _ => Err(self.error("cannot open its source", rc)),
        }
    }

    /// Asks for events, and copies them.
    pub(crate) fn next_batch(&mut self) -> Result<Batch, String> {
        let next = self.library.api.__bindgen_anon_1.next_batch;
        let next = next.ok_or("it has no function `plugin_next_batch`")?;
        let mut count = 0;
        let mut events = ptr::null_mut();
        // SAFETY: state and instance are open; both results can be written.
        let rc = unsafe { next(self.state, self.instance, &raw mut count, &raw mut events) };
        match rc {
            SUCCESS | TIMEOUT | EOF => {}
            _ => return Err(self.error("cannot read events", rc)),
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > MAX_BATCH {
            return Err(format!(
                "it returns {count} events at once, more than {MAX_BATCH}"
            ));
        }
        // A plugin that waits for a time, or has reached its end, says so together with the events that it has.
        if count == 0 {
            return Ok(if rc == EOF {
                Batch::Ended
            } else {
                Batch::Nothing
            });
        }
        if events.is_null() {
            return Err(format!("it returns {count} events and no pointer to them"));
        }
        let id = self.library.id();
        let mut batch = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: the plugin says that its array has `count` pointers.
            let event = unsafe { element(events, at) };
            batch.push(copied(event, id)?);
        }
        Ok(Batch::Events {
            events: batch,
            is_last: rc == EOF,
        })
    }

    /// Returns the event in words: absent if the plugin has no function for it, unknown if it gives none or too long ones.
    pub(crate) fn to_text(&self, event: &Buffer, number: u64) -> FieldValue {
        let Some(function) = self.library.api.__bindgen_anon_1.event_to_string else {
            return FieldValue::Absent;
        };
        let input = self.input(event, number);
        // SAFETY: `state` is initialized, and `input` lives during the call.
        let text = unsafe { function(self.state, &raw const input) };
        text_at(text, MAX_TEXT).map_or(FieldValue::Unknown, |text| {
            FieldValue::One(Scalar::Text(text.into_bytes()))
        })
    }

    /// Returns the values of fields. `source` is the plugin that made the event.
    ///
    /// Each field is asked for in a call of its own, and copied before the next call, as Falco does: plugins in Go keep one
    /// buffer a field, which a second argument of the same field overwrites, and fail a whole call if one field fails.
    pub(crate) fn extract(
        &self,
        source: &Self,
        event: &Buffer,
        number: u64,
        asked: &[AskedField],
    ) -> Result<Vec<FieldValue>, String> {
        let extract = self.library.api.__bindgen_anon_2.extract_fields;
        let extract = extract.ok_or("it has no function `plugin_extract_fields`")?;
        let event = source.input(event, number);
        let one = |asked: &AskedField| {
            let mut field = raw_field(asked);
            // Plugins of the SDK for Rust take no field without it, whether or not they read tables.
            let mut reader = tables::READER_EXT;
            let input = ss_plugin_field_extract_input {
                owner: ptr::null_mut(),
                get_owner_last_error: Some(tables::last_error),
                num_fields: 1,
                fields: &raw mut field,
                table_reader: tables::READER,
                table_reader_ext: &raw mut reader,
                value_offsets: ptr::null_mut(),
            };
            // SAFETY: `state` is initialized; event, input and what it points to live during the call.
            let rc = unsafe { extract(self.state, &raw const event, &raw const input) };
            match rc {
                SUCCESS => value(&field, asked),
                _ => Ok(FieldValue::Unknown),
            }
        };
        asked.iter().map(one).collect()
    }

    /// Has the plugin parse an event. `source` is the plugin that made it. Returns false if the plugin reports a failure.
    pub(crate) fn parse(&self, source: &Self, event: &Buffer, number: u64) -> Result<bool, String> {
        let parse = self.library.api.__bindgen_anon_3.parse_event;
        let parse = parse.ok_or("it has no function `plugin_parse_event`")?;
        let event = source.input(event, number);
        let (mut reader, mut writer) = (tables::READER_EXT, tables::WRITER_EXT);
        let input = ss_plugin_event_parse_input {
            owner: ptr::null_mut(),
            get_owner_last_error: Some(tables::last_error),
            table_reader: tables::READER,
            table_writer: tables::WRITER,
            table_reader_ext: &raw mut reader,
            table_writer_ext: &raw mut writer,
        };
        // SAFETY: `state` is initialized; event, input and what it points to live during the call.
        let rc = unsafe { parse(self.state, &raw const event, &raw const input) };
        Ok(rc == SUCCESS)
    }

    /// Returns the types of events that the plugin names to parse; `None` if it names none.
    pub(crate) fn parsed_types(&self) -> Option<Vec<u16>> {
        self.types(self.library.api.__bindgen_anon_3.get_parse_event_types)
    }

    /// Returns the types of events that the plugin names to take fields from; `None` if it names none.
    pub(crate) fn extracted_types(&self) -> Option<Vec<u16>> {
        self.types(self.library.api.__bindgen_anon_2.get_extract_event_types)
    }

    /// Has threads of the plugin add asynchronous events; they may from now on.
    pub(crate) fn start_adding(&self, owner: &'static Owner) -> Result<(), String> {
        self.set_handler(handler::register(owner), Some(handler::handle))
    }

    /// Has the plugin stop to add events. It may wait for its threads.
    pub(crate) fn stop_adding(&self) -> Result<(), String> {
        self.set_handler(ptr::null_mut(), None)
    }

    fn set_handler(
        &self,
        owner: *mut ss_plugin_owner_t,
        handler: ss_plugin_async_event_handler_t,
    ) -> Result<(), String> {
        let set = self.library.api.__bindgen_anon_4.set_async_event_handler;
        let set = set.ok_or("it has no function `plugin_set_async_event_handler`")?;
        // SAFETY: `state` is initialized; `owner` is never followed.
        match unsafe { set(self.state, owner, handler) } {
            SUCCESS => Ok(()),
            rc => Err(self.error("does not take the handler of asynchronous events", rc)),
        }
    }

    /// Returns the types of events that a function names; `None` if there are none.
    fn types(&self, function: Option<TypesFunction>) -> Option<Vec<u16>> {
        let function = function?;
        let mut count = 0;
        // SAFETY: `state` is initialized; `count` can be written.
        let types = unsafe { function(&raw mut count, self.state) };
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_TYPES);
        if types.is_null() || count == 0 {
            return None;
        }
        // SAFETY: the plugin says that its array has at least `count` types.
        Some((0..count).map(|at| unsafe { element(types, at) }).collect())
    }

    fn input(&self, event: &Buffer, number: u64) -> ss_plugin_event_input {
        ss_plugin_event_input {
            evt: event.as_ptr().cast(),
            evtnum: number,
            evtsrc: self.source.as_ptr(),
        }
    }

    /// Returns what failed, with the plugin's last error.
    fn error(&self, what: &str, rc: ss_plugin_rc) -> String {
        let function = self.library.api.get_last_error;
        let function = function.filter(|_| !self.state.is_null());
        let text = function.and_then(|function| {
            // SAFETY: `state` is not null; the API lets it be called after each failure.
            text_at(unsafe { function(self.state) }, MAX_TEXT)
        });
        let cause = text.filter(|text| !text.is_empty());
        format!(
            "it {what} (code {rc}): {}",
            cause.as_deref().unwrap_or("no reason is given")
        )
    }
}

/// Ends the process without running destructors, neither those of this program nor those of plugins.
pub(crate) fn exit_at_once() -> ! {
    // SAFETY: has no precondition. Nothing of this program needs its destructors.
    unsafe { libc::_exit(0) }
}

/// Copies an event after checking its lengths.
fn copied(event: *const ss_plugin_event, id: u32) -> Result<Buffer, String> {
    if event.is_null() {
        return Err("it returns an event that is a null pointer".to_owned());
    }
    let bytes: *const u8 = event.cast();
    // SAFETY: an event begins with its header.
    let header = unsafe { std::slice::from_raw_parts(bytes, HEADER) };
    let length = event::length(header)?;
    // SAFETY: the header says that the event has this many bytes, which is less than the limit.
    let all = unsafe { std::slice::from_raw_parts(bytes, length) };
    event::checked(all, id)
}

/// Reads an element of an array of a plugin.
///
/// # Safety
///
/// The array has more than `at` elements.
unsafe fn element<T>(array: *const T, at: usize) -> T {
    // SAFETY: as the caller says.
    let place = unsafe { array.add(at) };
    // SAFETY: as the caller says.
    unsafe { place.read() }
}

/// Copies a C string; `None` for null, or one that is longer than `limit`.
fn bytes_at(text: *const c_char, limit: usize) -> Option<Vec<u8>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: `text` is a C string, or at least `limit` bytes can be read.
    let length = unsafe { libc::strnlen(text, limit + 1) };
    if length > limit {
        return None;
    }
    // SAFETY: a NUL byte follows within the limit.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
}

fn text_at(text: *const c_char, limit: usize) -> Option<String> {
    bytes_at(text, limit).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Longest message of a plugin in the log, in bytes.
const MAX_LOG: usize = 4096;
/// Least severe messages of plugins that are printed: 4 is a warning.
const LOG_SEVERITY: u32 = 4;

unsafe extern "C-unwind" fn log(
    _owner: *mut ss_plugin_owner_t,
    component: *const c_char,
    message: *const c_char,
    severity: u32,
) {
    if severity > LOG_SEVERITY {
        return;
    }
    // The API lets both be null; a line of the log decides nothing.
    let component = text_at(component, MAX_LOG).unwrap_or_default();
    let message = text_at(message, MAX_LOG).unwrap_or_default();
    let line: String = format!("{component}: {message}")
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    eprintln!("tollgate-plugin-host: {line}");
}
