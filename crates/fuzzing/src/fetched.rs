//! What is fetched from servers of others: artefacts of registries, words of identity providers, alerts over gRPC.

use std::path::Component;
use std::sync::LazyLock;

use artifact::{Index, Wanted};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use serve::grpc;

use crate::{Outcome, text};

/// Takes a part of an artefact. The first letter says which: `l`, a layer; `m`, a manifest or an index of manifests; `c`, a
/// configuration; `i`, an index file; `r`, references, one a line; `h`, a challenge to log in; `s`, the state of a folder of
/// rule files. No path leaves its folder, names are names of files, and what is written is read the same.
///
/// # Panics
///
/// If that does not hold.
pub fn artifact(bytes: &[u8]) -> Outcome {
    let Some((letter, bytes)) = bytes.split_first() else {
        return Outcome::Refused;
    };
    Outcome::accepted_if(match letter {
        b'l' => layer(bytes),
        b'm' => match artifact::testing::manifest(bytes) {
            Ok((_, digests)) => {
                assert!(digests.iter().all(|digest| digest.hex().len() == 64));
                true
            }
            Err(_) => false,
        },
        b'c' => match artifact::testing::configuration(bytes) {
            Ok((_, name, version)) => {
                assert!(is_name(&name), "{name:?}");
                // It becomes a part of messages and of the state.
                assert!(version.len() <= 100);
                true
            }
            Err(_) => false,
        },
        b'i' => text(bytes).is_some_and(index),
        b'r' => text(bytes).is_some_and(references),
        b'h' => text(bytes).is_some_and(challenge),
        b's' => state(bytes),
        _ => false,
    })
}

/// Whether a text is a plain name of a file.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.starts_with('.') && !name.is_empty() && name.bytes().all(is_plain)
}

fn layer(bytes: &[u8]) -> bool {
    let Ok((content, again)) = artifact::testing::layer(bytes) else {
        return false;
    };
    for test in &content.tests {
        let mut parts = test.path.components();
        assert!(
            parts.all(|part| matches!(part, Component::Normal(_))),
            "{test:?}"
        );
    }
    assert!(!content.name.contains('/') && content.name != "..");
    // What others put in is not packed again, and long names do not fit.
    if let Ok(again) = again {
        assert_eq!(
            (&again.name, &again.rules, &again.tests),
            (&content.name, &content.rules, &content.tests)
        );
    }
    true
}

fn index(text: &str) -> bool {
    let mut index = Index::default();
    if index.add("index.yaml", text).is_err() {
        return false;
    }
    for entry in index.search(&[]) {
        assert!(is_name(&entry.name), "{entry:?}");
        let wanted = Wanted::parse(&entry.name).unwrap_or_else(|error| panic!("{error}"));
        // A place that is none is found when somebody wants it: the other entries of the file are good.
        if let Ok(reference) = index.reference(&wanted) {
            let place = format!("{}/{}", entry.registry, entry.repository);
            assert_eq!(reference.place(), place);
        }
    }
    true
}

fn references(text: &str) -> bool {
    let mut all = text.lines().map(|line| match Wanted::parse(line) {
        Ok(Wanted::Reference(reference)) => {
            // It becomes a part of a URL.
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/[]".contains(&byte);
            assert!(reference.place().bytes().all(is_part), "{line:?}");
            true
        }
        Ok(Wanted::Name { name, .. }) => {
            assert!(is_name(&name), "{line:?}");
            true
        }
        Err(_) => false,
    });
    all.all(|is_accepted| is_accepted)
}

fn challenge(text: &str) -> bool {
    let found = ["realm", "service", "scope"].map(|name| artifact::testing::challenge(text, name));
    for value in found.iter().flatten() {
        assert!(text.contains(value) && !value.contains('"'));
    }
    found[0].is_some()
}

fn state(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder can be made");
    match artifact::testing::state(folder.path(), bytes) {
        Ok((read, again)) => {
            assert_eq!(read, again);
            true
        }
        Err(_) => false,
    }
}

/// The issuer that the discovery documents of the target `identity` are about.
const ISSUER: &str = "https://id.example";

/// A time at which the token of the corpus is valid, in seconds since 1970.
const NOW_S: i64 = 1_800_000_000;

/// The key of the corpus. It is no secret.
static KEY: LazyLock<Ed25519KeyPair> =
    LazyLock::new(|| Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("it has 32 bytes"));

/// Returns the keys of the provider of the corpus (JWKS).
#[must_use]
pub fn provider_keys() -> String {
    let public = URL_SAFE_NO_PAD.encode(KEY.public_key());
    let key = json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": "k", "x": public});
    json!({"keys": [key]}).to_string()
}

/// Returns a token that the provider of the corpus has signed, and that is valid.
#[must_use]
pub fn provider_token() -> String {
    let header = json!({"alg": "EdDSA", "kid": "k"});
    let claims = json!({
        "iss": ISSUER, "aud": "tollgate", "sub": "1", "nonce": "n", "exp": NOW_S + 300, "iat": NOW_S - 1,
    });
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let message = format!("{}.{}", encoded(&header), encoded(&claims));
    let signature = URL_SAFE_NO_PAD.encode(KEY.sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// Takes what an identity provider says. The first letter says what: `d`, its discovery document; `k`, its keys; `t`, an ID token,
/// for the keys of the corpus. Addresses are safe, and no token is believed that the key of the corpus has not signed.
///
/// # Panics
///
/// If that does not hold.
pub fn identity(bytes: &[u8]) -> Outcome {
    static KEYS: LazyLock<String> = LazyLock::new(provider_keys);
    static TOKEN: LazyLock<String> = LazyLock::new(provider_token);
    let Some((letter, bytes)) = bytes.split_first() else {
        return Outcome::Refused;
    };
    Outcome::accepted_if(match letter {
        b'd' => match collector::testing::endpoints(ISSUER, bytes) {
            Ok(all) => {
                let is_safe = |url: &String| {
                    url.starts_with("https://") && !url.contains(char::is_whitespace)
                };
                assert!(all.iter().take(3).all(is_safe), "{all:?}");
                true
            }
            Err(_) => false,
        },
        // A token that none of them has signed.
        b'k' => {
            let subject = collector::testing::subject(bytes, "e30.e30.AA", NOW_S);
            let why = subject.expect_err("nobody has signed it");
            why.contains("its algorithm")
        }
        b't' => text(bytes).is_some_and(|token| {
            let is_believed = collector::testing::subject(KEYS.as_bytes(), token, NOW_S).is_ok();
            let message = |token: &str| {
                token
                    .rsplit_once('.')
                    .map(|(message, _)| message.to_owned())
            };
            assert!(!is_believed || message(token) == message(&TOKEN));
            is_believed
        }),
        _ => false,
    })
}

/// Takes frames of gRPC with alerts: what is decoded is encoded and decoded the same, and no more is taken than came.
///
/// # Panics
///
/// If that does not hold.
pub fn grpc_frames(bytes: &[u8]) -> Outcome {
    let Ok((alerts, left)) = grpc::testing::alerts(bytes) else {
        return Outcome::Refused;
    };
    assert!(left <= bytes.len());
    for (alert, frame) in &alerts {
        let (again, left) = grpc::testing::alerts(frame).expect("it was encoded");
        assert_eq!(left, 0);
        assert_eq!(again.len(), 1);
        assert_eq!((&again[0].0, &again[0].1), (alert, frame));
    }
    Outcome::accepted_if(!alerts.is_empty() && left == 0)
}
