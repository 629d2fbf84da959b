//! Probe of inotify, which detects opens that bypass the engine.

use std::ffi::CString;
use std::fs;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Support;
use super::fix::{self, Parameter};

/// Number of watches that the rules in use need, with room to spare.
const ENOUGH: u64 = 4096;

/// Raises the limits that are below the kernel's defaults.
fn fix() -> Option<String> {
    fix::sysctl(&[
        Parameter {
            name: "fs.inotify.max_user_instances",
            value: 128,
            is_enough: |limit| limit >= 128,
        },
        Parameter {
            name: "fs.inotify.max_user_watches",
            value: 2 * ENOUGH,
            is_enough: |limit| limit >= ENOUGH,
        },
    ])
}

pub(super) fn inotify() -> Support {
    let root = CString::new("/").expect("no NUL");
    let watch = inotify::init(CreateFlags::CLOEXEC)
        .and_then(|inotify| inotify::add_watch(&inotify, root, WatchFlags::CREATE));
    if let Err(error) = watch {
        let why = format!("{error}: opens that bypass the engine are not reported");
        return Support::partial_unless_fixed(why, fix());
    }
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(limit) if limit < ENOUGH => {
            Support::partial_unless_fixed(
            format!("works; limit of {limit} watches per user"),
            fix(),
        )
        }
        Some(limit) => Support::yes(format!("works (limit of {limit} watches per user)")),
        None => Support::yes("works"),
    }
}
