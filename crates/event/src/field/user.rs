//! `user.*`: the user who makes the call.

use super::ancestry::found;
use super::text::copied;
use super::{Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{self, Int, Path, Uint};
use crate::{Event, Lookup, User, Value};

pub(super) const CLASS: Class = Class {
    name: "user",
    description: "The user the process acts for.",
};

const TEXT: ValueType = ValueType::Text;
const CREDENTIALS: Source = Source::Process(Fact::Credentials);
/// The login uid never changes once it is set.
const LOGIN: Source = Source::Process(Fact::Login);

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "user.uid",
        Uint,
        CREDENTIALS,
        |e, _| own(e, |uid| Value::Uint(u64::from(uid))),
        "Effective user id.",
    ),
    FieldSpec::new(
        "user.name",
        TEXT,
        CREDENTIALS,
        |e, _| own(e, |uid| name(e, uid)),
        "Name of the user; `<NA>` if the id has none.",
    ),
    FieldSpec::new(
        "user.homedir",
        Path,
        CREDENTIALS,
        |e, _| own(e, |uid| home(e, uid)),
        "Home directory of the user.",
    ),
    FieldSpec::new(
        "user.shell",
        Path,
        CREDENTIALS,
        |e, _| own(e, |uid| part(e, uid, |user| &user.shell, None)),
        "Login shell of the user.",
    ),
    FieldSpec::new(
        "user.loginuid",
        Int,
        LOGIN,
        |e, _| login(e, |uid| Value::Int(uid.map_or(-1, i64::from))),
        "User id at login, -1 if there was no login.",
    ),
    FieldSpec::new(
        "user.loginname",
        TEXT,
        LOGIN,
        |e, _| login(e, |uid| uid.map_or(Value::text(NOBODY), |uid| name(e, uid))),
        "Name of the user at login; `<NA>` if there was no login.",
    ),
];

/// Text that Falco prints, and compares, for a user without a name.
pub(super) const NOBODY: &str = "<NA>";

fn own<'a>(event: &Event<'a>, show: impl FnOnce(u32) -> Value<'a>) -> Value<'a> {
    found(event.credentials().clone(), |who| show(who.uid))
}

fn login<'a>(event: &Event<'a>, show: impl FnOnce(Option<u32>) -> Value<'a>) -> Value<'a> {
    match event.world.login_uid(event.process) {
        Lookup::Found(uid) => show((uid != u32::MAX).then_some(uid)),
        Lookup::Missing => show(None),
        Lookup::Unknown => Value::Unknown,
    }
}

/// Returns the name of the user with this id.
pub(super) fn name<'a>(event: &Event<'a>, uid: u32) -> Value<'a> {
    part(event, uid, |user| &user.name, Some("root"))
}

fn home<'a>(event: &Event<'a>, uid: u32) -> Value<'a> {
    part(event, uid, |user| &user.home, Some("/root"))
}

fn part<'a>(
    event: &Event<'a>,
    uid: u32,
    part: fn(&User) -> &str,
    of_root: Option<&'static str>,
) -> Value<'a> {
    match event.user(uid) {
        Lookup::Found(user) => copied(event.arena, part(&user).as_bytes()),
        Lookup::Missing if uid == 0 => Value::text(of_root.unwrap_or(NOBODY)),
        Lookup::Missing => Value::text(NOBODY),
        Lookup::Unknown => Value::Unknown,
    }
}
