//! What a whole policy compiles to.

use abi::{RegisterTest, TestOp, TestWidth};
use policy::compile::seccomp::{Action, CallRule};
use policy::compile::{MachineFeatures, apparmor, bpf, caps, landlock, seccomp};
use policy::{Enforcer, Mode, Policy};
use serde_json::{Value, json};

/// For people.
pub(super) fn text(policy: &Policy, enforcer: Enforcer, machine: &MachineFeatures) -> String {
    fn lines<T: ToString>(items: &[T]) -> String {
        items.iter().map(|item| item.to_string() + "\n").collect()
    }
    match enforcer {
        Enforcer::Seccomp if policy.mode == Mode::DefenseInDepth => "not made\n".to_owned(),
        Enforcer::Seccomp => {
            let profile = seccomp::Profile::compile(policy);
            let foreign = match profile.refuse_foreign {
                true => "calls of other architectures -> EPERM\n",
                false => "",
            };
            format!("{foreign}{}all else -> allow\n", lines(&profile.rules))
        }
        Enforcer::Landlock => {
            let profile = landlock::Profile::compile(policy, machine);
            format!(
                "handles {:#x}\n{}",
                profile.handled,
                lines(&profile.entries)
            )
        }
        Enforcer::Caps => {
            let profile = caps::Profile::compile(policy);
            let no_new_privs = profile.no_new_privs;
            format!("drop {}\nno_new_privs {no_new_privs}\n", profile.dropped)
        }
        Enforcer::AppArmor => apparmor::profile(policy, machine),
        Enforcer::Bpf => {
            let profile = bpf::Profile::compile(policy);
            format!(
                "{}hooks: {}\n",
                lines(&profile.entries),
                profile.hooks().join(" ")
            )
        }
    }
}

/// For programs. What AppArmor takes is a text in JSON too.
pub(super) fn json(policy: &Policy, enforcer: Enforcer, machine: &MachineFeatures) -> Value {
    let strings = |entries: Vec<String>| json!(entries);
    match enforcer {
        Enforcer::Seccomp if policy.mode == Mode::DefenseInDepth => Value::Null,
        Enforcer::Seccomp => {
            let profile = seccomp::Profile::compile(policy);
            let rules: Vec<_> = profile.rules.iter().map(json_call).collect();
            json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "refuse_other_architectures": profile.refuse_foreign,
                "syscalls": rules,
            })
        }
        Enforcer::Landlock => {
            let profile = landlock::Profile::compile(policy, machine);
            let entries = profile.entries.iter().map(ToString::to_string).collect();
            json!({ "handled_access_fs": profile.handled, "entries": strings(entries) })
        }
        Enforcer::Caps => {
            let profile = caps::Profile::compile(policy);
            let dropped = profile.dropped.to_string();
            let dropped: Vec<_> = dropped.split_whitespace().collect();
            json!({ "dropped": dropped, "no_new_privs": profile.no_new_privs })
        }
        Enforcer::AppArmor => Value::String(apparmor::profile(policy, machine)),
        Enforcer::Bpf => {
            let profile = bpf::Profile::compile(policy);
            let entries = profile.entries.iter().map(ToString::to_string).collect();
            json!({ "entries": strings(entries), "hooks": profile.hooks() })
        }
    }
}

/// As the OCI runtime specification has it, and more: `rule`, tests of bits, actions that report.
fn json_call(rule: &CallRule) -> Value {
    let (action, errno) = match rule.action {
        Action::Report | Action::Watch => ("SCMP_ACT_LOG", None),
        Action::Refuse(errno) => ("SCMP_ACT_ERRNO", Some(errno.0)),
        Action::RefuseAndReport(errno) => ("SCMP_ACT_NOTIFY", Some(errno.0)),
        Action::Trap => ("SCMP_ACT_TRAP", None),
        Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
        Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
    };
    let args: Vec<_> = rule.when.iter().map(json_test).collect();
    json!({
        "rule": rule.rule,
        "names": [rule.call.name()],
        "action": action,
        "errnoRet": errno,
        "args": args,
    })
}

fn json_test(test: &RegisterTest) -> Value {
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
