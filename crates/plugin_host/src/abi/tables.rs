//! Tables that plugins keep: one plugin registers a table, and others read and write it.
//!
//! The plugin that registers a table implements every operation on it. A plugin that asks for the table gets a pointer to a
//! copy of what was registered, and the functions here pass each of its calls on. This program has no table of its own:
//! processes and containers are known to `tollgate`, which is another process.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::offset_of;

use falco_plugin_api::{
    ss_plugin_bool, ss_plugin_init_tables_input, ss_plugin_owner_t, ss_plugin_rc,
    ss_plugin_rc_SS_PLUGIN_FAILURE as FAILURE, ss_plugin_rc_SS_PLUGIN_SUCCESS as SUCCESS,
    ss_plugin_state_data, ss_plugin_state_type, ss_plugin_state_type_SS_PLUGIN_ST_TABLE as TABLE,
    ss_plugin_table_entry_t, ss_plugin_table_field_t, ss_plugin_table_fieldinfo,
    ss_plugin_table_fields_vtable, ss_plugin_table_fields_vtable_ext, ss_plugin_table_info,
    ss_plugin_table_input, ss_plugin_table_iterator_func_t, ss_plugin_table_iterator_state_t,
    ss_plugin_table_reader_vtable, ss_plugin_table_reader_vtable_ext, ss_plugin_table_t,
    ss_plugin_table_writer_vtable, ss_plugin_table_writer_vtable_ext,
};

use super::bytes_at;

/// Most tables of a process.
const MAX_TABLES: usize = 256;
/// Longest name of a table in bytes.
const MAX_NAME: usize = 4096;
/// First minor version of the API in which a table has extended functions.
const EXTENDED_SINCE: u64 = 1;

/// The beginning of [`ss_plugin_table_input`]: all that plugins for version 3.0 of the API pass.
#[repr(C)]
struct BaseInput {
    name: *const c_char,
    key_type: ss_plugin_state_type,
    table: *mut ss_plugin_table_t,
    reader: ss_plugin_table_reader_vtable,
    writer: ss_plugin_table_writer_vtable,
    fields: ss_plugin_table_fields_vtable,
}

const _: () = assert!(size_of::<BaseInput>() == offset_of!(ss_plugin_table_input, reader_ext));
const _: () = assert!(offset_of!(BaseInput, fields) == offset_of!(ss_plugin_table_input, fields));

/// A table that a plugin registered. Never freed, because other plugins keep pointers to it.
struct Table {
    name: CString,
    key_type: ss_plugin_state_type,
    /// The pointer that the functions of its owner take.
    table: *mut ss_plugin_table_t,
    fields: ss_plugin_table_fields_vtable_ext,
    reader: ss_plugin_table_reader_vtable_ext,
    writer: ss_plugin_table_writer_vtable_ext,
}

/// The tables of the plugins in this process. Plugins are initialized by one thread.
#[derive(Default)]
struct Registry {
    tables: Vec<&'static Table>,
    /// What the last call of `list_tables` returned.
    listed: Vec<ss_plugin_table_info>,
    /// Why the last call failed.
    error: CString,
    /// Minor version of the API of the plugin that is being initialized; `None` outside of initializations.
    minor: Option<u64>,
}

thread_local! {
    static REGISTRY: RefCell<Registry> = RefCell::default();
}

/// Keeps why a call failed, for the plugin to ask.
fn fail(cause: String) {
    let cause = CString::new(cause.replace('\0', " "));
    REGISTRY.with_borrow_mut(|registry| {
        // It has no NUL byte.
        registry.error = cause.unwrap_or_default();
    });
}

pub(super) unsafe extern "C-unwind" fn last_error(_owner: *mut ss_plugin_owner_t) -> *const c_char {
    REGISTRY.with_borrow(|registry| registry.error.as_ptr())
}

/// Calls the initialization of a plugin that needs this minor version of the API. Meanwhile the plugin may add tables: only
/// then is it known how long the structures are that it passes.
pub(super) fn initializing<T>(minor: u64, init: impl FnOnce() -> T) -> T {
    REGISTRY.with_borrow_mut(|registry| registry.minor = Some(minor));
    let initialized = init();
    REGISTRY.with_borrow_mut(|registry| registry.minor = None);
    initialized
}

