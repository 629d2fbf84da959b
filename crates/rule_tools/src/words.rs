//! Falco's words for types of the event model.

use event::{Category, ValueType};

/// Returns a value of `evt.category`. Input and output have `file`, `net` or `ipc`, depending on the
/// descriptor.
#[must_use]
pub fn category(category: Category) -> &'static str {
    match category {
        Category::File => "file",
        Category::Net => "net",
        Category::Process => "process",
        Category::User => "user",
        Category::System => "system",
        Category::Signal => "signal",
        Category::Ipc => "IPC",
        Category::Memory => "memory",
        Category::Wait => "wait",
        Category::Sleep => "sleep",
        Category::Time => "time",
        Category::IoRead => "I/O read",
        Category::IoWrite => "I/O write",
        Category::IoOther => "I/O other",
        Category::Internal => "internal",
        Category::Other => "other",
    }
}

/// Returns the type of a field as Falco lists it.
#[must_use]
pub fn value_type(ty: ValueType) -> &'static str {
    match ty {
        ValueType::Bool => "BOOL",
        ValueType::Int => "INT64",
        ValueType::Uint => "UINT64",
        ValueType::Text => "CHARBUF",
        ValueType::Path => "FSPATH",
        ValueType::Ip => "IPADDR",
        ValueType::Net => "IPNET",
        ValueType::AbsTime => "ABSTIME",
        ValueType::RelTime => "RELTIME",
        ValueType::Port => "PORT",
    }
}
