//! Forbidden constructs in Rust source: I/O in pure crates, unsafe code outside `sys`.

use anyhow::Result;

use crate::dependencies;
use crate::tokens::{Token, product_tokens, tokens};
use crate::tree::{File, Finding, Tree};

/// The crate that may contain hand-written unsafe code.
const UNSAFE_FOLDER: &str = "crates/sys/";
/// The crate that calls functions of plugins, which only its process loads; the rest of it is safe.
const PLUGIN_FOLDER: &str = "crates/plugin_host/";
/// The folder of that crate with unsafe code.
const PLUGIN_ABI: &str = "crates/plugin_host/src/abi/";

/// Modules of `std` that reach outside the process or depend on its environment.
const IMPURE_MODULES: [&str; 5] = ["env", "fs", "os", "process", "thread"];

/// Names that do I/O, in modules that also hold harmless types such as `IpAddr`.
const IMPURE_NAMES: [&str; 5] = [
    "TcpListener",
    "TcpStream",
    "ToSocketAddrs",
    "UdpSocket",
    "stdin",
];

/// Macros that write to the terminal.
const IMPURE_MACROS: [&str; 4] = ["eprint", "eprintln", "print", "println"];

/// Reports I/O in pure crates, unsafe code outside `sys`, and crates that opt out of the lints.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let table = dependencies::table(tree)?;
    let pure: Vec<String> = table
        .iter()
        .filter(|(_, row)| row.pure)
        .map(|(name, _)| format!("crates/{name}/src/"))
        .collect();
    let mut findings = Vec::new();
    for file in &tree.files {
        if file.path.starts_with(UNSAFE_FOLDER) {
            continue;
        }
        if file.path.ends_with("Cargo.toml") && !file.path.starts_with(PLUGIN_FOLDER) {
            findings.extend(missing_lints(file));
        }
        if file.path.ends_with(".rs") {
            if !file.path.starts_with(PLUGIN_ABI) {
                findings.extend(unsafe_code(file));
            }
            if pure.iter().any(|folder| file.path.starts_with(folder)) && !is_test_file(file) {
                findings.extend(impure_code(file));
            }
        }
    }
    Ok(findings)
}

/// Returns true for a `tests.rs` that its module declares for tests only.
fn is_test_file(file: &File) -> bool {
    file.path.ends_with("/tests.rs") || file.path.contains("/tests/")
}

fn finding(file: &File, line: usize, message: String) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        message,
    }
}

/// Reports a crate without `[lints] workspace = true`, which silently loses the ban on unsafe code.
fn missing_lints(file: &File) -> Option<Finding> {
    let is_package = file.text.contains("[package]");
    // A separate workspace cannot use the lints of this one.
    let is_apart = file.text.contains("\n[workspace]\n");
    if !is_package || is_apart || file.text.contains("[lints]\nworkspace = true") {
        return None;
    }
    let message = "the workspace's lints are not in force; add `[lints]` with `workspace = true`";
    Some(finding(file, 1, message.to_owned()))
}

fn unsafe_code(file: &File) -> Vec<Finding> {
    let message = format!("unsafe code; move it below {UNSAFE_FOLDER} behind a safe function");
    tokens(&file.text)
        .iter()
        .filter(|token| token.text == "unsafe")
        .map(|token| finding(file, token.line, message.clone()))
        .collect()
}

fn impure_code(file: &File) -> Vec<Finding> {
    let all = product_tokens(&file.text);
    let names = all
        .iter()
        .filter(|token| IMPURE_NAMES.contains(&token.text))
        .copied();
    let macros = all
        .windows(2)
        .filter(|pair| IMPURE_MACROS.contains(&pair[0].text) && pair[1].text == "!")
        .map(|pair| pair[0]);
    let modules = std_modules(&all)
        .into_iter()
        .filter(|m| IMPURE_MODULES.contains(&m.text));
    let message = |text: &str| {
        format!("`{text}` in a pure crate; let the caller do the I/O and pass the result")
    };
    let found = names.chain(macros).chain(modules);
    found
        .map(|token| finding(file, token.line, message(token.text)))
        .collect()
}

/// Returns every module of `std` that is named, in `std::fs::read` and in `use std::{fs, io}` alike.
fn std_modules<'a>(all: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut found = Vec::new();
    for (at, token) in all.iter().enumerate() {
        let after: Vec<&str> = all[at + 1..]
            .iter()
            .take(2)
            .map(|token| token.text)
            .collect();
        if token.text == "std" && after == [":", ":"] {
            first_segments(&all[at + 3..], &mut found);
        }
    }
    found
}

/// Collects the word that follows `std::`, or each first word between the braces that follow it.
fn first_segments<'a>(after: &[Token<'a>], found: &mut Vec<Token<'a>>) {
    if after.first().is_none_or(|token| token.text != "{") {
        found.extend(after.first());
        return;
    }
    let mut depth = 0_usize;
    let mut is_first = false;
    for token in after {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return,
            "}" => depth -= 1,
            _ if depth == 1 && is_first => found.push(*token),
            _ => {}
        }
        is_first = depth == 1 && matches!(token.text, "{" | ",");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impure(text: &str) -> Vec<usize> {
        impure_code(&File::new("crates/rules/src/a.rs", text))
            .iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn plain_and_grouped_imports_are_found() {
        assert_eq!(impure("use std::fs;\nlet x = std::process::id();"), [1, 2]);
        assert_eq!(
            impure("use std::{\n    collections::{BTreeMap, HashMap},\n    fs,\n};"),
            [3]
        );
        assert_eq!(impure("println!(\"x\");"), [1]);
    }

    #[test]
    fn harmless_modules_comments_and_tests_are_not_found() {
        assert_eq!(impure("mod print;\nfn println() {}"), [0; 0]);
        assert_eq!(
            impure("use std::net::IpAddr;\nuse std::{fmt, io::Write};"),
            [0; 0]
        );
        assert_eq!(
            impure("// std::fs\n/// `std::process`\nlet s = \"std::fs\";"),
            [0; 0]
        );
        assert_eq!(impure("#[cfg(test)]\nmod tests { use std::fs; }"), [0; 0]);
    }

    #[test]
    fn unsafe_code_is_found_and_the_lint_of_that_name_is_not() {
        let text = "#![forbid(unsafe_code)]\n// unsafe\nlet x = unsafe { f() };";
        let findings = unsafe_code(&File::new("crates/cli/src/main.rs", text));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
    }

    #[test]
    fn a_crate_that_does_not_inherit_the_lints_is_found() {
        let without = File::new("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
        let with = File::new(
            "crates/a/Cargo.toml",
            "[package]\n[lints]\nworkspace = true\n",
        );
        assert!(missing_lints(&without).is_some());
        assert!(missing_lints(&with).is_none());
    }
}
