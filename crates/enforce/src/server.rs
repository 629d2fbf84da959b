//! What a server that confines itself is denied beyond its policy: the language of policies has no word for it.

use std::os::fd::{AsFd, OwnedFd};

use abi::Errno;
use landlock::{
    AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use policy::compile::landlock::SCOPES;

use crate::Error;
use crate::landlock::{LandlockError, PORTS};

/// Restricts the calling thread, and those that it starts: they listen on this TCP port alone, or on none, send no signal to
/// processes outside, and connect to none of their abstract Unix sockets. Port 0 stands for one that the kernel chooses.
/// Returns what the Landlock version of this kernel lacks for that.
///
/// # Errors
/// Fails if this kernel has no Landlock, or refuses the ruleset.
pub fn restrict_server(port: Option<u16>) -> Result<Vec<String>, Error> {
    let version = sys::landlock::version().map_err(LandlockError::from)?;
    if version < PORTS {
        return Ok(vec![format!(
            "version {version} does not know ports, signals and abstract sockets"
        )]);
    }
    let ruleset = ruleset(port, version >= SCOPES).map_err(LandlockError::from)?;
    let ruleset: Option<OwnedFd> = ruleset.into();
    let ruleset = ruleset.ok_or(LandlockError::Unavailable)?;
    let restricted = match sys::landlock::restrict_self(ruleset.as_fd()) {
        Err(error) if error.is(Errno::EPERM) => sys::seccomp::set_no_new_privs()
            .and_then(|()| sys::landlock::restrict_self(ruleset.as_fd())),
        outcome => outcome,
    };
    restricted.map_err(LandlockError::Restrict)?;
    Ok(match version < SCOPES {
        true => vec![format!(
            "version {version} does not know signals and abstract sockets"
        )],
        false => Vec::new(),
    })
}

fn ruleset(
    port: Option<u16>,
    has_scopes: bool,
) -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessNet::BindTcp)?;
    if has_scopes {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    }
    let mut created = ruleset.create()?;
    if let Some(port) = port {
        created = created.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    Ok(created)
}
