//! Answers the requests of the program that asks.

use std::cell::Cell;
use std::ffi::CString;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use plugin::protocol::{
    self, Description, FieldValue, PluginSpec, Record, Reply, Request, Scalar, VERSION, Wanted,
    WantedArgument, WantedField,
};

use crate::abi::{self, AskedField, Library, Plugin};
use crate::address::has_address;
use crate::asynchronous::ASYNC_EVENT;
use crate::confine;
use crate::describe::{self, SYSCALL_SOURCE};
use crate::event::{self, Buffer, PLUGIN_EVENT};
use crate::stream::EventStream;

/// A batch is sent when its values have this many bytes.
const FULL: usize = 256 << 10;
/// Largest record in bytes; the values of a larger one are unknown. A frame takes it with the records before it.
const MAX_RECORD: usize = 12 << 20;
/// Time after which a sign of life is sent: records, or that there are none. The shortest deadline that a configuration may
/// have is twice as long.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_millis(50);

/// A loaded plugin.
pub(crate) struct Loaded {
    pub(crate) plugin: Plugin,
    pub(crate) description: Description,
}

/// Answers until the other side is gone, or the source ends. Ends the process after a failure, which the other side prints.
pub(crate) fn serve(mut socket: UnixStream) {
    if let Err(message) = answer(&mut socket) {
        // Fails if the other side is gone, to which nothing needs to be said.
        let _ = protocol::write(&mut socket, &Reply::Failed(message));
        // Threads of plugins may still run, which destructors of their libraries take data away from.
        abi::exit_at_once();
    }
}

fn answer(socket: &mut UnixStream) -> Result<(), String> {
    let Request::Load { version, plugins } = request(socket)? else {
        return Err("asked to open a source before plugins are loaded".to_owned());
    };
    if version != VERSION {
        return Err(format!(
            "`tollgate` speaks version {version} of the protocol and this program version {VERSION}: install both from \
             one release"
        ));
    }
    confine::confine(plugins.iter().any(has_address))
        .map_err(|error| format!("it cannot be confined, and is not loaded: {error}"))?;
    let loaded = plugins.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let descriptions = loaded.iter().map(|loaded| loaded.description.clone());
    reply(socket, &Reply::Loaded(descriptions.collect()))?;
    match request(socket)? {
        Request::Open(wanted) => {
            let extraction = Extraction::new(loaded, &wanted)?;
            let params = &plugins[extraction.source].open_params;
            let mut stream = EventStream::open(extraction, params)?;
            reply(socket, &Reply::Opened)?;
            stream.run(socket)
        }
        Request::Replay(wanted) => {
            let extraction = Extraction::new(loaded, &wanted)?;
            reply(socket, &Reply::Opened)?;
            extraction.replay(socket)
        }
        Request::Load { .. } | Request::Events(_) => {
            Err("asked for neither opening nor replaying after loading".to_owned())
        }
    }
}

fn request(socket: &mut UnixStream) -> Result<Request, String> {
    protocol::read(socket).map_err(|error| format!("cannot read a request: {error}"))
}

pub(crate) fn reply(socket: &mut UnixStream, reply: &Reply) -> Result<(), String> {
    protocol::write(socket, reply).map_err(|error| format!("cannot answer: {error}"))
}

fn load(spec: &PluginSpec) -> Result<Loaded, String> {
    let library = Library::load(Path::new(&spec.library))?;
    let minor = describe::check_api(&library)?;
    let mut description = describe::describe(&library)?;
    let plugin = library.init(&spec.init_config, minor)?;
    let of_plugins = |ty: &u16| [PLUGIN_EVENT, ASYNC_EVENT].contains(ty);
    let extracted = plugin.extracted_types();
    let takes_from_plugins = extracted.is_none_or(|types| types.iter().any(of_plugins));
    if description.capabilities.extraction && !takes_from_plugins {
        describe::only_from_system_calls(&mut description);
    }
    let names_only_plugins = plugin
        .parsed_types()
        .is_some_and(|types| types.iter().all(of_plugins));
    description.parses_system_calls = description.parses(SYSCALL_SOURCE) && !names_only_plugins;
    Ok(Loaded {
        plugin,
        description,
    })
}

