//! The name of an agent in its client certificate: `tollgate://CLASS/NAME`.

use store::CertificateName;

/// How the URI of an agent begins.
const SCHEME: &str = "tollgate://";

/// Longest class, as in `tollgate serve token create`.
const MAX_CLASS: usize = 64;

/// Longest name: that of a host in DNS.
const MAX_NAME: usize = 253;

/// Returns the name among the URIs of a certificate. There has to be one URI, and it has to be that of an agent: a certificate with
/// several could be taken for one or another.
pub(crate) fn name(uris: &[String]) -> Result<CertificateName, String> {
    let needed = "the certificate of an agent has exactly one URI, tollgate://CLASS/NAME";
    match uris {
        [uri] => parse(uri).ok_or_else(|| {
            format!(
                "{needed}; this one has another: CLASS is up to {MAX_CLASS} and NAME up to {MAX_NAME} letters, digits, `-`, `_` and `.`"
            )
        }),
        [] => Err(format!("{needed}; this one has none")),
        several => Err(format!("{needed}; this one has {}", several.len())),
    }
}

fn parse(uri: &str) -> Option<CertificateName> {
    let (class, name) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let is_good = |text: &str, longest| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (1..=longest).contains(&text.len()) && text.chars().all(is_known)
    };
    (is_good(class, MAX_CLASS) && is_good(name, MAX_NAME)).then(|| CertificateName {
        class: class.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uris: &[&str]) -> Result<String, String> {
        let uris: Vec<_> = uris.iter().map(|&uri| uri.to_owned()).collect();
        name(&uris).map(|name| name.to_string())
    }

    #[test]
    fn one_uri_of_an_agent_is_its_name_and_everything_else_is_refused_with_the_reason() {
        assert_eq!(
            of(&["tollgate://web/box-1.example"]),
            Ok("web/box-1.example".to_owned())
        );
        let long = format!("tollgate://{}/x", "c".repeat(MAX_CLASS + 1));
        for (uris, why) in [
            (&[][..], "this one has none"),
            (&["tollgate://web/a", "tollgate://web/a"], "this one has 2"),
            (&["tollgate://web/a", "spiffe://web/a"], "this one has 2"),
            (&["spiffe://web/a"], "this one has another"),
            (&["TOLLGATE://web/a"], "this one has another"),
            (&["tollgate://web"], "this one has another"),
            (&["tollgate://web/"], "this one has another"),
            (&["tollgate:///a"], "this one has another"),
            (&["tollgate://web/a/b"], "this one has another"),
            (&["tollgate://web/a?b"], "this one has another"),
            (&["tollgate://web/a%2f"], "this one has another"),
            (&["tollgate://user@web/a"], "this one has another"),
            (&["tollgate://web/ä"], "this one has another"),
            (&["tollgate://web/a\n"], "this one has another"),
            (&[&*long], "this one has another"),
        ] {
            let problem = of(uris).expect_err("it is refused");
            let is_right = problem.contains(why) && problem.contains("tollgate://CLASS/NAME");
            assert!(is_right, "{uris:?}: {problem}");
        }
    }
}
