//! Address of a NATS server.

use std::fmt;

use ureq::http::Uri;

/// Default port of NATS servers.
const PORT: u16 = 4222;

/// Address of a NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Name or IP address; an IPv6 address has brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The address asks for encryption.
    pub(super) tls: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// Parses `nats://HOST:PORT`, `tls://HOST:PORT` or `HOST:PORT`. The error describes the
    /// mistake.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, _) = url.split_once("://").unwrap_or(("nats", url));
        let tls = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return Err("it has to start with nats:// or tls://".to_owned()),
        };
        let full = if url.contains("://") {
            url.to_owned()
        } else {
            format!("nats://{url}")
        };
        let uri: Uri = full
            .parse()
            .map_err(|error| format!("it is no URL: {error}"))?;
        let authority = uri.authority().ok_or("it names no host")?;
        if authority.as_str().contains('@') {
            return Err("it has a user: set nats_output.user and password_file".to_owned());
        }
        if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
            return Err("nothing may follow the port".to_owned());
        }
        let host = authority.host();
        if host.is_empty() {
            return Err("it names no host".to_owned());
        }
        let port = match authority.as_str().strip_prefix(host).unwrap_or_default() {
            "" => Some(PORT),
            port => port.trim_start_matches(':').parse().ok(),
        };
        let port = port.filter(|port| *port != 0);
        Ok(Self {
            host: host.to_owned(),
            port: port.ok_or("its port is not one from 1 to 65535")?,
            tls,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_may_have_scheme_and_port() {
        for (url, host, port, tls) in [
            ("nats://a.b:1", "a.b", 1, false),
            ("nats://a", "a", 4222, false),
            ("a:4223", "a", 4223, false),
            ("tls://127.0.0.1:9/", "127.0.0.1", 9, true),
            ("nats://[::1]:7", "[::1]", 7, false),
        ] {
            let address = Address::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            let host = host.to_owned();
            assert_eq!(address, Address { host, port, tls }, "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (url, problem) in [
            ("", "it is no URL"),
            ("http://a", "it has to start with nats://"),
            ("nats://u:p@a", "it has a user"),
            ("nats://a/b", "nothing may follow"),
            ("nats://a:0", "its port"),
            ("nats://a:65536", "its port"),
            ("nats://a b", "it is no URL"),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.starts_with(problem), "{url}: {error}");
        }
    }
}
