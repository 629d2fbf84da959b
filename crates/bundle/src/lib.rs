//! Signed bundles of rules, policies and settings, which a collector hands down to agents.
//!
//! A bundle is made and signed where its key is, which need not be the collector's machine: the collector only passes it
//! on. An agent pins the public key and believes nothing else.
//!
//! ```
//! use bundle::{Content, File, PrivateKey, Signed};
//!
//! let key = PrivateKey::generate()?;
//! let rules = vec![File { name: "web.yaml".to_owned(), text: "- rule: ...".to_owned() }];
//! let content = Content { version: 1, rules, ..Content::default() };
//! let signed = content.pack()?.sign(&key);
//! let content = Signed::parse(&signed.to_text())?.verify(&key.public())?;
//! assert_eq!(content.version, 1);
//! # Ok::<(), bundle::BundleError>(())
//! ```

mod key;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

pub use key::{PrivateKey, PublicKey};

/// Largest text of a bundle in bytes. A collector takes no larger body.
pub const MAX_BYTES: usize = 2 << 20;

/// Rule files of a bundle at most.
const MAX_FILES: usize = 256;

/// Policies of a bundle at most.
const MAX_POLICIES: usize = 64;

/// Longest name of a file.
const MAX_NAME: usize = 100;

/// Version of the form of the file.
const FORM: u64 = 1;

/// What is signed begins with this, so that no signature over something else is one of a bundle.
const CONTEXT: &[u8] = b"tollgate bundle 1\0";

/// Groups of settings that a bundle may change. No setting of theirs names a program, a file to write or a server: the
/// key decides what is detected, not where it goes. Whether an agent has captures at all, how much memory they take and how often there
/// is one, the agent decides.
const SETTINGS: [&str; 11] = [
    "append_output",
    "collector_output.capture_on_alert.after",
    "collector_output.capture_on_alert.before",
    "collector_output.capture_on_alert.priority",
    "collector_output.capture_on_alert.rules",
    "outputs.max_burst",
    "outputs.rate",
    "priority",
    "rule_matching",
    "rules",
    "rules_level",
];

/// A bundle cannot be read, or is not to be believed.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is no bundle.
    #[error("the bundle cannot be read: {problem}")]
    Form {
        /// What is wrong.
        problem: String,
    },
    /// A newer build made it.
    #[error("the bundle has the form {found}, this build knows up to {FORM}")]
    Newer {
        /// Its form.
        found: u64,
    },
    /// It has no signature.
    #[error("the bundle is not signed")]
    Unsigned,
    /// Another key signed it.
    #[error("the bundle is signed by the key {found}, not by {pinned}, which is pinned")]
    OtherKey {
        /// The key that signed it.
        found: String,
        /// The key that is believed.
        pinned: String,
    },
    /// The signature is not one of this content.
    #[error("the signature of the bundle is wrong: it was changed after it was signed")]
    Tampered,
    /// The text is no key.
    #[error("cannot read the key: {problem}")]
    Key {
        /// What is wrong.
        problem: &'static str,
    },
    /// The kernel has no random numbers.
    #[error("cannot create a key: the kernel has no random numbers")]
    Random,
}

fn wrong(problem: impl Into<String>) -> BundleError {
    BundleError::Form {
        problem: problem.into(),
    }
}

/// A file of a bundle.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Name without a folder.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// What a bundle is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Number that grows with each bundle of a key: an agent takes no older one.
    pub version: u64,
    /// Rule files in the order of loading. They replace those of the agent; a bundle that has policies alone leaves the agent
    /// its own.
    pub rules: Vec<File>,
    /// Policies by name, one document each. Each takes the place of an agent's own policy of that name when its command
    /// starts again. Builds that know of no policies refuse the bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<File>,
    /// Settings such as `outputs.rate=5`, as `-o` sets them.
    #[serde(default)]
    pub settings: Vec<String>,
}

impl Content {
    /// Checks the content and makes the text that is signed.
    ///
    /// # Errors
    ///
    /// There is no rule file, a name or a setting is not allowed, or there is too much.
    pub fn pack(&self) -> Result<Unsigned, BundleError> {
        self.check()?;
        let payload = serde_json::to_string(self).map_err(|error| wrong(error.to_string()))?;
        match payload.len() > MAX_BYTES {
            true => Err(wrong(format!("it exceeds {MAX_BYTES} bytes"))),
            false => Ok(Unsigned { payload }),
        }
    }

