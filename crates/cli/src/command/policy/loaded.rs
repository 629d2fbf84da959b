//! `tollgate policy loaded`: lists the policies that BPF and AppArmor enforce now.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::REGISTRY;
use policy::EnforcerKind;
use serde_json::{Value, json};

use super::args::Loaded;

/// Runs the verb.
pub(crate) fn execute(args: &Loaded) -> Outcome {
    if args.sweep {
        for enforcer in &REGISTRY {
            (enforcer.sweep)().map_err(|error| failure(&error))?;
        }
    }
    let mut loaded = Vec::new();
    for enforcer in &REGISTRY {
        if let Some(policies) = (enforcer.loaded)() {
            let policies = policies.map_err(|error| failure(&error))?;
            loaded.push((enforcer.about.kind, policies));
        }
    }
    let text = match args.json {
        true => {
            let each = loaded.iter();
            let lists = each.map(|(kind, policies)| {
                let policies = policies.iter().map(json_policy).collect();
                (kind.id().to_owned(), Value::Array(policies))
            });
            format!("{}\n", Value::Object(lists.collect()))
        }
        false => {
            let each = loaded.iter();
            each.flat_map(|(kind, policies)| policies.iter().map(|policy| line(*kind, policy)))
                .collect()
        }
    };
    terminal::print(&text)?;
    Ok(Exit::Ok)
}

fn line(kind: EnforcerKind, policy: &enforce::Loaded) -> String {
    let name = &policy.name;
    match &policy.counts {
        None => format!("{kind} {name}\n"),
        Some(counts) => format!(
            "{kind} {} {name}: {} tasks, {} denied, {} audited, {} lost\n",
            counts.number, counts.tasks, counts.denied, counts.audited, counts.lost
        ),
    }
}

fn json_policy(policy: &enforce::Loaded) -> Value {
    match &policy.counts {
        None => json!(policy.name),
        Some(counts) => json!({
            "number": counts.number,
            "name": policy.name,
            "tasks": counts.tasks,
            "denied": counts.denied,
            "audited": counts.audited,
            "lost": counts.lost,
        }),
    }
}

/// Returns the failure to read the kernel's policies.
pub(super) fn failure(error: &dyn std::error::Error) -> Failure {
    Failure::from_error(Exit::Unsupported, error)
        .help("run it as root; `tollgate doctor` shows which enforcers work here")
}
