//! Lengths of functions and files, and numbers of parameters. `xtask/size.tsv` holds how many items exceed each
//! limit today: the numbers may only go down.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::tokens::{Token, tokens};
use crate::tree::{File, Finding, Tree};

/// Number of items that exceed each limit: name, a tab, number.
const COUNTS: &str = "xtask/size.tsv";

const LONG_FUNCTION: usize = 60;
const TOO_LONG_FUNCTION: usize = 100;
const LONG_FILE: usize = 500;
const MANY_PARAMETERS: usize = 6;

/// One item that exceeds a limit.
#[derive(Debug, PartialEq, Eq)]
struct Excess {
    limit: &'static str,
    path: String,
    line: usize,
    what: String,
}

/// Reports limits that more items exceed than the list allows, and limits whose number in the list is too high.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let allowed = parse(&tree.file(COUNTS)?.text)?;
    let rust = tree.files.iter().filter(|file| file.path.ends_with(".rs"));
    let found: Vec<Excess> = rust.flat_map(in_file).collect();
    Ok(compare(&allowed, &found))
}

fn parse(text: &str) -> Result<BTreeMap<&str, usize>> {
    text.lines()
        .map(|line| {
            let (limit, count) = line.split_once('\t').with_context(|| {
                format!("{COUNTS}: expected a limit, a tab and a number in `{line}`")
            })?;
            let count = count
                .parse()
                .with_context(|| format!("{COUNTS}: `{count}` is no number"))?;
            Ok((limit, count))
        })
        .collect()
}

fn compare(allowed: &BTreeMap<&str, usize>, found: &[Excess]) -> Vec<Finding> {
    let limits = [
        "functions over 100 lines",
        "functions over 60 lines",
        "files over 500 lines",
        "parameter lists over 6",
    ];
    let mut findings = Vec::new();
    for limit in limits {
        let over: Vec<&Excess> = found
            .iter()
            .filter(|excess| excess.limit == limit)
            .collect();
        let allowed = allowed.get(limit).copied().unwrap_or_default();
        if over.len() > allowed {
            findings.extend(over.iter().map(|excess| Finding {
                path: excess.path.clone(),
                line: excess.line,
                message: format!(
                    "{}; {limit}: {} where {COUNTS} allows {allowed}; split it",
                    excess.what,
                    over.len()
                ),
            }));
        } else if over.len() < allowed {
            findings.push(Finding {
                path: COUNTS.to_owned(),
                line: 1,
                message: format!(
                    "{limit}: {} are left; write this number instead of {allowed}",
                    over.len()
                ),
            });
        }
    }
    findings
}

fn in_file(file: &File) -> Vec<Excess> {
    let mut found = Vec::new();
    let mut add = |limit: &'static str, line: usize, what: String| {
        found.push(Excess {
            limit,
            path: file.path.clone(),
            line,
            what,
        });
    };
    let lines = file.text.lines().count();
    if lines > LONG_FILE {
        add("files over 500 lines", 1, format!("{lines} lines"));
    }
    for function in functions(&tokens(&file.text)) {
        let Function {
            name,
            line,
            lines,
            parameters,
        } = function;
        if lines > TOO_LONG_FUNCTION {
            add(
                "functions over 100 lines",
                line,
                format!("`{name}` has {lines} lines"),
            );
        }
        if lines > LONG_FUNCTION {
            add(
                "functions over 60 lines",
                line,
                format!("`{name}` has {lines} lines"),
            );
        }
        if parameters > MANY_PARAMETERS {
            add(
                "parameter lists over 6",
                line,
                format!("`{name}` has {parameters} parameters"),
            );
        }
    }
    found
}

/// A function in the source.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    /// Line number of `fn`.
    line: usize,
    /// Number of lines from `fn` to the closing brace; 1 without a body.
    lines: usize,
    parameters: usize,
}

/// Returns all functions, including nested ones.
fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let starts = tokens.windows(2).enumerate().filter(|(_, pair)| {
        // `fn` of a function pointer type is followed by a parenthesis.
        pair[0].text == "fn"
            && pair[1]
                .text
                .starts_with(|c: char| c.is_alphabetic() || c == '_')
    });
    starts
        .map(|(at, pair)| {
            let (parameters, after) = parameters(tokens, at + 2);
            let end = body_end(tokens, after).unwrap_or(at);
            Function {
                name: pair[1].text,
                line: pair[0].line,
                lines: tokens[end].line - pair[0].line + 1,
                parameters,
            }
        })
        .collect()
}

/// Returns the number of parameters after the name at `from - 1`, and the index after the parameter list.
fn parameters(tokens: &[Token<'_>], from: usize) -> (usize, usize) {
    let (mut depth, mut count, mut is_begun) = (0_usize, 0, false);
    // Generics may come before the list.
    let mut angles = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(from) {
        let is_arrow = index > 0 && tokens[index - 1].text == "-";
        match token.text {
            "<" => angles += 1,
            ">" if !is_arrow => angles = angles.saturating_sub(1),
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && angles == 0 {
                    return (count + usize::from(is_begun), index + 1);
                }
            }
            "," if depth == 1 && angles == 0 => {
                count += usize::from(is_begun);
                is_begun = false;
                continue;
            }
            _ => {}
        }
        is_begun |= depth >= 1
            && !(depth == 1 && token.text == "(" && !is_begun && count == 0 && angles == 0);
    }
    (count, tokens.len())
}

/// Returns the index of the brace that ends the body, searching from `from`. `None` without a body.
fn body_end(tokens: &[Token<'_>], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(from) {
        match token.text {
            ";" if depth == 0 => return None,
            "{" => depth += 1,
            "}" if depth <= 1 => return Some(index),
            "}" => depth -= 1,
            // An array's type in the signature may hold a semicolon.
            "[" | "(" => depth += 1,
            "]" | ")" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let source = "trait T {\n    fn none(&self);\n}\nfn generic<A: Fn(u8, u8) -> u8, B>(a: A, b: (B, B)) -> [u8; 2] {\n    \
                      let f: fn(u8) = g;\n    [0, 1]\n}\nfn empty() {}\n";
        let found: Vec<_> = functions(&tokens(source))
            .iter()
            .map(|function| {
                (
                    function.name,
                    function.line,
                    function.lines,
                    function.parameters,
                )
            })
            .collect();
        assert_eq!(
            found,
            [("none", 2, 1, 1), ("generic", 4, 4, 2), ("empty", 8, 1, 0)]
        );
    }

    #[test]
    fn more_than_the_list_allows_is_reported_and_less_too() {
        let long = format!(
            "fn long(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8,) {{\n{}}}\n",
            "a();\n".repeat(99)
        );
        let file = File {
            path: "a.rs".to_owned(),
            text: long,
        };
        let found = in_file(&file);
        let limits: Vec<_> = found.iter().map(|excess| excess.limit).collect();
        assert_eq!(
            limits,
            [
                "functions over 100 lines",
                "functions over 60 lines",
                "parameter lists over 6"
            ]
        );
        let allowed =
            parse("functions over 60 lines\t1\nparameter lists over 6\t2\n").expect("it is a list");
        let findings: Vec<_> = compare(&allowed, &found)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            findings,
            [
                "a.rs:1: `long` has 101 lines; functions over 100 lines: 1 where xtask/size.tsv allows 0; split it",
                "xtask/size.tsv:1: parameter lists over 6: 1 are left; write this number instead of 2",
            ]
        );
    }
}
