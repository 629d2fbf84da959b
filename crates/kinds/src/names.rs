//! Names of profiles.

/// Maximum length in bytes of the name of a profile: it is the name of an object, of a file and of an AppArmor profile.
pub const MAX_NAME: usize = 63;

/// The name of the profile would be too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name `{profile}` of the profile has {} bytes, and {MAX_NAME} are the limit: the name of the policy may have {allowed}",
    profile.len()
)]
pub struct NameTooLong {
    /// The name of the profile.
    pub profile: String,
    /// How many bytes the name of the policy may have in this namespace.
    pub allowed: usize,
}

/// The name of a policy's profile, which is also the name of the ArmorProfile.
///
/// `namespace` is that of the policy; for a policy of the cluster, `None` and the namespace of the installation.
/// The name cannot be parsed back, because both parts may contain `-`.
///
/// # Errors
///
/// If the name would have more than [`MAX_NAME`] bytes.
///
/// ```
/// assert_eq!(kinds::profile_name(Some("demo"), "Web", "tollgate").unwrap(), "varmor-demo-web");
/// assert_eq!(kinds::profile_name(None, "web", "tollgate").unwrap(), "varmor-cluster-tollgate-web");
/// ```
pub fn profile_name(
    namespace: Option<&str>,
    name: &str,
    installation: &str,
) -> Result<String, NameTooLong> {
    let prefix = match namespace {
        Some(namespace) => format!("varmor-{namespace}-"),
        None => format!("varmor-cluster-{installation}-"),
    };
    let profile = format!("{prefix}{name}").to_lowercase();
    match profile.len() <= MAX_NAME {
        true => Ok(profile),
        false => Err(NameTooLong {
            allowed: MAX_NAME.saturating_sub(prefix.len()),
            profile,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_63_bytes_is_taken_and_one_of_64_is_refused() {
        let room = MAX_NAME - "varmor-demo-".len();
        assert_eq!(
            profile_name(Some("demo"), &"a".repeat(room), "x").map(|name| name.len()),
            Ok(MAX_NAME)
        );
        let error = profile_name(Some("demo"), &"a".repeat(room + 1), "x").unwrap_err();
        assert_eq!(error.allowed, room);
        assert!(error.to_string().contains("has 64 bytes"), "{error}");
        let room = MAX_NAME - "varmor-cluster-demo-".len();
        let error = profile_name(None, &"a".repeat(room + 1), "demo").unwrap_err();
        assert_eq!(error.allowed, room);
    }
}
