//! Values of fields.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The value of a field of one event. Borrowed from the event or its arena, so copying is free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Unknown at this stage of the event, or unreadable: any comparison is undecided.
    Unknown,
    /// The field does not exist for this event (Falco prints `<NA>`): any comparison is false.
    Absent,
    /// A boolean.
    Bool(bool),
    /// A signed number: results, descriptors, pids.
    Int(i64),
    /// An unsigned number: flags, times in nanoseconds, sizes.
    Uint(u64),
    /// Text; paths and arguments need not be UTF-8.
    Text(&'a [u8]),
    /// An address.
    Ip(IpAddr),
    /// Several values: `proc.aname`, `fd.types`, `fd.ip`. A comparison holds if it holds for one of them.
    List(&'a [Value<'a>]),
}

impl<'a> Value<'a> {
    /// Creates a text value from a string.
    pub fn text(text: &'a str) -> Self {
        Value::Text(text.as_bytes())
    }

    /// Returns the value, or `Absent` for `None`.
    pub fn or_absent(value: Option<Value<'a>>) -> Self {
        value.unwrap_or(Value::Absent)
    }
}

/// Type of a field in the rule language; determines which operators and literals fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum ValueType {
    /// `true` / `false`.
    Bool,
    /// Signed number.
    Int,
    /// Unsigned number.
    Uint,
    /// Bytes compared as text.
    Text,
    /// Text that is a path: `pmatch` and `glob` apply.
    Path,
    /// An IP address; compares with addresses and, for `fd.net` and its like, with networks.
    Ip,
    /// An IP address that is compared with CIDR networks.
    Net,
    /// Time since the epoch in nanoseconds.
    AbsTime,
    /// A duration in nanoseconds.
    RelTime,
    /// A port number.
    Port,
}
