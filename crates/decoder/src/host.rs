//! The host name.

/// Returns the host name for alerts: the given one, else the kernel's.
#[must_use]
pub fn host_name() -> String {
    given().unwrap_or_else(|| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    })
}

/// Returns `FALCO_HOSTNAME` if it is set, as Kubernetes charts do because a pod's name says little.
#[must_use]
pub fn given() -> Option<String> {
    not_empty(std::env::var("FALCO_HOSTNAME").ok())
}

fn not_empty(name: Option<String>) -> Option<String> {
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_none() {
        for (given, expected) in [
            (Some("node-1"), Some("node-1")),
            (Some(""), None),
            (None, None),
        ] {
            let name = not_empty(given.map(str::to_owned));
            assert_eq!(name.as_deref(), expected);
        }
    }
}
