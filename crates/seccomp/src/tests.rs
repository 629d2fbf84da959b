use super::run::{SeccompData, run};
use super::*;
use abi::{RegisterTest, TestOp};
use event::{CallPlan, Need};
use policy::compile::seccomp::Action as Denial;

const ALWAYS: &[Vec<RegisterTest>] = &[Vec::new()];

fn plan(calls: &[(Syscall, &[Vec<RegisterTest>])]) -> Plan {
    let entry = |any_of: &[Vec<RegisterTest>]| CallPlan {
        any_of: any_of.to_vec(),
        strings: false,
        result: Need::Never,
        reasons: vec![Reason::Rule("test".to_owned())],
    };
    Plan {
        calls: calls
            .iter()
            .map(|(call, any_of)| (*call, entry(any_of)))
            .collect(),
        ..Plan::default()
    }
}

/// The always-trapped system calls and the state table, as engines add them.
fn floor() -> Plan {
    let mut plan = Plan::default();
    for trap in abi::FLOOR.iter().chain(abi::STATE) {
        let entry = plan.calls.entry(trap.call).or_insert_with(|| CallPlan {
            any_of: Vec::new(),
            strings: false,
            result: Need::Never,
            reasons: vec![Reason::Floor(trap.reason.into())],
        });
        if trap.any_of.is_empty() {
            entry.any_of.push(Vec::new());
        }
        entry
            .any_of
            .extend(trap.any_of.iter().map(|group| group.to_vec()));
    }
    plan
}

fn as_planned(native: Arch) -> FilterOptions {
    FilterOptions {
        clone3: SpecialCall::AsPlanned,
        unknown_numbers: Action::Allow,
        ..FilterOptions::notify(native)
    }
}

fn action_of(program: &FilterProgram, audit: u32, number: u32, args: [u64; 6]) -> Action {
    run(
        program,
        &SeccompData {
            number,
            audit,
            args,
        },
    )
    .expect("our own program")
    .action
}

fn wanted(plan: &Plan, call: Syscall, args: &[u64; 6]) -> bool {
    plan.calls.get(&call).is_some_and(|planned| {
        planned
            .any_of
            .iter()
            .any(|group| group.iter().all(|test| test.holds(args)))
    })
}

/// A generator of test data without a dependency (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let len = u64::try_from(from.len()).unwrap();
        from[usize::try_from(self.next() % len).unwrap()]
    }

    fn test(&mut self) -> RegisterTest {
        let values = [
            0,
            1,
            2,
            0x40,
            0x8000_0000,
            0xffff_ffff,
            1 << 32,
            0x1_0000_0002,
            u64::MAX,
        ];
        let value = self.pick(&values);
        let mask = self.pick(&values);
        let ops = [
            TestOp::AllBits,
            TestOp::AnyBit,
            TestOp::Eq,
            TestOp::Ge,
            TestOp::Le,
            TestOp::MaskedEq { mask },
            TestOp::Ne,
            TestOp::NoBit,
        ];
        let op = self.pick(&ops);
        let arg = self.pick(&[0, 1, 2, 3, 4, 5]);
        if self.next().is_multiple_of(2) {
            RegisterTest::low(arg, op, value)
        } else {
            RegisterTest::full(arg, op, value)
        }
    }

    fn plan(&mut self) -> Plan {
        let calls = self.next() % 60;
        let chosen = (0..calls).map(|_| {
            let index = usize::try_from(self.next()).unwrap() % Syscall::COUNT;
            let groups = (0..self.next() % 4)
                .map(|_| (0..self.next() % 4).map(|_| self.test()).collect())
                .collect::<Vec<_>>();
            (Syscall::from_index(index).unwrap(), groups)
        });
        let chosen: Vec<_> = chosen.collect();
        let calls: Vec<_> = chosen
            .iter()
            .map(|(call, groups)| (*call, groups.as_slice()))
            .collect();
        plan(&calls)
    }

    /// Values on both sides of every constant of the plan's tests, or random ones.
    fn args(&mut self, plan: &Plan, call: Option<Syscall>) -> [u64; 6] {
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = self.pick(&[0, 1, 2, 3, 0xffff_ffff, 1 << 32, (1 << 32) | 2, u64::MAX]);
        }
        let planned = call.and_then(|call| plan.calls.get(&call));
        for test in planned
            .into_iter()
            .flat_map(|planned| planned.any_of.iter().flatten())
        {
            let near = [
                test.value,
                test.value.wrapping_add(1),
                test.value.wrapping_sub(1),
                test.value | 1 << 40,
                test.value ^ 1 << 31,
            ];
            if !self.next().is_multiple_of(3) {
                args[usize::from(test.arg)] = self.pick(&near);
            }
        }
        args
    }
}

