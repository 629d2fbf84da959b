//! Keys of an identity provider (JWK), and the signatures that they verify.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::Value;

/// Keys that are kept of a provider.
const MAX_KEYS: usize = 100;

/// An algorithm that a signature may have. There is no other: none that is no signature (`none`), and none whose key
/// is a shared secret (`HS256`), which could be taken for a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    EdDsa,
    Es256,
    Es384,
    Ps256,
    Rs256,
}

impl Algorithm {
    /// Returns the algorithm of this name (RFC 7518), if it is allowed.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "EdDSA" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            "ES384" => Some(Self::Es384),
            "PS256" => Some(Self::Ps256),
            "RS256" => Some(Self::Rs256),
            _ => None,
        }
    }
}

/// A public key.
#[derive(Debug, PartialEq, Eq)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key with what the provider says about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if that is said.
    algorithm: Option<Algorithm>,
    material: Material,
}

/// The keys of a provider.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Key>);

impl Keys {
    /// Reads a set of keys (JWKS). Keys of other kinds and for other uses are left out: a provider may have them, too.
    pub(super) fn read(set: &Value) -> Result<Self, String> {
        let keys = set.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or("it has no member `keys`")?;
        let keys: Vec<_> = keys.iter().filter_map(Key::read).take(MAX_KEYS).collect();
        match keys.is_empty() {
            true => Err("it has no key for signatures that this build knows".to_owned()),
            false => Ok(Self(keys)),
        }
    }

    /// Returns the key of this name that can verify this algorithm; without a name the only one that can.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Key> {
        let mut fitting = self.0.iter().filter(|key| {
            let is_named = id.is_none() || key.id.as_deref() == id;
            is_named && key.fits(algorithm)
        });
        let first = fitting.next()?;
        // Two keys of one name, or of none, leave it open which one is meant.
        fitting.next().is_none().then_some(first)
    }
}

/// Returns the bytes of a member in base64url.
fn bytes(key: &Value, member: &str) -> Option<Vec<u8>> {
    let text = key.get(member)?.as_str()?;
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Returns a point of a curve in the form that is not compressed.
fn point(key: &Value, length: usize) -> Option<Vec<u8>> {
    let (x, y) = (bytes(key, "x")?, bytes(key, "y")?);
    (x.len() == length && y.len() == length).then(|| [vec![4], x, y].concat())
}

impl Key {
    fn read(key: &Value) -> Option<Self> {
        let text = |member: &str| key.get(member).and_then(Value::as_str);
        if key.get("use").is_some() && text("use") != Some("sig") {
            return None;
        }
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let without_zeros = |number: Vec<u8>| {
                    let zeros = number.iter().take_while(|byte| **byte == 0).count();
                    number[zeros..].to_vec()
                };
                Material::Rsa {
                    modulus: without_zeros(bytes(key, "n")?),
                    exponent: without_zeros(bytes(key, "e")?),
                }
            }
            ("EC", Some("P-256")) => Material::P256(point(key, 32)?),
            ("EC", Some("P-384")) => Material::P384(point(key, 48)?),
            ("OKP", Some("Ed25519")) => {
                Material::Ed25519(bytes(key, "x").filter(|x| x.len() == 32)?)
            }
            _ => return None,
        };
        let algorithm = match key.get("alg") {
            None => None,
            // A key for an algorithm that is not allowed is for nothing here.
            Some(name) => Some(Algorithm::named(name.as_str()?)?),
        };
        Some(Self {
            id: text("kid").map(str::to_owned),
            algorithm,
            material,
        })
    }

    /// Returns true if the key is one for this algorithm.
    fn fits(&self, algorithm: Algorithm) -> bool {
        let is_kind = matches!(
            (&self.material, algorithm),
            (Material::Rsa { .. }, Algorithm::Rs256 | Algorithm::Ps256)
                | (Material::P256(_), Algorithm::Es256)
                | (Material::P384(_), Algorithm::Es384)
                | (Material::Ed25519(_), Algorithm::EdDsa)
        );
        is_kind && self.algorithm.is_none_or(|only| only == algorithm)
    }

    /// Returns true if this key has signed the message by this algorithm.
    pub(super) fn has_signed(
        &self,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let by = |verifier: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(verifier, key).verify(message, signature)
        };
        let verified = match (&self.material, algorithm) {
            (Material::Rsa { modulus, exponent }, Algorithm::Rs256 | Algorithm::Ps256) => {
                let verifier = match algorithm {
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    _ => &RSA_PKCS1_2048_8192_SHA256,
                };
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                key.verify(verifier, message, signature)
            }
            (Material::P256(key), Algorithm::Es256) => by(&ECDSA_P256_SHA256_FIXED, key),
            (Material::P384(key), Algorithm::Es384) => by(&ECDSA_P384_SHA384_FIXED, key),
            (Material::Ed25519(key), Algorithm::EdDsa) => by(&ED25519, key),
            _ => return false,
        };
        verified.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn x() -> String {
        URL_SAFE_NO_PAD.encode([7; 32])
    }

    #[test]
    fn keys_of_other_kinds_and_uses_are_left_out() {
        let set = json!({"keys": [
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
            {"kty": "OKP", "crv": "Ed25519", "x": x(), "kid": "encrypts", "use": "enc"},
            {"kty": "OKP", "crv": "Ed25519", "x": x(), "kid": "hmac", "alg": "HS256"},
            {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "short"},
            {"kty": "EC", "crv": "P-521", "x": x(), "y": x(), "kid": "other curve"},
            {"kty": "EC", "crv": "P-256", "x": x(), "y": x(), "kid": "good"},
        ]});
        let keys = Keys::read(&set).expect("one is good");
        assert_eq!(keys.0.len(), 1);
        assert!(keys.find(Some("good"), Algorithm::Es256).is_some());
        assert!(keys.find(None, Algorithm::Es256).is_some());
        for (id, algorithm) in [
            (Some("good"), Algorithm::Es384),
            (Some("good"), Algorithm::Rs256),
            (Some("other"), Algorithm::Es256),
            (Some("shared"), Algorithm::Es256),
        ] {
            assert_eq!(keys.find(id, algorithm), None, "{id:?} {algorithm:?}");
        }
        for none in [
            json!({}),
            json!({"keys": []}),
            json!({"keys": [{"kty": "oct"}]}),
        ] {
            assert!(Keys::read(&none).is_err(), "{none}");
        }
    }

    #[test]
    fn two_keys_of_one_name_are_none() {
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": x(), "kid": "a"});
        let keys = Keys::read(&json!({"keys": [key, key]})).expect("they are keys");
        assert_eq!(keys.find(Some("a"), Algorithm::EdDsa), None);
        assert_eq!(keys.find(None, Algorithm::EdDsa), None);
    }

    #[test]
    fn no_algorithm_without_a_signature_is_known() {
        for name in [
            "none", "None", "", "HS256", "HS384", "HS512", "RS1", "rs256", "ES256K",
        ] {
            assert_eq!(Algorithm::named(name), None, "{name}");
        }
    }
}
