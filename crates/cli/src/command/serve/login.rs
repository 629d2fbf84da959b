//! How people log in besides by password: an identity provider.

use std::path::PathBuf;

use clap::Args;

use super::args::Role;

const LOGIN: &str = "Login options";

/// Options about an identity provider.
#[derive(Args, Debug)]
pub(crate) struct LoginOptions {
    /// Let people log in by the OpenID Connect provider with this issuer, beside passwords
    #[arg(long, value_name = "URL", help_heading = LOGIN,
          requires_all = ["oidc_client_id", "oidc_client_secret_file", "oidc_role", "public_url"])]
    pub(crate) oidc_issuer: Option<String>,
    /// Identifier of the collector at the provider
    #[arg(long, value_name = "ID", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_client_id: Option<String>,
    /// File with the secret of the collector at the provider
    #[arg(long, value_name = "FILE", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_client_secret_file: Option<PathBuf>,
    /// URL under which browsers reach the collector; the provider leads back to URL/oidc/callback
    #[arg(long, value_name = "URL", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) public_url: Option<String>,
    /// Give users in whose role claim TEXT is this role: viewer, operator or admin; repeatable. Others are refused
    #[arg(long, value_name = "TEXT=ROLE", value_parser = role, requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_role: Vec<(String, Role)>,
    /// Claim of the ID token with a text or a list of them; dots lead into objects [default: groups]
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_role_claim: Option<String>,
    /// Claim of the ID token with the name of a user [default: preferred_username]
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_name_claim: Option<String>,
    /// Ask the provider for this scope; repeatable [default: openid, profile and email]
    #[arg(long, value_name = "SCOPE", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_scope: Vec<String>,
    /// Authorities of the provider's certificate in PEM form [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "oidc_issuer", help_heading = LOGIN)]
    pub(crate) oidc_ca: Option<PathBuf>,
}

/// Parses a text of the role claim and the role that it gives.
fn role(text: &str) -> Result<(String, Role), &'static str> {
    let wrong = "expected TEXT=viewer, TEXT=operator or TEXT=admin";
    // The text may have a `=`, as a name of LDAP has.
    let (said, role) = text.rsplit_once('=').ok_or(wrong)?;
    let given = match role {
        "viewer" => Role::Viewer,
        "operator" => Role::Operator,
        "admin" => Role::Admin,
        _ => return Err(wrong),
    };
    match said.is_empty() {
        true => Err(wrong),
        false => Ok((said.to_owned(), given)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_a_text_and_no_default() {
        let ops = ("CN=ops,DC=example".to_owned(), Role::Operator);
        assert_eq!(role("CN=ops,DC=example=operator"), Ok(ops));
        for wrong in ["", "admin", "=admin", "ops=", "ops=root", "ops=Admin"] {
            assert!(role(wrong).is_err(), "{wrong}");
        }
    }
}
