//! Finds the functions of a library.

use std::ffi::CStr;

use falco_plugin_api::{
    plugin_api, plugin_api__bindgen_ty_1, plugin_api__bindgen_ty_2, plugin_api__bindgen_ty_3,
    plugin_api__bindgen_ty_4, plugin_api__bindgen_ty_5,
};

macro_rules! find {
    ($handle:expr, $name:literal) => {
        // SAFETY: the plugin API gives the function of this name the type of the member that it is stored in.
        unsafe { find($handle, $name) }
    };
}

/// Returns the function of this name.
///
/// # Safety
///
/// `T` is the type of the function.
unsafe fn find<T: Copy>(handle: *mut libc::c_void, name: &CStr) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<*mut libc::c_void>()) };
    // SAFETY: the handle is that of a loaded library.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the caller says that `T` is a function pointer, which has the size of a pointer.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// Finds all functions of the API.
pub(super) fn all(handle: *mut libc::c_void) -> plugin_api {
    plugin_api {
        get_required_api_version: find!(handle, c"plugin_get_required_api_version"),
        get_init_schema: find!(handle, c"plugin_get_init_schema"),
        init: find!(handle, c"plugin_init"),
        destroy: find!(handle, c"plugin_destroy"),
        get_last_error: find!(handle, c"plugin_get_last_error"),
        get_name: find!(handle, c"plugin_get_name"),
        get_description: find!(handle, c"plugin_get_description"),
        get_contact: find!(handle, c"plugin_get_contact"),
        get_version: find!(handle, c"plugin_get_version"),
        __bindgen_anon_1: plugin_api__bindgen_ty_1 {
            get_id: find!(handle, c"plugin_get_id"),
            get_event_source: find!(handle, c"plugin_get_event_source"),
            open: find!(handle, c"plugin_open"),
            close: find!(handle, c"plugin_close"),
            list_open_params: find!(handle, c"plugin_list_open_params"),
            get_progress: find!(handle, c"plugin_get_progress"),
            event_to_string: find!(handle, c"plugin_event_to_string"),
            next_batch: find!(handle, c"plugin_next_batch"),
        },
        __bindgen_anon_2: plugin_api__bindgen_ty_2 {
            get_extract_event_types: find!(handle, c"plugin_get_extract_event_types"),
            get_extract_event_sources: find!(handle, c"plugin_get_extract_event_sources"),
            get_fields: find!(handle, c"plugin_get_fields"),
            extract_fields: find!(handle, c"plugin_extract_fields"),
        },
        __bindgen_anon_3: plugin_api__bindgen_ty_3 {
            get_parse_event_types: find!(handle, c"plugin_get_parse_event_types"),
            get_parse_event_sources: find!(handle, c"plugin_get_parse_event_sources"),
            parse_event: find!(handle, c"plugin_parse_event"),
        },
        __bindgen_anon_4: plugin_api__bindgen_ty_4 {
            get_async_event_sources: find!(handle, c"plugin_get_async_event_sources"),
            get_async_events: find!(handle, c"plugin_get_async_events"),
            set_async_event_handler: find!(handle, c"plugin_set_async_event_handler"),
            dump_state: find!(handle, c"plugin_dump_state"),
        },
        set_config: find!(handle, c"plugin_set_config"),
        get_metrics: find!(handle, c"plugin_get_metrics"),
        __bindgen_anon_5: plugin_api__bindgen_ty_5 {
            capture_open: find!(handle, c"plugin_capture_open"),
            capture_close: find!(handle, c"plugin_capture_close"),
        },
    }
}
