//! Assembler that emits instructions from the last to the first.
//!
//! All jumps of classic BPF go forward, so building backwards makes every target known when its jump is
//! emitted. Conditional jumps reach 255 instructions; farther targets are reached through an unconditional
//! jump.

use std::collections::HashMap;

use sys::seccomp::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD,
    BPF_RET, BPF_W, DATA_ARCH, DATA_NR, SockFilter,
};

use super::Action;

/// Load a 32-bit word of `struct seccomp_data`.
pub(super) const LD: u16 = BPF_LD | BPF_W | BPF_ABS;
/// Bitwise and with a constant.
pub(super) const AND: u16 = BPF_ALU | BPF_AND | BPF_K;
/// Jump always.
pub(super) const JA: u16 = BPF_JMP | BPF_JA;
/// Jump if equal.
pub(super) const JEQ: u16 = BPF_JMP | BPF_JEQ | BPF_K;
/// Jump if greater, unsigned.
pub(super) const JGT: u16 = BPF_JMP | BPF_JGT | BPF_K;
/// Jump if greater or equal, unsigned.
pub(super) const JGE: u16 = BPF_JMP | BPF_JGE | BPF_K;
/// Jump if any bit of the constant is set.
pub(super) const JSET: u16 = BPF_JMP | BPF_JSET | BPF_K;
/// Return a constant.
pub(super) const RET: u16 = BPF_RET | BPF_K;

/// Offset of the call number in `struct seccomp_data`.
pub(super) const OFFSET_NR: u32 = DATA_NR;
/// Offset of the audit architecture.
pub(super) const OFFSET_ARCH: u32 = DATA_ARCH;
/// Offset of the first argument.
pub(super) const OFFSET_ARGS: u32 = 16;

const REACH: usize = 255;

/// A position in the program, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// The instructions, last one first.
    reversed: Vec<SockFilter>,
    /// The last emitted copy of each return instruction.
    returns: HashMap<u32, Label>,
    /// The return instruction at each position that has one.
    is_return: HashMap<usize, u32>,
}

impl Assembler {
    /// Emits a return of `action`; reuses an earlier one that jumps can reach.
    pub(super) fn ret(&mut self, action: Action) -> Label {
        self.ret_raw(action.to_raw())
    }

    fn ret_raw(&mut self, raw: u32) -> Label {
        if let Some(label) = self.returns.get(&raw)
            // Leaves room for the jump itself and an intermediate jump.
            && self.reversed.len() - label.0 + 2 <= REACH
        {
            return *label;
        }
        let label = self.push(SockFilter {
            code: RET,
            jt: 0,
            jf: 0,
            k: raw,
        });
        self.returns.insert(raw, label);
        self.is_return.insert(label.0, raw);
        label
    }

    /// Emits a load of a word, which continues at `next`.
    pub(super) fn load(&mut self, offset: u32, next: Label) -> Label {
        self.straight(LD, offset, next)
    }

    /// Emits a mask of the loaded word, which continues at `next`.
    pub(super) fn and(&mut self, mask: u32, next: Label) -> Label {
        self.straight(AND, mask, next)
    }

    /// Emits a comparison of the loaded word with a constant.
    pub(super) fn jump(&mut self, code: u16, k: u32, then: Label, otherwise: Label) -> Label {
        if then == otherwise {
            return then;
        }
        // An intermediate jump for one target moves the other one farther away, so both are checked against
        // their maximum distance.
        let then = self.within_reach(then);
        let otherwise = self.within_reach(otherwise);
        let jt = self.distance(then);
        let jf = self.distance(otherwise);
        let narrow = "within_reach leaves room for the second stepping stone";
        self.push(SockFilter {
            code,
            jt: u8::try_from(jt).expect(narrow),
            jf: u8::try_from(jf).expect(narrow),
            k,
        })
    }

    /// Returns true if `label` is the last emitted instruction.
    pub(super) fn is_last(&self, label: Label) -> bool {
        self.reversed.len() == label.0 + 1
    }

    /// Returns the program in execution order.
    pub(super) fn finish(mut self) -> Vec<SockFilter> {
        self.reversed.reverse();
        self.reversed
    }

    fn straight(&mut self, code: u16, k: u32, next: Label) -> Label {
        if !self.is_last(next) {
            self.step(next);
        }
        self.push(SockFilter {
            code,
            jt: 0,
            jf: 0,
            k,
        })
    }

    fn within_reach(&mut self, target: Label) -> Label {
        if self.distance(target) < REACH {
            return target;
        }
        match self.is_return.get(&target.0) {
            Some(raw) => self.ret_raw(*raw),
            None => self.step(target),
        }
    }

    fn step(&mut self, target: Label) -> Label {
        let distance = u32::try_from(self.distance(target)).expect("programs are short");
        self.push(SockFilter {
            code: JA,
            jt: 0,
            jf: 0,
            k: distance,
        })
    }

    /// Number of instructions between the next emitted one and `target`.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - target.0 - 1
    }

    fn push(&mut self, instruction: SockFilter) -> Label {
        self.reversed.push(instruction);
        Label(self.reversed.len() - 1)
    }
}
