//! What a provider is configured with.

use std::path::PathBuf;
use std::time::Duration;

use outputs::{HttpError, TlsOptions};
use store::Scope;

/// Time limit for an answer of the provider.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// An identity provider, and what the collector makes of what it says.
#[derive(Clone)]
pub struct OidcSettings {
    /// The issuer, an `https` URL; `http` for the loopback alone.
    pub issuer: String,
    /// Identifier of this client.
    pub client_id: String,
    /// Secret of this client.
    pub client_secret: String,
    /// URL under which browsers reach the collector, without a path.
    pub public_url: String,
    /// Names of what is asked for; `openid` has to be among them.
    pub scopes: Vec<String>,
    /// Claim with the name of a user.
    pub name_claim: String,
    /// Claim with texts that say what a user may do. The path to a member of an object has dots.
    pub role_claim: String,
    /// Roles by such a text. The highest one that a user has counts; a user without any is refused.
    pub roles: Vec<(String, Scope)>,
    /// Authorities of the provider's certificate; `None` for those of the system.
    pub authorities: Option<PathBuf>,
    /// Called with what keeps the provider from being asked, at the start.
    pub report: fn(&str),
}

/// A provider cannot be used, or what it says is not believed.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// A setting is wrong.
    #[error("cannot use {what}: {problem}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The HTTP client cannot be made.
    #[error(transparent)]
    Client(#[from] HttpError),
    /// The provider does not answer as it should.
    #[error("cannot ask the identity provider at {url}: {problem}")]
    Provider {
        /// What was asked.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// What the provider says is not believed.
    #[error("the ID token of the identity provider is refused: {0}")]
    Token(&'static str),
    /// The claim with the name cannot be a name.
    #[error(
        "the identity provider names no user: the claim `{claim}` has to be 1 to 64 letters, digits, `-`, `_`, `.` and `@`"
    )]
    Name {
        /// The claim.
        claim: String,
    },
}

impl OidcSettings {
    /// Checks what can be checked without the provider.
    pub(super) fn check(&self) -> Result<(), OidcError> {
        let wrong = |what, problem: &str| {
            Err(OidcError::Setting {
                what,
                problem: problem.to_owned(),
            })
        };
        if !is_safe(&self.issuer) || self.issuer.contains(['?', '#']) {
            return wrong(
                "the issuer",
                "it has to be an https URL without `?` and `#`",
            );
        }
        let host = self.public_url.split_once("://").map(|(_, host)| host);
        if !is_safe(&self.public_url) || host.is_none_or(|host| host.contains(['/', '?', '#', '@']))
        {
            return wrong(
                "the public URL",
                "it has to be an https URL of a host, without a path",
            );
        }
        if self.client_id.is_empty() || self.client_secret.is_empty() {
            return wrong(
                "the client",
                "its identifier and its secret have to be there",
            );
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return wrong("the scopes", "`openid` has to be among them");
        }
        if self.roles.is_empty() {
            return wrong("the roles", "without a role nobody can log in");
        }
        Ok(())
    }

    pub(super) fn tls(&self) -> TlsOptions {
        TlsOptions {
            insecure: false,
            authorities: self.authorities.clone(),
            authority_folder: PathBuf::from("/etc/ssl/certs"),
            client: None,
        }
    }
}

/// Returns true for an `https` URL, and for one of the loopback, which nobody else hears.
pub(super) fn is_safe(url: &str) -> bool {
    let has_host = |rest: &str| !rest.is_empty() && !rest.starts_with(['/', ':', '?', '#']);
    if let Some(rest) = url.strip_prefix("https://") {
        return has_host(rest) && url.chars().all(|c| c.is_ascii_graphic());
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let place = rest.split(['/', '?', '#']).next();
    let place = place.filter(|_| url.chars().all(|c| c.is_ascii_graphic()));
    place.is_some_and(|place| {
        let port = ["localhost", "127.0.0.1", "[::1]"]
            .iter()
            .find_map(|host| place.strip_prefix(host));
        // Nothing but a port: what comes before an `@` is no host.
        port.is_some_and(|port| match port.strip_prefix(':') {
            Some(digits) => digits.chars().all(|c| c.is_ascii_digit()),
            None => port.is_empty(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_for_the_loopback_alone() {
        for good in [
            "https://id.example",
            "https://id.example/realms/a",
            "http://localhost:1/a",
            "http://127.0.0.1:1",
            "http://[::1]:1/a",
        ] {
            assert!(is_safe(good), "{good}");
        }
        for bad in [
            "",
            "id.example",
            "https://",
            "https:///a",
            "http://id.example",
            "http://127.0.0.1.evil.example",
            "http://localhost@evil.example",
            "http://localhost:1@evil.example",
            "http://127.0.0.1:@evil.example/",
            "http://[::1].evil.example",
            "https://a b",
            "https://a\r\nb",
            "file:///etc/passwd",
        ] {
            assert!(!is_safe(bad), "{bad:?}");
        }
    }
}
