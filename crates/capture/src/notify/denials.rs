//! Calls that responses withhold from processes and their descendants.
//!
//! Whoever answers an alert asks for it while the program runs, and the filter of a running program cannot be widened. So a
//! plan is extended before by all calls that may be withheld ([`plan_denials`]), and an engine whose filter lets one of them
//! pass refuses to withhold any. Each call is decided by its registers, which cannot change any more.

use abi::{Deniable, RegisterTest};
use event::{CallPlan, Need, Plan, Reason};
use seccomp::adapt;
use sys::notify::Notification;

use decoder::call::Call;

/// Adds the calls to a plan that responses may withhold. Must be called before the plan is compiled to a filter.
pub fn plan_denials(plan: &mut Plan) {
    for row in Deniable::ALL.into_iter().flat_map(Deniable::calls) {
        let planned = plan.calls.entry(row.call).or_insert_with(|| CallPlan {
            any_of: Vec::new(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        });
        let is_always = planned.any_of.iter().any(Vec::is_empty);
        match row.any_of {
            [] => planned.any_of = vec![Vec::new()],
            _ if is_always => {}
            groups => {
                let groups = groups.iter().map(|group| group.to_vec());
                planned.any_of.extend(groups);
            }
        }
        planned.reasons.push(Reason::State(row.reason.into()));
    }
}

/// Returns a call that a filter of this plan lets pass although it may be withheld.
pub(super) fn uncovered(installed: &Plan) -> Option<abi::Syscall> {
    let is_covered = |row: &abi::TrappedCall| {
        let Some(planned) = installed.calls.get(&row.call) else {
            return false;
        };
        let has = |group: &[RegisterTest]| {
            let mut planned = planned.any_of.iter();
            planned.any(|known| known.is_empty() || known == group)
        };
        match row.any_of {
            [] => has(&[]),
            groups => groups.iter().all(|group| has(group)),
        }
    };
    let mut rows = Deniable::ALL.into_iter().flat_map(Deniable::calls);
    rows.find(|row| !is_covered(row)).map(|row| row.call)
}

/// Returns what a call does that can be withheld. A number that no table has may do anything.
pub(super) fn deniable(notification: &Notification) -> Option<Vec<Deniable>> {
    // Its registers: what a `socketcall` reads from memory may change.
    let Some(call) = Call::from_registers(notification) else {
        return Some(Deniable::ALL.to_vec());
    };
    let holds = |group: &[RegisterTest]| {
        let tests: Vec<RegisterTest> = adapt(group, call.arch, call.syscall);
        tests.iter().all(|test| test.holds(&call.args))
    };
    Deniable::of(call.syscall, holds).map(|deniable| vec![deniable])
}

#[cfg(test)]
mod tests {
    use crate::notify::guard::Guard;
    use abi::Arch;
    use seccomp::run::{SeccompData, run};
    use seccomp::{Action, FilterOptions, compile};

    use super::*;

    fn notification(arch: Arch, number: u32, args: [u64; 6]) -> Notification {
        Notification {
            arch: arch.audit(),
            nr: arch.raw_number(number),
            args,
            ..Notification::default()
        }
    }

    /// Whatever registers make a call one that may be withheld, on every architecture and for every number, the filter of an
    /// extended plan stops it.
    #[test]
    fn the_filter_stops_every_call_that_may_be_withheld() {
        let mut plan = Plan::default();
        plan_denials(&mut plan);
        assert_eq!(uncovered(&plan), None);
        let native = Arch::native().expect("a known architecture");
        let program = compile(&plan, &FilterOptions::notify(native)).expect("it fits");
        let arches = match native {
            Arch::X86_64 => vec![Arch::X86_64, Arch::X32, Arch::I386],
            _ => vec![Arch::Aarch64, Arch::Arm],
        };
        let values = [
            0, 1, 2, 3, 11, 14, 15, 16, 17, 20, 29, 31, 34, 36, 44, 107, 110, 111, 132, 0o100,
            0o1000,
        ];
        let mut stopped = 0;
        for arch in arches {
            for number in 0..1100 {
                for (first, second) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
                    let args = [first, second, second, first, second, second];
                    for args in [args, [first, 132, second, 0, 0, 0]] {
                        let notification = notification(arch, number, args);
                        if deniable(&notification).is_none() {
                            continue;
                        }
                        stopped += 1;
                        let data = SeccompData {
                            number: notification.nr,
                            audit: notification.arch,
                            args,
                        };
                        let verdict = run(&program, &data).expect("it runs");
                        let is_stopped =
                            matches!(verdict.action, Action::Notify | Action::Errno(_));
                        assert!(is_stopped, "{arch:?} {number} {args:?}: {verdict:?}");
                    }
                }
            }
        }
        assert!(stopped > 10_000, "{stopped}");
    }

    #[test]
    fn a_plan_that_lacks_a_call_or_has_it_in_part_is_found_out() {
        let mut whole = Plan::default();
        plan_denials(&mut whole);
        for row in Deniable::ALL.into_iter().flat_map(Deniable::calls) {
            let mut plan = whole.clone();
            plan.calls.remove(&row.call);
            assert_eq!(uncovered(&plan), Some(row.call));
            let mut plan = whole.clone();
            let group = vec![RegisterTest::low(0, abi::TestOp::Eq, 77)];
            plan.calls.get_mut(&row.call).expect("a row").any_of = vec![group];
            assert_eq!(uncovered(&plan), Some(row.call));
        }
    }

    /// It would have to report them first.
    #[test]
    fn the_guard_has_no_call_that_may_be_withheld() {
        let mut rows = Deniable::ALL.into_iter().flat_map(Deniable::calls);
        assert!(rows.all(|row| !Guard::concerns(row.call)));
    }

    #[test]
    fn what_is_in_memory_counts_as_withheld() {
        let (arch, i386) = (Arch::X86_64, Arch::I386);
        let number = |call: abi::Syscall| call.number(arch).expect("a number");
        let is = |notification: &Notification| deniable(notification);
        let openat2 = notification(arch, number(abi::Syscall::OPENAT2), [0; 6]);
        assert_eq!(is(&openat2), Some(vec![Deniable::OpenForWrite]));
        let sendmsg = notification(arch, number(abi::Syscall::SENDMSG), [0; 6]);
        assert_eq!(is(&sendmsg), Some(vec![Deniable::Connect]));
        // socketcall(SYS_SOCKET), socketcall(SYS_SENDTO), and socketcall(SYS_RECV).
        let socketcall = |operation| notification(i386, 102, [operation, 1, 0, 0, 0, 0]);
        assert_eq!(is(&socketcall(1)), Some(vec![Deniable::Connect]));
        assert_eq!(is(&socketcall(11)), Some(vec![Deniable::Connect]));
        assert_eq!(is(&socketcall(10)), None);
        // A call of a later kernel.
        assert_eq!(
            is(&notification(arch, 1000, [0; 6])).map(|all| all.len()),
            Some(3)
        );
    }
}
