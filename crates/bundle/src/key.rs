//! Keys of bundles: ed25519.

use std::fmt;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::BundleError;

/// Beginning of the text of a public key.
const PREFIX: &str = "tgk_";

/// Bytes of a public key.
const LENGTH: usize = 32;

/// Lines around a private key, as in PEM files.
const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// A key that signs. Its text is a PEM file with PKCS#8, as OpenSSL writes it for ed25519.
pub struct PrivateKey {
    pair: Ed25519KeyPair,
    document: Vec<u8>,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public()).finish()
    }
}

impl PrivateKey {
    /// Makes a new key.
    ///
    /// # Errors
    ///
    /// The kernel has no random numbers.
    pub fn generate() -> Result<Self, BundleError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document = document.map_err(|_error| BundleError::Random)?;
        Self::of(document.as_ref().to_vec())
    }

    /// Reads the text of a key.
    ///
    /// # Errors
    ///
    /// The text is no ed25519 key.
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        let problem = "expected a PEM file with an ed25519 key";
        let within = text
            .split_once(BEGIN)
            .and_then(|(_, rest)| Some(rest.split_once(END)?.0))
            .ok_or(BundleError::Key { problem })?;
        let within: String = within.split_whitespace().collect();
        let document = STANDARD.decode(within);
        Self::of(document.map_err(|_error| BundleError::Key { problem })?)
    }

    fn of(document: Vec<u8>) -> Result<Self, BundleError> {
        // OpenSSL leaves the public key out.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&document);
        let problem = "it is no ed25519 key in the form PKCS#8";
        let pair = pair.map_err(|_error| BundleError::Key { problem })?;
        Ok(Self { pair, document })
    }

    /// Returns the text, which is secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(&self.document))
    }

    /// Returns the key that agents pin.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut key = [0; LENGTH];
        key.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(key)
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

/// A key that agents pin. Its text is `tgk_` and base64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; LENGTH]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl PublicKey {
    /// Reads the text of a key.
    ///
    /// # Errors
    ///
    /// The text is no public key.
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        let problem = "expected a public key, tgk_ and 44 characters";
        let bytes = text.trim().strip_prefix(PREFIX);
        let bytes = bytes.and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.and_then(|bytes| <[u8; LENGTH]>::try_from(bytes).ok());
        bytes.map(Self).ok_or(BundleError::Key { problem })
    }

    /// Returns the text.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(self.0))
    }

    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
