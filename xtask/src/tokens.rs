//! Rust source split into words and signs, without comments, literals and test modules.
//!
//! This is not a parser: it knows just enough not to take a word in a comment or a string for code.

/// A word (identifier or number) or a single sign, with its line number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// Splits `source` into tokens. Leaves out comments, strings and character literals.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, is_code) = piece(rest, first);
        let (text, after) = rest.split_at(length);
        if is_code {
            found.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// Returns the tokens without items that are compiled for tests only.
pub(crate) fn product_tokens(source: &str) -> Vec<Token<'_>> {
    const TEST_ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let all = tokens(source);
    let mut kept = Vec::with_capacity(all.len());
    let mut at = 0;
    while at < all.len() {
        let window = all[at..]
            .iter()
            .take(TEST_ONLY.len())
            .map(|token| token.text);
        if window.eq(TEST_ONLY) {
            at = item_end(&all, at + TEST_ONLY.len());
        } else {
            kept.push(all[at]);
            at += 1;
        }
    }
    kept
}

/// Returns the index after the item that starts at `at`: after its `;` or its closing brace.
fn item_end(all: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in all.iter().enumerate().skip(at) {
        match token.text {
            ";" if depth == 0 => return index + 1,
            "{" => depth += 1,
            "}" if depth <= 1 => return index + 1,
            "}" => depth -= 1,
            _ => {}
        }
    }
    all.len()
}

/// Returns the length of the piece at the start of `rest`, and whether it is code.
fn piece(rest: &str, first: char) -> (usize, bool) {
    if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), false)
    } else if rest.starts_with("/*") {
        (block_comment(rest), false)
    } else if let Some(length) = raw_string(rest) {
        (length, false)
    } else if first == '"' || rest.starts_with("b\"") || rest.starts_with("c\"") {
        (quoted(rest, '"'), false)
    } else if first == '\'' {
        (character(rest), false)
    } else if first.is_alphanumeric() || first == '_' {
        let end = |c: char| !c.is_alphanumeric() && c != '_';
        (rest.find(end).unwrap_or(rest.len()), true)
    } else {
        (first.len_utf8(), !first.is_whitespace())
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Returns the length of the raw string at the start of `rest`, if there is one.
fn raw_string(rest: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|prefix| {
        let after = rest.strip_prefix(prefix)?;
        after
            .trim_start_matches('#')
            .starts_with('"')
            .then_some(after)
    })?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let opening = rest.len() - body.len() + hashes + 1;
    let closing = format!("\"{}", "#".repeat(hashes));
    let end = rest[opening..]
        .find(&closing)
        .map(|at| opening + at + closing.len());
    Some(end.unwrap_or(rest.len()))
}

/// Returns the length of the literal up to its closing `quote`, which a backslash may escape.
fn quoted(rest: &str, quote: char) -> usize {
    let opening = rest.find(quote).map_or(0, |at| at + 1);
    let mut escaped = false;
    for (at, c) in rest[opening..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return opening + at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a character literal, or 1 for the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut after = rest.chars().skip(1);
    match (after.next(), after.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(rest, '\''),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let source = "a // unsafe\n/* b /* c */ unsafe */ d \"un\\\"safe\" r#\"x\"unsafe\"# '\"' e";
        assert_eq!(words(source), ["a", "d", "e"]);
    }

    #[test]
    fn lifetimes_are_not_character_literals() {
        assert_eq!(words("&'a str, '\\'' b"), ["&", "a", "str", ",", "b"]);
    }

    #[test]
    fn lines_are_counted_through_strings() {
        let found = tokens("\"one\ntwo\"\nthree");
        assert_eq!(
            found,
            [Token {
                text: "three",
                line: 3
            }]
        );
    }

    #[test]
    fn test_modules_are_not_product_code() {
        let source = "fn a() {} #[cfg(test)] mod tests { fn b() { {} } } fn c() {} \
                      #[cfg(test)] mod more; fn d() {}";
        let kept: Vec<&str> = product_tokens(source)
            .iter()
            .map(|token| token.text)
            .collect();
        assert!(kept.contains(&"a") && kept.contains(&"c") && kept.contains(&"d"));
        assert!(!kept.contains(&"b") && !kept.contains(&"tests") && !kept.contains(&"more"));
    }
}
