//! Shows events of plugins to the rules.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::field::{ASYNC_EVENT, Argument, Field, PLUGIN_INFO};
use event::{
    Comm, Container, DescriptorKind, Evaluator, Event, EventKind, FieldName, Group, Image,
    LiveProcess, Lookup, NoSystemInfo, Outcome, Param, Pid, Process, Stage, StartTime, Stat,
    Status, SystemInfo, Tid, User, Value,
};
use rules::{Engine, Scratch};

use crate::catalogue::Catalogue;
use crate::protocol::{
    FieldType, FieldValue, ProtocolError, Record, Scalar, Wanted, WantedArgument, WantedField,
};

/// Rules of one source with what they ask of its plugins.
pub struct SourceEvaluator {
    engine: Arc<Engine>,
    scratch: Scratch,
    arena: Bump,
    process: Arc<Process>,
    kind: EventKind,
    /// Kind of the asynchronous events.
    async_kind: EventKind,
    /// Names of the asynchronous events that plugins add to the source.
    async_names: BTreeSet<String>,
    source: Arc<str>,
    plugin: Arc<str>,
    plugin_id: u32,
    host_name: Arc<str>,
    /// Places of values in what the plugin sends, by the name of the field.
    positions: HashMap<&'static str, Vec<(Field, usize)>>,
    wanted: Wanted,
    types: Vec<(FieldType, bool)>,
    number: u64,
}

impl std::fmt::Debug for SourceEvaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceEvaluator")
            .field("source", &self.source)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl SourceEvaluator {
    /// Creates the evaluator of the events of `source`, which `engine` was compiled for. `None` if the catalogue has no such
    /// source.
    #[must_use]
    pub fn new(
        catalogue: &Catalogue,
        source: &str,
        engine: Arc<Engine>,
        host_name: &str,
    ) -> Option<Self> {
        let plugins = catalogue.plugins_of(source);
        let at = plugins.iter().position(|loaded| loaded.is_source(source))?;
        let mut positions: HashMap<_, Vec<_>> = HashMap::new();
        let mut fields = Vec::new();
        let mut types = Vec::new();
        for field in engine.plugin_fields() {
            // The first plugin that has the field supplies it, as in the table that the rules were compiled with.
            let extracting = plugins.iter().enumerate();
            let mut extracting =
                extracting.filter(|(_, loaded)| loaded.description.extracts(source));
            let (plugin, at) = extracting.find_map(|(plugin, loaded)| {
                let known = &loaded.description.fields;
                let at = known
                    .iter()
                    .position(|known| known.name == field.spec.name)?;
                Some((plugin, at))
            })?;
            let known = &plugins[plugin].description.fields[at];
            types.push((known.ty, known.is_list));
            fields.push(WantedField {
                plugin: u32::try_from(plugin).ok()?,
                field: u32::try_from(at).ok()?,
                argument: argument(&field.argument),
            });
            let same = positions.entry(field.spec.name).or_default();
            same.push((field, fields.len() - 1));
        }
        let adding = plugins
            .iter()
            .filter(|loaded| loaded.description.adds_to(source));
        let async_names = adding.flat_map(|loaded| loaded.description.async_events.iter().cloned());
        Some(Self {
            async_kind: EventKind::from_name(ASYNC_EVENT).ok()?,
            async_names: async_names.collect(),
            scratch: engine.scratch(),
            arena: Bump::new(),
            process: nobody(),
            kind: EventKind::from_name("pluginevent").ok()?,
            source: source.into(),
            plugin: plugins[at].description.name.as_str().into(),
            plugin_id: plugins[at].description.id,
            host_name: host_name.into(),
            positions,
            wanted: Wanted {
                source: u32::try_from(at).ok()?,
                fields,
                with_info: engine.asks_for(PLUGIN_INFO),
                with_data: false,
            },
            types,
            engine,
            number: 0,
        })
    }

    /// Has each event carry its bytes, for recordings.
    #[must_use]
    pub fn with_data(mut self, with_data: bool) -> Self {
        self.wanted.with_data = with_data;
        self
    }

    /// Returns what each event has to carry.
    #[must_use]
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Returns the number of the plugin that makes the events.
    #[must_use]
    pub fn plugin_id(&self) -> u32 {
        self.plugin_id
    }

    /// Returns types of the wanted fields, and whether they are lists.
    #[must_use]
    pub fn types(&self) -> &[(FieldType, bool)] {
        &self.types
    }

    /// Checks a record of an open source; see [`Record::check`]. The name of an asynchronous event has to be among those that
    /// the plugins announce.
    ///
    /// # Errors
    ///
    /// Names what is wrong.
    pub fn check(&self, record: &Record) -> Result<(), ProtocolError> {
        let name = record.asynchronous.as_ref();
        if let Some(name) = name.filter(|name| !self.async_names.contains(*name)) {
            let name = name.escape_default();
            let what = format!("an asynchronous event `{name:.64}`, which no plugin announces");
            return Err(ProtocolError::Invalid(what));
        }
        record.check(&self.types, self.wanted.with_data)
    }

    /// Continues to count events after those of another evaluator.
    pub fn continue_after(&mut self, former: &Self) {
        self.number = former.number;
    }

    /// Evaluates the next event. Returns the number of rules that stayed undecided because the plugin could not say a value.
    pub fn evaluate(&mut self, record: &Record) -> usize {
        self.number += 1;
        self.evaluate_as(self.number, record)
    }

    /// As [`SourceEvaluator::evaluate`], for an event that has this number in its capture.
    pub fn evaluate_as(&mut self, number: u64, record: &Record) -> usize {
        self.arena.reset();
        let world = PluginWorld {
            facts: Facts {
                source: &self.source,
                plugin: &self.plugin,
                host_name: &self.host_name,
                positions: &self.positions,
            },
            record,
        };
        let live = LiveProcess::default();
        // Bytes that nothing records stay with the plugin.
        let data = record.data.as_deref();
        let data = data.map_or(Param::Unreadable, Param::Text);
        let id = Param::Uint(u64::from(self.plugin_id));
        let name = record.asynchronous.as_deref();
        // The parameter of the name is only passed for events that have one.
        let all = [id, Param::Text(name.unwrap_or_default().as_bytes()), data];
        let (kind, params) = match name {
            Some(_) => (self.async_kind, &all[..]),
            None => (self.kind, &[id, data][..]),
        };
        let event = Event {
            number,
            time_ns: record.time_ns,
            kind,
            stage: Stage::Exit,
            cpu: None,
            // What a plugin says is about no thread; 0 marks hypothetical calls.
            tid: Tid(-1),
            process: &self.process,
            image: self.process.image(),
            params,
            descriptor: None,
            outcome: Outcome::None,
            world: &world,
            live: &live,
            arena: &self.arena,
        };
        self.engine.evaluate(&mut self.scratch, &event).len()
    }
}

