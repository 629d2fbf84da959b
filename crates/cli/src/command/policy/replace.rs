//! `tollgate policy replace`: replaces a policy for the processes that it confines.

use agent::policy_files::{self, Loaded, machine};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::REGISTRY;
use policy::{Enforcers, Mode, Policy};

use super::args::Replace;
use super::load;
use super::loaded::failure;

/// Runs the verb.
pub(crate) fn execute(args: &Replace) -> Outcome {
    let machine = machine();
    let loaded = load(&args.file, &args.accept.rules, &machine);
    terminal::complain(&loaded.render());
    let policy = only_policy(&loaded)?;
    let mut fixed = Enforcers::default();
    let mut exchanged = Vec::new();
    for enforcer in &REGISTRY {
        let kind = enforcer.about.kind;
        if !policy.enforcers.contains(kind) {
            continue;
        }
        match (enforcer.exchange)(policy, &machine) {
            None => fixed = fixed.with(kind),
            Some(count) => exchanged.push((kind, count.map_err(|error| failure(&error))?)),
        }
    }
    if exchanged.iter().all(|(_, count)| *count == 0) {
        return Err(nothing_in_force(policy, fixed, !exchanged.is_empty()));
    }
    let lines = exchanged.iter();
    let mut said: String = lines
        .map(|(kind, count)| format!("{kind}: {count} exchanged\n"))
        .collect();
    if fixed != Enforcers::default() {
        said.push_str(&format!(
            "{fixed}: as they were; a process can only tighten them for itself\n"
        ));
    }
    terminal::print(&said)?;
    Ok(Exit::Ok)
}

/// Returns the policy of a file that has exactly one, without errors, which denies something.
fn only_policy(loaded: &Loaded) -> Result<&Policy, Failure> {
    let refuse = |exit: Exit, why: String, help: &str| {
        let message = format!("cannot replace the policy of {}: {why}", loaded.name);
        Err(Failure::new(exit, message).help(help))
    };
    let exit = policy_files::exit(loaded.diagnostics.iter());
    if exit != Exit::Ok {
        let why = "it has the errors above; the old policy remains in force".to_owned();
        let help = "correct it; `tollgate policy check FILE` shows the same";
        return refuse(exit, why, help);
    }
    let [policy] = &loaded.policies[..] else {
        let count = loaded.policies.len();
        let why = format!("it has {count} policies, and one is exchanged");
        return refuse(Exit::BadInput, why, "put each policy in a separate file");
    };
    if policy.mode == Mode::BehaviorModeling {
        let why = "its mode records behaviour and denies nothing".to_owned();
        let help = "choose `mode: AlwaysAllow` to lift what is in force";
        return refuse(Exit::BadInput, why, help);
    }
    Ok(policy)
}

/// Returns the failure if no process is confined by a policy that can be replaced. `fixed`: enforcers of the
/// policy that cannot be changed from outside.
fn nothing_in_force(policy: &Policy, fixed: Enforcers, is_exchangeable: bool) -> Failure {
    let message = match fixed != Enforcers::default() && !is_exchangeable {
        true => format!(
            "cannot replace {}: it is enforced by {fixed}, which only the confined process itself can tighten",
            policy.name
        ),
        false => format!(
            "cannot replace {}: BPF and AppArmor confine no process by a policy of this name",
            policy.name
        ),
    };
    Failure::new(Exit::BadInput, message).help(match is_exchangeable {
        true => {
            "`tollgate policy loaded` lists the policies in force; the name is `metadata.name` of the \
             policy, or else the name of its file"
        }
        false => "start the command again with the new policy",
    })
}
