//! Secrets of tokens and agents.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// A new secret. Its text is shown once; its hash is kept.
pub struct NewSecret {
    /// The text, `tgt_...` or `tga_...`.
    pub text: String,
    /// Its hash.
    pub hash: [u8; 32],
}

/// Random bytes of a secret: as hard to guess as a key. So a plain hash is enough; slow hashes are for
/// passwords.
const BYTES: usize = 32;

impl NewSecret {
    /// Creates a secret of a token. `None` if the kernel has no random numbers.
    pub fn of_token() -> Option<Self> {
        Self::with_prefix("tgt_")
    }

    pub(crate) fn of_agent() -> Option<Self> {
        Self::with_prefix("tga_")
    }

    pub(crate) fn of_session() -> Option<Self> {
        Self::with_prefix("tgs_")
    }

    pub(crate) fn of_invitation() -> Option<Self> {
        Self::with_prefix("tgi_")
    }

    /// The prefix lets scanners for leaked secrets find it.
    fn with_prefix(prefix: &str) -> Option<Self> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let text = format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes));
        let hash = hash(&text);
        Some(Self { text, hash })
    }
}

/// Returns the hash by which a secret is known.
pub fn hash(secret: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}
