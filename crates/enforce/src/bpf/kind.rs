//! Numbers that the programs and this crate share (bpf/policy.h).

use std::fmt;

/// Kind of access to a path: `enum kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read = 0,
    Write = 1,
    Append = 2,
    Exec = 3,
    Connect = 4,
    Move = 5,
    Above = 6,
}

/// Kind of operation: `enum operation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Any change of the mount tree.
    Mount = 0,
    /// Unmounting.
    Umount = 1,
    /// Creation of a user namespace.
    UserNamespace = 2,
    /// Loading of a module or another kernel.
    KernelCode = 3,
    /// Loading of a BPF program.
    BpfProgram = 4,
    /// Attaching a filter to a socket.
    SocketFilter = 5,
    /// Handling of page faults in user space.
    Userfaultfd = 6,
}

impl Operation {
    const ALL: [Self; 7] = [
        Self::Mount,
        Self::Umount,
        Self::UserNamespace,
        Self::KernelCode,
        Self::BpfProgram,
        Self::SocketFilter,
        Self::Userfaultfd,
    ];

    /// The operation that a hook of data/operations.txt decides.
    pub(super) fn of_hook(name: &str) -> Option<Self> {
        Some(match name {
            "sb_mount" | "move_mount" | "sb_remount" | "sb_pivotroot" => Self::Mount,
            "sb_umount" => Self::Umount,
            "userns_create" => Self::UserNamespace,
            "kernel_read_file" | "kernel_load_data" | "kernel_module_request" => Self::KernelCode,
            "bpf" => Self::BpfProgram,
            "socket_setsockopt" => Self::SocketFilter,
            "inode_init_security_anon" => Self::Userfaultfd,
            _ => return None,
        })
    }

    pub(super) fn from_number(number: u64) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|at| Self::ALL.get(at).copied())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mount => "mount",
            Self::Umount => "umount",
            Self::UserNamespace => "user-namespace",
            Self::KernelCode => "kernel-code",
            Self::BpfProgram => "bpf-program",
            Self::SocketFilter => "socket-filter",
            Self::Userfaultfd => "userfaultfd",
        })
    }
}
