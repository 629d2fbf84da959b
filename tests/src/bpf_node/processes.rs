//! Processes of containers that tests make as a runtime does.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::LIMIT;
use crate::Group;

/// Waits until a process has its namespaces, as a runtime does before it says that a container is made. Returns its number.
pub(super) fn made(process: &Child) -> u32 {
    let end = Instant::now() + LIMIT;
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace("self").expect("procfs");
    while namespace(&process.id().to_string()).expect("it lives") == own {
        assert!(Instant::now() < end, "it has no namespace");
        std::thread::sleep(Duration::from_millis(10));
    }
    process.id()
}

pub(super) fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).expect("a new folder");
}

/// A program in the control group of a container.
#[must_use]
pub fn in_group(group: &Group, words: &[&str]) -> Command {
    let prefix = group.prefix();
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]).args(words).stdin(Stdio::null());
    command
}
