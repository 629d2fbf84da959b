//! Disjunctions of register tests, kept few and short.

use abi::{RegisterTest, TestOp, TestWidth};

use super::register::{Groups, always};

/// Maximum number of alternatives of a call. A filter evaluates them for each call, about 2 ns each; beyond
/// this the rule needs every such call.
pub const MAX_GROUPS: usize = 16;

/// Replaces too many alternatives by one that always holds.
pub(super) fn bounded(groups: Groups) -> Groups {
    let groups = simplify(groups);
    if groups.len() > MAX_GROUPS {
        always()
    } else {
        groups
    }
}

/// Returns the disjunction.
pub(super) fn or(mut a: Groups, b: Groups) -> Groups {
    a.extend(b);
    bounded(a)
}

/// Returns the conjunction. If that has too many alternatives, returns one side, which holds whenever both
/// do.
pub(super) fn and(a: Groups, b: Groups) -> Groups {
    let mut both = Groups::with_capacity(a.len() * b.len());
    for left in &a {
        for right in &b {
            let mut group = left.clone();
            group.extend(right.iter().filter(|test| !left.contains(test)));
            both.push(group);
        }
    }
    let both = simplify(both);
    if both.len() <= MAX_GROUPS {
        return both;
    }
    let is_always = |groups: &Groups| groups.iter().any(Vec::is_empty);
    if is_always(&a) || (!is_always(&b) && b.len() < a.len()) {
        b
    } else {
        a
    }
}

/// Drops alternatives that cannot hold or that another one covers.
pub(super) fn simplify(groups: Groups) -> Groups {
    let mut kept = Groups::new();
    for mut group in groups {
        group.sort_by_key(|test| (test.arg, order(test.op), test.value));
        group.dedup();
        if contradicts(&group) || kept.iter().any(|other| covers(other, &group)) {
            continue;
        }
        kept.retain(|other| !covers(&group, other));
        kept.push(group);
    }
    kept
}

fn order(op: TestOp) -> (u8, u64) {
    match op {
        TestOp::Eq => (0, 0),
        TestOp::MaskedEq { mask } => (1, mask),
        TestOp::AllBits => (2, 0),
        TestOp::AnyBit => (3, 0),
        TestOp::NoBit => (4, 0),
        TestOp::Ge => (5, 0),
        TestOp::Le => (6, 0),
        TestOp::Ne => (7, 0),
    }
}

/// Returns true if `narrow` implies `wide`, as far as single tests show.
pub(super) fn covers(wide: &[RegisterTest], narrow: &[RegisterTest]) -> bool {
    let is_implied = |test: &RegisterTest| narrow.iter().any(|known| implies(known, test));
    wide.iter().all(is_implied)
}

/// Returns true if `test` implies `then`.
fn implies(test: &RegisterTest, then: &RegisterTest) -> bool {
    if test == then {
        return true;
    }
    if (test.arg, test.width) != (then.arg, then.width) {
        return false;
    }
    let compared = match test.width {
        TestWidth::Full64 => u64::MAX,
        TestWidth::Low32 => u64::from(u32::MAX),
    };
    let (has, wants) = (test.value & compared, then.value & compared);
    match (test.op, then.op) {
        (TestOp::Eq, _) => {
            let mut args = [0; 6];
            args.get_mut(usize::from(test.arg)).is_some_and(|arg| {
                *arg = has;
                true
            }) && then.holds(&args)
        }
        (TestOp::AllBits, TestOp::AllBits) => has & wants == wants,
        (TestOp::AllBits, TestOp::AnyBit) => has & wants != 0,
        (TestOp::AnyBit, TestOp::AnyBit) => has & !wants == 0,
        (TestOp::NoBit, TestOp::NoBit) => has & wants == wants,
        (TestOp::Ge, TestOp::Ge) => has >= wants,
        (TestOp::Le, TestOp::Le) => has <= wants,
        _ => false,
    }
}

/// Returns true if two tests of a group exclude each other.
fn contradicts(group: &[RegisterTest]) -> bool {
    let exclude = |a: &RegisterTest, b: &RegisterTest| match (a.op, b.op) {
        (TestOp::Eq, TestOp::Eq) => a.value != b.value,
        (TestOp::MaskedEq { mask: one }, TestOp::MaskedEq { mask: other }) => {
            one == other && a.value != b.value
        }
        (TestOp::Eq, TestOp::Ge) => a.value < b.value,
        (TestOp::Eq, TestOp::Le) => a.value > b.value,
        (TestOp::Ge, TestOp::Le) => a.value > b.value,
        (TestOp::Eq, TestOp::Ne) => a.value == b.value,
        _ => false,
    };
    group.iter().enumerate().any(|(index, a)| {
        let same = |b: &&RegisterTest| a.arg == b.arg && a.width == b.width;
        group[index + 1..]
            .iter()
            .filter(same)
            .any(|b| exclude(a, b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eq(arg: u8, value: u64) -> RegisterTest {
        RegisterTest::low(arg, TestOp::Eq, value)
    }

    #[test]
    fn what_always_holds_swallows_its_alternatives() {
        assert_eq!(or(vec![vec![eq(0, 1)]], always()), always());
        assert_eq!(and(always(), vec![vec![eq(0, 1)]]), [[eq(0, 1)]]);
        assert!(and(Groups::new(), always()).is_empty());
    }

    #[test]
    fn contradictions_vanish() {
        assert!(and(vec![vec![eq(0, 1)]], vec![vec![eq(0, 2)]]).is_empty());
        assert_eq!(
            and(vec![vec![eq(0, 1)]], vec![vec![eq(1, 2)]]),
            [[eq(0, 1), eq(1, 2)]]
        );
    }

    #[test]
    fn too_many_alternatives_fall_back_to_one_side_or_to_always() {
        let many = |arg: u8| -> Groups { (0..10).map(|value| vec![eq(arg, value)]).collect() };
        assert_eq!(and(many(0), many(1)), many(0));
        assert_eq!(or(many(0), many(1)), always());
    }
}