#[test]
fn native_calls_are_reported_exactly_as_planned() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut reported = 0_u32;
    for _ in 0..150 {
        let plan = random.plan();
        let arch = random.pick(&[Arch::X86_64, Arch::Aarch64]);
        let program = compile(&plan, &as_planned(arch)).unwrap();
        for number in 0..600 {
            let call = Syscall::from_number(arch, number);
            for _ in 0..4 {
                let args = random.args(&plan, call);
                // aarch64 swaps two arguments of clone, so that is no exact case.
                if call == Some(Syscall::CLONE) && arch == Arch::Aarch64 {
                    continue;
                }
                let decoded = abi::arch::decode(arch.audit(), number).and_then(|(_, call)| call);
                let expected = decoded.is_some_and(|call| {
                    let exact = call.number(arch) == Some(number);
                    exact && wanted(&plan, call, &args)
                });
                let action = action_of(&program, arch.audit(), number, args);
                if decoded == call {
                    let expected = if expected {
                        Action::Notify
                    } else {
                        Action::Allow
                    };
                    assert_eq!(action, expected, "{arch} {number} {call:?} {args:x?}");
                }
                reported += u32::from(action == Action::Notify);
            }
        }
    }
    assert!(reported > 1000, "the plans must not be vacuous: {reported}");
}

/// A profile of every rule that a filter enforces, denied in one of two ways.
fn confined(audits: bool) -> Profile {
    let text = format!(
        "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         auditViolations: {audits}\n    hardeningRules: [disallow-create-user-ns, disallow-load-all-bpf-prog, \
         disallow-load-bpf-via-setsockopt, disallow-userfaultfd-creation, disallow-insmod]\n    \
         attackProtectionRules: [{{rules: [disable-chmod-x-bit, disable-tcp, disable-icmp]}}]\n    \
         syscallRawRules:\n    - {{names: [ptrace], action: SCMP_ACT_KILL_PROCESS, args: [{{index: 0, value: 16, \
         op: SCMP_CMP_EQ}}]}}\n    - {{names: [socket], action: SCMP_ACT_TRAP, args: [{{index: 0, value: 38, \
         op: SCMP_CMP_EQ}}]}}\n"
    );
    let (policies, _) = policy::load("p.yaml", &text);
    let profile = Profile::compile(&policies[0]);
    assert!(profile.rules.len() > 100);
    profile
}

/// The expected action, from the meaning of the policy alone.
fn meant(profile: &Profile, listens: bool, call: Syscall, args: &[u64; 6]) -> Action {
    let Some(rule) = profile.decide(call, args) else {
        return Action::Allow;
    };
    match rule.action {
        Denial::KillProcess => Action::KillProcess,
        Denial::KillThread => Action::KillThread,
        Denial::Trap => Action::Trap,
        Denial::RefuseAndReport(_) | Denial::Report | Denial::Watch if listens => Action::Notify,
        Denial::Report | Denial::Watch => Action::Allow,
        Denial::Refuse(errno) | Denial::RefuseAndReport(errno) => {
            Action::Errno(u16::try_from(errno.0).unwrap())
        }
    }
}