/// Returns what a plugin gets at its initialization. It is never freed, because plugins keep pointers to it.
pub(super) fn init_input() -> *const ss_plugin_init_tables_input {
    Box::leak(Box::new(ss_plugin_init_tables_input {
        list_tables: Some(list_tables),
        get_table: Some(get_table),
        add_table: Some(add_table),
        fields: ss_plugin_table_fields_vtable {
            list_table_fields: Some(list_table_fields),
            get_table_field: Some(get_table_field),
            add_table_field: Some(add_table_field),
        },
        fields_ext: Box::leak(Box::new(ss_plugin_table_fields_vtable_ext {
            list_table_fields: Some(list_table_fields),
            get_table_field: Some(get_table_field),
            add_table_field: Some(add_table_field),
        })),
        reader_ext: Box::leak(Box::new(READER_EXT)),
        writer_ext: Box::leak(Box::new(WRITER_EXT)),
    }))
}

pub(super) const READER: ss_plugin_table_reader_vtable = ss_plugin_table_reader_vtable {
    get_table_name: Some(get_table_name),
    get_table_size: Some(get_table_size),
    get_table_entry: Some(get_table_entry),
    read_entry_field: Some(read_entry_field),
};

pub(super) const READER_EXT: ss_plugin_table_reader_vtable_ext =
    ss_plugin_table_reader_vtable_ext {
        get_table_name: Some(get_table_name),
        get_table_size: Some(get_table_size),
        get_table_entry: Some(get_table_entry),
        read_entry_field: Some(read_entry_field),
        release_table_entry: Some(release_table_entry),
        iterate_entries: Some(iterate_entries),
    };

pub(super) const WRITER: ss_plugin_table_writer_vtable = ss_plugin_table_writer_vtable {
    clear_table: Some(clear_table),
    erase_table_entry: Some(erase_table_entry),
    create_table_entry: Some(create_table_entry),
    destroy_table_entry: Some(destroy_table_entry),
    add_table_entry: Some(add_table_entry),
    write_entry_field: Some(write_entry_field),
};

pub(super) const WRITER_EXT: ss_plugin_table_writer_vtable_ext =
    ss_plugin_table_writer_vtable_ext {
        clear_table: Some(clear_table),
        erase_table_entry: Some(erase_table_entry),
        create_table_entry: Some(create_table_entry),
        destroy_table_entry: Some(destroy_table_entry),
        add_table_entry: Some(add_table_entry),
        write_entry_field: Some(write_entry_field),
    };

unsafe extern "C-unwind" fn list_tables(
    _owner: *mut ss_plugin_owner_t,
    count: *mut u32,
) -> *mut ss_plugin_table_info {
    if count.is_null() {
        return std::ptr::null_mut();
    }
    REGISTRY.with_borrow_mut(|registry| {
        let info = |table: &&'static Table| ss_plugin_table_info {
            name: table.name.as_ptr(),
            key_type: table.key_type,
        };
        registry.listed = registry.tables.iter().map(info).collect();
        // At most `MAX_TABLES`.
        let listed = u32::try_from(registry.listed.len()).unwrap_or(u32::MAX);
        // SAFETY: the API has plugins pass a place for the number.
        unsafe { count.write(listed) };
        registry.listed.as_mut_ptr()
    })
}

