//! What each call number of an architecture leads to.

use abi::{Arch, ArgKind, RegisterTest, Syscall, TestWidth};
use event::{CallPlan, Plan, Reason};

use super::{Action, FilterOptions, Leaf, Special};

/// Numbers from `first` up to the next segment's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Segment {
    pub(super) first: u32,
    pub(super) leaf: Leaf,
}

/// Table numbers end far below; numbers from here on are unknown without a look.
const NUMBER_LIMIT: u32 = 1024;

const ENOSYS: Action = Action::Errno(38);

/// All numbers of an audit architecture, in order, without neighbours that are alike.
pub(super) fn segments(plan: &Plan, options: &FilterOptions, arch: Arch) -> Vec<Segment> {
    // x32 calls come with the audit value of x86-64 and a bit in the number.
    let bases: &[u32] = match arch {
        Arch::X86_64 => &[0, abi::arch::X32_BIT],
        _ => &[0],
    };
    let unknown = Leaf::Always(options.unknown_numbers);
    let mut segments: Vec<Segment> = Vec::new();
    let mut add = |first, leaf: Leaf| {
        if segments.last().is_none_or(|last| last.leaf != leaf) {
            segments.push(Segment { first, leaf });
        }
    };
    for base in bases {
        for number in 0..NUMBER_LIMIT {
            let decoded = abi::arch::decode(arch.audit(), base | number);
            let leaf = match decoded {
                Some((arch, Some(call))) => leaf_of(plan, options, arch, call),
                _ => unknown.clone(),
            };
            add(base | number, leaf);
        }
        add(base + NUMBER_LIMIT, unknown.clone());
    }
    segments
}

fn leaf_of(plan: &Plan, options: &FilterOptions, arch: Arch, call: Syscall) -> Leaf {
    let special = match call {
        Syscall::CLONE3 => options.clone3,
        Syscall::IO_URING_SETUP => options.io_uring,
        _ => Special::AsPlanned,
    };
    let planned = plan.calls.get(&call);
    match special {
        Special::Refuse => return Leaf::Always(ENOSYS),
        Special::RefuseUnlessRule if !planned.is_some_and(named_by_rule) => {
            return Leaf::Always(ENOSYS);
        }
        _ => {}
    }
    let direct = planned.map_or(Leaf::Always(Action::Allow), |planned| {
        let adapted = planned
            .any_of
            .iter()
            .map(|group| adapt(group, arch, call))
            .collect();
        Leaf::when(options.planned, adapted)
    });
    direct.or(multiplexed(plan, options, arch, call))
}

fn named_by_rule(planned: &CallPlan) -> bool {
    planned
        .reasons
        .iter()
        .any(|reason| matches!(reason, Reason::Rule(_)))
}

/// i386 has calls that stand for several others, with the arguments in memory.
fn multiplexed(plan: &Plan, options: &FilterOptions, arch: Arch, call: Syscall) -> Leaf {
    let wanted = |call: Syscall| {
        plan.calls
            .get(&call)
            .is_some_and(|planned| !planned.any_of.is_empty())
    };
    let never = Leaf::Always(Action::Allow);
    if arch != Arch::I386 {
        return never;
    }
    match call.name() {
        "socketcall" => {
            let subcalls =
                (1..=20u32).filter(|number| Syscall::from_socketcall(*number).is_some_and(wanted));
            let any_of = subcalls
                .map(|number| vec![RegisterTest::low(0, abi::TestOp::Eq, u64::from(number))])
                .collect();
            Leaf::when(options.planned, any_of)
        }
        // The upper half of the first argument is a version: not worth a test, nobody uses it.
        "ipc"
            if plan
                .calls
                .keys()
                .any(|call| is_sysv(*call) && wanted(*call)) =>
        {
            Leaf::Always(options.planned)
        }
        "old_mmap" if wanted(Syscall::MMAP) || wanted(Syscall::MMAP2) => {
            Leaf::Always(options.planned)
        }
        "old_select" if wanted(Syscall::SELECT) => Leaf::Always(options.planned),
        _ => never,
    }
}

fn is_sysv(call: Syscall) -> bool {
    ["msg", "sem", "shm"]
        .iter()
        .any(|prefix| call.name().starts_with(prefix))
}

/// The tests of a group as they apply on `arch`. A test that does not carry over is dropped, which
/// makes the group hold more often.
pub(crate) fn adapt(group: &[RegisterTest], arch: Arch, call: Syscall) -> Vec<RegisterTest> {
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
        (Arch::I386, width) => {
            if swapped || behind_split(call, test.arg) || is_narrow_id(call, test.arg) {
                return None;
            }
            // int 0x80 from a 64-bit program leaves the upper halves as they were, and the kernel
            // ignores them. A constant that needs them (e.g. -1) has another form here.
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

/// Calls whose 64-bit argument takes two registers on i386, and its position.
const SPLIT: [(&str, u8); 11] = [
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

/// i386 calls with a twin that ends in `32` take 16-bit ids: 0x10000 is uid 0 to them.
fn is_narrow_id(call: Syscall, arg: u8) -> bool {
    let is_id = call
        .args()
        .get(usize::from(arg))
        .is_none_or(|spec| matches!(spec.kind, ArgKind::Uid | ArgKind::Gid));
    is_id && Syscall::from_name(&format!("{}32", call.name())).is_some()
}
