//! Identity of this build, and of what its process sees.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Returns an identifier of this build: another build may use another layout or other decisions.
pub(super) fn build() -> io::Result<String> {
    let file = std::fs::metadata("/proc/self/exe")?;
    let (dev, ino, size) = (file.dev(), file.ino(), file.size());
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("{version} {dev}:{ino}:{size}"))
}

/// Returns the mount and pid namespaces of this process: processes in others need another agent.
pub(super) fn view() -> io::Result<[PathBuf; 2]> {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}"));
    Ok([namespace("mnt")?, namespace("pid")?])
}
