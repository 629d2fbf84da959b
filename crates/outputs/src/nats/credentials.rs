//! Credentials for a NATS server.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};

use super::NatsError;

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

/// Members of the `CONNECT` message: names and values.
pub(super) type Members = Vec<(&'static str, String)>;

impl Credentials {
    /// Reads the secret and answers the server's challenge.
    pub(super) fn answer(&self, nonce: &str) -> Result<Members, NatsError> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Password { user, file } => {
                Ok(vec![("user", user.clone()), ("pass", secret(file)?)])
            }
            Self::Token(file) => Ok(vec![("auth_token", secret(file)?)]),
            Self::Key(file) => sign(file, nonce),
        }
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

fn sign(file: &Path, nonce: &str) -> Result<Members, NatsError> {
    let text = read(file)?;
    let seed = section(&text, "USER NKEY SEED").unwrap_or(text.trim());
    let seed = user_seed(seed).ok_or_else(|| unusable(file, "it holds no seed of a user's key"))?;
    // The seed is the private key; any 32 bytes are valid.
    let key = Ed25519KeyPair::from_seed_unchecked(&seed)
        .map_err(|error| unusable(file, &error.to_string()))?;
    let signature = URL_SAFE_NO_PAD.encode(key.sign(nonce.as_bytes()));
    let who = match section(&text, "NATS USER JWT") {
        Some(jwt) => ("jwt", jwt.to_owned()),
        None => ("nkey", public_key(key.public_key().as_ref())),
    };
    // A server without authentication sends nothing to sign.
    let signature = (!nonce.is_empty()).then_some(("sig", signature));
    Ok([who].into_iter().chain(signature).collect())
}

/// Returns the text between `-----BEGIN NAME-----` and the following dashes.
fn section<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, after) = text.split_once(&format!("BEGIN {name}"))?;
    let (_, after) = after.split_once('\n')?;
    let (body, _) = after.split_once("---")?;
    Some(body.trim())
}

/// Type prefix of a seed, as in the library `nkeys`.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// Decodes the 32 bytes of a seed: base 32 of five bits "seed", five bits "user", the bytes, and a
/// checksum.
fn user_seed(text: &str) -> Option<[u8; 32]> {
    let bytes = from_base32(text)?;
    let (body, sum) = bytes.split_last_chunk::<2>()?;
    let [first, second, seed @ ..] = body else {
        return None;
    };
    let of_user = (first & 7) << 5 | second >> 3;
    let is_user_seed = first & 0xf8 == SEED && of_user == USER;
    let is_whole = u16::from_le_bytes(*sum) == checksum(body);
    if is_user_seed && is_whole {
        seed.try_into().ok()
    } else {
        None
    }
}

fn public_key(key: &[u8]) -> String {
    let mut bytes = vec![USER];
    bytes.extend(key);
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    to_base32(&bytes)
}

/// CRC-16/XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            let carry = sum & 0x8000 != 0;
            (sum << 1) ^ if carry { 0x1021 } else { 0 }
        })
    })
}

/// RFC 4648, without padding.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for letter in text.bytes() {
        let value = BASE32.iter().position(|known| *known == letter)?;
        held = held << 5 | u32::try_from(value).ok()?;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

fn to_base32(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut held) = (String::new(), 0_u32, 0_u32);
    let letter = |value: u32| char::from(BASE32[value as usize & 31]);
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(letter(held >> bits));
            held &= (1 << bits) - 1;
        }
    }
    if bits > 0 {
        text.push(letter(held << (5 - bits)));
    }
    text
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

    /// The text of a seed, as nkeys' tools write it.
    fn seed(bytes: [u8; 32]) -> String {
        let mut all = vec![SEED | USER >> 5, (USER & 31) << 3];
        all.extend(bytes);
        let sum = checksum(&all);
        all.extend(sum.to_le_bytes());
        to_base32(&all)
    }

    #[test]
    fn the_checksum_is_that_of_the_catalogue() {
        // The standard check value, for the digits 1 to 9.
        assert_eq!(checksum(b"123456789"), 0x31c3);
    }

    #[test]
    fn base_32_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "MY"),
            ("foo", "MZXW6"),
            ("foobar", "MZXW6YTBOI"),
        ] {
            assert_eq!(to_base32(bytes.as_bytes()), text);
            assert_eq!(from_base32(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(from_base32("1"), None);
    }

    #[test]
    fn a_seed_is_read_back_and_a_damaged_one_refused() {
        let text = seed([7; 32]);
        assert!(text.starts_with("SU"), "{text}");
        assert_eq!(user_seed(&text), Some([7; 32]));
        let damaged = text.replace("SU", "SA");
        assert_eq!(user_seed(&damaged), None, "an account's");
        let (body, _) = text.split_at(text.len() - 1);
        assert_eq!(user_seed(body), None, "cut off");
        let other = if text.ends_with('A') { "B" } else { "A" };
        assert_eq!(user_seed(&format!("{body}{other}")), None, "another sum");
        assert_eq!(user_seed(""), None);
    }

    #[test]
    fn a_file_with_a_jwt_gives_it_and_signs_the_nonce() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("user.creds");
        let seed = seed([7; 32]);
        let text = format!(
            "-----BEGIN NATS USER JWT-----\nabc.def\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        fs::write(&file, text).unwrap();
        let members = Credentials::Key(file.clone()).answer("n").unwrap();
        assert_eq!(members[0], ("jwt", "abc.def".to_owned()));
        let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let signature = URL_SAFE_NO_PAD.decode(&members[1].1).unwrap();
        assert_eq!(signature, key.sign(b"n").as_ref());

        fs::write(&file, &seed).unwrap();
        let members = Credentials::Key(file.clone()).answer("n").unwrap();
        assert_eq!(members[0].0, "nkey");
        assert!(members[0].1.starts_with('U'), "{members:?}");
        let members = Credentials::Key(file.clone()).answer("").unwrap();
        assert_eq!(members.len(), 1, "nothing to sign");

        fs::write(&file, "nonsense").unwrap();
        let error = Credentials::Key(file).answer("n").unwrap_err().to_string();
        assert!(
            error.ends_with("it holds no seed of a user's key"),
            "{error}"
        );
    }

    #[test]
    fn passwords_and_tokens_are_the_text_of_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "s e\n").unwrap();
        let password = Credentials::Password {
            user: "u".to_owned(),
            file: file.clone(),
        };
        let members = password.answer("").unwrap();
        assert_eq!(
            members,
            [("user", "u".to_owned()), ("pass", "s e".to_owned())]
        );
        let token = Credentials::Token(file.clone());
        assert_eq!(
            token.answer("").unwrap(),
            [("auth_token", "s e".to_owned())]
        );
        fs::write(&file, "\n").unwrap();
        assert!(token.answer("").is_err());
    }
}
