//! Forbidden words: where a file was written, where packages come from, and marks of unfinished work.

use anyhow::Result;

use crate::tree::{File, Finding, Tree};

/// Cargo writes the lock files, which name the registry.
const GENERATED: &str = "Cargo.lock";

/// Hosts of package registries, in two parts so that this file passes its own check. The mirror that a host
/// uses is its owner's affair.
const REGISTRY_HOSTS: [(&str, &str); 8] = [
    ("crates", ".io"),
    ("deb.debian", ".org"),
    ("snapshot.debian", ".org"),
    ("security.debian", ".org"),
    ("pypi", ".org"),
    ("registry.npmjs", ".org"),
    ("proxy.golang", ".org"),
    ("repo.maven.apache", ".org"),
];

/// Marks of unfinished work, in two parts for the same reason.
const UNFINISHED: [(&str, &str, &str); 3] = [
    (
        "FIX",
        "ME",
        "mend it, or file an issue and write `TODO(#number): ...`",
    ),
    (
        "#[ign",
        "ore",
        "slow tests ask `TOLLGATE_TEST_SLOW`; tests that cannot run here say why",
    ),
    ("TO", "DO:", "name the issue: `TODO(#number): ...`"),
];

/// The file whose subject are registries: the peers of package managers, as `tollgate guard` allows them.
const ABOUT_REGISTRIES: &str = "crates/guard/src/tools.rs";

/// Programs that find processes by name, in two parts for the same reason. On a host with several runs they
/// find the processes of others, too.
const BY_NAME: [(&str, &str); 4] = [("pk", "ill"), ("kill", "all"), ("pg", "rep"), ("pid", "of")];

/// Module names that do not describe the content.
const EMPTY_NAMES: [&str; 5] = ["common", "helper", "helpers", "misc", "utils"];

/// Reports every forbidden word.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let root = tree.root.display().to_string();
    let files = tree
        .files
        .iter()
        .filter(|file| !file.path.ends_with(GENERATED));
    Ok(files.flat_map(|file| in_file(file, &root)).collect())
}

fn in_file(file: &File, root: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |line: usize, message: String| {
        findings.push(Finding {
            path: file.path.clone(),
            line,
            message,
        });
    };
    if has_empty_name(&file.path) {
        report(
            1,
            "the file's name says nothing; name it after what it holds".to_owned(),
        );
    }
    for (index, text) in file.text.lines().enumerate() {
        let line = index + 1;
        // A root such as `/src` is too common a word to search for.
        if root.matches('/').count() > 1 && text.contains(root) {
            report(
                line,
                format!("`{root}` exists on this machine only; use a relative path"),
            );
        }
        for (host, domain) in REGISTRY_HOSTS {
            if file.path != ABOUT_REGISTRIES && text.contains(&format!("{host}{domain}")) {
                report(
                    line,
                    format!("`{host}{domain}` is a registry's host; leave it out"),
                );
            }
        }
        for (start, end) in BY_NAME {
            let program = format!("{start}{end}");
            let is_word = |word: &str| word == program;
            if is_test(&file.path) && text.split(|c: char| !c.is_alphanumeric()).any(is_word) {
                report(
                    line,
                    format!(
                        "`{program}` finds others' processes; use the pid of one that the test started"
                    ),
                );
            }
        }
        for (start, end, advice) in UNFINISHED {
            if is_code(&file.path) && text.contains(&format!("{start}{end}")) {
                report(
                    line,
                    format!("`{start}{end}` marks unfinished work; {advice}"),
                );
            }
        }
    }
    findings
}

fn has_empty_name(path: &str) -> bool {
    let name = path
        .rsplit('/')
        .next()
        .and_then(|name| name.strip_suffix(".rs"));
    name.is_some_and(|name| EMPTY_NAMES.contains(&name))
}

/// Returns true for code of tests. The names of rules that tests play for detectors are in other files.
fn is_test(path: &str) -> bool {
    let is_script = [".rs", ".sh", ".py"].iter().any(|end| path.ends_with(end));
    is_script && (path.starts_with("tests/") || path.contains("/tests/"))
}

/// Returns true for code. Documents may explain the marks; code may not use them.
fn is_code(path: &str) -> bool {
    !path.ends_with(".md")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        in_file(&file, "/build/tollgate")
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_path_of_this_machine_is_found() {
        assert_eq!(
            messages("a.rs", "let x = \"/build/tollgate/rules\";").len(),
            1
        );
        assert_eq!(messages("a.rs", "let x = \"../shared/rules\";").len(), 0);
    }

    #[test]
    fn a_registry_host_is_found() {
        assert_eq!(
            messages("a.md", &["see ", "crates", ".io"].concat()).len(),
            1
        );
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_allowed_with_an_issue() {
        assert_eq!(messages("a.rs", &["// FIX", "ME later"].concat()).len(), 1);
        assert_eq!(messages("a.rs", &["    #[ign", "ore]"].concat()).len(), 1);
        assert_eq!(messages("a.rs", "// TODO(#12): later").len(), 0);
        assert_eq!(messages("a.md", &["FIX", "ME"].concat()).len(), 0);
    }

    #[test]
    fn a_search_for_processes_by_name_is_found_in_tests() {
        let line = ["    pk", "ill -f tollgate"].concat();
        for path in [
            "tests/tests/a.rs",
            "crates/a/tests/b.rs",
            "tests/fixtures/c.sh",
        ] {
            assert_eq!(messages(path, &line).len(), 1, "{path}");
        }
        assert_eq!(messages("crates/a/src/b.rs", &line).len(), 0);
        assert_eq!(messages("tests/tests/a.rs", "pg_reply pidofs").len(), 0);
    }

    #[test]
    fn an_empty_module_name_is_found() {
        assert_eq!(messages("crates/a/src/utils.rs", "").len(), 1);
        assert_eq!(messages("crates/a/src/rules.rs", "").len(), 0);
    }
}