/// Takes from events what a record carries.
pub(crate) struct Extraction {
    /// The source, and plugins that take fields from its events or parse them.
    pub(crate) plugins: Vec<Loaded>,
    /// Position of the source in `plugins`.
    pub(crate) source: usize,
    /// For each plugin the fields that it is asked for, and their positions in a record.
    asked: Vec<(Vec<AskedField>, Vec<usize>)>,
    values: usize,
    with_info: bool,
    with_data: bool,
    /// For each plugin which events of the source it parses.
    parses: Vec<Subscription>,
    /// For each plugin which events of the source it takes fields from.
    takes: Vec<Subscription>,
    /// Events that a plugin could not parse, since they were reported.
    unparsed: Cell<u64>,
}

impl Extraction {
    fn new(plugins: Vec<Loaded>, wanted: &Wanted) -> Result<Self, String> {
        let mut asked: Vec<(Vec<AskedField>, Vec<usize>)> =
            plugins.iter().map(|_| (Vec::new(), Vec::new())).collect();
        for (position, field) in wanted.fields.iter().enumerate() {
            let plugin = usize::try_from(field.plugin).unwrap_or(usize::MAX);
            let of_plugin = plugins.get(plugin).zip(asked.get_mut(plugin));
            let (loaded, (fields, positions)) = of_plugin.ok_or("asked for an unknown plugin")?;
            fields.push(asked_field(&loaded.description, field)?);
            positions.push(position);
        }
        let at = usize::try_from(wanted.source).unwrap_or(usize::MAX);
        let source = plugins.get(at).ok_or("asked for events of no plugin")?;
        let name = &source.description.source;
        let parses = plugins.iter().map(
            |Loaded {
                 plugin,
                 description,
             }| {
                let types = plugin.parsed_types();
                let parses = |source: &str| description.parses(source);
                Subscription::new(parses, name, types.as_deref())
            },
        );
        let takes = plugins.iter().map(
            |Loaded {
                 plugin,
                 description,
             }| {
                let types = plugin.extracted_types();
                let extracts = |source: &str| description.extracts(source);
                Subscription::new(extracts, name, types.as_deref())
            },
        );
        Ok(Self {
            parses: parses.collect(),
            takes: takes.collect(),
            source: at,
            unparsed: Cell::new(0),
            plugins,
            asked,
            values: wanted.fields.len(),
            with_info: wanted.with_info,
            with_data: wanted.with_data,
        })
    }

    /// Answers events that were made before, until the other side is gone.
    fn replay(&self, socket: &mut UnixStream) -> Result<(), String> {
        let id = self.plugins[self.source].description.id;
        loop {
            let Request::Events(events) = request(socket)? else {
                return Err("asked for anything but events in a replay".to_owned());
            };
            let mut sender = Sender::new(socket);
            for given in &events {
                let made = event::recorded(given, id);
                let record = made.and_then(|event| self.record(&event, given.number));
                // Before the records, the last of which ends the answer.
                self.tell_unparsed(sender.socket)?;
                sender.add(record)?;
            }
            sender.finish()?;
        }
    }

    /// Has plugins parse an event, before any of them takes fields from it.
    fn parse(&self, event: &Buffer, number: u64) -> Result<(), String> {
        let source = &self.plugins[self.source].plugin;
        for (loaded, parses) in self.plugins.iter().zip(&self.parses) {
            if parses.has(event) && !loaded.plugin.parse(source, event, number)? {
                self.unparsed.set(self.unparsed.get() + 1);
            }
        }
        Ok(())
    }

    /// Reports events that a plugin could not parse, if there are any.
    pub(crate) fn tell_unparsed(&self, socket: &mut UnixStream) -> Result<(), String> {
        match self.unparsed.take() {
            0 => Ok(()),
            events => reply(socket, &Reply::Unparsed(events)),
        }
    }

    pub(crate) fn record(&self, event: &Buffer, number: u64) -> Result<Record, String> {
        self.parse(event, number)?;
        let source = &self.plugins[self.source].plugin;
        let mut values = vec![FieldValue::Absent; self.values];
        let asked = self.plugins.iter().zip(&self.asked).zip(&self.takes);
        for ((loaded, (fields, positions)), takes) in asked {
            if fields.is_empty() || !takes.has(event) {
                continue;
            }
            let found = loaded.plugin.extract(source, event, number, fields)?;
            for (value, position) in found.into_iter().zip(positions) {
                values[*position] = value;
            }
        }
        // As in Falco nobody describes asynchronous events.
        let info = match self.with_info && event.name().is_none() {
            true => source.to_text(event, number),
            false => FieldValue::Absent,
        };
        let mut record = Record {
            time_ns: event.time_ns(),
            info,
            asynchronous: event.name().map(str::to_owned),
            values,
            data: self.with_data.then(|| event.data()),
        };
        // A frame takes no more, and the values of one event must not end its source. The bytes of an event alone fit.
        if record_size(&record) > MAX_RECORD {
            record.info = FieldValue::Unknown;
            record.values.fill(FieldValue::Unknown);
        }
        Ok(record)
    }
}

