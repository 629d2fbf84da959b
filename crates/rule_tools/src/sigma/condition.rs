//! The condition of a Sigma rule: how its selections are joined.
//!
//! ```text
//! condition = or
//! or        = and { "or" and }
//! and       = not { "and" not }
//! not       = { "not" } ( "(" or ")" | ( "1" | "any" | "all" ) "of" ( "them" | pattern ) | name )
//! ```

use yaml::{Node, closest};

use super::Remark;
use super::selection::{Expr, Reader};
use super::source::Detection;

/// Maximum nesting depth; published rules nest at most 2.
const MAX_DEPTH: usize = 20;

/// Reads a rule's conditions, of which one must hold.
pub(super) fn read(detection: &Detection<'_>, reader: &mut Reader) -> Result<Expr, Remark> {
    let mut any = Vec::new();
    for node in &detection.conditions {
        let text = node.scalar().map_or("", |text| text.text());
        let mut parser = Parser {
            tokens: tokens(text),
            at: 0,
            depth: 0,
            node,
            detection,
            reader: &mut *reader,
        };
        let expr = parser.or()?;
        if let Some(rest) = parser.peek() {
            let message = match rest {
                "|" => "`|` counts matches, which Sigma no longer knows; write `count` in a converted rule".to_owned(),
                rest => format!("expected `and`, `or` or the end of the condition before `{rest}`"),
            };
            return Err(Remark::new(&node.location, message));
        }
        any.push(expr);
    }
    match any.is_empty() {
        true => Err(Remark::new(
            &detection.node.location,
            "the condition is empty",
        )),
        false => Ok(Expr::any(any)),
    }
}

fn tokens(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        let mut rest = word;
        while let Some(at) = rest.find(['(', ')', '|']) {
            all.extend([&rest[..at], &rest[at..=at]]);
            rest = &rest[at + 1..];
        }
        all.push(rest);
    }
    all.retain(|token| !token.is_empty());
    all
}

struct Parser<'p, 'n> {
    tokens: Vec<&'p str>,
    at: usize,
    depth: usize,
    node: &'n Node,
    detection: &'p Detection<'n>,
    reader: &'p mut Reader,
}

impl<'p> Parser<'p, '_> {
    fn peek(&self) -> Option<&'p str> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'p str> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Skips a keyword, whatever the case of its letters.
    fn skip(&mut self, word: &str) -> bool {
        let is_here = self
            .peek()
            .is_some_and(|token| token.eq_ignore_ascii_case(word));
        self.at += usize::from(is_here);
        is_here
    }

    fn error(&self, message: impl Into<String>) -> Remark {
        Remark::new(&self.node.location, message)
    }

    fn or(&mut self) -> Result<Expr, Remark> {
        let mut parts = vec![self.and()?];
        while self.skip("or") {
            parts.push(self.and()?);
        }
        Ok(Expr::any(parts))
    }

    fn and(&mut self) -> Result<Expr, Remark> {
        let mut parts = vec![self.not()?];
        while self.skip("and") {
            parts.push(self.not()?);
        }
        Ok(Expr::all(parts))
    }

    fn not(&mut self) -> Result<Expr, Remark> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("the condition nests deeper than {MAX_DEPTH}")));
        }
        let expr = match self.skip("not") {
            true => Expr::Not(Box::new(self.not()?)),
            false => self.one()?,
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn one(&mut self) -> Result<Expr, Remark> {
        let Some(token) = self.next() else {
            return Err(self.error("expected the name of a selection at the end of the condition"));
        };
        if token == "(" {
            let expr = self.or()?;
            return match self.next() {
                Some(")") => Ok(expr),
                _ => Err(self.error("a parenthesis is not closed")),
            };
        }
        let is_count = self
            .peek()
            .is_some_and(|next| next.eq_ignore_ascii_case("of"));
        if !is_count {
            return self.named(token);
        }
        self.at += 1;
        let Some(pattern) = self.next() else {
            return Err(self.error("expected `them` or the names of selections after `of`"));
        };
        let parts = self.matching(pattern)?;
        match token.to_ascii_lowercase().as_str() {
            "1" | "any" => Ok(Expr::any(parts)),
            "all" => Ok(Expr::all(parts)),
            other => Err(self.error(format!(
                "`{other} of` is not carried; carried are `1 of` and `all of`"
            ))),
        }
    }

    fn named(&mut self, name: &str) -> Result<Expr, Remark> {
        let mut all = self.detection.selections.iter();
        if let Some((_, node)) = all.find(|(known, _)| *known == name) {
            return Ok(self.reader.selection(node));
        }
        let mut message = format!("the rule has no selection `{name}`");
        let names = self.detection.selections.iter().map(|(name, _)| *name);
        if let Some(known) = closest(name, names) {
            message.push_str(&format!("; did you mean `{known}`?"));
        }
        Err(self.error(message))
    }

    /// Reads the selections whose names match: `*` stands for any characters, `them` for all whose name does not
    /// begin with `_`.
    fn matching(&mut self, pattern: &str) -> Result<Vec<Expr>, Remark> {
        let fits = |name: &str| match pattern {
            "them" => !name.starts_with('_'),
            pattern => glob(pattern, name),
        };
        let all = self.detection.selections.iter();
        let nodes: Vec<_> = all
            .filter(|(name, _)| fits(name))
            .map(|(_, node)| *node)
            .collect();
        if nodes.is_empty() {
            return Err(self.error(format!("the rule has no selection for `{pattern}`")));
        }
        Ok(nodes
            .into_iter()
            .map(|node| self.reader.selection(node))
            .collect())
    }
}

/// Returns whether a name fits a pattern in which `*` stands for any characters: each part is found at its first place,
/// and the last one at the end.
fn glob(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_prefix(start) else {
        return false;
    };
    for part in middle.split('*') {
        match name.split_once(part) {
            Some((_, after)) => name = after,
            None => return false,
        }
    }
    name.ends_with(end)
}
