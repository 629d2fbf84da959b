//! The host name.

/// Returns the host name for alerts: `FALCO_HOSTNAME` if it is set, as Kubernetes charts do because a pod's
/// name says little; else the kernel's.
#[must_use]
pub fn host_name() -> String {
    choose(std::env::var("FALCO_HOSTNAME").ok(), || {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    })
}

fn choose(given: Option<String>, own: impl FnOnce() -> String) -> String {
    given.filter(|name| !name.is_empty()).unwrap_or_else(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_the_environment_wins() {
        let own = || "own".to_owned();
        for (given, expected) in [(Some("node-1"), "node-1"), (Some(""), "own"), (None, "own")] {
            assert_eq!(choose(given.map(str::to_owned), own), expected);
        }
    }
}
