//! Digests of what is in force, by which hosts with the same rules or the same policy are recognized.

use config::Selection;
use config::rule_files::RuleFile;

/// Returns the SHA-256 of `content` in hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the digest of rule files in the order of loading, and of the selection of rules. Names of files do not
/// matter, so that the same rules have the same digest on each host.
#[must_use]
pub fn of_rules(files: &[RuleFile], selections: &[Selection]) -> String {
    let mut content = Vec::new();
    // The length goes before each text, so that no text can pass for two. What is not there is no empty text.
    let mut add = |text: Option<&str>| match text {
        Some(text) => {
            content.extend_from_slice(&(text.len() as u64).to_le_bytes());
            content.extend_from_slice(text.as_bytes());
        }
        None => content.extend_from_slice(&u64::MAX.to_le_bytes()),
    };
    for file in files {
        add(file.text.as_deref().ok());
    }
    for selection in selections {
        add(Some(match selection.enable {
            true => "enable",
            false => "disable",
        }));
        add(selection.rule.as_deref());
        add(selection.tag.as_deref());
    }
    sha256(&content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> RuleFile {
        RuleFile {
            name: name.into(),
            text: Ok(text.to_owned()),
        }
    }

    fn disable(rule: &str) -> Selection {
        Selection {
            enable: false,
            rule: Some(rule.to_owned()),
            tag: None,
            implied: false,
        }
    }

    #[test]
    fn the_digest_depends_on_texts_their_order_and_the_selection_alone() {
        let of = |texts: &[&str], selections: &[Selection]| {
            let files: Vec<_> = texts.iter().map(|text| file("a", text)).collect();
            of_rules(&files, selections)
        };
        let first = of(&["a", "b"], &[]);
        assert_eq!(first.len(), 64);
        assert_eq!(of_rules(&[file("x", "a"), file("y", "b")], &[]), first);
        let others = [
            of(&["b", "a"], &[]),
            of(&["ab"], &[]),
            of(&["a", "b"], &[disable("r")]),
            of(&["a", "b"], &[disable("s")]),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, first);
            assert!(!others[..at].contains(other));
        }
        let mut unreadable = file("a", "");
        assert_eq!(
            of_rules(std::slice::from_ref(&unreadable), &[]),
            of(&[""], &[])
        );
        unreadable.text = Err("denied".to_owned());
        assert_ne!(of_rules(&[unreadable], &[]), of(&[""], &[]));
        assert_ne!(of(&[], &[disable("")]), {
            let mut all = disable("");
            all.rule = None;
            of(&[], &[all])
        });
        assert!(sha256(b"").starts_with("e3b0c44298fc1c14"));
    }
}
