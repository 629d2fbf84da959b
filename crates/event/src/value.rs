//! Values that fields have.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a field of one event is. Borrowed from the event or its arena, so copying is free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Not known at this stage of the event, or not readable: any comparison is undecided.
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
    /// Several values: `proc.aname`, `fd.types`, `fd.ip`. A comparison holds if it holds for one.
    List(&'a [Value<'a>]),
}

impl<'a> Value<'a> {
    /// Text from a string literal or borrowed string.
    pub fn text(text: &'a str) -> Self {
        Value::Text(text.as_bytes())
    }

    /// `Absent` for `None`.
    pub fn or_absent(value: Option<Value<'a>>) -> Self {
        value.unwrap_or(Value::Absent)
    }
}

/// The type a field has in the rule language; decides which operators and literals fit.
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
