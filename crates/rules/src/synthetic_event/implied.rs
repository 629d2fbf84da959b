//! Values implied by the given ones.
//!
//! Only implications that hold for nearly every event, so that a test need not repeat them: a path implies
//! directory and file name, a list of ancestors the parent, a call succeeds, and the process is on the host
//! unless unset fields are unknown. A given value always takes precedence.

use event::EventKind;
use event::field::{Argument, Field, Source};

use super::{Kept, SyntheticEvent, UnsetFields};

/// Returns the value of a field that follows from other fields.
pub(super) fn value(given: &SyntheticEvent, field: &Field) -> Option<Kept> {
    let name = field.spec.name;
    match (field.depends_on(), name) {
        (_, "evt.source") => Some(text("syscall")),
        (_, "evt.category") => None,
        (Source::OpenFlags, "evt.is_open_read") => opened(given, READ),
        (Source::OpenFlags, "evt.is_open_write") => opened(given, WRITE),
        (Source::Result, _) => result(given, name),
        (Source::Descriptor(_), _) => descriptor(given, name),
        _ => match name {
            "container.id" => host(given, "container.name"),
            "container.name" => host(given, "container.id"),
            "proc.pname" => ancestor(given, "proc.aname", 1),
            "proc.pexe" => ancestor(given, "proc.aexe", 1),
            "proc.pexepath" => ancestor(given, "proc.aexepath", 1),
            "proc.pcmdline" => ancestor(given, "proc.acmdline", 1),
            "proc.aname" | "proc.aexe" | "proc.aexepath" | "proc.acmdline" => {
                match field.argument {
                    Argument::Index(level) => ancestor(given, name, level),
                    _ => ancestors(given, name),
                }
            }
            "proc.cmdline" => command_line(given),
            _ => None,
        },
    }
}

/// Returns the host's id or name, which are equal; those of a container differ.
fn host(given: &SyntheticEvent, other: &str) -> Option<Kept> {
    let is_host = match get_text(given, other) {
        Some(other) => other == b"host",
        None => given.others == UnsetFields::Absent,
    };
    is_host.then(|| text("host"))
}

fn text(text: &str) -> Kept {
    Kept::Text(text.as_bytes().into())
}

/// Returns the given value of a field.
fn get<'g>(given: &'g SyntheticEvent, field: &str) -> Option<&'g Kept> {
    given.values.get(&Field::parse(field).ok()?)
}

fn get_text<'g>(given: &'g SyntheticEvent, field: &str) -> Option<&'g [u8]> {
    match get(given, field)? {
        Kept::Text(text) => Some(text),
        _ => None,
    }
}

/// Open flags that read, and open flags that write.
const READ: [&[u8]; 2] = [b"O_RDONLY", b"O_RDWR"];
const WRITE: [&[u8]; 2] = [b"O_WRONLY", b"O_RDWR"];

fn opened(given: &SyntheticEvent, words: [&[u8]; 2]) -> Option<Kept> {
    let flags = get_text(given, "evt.arg.flags")?;
    let mut flags = flags.split(|byte| *byte == b'|');
    Some(Kept::Bool(flags.any(|flag| words.contains(&flag))))
}

/// Returns success, unless the call is said to have failed.
fn result(given: &SyntheticEvent, name: &str) -> Option<Kept> {
    if !given.kind.has_result() {
        return None;
    }
    let failed = match (get(given, "evt.failed"), get(given, "evt.rawres")) {
        (Some(Kept::Bool(failed)), _) => *failed,
        (_, Some(Kept::Int(result))) => *result < 0,
        _ => get_text(given, "evt.res").is_some_and(|res| res != b"SUCCESS"),
    };
    match (name, failed) {
        ("evt.failed", _) => Some(Kept::Bool(failed)),
        ("evt.res", false) => Some(text("SUCCESS")),
        ("evt.rawres", false) if opens(given.kind) => Some(number(given)),
        ("evt.rawres", false) => Some(Kept::Int(0)),
        _ => None,
    }
}

/// Lowest descriptor number of an opened file.
const FIRST_DESCRIPTOR: i64 = 3;

fn number(given: &SyntheticEvent) -> Kept {
    match get(given, "fd.num") {
        Some(number) => number.clone(),
        None => Kept::Int(FIRST_DESCRIPTOR),
    }
}

fn opens(kind: EventKind) -> bool {
    kind.name().starts_with("open") || kind.name() == "creat"
}

/// Returns descriptor fields of a file whose path is given, and of an opened file.
fn descriptor(given: &SyntheticEvent, name: &str) -> Option<Kept> {
    let path = get_text(given, "fd.name").filter(|path| path.starts_with(b"/"));
    let cut = path.and_then(|path| path.iter().rposition(|byte| *byte == b'/'));
    match (name, path, cut) {
        ("fd.directory", Some(path), Some(cut)) => Some(Kept::Text(path[..cut.max(1)].into())),
        ("fd.filename", Some(path), Some(cut)) => Some(Kept::Text(path[cut + 1..].into())),
        ("fd.type", Some(_), _) => Some(text("file")),
        ("fd.typechar", Some(_), _) => Some(text("f")),
        ("fd.num", ..) if opens(given.kind) => match result(given, "evt.failed") {
            Some(Kept::Bool(true)) => Some(Kept::Int(-1)),
            _ => match get(given, "evt.rawres") {
                Some(result) => Some(result.clone()),
                None => Some(Kept::Int(FIRST_DESCRIPTOR)),
            },
        },
        _ => None,
    }
}

/// Returns an ancestor from a list that begins with the parent.
fn ancestor(given: &SyntheticEvent, list: &str, level: u32) -> Option<Kept> {
    let indexed = get(given, &format!("{list}[{level}]"));
    if let Some(one) = indexed {
        return Some(one.clone());
    }
    if level == 1
        && let Some(parent) = get(given, &list.replace("proc.a", "proc.p"))
    {
        return Some(parent.clone());
    }
    match get(given, list)? {
        Kept::List(all) => {
            let place = usize::try_from(level).ok()?.checked_sub(1)?;
            Some(all.get(place).cloned().unwrap_or(Kept::Absent))
        }
        _ => None,
    }
}

/// Returns a list made of single ancestors.
fn ancestors(given: &SyntheticEvent, list: &str) -> Option<Kept> {
    let all: Vec<Kept> = (1..)
        .map_while(|level| ancestor(given, list, level))
        .collect();
    (!all.is_empty()).then_some(Kept::List(all))
}

/// Returns the command line made of a name and arguments.
fn command_line(given: &SyntheticEvent) -> Option<Kept> {
    let (name, args) = (get_text(given, "proc.name")?, get_text(given, "proc.args")?);
    Some(Kept::Text([name, b" ", args].concat().into()))
}
