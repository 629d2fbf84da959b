//! Unix sockets: which may be connected to, and how.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use abi::Errno;
use event::Evaluator;
use policy::AllowedPeer;
use rustix::fs::{AtFlags, StatxFlags};

use super::address::Address;
use super::{Shared, argument_check, connect_to, denial_paths};
use decoder::call::Call;

/// Maximum number of sockets that are remembered.
const SOCKET_LIMIT: usize = 4096;

/// Errors of names that lead nowhere: ENOENT, EACCES, ENOTDIR, ENAMETOOLONG.
const USUAL: [Errno; 4] = [Errno(2), Errno(13), Errno(20), Errno(36)];

/// Sockets that processes of the workload have bound since the start.
#[derive(Debug)]
pub(super) struct OwnSockets {
    since: i64,
    /// Device and inode.
    files: Mutex<HashSet<(u32, u32, u64)>>,
    names: Mutex<HashSet<Vec<u8>>>,
}

impl Default for OwnSockets {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            since: since.map_or(i64::MAX, |since| since.as_secs().cast_signed()),
            files: Mutex::default(),
            names: Mutex::default(),
        }
    }
}

/// Reason why a path is not connected to.
pub(super) enum Missing {
    /// The socket cannot be connected to for this caller.
    Denied(String),
    /// The kernel would fail the call.
    Failed(Errno),
}

/// A socket's file.
pub(super) struct FoundSocket {
    file: OwnedFd,
    path: String,
    is_allowed: bool,
}

impl FoundSocket {
    /// The socket in the notation of a list of peers, if the list does not have it.
    pub(super) fn unlisted(&self) -> Option<String> {
        (!self.is_allowed).then(|| format!("unix:{}", self.path))
    }

    /// Connects to this file, whatever its name leads to by now.
    pub(super) fn connect(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let family: u16 = 1;
        let address = [&family.to_ne_bytes()[..], path.as_bytes(), b"\0"].concat();
        connect_to(socket, &address)
    }
}

/// Finds the socket that a path of the caller names.
pub(super) fn find<J: Evaluator>(
    shared: &Shared<J>,
    call: &Call,
    path: &[u8],
) -> Result<FoundSocket, Missing> {
    let inspector = &shared.tree.inspector;
    let direct = denial_paths::through_proc(path, true, call.tid, inspector);
    let path = direct.as_deref().unwrap_or(path);
    let found = argument_check::find(call.tid, path, None, inspector).map_err(|error| {
        let errno = Errno(error.raw_os_error());
        match USUAL.contains(&errno) {
            true => Missing::Failed(errno),
            // A way that is not followed here.
            false => Missing::Denied(format!("unix:{}", path.escape_ascii())),
        }
    })?;
    let real = inspector
        .own_descriptor(&found)
        .map_err(|error| Missing::Failed(Errno(error.raw_os_error())))?;
    let text = String::from_utf8_lossy(&real).into_owned();
    // Without a list nothing is on it.
    let peers = shared.confiner.peers().unwrap_or_default();
    let is_listed = peers.iter().any(|peer| match peer {
        AllowedPeer::Socket(pattern) => pattern.matches(&text),
        AllowedPeer::Host { .. } => false,
    });
    let is_allowed = is_listed || shared.mediator.sockets.has(&found);
    // The connect is made with the rights of this process.
    if !is_of_our_user(call) {
        return Err(Missing::Denied(format!("unix:{text} as another user")));
    }
    Ok(FoundSocket {
        file: found,
        path: text,
        is_allowed,
    })
}

fn is_of_our_user(call: &Call) -> bool {
    let folder = rustix::fs::stat(format!("/proc/{}", call.tid.0));
    folder.is_ok_and(|folder| folder.st_uid == rustix::process::geteuid().as_raw())
}

impl OwnSockets {
    pub(super) fn has_abstract(&self, name: &[u8]) -> bool {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(name)
    }

    /// A file that existed before, under another name perhaps, is not the workload's.
    fn has(&self, file: &OwnedFd) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        self.identity(file)
            .is_some_and(|file| files.contains(&file))
    }

    /// Device and inode of a file that was made since the start.
    fn identity(&self, file: &OwnedFd) -> Option<(u32, u32, u64)> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let data = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let knows = StatxFlags::from_bits_retain(data.stx_mask).contains(StatxFlags::BTIME);
        (knows && data.stx_btime.tv_sec >= self.since).then_some((
            data.stx_dev_major,
            data.stx_dev_minor,
            data.stx_ino,
        ))
    }

    /// Notes what a socket is bound to, which the kernel says.
    pub(super) fn note<J: Evaluator>(&self, shared: &Shared<J>, call: &Call, socket: &OwnedFd) {
        use std::os::fd::AsFd;
        let Ok(own) = sys::socket::local_address(socket.as_fd()) else {
            return;
        };
        match Address::parse(own.as_bytes()) {
            Address::Abstract(name) => {
                let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
                if names.len() < SOCKET_LIMIT {
                    names.insert(name.to_vec());
                }
            }
            Address::Path(path) => {
                let found = argument_check::find(call.tid, path, None, &shared.tree.inspector);
                let Some(file) = found.ok().and_then(|file| self.identity(&file)) else {
                    return;
                };
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                if files.len() < SOCKET_LIMIT {
                    files.insert(file);
                }
            }
            _ => {}
        }
    }
}
