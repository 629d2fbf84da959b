//! The action on one call, and the code that selects it by the arguments.

use abi::{RegisterTest, TestOp, TestWidth};

use super::Action;
use super::assemble::{Assembler, JEQ, JGE, JGT, JSET, Label, OFFSET_ARGS};

/// The action on calls of one number.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Leaf {
    /// The same action for all arguments.
    Always(Action),
    /// The action of the first clause whose tests all hold.
    If {
        /// Clauses with at least one test each.
        clauses: Vec<Clause>,
        /// The action if no clause holds.
        otherwise: Action,
    },
}

/// Tests that must all hold, and the action if they do.
pub(super) type Clause = (Vec<RegisterTest>, Action);

impl Leaf {
    /// Builds a leaf. The first clause that holds decides; a clause without tests always holds. Clauses
    /// without an effect are omitted.
    pub(super) fn decide(given: Vec<Clause>, mut otherwise: Action) -> Self {
        let mut clauses: Vec<Clause> = Vec::with_capacity(given.len());
        for (tests, action) in given {
            if tests.is_empty() {
                otherwise = action;
                break;
            }
            if !clauses.iter().any(|(seen, _)| *seen == tests) {
                clauses.push((tests, action));
            }
        }
        while clauses
            .last()
            .is_some_and(|(_, action)| *action == otherwise)
        {
            clauses.pop();
        }
        match clauses.is_empty() {
            true => Leaf::Always(otherwise),
            false => Leaf::If { clauses, otherwise },
        }
    }
}

/// The word in the accumulator, by its offset in `struct seccomp_data`.
type Loaded = Option<u32>;

/// Emits the code of a leaf.
pub(super) fn emit(assembler: &mut Assembler, leaf: &Leaf) -> Label {
    match leaf {
        Leaf::Always(action) => assembler.ret(*action),
        Leaf::If { clauses, otherwise } => emit_clauses(assembler, clauses, *otherwise),
    }
}

fn emit_clauses(assembler: &mut Assembler, clauses: &[Clause], otherwise: Action) -> Label {
    // First pass forwards: the content of the accumulator at the beginning of a clause depends on the clause
    // before.
    let mut entry: Vec<Loaded> = Vec::with_capacity(clauses.len());
    let mut loaded = None;
    for (group, _) in clauses {
        entry.push(loaded);
        loaded = after_failure(group, loaded);
    }
    let mut miss = assembler.ret(otherwise);
    for ((group, action), loaded) in clauses.iter().zip(entry).rev() {
        miss = emit_group(assembler, *action, group, loaded, miss);
    }
    miss
}

fn emit_group(
    assembler: &mut Assembler,
    action: Action,
    group: &[RegisterTest],
    entry: Loaded,
    miss: Label,
) -> Label {
    let mut loaded: Vec<Loaded> = Vec::with_capacity(group.len());
    let mut state = entry;
    for test in group {
        loaded.push(state);
        state = after_test(test);
    }
    let mut hit = assembler.ret(action);
    for (test, loaded) in group.iter().zip(loaded).rev() {
        hit = emit_test(assembler, test, loaded, hit, miss);
    }
    hit
}

/// The content of the accumulator after a test, if it is the same on all exits.
fn after_test(test: &RegisterTest) -> Loaded {
    match (test.width, test.op) {
        (TestWidth::Full64, _) | (_, TestOp::AllBits | TestOp::MaskedEq { .. }) => None,
        (TestWidth::Low32, _) => Some(low_offset(test)),
    }
}

fn after_failure(group: &[RegisterTest], _entry: Loaded) -> Loaded {
    let mut states = group.iter().map(after_test);
    let first = states.next()?;
    states.all(|state| state == first).then_some(first)?
}

fn low_offset(test: &RegisterTest) -> u32 {
    OFFSET_ARGS + 8 * u32::from(test.arg)
}

fn emit_test(
    assembler: &mut Assembler,
    test: &RegisterTest,
    loaded: Loaded,
    hit: Label,
    miss: Label,
) -> Label {
    let low = low_half(test.value);
    let offset = low_offset(test);
    match test.width {
        TestWidth::Low32 => {
            let op = match test.op {
                TestOp::MaskedEq { mask } => HalfOp::MaskedEq(low_half(mask)),
                op => half_op(op),
            };
            let compare = emit_half(assembler, op, low, hit, miss);
            if loaded == Some(offset) {
                compare
            } else {
                assembler.load(offset, compare)
            }
        }
        TestWidth::Full64 => emit_full(assembler, test, hit, miss),
    }
}

