//! Projection of atoms onto register arguments.
//!
//! Every result is an over-approximation: a disjunction of conjunctions of register tests that holds whenever
//! the atom can. One empty conjunction holds always; no conjunction never.

use std::collections::BTreeSet;

use abi::{Arch, FlagSet, RegisterTest, Syscall, TestOp, TestWidth, flags::Style};
use bumpalo::Bump;
use event::field::{Field, Source};
use event::{DescriptorSource, EventKind, NoSystemInfo, ParamSource, ParamType, Value};

use crate::compile::Ternary;
use crate::compile::atom::{Atom, Check, Right};
use crate::compile::test::{Context, Order, Test};
use crate::condition::ast::Op;

/// A disjunction of groups of register tests.
pub(super) type Groups = Vec<Vec<RegisterTest>>;

/// Returns alternatives that always hold.
pub(super) fn always() -> Groups {
    vec![Vec::new()]
}

/// Bits of `open` flags that hold the access mode.
const ACCESS_MODE: u64 = 3;

/// Location of a number in the registers of a call.
#[derive(Clone, Copy)]
struct Register {
    arg: u8,
    width: TestWidth,
    signed: bool,
}

impl Register {
    fn of(call: Syscall, arg: u8, signed: bool) -> Option<Self> {
        let spec = call.args().get(usize::from(arg))?;
        let width = if spec.is_low32() {
            TestWidth::Low32
        } else {
            TestWidth::Full64
        };
        Some(Self { arg, width, signed })
    }

    fn test(self, op: TestOp, value: u64) -> RegisterTest {
        RegisterTest {
            arg: self.arg,
            width: self.width,
            op,
            value,
        }
    }

    fn bits(self) -> u32 {
        match self.width {
            TestWidth::Full64 => 64,
            TestWidth::Low32 => 32,
        }
    }

    /// Returns the least and the greatest number that fit.
    fn domain(self) -> (i128, i128) {
        if self.signed {
            let half = 1_i128 << (self.bits() - 1);
            return (-half, half - 1);
        }
        (0, (1_i128 << self.bits()) - 1)
    }

    /// Returns tests for the numbers in ranges.
    fn groups(self, ranges: &[(i128, i128)]) -> Groups {
        let domain = self.domain();
        let mut groups = Groups::new();
        for (low, high) in ranges {
            if (*low, *high) == domain {
                return always();
            }
            // As unsigned numbers, negative ones are above all others.
            if *low < 0 && *high >= 0 {
                groups.push(self.range(*low, -1));
                groups.push(self.range(0, *high));
            } else {
                groups.push(self.range(*low, *high));
            }
        }
        groups
    }

    fn range(self, low: i128, high: i128) -> Vec<RegisterTest> {
        let greatest = (1_i128 << self.bits()) - 1;
        let raw =
            |number: i128| u64::try_from(number & greatest).expect("masked to at most 64 bits");
        let (low, high) = (raw(low), raw(high));
        if low == high {
            return vec![self.test(TestOp::Eq, low)];
        }
        let mut tests = Vec::new();
        if low > 0 {
            tests.push(self.test(TestOp::Ge, low));
        }
        if i128::from(high) < greatest {
            tests.push(self.test(TestOp::Le, high));
        }
        tests
    }
}

/// Projects an atom (or its negation, if `negated`) onto the registers of `call`.
pub(super) fn project(
    atom: &Atom,
    field: Option<&Field>,
    negated: bool,
    kind: EventKind,
    call: Syscall,
) -> Groups {
    let (Some(field), Check::Test(test)) = (field, &atom.check) else {
        return always();
    };
    // Applies to a present value.
    let wanted = atom.inverted == negated;
    let projected = match field.depends_on() {
        Source::RawParam | Source::Param => param(field, atom, test, wanted, kind, call),
        Source::OpenFlags => open_access(field, test, wanted, kind, call),
        _ if field.spec.name == "fd.num" && !negated => descriptor_number(test, wanted, kind, call),
        _ if field.spec.name == "fd.name_changed" && !negated => {
            passed_address(test, wanted, kind, call)
        }
        _ if is_result(field, kind) && !negated => duplicate(test, wanted, call),
        _ => None,
    };
    projected.unwrap_or_else(always)
}

