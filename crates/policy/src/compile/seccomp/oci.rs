//! Seccomp call rules as JSON, in the form of the OCI runtime specification.

use abi::{RegisterTest, TestOp, TestWidth};
use serde_json::{Value, json};

use super::{Action, CallRule};

/// Formats one call rule. Extensions to the specification: `rule`, bit tests, and actions that report.
pub(super) fn call(rule: &CallRule) -> Value {
    let (action, errno) = match rule.action {
        Action::Report | Action::Watch => ("SCMP_ACT_LOG", None),
        Action::Refuse(errno) => ("SCMP_ACT_ERRNO", Some(errno.0)),
        Action::RefuseAndReport(errno) => ("SCMP_ACT_NOTIFY", Some(errno.0)),
        Action::Trap => ("SCMP_ACT_TRAP", None),
        Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
        Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
    };
    let args: Vec<_> = rule.when.iter().map(test).collect();
    json!({
        "rule": rule.rule,
        "names": [rule.call.name()],
        "action": action,
        "errnoRet": errno,
        "args": args,
    })
}

fn test(test: &RegisterTest) -> Value {
    let (op, value, second) = match test.op {
        TestOp::AllBits => ("SCMP_CMP_MASKED_EQ", test.value, Some(test.value)),
        TestOp::AnyBit => ("any of the bits", test.value, None),
        TestOp::NoBit => ("SCMP_CMP_MASKED_EQ", test.value, Some(0)),
        TestOp::Eq => ("SCMP_CMP_EQ", test.value, None),
        TestOp::Ge => ("SCMP_CMP_GE", test.value, None),
        TestOp::Le => ("SCMP_CMP_LE", test.value, None),
        TestOp::MaskedEq { mask } => ("SCMP_CMP_MASKED_EQ", mask, Some(test.value)),
        TestOp::Ne => ("SCMP_CMP_NE", test.value, None),
    };
    json!({
        "index": test.arg,
        "op": op,
        "value": value,
        "valueTwo": second,
        "low_half": test.width == TestWidth::Low32,
    })
}
