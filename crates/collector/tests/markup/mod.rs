//! A reader of the page's HTML that takes nothing but what the page's own templates write.

use std::collections::BTreeSet;

/// Elements without an end.
const VOID: [&str; 6] = ["input", "link", "meta", "br", "path", "hr"];

/// What a page consists of.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Elements and attributes, each as `element` or `element attribute`.
    pub(crate) names: BTreeSet<String>,
    /// Values of attributes that lead somewhere, with their names.
    pub(crate) links: Vec<(String, String)>,
    /// Texts, without tags, as people read them.
    pub(crate) text: String,
}

/// Reads a page.
///
/// # Panics
///
/// It is not well-formed: an element is open at the end, an end has no beginning, a value is not in quotes.
pub(crate) fn read(page: &str) -> Page {
    let mut read = Page::default();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap_or(page);
    while let Some(at) = rest.find('<') {
        read.text.push_str(&unescaped(&rest[..at]));
        read.text.push(' ');
        let (tag, after) = tag(&rest[at + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "the end of an element: {page}");
            continue;
        }
        let (tag, is_closed) = match tag.strip_suffix('/') {
            Some(tag) => (tag, true),
            None => (tag, false),
        };
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let is_name = |name: &str| {
            let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_good)
        };
        assert!(is_name(name), "element {name:?}: {page}");
        read.names.insert(name.to_owned());
        for (attribute, value) in attributes_of(attributes) {
            assert!(
                attribute
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '-'),
                "attribute {attribute:?}: {page}"
            );
            let attribute = attribute.to_ascii_lowercase();
            read.names.insert(format!("{name} {attribute}"));
            let leads = ["href", "src", "action", "formaction", "content", "srcdoc"];
            if leads.contains(&&*attribute) {
                read.links.push((attribute, value));
            }
        }
        if !is_closed && !VOID.contains(&name) {
            open.push(name);
        }
    }
    read.text.push_str(&unescaped(rest));
    assert!(open.is_empty(), "{open:?} are open: {page}");
    read
}

/// Splits behind the end of a tag, which is not within quotes.
fn tag(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            '>' if !is_quoted => return (&text[..at], &text[at + 1..]),
            '<' => panic!("`<` within a tag: {text}"),
            _ => {}
        }
    }
    panic!("a tag has no end: {text}");
}

/// Returns names and values of attributes.
fn attributes_of(mut text: &str) -> Vec<(&str, String)> {
    let mut all = Vec::new();
    loop {
        text = text.trim_start_matches(' ');
        if text.is_empty() {
            return all;
        }
        let end = text.find(['=', ' ']).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        let Some(value) = after.strip_prefix('=') else {
            all.push((name, String::new()));
            text = after;
            continue;
        };
        let value = value.strip_prefix('"').expect("a value in quotes");
        let (value, after) = value.split_once('"').expect("the end of a value");
        all.push((name, unescaped(value)));
        text = after;
    }
}

/// Returns text without the references of characters that `maud` makes.
fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">");
    text.replace("&quot;", "\"").replace("&amp;", "&")
}