/// Returns true if a field is the call's return value.
pub(super) fn is_result(field: &Field, kind: EventKind) -> bool {
    if let Some(at) = field.param_index(kind) {
        return field.depends_on() == Source::RawParam
            && kind.spec().params[at].source == ParamSource::Result;
    }
    match field.spec.name {
        "evt.rawres" => true,
        "fd.num" => matches!(kind.spec().descriptor, DescriptorSource::Duplicated(_)),
        _ => false,
    }
}

fn param(
    field: &Field,
    atom: &Atom,
    test: &Test,
    wanted: bool,
    kind: EventKind,
    call: Syscall,
) -> Option<Groups> {
    let at = field.param_index(kind)?;
    let spec = &kind.spec().params[at];
    if spec.source == ParamSource::Result && is_result(field, kind) && wanted {
        return duplicate(test, wanted, call);
    }
    let ParamSource::Register(arg) = spec.source else {
        return None;
    };
    match (field.depends_on(), spec.ty) {
        (Source::RawParam, ParamType::Fd | ParamType::Int | ParamType::Pid) => {
            numbers(test, wanted, Register::of(call, arg, true)?)
        }
        (
            Source::RawParam,
            ParamType::Uint
            | ParamType::Hex
            | ParamType::Uid
            | ParamType::Gid
            | ParamType::Signal
            | ParamType::Flags(_)
            | ParamType::Enum(_),
        ) => numbers(test, wanted, Register::of(call, arg, false)?),
        (Source::Param, ParamType::Flags(set) | ParamType::Enum(set)) => {
            let register = Register::of(call, arg, false)?;
            match set.style() {
                Style::Enum => names(atom, test, wanted, set, register),
                Style::Bits if wanted => flag_names(atom, set, register),
                Style::Bits => None,
            }
        }
        // Modes print as names, including those of file types.
        (Source::Param, ParamType::Mode) if wanted => {
            flag_names(atom, &abi::flags::MODE, Register::of(call, arg, false)?)
        }
        _ => None,
    }
}

/// Returns tests for the numbers that a test accepts (`wanted`) or rejects.
fn numbers(test: &Test, wanted: bool, register: Register) -> Option<Groups> {
    let accepted = ranges(test, register.domain())?;
    let ranges = if wanted {
        accepted
    } else {
        complement(&accepted, register.domain())
    };
    Some(register.groups(&ranges))
}

/// Returns the numbers of a domain that a test accepts, as ascending ranges that do not touch.
pub(super) fn ranges(test: &Test, (least, greatest): (i128, i128)) -> Option<Vec<(i128, i128)>> {
    let ranges = match test {
        Test::Exists => vec![(least, greatest)],
        Test::Numbers(numbers) => numbers.iter().map(|number| (*number, *number)).collect(),
        Test::Number(order, number) => vec![match order {
            Order::Equal => (*number, *number),
            Order::Less => (least, number - 1),
            Order::LessEqual => (least, *number),
            Order::Greater => (number + 1, greatest),
            Order::GreaterEqual => (*number, greatest),
        }],
        Test::Not(test) => complement(&ranges(test, (least, greatest))?, (least, greatest)),
        _ => return None,
    };
    let cut = ranges
        .into_iter()
        .map(|(low, high)| (low.max(least), high.min(greatest)));
    Some(cut.filter(|(low, high)| low <= high).collect())
}

/// Returns the complement of ascending ranges in a domain.
fn complement(ranges: &[(i128, i128)], (least, greatest): (i128, i128)) -> Vec<(i128, i128)> {
    let mut rest = Vec::new();
    let mut next = least;
    for (low, high) in ranges {
        if next < *low {
            rest.push((next, low - 1));
        }
        next = high + 1;
    }
    if next <= greatest {
        rest.push((next, greatest));
    }
    rest
}

