//! Entry for fuzzing: what an earlier process left in a spool.

use std::io;
use std::path::Path;

use super::spool::Spool;

/// Lines of a spool, by the numbers that the collector sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SpoolLines {
    /// Numbers and texts of the lines.
    pub lines: Vec<(u64, Vec<u8>)>,
    /// Number of the next line.
    pub next: u64,
}

/// Opens the spool below `root`, adds `more`, and takes everything out as if a collector acknowledged it.
///
/// # Errors
///
/// The spool cannot be read or written.
pub fn drain_spool(root: &Path, limit: u64, more: &[String]) -> io::Result<SpoolLines> {
    let mut spool = Spool::open(root, limit)?;
    spool.append(more)?;
    let mut drained = SpoolLines::default();
    while let Some(pending) = spool.pending(usize::MAX)? {
        let lines = pending.text.split_inclusive(|byte| *byte == b'\n');
        drained
            .lines
            .extend((pending.first..).zip(lines.map(<[u8]>::to_vec)));
        spool.acknowledge(pending.first + pending.lines as u64 - 1)?;
    }
    drained.next = spool.next();
    Ok(drained)
}