/// A comparison of 32 bits.
#[derive(Clone, Copy)]
enum HalfOp {
    AllBits,
    AnyBit,
    Eq,
    Ge,
    Le,
    MaskedEq(u32),
    Ne,
    NoBit,
}

fn half_op(op: TestOp) -> HalfOp {
    match op {
        TestOp::AllBits => HalfOp::AllBits,
        TestOp::AnyBit => HalfOp::AnyBit,
        TestOp::Eq => HalfOp::Eq,
        TestOp::Ge => HalfOp::Ge,
        TestOp::Le => HalfOp::Le,
        TestOp::MaskedEq { mask } => HalfOp::MaskedEq(low_half(mask)),
        TestOp::Ne => HalfOp::Ne,
        TestOp::NoBit => HalfOp::NoBit,
    }
}

fn emit_half(assembler: &mut Assembler, op: HalfOp, value: u32, hit: Label, miss: Label) -> Label {
    match op {
        HalfOp::AllBits => emit_half(assembler, HalfOp::MaskedEq(value), value, hit, miss),
        HalfOp::AnyBit => assembler.jump(JSET, value, hit, miss),
        HalfOp::Eq => assembler.jump(JEQ, value, hit, miss),
        HalfOp::Ge => assembler.jump(JGE, value, hit, miss),
        HalfOp::Le => assembler.jump(JGT, value, miss, hit),
        HalfOp::MaskedEq(mask) => {
            let compare = assembler.jump(JEQ, value, hit, miss);
            assembler.and(mask, compare)
        }
        HalfOp::Ne => assembler.jump(JEQ, value, miss, hit),
        HalfOp::NoBit => assembler.jump(JSET, value, miss, hit),
    }
}

/// A comparison of both halves, upper half first.
fn emit_full(assembler: &mut Assembler, test: &RegisterTest, hit: Label, miss: Label) -> Label {
    let (high, low) = (high_half(test.value), low_half(test.value));
    let offset = low_offset(test);
    let mut half = |op: HalfOp, value, hit, miss| {
        let compare = emit_half(assembler, op, value, hit, miss);
        assembler.load(offset, compare)
    };
    match test.op {
        TestOp::Eq => {
            let lower = half(HalfOp::Eq, low, hit, miss);
            upper(assembler, offset, HalfOp::Eq, high, lower, miss)
        }
        TestOp::Ne => {
            let lower = half(HalfOp::Ne, low, hit, miss);
            upper(assembler, offset, HalfOp::Ne, high, hit, lower)
        }
        TestOp::AllBits => {
            let lower = half(HalfOp::AllBits, low, hit, miss);
            upper(assembler, offset, HalfOp::AllBits, high, lower, miss)
        }
        TestOp::AnyBit => {
            let lower = half(HalfOp::AnyBit, low, hit, miss);
            upper(assembler, offset, HalfOp::AnyBit, high, hit, lower)
        }
        TestOp::NoBit => {
            let lower = half(HalfOp::NoBit, low, hit, miss);
            upper(assembler, offset, HalfOp::NoBit, high, lower, miss)
        }
        TestOp::MaskedEq { mask } => {
            let lower = half(HalfOp::MaskedEq(low_half(mask)), low, hit, miss);
            upper(
                assembler,
                offset,
                HalfOp::MaskedEq(high_half(mask)),
                high,
                lower,
                miss,
            )
        }
        TestOp::Ge | TestOp::Le => {
            let (op, above, below) = match test.op {
                TestOp::Ge => (HalfOp::Ge, hit, miss),
                _ => (HalfOp::Le, miss, hit),
            };
            let lower = half(op, low, hit, miss);
            let equal = assembler.jump(JEQ, high, lower, below);
            let greater = assembler.jump(JGT, high, above, equal);
            assembler.load(offset + 4, greater)
        }
    }
}

fn upper(
    assembler: &mut Assembler,
    offset: u32,
    op: HalfOp,
    value: u32,
    hit: Label,
    miss: Label,
) -> Label {
    let compare = emit_half(assembler, op, value, hit, miss);
    assembler.load(offset + 4, compare)
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits")
}

fn high_half(value: u64) -> u32 {
    u32::try_from(value >> 32).expect("the upper half has 32 bits")
}