/// Projects a comparison of a register's named value as text.
fn names(
    atom: &Atom,
    test: &Test,
    wanted: bool,
    set: &FlagSet,
    register: Register,
) -> Option<Groups> {
    // A value without a name prints as a decimal number.
    if !is_about_names(atom) {
        return None;
    }
    let arch = Arch::native()?;
    let arena = Bump::new();
    let context = Context {
        world: &NoSystemInfo,
        arena: &arena,
    };
    let accepts = |name: &str| test.holds(&Value::text(name), context) == Ternary::True;
    let named = set
        .entries()
        .iter()
        .map(|entry| (entry.value(arch), entry.name()));
    let first = named.filter(|(value, name)| set.name_of(arch, *value) == Some(name));
    let accepted = first
        .filter(|(_, name)| accepts(name))
        .map(|(value, _)| value);
    if wanted {
        return Some(
            accepted
                .map(|value| vec![register.test(TestOp::Eq, value)])
                .collect(),
        );
    }
    Some(vec![
        accepted
            .map(|value| register.test(TestOp::Ne, value))
            .collect(),
    ])
}

/// Projects a comparison of a flags register as text: `O_WRONLY|O_CREAT`.
fn flag_names(atom: &Atom, set: &FlagSet, register: Register) -> Option<Groups> {
    if !is_about_names(atom) {
        return None;
    }
    let arch = Arch::native()?;
    let Right::Constants(constants) = &atom.key.right else {
        return None;
    };
    let mut groups = Groups::new();
    for constant in constants {
        let text = constant.as_str()?;
        match atom.key.op? {
            Op::Contains | Op::IContains if !text.contains('|') => {
                let fold = atom.key.op == Some(Op::IContains);
                let has = |name: &str| match fold {
                    true => name
                        .to_ascii_lowercase()
                        .contains(&text.to_ascii_lowercase()),
                    false => name.contains(text),
                };
                let named = set.entries().iter().filter(|entry| has(entry.name()));
                groups.extend(named.map(|entry| all_bits(register, entry.value(arch))));
            }
            Op::In => {
                let mut values = text.split('|').map(|name| set.value_of(arch, name));
                // A text that contains an unknown name is never printed.
                if let Some(bits) = values.try_fold(0, |bits, value| Some(bits | value?)) {
                    groups.push(all_bits(register, bits));
                }
            }
            _ => return None,
        }
    }
    Some(groups)
}

/// Tests that all bits of a flag are set, without which its name is not printed. The value 0 (`O_RDONLY`)
/// gives no test.
fn all_bits(register: Register, bits: u64) -> Vec<RegisterTest> {
    if bits == 0 {
        Vec::new()
    } else {
        vec![register.test(TestOp::AllBits, bits)]
    }
}

/// Returns true if no decimal number satisfies a comparison with texts.
fn is_about_names(atom: &Atom) -> bool {
    let Right::Constants(constants) = &atom.key.right else {
        return false;
    };
    let simple = matches!(
        atom.key.op,
        Some(Op::In | Op::Ne | Op::Contains | Op::IContains | Op::StartsWith | Op::EndsWith)
    );
    let names = |text: &[u8]| text.iter().any(|byte| !byte.is_ascii_digit());
    simple && constants.iter().all(|constant| names(constant.as_bytes()))
}

/// Projects `evt.is_open_read` and `evt.is_open_write`.
fn open_access(
    field: &Field,
    test: &Test,
    wanted: bool,
    kind: EventKind,
    call: Syscall,
) -> Option<Groups> {
    let DescriptorSource::Opened { flags, .. } = kind.spec().descriptor else {
        return None;
    };
    let ParamSource::Register(arg) = kind.spec().params[usize::from(flags)].source else {
        return None;
    };
    let modes: &[u64] = match field.spec.name {
        "evt.is_open_read" => &[0, 2],
        "evt.is_open_write" => &[1, 2],
        _ => return None,
    };
    let Test::Bool(expected) = test else {
        return None;
    };
    let register = Register::of(call, arg, false)?;
    let holds = |mode: &u64| modes.contains(mode) == (*expected == wanted);
    let one = |mode| vec![register.test(TestOp::MaskedEq { mask: ACCESS_MODE }, mode)];
    Some((0..=ACCESS_MODE).filter(holds).map(one).collect())
}

