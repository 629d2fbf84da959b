//! Parser of `syscallRawRules`: rules on system calls in the notation of the OCI runtime specification.

use abi::{Errno, RegisterTest, Syscall, TestOp};
use yaml::Node;

use super::body::Switches;
use super::raw::raw_rule;
use super::reader::{Fields, Reader};
use crate::diagnostic::{Code, Diagnostic};
use crate::policy::Rule;
use crate::restriction::{Restriction, SyscallAction, SyscallMatch};

const ACTIONS: [&str; 6] = [
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_LOG",
    "SCMP_ACT_TRAP",
];

const OPERATORS: [&str; 7] = [
    "SCMP_CMP_NE",
    "SCMP_CMP_LT",
    "SCMP_CMP_LE",
    "SCMP_CMP_EQ",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_MASKED_EQ",
];

/// The default action, for system calls that no rule names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Default {
    Allowed,
    Denied,
}

pub(super) fn read(
    reader: &mut Reader,
    fields: &Fields<'_>,
    switches: Switches,
    default: Default,
) -> Vec<Rule> {
    let items = reader
        .items_of(fields, "syscallRawRules")
        .iter()
        .enumerate();
    items
        .filter_map(|(index, item)| {
            let id = format!("syscallRawRules[{index}]");
            read_rule(reader, item, id, switches, default)
        })
        .collect()
}

