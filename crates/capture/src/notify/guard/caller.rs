//! Permission of a caller to send signals, by the kernel's rule (kill(2)).

use abi::Capabilities;
use abi::constant::CAP_KILL;
use event::Tid;

use process_info::procfs::Proc;

const STATUS_LIMIT: usize = 64 * 1024;

/// The caller of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// Id of its process.
    pub(super) tgid: i32,
    real: u32,
    effective: u32,
    may_signal_all: bool,
    /// User namespace; `None` if it cannot be read.
    user_namespace: Option<u64>,
}

impl Caller {
    pub(super) fn read(proc: &Proc, tid: Tid) -> Option<Self> {
        let text = proc.read_all(tid.0, "status", STATUS_LIMIT).ok()?.0;
        let [real, effective, ..] = users(&text)?;
        let capabilities = u64::from_str_radix(line(&text, "CapEff")?, 16).ok()?;
        Some(Self {
            tgid: line(&text, "Tgid")?.parse().ok()?,
            real,
            effective,
            may_signal_all: Capabilities(capabilities).contains(CAP_KILL.u8()),
            user_namespace: proc.namespace(tid.0, "ns/user").ok(),
        })
    }

    /// Returns whether the kernel would let the caller signal a process.
    pub(super) fn may_signal(&self, proc: &Proc, pid: i32) -> bool {
        let Ok((text, _)) = proc.read_all(pid, "status", STATUS_LIMIT) else {
            return false;
        };
        let Some([real, _, saved]) = users(&text) else {
            return false;
        };
        let same = [real, saved]
            .iter()
            .any(|target| [self.real, self.effective].contains(target));
        same || (self.may_signal_all && self.rules_namespace_of(proc, pid))
    }

    /// Returns whether the caller's capabilities apply to the process; true if that cannot be read.
    fn rules_namespace_of(&self, proc: &Proc, pid: i32) -> bool {
        let Some(own) = self.user_namespace else {
            return true;
        };
        let agent = std::process::id().cast_signed();
        let of = |pid| proc.namespace(pid, "ns/user").ok();
        // The agent's namespace is the outermost here; one below the caller's own is covered, too.
        of(agent) == Some(own) || of(pid).is_none_or(|other| other == own)
    }
}

/// Reads real, effective and saved user id.
fn users(status: &[u8]) -> Option<[u32; 3]> {
    let mut numbers = line(status, "Uid")?.split_whitespace();
    let mut next = || numbers.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

/// Returns the value of a line of a status file.
pub(super) fn line<'a>(status: &'a [u8], key: &str) -> Option<&'a str> {
    let found = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(found).ok().map(str::trim)
}