fn argument(argument: &Argument) -> WantedArgument {
    match argument {
        Argument::Index(index) => WantedArgument::Index(u64::from(*index)),
        Argument::Name(name) => WantedArgument::Key(name.to_string()),
        Argument::None | Argument::Param(_) => WantedArgument::None,
    }
}

/// Returns the process of events that no process causes.
fn nobody() -> Arc<Process> {
    let image = Arc::new(Image::default());
    Arc::new(Process::new(
        Pid(-1),
        StartTime(0),
        0,
        None,
        image,
        Comm::new(b""),
    ))
}

/// What is the same for all events of a source.
struct Facts<'e> {
    source: &'e str,
    plugin: &'e str,
    host_name: &'e str,
    positions: &'e HashMap<&'static str, Vec<(Field, usize)>>,
}

/// Answers from what a plugin sent. Fields of processes do not compile for its source, so nothing asks for them.
struct PluginWorld<'e> {
    facts: Facts<'e>,
    record: &'e Record,
}

impl SystemInfo for PluginWorld<'_> {
    fn comm(&self, _: &Process) -> Lookup<Comm> {
        Lookup::Missing
    }
    fn stat(&self, _: &Process) -> Lookup<Stat> {
        Lookup::Missing
    }
    fn status(&self, _: &Process, _: Tid) -> Lookup<Status> {
        Lookup::Missing
    }
    fn login_uid(&self, _: &Process) -> Lookup<u32> {
        Lookup::Missing
    }
    fn directory<'a>(&self, _: Tid, _: Option<i32>, _: &'a Bump) -> Lookup<&'a [u8]> {
        Lookup::Missing
    }
    fn container(&self, process: &Process) -> Arc<Container> {
        NoSystemInfo.container(process)
    }
    fn user(&self, _: &Process, _: u32) -> Lookup<Arc<User>> {
        Lookup::Missing
    }
    fn group(&self, _: &Process, _: u32) -> Lookup<Arc<Group>> {
        Lookup::Missing
    }
    fn process(&self, _: Pid) -> Lookup<Arc<Process>> {
        Lookup::Missing
    }
    fn addresses(&self, _: &str) -> Lookup<Arc<[IpAddr]>> {
        Lookup::Unknown
    }
    fn descriptor_type(&self, _: Tid, _: i32) -> Lookup<DescriptorKind> {
        Lookup::Missing
    }
    fn host_name(&self) -> &str {
        self.facts.host_name
    }
    fn event_source(&self) -> &str {
        self.facts.source
    }
    fn plugin_name(&self) -> Option<&str> {
        Some(self.facts.plugin)
    }
    fn plugin_info(&self) -> Value<'_> {
        match &self.record.info {
            FieldValue::Absent => Value::Absent,
            FieldValue::One(text) => value_of(text),
            FieldValue::Unknown | FieldValue::Many(_) => Value::Unknown,
        }
    }
    fn plugin_field<'a>(&'a self, field: FieldName<'_>, arena: &'a Bump) -> Value<'a> {
        let same = self.facts.positions.get(field.name);
        let found = same.and_then(|same| same.iter().find(|(known, _)| known.in_plugin() == field));
        // A field that was not asked for is not known, which decides nothing.
        let Some((_, value)) = found else {
            return Value::Unknown;
        };
        match self.record.values.get(*value) {
            None | Some(FieldValue::Unknown) => Value::Unknown,
            Some(FieldValue::Absent) => Value::Absent,
            Some(FieldValue::One(scalar)) => value_of(scalar),
            Some(FieldValue::Many(scalars)) => {
                Value::List(arena.alloc_slice_fill_iter(scalars.iter().map(value_of)))
            }
        }
    }
}

fn value_of(scalar: &Scalar) -> Value<'_> {
    match scalar {
        Scalar::Text(text) => Value::Text(text),
        Scalar::Uint(number) => Value::Uint(*number),
        Scalar::Bool(truth) => Value::Bool(*truth),
        Scalar::Ip(address) => Value::Ip(*address),
    }
}
