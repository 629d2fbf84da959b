//! What threads of plugins call to add asynchronous events to a source.

use std::collections::BTreeSet;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{PoisonError, RwLock};

use falco_plugin_api::{
    ss_plugin_event, ss_plugin_owner_t, ss_plugin_rc, ss_plugin_rc_SS_PLUGIN_FAILURE as FAILURE,
    ss_plugin_rc_SS_PLUGIN_SUCCESS as SUCCESS,
};

use crate::asynchronous::{self, Queue};
use crate::event::{Buffer, HEADER};

/// Longest reason that a plugin gets, in bytes with its NUL byte: `PLUGIN_MAX_ERRLEN` of the API.
const MAX_REASON: usize = 1024;

/// What the events of one plugin are checked against, and where they go.
pub(crate) struct Owner {
    /// Name of the plugin.
    pub(crate) plugin: String,
    /// Names of events that it announces.
    pub(crate) names: BTreeSet<String>,
    /// Number of the plugin that is the source.
    pub(crate) source: u32,
    /// The events of all plugins.
    pub(crate) queue: &'static Queue,
}

/// All owners. A plugin passes the address of its owner with each event; it is looked up here, and never followed. Owners are
/// never freed, so that an address stays that of one plugin.
static OWNERS: RwLock<Vec<&'static Owner>> = RwLock::new(Vec::new());

/// Keeps an owner, and returns its address.
pub(super) fn register(owner: &'static Owner) -> *mut ss_plugin_owner_t {
    let mut owners = OWNERS.write().unwrap_or_else(PoisonError::into_inner);
    owners.push(owner);
    address(owner)
}

fn address(owner: &'static Owner) -> *mut ss_plugin_owner_t {
    ptr::from_ref(owner).cast_mut().cast()
}

/// Takes an event. Any thread may call it at any time.
pub(super) unsafe extern "C-unwind" fn handle(
    owner: *mut ss_plugin_owner_t,
    event: *const ss_plugin_event,
    reason: *mut c_char,
) -> ss_plugin_rc {
    // A plugin in another language does not survive a panic.
    let received = catch_unwind(AssertUnwindSafe(|| receive(owner, event)));
    let received = received.unwrap_or_else(|_panic| Err("an internal failure".to_owned()));
    let Err(cause) = received else {
        return SUCCESS;
    };
    if !reason.is_null() {
        let mut text = cause.into_bytes();
        text.retain(|byte| *byte != 0);
        text.truncate(MAX_REASON - 1);
        text.push(0);
        // SAFETY: the API has plugins pass null, or a place for `MAX_REASON` bytes.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), reason.cast(), text.len()) };
    }
    FAILURE
}

fn receive(owner: *mut ss_plugin_owner_t, event: *const ss_plugin_event) -> Result<(), String> {
    let owners = OWNERS.read().unwrap_or_else(PoisonError::into_inner);
    let found = owners.iter().find(|known| ptr::eq(address(known), owner));
    let owner = *found.ok_or("the owner is not the one that came with the handler")?;
    drop(owners);
    owner.queue.add(&owner.plugin, copied(owner, event))
}

/// Copies an event after checking its lengths.
fn copied(owner: &Owner, event: *const ss_plugin_event) -> Result<Buffer, String> {
    if event.is_null() {
        return Err("the event is a null pointer".to_owned());
    }
    let header = bytes(event, HEADER);
    let whole = bytes(event, asynchronous::length(&header)?);
    asynchronous::checked(&whole, owner.source, &owner.names)
}

/// Copies the beginning of an event. Precondition: the event is not null, and says that it has so many bytes.
fn bytes(event: *const ss_plugin_event, length: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; length];
    // SAFETY: an event begins with a header, which says how many bytes it has. The copy is `length` bytes long.
    unsafe { ptr::copy_nonoverlapping(event.cast(), bytes.as_mut_ptr(), length) };
    bytes
}
