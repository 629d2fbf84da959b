//! `syscall.*`: fields of system-call events.

use super::{Argument, Class, FieldSpec, Source};
use crate::{Event, Value, ValueType};

pub(super) const CLASS: Class = Class {
    name: "syscall",
    description: "Events that are system calls.",
};

pub(super) static FIELDS: &[FieldSpec] = &[FieldSpec::new(
    "syscall.type",
    ValueType::Text,
    Source::Kind,
    name,
    "Name of the system call; absent for other events.",
)];

fn name<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    if event.kind.is_syscall() {
        Value::text(event.kind.name())
    } else {
        Value::Absent
    }
}
