//! What happened to calls, as it is told.

/// What happened to calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EbpfCounters {
    /// Calls of planned numbers that the kernel's filter looked at.
    pub seen: u64,
    /// Rejected by their arguments or result, in the kernel.
    pub rejected_registers: u64,
    /// Rejected because their process is not watched, in the kernel.
    pub rejected_scope: u64,
    /// Rejected by their path, in the kernel.
    pub rejected_path: u64,
    /// Rejected by the name of the process, in the kernel.
    pub rejected_name: u64,
    /// Rejected by the ends of the connection, in the kernel.
    pub rejected_socket: u64,
    /// Rejected by being in a container, or in none, in the kernel.
    pub rejected_place: u64,
    /// Calls by an io_uring that rules ask for and that are no events.
    pub ring_calls: u64,
    /// Records that were sent.
    pub sent: u64,
    /// Records that were judged.
    pub judged: u64,
    /// How often several threads judged what had piled up.
    pub crowds: u64,
    /// Records that found no room: of calls that crowds cannot displace.
    pub lost_critical: u64,
    /// Of other calls.
    pub lost_bulk: u64,
    /// Of forks, execs and ends.
    pub lost_state: u64,
    /// Among the lost ones: of processes, or of users in their control groups, that had more of a ring than
    /// was free, so that what others did found room.
    pub lost_share: u64,
    /// Memory of callers that was not there.
    pub unreadable: u64,
    /// Records of which something was cut off.
    pub truncated: u64,
    /// Records that make no sense.
    pub malformed: u64,
    /// Calls that this program has no name for.
    pub unknown_calls: u64,
    /// Rules that stayed undecided.
    pub undecided: u64,
    /// Processes that are known.
    pub processes: u64,
    /// Processes that were forgotten for want of room.
    pub evicted: u64,
    /// Places that are known: cgroups and namespaces of processes, with their container.
    pub places: u64,
    /// Places that were forgotten for want of room.
    pub evicted_places: u64,
    /// Roots of processes whose users were forgotten for want of room.
    pub evicted_roots: u64,
}

impl EbpfCounters {
    /// Calls that were rejected in the kernel.
    pub fn rejected_in_kernel(&self) -> u64 {
        self.rejected_registers
            + self.rejected_scope
            + self.rejected_path
            + self.rejected_name
            + self.rejected_socket
            + self.rejected_place
    }

    /// Records that were lost.
    pub fn lost(&self) -> u64 {
        self.lost_critical + self.lost_bulk + self.lost_state
    }
}
