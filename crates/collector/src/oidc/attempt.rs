//! One attempt to log in, as the cookie of a browser has it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{hashed, now_s};
use crate::secret::{self, NewSecret};

/// Seconds in which an attempt has to come back.
pub(crate) const SECONDS: u32 = 600;

/// Longest path to which a login leads; a longer one is left out.
const MAX_NEXT: usize = 1000;

/// An attempt to log in: when it began, its secret, and where it leads. Everything that goes to the provider is a hash
/// of the whole, so that none of the parts can be changed on the way.
#[derive(Clone)]
pub(crate) struct Attempt {
    text: String,
    began_s: i64,
    next: String,
}

impl Attempt {
    /// Begins an attempt that leads to `next`. `None` if the kernel has no random numbers.
    pub(crate) fn begin(next: &str) -> Option<Self> {
        let secret = NewSecret::of_session()?.text;
        let next = if next.len() > MAX_NEXT { "/" } else { next };
        let began_s = now_s();
        Some(Self {
            text: format!("{began_s}.{secret}.{}", URL_SAFE_NO_PAD.encode(next)),
            began_s,
            next: next.to_owned(),
        })
    }

    /// Reads the value of a cookie. `None` if it is none, or too old.
    pub(crate) fn read(cookie: &str) -> Option<Self> {
        let (began, rest) = cookie.split_once('.')?;
        let (secret, next) = rest.split_once('.')?;
        let began_s: i64 = began.parse().ok()?;
        let age = now_s().checked_sub(began_s)?;
        // A short secret could be guessed from the state, which the provider and the address have.
        let is_ours = secret.len() == 47 && secret.starts_with("tgs_");
        let next = URL_SAFE_NO_PAD.decode(next).ok()?;
        let attempt = Self {
            text: cookie.to_owned(),
            began_s,
            next: String::from_utf8(next).ok()?,
        };
        let is_current = (0..=i64::from(SECONDS)).contains(&age);
        (is_ours && is_current).then_some(attempt)
    }

    /// Returns the value of the cookie.
    pub(crate) fn cookie(&self) -> &str {
        &self.text
    }

    /// Returns what the provider gives back, so that its answer belongs to this browser.
    pub(crate) fn state(&self) -> String {
        hashed(&format!("state {}", self.text))
    }

    /// Returns true if the answer with this state is to this attempt.
    pub(crate) fn is_answered_by(&self, state: &str) -> bool {
        // Hashes are compared, so that the time tells nothing.
        secret::hash(&self.state()) == secret::hash(state)
    }

    /// Returns what the ID token has to have.
    pub(super) fn nonce(&self) -> String {
        hashed(&format!("nonce {}", self.text))
    }

    /// Returns what proves to the provider that whoever has the code began the attempt (PKCE).
    pub(super) fn verifier(&self) -> String {
        hashed(&format!("verifier {}", self.text))
    }

    /// Returns what the provider compares the verifier with.
    pub(super) fn challenge(&self) -> String {
        hashed(&self.verifier())
    }

    /// Returns the path to which the login leads.
    pub(crate) fn next(&self) -> &str {
        &self.next
    }

    /// Returns the second at which the attempt can no longer come back.
    pub(super) fn ends_s(&self) -> i64 {
        self.began_s.saturating_add(i64::from(SECONDS))
    }

    /// Returns the hash by which the attempt is known when it has been used.
    pub(super) fn hash(&self) -> [u8; 32] {
        secret::hash(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_comes_back_as_it_was_and_no_part_of_it_can_change() {
        let attempt = Attempt::begin("/alerts?q=x").expect("random numbers");
        let read = Attempt::read(attempt.cookie()).expect("it is ours");
        assert_eq!(read.next(), "/alerts?q=x");
        assert!(read.is_answered_by(&attempt.state()) && !read.is_answered_by(""));
        let different = [
            read.state(),
            read.nonce(),
            read.verifier(),
            read.challenge(),
        ];
        for (at, one) in different.iter().enumerate() {
            assert_eq!(one.len(), 43);
            assert!(!different[at + 1..].contains(one));
            assert!(!attempt.cookie().contains(one.as_str()));
        }
        let other = Attempt::begin("/alerts?q=x").expect("random numbers");
        assert!(!other.is_answered_by(&attempt.state()));
        let (head, _) = attempt.cookie().rsplit_once('.').expect("parts");
        let led = format!("{head}.{}", URL_SAFE_NO_PAD.encode("/other"));
        let led = Attempt::read(&led).expect("it has the form");
        assert!(!led.is_answered_by(&attempt.state()));
    }

    #[test]
    fn old_short_and_broken_attempts_are_none() {
        let attempt = Attempt::begin("/").expect("random numbers");
        let (_, rest) = attempt.cookie().split_once('.').expect("parts");
        let at = |began: i64| Attempt::read(&format!("{began}.{rest}")).is_some();
        let now = now_s();
        assert!(at(now - 590) && !at(now - 610) && !at(now + 100) && !at(i64::MIN));
        for broken in ["", "1", "1.2", "1.2.3", &format!("{now}.tgs_short.Lw")] {
            assert!(Attempt::read(broken).is_none(), "{broken}");
        }
        let long = "/".repeat(2000);
        let attempt = Attempt::begin(&long).expect("random numbers");
        assert_eq!(attempt.next(), "/");
    }
}
