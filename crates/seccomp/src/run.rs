//! Interpreter for filters with the semantics of the kernel, for tests and for hosts that allow no filter.

use super::assemble::{AND, JA, JEQ, JGE, JGT, JSET, LD, RET};
use super::{Action, FilterProgram};

/// Input of a filter.
#[derive(Clone, Copy, Debug)]
pub struct SeccompData {
    /// The call number, with the x32 bit where it is set.
    pub number: u32,
    /// The audit architecture (`AUDIT_ARCH_*`).
    pub audit: u32,
    /// The argument registers.
    pub args: [u64; 6],
}

impl SeccompData {
    /// The word at an offset; `None` for an offset that our filters do not load.
    fn word(&self, offset: u32) -> Option<u32> {
        const ARGS: u32 = super::assemble::OFFSET_ARGS;
        match offset {
            super::assemble::OFFSET_NR => Some(self.number),
            super::assemble::OFFSET_ARCH => Some(self.audit),
            ARGS.. if offset.is_multiple_of(4) => {
                let index = usize::try_from((offset - ARGS) / 8).ok()?;
                let shift = if offset.is_multiple_of(8) { 0 } else { 32 };
                u32::try_from((self.args.get(index)? >> shift) & 0xffff_ffff).ok()
            }
            _ => None,
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterResult {
    /// The action that the filter returns.
    pub action: Action,
    /// Set if the filter loaded no argument, so that the kernel answers from its bitmap.
    pub constant: bool,
}

/// Runs a filter; `None` if the program does not come from this crate.
pub fn run(program: &FilterProgram, data: &SeccompData) -> Option<FilterResult> {
    let mut accumulator = 0;
    let mut constant = true;
    let mut index = 0;
    loop {
        let instruction = program.instructions().get(index)?;
        let k = instruction.k;
        index += 1;
        let holds = match instruction.code {
            LD => {
                accumulator = data.word(k)?;
                constant &= k < super::assemble::OFFSET_ARGS;
                continue;
            }
            AND => {
                accumulator &= k;
                continue;
            }
            JA => {
                index += usize::try_from(k).ok()?;
                continue;
            }
            RET => {
                let action = Action::from_raw(k)?;
                return Some(FilterResult { action, constant });
            }
            JEQ => accumulator == k,
            JGT => accumulator > k,
            JGE => accumulator >= k,
            JSET => accumulator & k != 0,
            _ => return None,
        };
        let skip = if holds {
            instruction.jt
        } else {
            instruction.jf
        };
        index += usize::from(skip);
    }
}
