//! Public counters of calls and records.

/// Totals since the start of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EbpfCounters {
    /// Calls of planned numbers that the kernel's filter inspected.
    pub seen: u64,
    /// Calls rejected in the kernel by their arguments or result.
    pub rejected_registers: u64,
    /// Calls rejected in the kernel because their process is not watched.
    pub rejected_scope: u64,
    /// Calls rejected in the kernel by their path.
    pub rejected_path: u64,
    /// Calls rejected in the kernel by the name of the process.
    pub rejected_name: u64,
    /// Calls rejected in the kernel by the ends of the connection.
    pub rejected_socket: u64,
    /// Calls rejected in the kernel by being in a container, or in none.
    pub rejected_container: u64,
    /// Calls through an io_uring that rules ask for and that are no events.
    pub ring_calls: u64,
    /// Records sent.
    pub sent: u64,
    /// Records evaluated.
    pub evaluated: u64,
    /// Number of times that several threads evaluated waiting records.
    pub crowds: u64,
    /// Records lost from the critical ring, which crowds of other calls cannot fill.
    pub lost_critical: u64,
    /// Records lost from the bulk ring.
    pub lost_bulk: u64,
    /// Records of forks, execs and ends lost.
    pub lost_state: u64,
    /// Lost records of processes, or of users in their control groups, that had more of a ring than was free,
    /// so that other processes' records found room.
    pub lost_share: u64,
    /// Reads of callers' memory that was not resident.
    pub unreadable: u64,
    /// Records with truncated data.
    pub truncated: u64,
    /// Malformed records.
    pub malformed: u64,
    /// Calls that this program does not know by name.
    pub unknown_calls: u64,
    /// Rules left undecided because data was unavailable.
    pub undecided: u64,
    /// Processes in the table.
    pub processes: u64,
    /// Processes dropped because the table was full.
    pub evicted: u64,
    /// Places in the table: cgroups and namespaces of processes, with their container.
    pub places: u64,
    /// Places dropped because the table was full.
    pub evicted_container_keys: u64,
    /// Roots of processes whose users were dropped because the table was full.
    pub evicted_roots: u64,
}

impl EbpfCounters {
    /// Returns the number of calls rejected in the kernel.
    pub fn rejected_in_kernel(&self) -> u64 {
        self.rejected_registers
            + self.rejected_scope
            + self.rejected_path
            + self.rejected_name
            + self.rejected_socket
            + self.rejected_container
    }

    /// Returns the number of lost records.
    pub fn lost(&self) -> u64 {
        self.lost_critical + self.lost_bulk + self.lost_state
    }
}
