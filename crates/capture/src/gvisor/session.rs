//! Configuration of a trace session, which tells gVisor what to report, from the plan.

use std::collections::BTreeSet;
use std::path::Path;

use abi::{Arch, Syscall};
use event::Plan;
use serde_json::{Value, json};

use super::calls;

/// Context fields about the task, requested at every point.
const CONTEXT: [&str; 9] = [
    "time",
    "thread_id",
    "group_id",
    "thread_group_start_time",
    "container_id",
    "credentials",
    "cwd",
    "process_name",
    "parent_thread_group_id",
];
/// Points from which processes are known, with their optional fields.
const STATE: [(&str, &[&str]); 4] = [
    ("container/start", &["env"]),
    ("sentry/clone", &[]),
    ("sentry/execve", &["binary_info"]),
    ("sentry/task_exit", &[]),
];
/// Number of retries before the sandbox counts a message as lost: some 3 ms in all.
const RETRIES: u32 = 8;

/// Returns the session's configuration, as `runsc --pod-init-config` and `runsc trace create --config` take
/// it: every call that some rule can match is sent to the sink at `endpoint`.
#[must_use]
pub fn configuration(plan: &Plan, endpoint: &Path) -> Value {
    let point = |name: String, optional: &[&str]| json!({"name": name, "optional_fields": optional, "context_fields": CONTEXT});
    let state = STATE
        .iter()
        .map(|(name, optional)| point((*name).to_owned(), optional));
    let wanted: BTreeSet<(String, bool)> =
        plan.calls.keys().filter_map(|call| name(*call)).collect();
    let calls = wanted
        .into_iter()
        .map(|(name, has_path)| point(name, if has_path { &["fd_path"] } else { &[] }));
    let points: Vec<Value> = state.chain(calls).collect();
    json!({
        "trace_session": {
            "name": "Default",
            "points": points,
            // Calls that a version of gVisor does not have.
            "ignore_missing": true,
            "sinks": [{
                "name": "remote",
                "config": {
                    "endpoint": endpoint,
                    "retries": RETRIES,
                    "backoff": "25us",
                    "backoff_max": "1ms",
                },
            }],
        }
    })
}

/// Returns the points of `asked` that `given` lacks: a sandbox with the session `given` does not report them.
#[must_use]
pub fn unreported(asked: &Value, given: &Value) -> Vec<String> {
    let reported: BTreeSet<&str> = points(given).collect();
    let missing = points(asked).filter(|point| !reported.contains(point));
    missing.map(str::to_owned).collect()
}

fn points(session: &Value) -> impl Iterator<Item = &str> {
    let points = session["trace_session"]["points"].as_array();
    let points = points.into_iter().flatten();
    points.filter_map(|point| point["name"].as_str())
}

/// Returns the point of a call, and whether it can report the path of its descriptor. A call is reported when
/// it has returned, or if it never returns, when it is made.
fn name(call: Syscall) -> Option<(String, bool)> {
    let native = Arch::native()?;
    // Other ways to make a call do not exist in a sandbox.
    let number = call.number(native)?;
    let stage = if matches!(call, Syscall::EXIT | Syscall::EXIT_GROUP) {
        "enter"
    } else {
        "exit"
    };
    Some(match calls::is_described(call) {
        Some(has_path) => (format!("syscall/{}/{stage}", call.name()), has_path),
        None => (format!("syscall/sysno/{number}/{stage}"), false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use event::{CallPlan, Need};

    fn plan(calls: &[Syscall]) -> Plan {
        let planned = |call: &Syscall| {
            let plan = CallPlan {
                any_of: vec![vec![]],
                strings: true,
                result: Need::IfUndecided,
                reasons: Vec::new(),
            };
            (*call, plan)
        };
        Plan {
            calls: calls.iter().map(planned).collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn calls_of_the_plan_are_asked_for_and_processes_always_are() {
        let plan = plan(&[
            Syscall::OPENAT,
            Syscall::MKDIR,
            Syscall::SETUID,
            Syscall::EXIT_GROUP,
        ]);
        let session = &configuration(&plan, Path::new("/run/x.sock"))["trace_session"];
        let points = session["points"].as_array().unwrap();
        let names: Vec<_> = points
            .iter()
            .map(|point| point["name"].as_str().unwrap())
            .collect();
        let expected = [
            "container/start",
            "sentry/clone",
            "sentry/execve",
            "sentry/task_exit",
            "syscall/openat/exit",
            "syscall/setuid/exit",
            "syscall/sysno/231/enter",
            "syscall/sysno/83/exit",
        ];
        if cfg!(target_arch = "x86_64") {
            assert_eq!(names, expected);
        }
        assert_eq!(points[4]["optional_fields"], json!(["fd_path"]));
        assert_eq!(points[5]["optional_fields"], json!([]));
        assert_eq!(session["sinks"][0]["config"]["endpoint"], "/run/x.sock");
        assert_eq!(session["name"], "Default");
    }

    #[test]
    fn what_a_session_leaves_out_is_named() {
        let endpoint = Path::new("/run/x.sock");
        let asked = configuration(&plan(&[Syscall::OPENAT, Syscall::SETUID]), endpoint);
        let given = configuration(&plan(&[Syscall::SETUID, Syscall::CONNECT]), endpoint);
        assert_eq!(unreported(&asked, &given), ["syscall/openat/exit"]);
        assert_eq!(unreported(&asked, &asked), [""; 0]);
        assert_eq!(unreported(&given, &Value::Null).len(), STATE.len() + 2);
    }
}
