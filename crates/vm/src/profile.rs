//! Compiles a container's `linux.seccomp` to a filter for its machine's kernel.

use abi::{Arch, Errno, RegisterTest, Syscall, TestOp};
use seccomp::table::{self, Rule, Table};
use seccomp::{Action, FilterProgram};
use serde_json::Value;
use sys::seccomp::{FilterFlags, SECCOMP_RET_DATA};

use super::container::{list, text};

/// Architectures by the specification's names.
const ARCHITECTURES: [(&str, Arch); 5] = [
    ("SCMP_ARCH_X86", Arch::I386),
    ("SCMP_ARCH_X32", Arch::X32),
    ("SCMP_ARCH_X86_64", Arch::X86_64),
    ("SCMP_ARCH_ARM", Arch::Arm),
    ("SCMP_ARCH_AARCH64", Arch::Aarch64),
];
/// Filter flags by the specification's names. The last two concern listeners and other threads.
const FLAGS: [(&str, FilterFlags); 4] = [
    ("SECCOMP_FILTER_FLAG_LOG", FilterFlags::LOG),
    ("SECCOMP_FILTER_FLAG_SPEC_ALLOW", FilterFlags::SPEC_ALLOW),
    ("SECCOMP_FILTER_FLAG_TSYNC", FilterFlags(0)),
    ("SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", FilterFlags(0)),
];

/// A compiled filter.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) program: FilterProgram,
    pub(super) flags: FilterFlags,
}

/// Compiles `linux.seccomp`. The error describes what is not understood.
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
    // The native architecture needs no name.
    let native = Arch::native().ok_or("this architecture has no table of calls")?;
    let mut architectures = vec![native];
    let named = list(&profile["architectures"]).iter().map(text);
    let known = named.filter_map(|name| ARCHITECTURES.iter().find(|(known, _)| *known == name));
    architectures.extend(
        known
            .map(|(_, arch)| *arch)
            // A machine cannot execute programs of others.
            .filter(|arch| *arch != native && native.of_kernel().contains(arch)),
    );
    let tables = architectures
        .iter()
        .map(|arch| table(profile, *arch, default));
    let tables: Vec<Table> = tables.collect::<Result<_, _>>()?;
    // As in libseccomp, calls of an unlisted architecture kill their thread.
    let program = table::compile(native, &tables, Action::KillThread);
    let program = program.map_err(|error| error.to_string())?;
    Ok(Some(Profile { program, flags }))
}

/// Builds the rules of one architecture.
fn table(profile: &Value, arch: Arch, default: Action) -> Result<Table, String> {
    let rules = list(&profile["syscalls"])
        .iter()
        .map(|entry| rules(entry, arch));
    let rules: Vec<Vec<Rule>> = rules.collect::<Result<_, _>>()?;
    Ok(Table {
        arch,
        rules: rules.into_iter().flatten().collect(),
        otherwise: default,
        // Calls newer than the profile fail as nonexistent, so that programs fall back to older
        // ones.
        newer: match default {
            Action::Errno(_) => Action::Errno(errno(Errno::ENOSYS)),
            _ => default,
        },
    })
}

/// Parses one entry of `syscalls`. As in runc, several tests of one argument are alternatives.
fn rules(entry: &Value, arch: Arch) -> Result<Vec<Rule>, String> {
    let action = action(&entry["action"], &entry["errnoRet"])?;
    // A name unknown to this kernel needs no rule.
    let known = list(&entry["names"])
        .iter()
        .map(text)
        .filter_map(Syscall::from_name);
    let numbers: Vec<u32> = known.filter_map(|call| call.number(arch)).collect();
    let tests = list(&entry["args"]).iter().map(test);
    let tests: Vec<(u8, Option<RegisterTest>)> = tests.collect::<Result<_, _>>()?;
    // A test that never holds disables its rule.
    let rule = |tests: &[(u8, Option<RegisterTest>)]| {
        let when = tests.iter().map(|(_, test)| *test).collect::<Option<_>>()?;
        Some(Rule {
            numbers: numbers.clone(),
            when,
            action,
        })
    };
    let repeats =
        |(at, (index, _)): (usize, &(u8, _))| tests[..at].iter().any(|(other, _)| other == index);
    Ok(match tests.iter().enumerate().any(repeats) {
        true => tests.chunks(1).filter_map(rule).collect(),
        false => rule(&tests).into_iter().collect(),
    })
}