#[test]
fn a_policy_alone_is_what_its_rules_mean() {
    let mut random = Random(0x5851_f42d_4c95_7f2d);
    for (audits, listens) in [(false, false), (true, false), (true, true), (false, true)] {
        let profile = confined(audits);
        // The generator takes its values from a plan.
        let mut values = Plan::default();
        for rule in &profile.rules {
            let groups = std::slice::from_ref(&rule.when);
            let more = plan(&[(rule.call, groups)]);
            let entry = values
                .calls
                .entry(rule.call)
                .or_insert_with(|| more.calls[&rule.call].clone());
            entry.any_of.push(rule.when.clone());
        }
        let options = match listens {
            true => FilterOptions::notify(Arch::X86_64),
            false => FilterOptions::confine(Arch::X86_64),
        };
        let program = compile_with(&Plan::default(), &profile, &options).unwrap();
        let mut denied = 0;
        for call in Syscall::all() {
            let Some(number) = call.number(Arch::X86_64) else {
                continue;
            };
            // The engine refuses the call regardless of the policy.
            if listens && call == Syscall::CLONE3 {
                continue;
            }
            for _ in 0..20 {
                let args = random.args(&values, Some(call));
                let expected = meant(&profile, listens, call, &args);
                let found = action_of(&program, Arch::X86_64.audit(), number, args);
                assert_eq!(found, expected, "{call} {args:x?}");
                denied += u32::from(found != Action::Allow);
            }
        }
        assert!(denied > 1000, "{denied}");
    }
}

#[test]
fn calls_of_other_tables_are_refused_under_a_policy_that_denies() {
    let silent = compile_with(
        &floor(),
        &confined(false),
        &FilterOptions::confine(Arch::X86_64),
    );
    let reported = compile_with(
        &Plan::default(),
        &confined(true),
        &FilterOptions::notify(Arch::X86_64),
    );
    for (program, expected) in [
        (silent.unwrap(), Action::Errno(1)),
        (reported.unwrap(), Action::Notify),
    ] {
        for arch in [Arch::I386, Arch::X32] {
            for number in [1, 20, 310, 900] {
                let raw = arch.raw_number(number);
                let found = action_of(&program, arch.audit(), raw, [0; 6]);
                assert_eq!(found, expected, "{arch} {number}");
            }
        }
        assert_eq!(action_of(&program, 0x4000_00f3, 1, [0; 6]), expected);
        // A call of a future kernel.
        let native = Arch::X86_64.audit();
        assert_eq!(action_of(&program, native, 1000, [0; 6]), Action::Errno(38));
    }
}

/// Rules see calls that a policy refuses: the receiver refuses them then. A tracer could not, so the filter
/// refuses them there.
#[test]
fn a_call_that_a_rule_asks_for_is_handed_over_though_it_is_denied() {
    let plan = plan(&[(Syscall::UNSHARE, ALWAYS)]);
    let profile = confined(false);
    let number = Syscall::UNSHARE.number(Arch::X86_64).unwrap();
    let of = |options: &FilterOptions, flags| {
        let program = compile_with(&plan, &profile, options).unwrap();
        action_of(
            &program,
            Arch::X86_64.audit(),
            number,
            [flags, 0, 0, 0, 0, 0],
        )
    };
    let notify = FilterOptions::notify(Arch::X86_64);
    assert_eq!(of(&notify, 0x1000_0000), Action::Notify);
    assert_eq!(of(&notify, 0), Action::Notify);
    let trace = FilterOptions::trace(Arch::X86_64, 7);
    assert_eq!(of(&trace, 0x1000_0000), Action::Errno(1));
}

/// The argument bits that the kernel uses for a 32-bit call.
fn compat(args: &[u64; 6]) -> [u64; 6] {
    args.map(|arg| arg & 0xffff_ffff)
}

