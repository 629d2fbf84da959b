//! Parser of `/proc/PID/stat`.

use event::{Comm, Pid, StartTime, Stat};

/// The content of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Command name.
    pub comm: Comm,
    /// State letter: `R`, `S`, `D`, `T`, `t`, `Z`, `X`...
    pub state: u8,
    /// The fields that rules use.
    pub stat: Stat,
    /// Start time of the process.
    pub start: StartTime,
}

/// Parses the line. The name is everything between the first `(` and the last `)`: it may itself contain
/// brackets, blanks and newlines.
pub fn parse_stat(text: &[u8]) -> Option<ProcessStat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = Comm::new(text.get(open + 1..close)?);
    let mut fields = text[close + 1..]
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let ppid = Pid(number(fields.next()?)?);
    let pgid = number(fields.next()?)?;
    let sid = number(fields.next()?)?;
    // The kernel prints this device number as a signed number.
    let tty: i32 = number(fields.next()?)?;
    let tpgid = number(fields.next()?)?;
    // Fields 9 to 19: flags, faults, times, priorities.
    let threads = number(fields.nth(11)?)?;
    let start = StartTime(number(fields.nth(1)?)?);
    let vm_size: u64 = number(fields.next()?)?;
    let rss_pages: i64 = number(fields.next()?)?;
    let page_kib = u64::try_from(sys::machine::page_size()).unwrap_or(4096) / 1024;
    let stat = Stat {
        ppid,
        pgid,
        sid,
        tty: tty.cast_unsigned(),
        tpgid,
        threads,
        vm_size_kib: vm_size / 1024,
        vm_rss_kib: u64::try_from(rss_pages)
            .unwrap_or(0)
            .saturating_mul(page_kib),
    };
    Some(ProcessStat {
        comm,
        state,
        stat,
        start,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}
