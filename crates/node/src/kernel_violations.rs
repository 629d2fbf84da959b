//! Violations in the containers that the kernel confines, in the form of the alerts of `tollgate runtime`.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::agent::Agent;
use crate::kernel::{KernelViolation, KernelViolations};
use crate::violations::{PATIENCE, TAG, TICK, Violation};

/// How often it is looked whether the kernel reports to another stream.
const LOOK: Duration = Duration::from_secs(1);

/// Follows violations for ever.
pub(crate) fn follow(agent: &Arc<Agent>) {
    // What the kernel has reported meanwhile is of containers of which nothing is known yet.
    agent.wait_for_containers(PATIENCE);
    let mut said = None;
    loop {
        let followed = follow_stream(agent);
        let problem = followed.err();
        let problem =
            problem.map(|cause| format!("cannot read violations from the kernel: {cause}"));
        if let Some(problem) = &problem
            && said.as_ref() != Some(problem)
        {
            agent.say(problem.clone());
        }
        said = problem;
        thread::sleep(LOOK);
    }
}

/// Follows one stream, until there is another.
fn follow_stream(agent: &Arc<Agent>) -> Result<(), String> {
    let Some(kernel) = agent.kernel.enforcer() else {
        return Ok(());
    };
    let of_stream = Arc::clone(agent);
    let stream = kernel.violations(Box::new(move |violation| take(&of_stream, &violation)))?;
    let Some(stream) = stream else {
        return Ok(());
    };
    let mut look = Instant::now() + LOOK;
    loop {
        stream.wait(TICK)?;
        count_losses(agent, &*stream);
        if Instant::now() >= look {
            look = Instant::now() + LOOK;
            if !stream.is_current()? {
                return Ok(());
            }
        }
    }
}

fn count_losses(agent: &Agent, stream: &dyn KernelViolations) {
    match stream.lost() {
        Ok(lost) => agent.state().violations.lost_by_kernel = lost,
        // The counter goes with the programs: the loop looks for another stream.
        Err(_) => agent.state().violations.unknown_losses += 1,
    }
}

fn take(agent: &Agent, violation: &KernelViolation) {
    let alert = alert(violation, Timestamp::now());
    let id = agent.state().numbers.get(&violation.number).cloned();
    if let Some(parsed) = Violation::of(&alert) {
        agent.take_violation(&parsed, id.as_deref());
    }
}

/// The alert of a violation. Fields that are not known are left out.
fn alert(violation: &KernelViolation, now: Timestamp) -> Value {
    let age = SignedDuration::try_from(violation.age).unwrap_or(SignedDuration::ZERO);
    let mut fields = Map::new();
    let action = match violation.errno {
        Some(_) => "denied",
        None => "audited",
    };
    let detail = Some(&violation.detail).filter(|detail| !detail.is_empty());
    for (name, value) in [
        ("policy.rule", Some(&*violation.rule)),
        ("policy.enforcer", Some(violation.enforcer)),
        ("policy.action", Some(action)),
        ("policy.errno", violation.errno.as_deref()),
        ("policy.operation", Some(&*violation.operation)),
        ("evt.args", detail.map(|detail| &**detail)),
        ("fd.name", violation.path.as_deref()),
        ("proc.name", Some(&*violation.comm)),
        ("proc.exepath", violation.exe.as_deref()),
    ] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value.into());
        }
    }
    fields.insert("proc.pid".to_owned(), violation.pid.into());
    json!({ "time": (now - age).to_string(), "tags": [TAG], "output_fields": fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_has_the_fields_of_an_alert_of_the_runtime() {
        let violation = KernelViolation {
            number: 3,
            age: Duration::from_secs(2),
            rule: "r".to_owned(),
            enforcer: "BPF",
            errno: Some("EPERM".to_owned()),
            operation: "open".to_owned(),
            detail: String::new(),
            path: Some("/etc/secret".to_owned()),
            pid: 7,
            comm: "cat".to_owned(),
            exe: None,
        };
        let now: Timestamp = "2026-11-29T10:00:02Z".parse().unwrap();
        let fields = json!({
            "policy.rule": "r", "policy.enforcer": "BPF", "policy.action": "denied", "policy.errno": "EPERM",
            "policy.operation": "open", "fd.name": "/etc/secret", "proc.name": "cat", "proc.pid": 7 });
        let alert = alert(&violation, now);
        assert_eq!(alert["output_fields"], fields);
        assert_eq!(alert["time"], "2026-11-29T10:00:00Z");
        assert!(Violation::of(&alert).is_some());
    }
}
