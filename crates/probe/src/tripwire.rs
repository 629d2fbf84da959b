//! Probe of inotify, which detects opens that bypass the engine.

use std::ffi::CString;
use std::fs;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Support;

/// Number of watches that the rules in use need, with room to spare.
const ENOUGH: u64 = 4096;
const FIX: &str = "sysctl fs.inotify.max_user_instances=128 fs.inotify.max_user_watches=8192";

pub(super) fn inotify() -> Support {
    let root = CString::new("/").expect("no NUL");
    let watch = inotify::init(CreateFlags::CLOEXEC)
        .and_then(|inotify| inotify::add_watch(&inotify, root, WatchFlags::CREATE));
    if let Err(error) = watch {
        let why = format!("{error}: opens that bypass the engine are not reported");
        return Support::partial_with_fix(why, FIX);
    }
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(limit) if limit < ENOUGH => {
            Support::partial_with_fix(format!("works; limit of {limit} watches per user"), FIX)
        }
        Some(limit) => Support::yes(format!("works (limit of {limit} watches per user)")),
        None => Support::yes("works"),
    }
}