unsafe extern "C-unwind" fn get_table(
    _owner: *mut ss_plugin_owner_t,
    name: *const c_char,
    key_type: ss_plugin_state_type,
) -> *mut ss_plugin_table_t {
    let Some(name) = bytes_at(name, MAX_NAME) else {
        fail("asked for a table without a name".to_owned());
        return std::ptr::null_mut();
    };
    let known = REGISTRY.with_borrow(|registry| {
        let mut tables = registry.tables.iter();
        tables.find(|table| table.name.to_bytes() == name).copied()
    });
    let shown = name.escape_ascii();
    match known {
        Some(table) if table.key_type == key_type => {
            let table: *const Table = table;
            table.cast_mut().cast()
        }
        Some(table) => {
            fail(format!(
                "the key of the table `{shown}` has type {}, not {key_type}",
                table.key_type
            ));
            std::ptr::null_mut()
        }
        None => {
            fail(format!(
                "no plugin before this one in the configuration has a table `{shown}`, and tollgate has none of its own"
            ));
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C-unwind" fn add_table(
    _owner: *mut ss_plugin_owner_t,
    input: *const ss_plugin_table_input,
) -> ss_plugin_rc {
    let minor = REGISTRY.with_borrow(|registry| registry.minor);
    let minor = minor.ok_or_else(|| "it adds a table after its initialization".to_owned());
    match minor
        .and_then(|minor| copied(input, minor))
        .and_then(register)
    {
        Ok(()) => SUCCESS,
        Err(cause) => {
            fail(cause);
            FAILURE
        }
    }
}

fn register(table: Table) -> Result<(), String> {
    REGISTRY.with_borrow_mut(|registry| {
        let name = table.name.to_bytes().escape_ascii();
        if registry.tables.iter().any(|known| known.name == table.name) {
            return Err(format!("there is a table `{name}`"));
        }
        if registry.tables.len() >= MAX_TABLES {
            return Err(format!(
                "there are {MAX_TABLES} tables, and no room for `{name}`"
            ));
        }
        registry.tables.push(Box::leak(Box::new(table)));
        Ok(())
    })
}

/// Copies what a plugin registers that needs this minor version of the API.
fn copied(input: *const ss_plugin_table_input, minor: u64) -> Result<Table, String> {
    // SAFETY: the API has plugins of all versions pass null, or a structure that begins with `BaseInput`.
    let base = unsafe { input.cast::<BaseInput>().as_ref() }.ok_or("it adds no table")?;
    let name = bytes_at(base.name, MAX_NAME).filter(|name| !name.is_empty());
    let name = name.and_then(|name| CString::new(name).ok());
    let name = name.ok_or("it adds a table without a name")?;
    if base.table.is_null() {
        return Err("it adds a table that is a null pointer".to_owned());
    }
    let (fields, reader, writer) = match minor < EXTENDED_SINCE {
        true => extended(base),
        false => given(input).ok_or_else(|| {
            format!(
                "it adds the table `{}` without extended functions, which plugins have since version 3.{EXTENDED_SINCE} of the \
                 API",
                name.to_bytes().escape_ascii()
            )
        })?,
    };
    Ok(Table {
        name,
        key_type: base.key_type,
        table: base.table,
        fields,
        reader,
        writer,
    })
}

/// The functions of a table.
type Functions = (
    ss_plugin_table_fields_vtable_ext,
    ss_plugin_table_reader_vtable_ext,
    ss_plugin_table_writer_vtable_ext,
);

/// Copies the extended functions of a table; `None` if some are missing. Precondition: the plugin needs a version of the API
/// that has them, because its structure is too short otherwise.
fn given(input: *const ss_plugin_table_input) -> Option<Functions> {
    // SAFETY: as the caller says, the plugin passes the whole structure or null.
    let input = unsafe { input.as_ref() }?;
    // SAFETY: the API has plugins pass a table of functions or null.
    let fields = unsafe { input.fields_ext.as_ref() }?;
    // SAFETY: as above.
    let reader = unsafe { input.reader_ext.as_ref() }?;
    // SAFETY: as above.
    let writer = unsafe { input.writer_ext.as_ref() }?;
    Some((*fields, *reader, *writer))
}

/// Returns the functions of a table of version 3.0 as extended ones. As in Falco its entries need no release, and a plugin that
/// iterates over them is told that it cannot.
fn extended(base: &BaseInput) -> Functions {
    let (fields, reader, writer) = (&base.fields, &base.reader, &base.writer);
    (
        ss_plugin_table_fields_vtable_ext {
            list_table_fields: fields.list_table_fields,
            get_table_field: fields.get_table_field,
            add_table_field: fields.add_table_field,
        },
        ss_plugin_table_reader_vtable_ext {
            get_table_name: reader.get_table_name,
            get_table_size: reader.get_table_size,
            get_table_entry: reader.get_table_entry,
            read_entry_field: reader.read_entry_field,
            release_table_entry: Some(release_nothing),
            iterate_entries: None,
        },
        ss_plugin_table_writer_vtable_ext {
            clear_table: writer.clear_table,
            erase_table_entry: writer.erase_table_entry,
            create_table_entry: writer.create_table_entry,
            destroy_table_entry: writer.destroy_table_entry,
            add_table_entry: writer.add_table_entry,
            write_entry_field: writer.write_entry_field,
        },
    )
}

unsafe extern "C-unwind" fn release_nothing(_table: *mut ss_plugin_table_t, _entry: Entry) {}

/// Defines a function that passes a call on to the owner of a table.
macro_rules! pass_on {
    ($name:ident of $group:ident ($($argument:ident: $ty:ty),*) -> $result:ty, or $failed:expr) => {
        pub(super) unsafe extern "C-unwind" fn $name(
            table: *mut ss_plugin_table_t
            $(, $argument: $ty)*
        ) -> $result {
            // SAFETY: plugins pass what `get_table` returned: null, or a `Table` that is never freed.
            let Some(table) = (unsafe { table.cast::<Table>().as_ref() }) else {
                return $failed;
            };
            match table.$group.$name {
                // SAFETY: the plugin that registered the table gave this function for it; the arguments are the caller's.
                Some(function) => unsafe { function(table.table $(, $argument)*) },
                None => {
                    fail(format!(
                        "the table `{}` has no function {}",
                        table.name.to_bytes().escape_ascii(),
                        stringify!($name)
                    ));
                    $failed
                }
            }
        }
    };
}

type Entry = *mut ss_plugin_table_entry_t;
type Field = *const ss_plugin_table_field_t;
type Key = *const ss_plugin_state_data;
/// What a function answers that answers nothing.
const NOTHING: () = ();

pass_on!(get_table_name of reader () -> *const c_char, or std::ptr::null());
pass_on!(get_table_size of reader () -> u64, or u64::MAX);
pass_on!(get_table_entry of reader (key: Key) -> Entry, or std::ptr::null_mut());
pass_on!(read_entry_field of reader (entry: Entry, field: Field, out: *mut ss_plugin_state_data) -> ss_plugin_rc, or FAILURE);
pass_on!(release_table_entry of reader (entry: Entry) -> (), or NOTHING);
pass_on!(iterate_entries of reader (
    each: ss_plugin_table_iterator_func_t,
    state: *mut ss_plugin_table_iterator_state_t
) -> ss_plugin_bool, or 0);
pass_on!(clear_table of writer () -> ss_plugin_rc, or FAILURE);
pass_on!(erase_table_entry of writer (key: Key) -> ss_plugin_rc, or FAILURE);
pass_on!(create_table_entry of writer () -> Entry, or std::ptr::null_mut());
pass_on!(destroy_table_entry of writer (entry: Entry) -> (), or NOTHING);
pass_on!(add_table_entry of writer (key: Key, entry: Entry) -> Entry, or std::ptr::null_mut());
pass_on!(write_entry_field of writer (entry: Entry, field: Field, value: Key) -> ss_plugin_rc, or FAILURE);
pass_on!(list_table_fields of fields (count: *mut u32) -> *const ss_plugin_table_fieldinfo, or std::ptr::null());

/// The functions of the owner for fields, which are asked for with a type.
mod owners {
    use super::*;

    pass_on!(get_table_field of fields (name: *const c_char, ty: ss_plugin_state_type) -> *mut ss_plugin_table_field_t,
        or std::ptr::null_mut());
    pass_on!(add_table_field of fields (name: *const c_char, ty: ss_plugin_state_type) -> *mut ss_plugin_table_field_t,
        or std::ptr::null_mut());
}

unsafe extern "C-unwind" fn get_table_field(
    table: *mut ss_plugin_table_t,
    name: *const c_char,
    ty: ss_plugin_state_type,
) -> *mut ss_plugin_table_field_t {
    if is_table(ty) {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller's.
    unsafe { owners::get_table_field(table, name, ty) }
}

unsafe extern "C-unwind" fn add_table_field(
    table: *mut ss_plugin_table_t,
    name: *const c_char,
    ty: ss_plugin_state_type,
) -> *mut ss_plugin_table_field_t {
    if is_table(ty) {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller's.
    unsafe { owners::add_table_field(table, name, ty) }
}

/// Refuses fields that are tables: their pointers are not what `get_table` returns.
fn is_table(ty: ss_plugin_state_type) -> bool {
    if ty == TABLE {
        fail("fields that are tables are not supported".to_owned());
    }
    ty == TABLE
}
