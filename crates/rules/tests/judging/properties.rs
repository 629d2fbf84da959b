//! Random rules on random events: the compiler against the reference, stages against each other,
//! the plan against what rules accept.

use abi::Syscall;
use event::{Containment, DescriptorKind, Plan, Relevance, Stage, StdioWatch};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use rules::RuleMatching;

use crate::case::Case;
use crate::engine::{all_matching, conclude, engine, load, rule_text, try_engine, weigh};
use crate::reference;

/// Comparisons that random rules consist of.
const ATOMS: &[&str] = &[
    "evt.type in (open, openat, openat2)",
    "evt.type = connect",
    "evt.type != dup",
    "evt.type in (dup, dup2, dup3)",
    "evt.type = socket",
    "evt.type = ptrace",
    "evt.category = file",
    "evt.dir = <",
    "evt.num = 0",
    "evt.is_open_read = true",
    "evt.is_open_write = true",
    "evt.is_open_write = false",
    "evt.is_open_read != true",
    "evt.arg.flags contains O_TRUNC",
    "evt.arg.flags contains O_CREAT",
    "evt.arg.flags contains O_RDONLY",
    "evt.arg.flags icontains o_excl",
    "evt.arg.flags contains O_NO_SUCH_FLAG",
    "evt.arg.flags = \"O_TRUNC|O_CREAT|O_WRONLY\"",
    "evt.arg.flags != O_RDONLY",
    "evt.arg.flags startswith O_",
    "evt.arg.domain contains AF_PACKET",
    "evt.arg.domain contains AF_INET",
    "evt.arg.domain = AF_UNIX",
    "evt.arg.domain in (AF_INET, AF_INET6)",
    "evt.arg.domain != AF_UNIX",
    "evt.arg.domain = 99",
    "evt.arg.type contains SOCK_RAW",
    "evt.arg.request contains PTRACE_ATTACH",
    "evt.arg.request in (PTRACE_ATTACH, PTRACE_SEIZE)",
    "evt.arg.request = PTRACE_TRACEME",
    "evt.arg.mode contains S_ISUID",
    "evt.arg.mode contains S_IS",
    "evt.arg.mode icontains s_ifblk",
    "evt.arg.mode in (S_IRUSR, S_IXOTH)",
    "evt.arg.mode != S_ISGID",
    "evt.rawarg.flags > 64",
    "evt.rawarg.flags <= 577",
    "evt.rawarg.domain = 17",
    "evt.rawarg.domain != 1",
    "evt.rawarg.domain in (1, 2, 10)",
    "evt.rawarg.fd <= 2",
    "evt.rawarg.fd >= 0",
    "evt.rawarg.oldfd < 3",
    "evt.rawarg.newfd in (0, 1, 2)",
    "evt.rawarg.cmd = 2",
    "evt.rawres in (0, 1, 2)",
    "evt.rawres < 0",
    "evt.rawres >= 0",
    "evt.rawres != 0",
    "evt.rawres = -2",
    "evt.res = SUCCESS",
    "evt.res startswith E",
    "evt.failed = true",
    "fd.num in (0, 1, 2)",
    "fd.num >= 0",
    "fd.num = -1",
    "fd.num != 5",
    "fd.num exists",
    "fd.name startswith /etc",
    "fd.name = /etc/passwd",
    "fd.name contains shadow",
    "fd.name icontains ETC",
    "fd.name glob '*/sh?dow'",
    "fd.name pmatch (/etc, /usr)",
    "fd.name endswith shadow",
    "fd.name exists",
    "fd.directory = /etc",
    "fd.directory in (/usr, /etc)",
    "fd.nameraw contains '../'",
    "fd.typechar = f",
    "fd.typechar = 4",
    "fd.name_changed = true",
    "fd.name_changed = false",
    "fd.name_changed != true",
    "fd.type = ipv4",
    "fd.sip = 10.0.0.2",
    "fd.sport = 80",
    "fd.port in (80, 443)",
    "fd.port != 80",
    "fd.ip = 10.0.0.1",
    "fd.ip != 10.0.0.1",
    "fd.net = 10.0.0.0/8",
    "fd.snet in (10.0.0.0/8)",
    "fd.sip.name = known.example",
    "fd.sip.name in (missing.example, slow.example)",
    "proc.name = cat",
    "proc.name != cat",
    "proc.name in (sh, bash)",
    "proc.name startswith b",
    "proc.name endswith sh",
    "proc.name regex '[a-c].*'",
    "proc.name startswith anyof (a, b)",
    "proc.name contains oneof (s, h)",
    "proc.name != allof (cat, sh)",
    "proc.name != anyof (cat, sh)",
    "proc.pname = bash",
    "proc.pname exists",
    "proc.aname = sshd",
    "proc.aname in (sshd, login)",
    "proc.aname != sshd",
    "proc.aname[2] = sshd",
    "proc.cmdline contains -e",
    "proc.args startswith -n",
    "proc.tty != 0",
    "proc.exepath = val(fd.name)",
    "proc.name = val(proc.pname)",
    "proc.name in ()",
    "user.name = root",
    "user.uid = 0",
    "container.id != host",
    "container.id = host",
    "tolower(proc.name) = cat",
    "toupper(proc.name) = CAT",
    "len(proc.name) > 3",
    "basename(fd.name) = passwd",
];