    fn check(&self) -> Result<(), BundleError> {
        if self.version == 0 || i64::try_from(self.version).is_err() {
            return Err(wrong("the version has to be a number from 1 on"));
        }
        if self.rules.is_empty() && self.policies.is_empty() {
            // An agent without rules detects nothing: that is a mistake, not a wish.
            return Err(wrong("it has no rule file and no policy"));
        }
        check_names(&self.rules, "rule file", MAX_FILES)?;
        check_names(&self.policies, "policy", MAX_POLICIES)?;
        for setting in &self.settings {
            let key = setting.split(['=', '[']).next().unwrap_or_default().trim();
            let is_of = |group: &str| {
                let rest = key.strip_prefix(group);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if !setting.contains('=') || !SETTINGS.iter().any(|group| is_of(group)) {
                let known = SETTINGS.join(", ");
                return Err(wrong(format!(
                    "{setting:?} is no setting that a bundle may change: {known}"
                )));
            }
        }
        Ok(())
    }
}

/// Checks that files have names without folders, of which none occurs twice, and that there are not too many.
fn check_names(files: &[File], what: &str, limit: usize) -> Result<(), BundleError> {
    if files.len() > limit {
        return Err(wrong(format!(
            "it has {} of the kind {what}, and may have {limit}",
            files.len()
        )));
    }
    let mut names = BTreeSet::new();
    for File { name, .. } in files {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_good = (1..=MAX_NAME).contains(&name.len())
            && !name.starts_with('.')
            && name.chars().all(is_plain);
        if !is_good {
            let expected = "expected letters, digits, `-`, `_` and `.`";
            return Err(wrong(format!("{name:?} names no {what}: {expected}")));
        }
        if !names.insert(name) {
            return Err(wrong(format!("it has {what} {name} twice")));
        }
    }
    Ok(())
}

/// A bundle before it is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsigned {
    payload: String,
}

impl Unsigned {
    /// Signs it.
    #[must_use]
    pub fn sign(self, key: &PrivateKey) -> Signed {
        let signature = key.sign(&message(&self.payload));
        Signed {
            payload: self.payload,
            signature: Some((key.public(), signature)),
        }
    }

    /// Returns it in the form of a file, which an agent refuses.
    #[must_use]
    pub fn into_signed(self) -> Signed {
        Signed {
            payload: self.payload,
            signature: None,
        }
    }
}

fn message(payload: &str) -> Vec<u8> {
    [CONTEXT, payload.as_bytes()].concat()
}

/// A bundle as it is kept and sent. Nothing in it is to be believed before [`Signed::verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    payload: String,
    /// The key that is said to have signed it, and the signature.
    signature: Option<(PublicKey, Vec<u8>)>,
}

/// The form of a file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    tollgate_bundle: u64,
    payload: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

impl Signed {
    /// Reads a bundle.
    ///
    /// # Errors
    ///
    /// The text is no bundle, too long, or of a newer build.
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        // Quoting at most doubles the payload, and adds the rest of the file.
        if text.len() > 2 * MAX_BYTES + 4096 {
            return Err(wrong(format!("it exceeds {MAX_BYTES} bytes")));
        }
        let envelope: Envelope =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if envelope.tollgate_bundle != FORM {
            return Err(BundleError::Newer {
                found: envelope.tollgate_bundle,
            });
        }
        let signature = match (envelope.key, envelope.signature) {
            (Some(key), Some(signature)) => {
                let bytes = STANDARD.decode(signature);
                let bytes = bytes.map_err(|_error| wrong("its signature is not base64"))?;
                Some((PublicKey::parse(&key)?, bytes))
            }
            (None, None) => None,
            _ => return Err(wrong("it has a key or a signature alone")),
        };
        Ok(Self {
            payload: envelope.payload,
            signature,
        })
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let key = self.signature.as_ref().map(|(key, _)| key.to_text());
        let signature = self.signature.as_ref();
        let envelope = Envelope {
            tollgate_bundle: FORM,
            payload: self.payload.clone(),
            key,
            signature: signature.map(|(_, bytes)| STANDARD.encode(bytes)),
        };
        let text = serde_json::to_string(&envelope).expect("it has texts and numbers alone");
        text + "\n"
    }

    /// Returns SHA-256 of [`Signed::to_text`], in hexadecimal. It covers key and signature, too: the same content signed by
    /// another key is another bundle.
    #[must_use]
    pub fn digest(&self) -> String {
        let text = self.to_text();
        key::hexadecimal(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
    }

    /// Returns the key that is said to have signed it.
    #[must_use]
    pub fn key(&self) -> Option<&PublicKey> {
        self.signature.as_ref().map(|(key, _)| key)
    }

    /// Returns the content if this key signed it.
    ///
    /// # Errors
    ///
    /// It is not signed, by another key, changed since, or holds what no bundle may.
    pub fn verify(&self, pinned: &PublicKey) -> Result<Content, BundleError> {
        let (key, signature) = self.signature.as_ref().ok_or(BundleError::Unsigned)?;
        if key != pinned {
            return Err(BundleError::OtherKey {
                found: key.to_text(),
                pinned: pinned.to_text(),
            });
        }
        if !pinned.has_signed(&message(&self.payload), signature) {
            return Err(BundleError::Tampered);
        }
        self.content()
    }

    /// Returns the content without a look at the signature: for a list, and for whoever signs it.
    ///
    /// # Errors
    ///
    /// It holds what no bundle may.
    pub fn content(&self) -> Result<Content, BundleError> {
        let content: Content =
            serde_json::from_str(&self.payload).map_err(|error| wrong(error.to_string()))?;
        content.check()?;
        Ok(content)
    }

    /// Signs it again.
    #[must_use]
    pub fn sign(self, key: &PrivateKey) -> Self {
        let payload = self.payload;
        Unsigned { payload }.sign(key)
    }
}

#[cfg(test)]
mod tests;