pub(super) fn read_rule(
    reader: &mut Reader,
    node: &Node,
    id: String,
    switches: Switches,
    default: Default,
) -> Option<Rule> {
    let known = ["names", "action", "errnoRet", "args", "argsMatch"];
    let fields = reader.fields(node, &id, &known);
    let action = read_action(reader, &fields, &id, ("action", "errnoRet"), default);
    reader.required(&fields, &id, "names")?;
    let mut calls = Vec::new();
    for (node, name) in reader.words_of(&fields, "names") {
        match Syscall::from_name(name) {
            Some(call) => calls.push(call),
            // No rule denies what this program does not know, so that nothing is to be allowed.
            None if default == Default::Denied && action == Some(SyscallAction::Allow) => {}
            None => unknown_call(reader, node, name),
        }
    }
    if reader.items_of(&fields, "names").is_empty() {
        let message = format!("`{id}` names no system call and does nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    let tests = read_args(reader, &fields)?;
    let any_of = match reader.text_of(&fields, "argsMatch") {
        None => groups(tests),
        Some("all") => together(tests),
        Some(other) => {
            reader.unknown_value(&fields.location, "argsMatch", other, &["all"]);
            return None;
        }
    };
    if any_of.is_empty() {
        let message =
            format!("`{id}` compares with a value that no register can have, and has no effect");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    let action = action?;
    let restrictions = calls
        .into_iter()
        .map(|call| {
            Restriction::Syscall(SyscallMatch {
                call,
                any_of: any_of.clone(),
                action,
            })
        })
        .collect();
    Some(raw_rule(
        id,
        &fields.location,
        switches.verdict(),
        restrictions,
    ))
}

fn unknown_call(reader: &mut Reader, node: &Node, name: &str) {
    let message = format!("no such system call: `{name}`");
    let problem = Diagnostic::new(Code::UnknownValue, node.location.clone(), message);
    reader.report(match Syscall::suggest(name) {
        Some(near) => problem.with_help(format!("did you mean `{near}`?")),
        None => problem,
    });
}

/// Reads an action. `keys` name it and its error number.
pub(super) fn read_action(
    reader: &mut Reader,
    fields: &Fields<'_>,
    id: &str,
    (key, errno_key): (&str, &str),
    default: Default,
) -> Option<SyscallAction> {
    let node = reader.required(fields, id, key)?;
    let errno = match fields.find(errno_key) {
        Some(node) => {
            let largest = u64::try_from(abi::errno::MAX_ERRNO).unwrap_or_default();
            let number = reader.number(node, errno_key, largest)?;
            Errno(i32::try_from(number).ok()?)
        }
        None => Errno::EPERM,
    };
    let action = match reader.text(node, key)? {
        "SCMP_ACT_ERRNO" if errno == Errno(0) => {
            let message = "an error number of 0 would report success for a call that was not made";
            reader.problem(Code::UnknownValue, &node.location, message);
            return None;
        }
        "SCMP_ACT_ERRNO" => SyscallAction::Errno(errno),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => SyscallAction::KillThread,
        "SCMP_ACT_KILL_PROCESS" => SyscallAction::KillProcess,
        "SCMP_ACT_TRAP" => SyscallAction::Trap,
        "SCMP_ACT_LOG" => SyscallAction::Log,
        "SCMP_ACT_ALLOW" if default == Default::Denied => SyscallAction::Allow,
        "SCMP_ACT_ALLOW" => {
            let message =
                "SCMP_ACT_ALLOW does nothing: what no rule denies is allowed, and a denial wins";
            reader.problem(Code::Contradiction, &node.location, message);
            return None;
        }
        other => {
            reader.unknown_value(&node.location, key, other, &ACTIONS);
            return None;
        }
    };
    if fields.find(errno_key).is_some() && !matches!(action, SyscallAction::Errno(_)) {
        let message = format!("`{errno_key}` does nothing with this action");
        reader.problem(Code::Contradiction, &node.location, message);
    }
    Some(action)
}

/// Parses the argument comparisons. The test is `None` if the comparison never holds.
fn read_args(reader: &mut Reader, fields: &Fields<'_>) -> Option<Vec<(u8, Option<RegisterTest>)>> {
    let mut tests = Vec::new();
    for item in reader.items_of(fields, "args") {
        let item = reader.fields(item, "args", &["index", "value", "valueTwo", "op"]);
        let index = reader.required(&item, "args", "index")?;
        let index = u8::try_from(reader.number(index, "index", 5)?).ok()?;
        let value = reader.required(&item, "args", "value")?;
        let value = reader.number(value, "value", u64::MAX)?;
        let second = match item.find("valueTwo") {
            Some(node) => reader.number(node, "valueTwo", u64::MAX)?,
            None => 0,
        };
        let op = reader.required(&item, "args", "op")?;
        let name = reader.text(op, "op")?;
        let Some((op, operand)) = operator(name, value, second) else {
            reader.unknown_value(&op.location, "op", name, &OPERATORS);
            return None;
        };
        tests.push((index, op.map(|op| RegisterTest::full(index, op, operand))));
    }
    Some(tests)
}

/// The test for an operator and its operands. The inner `None` means that the test never holds.
fn operator(name: &str, value: u64, second: u64) -> Option<(Option<TestOp>, u64)> {
    Some(match name {
        "SCMP_CMP_NE" => (Some(TestOp::Ne), value),
        "SCMP_CMP_EQ" => (Some(TestOp::Eq), value),
        "SCMP_CMP_LE" => (Some(TestOp::Le), value),
        "SCMP_CMP_GE" => (Some(TestOp::Ge), value),
        "SCMP_CMP_LT" => match value.checked_sub(1) {
            Some(below) => (Some(TestOp::Le), below),
            None => (None, 0),
        },
        "SCMP_CMP_GT" => match value.checked_add(1) {
            Some(above) => (Some(TestOp::Ge), above),
            None => (None, 0),
        },
        "SCMP_CMP_MASKED_EQ" => (Some(TestOp::MaskedEq { mask: value }), second & value),
        _ => return None,
    })
}

/// Groups comparisons that all have to hold, except that a second comparison of the same argument starts a
/// rule of its own. runc does the same, because libseccomp cannot compare an argument twice.
fn groups(tests: Vec<(u8, Option<RegisterTest>)>) -> Vec<Vec<RegisterTest>> {
    let repeated = tests
        .iter()
        .enumerate()
        .any(|(at, (index, _))| tests[..at].iter().any(|(other, _)| other == index));
    if repeated {
        return tests
            .into_iter()
            .filter_map(|(_, test)| Some(vec![test?]))
            .collect();
    }
    together(tests)
}

/// Puts all comparisons into one group. `argsMatch: all` requests this for several comparisons of one
/// argument, which the runtime specification cannot express.
fn together(tests: Vec<(u8, Option<RegisterTest>)>) -> Vec<Vec<RegisterTest>> {
    let all: Option<Vec<_>> = tests.into_iter().map(|(_, test)| test).collect();
    all.into_iter().collect()
}
