//! Names of users.

/// Returns true for what can be the name of a user: 1 to 64 letters, digits, `-`, `_`, `.` and `@`.
pub(crate) fn is_user_name(name: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_has_no_markup_and_no_blanks() {
        assert!(is_user_name("ann.b-c_1@corp.example") && is_user_name(&"a".repeat(64)));
        for bad in ["", "a b", "<b>", "ä", "a\n", &"a".repeat(65)] {
            assert!(!is_user_name(bad), "{bad:?}");
        }
    }
}
