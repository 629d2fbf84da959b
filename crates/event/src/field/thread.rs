//! `thread.*`: the calling thread.

use abi::Capabilities;

use super::ancestry::found;
use super::text::{Text, copied, shown};
use super::{Argument, ArgumentKind, Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{self, Bool, Int, RelTime, Uint};
use crate::{Event, Status, Value};

pub(super) const CLASS: Class = Class {
    name: "thread",
    description: "The thread that made the call.",
};

const TEXT: ValueType = ValueType::Text;
const CGROUPS: &str = "control groups are used to find the container, but not stored";
const SCHEDULING: &str = "scheduling is not watched";
const FAULTS: &str = "page faults are not counted";

const fn fact(fact: Fact) -> Source {
    Source::Process(fact)
}

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "thread.tid",
        Int,
        fact(Fact::Thread),
        |e, _| Value::Int(i64::from(e.tid.0)),
        "Thread id.",
    ),
    FieldSpec::new(
        "thread.vtid",
        Int,
        fact(Fact::Namespaced),
        |e, _| found(e.status().clone(), |s| Value::Int(i64::from(s.vtid))),
        "Thread id in its own pid namespace.",
    ),
    FieldSpec::new(
        "thread.ismain",
        Bool,
        fact(Fact::Thread),
        |e, _| Value::Bool(is_main(e)),
        "Whether it is the first thread of its process.",
    ),
    FieldSpec::new(
        "thread.name",
        TEXT,
        fact(Fact::ThreadName),
        |e, _| {
            found(e.world.thread_name(e.process, e.tid), |name| {
                copied(e.arena, name.as_bytes())
            })
        },
        "Present name of the thread, at most 15 bytes: programs change it (`prctl`, `/proc/self/comm`).",
    ),
    FieldSpec::new(
        "thread.nametid",
        TEXT,
        Source::Process(Fact::Comm),
        name_and_id,
        "Command name and thread id joined.",
    ),
    FieldSpec::new(
        "thread.cap_permitted",
        TEXT,
        fact(Fact::Credentials),
        |e, _| capabilities(e, |s| s.cap_permitted),
        "Permitted capabilities, separated by spaces.",
    ),
    FieldSpec::new(
        "thread.cap_inheritable",
        TEXT,
        fact(Fact::Credentials),
        |e, _| capabilities(e, |s| s.cap_inheritable),
        "Inheritable capabilities, separated by spaces.",
    ),
    FieldSpec::new(
        "thread.cap_effective",
        TEXT,
        fact(Fact::Credentials),
        |e, _| capabilities(e, |s| s.cap_effective),
        "Effective capabilities, separated by spaces.",
    ),
    FieldSpec::new(
        "thread.vmsize",
        Uint,
        fact(Fact::Resources),
        |e, _| memory(e, |stat| stat.vm_size_kib),
        "Virtual memory in KiB; 0 for all threads but the first.",
    ),
    FieldSpec::new(
        "thread.vmrss",
        Uint,
        fact(Fact::Resources),
        |e, _| memory(e, |stat| stat.vm_rss_kib),
        "Resident memory in KiB; 0 for all threads but the first.",
    ),
    FieldSpec::absent("thread.pfmajor", Uint, FAULTS, "Major page faults."),
    FieldSpec::absent("thread.pfminor", Uint, FAULTS, "Minor page faults."),
    FieldSpec::absent(
        "thread.exectime",
        RelTime,
        SCHEDULING,
        "Processor time since the thread was scheduled.",
    ),
    FieldSpec::absent(
        "thread.totexectime",
        RelTime,
        SCHEDULING,
        "Processor time of the thread.",
    ),
    FieldSpec::absent("thread.cpu", Uint, SCHEDULING, "Share of a processor."),
    FieldSpec::absent(
        "thread.cpu.user",
        Uint,
        SCHEDULING,
        "Share of a processor in user mode.",
    ),
    FieldSpec::absent(
        "thread.cpu.system",
        Uint,
        SCHEDULING,
        "Share of a processor in kernel mode.",
    ),
    FieldSpec::absent(
        "thread.cgroups",
        TEXT,
        CGROUPS,
        "Control groups of all controllers.",
    ),
    FieldSpec::absent(
        "thread.cgroup",
        TEXT,
        CGROUPS,
        "Control group of one controller: `thread.cgroup.memory`.",
    )
    .with(ArgumentKind::Suffix {
        required: true,
        names: &[],
    }),
];

fn is_main(event: &Event<'_>) -> bool {
    event.tid.0 == event.process.pid.0
}

fn name_and_id<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match super::proc::comm(event) {
        Value::Text(comm) => {
            let mut text = Text::new(event.arena);
            text.push(comm);
            text.show(event.tid.0);
            text.value()
        }
        other => other,
    }
}

fn capabilities<'a>(event: &Event<'a>, set: fn(&Status) -> u64) -> Value<'a> {
    found(event.status().clone(), |status| {
        shown(event.arena, Capabilities(set(&status)))
    })
}

fn memory<'a>(event: &Event<'a>, part: fn(&crate::Stat) -> u64) -> Value<'a> {
    if !is_main(event) {
        return Value::Uint(0);
    }
    found(event.stat().clone(), |stat| Value::Uint(part(&stat)))
}
