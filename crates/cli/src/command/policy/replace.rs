//! `tollgate policy replace`.

use enforce::{apparmor, bpf};
use policy::compile::bpf::Profile;
use policy::{Enforcer, Enforcers, Mode, Policy};

use super::args::Replace;
use super::loaded::failure;
use super::{check, load, machine};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// Runs the verb.
pub(crate) fn execute(args: &Replace) -> Outcome {
    let machine = machine();
    let loaded = load(&args.file, &args.accept.rules, &machine);
    let exit = check::exit(loaded.diagnostics.iter());
    terminal::complain(&loaded.render());
    let [policy] = &loaded.policies[..] else {
        return Ok(match exit {
            Exit::Ok => Exit::BadInput,
            exit => exit,
        });
    };
    if exit != Exit::Ok || policy.mode == Mode::BehaviorModeling {
        return Ok(match exit {
            Exit::Ok => Exit::BadInput,
            exit => exit,
        });
    }
    let mut said = String::new();
    let mut count = 0;
    if policy.enforcers.contains(Enforcer::Bpf) {
        let profile = Profile::compile(policy);
        let exchanged = bpf::exchange(&profile, &policy.name).map_err(|error| failure(&error))?;
        said.push_str(&format!("BPF: {exchanged} exchanged\n"));
        count += exchanged;
    }
    if policy.enforcers.contains(Enforcer::AppArmor) {
        let exchanged = apparmor::exchange(policy, &machine).map_err(|error| failure(&error))?;
        said.push_str(&format!("AppArmor: {exchanged} exchanged\n"));
        count += exchanged;
    }
    if count == 0 {
        let message = format!(
            "cannot exchange {}: no process is confined by a policy of this name by BPF or AppArmor",
            policy.name
        );
        return Err(Failure::new(Exit::BadInput, message)
            .help("`tollgate policy loaded` lists those in force"));
    }
    if let Some(fixed) = fixed(policy) {
        said.push_str(&format!(
            "{fixed}: as they were; a process can only tighten them for itself\n"
        ));
    }
    terminal::print(&said)?;
    Ok(Exit::Ok)
}

/// Enforcers of the policy that nobody can change from outside.
fn fixed(policy: &Policy) -> Option<Enforcers> {
    let own = [Enforcer::Seccomp, Enforcer::Landlock, Enforcer::Caps];
    let own = own
        .into_iter()
        .filter(|enforcer| policy.enforcers.contains(*enforcer));
    let own = own.fold(Enforcers::default(), Enforcers::with);
    (own != Enforcers::default()).then_some(own)
}
