//! Signatures as cosign makes them with a key: a payload that names the digest of an artefact, signed, in a manifest with
//! the tag `sha256-DIGEST.sig` beside the artefact.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::json;

use crate::form::{Descriptor, MANIFEST_TYPE, Manifest, to_json};
use crate::{ArtifactError, Digest, Reference, Sink, Source, checked_blob, limits};

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";
/// What cosign writes as the type of a payload.
const PAYLOAD_KIND: &str = "cosign container image signature";

/// Who has to have signed an artefact.
#[derive(Clone, Debug)]
pub enum Trust {
    /// One of these keys.
    Keys {
        /// The keys.
        keys: Vec<PublicKey>,
        /// Repository that a signature has to name; the one that is asked without it. For copies of a repository.
        signed_as: Option<String>,
    },
    /// Nobody: signatures are not even read.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    EcdsaP256,
    Ed25519,
}

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

/// What stands before the key in the DER form of a public key (RFC 5480, RFC 8410). Each has one length.
const P256_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ED25519_PREFIX: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

impl PublicKey {
    /// Reads a key in PEM form, as `cosign public-key` and `openssl pkey -pubout` write it.
    ///
    /// # Errors
    ///
    /// It is no ECDSA key of the curve P-256, and no ed25519 key.
    pub fn from_pem(text: &str) -> Result<Self, ArtifactError> {
        let der = from_pem(text, "PUBLIC KEY")?;
        for (prefix, length, algorithm) in [
            (P256_PREFIX, 65, Algorithm::EcdsaP256),
            (ED25519_PREFIX, 32, Algorithm::Ed25519),
        ] {
            if let Some(bytes) = der.strip_prefix(prefix)
                && bytes.len() == length
            {
                let bytes = bytes.to_vec();
                return Ok(Self { algorithm, bytes });
            }
        }
        let problem = "it is neither an ECDSA key of the curve P-256 nor an ed25519 key";
        Err(ArtifactError::Key { problem })
    }

    fn der(&self) -> Vec<u8> {
        let prefix = match self.algorithm {
            Algorithm::EcdsaP256 => P256_PREFIX,
            Algorithm::Ed25519 => ED25519_PREFIX,
        };
        [prefix, &self.bytes].concat()
    }

    /// Returns the key in PEM form.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let text = STANDARD.encode(self.der());
        let (first, second) = text.split_at(text.len().min(64));
        let second = if second.is_empty() {
            String::new()
        } else {
            format!("{second}\n")
        };
        format!("-----BEGIN PUBLIC KEY-----\n{first}\n{second}-----END PUBLIC KEY-----\n")
    }

    /// Returns the digest of the key, which names it.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&self.der())
    }

    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self.algorithm {
            Algorithm::EcdsaP256 => UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.bytes)
                .verify(message, signature),
            Algorithm::Ed25519 => {
                UnparsedPublicKey::new(&ED25519, &self.bytes).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.algorithm, self.fingerprint())
    }
}

/// A private key.
pub struct SigningKey(Pair);

enum Pair {
    EcdsaP256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Shows no secret.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public()).finish()
    }
}

