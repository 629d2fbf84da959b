//! The enforcer `Caps`: the process drops capabilities.

use abi::constant::CAP_SETPCAP;
use abi::{Capabilities, Errno, Syscall};
use capture::notify::Caller;
use policy::EnforcerKind;
use policy::compile::caps::Profile;
use probe::{Support, fix, in_child};
use sys::credential::{self, CapabilitySets};

use super::remote::{PrctlCall, set_no_new_privs};
use super::{About, Container, Enforcer, Report, Request, Shared, count};
use crate::{Error, caps};

pub(super) const ABOUT: About = About {
    kind: EnforcerKind::Caps,
    probe: "enforce-caps",
    purpose: "policies: drops capabilities",
    step: "drop capabilities",
    defers_anew: false,
};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caps(Profile);

impl Enforcer for Caps {
    /// Has a child drop everything and check that it has no capability left.
    fn probe() -> Support {
        in_child(|| {
            let before = credential::capabilities(0).map(|sets| sets.permitted);
            let dropped = caps::drop(Profile {
                dropped: Capabilities::ALL,
                no_new_privs: true,
            });
            let after = credential::capabilities(0).map(|sets| sets.permitted);
            match (before, dropped, after) {
                (Ok(before), Ok(()), Ok(after)) if after.0 == 0 => match before.0.count_ones() {
                    0 => Support::yes(
                        "this process has none, and programs that it executes get none",
                    ),
                    count => Support::yes(format!(
                        "works: a child process dropped all {count} capabilities"
                    )),
                },
                (_, Err(error), _) | (Err(error), ..) | (.., Err(error)) => Support::no(
                    error.to_string(),
                    fix::allow_calls("capset(2), capget(2) and prctl(2)"),
                ),
                (.., Ok(after)) => Support::no(
                    format!("a child process dropped all capabilities and still has {after}"),
                    "report this as a defect",
                ),
            }
        })
    }

    fn compile(request: &Request<'_>, _shared: &mut Shared) -> Result<Self, Error> {
        Ok(Self(Profile::compile(request.policy)))
    }

    fn apply(&self) -> sys::Result<()> {
        caps::drop(self.0)
    }

    fn report(&self) -> Report {
        let dropped = usize::try_from(self.0.dropped.0.count_ones()).unwrap_or(0);
        Report {
            given: count(dropped, "capability dropped", "capabilities dropped"),
            lacks: Vec::new(),
        }
    }

    /// The set in hexadecimal digits, and the state of `no_new_privs`.
    fn deferred(&self) -> Option<String> {
        let Profile {
            dropped,
            no_new_privs,
        } = self.0;
        (self.0 != Profile::default()).then(|| format!("{:x} {no_new_privs}", dropped.0))
    }

    fn complete(deferred: &str, _container: &Container<'_>) -> Result<Self, Error> {
        let parse = || {
            let (dropped, no_new_privs) = deferred.split_once(' ')?;
            Some(Self(Profile {
                dropped: Capabilities(u64::from_str_radix(dropped, 16).ok()?),
                no_new_privs: no_new_privs.parse().ok()?,
            }))
        };
        parse().ok_or_else(|| Error::Deferred(EnforcerKind::Caps, deferred.to_owned()))
    }

    /// Equivalent of `caps::drop` for another process.
    fn apply_to(&self, caller: &Caller, _descriptor: Option<i32>) -> sys::Result<Capabilities> {
        let Profile {
            dropped,
            no_new_privs,
        } = self.0;
        if no_new_privs {
            set_no_new_privs(caller)?;
        }
        if dropped.0 == 0 {
            return Ok(Capabilities::default());
        }
        let gained = gained(caller, dropped)?;
        PrctlCall::ClearAmbient.make(caller)?;
        let own = credential::capabilities(caller.tid())?;
        if own.effective.contains(CAP_SETPCAP.u8()) {
            drop_bounding(caller, dropped)?;
        }
        let without = |set: Capabilities| Capabilities(set.0 & !dropped.0);
        let bytes = credential::capset_arguments(CapabilitySets {
            effective: without(own.effective),
            permitted: without(own.permitted),
            inheritable: without(own.inheritable),
        });
        caller.call_with(Syscall::CAPSET, &bytes, |address| {
            let sets = address + credential::CAPSET_HEADER as u64;
            [address, sets, 0, 0, 0, 0]
        })?;
        Ok(Capabilities(dropped.0 & !gained.0))
    }
}

fn drop_bounding(caller: &Caller, dropped: Capabilities) -> sys::Result<()> {
    for number in (0..64).filter(|number| dropped.contains(*number)) {
        match PrctlCall::DropBounding(number).make(caller) {
            // This kernel has no capability of this number or of a higher one.
            Err(error) if error.is(Errno::EINVAL) => break,
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

/// The dropped capabilities that programs of root would regain by an exec.
fn gained(caller: &Caller, dropped: Capabilities) -> sys::Result<Capabilities> {
    let own = credential::capabilities(caller.tid())?;
    let mut gained = own.inheritable.0;
    for number in (0..64).filter(|number| dropped.contains(*number)) {
        match PrctlCall::ReadBounding(number).make(caller) {
            // This kernel has no capability of this number or of a higher one.
            Err(error) if error.is(Errno::EINVAL) => break,
            outcome => gained |= outcome? << number,
        }
    }
    Ok(Capabilities(gained))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deferred_is_completed_or_refused() {
        let caps = Caps(Profile {
            dropped: Capabilities::ALL,
            no_new_privs: true,
        });
        let read = || Err("nobody needs it".into());
        let container = Container { read: &read };
        let text = caps.deferred().unwrap();
        assert_eq!(Caps::complete(&text, &container).unwrap(), caps);
        assert_eq!(Caps(Profile::default()).deferred(), None);
        for text in ["", "6", "6 perhaps", "x true"] {
            assert!(Caps::complete(text, &container).is_err(), "{text}");
        }
    }
}
