//! Parser of `/proc/TID/status`.

use event::{Credentials, Status};

use super::ProcError;

/// The content of `/proc/TID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// The fields that rules use.
    pub status: Status,
    /// Process id of the thread.
    pub tgid: i32,
    /// Parent of the process.
    pub ppid: i32,
    /// Tracer of the thread, 0 for none.
    pub tracer: i32,
    /// User id for file access checks.
    pub fs_uid: u32,
    /// Group id for file access checks.
    pub fs_gid: u32,
    /// Umask; `None` before Linux 4.7.
    pub umask: Option<u32>,
    /// Number of threads of the process.
    pub threads: u32,
    /// Set if `no_new_privs` is set.
    pub no_new_privs: bool,
    /// Seccomp mode: 0 off, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Number of seccomp filters; `None` before Linux 5.9.
    pub seccomp_filters: Option<u32>,
}

/// Fields that were parsed so far.
#[derive(Default)]
struct Partial {
    tgid: Option<i32>,
    ppid: Option<i32>,
    tracer: Option<i32>,
    uids: Option<[u32; 4]>,
    gids: Option<[u32; 4]>,
    umask: Option<u32>,
    threads: Option<u32>,
    namespaced: [Option<i32>; 4],
    capabilities: [Option<u64>; 4],
    no_new_privs: bool,
    seccomp: u32,
    seccomp_filters: Option<u32>,
}

/// Maximum length of a parsed line; the only longer line, `Groups`, is not needed.
const LINE_LIMIT: usize = 256;

/// Parses the file as `read` delivers it, in pieces, because the list of supplementary groups may have 65,536
/// entries.
pub fn parse_status(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, ProcError>,
) -> Result<Option<ThreadStatus>, ProcError> {
    let mut partial = Partial::default();
    let mut chunk = [0; 4096];
    let mut line = [0; LINE_LIMIT];
    let mut len = 0;
    loop {
        let count = read(&mut chunk)?;
        if count == 0 {
            break;
        }
        let mut rest = &chunk[..count.min(chunk.len())];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if len == 0 {
                partial.take(&rest[..end.min(LINE_LIMIT)]);
            } else {
                len = append(&mut line, len, &rest[..end]);
                partial.take(&line[..len]);
                len = 0;
            }
            rest = &rest[end + 1..];
        }
        len = append(&mut line, len, rest);
    }
    Ok(partial.finish())
}

/// Appends the next piece of a line as far as it fits; returns the new length.
fn append(line: &mut [u8; LINE_LIMIT], len: usize, piece: &[u8]) -> usize {
    let fits = piece.len().min(LINE_LIMIT - len);
    line[len..len + fits].copy_from_slice(&piece[..fits]);
    len + fits
}

impl Partial {
    fn take(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let (key, value) = (&line[..colon], &line[colon + 1..]);
        // Most lines are memory sizes or signal sets.
        if key.starts_with(b"Vm") || key.starts_with(b"Sig") {
            return;
        }
        let Ok(value) = std::str::from_utf8(value) else {
            return;
        };
        match key {
            b"Tgid" => self.tgid = value.trim().parse().ok(),
            b"PPid" => self.ppid = value.trim().parse().ok(),
            b"TracerPid" => self.tracer = value.trim().parse().ok(),
            b"Umask" => self.umask = u32::from_str_radix(value.trim(), 8).ok(),
            b"Threads" => self.threads = value.trim().parse().ok(),
            b"Uid" => self.uids = four(value),
            b"Gid" => self.gids = four(value),
            b"NStgid" => self.namespaced[0] = innermost(value),
            b"NSpid" => self.namespaced[1] = innermost(value),
            b"NSpgid" => self.namespaced[2] = innermost(value),
            b"NSsid" => self.namespaced[3] = innermost(value),
            b"CapInh" => self.capabilities[0] = u64::from_str_radix(value.trim(), 16).ok(),
            b"CapPrm" => self.capabilities[1] = u64::from_str_radix(value.trim(), 16).ok(),
            b"CapEff" => self.capabilities[2] = u64::from_str_radix(value.trim(), 16).ok(),
            b"CapBnd" => self.capabilities[3] = u64::from_str_radix(value.trim(), 16).ok(),
            b"NoNewPrivs" => self.no_new_privs = value.trim() == "1",
            b"Seccomp" => self.seccomp = value.trim().parse().unwrap_or(0),
            b"Seccomp_filters" => self.seccomp_filters = value.trim().parse().ok(),
            _ => {}
        }
    }

    fn finish(self) -> Option<ThreadStatus> {
        let [real_uid, uid, _, fs_uid] = self.uids?;
        let [_, gid, _, fs_gid] = self.gids?;
        let tgid = self.tgid?;
        let status = Status {
            credentials: Credentials { uid, gid },
            real_uid,
            cap_inheritable: self.capabilities[0]?,
            cap_permitted: self.capabilities[1]?,
            cap_effective: self.capabilities[2]?,
            cap_bounding: self.capabilities[3]?,
            // A kernel without pid namespaces omits these lines.
            vpid: self.namespaced[0].unwrap_or(tgid),
            vtid: self.namespaced[1].unwrap_or(tgid),
            vpgid: self.namespaced[2].unwrap_or(0),
            vsid: self.namespaced[3].unwrap_or(0),
        };
        Some(ThreadStatus {
            status,
            tgid,
            ppid: self.ppid?,
            tracer: self.tracer.unwrap_or(0),
            fs_uid,
            fs_gid,
            umask: self.umask,
            threads: self.threads.unwrap_or(1),
            no_new_privs: self.no_new_privs,
            seccomp: self.seccomp,
            seccomp_filters: self.seccomp_filters,
        })
    }
}

fn four(value: &str) -> Option<[u32; 4]> {
    let mut numbers = value.split_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// The innermost id of a `NS*` line, which lists the id in each pid namespace from the reader's inwards.
fn innermost(value: &str) -> Option<i32> {
    value.split_whitespace().next_back()?.parse().ok()
}