impl SigningKey {
    /// Reads a key in PEM form without a passphrase, as `openssl genpkey` writes it.
    ///
    /// # Errors
    ///
    /// It has a passphrase, or is no ECDSA key of the curve P-256 and no ed25519 key in the form PKCS#8.
    pub fn from_pem(text: &str) -> Result<Self, ArtifactError> {
        if text.contains("ENCRYPTED") {
            let problem =
                "it has a passphrase; sign with `cosign sign --key` after the push instead";
            return Err(ArtifactError::Key { problem });
        }
        let der = from_pem(text, "PRIVATE KEY")?;
        // OpenSSL leaves the public key out.
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der) {
            return Ok(Self(Pair::Ed25519(pair)));
        }
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new());
        let problem =
            "it is neither an ECDSA key of the curve P-256 nor an ed25519 key in the form PKCS#8";
        let pair = pair.map_err(|_error| ArtifactError::Key { problem })?;
        Ok(Self(Pair::EcdsaP256(pair)))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let (algorithm, bytes) = match &self.0 {
            Pair::EcdsaP256(pair) => (Algorithm::EcdsaP256, pair.public_key().as_ref()),
            Pair::Ed25519(pair) => (Algorithm::Ed25519, pair.public_key().as_ref()),
        };
        PublicKey {
            algorithm,
            bytes: bytes.to_vec(),
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, ArtifactError> {
        match &self.0 {
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Pair::EcdsaP256(pair) => {
                let signature = pair.sign(&SystemRandom::new(), message);
                let problem = "the kernel has no random numbers";
                let signature = signature.map_err(|_error| ArtifactError::Key { problem })?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

/// Decodes the only part of a PEM file with this label.
fn from_pem(text: &str, label: &str) -> Result<Vec<u8>, ArtifactError> {
    let problem = "expected a PEM file";
    let (begin, end) = (
        format!("-----BEGIN {label}-----"),
        format!("-----END {label}-----"),
    );
    let within = text.split_once(&begin);
    let within = within.and_then(|(_, rest)| Some(rest.split_once(&end)?.0));
    let within = within.ok_or(ArtifactError::Key { problem })?;
    let within: String = within.split_whitespace().collect();
    let decoded = STANDARD.decode(within);
    decoded.map_err(|_error| ArtifactError::Key { problem })
}

/// What is signed.
#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Identity {
    docker_reference: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

/// Returns the tag of the signatures of an artefact.
fn tag(digest: &Digest) -> String {
    format!("sha256-{}.sig", digest.hex())
}

/// Checks that one of the keys signed the artefact with this digest in this repository, and returns it.
///
/// # Errors
///
/// There is no signature, or none that counts.
pub(crate) fn verify(
    source: &dyn Source,
    reference: &Reference,
    digest: &Digest,
    keys: &[PublicKey],
    signed_as: Option<&str>,
) -> Result<PublicKey, ArtifactError> {
    let refuse = |problem: String| ArtifactError::Signature {
        reference: reference.to_string(),
        problem,
    };
    let Some((bytes, _)) = source.manifest(&tag(digest))? else {
        // Where cosign puts bundles, which it writes by default from version 3 on.
        let bundles = source.manifest(&tag(digest).replace(".sig", ""))?;
        return Err(match bundles {
            None => ArtifactError::Unsigned {
                reference: reference.to_string(),
            },
            Some(_) => refuse(
                "it is not signed in the form that this build verifies: sign with `cosign sign --key` and \
                 --new-bundle-format=false"
                    .to_owned(),
            ),
        });
    };
    let manifest = Manifest::read(&bytes, "the manifest of the signatures")?;
    if manifest.layers.len() > limits::SIGNATURES {
        let found = manifest.layers.len();
        return Err(refuse(format!(
            "it has {found} signatures, more than {}",
            limits::SIGNATURES
        )));
    }
    let place = signed_as.map_or_else(|| reference.place(), str::to_owned);
    let mut problems = Vec::new();
    for layer in &manifest.layers {
        match signed_by(source, layer, digest, &place, keys)? {
            Ok(key) => return Ok(key),
            Err(problem) => problems.push(problem),
        }
    }
    problems.dedup();
    if problems.is_empty() {
        problems.push("its list of signatures is empty".to_owned());
    }
    Err(refuse(problems.join("; ")))
}

/// Returns the key that made one signature, or why it does not count.
fn signed_by(
    source: &dyn Source,
    layer: &Descriptor,
    digest: &Digest,
    place: &str,
    keys: &[PublicKey],
) -> Result<Result<PublicKey, String>, ArtifactError> {
    if layer.media_type != PAYLOAD_TYPE {
        let found = layer.media_type.escape_debug();
        return Ok(Err(format!(
            "a signature has the unknown media type `{found}`"
        )));
    }
    let payload = checked_blob(source, layer, "the payload of a signature", limits::PAYLOAD)?;
    let signature = layer
        .annotation(SIGNATURE)
        .map(|text| STANDARD.decode(text));
    let Some(Ok(signature)) = signature else {
        return Ok(Err("a signature has no signature in base64".to_owned()));
    };
    let mut signers = keys.iter();
    let Some(key) = signers.find(|key| key.has_signed(&payload, &signature)) else {
        return Ok(Err(match layer.annotation(CERTIFICATE) {
            Some(_) => "a signature was made without a key, by a certificate of Fulcio: this build verifies \
                        signatures by keys only"
                .to_owned(),
            None => "a signature was made by another key, or over something else".to_owned(),
        }));
    };
    // Only now: what is not signed is not even parsed.
    let payload: Payload = crate::form::json(&payload, "the payload of a signature")?;
    let critical = payload.critical;
    if critical.kind != PAYLOAD_KIND {
        let kind = critical.kind.escape_debug();
        return Ok(Err(format!("a signature is one of a `{kind}`")));
    }
    if critical.image.docker_manifest_digest != digest.as_str() {
        let of = critical.image.docker_manifest_digest;
        return Ok(Err(format!("a signature is one of {}", of.escape_debug())));
    }
    if critical.identity.docker_reference != place {
        let of = critical.identity.docker_reference;
        return Ok(Err(format!(
            "a signature is one of the repository `{}`, not of `{place}`; for a copy, name the original by --signed-as",
            of.escape_debug()
        )));
    }
    Ok(Ok(key.clone()))
}

/// Signs an artefact, and writes the signature beside it.
pub(crate) fn sign(
    sink: &dyn Sink,
    reference: &Reference,
    digest: &Digest,
    key: &SigningKey,
) -> Result<(), ArtifactError> {
    let what = "the signature";
    let payload = to_json(
        &json!({
            "critical": {
                "identity": {"docker-reference": reference.place()},
                "image": {"docker-manifest-digest": digest.as_str()},
                "type": PAYLOAD_KIND,
            },
            "optional": null,
        }),
        what,
    )?;
    let signature = STANDARD.encode(key.sign(&payload)?);
    let layer = Descriptor::new(PAYLOAD_TYPE, sink.put_blob(&payload)?, &payload)
        .with(SIGNATURE, signature);
    // A configuration of an image, because cosign reads no other.
    let config = to_json(
        &json!({
            "architecture": "", "os": "", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest.as_str()]},
        }),
        what,
    )?;
    let config = Descriptor::new(CONFIG_TYPE, sink.put_blob(&config)?, &config);
    let manifest = to_json(&Manifest::new(config, vec![layer]), what)?;
    sink.put_manifest(&tag(digest), MANIFEST_TYPE, &manifest)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt
6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==
-----END PUBLIC KEY-----
";

    #[test]
    fn keys_of_other_algorithms_and_damaged_ones_are_refused() {
        let key = PublicKey::from_pem(P256).expect("it is a key of the curve P-256");
        assert_eq!(key.to_pem(), P256);
        // The same bytes for the curve secp256k1.
        let other = P256.replace("AQYIKoZIzj0DAQcDQgAE", "AQYIKoZIzj0DAQgDQgAE");
        for bad in [
            "",
            "x",
            &other,
            &P256.replace("MFkw", "MFkx"),
            &P256.replace("END PUBLIC", "END"),
        ] {
            assert!(PublicKey::from_pem(bad).is_err(), "{bad}");
        }
        let encrypted = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----";
        let error = SigningKey::from_pem(encrypted).expect_err("it has a passphrase");
        assert!(error.to_string().contains("cosign sign"), "{error}");
    }
}
