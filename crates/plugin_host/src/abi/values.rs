//! Fields as a plugin is asked for them, and the values that it writes.

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use falco_plugin_api::{
    ss_plugin_byte_buffer, ss_plugin_extract_field, ss_plugin_extract_field__bindgen_ty_1,
};
use plugin::protocol::{FieldType, FieldValue, MAX_LIST, Scalar};

use super::{MAX_TEXT, bytes_at, element};

/// The index of a field without one. A plugin that takes 0 for it would look at the first element alone.
const NO_INDEX: u64 = u64::MAX;

/// A field as it is asked for.
pub(crate) struct AskedField {
    pub(crate) id: u32,
    pub(crate) name: CString,
    pub(crate) key: Option<CString>,
    pub(crate) index: Option<u64>,
    pub(crate) ty: FieldType,
    pub(crate) is_list: bool,
}

/// Returns the value that a plugin has written.
pub(super) fn value(
    field: &ss_plugin_extract_field,
    asked: &AskedField,
) -> Result<FieldValue, String> {
    let name = || asked.name.to_string_lossy();
    let count = usize::try_from(field.res_len).unwrap_or(usize::MAX);
    // SAFETY: all members of the union are pointers.
    let at = unsafe { field.res.u64_ };
    // As in Falco a list without elements does not exist.
    if count == 0 {
        return Ok(FieldValue::Absent);
    }
    if at.is_null() || (count > 1 && !asked.is_list) {
        return Err(format!("it returns {count} values for field `{}`", name()));
    }
    // What an event holds must not end its source: whoever writes the event chooses it.
    if count > MAX_LIST {
        return Ok(FieldValue::Unknown);
    }
    let mut values = Vec::new();
    for position in 0..count {
        match scalar(field.res, position, asked.ty) {
            Some(scalar) => values.push(scalar),
            // Too long, or no address.
            None => return Ok(FieldValue::Unknown),
        }
    }
    match asked.is_list {
        true => Ok(FieldValue::Many(values)),
        false => Ok(FieldValue::One(values.remove(0))),
    }
}

/// Reads one of the values that a plugin has written.
fn scalar(
    values: ss_plugin_extract_field__bindgen_ty_1,
    at: usize,
    ty: FieldType,
) -> Option<Scalar> {
    match ty {
        FieldType::Text => {
            // SAFETY: all members of the union are pointers.
            let texts = unsafe { values.str_ };
            // SAFETY: the plugin says that there are more than `at` values of the type that was asked for.
            let text = unsafe { element(texts, at) };
            bytes_at(text, MAX_TEXT).map(Scalar::Text)
        }
        FieldType::Uint | FieldType::RelTime | FieldType::AbsTime => {
            // SAFETY: as above.
            let numbers = unsafe { values.u64_ };
            // SAFETY: as above.
            Some(Scalar::Uint(unsafe { element(numbers, at) }))
        }
        FieldType::Bool => {
            // SAFETY: as above.
            let truths = unsafe { values.boolean };
            // SAFETY: as above.
            Some(Scalar::Bool(unsafe { element(truths, at) } != 0))
        }
        FieldType::Ip | FieldType::Net => {
            // SAFETY: as above.
            let buffers = unsafe { values.buf };
            // SAFETY: as above.
            address(unsafe { element(buffers, at) })
        }
    }
}

fn address(buffer: ss_plugin_byte_buffer) -> Option<Scalar> {
    let length = usize::try_from(buffer.len).ok()?;
    if buffer.ptr.is_null() || ![4, 16].contains(&length) {
        return None;
    }
    // SAFETY: the plugin says that the buffer has 4 or 16 bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.ptr.cast::<u8>(), length) };
    let four = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    let sixteen = || <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
    four.or_else(|_length| sixteen()).ok().map(Scalar::Ip)
}

pub(super) fn raw_field(asked: &AskedField) -> ss_plugin_extract_field {
    ss_plugin_extract_field {
        res: ss_plugin_extract_field__bindgen_ty_1 {
            u64_: ptr::null_mut(),
        },
        res_len: 0,
        field_id: asked.id,
        field: asked.name.as_ptr(),
        arg_key: asked.key.as_ref().map_or(ptr::null(), |key| key.as_ptr()),
        arg_index: asked.index.unwrap_or(NO_INDEX),
        arg_present: u32::from(asked.key.is_some() || asked.index.is_some()),
        ftype: match asked.ty {
            FieldType::Uint => 8,
            FieldType::Text => 9,
            FieldType::RelTime => 20,
            FieldType::AbsTime => 21,
            FieldType::Bool => 25,
            FieldType::Ip => 40,
            FieldType::Net => 41,
        },
        flist: u32::from(asked.is_list),
    }
}
