//! Action for each call number of an architecture.

use std::ops::Range;

use abi::arch::{ARM_PRIVATE, ARM_PRIVATE_LEN};
use abi::{Arch, ArgKind, Errno, RegisterTest, Syscall, TestWidth};
use event::{CallPlan, Plan, Reason};
use policy::compile::seccomp::{Action as Denial, Profile};

use super::leaf::Clause;
use super::{Action, Denials, FilterOptions, Leaf, SpecialCall};

/// Call numbers from `first` up to the first number of the next segment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Segment {
    pub(super) first: u32,
    pub(super) leaf: Leaf,
}

/// Numbers in the tables are far lower but for the private ones of 32-bit Arm; other numbers from here on are
/// unknown without a lookup.
const NUMBER_LIMIT: u32 = 1024;

const EPERM: Action = Action::Errno(1);
const ENOSYS: Action = Action::Errno(38);

/// Input of the filter compiler: the interest plan and the policy.
pub(super) struct Merged<'a> {
    pub(super) plan: &'a Plan,
    pub(super) profile: &'a Profile,
    pub(super) options: &'a FilterOptions,
}

impl Merged<'_> {
    /// The action for calls of an architecture without a table.
    pub(super) fn foreign(&self) -> Action {
        match self.refuses(None) {
            true => self.refusal_of_foreign(),
            false => self.options.planned,
        }
    }

    /// Returns true if all calls of an architecture are refused.
    fn refuses(&self, arch: Option<Arch>) -> bool {
        self.profile.refuse_foreign && arch != Some(self.options.native)
    }

    /// Reports refused foreign calls if the policy reports any denial: the program may have attempted a
    /// denied call.
    fn refusal_of_foreign(&self) -> Action {
        match self.reports() && self.profile.reports() {
            true => Action::Notify,
            false => EPERM,
        }
    }

    /// Returns true if there is a listener to report to.
    fn reports(&self) -> bool {
        self.options.planned == Action::Notify
    }

    /// The action for unknown numbers: calls of future kernels may do what a policy denies, in a way that the
    /// policy cannot name.
    fn unknown(&self, arch: Arch) -> Action {
        match (self.refuses(Some(arch)), self.profile.refuse_foreign) {
            (true, _) => self.refusal_of_foreign(),
            (false, true) => ENOSYS,
            (false, false) => self.options.unknown_numbers,
        }
    }
}

/// All numbers of an audit architecture, in order, with equal neighbours merged.
pub(super) fn segments(merged: &Merged<'_>, arch: Arch) -> Vec<Segment> {
    by_number(arch, |table, number| {
        let decode = |number| abi::arch::decode(table.audit(), table.raw_number(number));
        let call = number.and_then(decode).and_then(|(_, call)| call);
        match call {
            Some(call) => leaf_of(merged, table, call),
            None => Leaf::Always(merged.unknown(table)),
        }
    })
}

/// Segments of an audit architecture. `leaf` returns the leaf for a number of a table; `None` stands for the
/// numbers above all tables.
pub(super) fn by_number(arch: Arch, leaf: impl Fn(Arch, Option<u32>) -> Leaf) -> Vec<Segment> {
    // x32 calls come with the audit value of x86-64 and a bit in the number.
    let tables: &[Arch] = match arch {
        Arch::X86_64 => &[Arch::X86_64, Arch::X32],
        arch => &[arch],
    };
    let mut segments: Vec<Segment> = Vec::new();
    let mut add = |first, leaf: Leaf| {
        if segments.last().is_none_or(|last| last.leaf != leaf) {
            segments.push(Segment { first, leaf });
        }
    };
    for table in tables {
        let mut add_range = |numbers: Range<u32>| {
            let end = numbers.end;
            for number in numbers {
                add(table.raw_number(number), leaf(*table, Some(number)));
            }
            add(table.raw_number(end), leaf(*table, None));
        };
        add_range(0..NUMBER_LIMIT);
        if *table == Arch::Arm {
            add_range(ARM_PRIVATE..ARM_PRIVATE + ARM_PRIVATE_LEN);
        }
    }
    segments
}

