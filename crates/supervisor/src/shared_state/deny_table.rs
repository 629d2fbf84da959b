//! Calls that are refused during unwatched intervals.

use abi::{Arch, Syscall};

use super::SharedState;
use super::layout::DenyFields;

/// Calls that the filter traps in order to have them refused. The keeper continues to refuse them
/// during unwatched intervals.
#[derive(Clone, Copy, Debug)]
pub struct DenyTable<'a>(&'a [DenyFields]);

impl SharedState {
    /// Returns the table of calls that are refused during unwatched intervals.
    pub fn deny_table(&self) -> DenyTable<'_> {
        DenyTable(&self.deny_table)
    }
}

impl DenyTable<'_> {
    /// Adds a call that is refused with an error number, in every architecture of the audit number.
    /// Returns false if the table is full.
    pub fn refuse(&self, audit: u32, nr: u32, errno: u16) -> bool {
        let call = pack(audit, nr);
        let mut entries = self.0.iter();
        let Some(entry) = entries.find(|entry| [0, call].contains(&entry.call.get())) else {
            return false;
        };
        // The number is set first: an entry is valid when its call is set.
        entry.errno.set(u64::from(errno));
        entry.call.set(call);
        true
    }

    /// Adds a call under every number by which it can be made on this kernel.
    pub fn refuse_everywhere(&self, call: Syscall, errno: u16) -> bool {
        let conventions = Arch::native().map_or(&Arch::ALL[..], Arch::of_kernel);
        conventions.iter().copied().all(|arch| {
            let number = call.number(arch);
            number.is_none_or(|number| self.refuse(arch.audit(), arch.raw_number(number), errno))
        })
    }

    /// Returns the error number with which a call is refused.
    pub(crate) fn refusal(&self, audit: u32, nr: u32) -> Option<i32> {
        let call = pack(audit, nr);
        let mut filled = self.0.iter().take_while(|entry| entry.call.get() != 0);
        let found = filled.find(|entry| entry.call.get() == call)?;
        i32::try_from(found.errno.get()).ok()
    }
}

fn pack(audit: u32, nr: u32) -> u64 {
    u64::from(audit) << 32 | u64::from(nr)
}

#[cfg(test)]
mod tests {
    use super::super::layout::DENY_LIMIT;
    use super::*;

    #[test]
    fn a_call_is_refused_by_all_its_numbers() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        let table = shared_state.deny_table();
        assert!(table.refuse_everywhere(Syscall::IO_URING_SETUP, 38));
        for arch in Arch::native().expect("a known one").of_kernel() {
            let refusal = |number| table.refusal(arch.audit(), arch.raw_number(number));
            assert_eq!(refusal(425), Some(38), "{arch:?}");
            assert_eq!(refusal(426), None, "{arch:?}");
        }
    }

    #[test]
    fn only_what_is_in_the_deny_table_is_refused() {
        let (shared_state, _file) = SharedState::create().expect("memory");
        let table = shared_state.deny_table();
        assert_eq!(table.refusal(1, 2), None);
        assert!(table.refuse(1, 2, 13));
        assert!(table.refuse(1, 3, 1));
        assert_eq!(
            (table.refusal(1, 2), table.refusal(1, 3)),
            (Some(13), Some(1))
        );
        assert_eq!(table.refusal(2, 2), None);
        let mut numbers = 0..;
        let mut next = || numbers.next().expect("endless");
        assert!((2..DENY_LIMIT).all(|_| table.refuse(9, next(), 1)));
        assert!(!table.refuse(10, 0, 1));
    }
}
