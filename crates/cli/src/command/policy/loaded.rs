//! `tollgate policy loaded`.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::{apparmor, bpf};
use serde_json::json;

use super::args::Loaded;

/// Runs the verb.
pub(crate) fn execute(args: &Loaded) -> Outcome {
    if args.sweep {
        bpf::release().map_err(|error| failure(&error))?;
        apparmor::sweep().map_err(|error| failure(&error))?;
    }
    let policies = bpf::loaded().map_err(|error| failure(&error))?;
    let profiles = apparmor::loaded().map_err(|error| failure(&error))?;
    if args.json {
        let policies: Vec<_> = policies
            .iter()
            .map(|loaded| {
                json!({
                    "number": loaded.number,
                    "name": loaded.name,
                    "tasks": loaded.users,
                    "denied": loaded.denied,
                    "audited": loaded.audited,
                    "lost": loaded.lost,
                })
            })
            .collect();
        terminal::print(&format!(
            "{}\n",
            json!({ "bpf": policies, "apparmor": profiles })
        ))?;
        return Ok(Exit::Ok);
    }
    let mut text = String::new();
    for loaded in policies {
        text.push_str(&format!(
            "BPF {} {}: {} tasks, {} denied, {} audited, {} lost\n",
            loaded.number, loaded.name, loaded.users, loaded.denied, loaded.audited, loaded.lost
        ));
    }
    for profile in profiles {
        text.push_str(&format!("AppArmor {profile}\n"));
    }
    terminal::print(&text)?;
    Ok(Exit::Ok)
}

/// What the kernel keeps is out of reach.
pub(super) fn failure(error: &dyn std::error::Error) -> Failure {
    Failure::from_error(Exit::Unsupported, error)
        .help("run it as root; `tollgate doctor` shows which enforcers work here")
}
