//! Runs a filter as the kernel does: where no filter can be installed, and to test it.

use super::assemble::{AND, JA, JEQ, JGE, JGT, JSET, LD, RET};
use super::{Action, FilterProgram};

/// What a filter is given.
#[derive(Clone, Copy, Debug)]
pub struct SeccompData {
    /// The call's number, with the bit of x32 where it is set.
    pub number: u32,
    /// The audit architecture (`AUDIT_ARCH_*`).
    pub audit: u32,
    /// The registers of the arguments.
    pub args: [u64; 6],
}

impl SeccompData {
    /// The word at an offset; `None` for one that our filters do not load.
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

/// How a run ended: the action and whether an argument was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterResult {
    /// What the filter answers.
    pub action: Action,
    /// No argument was looked at, so the kernel answers from its bitmap.
    pub constant: bool,
}

/// `None` if the program is none of ours.
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
