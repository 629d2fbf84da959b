//! What works here, found out by using it.

use policy::EnforcerKind;
use probe::{Finding, Support};

use crate::enforcer::registered;

/// Whether an enforcer works here. The calling process must have one thread, because this forks.
#[must_use]
pub fn probe(enforcer: EnforcerKind) -> Support {
    (registered(enforcer).probe)()
}

/// A row for each enforcer.
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
