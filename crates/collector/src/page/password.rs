//! Passwords, as Argon2id keeps them.

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use ring::rand::{SecureRandom, SystemRandom};

/// Shortest and longest password, in bytes. A longer one costs the server time.
pub(super) const LENGTH: std::ops::RangeInclusive<usize> = 10..=200;

/// Returns the hash of a password in PHC form, with a salt of its own. `None` if the kernel has no random numbers.
pub(super) fn hash(password: &str) -> Option<String> {
    let mut salt = [0; 16];
    SystemRandom::new().fill(&mut salt).ok()?;
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    Some(hash.ok()?.to_string())
}

/// Returns true if the password has this hash. A hash that cannot be read belongs to no password.
pub(super) fn is(password: &str, hash: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else {
        return false;
    };
    let verified = Argon2::default().verify_password(password.as_bytes(), &hash);
    verified.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_one_password_and_has_its_own_salt() {
        let first = hash("correct horse").expect("random numbers");
        assert!(
            first.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{first}"
        );
        assert_ne!(hash("correct horse"), Some(first.clone()));
        assert!(is("correct horse", &first) && !is("correct horsf", &first));
        assert!(!is("", "") && !is("x", "plain"));
    }
}