/// Parses a test: the argument, and the test unless it never holds.
fn test(arg: &Value) -> Result<(u8, Option<RegisterTest>), String> {
    let number = |name: &str| arg[name].as_u64().unwrap_or(0);
    let index = u8::try_from(number("index"))
        .ok()
        .filter(|index| *index < 6);
    let index = index.ok_or_else(|| format!("no such argument: {}", arg["index"]))?;
    let value = number("value");
    let test = match text(&arg["op"]) {
        "SCMP_CMP_EQ" => Some((TestOp::Eq, value)),
        "SCMP_CMP_NE" => Some((TestOp::Ne, value)),
        "SCMP_CMP_GT" => value.checked_add(1).map(|value| (TestOp::Ge, value)),
        "SCMP_CMP_GE" => Some((TestOp::Ge, value)),
        "SCMP_CMP_LT" => value.checked_sub(1).map(|value| (TestOp::Le, value)),
        "SCMP_CMP_LE" => Some((TestOp::Le, value)),
        "SCMP_CMP_MASKED_EQ" => Some((TestOp::MaskedEq { mask: value }, number("valueTwo"))),
        other => return Err(format!("the operator `{other}` is unknown")),
    };
    let test = test.map(|(op, value)| RegisterTest::full(index, op, value));
    Ok((index, test))
}

/// Returns the action with a name of the specification.
fn action(name: &Value, number: &Value) -> Result<Action, String> {
    let given = number
        .as_u64()
        .and_then(|number| u32::try_from(number).ok());
    let given = given.map_or(errno(Errno::EPERM), low_half);
    Ok(match text(name) {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_ERRNO" => Action::Errno(given),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        "SCMP_ACT_LOG" => Action::Log,
        "SCMP_ACT_TRACE" => Action::Trace(given),
        "SCMP_ACT_TRAP" => Action::Trap,
        _ => return Err(format!("the action {name} is not supported there")),
    })
}

fn errno(errno: Errno) -> u16 {
    low_half(errno.0.unsigned_abs())
}

/// Limits a number to the 16 bits of a filter's return value.
fn low_half(number: u32) -> u16 {
    u16::try_from(number & SECCOMP_RET_DATA).expect("masked to 16 bits")
}

#[cfg(test)]
mod tests {
    use seccomp::run::SeccompData;
    use serde_json::json;
    use sys::seccomp::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_THREAD};

    use super::*;

    /// Returns the kernel's decision on a call.
    fn run(program: &FilterProgram, arch: Arch, call: &str, args: [u64; 6]) -> u32 {
        let call = Syscall::from_name(call).unwrap();
        number(
            program,
            arch,
            arch.raw_number(call.number(arch).unwrap()),
            args,
        )
    }

    fn number(program: &FilterProgram, arch: Arch, number: u32, args: [u64; 6]) -> u32 {
        let data = SeccompData {
            number,
            audit: arch.audit(),
            args,
        };
        seccomp::run::run(program, &data).unwrap().action.to_raw()
    }

    fn program(profile: &Value) -> FilterProgram {
        compile(profile).unwrap().unwrap().program
    }

    #[test]
    fn calls_are_identified_by_architecture_and_number() {
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
            // A call that the profile's author cannot have known.
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
    fn nothing_is_above_the_greatest_or_below_the_least_number() {
        for (op, value) in [("GT", u64::MAX), ("LT", 0)] {
            let rule = |further: Value| {
                let args =
                    json!([{"index": 0, "value": value, "op": format!("SCMP_CMP_{op}")}, further]);
                program(&json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                    {"names": ["kill"], "action": "SCMP_ACT_TRAP", "args": args}]}))
            };
            // The other argument is looked at by itself only where tests are alternatives.
            let together = rule(json!({"index": 1, "value": 5, "op": "SCMP_CMP_EQ"}));
            let apart = rule(json!({"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}));
            for arg in [0, 5, u64::MAX] {
                let does = |program| run(program, Arch::X86_64, "kill", [arg, 5, 0, 0, 0, 0]);
                assert_eq!(
                    does(&together),
                    SECCOMP_RET_ALLOW,
                    "{arg:#x} {op} {value:#x}"
                );
                assert_eq!(
                    does(&apart) == 0x0003_0000,
                    arg == 5,
                    "{arg:#x} {op} {value:#x}"
                );
            }
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
