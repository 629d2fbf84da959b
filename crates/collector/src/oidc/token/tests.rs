use std::process::{Command, Stdio};

use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RSA_PSS_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;

const EXPECTED: Expected<'static> = Expected {
    issuer: "https://id.example",
    audience: "tollgate",
    nonce: "n",
    now_s: NOW,
};

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn good() -> Value {
    json!({
        "iss": "https://id.example", "aud": "tollgate", "sub": "1", "nonce": "n",
        "exp": NOW + 300, "iat": NOW - 1,
    })
}

/// A key of a provider.
struct Signer {
    pair: Ed25519KeyPair,
    keys: Keys,
}

impl Signer {
    fn new() -> Self {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).expect("a key");
        let key =
            json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": encode(pair.public_key())});
        Self {
            pair,
            keys: Keys::read(&json!({"keys": [key]})).expect("a key"),
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn says(&self, claims: &Value) -> Result<Claims, Refused> {
        let token = self.token(&json!({"alg": "EdDSA", "kid": "k"}), claims);
        verify(&token, &self.keys, EXPECTED)
    }
}

fn message(header: &Value, claims: &Value) -> String {
    format!(
        "{}.{}",
        encode(header.to_string()),
        encode(claims.to_string())
    )
}

fn with(member: &str, value: Value) -> Value {
    let mut claims = good();
    claims[member] = value;
    claims
}

#[test]
fn what_a_provider_may_say_is_believed() {
    let signer = Signer::new();
    for claims in [
        good(),
        with("aud", json!(["tollgate"])),
        with("azp", json!("tollgate")),
        with("exp", json!(NOW - 59)),
        with("exp", json!(1_800_000_000.5)),
        with("iat", json!(NOW + 59)),
        with("nbf", json!(NOW)),
    ] {
        let said = signer.says(&claims).expect("it is good");
        assert_eq!(Value::Object(said), claims);
    }
    let mut several = with("aud", json!(["tollgate", "other"]));
    several["azp"] = json!("tollgate");
    assert!(signer.says(&several).is_ok());
}

#[test]
fn a_wrong_claim_refuses_the_token() {
    let signer = Signer::new();
    for (member, value, why) in [
        ("iss", json!("https://evil.example"), "issuer"),
        ("iss", json!("https://id.example/"), "issuer"),
        ("iss", Value::Null, "issuer"),
        ("aud", json!("other"), "another client"),
        ("aud", json!(["other"]), "another client"),
        ("aud", json!([]), "another client"),
        ("aud", json!(["tollgate", "other"]), "asked for it"),
        ("azp", json!("other"), "asked for it"),
        ("azp", Value::Null, "asked for it"),
        ("exp", json!(NOW - 60), "expired"),
        ("exp", json!("9999999999"), "no end"),
        ("exp", Value::Null, "no end"),
        ("exp", json!(-1), "expired"),
        ("iat", json!(NOW + 61), "future"),
        ("iat", Value::Null, "when it was made"),
        ("nbf", json!(NOW + 61), "not valid yet"),
        ("nbf", json!("x"), "not valid yet"),
        ("nonce", json!("m"), "another attempt"),
        ("nonce", Value::Null, "another attempt"),
        ("nonce", json!(["n"]), "another attempt"),
        ("sub", json!(""), "nobody"),
        ("sub", json!("s".repeat(256)), "nobody"),
        ("sub", Value::Null, "nobody"),
    ] {
        match signer.says(&with(member, value.clone())) {
            Err(Refused::Invalid(found)) => assert!(found.contains(why), "{member}: {found}"),
            other => panic!("{member} {value}: {other:?}"),
        }
    }
}

#[test]
fn a_token_without_a_signature_of_a_key_of_the_provider_is_refused() {
    let signer = Signer::new();
    let right = signer.token(&json!({"alg": "EdDSA", "kid": "k"}), &good());
    let (message_of_right, signature) = right.rsplit_once('.').expect("parts");
    let refused = |token: &str| verify(token, &signer.keys, EXPECTED).expect_err("it is refused");
    let not_allowed = Refused::Invalid("its algorithm is not allowed");
    for alg in ["none", "None", "NONE", "HS256", "RS1", ""] {
        let none = message(&json!({"alg": alg}), &good());
        assert_eq!(refused(&format!("{none}.")), not_allowed, "{alg}");
        assert_eq!(
            refused(&format!("{none}.{signature}")),
            not_allowed,
            "{alg}"
        );
    }
    // The public key as the secret of a signature that is none.
    let public = hmac::Key::new(hmac::HMAC_SHA256, signer.pair.public_key().as_ref());
    let shared = message(&json!({"alg": "HS256", "kid": "k"}), &good());
    let tag = encode(hmac::sign(&public, shared.as_bytes()));
    assert_eq!(refused(&format!("{shared}.{tag}")), not_allowed);
    let wrong = Refused::Invalid("its signature is wrong");
    let altered = message(
        &json!({"alg": "EdDSA", "kid": "k"}),
        &with("sub", json!("2")),
    );
    assert_eq!(refused(&format!("{altered}.{signature}")), wrong);
    assert_eq!(refused(&format!("{message_of_right}.")), wrong);
    let foreign = Signer::new().token(&json!({"alg": "EdDSA", "kid": "k"}), &good());
    assert_eq!(refused(&foreign), wrong);
    for header in [
        json!({"alg": "EdDSA", "kid": "other"}),
        // The right key by the algorithm of another.
        json!({"alg": "ES256", "kid": "k"}),
        json!({"alg": "RS256", "kid": "k"}),
    ] {
        assert_eq!(
            refused(&signer.token(&header, &good())),
            Refused::UnknownKey
        );
    }
    let extended = json!({"alg": "EdDSA", "kid": "k", "crit": ["exp"]});
    let extended = refused(&signer.token(&extended, &good()));
    assert!(matches!(extended, Refused::Invalid(why) if why.contains("extension")));
    // A key that comes with the token is not looked at.
    let own =
        json!({"alg": "EdDSA", "kid": "x", "jwk": {"kty": "OKP"}, "jku": "http://evil.example"});
    assert_eq!(
        refused(&Signer::new().token(&own, &good())),
        Refused::UnknownKey
    );
}

#[test]
fn what_has_not_the_form_of_a_token_is_refused() {
    let signer = Signer::new();
    let right = signer.token(&json!({"alg": "EdDSA", "kid": "k"}), &good());
    for length in 0..right.len() {
        let cut = right.get(..length).expect("ASCII");
        assert!(verify(cut, &signer.keys, EXPECTED).is_err(), "{length}");
    }
    for broken in [
        "..",
        "a.b.c",
        "e30.e30.e30",
        "bnVsbA.bnVsbA.",
        &format!("{right}="),
        &format!("{right}.x"),
    ] {
        assert!(verify(broken, &signer.keys, EXPECTED).is_err(), "{broken}");
    }
}

#[test]
fn signatures_by_elliptic_curves_are_verified() {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
    let pkcs8 = pkcs8.expect("a key");
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
    let pair = pair.expect("a key");
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let key = json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)});
    let keys = Keys::read(&json!({"keys": [key]})).expect("a key");
    let message = message(&json!({"alg": "ES256"}), &good());
    let signature = pair.sign(&random, message.as_bytes()).expect("signed");
    let token = format!("{message}.{}", encode(signature));
    assert!(verify(&token, &keys, EXPECTED).is_ok());
}

