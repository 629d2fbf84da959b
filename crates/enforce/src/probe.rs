//! Probes of the enforcers: each determines by use whether its enforcer works on this host.

use policy::EnforcerKind;
use probe::{Finding, Support};

use crate::enforcer::registered;

/// Probes an enforcer. The calling process must have one thread, because the probe forks.
#[must_use]
pub fn probe(enforcer: EnforcerKind) -> Support {
    (registered(enforcer).probe)()
}

/// Findings for all enforcers, one row each.
#[must_use]
pub fn all() -> Vec<Finding> {
    let finding = |kind| {
        let registered = registered(kind);
        Finding {
            name: registered.about.probe,
            purpose: registered.about.purpose,
            notify_needs_it: false,
            support: (registered.probe)(),
        }
    };
    EnforcerKind::ALL.map(finding).into()
}
