//! Annotations that ask for a container to be watched or confined.

use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rules::diagnostic::closest;

use crate::Spec;

/// Annotation that requests watching.
pub const WATCH: &str = "tollgate.watch";
/// Annotation that names a policy.
pub const POLICY: &str = "tollgate.policy";
/// All annotations of ours.
pub(crate) const ALL: [&str; 2] = [WATCH, POLICY];
/// Prefix of this program's annotations.
const OURS: &str = "tollgate.";

/// Reads the specification of a container and checks its annotations.
///
/// # Errors
///
/// [`Exit::BadInput`] if the bundle cannot be read, or an annotation of ours is unknown or has a wrong value.
pub fn read(bundle: &Path) -> Result<Spec, Failure> {
    let spec = Spec::read(bundle).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error).help("name the bundle's folder with --bundle")
    })?;
    check(&spec)?;
    Ok(spec)
}

/// Rejects unknown annotations of ours. With a misspelt one, a container would silently go
/// unwatched or unconfined.
fn check(spec: &Spec) -> Result<(), Failure> {
    for (name, value) in &spec.annotations {
        let (problem, help) = match name.as_str() {
            WATCH if !matches!(&**value, "true" | "false") => (
                format!("the annotation `{WATCH}` cannot be `{value}`"),
                "it is `true` or `false`".to_owned(),
            ),
            name if name.starts_with(OURS) && !ALL.contains(&name) => (
                format!("no such annotation: `{name}`"),
                match closest(name, ALL) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!(
                        "annotations that start with `{OURS}` are {}",
                        ALL.join(" and ")
                    ),
                },
            ),
            _ => continue,
        };
        let message = format!("cannot create the container: {problem}");
        return Err(Failure::new(Exit::BadInput, message).help(help));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, value: &str) -> Result<(), String> {
        let text = serde_json::json!({"annotations": {name: value}}).to_string();
        let spec = serde_json::from_str(&text).unwrap();
        check(&spec).map_err(|failure| failure.render())
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (name, value) in [
            (WATCH, "true"),
            (WATCH, "false"),
            (POLICY, "web"),
            ("io.kubernetes.cri.container-name", "web"),
            ("org.tollgate.polcy", "web"),
        ] {
            assert_eq!(checked(name, value), Ok(()), "{name}={value}");
        }
        let near = checked("tollgate.polcy", "web").unwrap_err();
        assert!(near.contains("did you mean `tollgate.policy`?"), "{near}");
        let far = checked("tollgate.enforcement", "web").unwrap_err();
        assert!(far.contains("tollgate.watch and tollgate.policy"), "{far}");
        let value = checked(WATCH, "yes").unwrap_err();
        assert!(value.contains("cannot be `yes`"), "{value}");
    }
}
