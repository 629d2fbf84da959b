//! Runs a filter as the kernel does, to test it against the plan.

use super::assemble::{AND, JA, JEQ, JGE, JGT, JSET, LD, RET};
use super::{Action, FilterProgram};

/// What a filter is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeccompData {
    pub(super) number: u32,
    pub(super) audit: u32,
    pub(super) args: [u64; 6],
}

impl SeccompData {
    fn word(&self, offset: u32) -> u32 {
        let shift = |value: u64, upper: bool| {
            u32::try_from((value >> if upper { 32 } else { 0 }) & 0xffff_ffff).unwrap()
        };
        match offset {
            0 => self.number,
            4 => self.audit,
            16..64 => {
                assert_eq!(offset % 4, 0, "seccomp loads aligned words only");
                let index = usize::try_from((offset - 16) / 8).unwrap();
                shift(self.args[index], !offset.is_multiple_of(8))
            }
            _ => panic!("load at {offset}"),
        }
    }
}

/// How a run ended: the action and whether an argument was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) action: Action,
    pub(super) constant: bool,
}

pub(super) fn run(program: &FilterProgram, data: &SeccompData) -> Verdict {
    let mut accumulator = 0;
    let mut constant = true;
    let mut index = 0;
    loop {
        let instruction = program.instructions()[index];
        let k = instruction.k;
        index += 1;
        let holds = match instruction.code {
            LD => {
                accumulator = data.word(k);
                constant &= k < 16;
                continue;
            }
            AND => {
                accumulator &= k;
                continue;
            }
            JA => {
                index += usize::try_from(k).unwrap();
                continue;
            }
            RET => {
                return Verdict {
                    action: Action::from_raw(k).unwrap(),
                    constant,
                };
            }
            JEQ => accumulator == k,
            JGT => accumulator > k,
            JGE => accumulator >= k,
            JSET => accumulator & k != 0,
            code => panic!("operation {code:#x}"),
        };
        index += usize::from(if holds {
            instruction.jt
        } else {
            instruction.jf
        });
    }
}
