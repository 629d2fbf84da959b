//! An evaluator that looks at every field of every event.

use std::sync::{Arc, Mutex};

use event::field::{self, Field};
use event::{Evaluator, Event, EventKind, Relevance};

/// What fields were of the events that were concluded.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Kinds that it does not ask about.
    pub(crate) ignores: Vec<&'static str>,
    pub(crate) seen: Mutex<Vec<Seen>>,
}

/// One event: its name, and each field with its value.
pub(crate) type Seen = (&'static str, Vec<(String, String)>);

/// Fields that a recording does not keep: the number counts other events in a file, and only a file has
/// a first one; sizes of a process are kept when a rule asks for them.
const OTHER: [&str; 6] = [
    "evt.num",
    "evt.reltime",
    "evt.reltime.s",
    "evt.reltime.ns",
    "proc.vmsize",
    "proc.vmrss",
];

pub(crate) fn look(event: &Event<'_>) -> Seen {
    let fields = field::docs().flat_map(|(_, fields)| fields);
    let fields = fields.filter(|spec| !OTHER.contains(&spec.name));
    let named = [
        "evt.arg[1]",
        "evt.arg[2]",
        "evt.arg[3]",
        "proc.args[1]",
        "proc.aname[1]",
        "proc.aname[2]",
        "proc.env[HOME]",
    ];
    let all = fields.map(|spec| spec.name).chain(named);
    let all = all.filter_map(|name| Field::parse(name).ok());
    let values = all.map(|field| {
        let value = field.extract(event);
        (
            format!("{}{:?}", field.spec.name, field.argument),
            format!("{value:?}"),
        )
    });
    (event.kind.name(), values.collect())
}

impl Evaluator for Recorder {
    type Scratch = ();

    fn scratch(&self) {}

    fn concerns(&self, kind: EventKind) -> bool {
        !self.ignores.contains(&kind.name())
    }

    fn prefilter(&self, (): &mut (), _: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        self.seen
            .lock()
            .expect("no test panics while it looks")
            .push(look(event));
        Vec::new()
    }
}
