//! The identity provider of the command line, as the collector takes it.

use std::fs;
use std::path::PathBuf;

use collector::OidcSettings;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;

use super::login::LoginOptions;
use super::users::scope;

/// Largest file with a secret in bytes.
const MAX_SECRET: usize = 4096;

/// Returns the provider, if there is one.
pub(super) fn settings(options: &LoginOptions) -> Result<Option<OidcSettings>, Failure> {
    let (Some(issuer), Some(client_id), Some(file), Some(public_url)) = (
        &options.oidc_issuer,
        &options.oidc_client_id,
        &options.oidc_client_secret_file,
        &options.public_url,
    ) else {
        return Ok(None);
    };
    let or =
        |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
    let scopes = match options.oidc_scope.is_empty() {
        true => ["openid", "profile", "email"].map(str::to_owned).to_vec(),
        false => options.oidc_scope.clone(),
    };
    Ok(Some(OidcSettings {
        issuer: issuer.clone(),
        client_id: client_id.clone(),
        client_secret: secret(file)?,
        public_url: public_url.trim_end_matches('/').to_owned(),
        scopes,
        name_claim: or(&options.oidc_name_claim, "preferred_username"),
        role_claim: or(&options.oidc_role_claim, "groups"),
        roles: options
            .oidc_role
            .iter()
            .map(|(text, role)| (text.clone(), scope(*role)))
            .collect(),
        authorities: options.oidc_ca.clone(),
        report: |problem| terminal::complain(&format!("tollgate: warning: {problem}\n")),
    }))
}

/// Reads the secret in a file, without the line break at its end.
fn secret(file: &PathBuf) -> Result<String, Failure> {
    let bad = |problem: String| {
        let message = format!(
            "cannot use the client secret in {}: {problem}",
            file.display()
        );
        Failure::new(Exit::BadInput, message)
            .help("write the secret that the identity provider shows into the file")
    };
    let text = fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    match text.is_empty() || text.len() > MAX_SECRET || text.chars().any(char::is_control) {
        true => Err(bad(format!("expected one line of 1 to {MAX_SECRET} bytes"))),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_line() {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let file = folder.path().join("secret");
        for (text, expected) in [
            ("s\n", Some("s")),
            ("a b", Some("a b")),
            ("", None),
            ("a\nb\n", None),
        ] {
            fs::write(&file, text).expect("our folder");
            assert_eq!(secret(&file).ok().as_deref(), expected, "{text:?}");
        }
        let missing = secret(&folder.path().join("missing"));
        assert!(missing.is_err_and(|failure| failure.message().contains("missing")));
    }
}