#[test]
fn signatures_by_rsa_are_verified_by_their_own_padding() {
    let made = Command::new("openssl")
        .args(["genpkey", "-algorithm", "RSA", "-outform", "DER"])
        .args(["-pkeyopt", "rsa_keygen_bits:2048"])
        .stderr(Stdio::null())
        .output()
        .expect("openssl starts");
    // The form depends on the version of OpenSSL.
    let pair =
        RsaKeyPair::from_der(&made.stdout).or_else(|_form| RsaKeyPair::from_pkcs8(&made.stdout));
    let pair = pair.expect("a key of openssl");
    let public = pair.public();
    let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(public);
    let key = json!({"kty": "RSA", "use": "sig", "n": encode(n), "e": encode(e)});
    let keys = Keys::read(&json!({"keys": [key]})).expect("a key");
    let token = |alg: &str, padding: &'static dyn ring::signature::RsaEncoding| {
        let message = message(&json!({"alg": alg}), &good());
        let mut signature = vec![0; public.modulus_len()];
        pair.sign(
            padding,
            &SystemRandom::new(),
            message.as_bytes(),
            &mut signature,
        )
        .expect("signed");
        format!("{message}.{}", encode(signature))
    };
    assert!(verify(&token("RS256", &RSA_PKCS1_SHA256), &keys, EXPECTED).is_ok());
    assert!(verify(&token("PS256", &RSA_PSS_SHA256), &keys, EXPECTED).is_ok());
    for crossed in [
        token("RS256", &RSA_PSS_SHA256),
        token("PS256", &RSA_PKCS1_SHA256),
    ] {
        let refused = verify(&crossed, &keys, EXPECTED);
        assert_eq!(refused, Err(Refused::Invalid("its signature is wrong")));
    }
}