#[test]
fn other_conventions_are_reported_at_least_as_planned() {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut reported = 0_u32;
    for round in 0..300 {
        let plan = random.plan();
        let native = [Arch::X86_64, Arch::Aarch64][round % 2];
        let program = compile(&plan, &as_planned(native)).unwrap();
        for arch in native.of_kernel().iter().copied().skip(1) {
            for call in Syscall::all() {
                let Some(number) = call.number(arch) else {
                    continue;
                };
                for _ in 0..4 {
                    let args = random.args(&plan, Some(call));
                    let raw = arch.raw_number(number);
                    let action = action_of(&program, arch.audit(), raw, args);
                    let seen = [args, compat(&args)];
                    if seen.iter().any(|args| {
                        // Upper halves count on x32's shared calls only.
                        (arch == Arch::X32 || *args == compat(args)) && wanted(&plan, call, args)
                    }) {
                        assert_eq!(action, Action::Notify, "{arch} {call} {args:x?}");
                        reported += 1;
                    }
                }
            }
        }
    }
    assert!(reported > 1000, "the plans must not be vacuous: {reported}");
}

/// Every 32-bit program of arm64 makes some of them: unless rules ask, nobody is notified.
#[test]
fn private_calls_of_32_bit_arm_are_known() {
    let options = FilterOptions::notify(Arch::Aarch64);
    let quiet = compile(&Plan::default(), &options).unwrap();
    let asked = plan(&[(Syscall::SET_TLS, ALWAYS)]);
    let asked = compile(&asked, &options).unwrap();
    let confined = compile_with(&Plan::default(), &confined(false), &options).unwrap();
    let of = |program, number| action_of(program, Arch::Arm.audit(), number, [0; 6]);
    let set_tls = Syscall::SET_TLS.number(Arch::Arm).unwrap();
    assert_eq!(of(&quiet, set_tls), Action::Allow);
    assert_eq!(of(&asked, set_tls), Action::Notify);
    assert_eq!(of(&confined, set_tls), Action::Errno(1));
    for unknown in [1023, set_tls - 5, set_tls + 2, u32::MAX] {
        assert_eq!(of(&quiet, unknown), Action::Notify, "{unknown}");
    }
    let native = action_of(&quiet, Arch::Aarch64.audit(), set_tls, [0; 6]);
    assert_eq!(native, Action::Notify);
}

#[test]
fn unlisted_calls_are_decided_without_arguments() {
    let program = compile(&floor(), &FilterOptions::notify(Arch::X86_64)).unwrap();
    for number in 0..600 {
        for base in [0, abi::arch::X32_BIT] {
            let raw = base | number;
            let (_, call) = abi::arch::decode(Arch::X86_64.audit(), raw).unwrap();
            let Some(call) = call else { continue };
            if floor().calls.contains_key(&call) {
                continue;
            }
            let data = SeccompData {
                number: raw,
                audit: Arch::X86_64.audit(),
                args: [1; 6],
            };
            let verdict = run(&program, &data).expect("our own program");
            assert!(verdict.constant, "{call} is not cacheable");
        }
    }
    let getppid = SeccompData {
        number: 110,
        audit: Arch::X86_64.audit(),
        args: [0; 6],
    };
    assert_eq!(
        run(&program, &getppid).expect("our own program").action,
        Action::Allow
    );
}