/// Which events of a source a plugin gets.
#[derive(Clone, Copy)]
struct Subscription {
    plugin_events: bool,
    async_events: bool,
}

impl Subscription {
    /// Returns what a plugin gets that `serves` sources, among them perhaps `source`, and names types of events. One that
    /// names none gets events of all types if it serves system calls as well, and else those that sources make, as in Falco.
    fn new(serves: impl Fn(&str) -> bool, source: &str, types: Option<&[u16]>) -> Self {
        let is_named =
            |ty: u16, otherwise: bool| types.map_or(otherwise, |types| types.contains(&ty));
        Self {
            plugin_events: serves(source) && is_named(PLUGIN_EVENT, true),
            async_events: serves(source) && is_named(ASYNC_EVENT, serves(SYSCALL_SOURCE)),
        }
    }

    fn has(self, event: &Buffer) -> bool {
        match event.name() {
            Some(_) => self.async_events,
            None => self.plugin_events,
        }
    }
}

/// Sends records in batches, and what there is of one as a sign of life: the deadline of the other side is for one event of a
/// slow plugin, not for all events that it returned at once.
pub(crate) struct Sender<'s> {
    socket: &'s mut UnixStream,
    batch: Vec<Record>,
    size: usize,
    /// Time of the last message.
    said: Instant,
}

impl<'s> Sender<'s> {
    pub(crate) fn new(socket: &'s mut UnixStream) -> Self {
        Self {
            socket,
            batch: Vec::new(),
            size: 0,
            said: Instant::now(),
        }
    }

    /// Adds a record, or sends those before the failure, which are sound, and returns it.
    pub(crate) fn add(&mut self, record: Result<Record, String>) -> Result<(), String> {
        let record = match record {
            Ok(record) => record,
            Err(why) => {
                self.finish()?;
                return Err(why);
            }
        };
        self.size += record_size(&record);
        self.batch.push(record);
        match self.size >= FULL || self.said.elapsed() >= SIGN_OF_LIFE {
            true => self.finish(),
            false => Ok(()),
        }
    }

    pub(crate) fn finish(&mut self) -> Result<(), String> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.size = 0;
        reply(self.socket, &Reply::Batch(std::mem::take(&mut self.batch)))?;
        self.said = Instant::now();
        Ok(())
    }
}

fn asked_field(description: &Description, wanted: &WantedField) -> Result<AskedField, String> {
    let at = usize::try_from(wanted.field).unwrap_or(usize::MAX);
    let field = description
        .fields
        .get(at)
        .ok_or("asked for an unknown field")?;
    let text = |text: &str| {
        CString::new(text).map_err(|_nul| format!("an argument of `{}` has a NUL byte", field.name))
    };
    let (key, index) = match &wanted.argument {
        WantedArgument::None => (None, None),
        // A field with both kinds of arguments gets a number as both, as in Falco.
        WantedArgument::Index(index) if field.argument.is_key => {
            (Some(text(&index.to_string())?), Some(*index))
        }
        WantedArgument::Index(index) => (None, Some(*index)),
        WantedArgument::Key(key) => (Some(text(key)?), None),
    };
    Ok(AskedField {
        id: wanted.field,
        name: text(&field.name)?,
        key,
        index,
        ty: field.ty,
        is_list: field.is_list,
    })
}

/// Returns about how many bytes a record has.
fn record_size(record: &Record) -> usize {
    let scalar = |scalar: &Scalar| match scalar {
        Scalar::Text(text) => text.len() + 8,
        Scalar::Uint(_) | Scalar::Bool(_) | Scalar::Ip(_) => 20,
    };
    let all = record.values.iter().chain([&record.info]);
    let values = all.map(|value| match value {
        FieldValue::Absent | FieldValue::Unknown => 1,
        FieldValue::One(one) => scalar(one),
        FieldValue::Many(many) => many.iter().map(scalar).sum(),
    });
    let data = record.data.as_ref().map_or(0, Vec::len);
    16 + data + values.sum::<usize>()
}
