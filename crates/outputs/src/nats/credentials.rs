//! Credentials for a NATS server.

use std::fs;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use nkeys::{KeyPair, KeyPairType};

use super::error::NatsError;

/// Location of the secrets. They are read for each connection, so that they can be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// The server requires none, or only a certificate.
    None,
    /// A user name and the file of the password.
    Password { user: String, file: PathBuf },
    /// The file of a token.
    Token(PathBuf),
    /// A file with a JWT and the seed of its key, or with the seed alone.
    Key(PathBuf),
}

impl Credentials {
    /// Reads the secret and gives it to a client.
    pub(super) fn apply(&self, options: ConnectOptions) -> Result<ConnectOptions, NatsError> {
        match self {
            Self::None => Ok(options),
            Self::Password { user, file } => {
                Ok(options.user_and_password(user.clone(), secret(file)?))
            }
            Self::Token(file) => Ok(options.token(secret(file)?)),
            Self::Key(file) => key(file, options),
        }
    }

    /// Reads the secret, so that a wrong one is found before it is needed.
    pub(super) fn check(&self) -> Result<(), NatsError> {
        self.apply(ConnectOptions::new()).map(drop)
    }
}

/// Reads a file without the line feed at its end.
fn secret(file: &Path) -> Result<String, NatsError> {
    let text = read(file)?;
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() {
        return Err(unusable(file, "it is empty"));
    }
    Ok(secret.to_owned())
}

fn key(file: &Path, options: ConnectOptions) -> Result<ConnectOptions, NatsError> {
    let text = read(file)?;
    let seed = section(&text, "USER NKEY SEED").unwrap_or(text.trim());
    let is_user = |key: KeyPair| key.key_pair_type() == KeyPairType::User;
    if !KeyPair::from_seed(seed).is_ok_and(is_user) {
        return Err(unusable(file, "it holds no seed of a user's key"));
    }
    if section(&text, "NATS USER JWT").is_none() {
        return Ok(options.nkey(seed.to_owned()));
    }
    let options = options.credentials(&text);
    options.map_err(|error| unusable(file, &error.to_string()))
}

/// Returns the text between `-----BEGIN NAME-----` and the following dashes.
fn section<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, after) = text.split_once(&format!("BEGIN {name}"))?;
    let (_, after) = after.split_once('\n')?;
    let (body, _) = after.split_once("---")?;
    Some(body.trim())
}

fn read(file: &Path) -> Result<String, NatsError> {
    fs::read_to_string(file).map_err(|source| NatsError::Read {
        path: file.to_owned(),
        source,
    })
}

fn unusable(file: &Path, problem: &str) -> NatsError {
    NatsError::Credentials {
        path: file.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of seeds, as nkeys' tools write them.
    const USER: &str = "SUAH5ZGD5QFU5Y5Z7V3HKXQD7RYFZFUGNSE2MEGM6EAIBI3YTF2EUW4D5Q";

    fn check(text: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("user.creds");
        fs::write(&file, text).unwrap();
        let checked = Credentials::Key(file).check();
        checked.map_err(|error| error.to_string())
    }

    fn decorated(seed: &str) -> String {
        format!("-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n")
    }

    #[test]
    fn a_seed_is_accepted_with_and_without_a_jwt() {
        let jwt = "-----BEGIN NATS USER JWT-----\nabc.def\n------END NATS USER JWT------\n\n";
        let with_jwt = format!("{jwt}{}", decorated(USER));
        for text in [USER, &format!("{USER}\n"), &decorated(USER), &with_jwt] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_no_seed_of_a_user_is_refused() {
        let account = KeyPair::new_account().seed().unwrap();
        let (cut, _) = USER.split_at(USER.len() - 1);
        let other_sum = format!("{cut}R");
        for text in [
            "",
            "nonsense",
            cut,
            &other_sum,
            &account,
            &decorated(&account),
        ] {
            let error = check(text).unwrap_err();
            let expected = "it holds no seed of a user's key";
            assert!(error.ends_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn passwords_and_tokens_are_the_text_of_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "s e\n").unwrap();
        assert_eq!(secret(&file).unwrap(), "s e");
        fs::write(&file, "\n").unwrap();
        let password = Credentials::Password {
            user: "u".to_owned(),
            file: file.clone(),
        };
        for credentials in [password, Credentials::Token(file)] {
            let error = credentials.check().unwrap_err().to_string();
            assert!(error.ends_with("it is empty"), "{error}");
        }
    }
}
