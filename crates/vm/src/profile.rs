//! `linux.seccomp` of a container as a program for the kernel of its machine.

use abi::{Arch, Errno, Syscall};
use serde_json::Value;
use sys::seccomp::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD,
    BPF_MAXINSNS, BPF_RET, BPF_W, DATA_ARCH, DATA_NR, FilterFlags, SECCOMP_RET_ALLOW,
    SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD,
    SECCOMP_RET_LOG, SECCOMP_RET_TRACE, SECCOMP_RET_TRAP, SockFilter, data_arg_high, data_arg_low,
};

use super::container::{list, text};

/// Load a word of `struct seccomp_data`.
const LD: u16 = BPF_LD | BPF_W | BPF_ABS;
const AND: u16 = BPF_ALU | BPF_AND | BPF_K;
const JA: u16 = BPF_JMP | BPF_JA;
const JEQ: u16 = BPF_JMP | BPF_JEQ | BPF_K;
const JGT: u16 = BPF_JMP | BPF_JGT | BPF_K;
const JGE: u16 = BPF_JMP | BPF_JGE | BPF_K;
const RET: u16 = BPF_RET | BPF_K;
/// Marks a jump to the end of the rule; no rule is that long.
const PAST: u8 = u8::MAX;
/// Actions by the specification's names.
const ACTIONS: [(&str, u32); 8] = [
    ("SCMP_ACT_ALLOW", SECCOMP_RET_ALLOW),
    ("SCMP_ACT_ERRNO", SECCOMP_RET_ERRNO),
    ("SCMP_ACT_KILL", SECCOMP_RET_KILL_THREAD),
    ("SCMP_ACT_KILL_PROCESS", SECCOMP_RET_KILL_PROCESS),
    ("SCMP_ACT_KILL_THREAD", SECCOMP_RET_KILL_THREAD),
    ("SCMP_ACT_LOG", SECCOMP_RET_LOG),
    ("SCMP_ACT_TRACE", SECCOMP_RET_TRACE),
    ("SCMP_ACT_TRAP", SECCOMP_RET_TRAP),
];
/// What a machine of this kind can be called as, by the specification's names.
const ARCHITECTURES: [(&str, Arch); 3] = [
    ("SCMP_ARCH_X86", Arch::I386),
    ("SCMP_ARCH_X32", Arch::X32),
    ("SCMP_ARCH_X86_64", Arch::X86_64),
];
/// Flags by the specification's names; the last two are for listeners and for other threads.
const FLAGS: [(&str, FilterFlags); 4] = [
    ("SECCOMP_FILTER_FLAG_LOG", FilterFlags::LOG),
    ("SECCOMP_FILTER_FLAG_SPEC_ALLOW", FilterFlags::SPEC_ALLOW),
    ("SECCOMP_FILTER_FLAG_TSYNC", FilterFlags(0)),
    ("SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", FilterFlags(0)),
];

/// A filter that is to be loaded.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) program: Vec<SockFilter>,
    pub(super) flags: FilterFlags,
}

/// A rule as far as one architecture knows it.
struct Rule {
    numbers: Vec<u32>,
    tests: Vec<Test>,
    action: u32,
}

