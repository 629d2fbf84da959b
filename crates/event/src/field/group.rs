//! `group.*`: the effective group of the process.

use super::ancestry::found;
use super::text::copied;
use super::user::NOBODY;
use super::{Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{Text, Uint};
use crate::{Event, Lookup, Value};

pub(super) const CLASS: Class = Class {
    name: "group",
    description: "The group the process acts for.",
};

const CREDENTIALS: Source = Source::Process(Fact::Credentials);

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "group.gid",
        Uint,
        CREDENTIALS,
        |e, _| own(e, |gid| Value::Uint(u64::from(gid))),
        "Effective group id.",
    ),
    FieldSpec::new(
        "group.name",
        Text,
        CREDENTIALS,
        |e, _| own(e, |gid| name(e, gid)),
        "Name of the group; `<NA>` if the id has none.",
    ),
];

fn own<'a>(event: &Event<'a>, show: impl FnOnce(u32) -> Value<'a>) -> Value<'a> {
    found(event.credentials().clone(), |who| show(who.gid))
}

/// Returns the name of the group with this id.
pub(super) fn name<'a>(event: &Event<'a>, gid: u32) -> Value<'a> {
    match event.group(gid) {
        Lookup::Found(group) => copied(event.arena, group.name.as_bytes()),
        Lookup::Missing => Value::text(if gid == 0 { "root" } else { NOBODY }),
        Lookup::Unknown => Value::Unknown,
    }
}
