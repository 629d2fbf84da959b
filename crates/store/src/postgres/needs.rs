//! What connections to a PostgreSQL server need of the machine.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use postgres::config::Host;
use tokio_postgres::Config;

use super::tls::Tls;

/// Port of PostgreSQL where the URL names none.
const PORT: u16 = 5432;

/// What a process needs to reach the servers of a URL, for a sandbox around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// TCP ports.
    pub ports: BTreeSet<u16>,
    /// A server is reached by a socket in the file system.
    pub has_socket: bool,
    /// A server has a name to look up, which is not `localhost`.
    pub has_name: bool,
    /// Files that are read with each connection.
    pub files: Vec<PathBuf>,
}

impl Needs {
    pub(super) fn of(config: &Config, tls: &Tls) -> Self {
        let mut needs = Self {
            files: tls.files().map(PathBuf::from).collect(),
            ..Self::default()
        };
        for (index, host) in config.get_hosts().iter().enumerate() {
            let Host::Tcp(name) = host else {
                needs.has_socket = true;
                continue;
            };
            // One port is that of all hosts.
            let ports = config.get_ports();
            let port = ports.get(index).or(ports.first());
            needs.ports.insert(port.copied().unwrap_or(PORT));
            let is_given = config.get_hostaddrs().get(index).is_some();
            let is_known = is_given || name.eq_ignore_ascii_case("localhost");
            needs.has_name |= !is_known && name.parse::<IpAddr>().is_err();
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use crate::{Needs, PostgresStore};

    fn needs(url: &str) -> Needs {
        PostgresStore::needs(url).expect("a good URL")
    }

    #[test]
    fn a_url_needs_its_ports_its_files_and_lookups_of_names_without_an_address() {
        let named = needs("postgres://u@a.example:1,b.example:2/d?sslrootcert=/ca.pem");
        assert_eq!(named.ports, [1, 2].into());
        assert!(named.has_name && !named.has_socket);
        assert_eq!(named.files, [std::path::PathBuf::from("/ca.pem")]);
        let given = needs("postgres://u@a.example/d?hostaddr=127.0.0.1");
        assert_eq!(given.ports, [5432].into());
        assert!(!given.has_name && given.files.is_empty());
        assert!(!needs("postgres://u@localhost/d").has_name);
        let socket = needs("postgres:///d?host=/run/postgresql&user=u");
        assert!(socket.has_socket && socket.ports.is_empty());
        assert!(PostgresStore::needs("postgres:///d").is_err());
    }
}