/// Calls that random events consist of.
const CALLS: &[Syscall] = &[
    Syscall::OPEN,
    Syscall::OPENAT,
    Syscall::OPENAT2,
    Syscall::CREAT,
    Syscall::CHMOD,
    Syscall::FCHMOD,
    Syscall::FCHMODAT,
    Syscall::MKDIRAT,
    Syscall::MKNODAT,
    Syscall::CLOSE,
    Syscall::READ,
    Syscall::DUP,
    Syscall::DUP2,
    Syscall::DUP3,
    Syscall::CONNECT,
    Syscall::BIND,
    Syscall::SENDTO,
    Syscall::SOCKET,
    Syscall::PTRACE,
    Syscall::EXECVE,
    Syscall::FCNTL,
    Syscall::FCHMODAT,
    Syscall::SYMLINKAT,
    Syscall::LINKAT,
    Syscall::UNLINKAT,
    Syscall::SETUID,
    Syscall::PRCTL,
    Syscall::KILL,
    Syscall::MEMFD_CREATE,
];

fn condition() -> impl Strategy<Value = String> {
    let atom = prop::sample::select(ATOMS).prop_map(str::to_owned);
    atom.prop_recursive(4, 24, 4, |inner| {
        let several = prop::collection::vec(inner.clone(), 2..5);
        prop_oneof![
            several
                .clone()
                .prop_map(|parts| format!("({})", parts.join(" and "))),
            several.prop_map(|parts| format!("({})", parts.join(" or "))),
            inner.prop_map(|part| format!("not ({part})")),
        ]
    })
}

/// Generates conditions of which many need the same field to be in a set, like those of real rules.
fn maybe_indexed() -> impl Strategy<Value = String> {
    let sets = &["cat, sh", "bash", "sshd, login, cat", "nothing"][..];
    let indexed = (prop::sample::select(sets), condition())
        .prop_map(|(set, rest)| format!("proc.name in ({set}) and ({rest})"));
    let names = &["cat", "sh", "nothing"][..];
    let either =
        prop::collection::vec((prop::sample::select(names), condition()), 2..4).prop_map(|parts| {
            let part = |(name, rest)| format!("(proc.name = {name} and ({rest}))");
            parts.into_iter().map(part).collect::<Vec<_>>().join(" or ")
        });
    prop_oneof![condition(), indexed, either]
}

fn rule_texts(conditions: &[String]) -> String {
    let rule = |(index, condition): (usize, &String)| rule_text(&format!("r{index}"), condition);
    conditions.iter().enumerate().map(rule).collect()
}

fn register() -> impl Strategy<Value = u64> {
    let interesting: &[u64] = &[
        0,
        1,
        2,
        3,
        4,
        5,
        10,
        16,
        17,
        64,
        65,
        99,
        577,
        0o1101,
        0x8_0000,
        0x4000_0000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ff9c,
        0xffff_ffff,
        0x1_0000_0000,
        0x1_0000_0001,
        0xffff_ffff_0000_0002,
        0x4206,
        u64::MAX,
    ];
    prop_oneof![4 => prop::sample::select(interesting), 1 => any::<u64>()]
}