/// `args[index] & mask`, compared.
struct Test {
    index: u8,
    mask: u64,
    value: u64,
    is: Comparison,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// The filter of `linux.seccomp`; an error says what in it is not understood.
pub(super) fn compile(profile: &Value) -> Result<Option<Profile>, String> {
    if profile.is_null() {
        return Ok(None);
    }
    let default = action(&profile["defaultAction"], &profile["defaultErrnoRet"])?;
    let mut flags = FilterFlags(0);
    for name in list(&profile["flags"]).iter().map(text) {
        let known = FLAGS.iter().find(|(known, _)| *known == name);
        flags = flags
            | known
                .ok_or_else(|| format!("the flag `{name}` is unknown"))?
                .1;
    }
    // What a machine is itself needs no name.
    let mut architectures = vec![Arch::X86_64];
    let named = list(&profile["architectures"]).iter().map(text);
    let known = named.filter_map(|name| ARCHITECTURES.iter().find(|(known, _)| *known == name));
    architectures.extend(
        known
            .map(|(_, arch)| *arch)
            .filter(|arch| *arch != Arch::X86_64),
    );
    let part = |arch: Arch| -> Result<Option<Vec<SockFilter>>, String> {
        let is_named = architectures.contains(&arch);
        is_named.then(|| part(profile, arch, default)).transpose()
    };
    let (native, x32, i386) = (part(Arch::X86_64)?, part(Arch::X32)?, part(Arch::I386)?);
    let program = join(native, x32, i386);
    if program.len() > BPF_MAXINSNS {
        return Err("it is longer than the kernel takes".to_owned());
    }
    Ok(Some(Profile { program, flags }))
}

/// Programs for each architecture behind what tells them apart. Calls as an architecture that is not named
/// end their thread, as libseccomp has it.
fn join(
    native: Option<Vec<SockFilter>>,
    x32: Option<Vec<SockFilter>>,
    i386: Option<Vec<SockFilter>>,
) -> Vec<SockFilter> {
    let unnamed = || vec![SockFilter::stmt(RET, SECCOMP_RET_KILL_THREAD)];
    let [native, x32, i386] = [native, x32, i386].map(|part| part.unwrap_or_else(unnamed));
    let length = |part: &[SockFilter]| u32::try_from(part.len()).unwrap_or(u32::MAX);
    let mut program = vec![
        SockFilter::stmt(LD, DATA_ARCH),
        SockFilter::jump(JEQ, Arch::X86_64.audit(), 3, 0),
        SockFilter::jump(JEQ, Arch::I386.audit(), 1, 0),
        SockFilter::stmt(RET, SECCOMP_RET_KILL_THREAD),
        // Over those of the other two, with what tells these apart.
        SockFilter::stmt(JA, 3 + length(&native) + length(&x32)),
        SockFilter::stmt(LD, DATA_NR),
        SockFilter::jump(JGE, Arch::X32.raw_number(0), 0, 1),
        SockFilter::stmt(JA, length(&native)),
    ];
    for part in [native, x32, i386] {
        program.extend(part);
    }
    program
}

/// The program for one architecture: rules with tests first, then a table of numbers.
fn part(profile: &Value, arch: Arch, default: u32) -> Result<Vec<SockFilter>, String> {
    let mut program = Vec::new();
    let mut table = Vec::new();
    for entry in list(&profile["syscalls"]) {
        for rule in rules(entry, arch)? {
            if rule.tests.is_empty() {
                let new = rule.numbers.into_iter().filter(|number| {
                    let is_there = |(known, _): &(u32, u32)| known == number;
                    !table.iter().any(is_there)
                });
                let new: Vec<_> = new.map(|number| (number, rule.action)).collect();
                table.extend(new);
            } else {
                for number in &rule.numbers {
                    tested(*number, &rule, &mut program);
                }
            }
        }
    }
    program.push(SockFilter::stmt(LD, DATA_NR));
    table.sort_unstable();
    // Calls that are newer than the profile do not exist, so that programs take older ones instead.
    let behind = match default & !SECCOMP_RET_DATA {
        SECCOMP_RET_ERRNO => SECCOMP_RET_ERRNO | Errno::ENOSYS.0.unsigned_abs(),
        _ => default,
    };
    let mut next = arch.raw_number(0);
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut range = |end: u32, action: u32| match ranges.last_mut() {
        Some(last) if last.1 == action => last.0 = end,
        _ => ranges.push((end, action)),
    };
    for (number, action) in table {
        if number > next {
            range(number - 1, default);
        }
        range(number, action);
        next = number + 1;
    }
    for (end, action) in ranges {
        program.extend([
            SockFilter::jump(JGT, end, 1, 0),
            SockFilter::stmt(RET, action),
        ]);
    }
    program.push(SockFilter::stmt(RET, behind));
    Ok(program)
}

/// One entry of `syscalls`. Several tests of one argument are alternatives, as runc has it.
fn rules(entry: &Value, arch: Arch) -> Result<Vec<Rule>, String> {
    let action = action(&entry["action"], &entry["errnoRet"])?;
    // What this kernel does not know no rule can be about.
    let known = list(&entry["names"])
        .iter()
        .map(text)
        .filter_map(Syscall::from_name);
    let numbers = known.filter_map(|call| Some(arch.raw_number(call.number(arch)?)));
    let numbers: Vec<u32> = numbers.collect();
    let tests = list(&entry["args"]).iter().map(test);
    let tests: Vec<Test> = tests.collect::<Result<_, _>>()?;
    let rule = |tests| Rule {
        numbers: numbers.clone(),
        tests,
        action,
    };
    let repeats =
        |(at, test): (usize, &Test)| tests[..at].iter().any(|other| other.index == test.index);
    Ok(match tests.iter().enumerate().any(repeats) {
        true => tests.into_iter().map(|test| rule(vec![test])).collect(),
        false => vec![rule(tests)],
    })
}

fn test(arg: &Value) -> Result<Test, String> {
    let number = |name: &str| arg[name].as_u64().unwrap_or(0);
    let index = u8::try_from(number("index"))
        .ok()
        .filter(|index| *index < 6);
    let index = index.ok_or_else(|| format!("there is no argument {}", arg["index"]))?;
    let (mask, value, is) = match text(&arg["op"]) {
        "SCMP_CMP_EQ" => (u64::MAX, number("value"), Comparison::Equal),
        "SCMP_CMP_NE" => (u64::MAX, number("value"), Comparison::NotEqual),
        "SCMP_CMP_GT" => (u64::MAX, number("value"), Comparison::Greater),
        "SCMP_CMP_GE" => (u64::MAX, number("value"), Comparison::GreaterOrEqual),
        "SCMP_CMP_LT" => (u64::MAX, number("value"), Comparison::Less),
        "SCMP_CMP_LE" => (u64::MAX, number("value"), Comparison::LessOrEqual),
        "SCMP_CMP_MASKED_EQ" => (number("value"), number("valueTwo"), Comparison::Equal),
        other => return Err(format!("the operator `{other}` is unknown")),
    };
    Ok(Test {
        index,
        mask,
        value,
        is,
    })
}

fn action(name: &Value, errno: &Value) -> Result<u32, String> {
    let found = ACTIONS.iter().find(|(known, _)| name == known);
    let (_, action) = found.ok_or_else(|| format!("the action {name} cannot be had there"))?;
    let given = errno.as_u64().and_then(|errno| u32::try_from(errno).ok());
    let given = given.unwrap_or(Errno::EPERM.0.unsigned_abs());
    Ok(match *action {
        SECCOMP_RET_ERRNO | SECCOMP_RET_TRACE => action | given & SECCOMP_RET_DATA,
        action => action,
    })
}

/// A rule with tests about one call. What does not fit goes on behind it.
fn tested(number: u32, rule: &Rule, program: &mut Vec<SockFilter>) {
    let begin = program.len();
    program.extend([
        SockFilter::stmt(LD, DATA_NR),
        SockFilter::jump(JEQ, number, 0, PAST),
    ]);
    for test in &rule.tests {
        compare(test, program);
    }
    program.push(SockFilter::stmt(RET, rule.action));
    let end = program.len();
    for (at, instruction) in program.iter_mut().enumerate().skip(begin) {
        let distance = u8::try_from(end - at - 1).expect("six tests are below 60 instructions");
        for to in [&mut instruction.jt, &mut instruction.jf] {
            if *to == PAST {
                *to = distance;
            }
        }
    }
}

/// Goes on behind the rule if a test does not hold.
fn compare(test: &Test, program: &mut Vec<SockFilter>) {
    let word = |value: u64, shift: u32| u32::try_from(value >> shift & 0xffff_ffff).unwrap_or(0);
    let load = |offset: u32, shift: u32| {
        let mask = word(test.mask, shift);
        let and = (mask != u32::MAX).then(|| SockFilter::stmt(AND, mask));
        std::iter::once(SockFilter::stmt(LD, offset)).chain(and)
    };
    let (high_value, low_value) = (word(test.value, 32), word(test.value, 0));
    let low_part: Vec<_> = load(data_arg_low(test.index), 0).collect();
    let over = u8::try_from(low_part.len()).unwrap_or(0);
    program.extend(load(data_arg_high(test.index), 32));
    let (upper, lower) = jumps(test.is, high_value, low_value, over);
    program.extend(upper);
    program.extend(low_part);
    program.push(lower);
}

/// The jumps behind the upper word, and the one behind the lower. `over` is the length of what loads the lower
/// word: jumps lead from the upper word over the lower one, into the test's success, or past the rule.
fn jumps(
    is: Comparison,
    high_value: u32,
    low_value: u32,
    over: u8,
) -> (Vec<SockFilter>, SockFilter) {
    match is {
        Comparison::Equal => (
            vec![SockFilter::jump(JEQ, high_value, 0, PAST)],
            SockFilter::jump(JEQ, low_value, 0, PAST),
        ),
        Comparison::NotEqual => (
            vec![SockFilter::jump(JEQ, high_value, 0, over + 1)],
            SockFilter::jump(JEQ, low_value, PAST, 0),
        ),
        Comparison::Greater => (
            vec![
                SockFilter::jump(JGT, high_value, over + 2, 0),
                SockFilter::jump(JEQ, high_value, 0, PAST),
            ],
            SockFilter::jump(JGT, low_value, 0, PAST),
        ),
        Comparison::GreaterOrEqual => (
            vec![
                SockFilter::jump(JGT, high_value, over + 2, 0),
                SockFilter::jump(JEQ, high_value, 0, PAST),
            ],
            SockFilter::jump(JGE, low_value, 0, PAST),
        ),
        Comparison::Less => (
            vec![
                SockFilter::jump(JGT, high_value, PAST, 0),
                SockFilter::jump(JEQ, high_value, 0, over + 1),
            ],
            SockFilter::jump(JGE, low_value, PAST, 0),
        ),
        Comparison::LessOrEqual => (
            vec![
                SockFilter::jump(JGT, high_value, PAST, 0),
                SockFilter::jump(JEQ, high_value, 0, over + 1),
            ],
            SockFilter::jump(JGT, low_value, PAST, 0),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What the kernel would do.
    fn run(program: &[SockFilter], arch: Arch, call: &str, args: [u64; 6]) -> u32 {
        let call = Syscall::from_name(call).unwrap();
        number(
            program,
            arch,
            arch.raw_number(call.number(arch).unwrap()),
            args,
        )
    }

    fn number(program: &[SockFilter], arch: Arch, nr: u32, args: [u64; 6]) -> u32 {
        let mut data = vec![nr, arch.audit(), 0, 0];
        for arg in args {
            data.extend([arg & 0xffff_ffff, arg >> 32].map(|word| u32::try_from(word).unwrap()));
        }
        let (mut at, mut word) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let is = match step.code {
                LD => {
                    word = data[usize::try_from(step.k / 4).unwrap()];
                    continue;
                }
                AND => {
                    word &= step.k;
                    continue;
                }
                RET => return step.k,
                JA => {
                    at += usize::try_from(step.k).unwrap();
                    continue;
                }
                JEQ => word == step.k,
                JGT => word > step.k,
                JGE => word >= step.k,
                other => panic!("{other}"),
            };
            at += usize::from(if is { step.jt } else { step.jf });
        }
    }

    fn program(profile: &Value) -> Vec<SockFilter> {
        compile(profile).unwrap().unwrap().program
    }

    #[test]
    fn calls_are_told_by_architecture_and_number() {
        let program = program(&json!({
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 13,
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_ARM"],
            "syscalls": [
                {"names": ["read", "write", "no_such_call"], "action": "SCMP_ACT_ALLOW"},
                {"names": ["getpid"], "action": "SCMP_ACT_KILL_PROCESS"},
                {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            ],
        }));
        for arch in [Arch::X86_64, Arch::I386] {
            assert_eq!(
                run(&program, arch, "read", [0; 6]),
                SECCOMP_RET_ALLOW,
                "{arch}"
            );
            assert_eq!(
                run(&program, arch, "write", [0; 6]),
                SECCOMP_RET_ALLOW,
                "{arch}"
            );
            assert_eq!(run(&program, arch, "getpid", [0; 6]), 0x8000_0000, "{arch}");
            assert_eq!(
                run(&program, arch, "mkdir", [0; 6]),
                SECCOMP_RET_ERRNO | 38,
                "{arch}"
            );
            assert_eq!(
                run(&program, arch, "open", [0; 6]),
                SECCOMP_RET_ERRNO | 13,
                "{arch}"
            );
            // One that the profile's author cannot have known.
            assert_eq!(
                number(&program, arch, 2000, [0; 6]),
                SECCOMP_RET_ERRNO | 38,
                "{arch}"
            );
        }
        assert_eq!(
            run(&program, Arch::X32, "read", [0; 6]),
            SECCOMP_RET_KILL_THREAD
        );
    }

    #[test]
    fn arguments_are_compared_in_64_bits() {
        let big = 5_u64 << 32 | 7;
        let near = [
            big - (1 << 32),
            big - 1,
            big,
            big + 1,
            big + (1 << 32),
            7,
            u64::MAX,
        ];
        for (op, holds) in [
            ("EQ", (|a, b| a == b) as fn(u64, u64) -> bool),
            ("NE", |a, b| a != b),
            ("GT", |a, b| a > b),
            ("GE", |a, b| a >= b),
            ("LT", |a, b| a < b),
            ("LE", |a, b| a <= b),
        ] {
            let program = program(&json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": ["kill"], "action": "SCMP_ACT_TRAP",
                    "args": [{"index": 1, "value": big, "op": format!("SCMP_CMP_{op}")}]}]}));
            for value in near {
                let does =
                    run(&program, Arch::X86_64, "kill", [9, value, 9, 9, 9, 9]) == 0x0003_0000;
                assert_eq!(does, holds(value, big), "{value:#x} {op} {big:#x}");
            }
            assert_eq!(
                run(&program, Arch::X86_64, "read", [big; 6]),
                SECCOMP_RET_ALLOW
            );
        }
    }

    #[test]
    fn tests_of_one_argument_are_alternatives_and_others_hold_together() {
        let arg =
            |index: u32, value: u64| json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"});
        let program = program(&json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [arg(0, 0), arg(0, 8)]},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [arg(0, 1), arg(1, 2)]},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["clone", "exit"], "action": "SCMP_ACT_LOG"},
        ]}));
        let allowed = |call: &str, args: [u64; 6]| {
            run(&program, Arch::X86_64, call, args) == SECCOMP_RET_ALLOW
        };
        assert!(allowed("personality", [0; 6]) && allowed("personality", [8, 0, 0, 0, 0, 0]));
        assert!(!allowed("personality", [9; 6]));
        assert!(allowed("socket", [1, 2, 0, 0, 0, 0]) && !allowed("socket", [1, 1, 0, 0, 0, 0]));
        assert!(allowed("clone", [0x1_0000_0011, 0, 0, 0, 0, 0]));
        let others = run(
            &program,
            Arch::X86_64,
            "clone",
            [0x0002_0000, 0, 0, 0, 0, 0],
        );
        assert_eq!(others, 0x7ffc_0000, "the rule without tests is the last");
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let rule = |rule: Value| json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]});
        for profile in [
            json!({"defaultAction": "SCMP_ACT_NOTIFY"}),
            json!({}),
            json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_NEW"]}),
            rule(json!({"names": ["read"], "action": "SCMP_ACT_WHAT"})),
            rule(json!({"names": ["read"], "action": "SCMP_ACT_LOG",
                "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]})),
            rule(
                json!({"names": ["read"], "action": "SCMP_ACT_LOG", "args": [{"index": 0, "op": "x"}]}),
            ),
        ] {
            assert!(compile(&profile).is_err(), "{profile}");
        }
        assert!(compile(&Value::Null).unwrap().is_none());
    }
}