/// Projects `fd.num` for calls on an open descriptor. A descriptor that is not open has no number, so the
/// negation gives no test.
fn descriptor_number(test: &Test, wanted: bool, kind: EventKind, call: Syscall) -> Option<Groups> {
    match kind.spec().descriptor {
        DescriptorSource::Argument(arg)
        | DescriptorSource::Addressed { fd: arg, .. }
        | DescriptorSource::Message { fd: arg, .. } => {
            numbers(test, wanted, Register::of(call, arg, true)?)
        }
        DescriptorSource::Duplicated(_) => duplicate(test, wanted, call),
        _ => None,
    }
}

/// Projects `fd.name_changed`: a call changes a socket's name only if it passes an address.
fn passed_address(test: &Test, wanted: bool, kind: EventKind, call: Syscall) -> Option<Groups> {
    let DescriptorSource::Addressed { address, .. } = kind.spec().descriptor else {
        return None;
    };
    let Test::Bool(expected) = test else {
        return None;
    };
    if *expected != wanted {
        return None;
    }
    Some(vec![vec![
        Register::of(call, address, false)?.test(TestOp::Ne, 0),
    ]])
}

/// Projects the result of dup2 and dup3: the requested descriptor, or an error.
fn duplicate(test: &Test, wanted: bool, call: Syscall) -> Option<Groups> {
    let (Syscall::DUP2 | Syscall::DUP3) = call else {
        return None;
    };
    let register = Register::of(call, 1, true)?;
    let accepted = ranges(test, register.domain())?;
    let accepted = if wanted {
        accepted
    } else {
        complement(&accepted, register.domain())
    };
    // Errors are negative, and no register shows them in advance.
    if accepted.iter().any(|(low, _)| *low < 0) {
        return None;
    }
    Some(register.groups(&accepted))
}

/// Returns whether a comparison of the result holds for success only, and whether it holds for failure only.
pub(super) fn signs(test: &Test) -> Option<(bool, bool)> {
    let whole = (i128::from(i64::MIN), i128::from(i64::MAX));
    let ranges = ranges(test, whole)?;
    let succeeds = ranges.iter().all(|(low, _)| *low >= 0);
    let fails = ranges.iter().all(|(_, high)| *high < 0);
    Some((succeeds, fails))
}

/// Returns the results of successful calls for which a comparison holds, if they are few and small.
pub(super) fn few_results(test: &Test) -> Option<BTreeSet<u8>> {
    const SMALL: i128 = 63;
    let ranges = ranges(test, (0, i128::from(i64::MAX)))?;
    if ranges.iter().any(|(_, high)| *high > SMALL) {
        return None;
    }
    let results = ranges.into_iter().flat_map(|(low, high)| low..=high);
    Some(
        results
            .filter_map(|result| u8::try_from(result).ok())
            .collect(),
    )
}

/// Returns the errors of failed calls for which a comparison of the result holds, if they are few.
pub(super) fn few_errors(test: &Test) -> Option<BTreeSet<u8>> {
    const GREATEST: i128 = 127;
    let ranges = ranges(test, (i128::from(i64::MIN), -1))?;
    if ranges.iter().any(|(low, _)| *low < -GREATEST) {
        return None;
    }
    let errors = ranges.into_iter().flat_map(|(low, high)| low..=high);
    Some(
        errors
            .filter_map(|result| u8::try_from(-result).ok())
            .collect(),
    )
}

/// Returns true if a comparison of the result holds for at most the standard descriptors 0, 1 and 2.
pub(super) fn is_stdio(atom: &Atom, field: Option<&Field>, negated: bool, kind: EventKind) -> bool {
    let (Some(field), Check::Test(test)) = (field, &atom.check) else {
        return false;
    };
    if !is_result(field, kind) || negated || atom.inverted {
        return false;
    }
    let whole = (i128::from(i64::MIN), i128::from(i64::MAX));
    ranges(test, whole)
        .is_some_and(|ranges| ranges.iter().all(|(low, high)| *low >= 0 && *high <= 2))
}