/// Paths, and texts that look like paths.
const TEXTS: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "../etc/shadow",
    "passwd",
    "/home/u/../../etc/shadow",
    "/usr/bin/sh",
    ".",
    "",
    "/",
    "//etc//passwd",
    "/etc/link/../shadow",
    "\u{e9}tc",
];

fn case() -> impl Strategy<Value = Case> {
    let text = prop_oneof![
        9 => prop::sample::select(TEXTS).prop_map(|text| Some(text.as_bytes().to_vec())),
        1 => Just(None),
        1 => Just(Some(b"/etc/\xff".to_vec())),
    ];
    let result = prop_oneof![
        6 => prop::sample::select(&[0_i64, 1, 2, 3, 5, -1, -2, -13][..]).prop_map(Some),
        1 => Just(None),
    ];
    let names: &[&'static str] = &["cat", "sh", "bash", "sshd", "login", "nginx"];
    let kinds = &[
        DescriptorKind::File,
        DescriptorKind::Ipv4,
        DescriptorKind::Pipe,
    ][..];
    let containments = &[Containment::Host, Containment::Known, Containment::Unknown][..];
    let call = (
        prop::sample::select(CALLS),
        prop::array::uniform6(register()),
        text,
        result,
        prop::sample::select(kinds),
        prop::sample::select(&[80_u16, 443, 22][..]),
    );
    let process = (
        prop::collection::vec(prop::sample::select(names), 1..4),
        prop::collection::vec(prop::sample::select(&["-e", "-n", "file"][..]), 0..3),
        prop::sample::select(&[0_u32, 1000][..]),
        prop::sample::select(&[0_u32, 34816][..]),
        prop::sample::select(containments),
        prop::bool::weighted(0.8),
    );
    (call, process).prop_map(|(call, process)| {
        let (call, registers, text, result, descriptor, port) = call;
        let (names, args, uid, tty, containment, visible) = process;
        let number = registers[5] & 0x1fff;
        let case = Case {
            time_ns: 1_700_000_000_123_456_789,
            call,
            registers,
            text,
            number,
            result,
            descriptor,
            port,
            names,
            args,
            uid,
            tty,
            containment,
            visible,
        };
        Case {
            result: possible_result(&case),
            ..case
        }
    })
}

/// dup2 and dup3 return the requested descriptor, or fail.
fn possible_result(case: &Case) -> Option<i64> {
    let asked = u32::try_from(case.registers[1] & 0xffff_ffff)
        .expect("masked")
        .cast_signed();
    match (case.call, case.result) {
        (Syscall::DUP2 | Syscall::DUP3, Some(0..)) if asked >= 0 => Some(asked.into()),
        (Syscall::DUP2 | Syscall::DUP3, Some(0..)) => Some(-9),
        (_, result) => result,
    }
}

const STAGES: [Stage; 5] = [
    Stage::Registers,
    Stage::Strings,
    Stage::Descriptor,
    Stage::Entry,
    Stage::Exit,
];

fn is_planned(plan: &Plan, case: &Case) -> bool {
    plan.calls.get(&case.call).is_some_and(|planned| {
        let holds =
            |group: &Vec<abi::RegisterTest>| group.iter().all(|test| test.holds(&case.registers));
        planned.any_of.iter().any(holds)
    })
}

/// Returns the plan without the always-trapped calls, which would hide the needs of the rules.
fn without_floor(plan: &Plan, engine: &rules::Engine) -> Plan {
    let (own, _) = engine.plan_for_rules();
    assert!(own.calls.keys().all(|call| plan.calls.contains_key(call)));
    own
}

#[test]
fn every_comparison_of_the_generator_compiles() {
    for atom in ATOMS {
        let (_, _, diagnostics) = try_engine(&rule_text("r", atom), &all_matching());
        let errors: Vec<_> = diagnostics
            .iter()
            .filter(|found| found.is_error())
            .collect();
        assert!(errors.is_empty(), "{atom}: {errors:#?}");
    }
}

proptest! {
    // More with PROPTEST_CASES; a failing case is printed in full.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compiled_rules_answer_as_the_reference_does(
        conditions in prop::collection::vec(maybe_indexed(), 1..7),
        case in case(),
    ) {
        let text = rule_texts(&conditions);
        let ruleset = load(&text);
        let (engine, kept) = engine(&text, &all_matching());
        for stage in STAGES {
            let answers: Vec<reference::Answer> = case.at(stage, |event| {
                ruleset.rules.iter().map(|rule| reference::holds(&rule.condition, event)).collect()
            });
            let expected = match (answers.contains(&None), answers.contains(&Some(true))) {
                (true, _) => Relevance::Undecided,
                (false, true) => Relevance::Settled,
                (false, false) => Relevance::Reject,
            };
            let weight = weigh(&engine, &case, stage);
            prop_assert_eq!(weight, expected, "{:?}: {:?}", stage, conditions);
            let undecided = conclude(&engine, &case, stage);
            let unknown = (0..answers.len()).filter(|rule| answers[*rule].is_none());
            let unknown: Vec<String> = unknown.map(|rule| format!("r{rule}")).collect();
            prop_assert_eq!(undecided.iter().map(|name| name.to_string()).collect::<Vec<_>>(), unknown);
            let matched: Vec<String> =
                kept.take().iter().map(|alert| alert.rule.to_string()).collect();
            let holding = (0..answers.len()).filter(|rule| answers[*rule] == Some(true));
            let holding: Vec<String> = holding.map(|rule| format!("r{rule}")).collect();
            prop_assert_eq!(matched, holding);
        }
    }

    #[test]
    fn what_a_stage_decides_no_later_stage_changes(
        conditions in prop::collection::vec(condition(), 1..4),
        case in case(),
    ) {
        let text = rule_texts(&conditions);
        for rule_matching in [RuleMatching::All, RuleMatching::First] {
            let options = rules::EngineOptions { rule_matching, ..all_matching() };
            let (engine, _) = engine(&text, &options);
            let weights = STAGES.map(|stage| weigh(&engine, &case, stage));
            for pair in weights.windows(2) {
                prop_assert!(pair[0] == Relevance::Undecided || pair[0] == pair[1], "{:?}", weights);
            }
        }
    }

    #[test]
    fn what_the_plan_rejects_no_rule_accepts(
        conditions in prop::collection::vec(condition(), 1..4),
        case in case(),
    ) {
        let text = rule_texts(&conditions);
        let (engine, _) = engine(&text, &all_matching());
        let (plan, _) = engine.plan();
        let own = without_floor(&plan, &engine);
        for plan in [&plan, &own] {
            if is_planned(plan, &case) {
                continue;
            }
            let weight = weigh(&engine, &case, Stage::Exit);
            // A `dup` that makes a standard descriptor is seen by the watch on its process.
            let has_socket = matches!(
                case.descriptor,
                DescriptorKind::Ipv4 | DescriptorKind::Ipv6 | DescriptorKind::Unix
            );
            let watched = match plan.stdio {
                StdioWatch::Off => false,
                StdioWatch::Sockets => has_socket,
                StdioWatch::Any => true,
            } && case.call == Syscall::DUP
                && !matches!(case.result, Some(3..));
            prop_assert!(weight != Relevance::Settled || watched, "{:?} {:?}", case, conditions);
        }
    }
}

/// Generated events must reach all outcomes, or the properties above prove little.
#[test]
fn the_generator_reaches_rejected_and_accepted_events() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut planned, mut rejected, mut settled, mut undecided) = (0, 0, 0, 0);
    for _ in 0..1500 {
        let condition = condition().new_tree(&mut runner).unwrap().current();
        let case = case().new_tree(&mut runner).unwrap().current();
        let (engine, _) = engine(&rule_text("r", &condition), &all_matching());
        let (own, _) = engine.plan_for_rules();
        match weigh(&engine, &case, Stage::Exit) {
            Relevance::Settled => settled += 1,
            Relevance::Undecided => undecided += 1,
            Relevance::Reject if is_planned(&own, &case) => planned += 1,
            Relevance::Reject => rejected += 1,
        }
    }
    for (what, count) in [
        ("planned", planned),
        ("rejected", rejected),
        ("settled", settled),
        ("undecided", undecided),
    ] {
        assert!(count > 20, "{what}: {count}");
    }
}
