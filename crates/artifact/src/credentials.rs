//! Credentials for registries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::ArtifactError;

/// Credentials for registries, as `docker login` and falcoctl write them.
#[derive(Clone, Default)]
pub struct Credentials(Vec<(String, String)>);

/// Shows no secret.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.iter().map(|(registry, _)| registry);
        f.debug_list().entries(names).finish()
    }
}

impl Credentials {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// It is no JSON with `auths`, or refers to a program that keeps the credentials.
    pub fn parse(text: &str) -> Result<Self, ArtifactError> {
        #[derive(Deserialize)]
        struct File {
            auths: std::collections::BTreeMap<String, Auth>,
        }
        #[derive(Deserialize)]
        struct Auth {
            auth: Option<String>,
        }
        let what = "the file of credentials";
        let file: File = crate::form::json(text.as_bytes(), what)?;
        let mut all = Vec::new();
        for (registry, auth) in file.auths {
            let shown = registry.escape_debug();
            let problem = format!("`{shown}` has no `auth`; credential helpers are not supported");
            let auth = auth
                .auth
                .ok_or_else(|| ArtifactError::form(what, problem))?;
            let problem = format!("`auth` of `{shown}` is no base64");
            if STANDARD.decode(&auth).is_err() || auth.len() > 16 << 10 {
                return Err(ArtifactError::form(what, problem));
            }
            all.push((registry, auth));
        }
        Ok(Self(all))
    }

    /// Returns user and password for a registry, as HTTP sends them.
    pub(crate) fn basic(&self, registry: &str) -> Option<String> {
        let host = |key: &str| {
            let key = key.trim_start_matches("https://");
            key.split('/').next().is_some_and(|host| host == registry)
        };
        let (_, auth) = self.0.iter().find(|(key, _)| host(key))?;
        Some(format!("Basic {auth}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_registry() {
        let text = r#"{"auths": {"https://r.io/v2/": {"auth": "YTpi"}, "s.io": {"auth": "Yzpk"}}}"#;
        let all = Credentials::parse(text).expect("it is good");
        assert_eq!(all.basic("r.io").as_deref(), Some("Basic YTpi"));
        assert_eq!(all.basic("s.io").as_deref(), Some("Basic Yzpk"));
        assert_eq!(all.basic("o.s.io"), None);
        assert!(!format!("{all:?}").contains("YTpi"));
        for bad in [
            "",
            "{}",
            r#"{"auths": {"r.io": {}}}"#,
            r#"{"auths": {"r.io": {"auth": "*"}}}"#,
        ] {
            assert!(Credentials::parse(bad).is_err(), "{bad}");
        }
    }
}
