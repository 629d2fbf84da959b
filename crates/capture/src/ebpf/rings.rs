//! Table of io_uring operations for the programs, with the number of the corresponding call.

use abi::{Arch, RING_OPERATIONS};

/// `RING_OPERATIONS` of bpf/record.h.
const OPERATIONS: usize = 256;

/// Returns the name of an operation.
pub(super) fn name(operation: u32) -> &'static str {
    let mut all = RING_OPERATIONS.iter();
    let named = all.find(|known| u32::from(known.number) == operation);
    named.map_or("another", |known| known.name)
}

/// Encodes the calls by operation for the programs: one more than the number, 0 if there is none.
pub(super) fn calls() -> Vec<u8> {
    let arch = Arch::native().unwrap_or(Arch::X86_64);
    let mut numbers = [0_u16; OPERATIONS];
    for operation in RING_OPERATIONS {
        // Such calls have small numbers.
        let number = operation.calls.first().and_then(|call| call.number(arch));
        let number = number.and_then(|number| u16::try_from(number).ok());
        numbers[usize::from(operation.number)] = number.map_or(0, |number| number + 1);
    }
    numbers.into_iter().flat_map(u16::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_with_a_call_has_the_number_of_one_of_this_machine() {
        let calls = calls();
        let native = Arch::native().expect("the tests' machine has calls");
        for operation in RING_OPERATIONS {
            let at = 2 * usize::from(operation.number);
            let number = u16::from_ne_bytes([calls[at], calls[at + 1]]);
            let expected = operation.calls.first().map(|call| {
                let number = call.number(native);
                number.unwrap_or_else(|| panic!("{call} has no number here")) + 1
            });
            assert_eq!(
                u32::from(number),
                expected.unwrap_or(0),
                "{}",
                operation.name
            );
        }
    }
}