#[test]
fn plain_clones_pass_and_clone3_is_refused_until_a_rule_names_it() {
    let audit = Arch::X86_64.audit();
    let options = FilterOptions::notify(Arch::X86_64);
    let program = compile(&floor(), &options).unwrap();
    let clone = Syscall::CLONE.number(Arch::X86_64).unwrap();
    let clone3 = Syscall::CLONE3.number(Arch::X86_64).unwrap();
    for plain in [0x3d_0f00, 0x11, 0x4111] {
        let args = [plain, 0, 0, 0, 0, 0];
        assert_eq!(action_of(&program, audit, clone, args), Action::Allow);
    }
    let new_pid_namespace = [0x2000_0011, 0, 0, 0, 0, 0];
    assert_eq!(
        action_of(&program, audit, clone, new_pid_namespace),
        Action::Notify
    );
    assert_eq!(
        action_of(&program, audit, clone3, [0; 6]),
        Action::Errno(38)
    );
    let ruled = compile(&plan(&[(Syscall::CLONE3, ALWAYS)]), &options).unwrap();
    assert_eq!(action_of(&ruled, audit, clone3, [0; 6]), Action::Notify);
    let refuse = FilterOptions {
        clone3: SpecialCall::Refuse,
        io_uring: SpecialCall::Refuse,
        ..options
    };
    let refused = compile(&plan(&[(Syscall::CLONE3, ALWAYS)]), &refuse).unwrap();
    assert_eq!(
        action_of(&refused, audit, clone3, [0; 6]),
        Action::Errno(38)
    );
    // The creation of a ring is trapped, and the supervisor answers it; a ring from elsewhere is unusable.
    let asked = compile(&plan(&[(Syscall::IO_URING_SETUP, ALWAYS)]), &refuse).unwrap();
    assert_eq!(action_of(&asked, audit, 425, [0; 6]), Action::Notify);
    assert_eq!(action_of(&asked, audit, 426, [0; 6]), Action::Errno(38));
    assert_eq!(action_of(&asked, audit, 427, [0; 6]), Action::Errno(38));
}

#[test]
fn socketcall_is_split_by_its_subcall() {
    let program = compile(
        &plan(&[(Syscall::CONNECT, ALWAYS)]),
        &as_planned(Arch::X86_64),
    )
    .unwrap();
    let socketcall = |first| action_of(&program, Arch::I386.audit(), 102, [first, 9, 0, 0, 0, 0]);
    assert_eq!(socketcall(3), Action::Notify);
    assert_eq!(socketcall(0xffff_ffff_0000_0003), Action::Notify);
    assert_eq!(socketcall(2), Action::Allow);
    let ipc = compile(
        &plan(&[(Syscall::SHMGET, ALWAYS)]),
        &as_planned(Arch::X86_64),
    )
    .unwrap();
    assert_eq!(
        action_of(&ipc, Arch::I386.audit(), 117, [23, 0, 0, 0, 0, 0]),
        Action::Notify
    );
}

#[test]
fn narrow_ids_of_i386_do_not_slip_through() {
    let zero = vec![vec![RegisterTest::low(0, TestOp::Eq, 0)]];
    let program = compile(
        &plan(&[(Syscall::SETUID, &zero)]),
        &as_planned(Arch::X86_64),
    )
    .unwrap();
    let args = [0x1_0000, 0, 0, 0, 0, 0];
    assert_eq!(
        action_of(&program, Arch::I386.audit(), 23, args),
        Action::Notify
    );
    assert_eq!(
        action_of(&program, Arch::X86_64.audit(), 105, args),
        Action::Allow
    );
}

#[test]
fn foreign_architectures_and_unknown_numbers_are_reported() {
    for native in [Arch::X86_64, Arch::Aarch64] {
        let program = compile(&Plan::default(), &FilterOptions::notify(native)).unwrap();
        // s390x.
        assert_eq!(action_of(&program, 0x8000_0016, 3, [0; 6]), Action::Notify);
        assert_eq!(
            action_of(&program, native.audit(), 1023, [0; 6]),
            Action::Notify
        );
        assert_eq!(
            action_of(&program, native.audit(), u32::MAX, [0; 6]),
            Action::Notify
        );
    }
    let program = compile(&Plan::default(), &FilterOptions::notify(Arch::X86_64)).unwrap();
    let audit = Arch::X86_64.audit();
    assert_eq!(
        action_of(&program, audit, 0x4000_0000 | 2000, [0; 6]),
        Action::Notify
    );
    assert_eq!(
        action_of(&program, audit, 0x8000_0000, [0; 6]),
        Action::Notify
    );
}