fn leaf_of(merged: &Merged<'_>, arch: Arch, call: Syscall) -> Leaf {
    let options = merged.options;
    let special = match call {
        Syscall::CLONE3 => options.clone3,
        Syscall::IO_URING_ENTER | Syscall::IO_URING_REGISTER => options.io_uring,
        _ => SpecialCall::AsPlanned,
    };
    let planned = merged.plan.calls.get(&call);
    let is_refused = match special {
        SpecialCall::AsPlanned => false,
        SpecialCall::Refuse => true,
        SpecialCall::RefuseUnlessRule => !planned.is_some_and(named_by_rule),
    };
    let planned = match is_refused {
        true => Vec::new(),
        false => planned_clauses(merged, arch, call),
    };
    if merged.refuses(Some(arch)) {
        let listened = if merged.reports() {
            planned
        } else {
            Vec::new()
        };
        return Leaf::decide(listened, merged.refusal_of_foreign());
    }
    let [strict, reported, refused, watched] = denials(merged, arch, call);
    // A tracer only observes: refused calls must not reach it.
    let [next, last] = match merged.reports() {
        true => [planned, refused],
        false => [refused, planned],
    };
    let clauses = [strict, reported, next, last, watched]
        .into_iter()
        .flatten();
    let otherwise = if is_refused { ENOSYS } else { Action::Allow };
    Leaf::decide(clauses.collect(), otherwise)
}

fn planned_clauses(merged: &Merged<'_>, arch: Arch, call: Syscall) -> Vec<Clause> {
    let planned = merged.plan.calls.get(&call);
    let groups = planned.into_iter().flat_map(|planned| &planned.any_of);
    let adapted = groups.map(|group| adapt(group, arch, call));
    let multiplexed = multiplexed(merged.plan, arch, call);
    let all = adapted.chain(multiplexed);
    all.map(|group| (group, merged.options.planned)).collect()
}

/// The policy's clauses for a call, strictest first: those that end or signal the caller, those that report,
/// those that refuse silently, and those that only watch.
fn denials(merged: &Merged<'_>, arch: Arch, call: Syscall) -> [Vec<Clause>; 4] {
    let [mut strict, mut reported, mut refused, mut watched] = [const { Vec::new() }; 4];
    for rule in merged.profile.of(call) {
        let tests = adapt(&rule.when, arch, call);
        match rule.action {
            Denial::KillProcess => strict.push((tests, Action::KillProcess)),
            Denial::KillThread => strict.push((tests, Action::KillThread)),
            Denial::Trap => strict.push((tests, Action::Trap)),
            Denial::RefuseAndReport(_) if merged.reports() => {
                reported.push((tests, Action::Notify));
            }
            Denial::Report if merged.reports() => reported.push((tests, Action::Notify)),
            Denial::Watch if merged.reports() => watched.push((tests, Action::Notify)),
            Denial::Report | Denial::Watch => {}
            Denial::Refuse(_) if merged.options.denials == Denials::Held => {
                reported.push((tests, Action::Notify));
            }
            Denial::Refuse(errno) | Denial::RefuseAndReport(errno) => {
                refused.push((tests, refusal(errno)));
            }
        }
    }
    // Among equals, the order of the policy decides.
    strict.sort_by_key(|(_, action)| match action {
        Action::KillProcess => 0,
        Action::KillThread => 1,
        _ => 2,
    });
    [strict, reported, refused, watched]
}

/// The action for an error number of a policy. The kernel's error numbers are small.
fn refusal(errno: Errno) -> Action {
    u16::try_from(errno.0).map_or(EPERM, Action::Errno)
}

fn named_by_rule(planned: &CallPlan) -> bool {
    planned
        .reasons
        .iter()
        .any(|reason| matches!(reason, Reason::Rule(_)))
}

