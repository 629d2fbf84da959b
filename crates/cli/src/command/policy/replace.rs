//! `tollgate policy replace`.

use agent::policy_files::{self, machine};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::{apparmor, bpf};
use policy::compile::bpf::Profile;
use policy::{EnforcerKind, Enforcers, Mode, Policy};

use super::args::Replace;
use super::load;
use super::loaded::failure;

/// Runs the verb.
pub(crate) fn execute(args: &Replace) -> Outcome {
    let machine = machine();
    let loaded = load(&args.file, &args.accept.rules, &machine);
    let exit = policy_files::exit(loaded.diagnostics.iter());
    terminal::complain(&loaded.render());
    let refuse = |exit: Exit, why: String, help: &str| {
        let message = format!("cannot exchange the policy by {}: {why}", loaded.name);
        Err(Failure::new(exit, message).help(help))
    };
    if exit != Exit::Ok {
        let why = "it has the errors above, and what is in force stays".to_owned();
        return refuse(
            exit,
            why,
            "correct it; `tollgate policy check FILE` shows the same",
        );
    }
    let [policy] = &loaded.policies[..] else {
        let why = format!(
            "it has {} policies, and one is exchanged",
            loaded.policies.len()
        );
        return refuse(Exit::BadInput, why, "put each in a file of its own");
    };
    if policy.mode == Mode::BehaviorModeling {
        let why = "its mode records behaviour and denies nothing".to_owned();
        return refuse(
            Exit::BadInput,
            why,
            "choose `mode: AlwaysAllow` to lift what is in force",
        );
    }
    let mut said = String::new();
    let mut count = 0;
    if policy.enforcers.contains(EnforcerKind::Bpf) {
        let profile = Profile::compile(policy);
        let exchanged = bpf::exchange(&profile, &policy.name).map_err(|error| failure(&error))?;
        said.push_str(&format!("BPF: {exchanged} exchanged\n"));
        count += exchanged;
    }
    if policy.enforcers.contains(EnforcerKind::AppArmor) {
        let exchanged = apparmor::exchange(policy, &machine).map_err(|error| failure(&error))?;
        said.push_str(&format!("AppArmor: {exchanged} exchanged\n"));
        count += exchanged;
    }
    if count == 0 {
        let message = match fixed(policy) {
            Some(fixed) if !is_exchangeable(policy) => format!(
                "cannot exchange {}: it is carried by {fixed}, which only a process itself can tighten",
                policy.name
            ),
            _ => format!(
                "cannot exchange {}: no process is confined by a policy of this name by BPF or AppArmor",
                policy.name
            ),
        };
        let help = match is_exchangeable(policy) {
            true => {
                "`tollgate policy loaded` lists those in force; the name is `metadata.name` of the \
                     policy that they were started with, or else that of its file"
            }
            false => "start the command again with the new policy",
        };
        return Err(Failure::new(Exit::BadInput, message).help(help));
    }
    if let Some(fixed) = fixed(policy) {
        said.push_str(&format!(
            "{fixed}: as they were; a process can only tighten them for itself\n"
        ));
    }
    terminal::print(&said)?;
    Ok(Exit::Ok)
}

/// Whether the kernel holds a part of it that can be exchanged.
fn is_exchangeable(policy: &Policy) -> bool {
    let mut both = [EnforcerKind::Bpf, EnforcerKind::AppArmor].into_iter();
    both.any(|enforcer| policy.enforcers.contains(enforcer))
}

/// Enforcers of the policy that nobody can change from outside.
fn fixed(policy: &Policy) -> Option<Enforcers> {
    let own = [
        EnforcerKind::Seccomp,
        EnforcerKind::Landlock,
        EnforcerKind::Caps,
    ];
    let own = own
        .into_iter()
        .filter(|enforcer| policy.enforcers.contains(*enforcer));
    let own = own.fold(Enforcers::default(), Enforcers::with);
    (own != Enforcers::default()).then_some(own)
}