#[test]
fn jumps_reach_across_large_leaves() {
    let group = |value| vec![RegisterTest::full(1, TestOp::Eq, value)];
    let wide: Vec<_> = (0..150).map(group).collect();
    let calls = [Syscall::READ, Syscall::WRITE, Syscall::OPENAT];
    let entries: Vec<_> = calls.iter().map(|call| (*call, wide.as_slice())).collect();
    let plan = plan(&entries);
    let program = compile(&plan, &as_planned(Arch::Aarch64)).unwrap();
    assert!(program.instructions().len() > 1000);
    for call in calls {
        let number = call.number(Arch::Aarch64).unwrap();
        for value in [0, 1, 77, 149, 150, 1 << 32] {
            let args = [0, value, 0, 0, 0, 0];
            let expected = if value < 150 {
                Action::Notify
            } else {
                Action::Allow
            };
            let action = action_of(&program, Arch::Aarch64.audit(), number, args);
            assert_eq!(action, expected, "{call} {value}");
        }
    }
}

#[test]
fn a_plan_too_large_names_the_call_and_the_rule() {
    let group = |value| vec![RegisterTest::full(1, TestOp::Eq, value)];
    let wide: Vec<_> = (0..1500).map(group).collect();
    let plan = plan(&[(Syscall::WRITE, &wide), (Syscall::READ, ALWAYS)]);
    let error = compile(&plan, &as_planned(Arch::X86_64)).unwrap_err();
    let FilterError::TooLong {
        call,
        tests,
        ref wanted_by,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (call, tests, wanted_by.as_str()),
        (Syscall::WRITE, 1500, "rule `test`")
    );
}

#[test]
fn an_argument_that_no_call_has_is_an_error() {
    let wrong = vec![vec![RegisterTest::low(6, TestOp::Eq, 0)]];
    let error = compile(&plan(&[(Syscall::READ, &wrong)]), &as_planned(Arch::X86_64)).unwrap_err();
    assert!(
        matches!(error, FilterError::NoSuchArgument { argument: 6, .. }),
        "{error}"
    );
}

#[test]
fn what_the_listener_is_always_asked_of_is_known() {
    let groups = vec![vec![RegisterTest::low(2, TestOp::Eq, 0x40)]];
    let plan = plan(&[(Syscall::OPENAT, &groups), (Syscall::EXECVE, ALWAYS)]);
    let program = compile(&plan, &as_planned(Arch::X86_64)).unwrap();
    assert!(program.always_asks(Arch::X86_64, Syscall::EXECVE));
    assert!(!program.always_asks(Arch::X86_64, Syscall::OPENAT));
    assert!(!program.always_asks(Arch::X86_64, Syscall::EXECVEAT));
}

#[test]
fn a_small_plan_reads_like_this() {
    let write = RegisterTest::low(2, TestOp::AnyBit, 3);
    let groups = vec![vec![write], vec![RegisterTest::low(2, TestOp::Eq, 0x40)]];
    let plan = plan(&[(Syscall::OPENAT, &groups), (Syscall::EXECVE, ALWAYS)]);
    let program = compile(&plan, &as_planned(Arch::Aarch64)).unwrap();
    let expected = [
        "   0: A = arch",
        "   1: if A == aarch64 goto 3 else 2",
        "   2: if A == arm goto 11 else 19",
        "   3: A = nr",
        "   4: if A >= 57 goto 9 else 5",
        "   5: if A >= 56 goto 6 else 20",
        "   6: A = arg2.low",
        "   7: if A & 0x3 goto 19 else 8",
        "   8: if A == 0x40 goto 19 else 20",
        "   9: if A >= 221 goto 10 else 20",
        "  10: if A >= 222 goto 20 else 19",
        "  11: A = nr",
        "  12: if A >= 12 goto 14 else 13",
        "  13: if A >= 11 goto 19 else 20",
        "  14: if A >= 322 goto 15 else 20",
        "  15: if A >= 323 goto 20 else 16",
        "  16: A = arg2.low",
        "  17: if A & 0x3 goto 19 else 18",
        "  18: if A == 0x40 goto 19 else 20",
        "  19: return USER_NOTIF",
        "  20: return ALLOW",
    ];
    assert_eq!(disassemble(&program).lines().collect::<Vec<_>>(), expected);
}