/// Tests for i386 calls that stand for several other calls, with the arguments in memory.
fn multiplexed(plan: &Plan, arch: Arch, call: Syscall) -> Vec<Vec<RegisterTest>> {
    let wanted = |call: Syscall| {
        plan.calls
            .get(&call)
            .is_some_and(|planned| !planned.any_of.is_empty())
    };
    let always = |is_wanted: bool| match is_wanted {
        true => vec![Vec::new()],
        false => Vec::new(),
    };
    if arch != Arch::I386 {
        return Vec::new();
    }
    match call.name() {
        "socketcall" => {
            let subcalls =
                (1..=20u32).filter(|number| Syscall::from_socketcall(*number).is_some_and(wanted));
            subcalls
                .map(|number| vec![RegisterTest::low(0, abi::TestOp::Eq, u64::from(number))])
                .collect()
        }
        // The upper half of the first argument is a version, which nobody uses: it is not worth a test.
        "ipc" => {
            let mut calls = plan.calls.keys();
            always(calls.any(|call| is_sysv(*call) && wanted(*call)))
        }
        "old_mmap" => always(wanted(Syscall::MMAP) || wanted(Syscall::MMAP2)),
        "old_select" => always(wanted(Syscall::SELECT)),
        _ => Vec::new(),
    }
}

fn is_sysv(call: Syscall) -> bool {
    ["msg", "sem", "shm"]
        .iter()
        .any(|prefix| call.name().starts_with(prefix))
}

/// The tests of a group as they apply on `arch`. A test that does not apply there is dropped, which makes the
/// group hold more often.
pub fn adapt(group: &[RegisterTest], arch: Arch, call: Syscall) -> Vec<RegisterTest> {
    group
        .iter()
        .filter_map(|test| adapt_test(*test, arch, call))
        .collect()
}

fn adapt_test(test: RegisterTest, arch: Arch, call: Syscall) -> Option<RegisterTest> {
    // The last two arguments of clone are swapped on every architecture but x86-64 and x32.
    let swapped = call == Syscall::CLONE && test.arg >= 3;
    match (arch, test.width) {
        (Arch::X86_64, _) => Some(test),
        (Arch::Aarch64, _) => (!swapped).then_some(test),
        (Arch::X32, TestWidth::Low32) => Some(test),
        // x32's own calls cut registers to 32 bits and ignore what the upper half holds, its shared
        // calls do not.
        (Arch::X32, TestWidth::Full64) => None,
        (Arch::I386 | Arch::Arm, width) => {
            if swapped || behind_split(call, test.arg) || is_narrow_id(call, test.arg) {
                return None;
            }
            // int 0x80 from a 64-bit program leaves the upper halves as they were, and the kernel
            // ignores them. On arm64 they are 0. A constant that needs them (e.g. -1) has another form here.
            let fits = width == TestWidth::Low32 || fits_low(test);
            fits.then_some(RegisterTest {
                width: TestWidth::Low32,
                ..test
            })
        }
    }
}

fn fits_low(test: RegisterTest) -> bool {
    let mask = match test.op {
        abi::TestOp::MaskedEq { mask } => mask,
        _ => 0,
    };
    (test.value | mask) >> 32 == 0
}

/// Calls whose 64-bit argument takes two registers on i386 and 32-bit Arm, and the index of that argument. On Arm
/// an unused register may precede the two.
const SPLIT: [(&str, u8); 13] = [
    ("arm_fadvise64_64", 2),
    ("arm_sync_file_range", 2),
    ("fadvise64", 1),
    ("fadvise64_64", 1),
    ("fallocate", 2),
    ("fanotify_mark", 2),
    ("ftruncate64", 1),
    ("lookup_dcookie", 0),
    ("pread64", 3),
    ("pwrite64", 3),
    ("readahead", 1),
    ("sync_file_range", 1),
    ("truncate64", 1),
];

fn behind_split(call: Syscall, arg: u8) -> bool {
    SPLIT
        .iter()
        .any(|(name, position)| call.name() == *name && arg >= *position)
}

/// Returns true for 32-bit arguments with 16-bit ids: those of calls with a twin that ends in `32`. 0x10000
/// means uid 0 to them.
fn is_narrow_id(call: Syscall, arg: u8) -> bool {
    let is_id = call
        .args()
        .get(usize::from(arg))
        .is_none_or(|spec| matches!(spec.kind, ArgKind::Uid | ArgKind::Gid));
    is_id && Syscall::from_name(&format!("{}32", call.name())).is_some()
}
