//! Texts and numbers as pages show them, whoever visits.

use maud::{Markup, html};
use outputs::json;

/// Name of the rule under which violations of policies are reported.
pub(crate) const VIOLATION: &str = "Policy violation";

/// Returns a title with what is said below and beside it.
pub(crate) fn title(name: &str, below: &str, beside: &Markup) -> Markup {
    html! {
        div.title {
            div { h1 { (plain(name)) } @if !below.is_empty() { p { (plain(below)) } } }
            (beside)
        }
    }
}

/// Returns text of a sender with invisible characters spelled out.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if matches!(c, '\n' | '"' | '\\') {
            out.push(c);
            continue;
        }
        json::write_escaped(&mut out, c.encode_utf8(&mut [0; 4]));
    }
    out
}

/// Returns the same, or a dash for nothing.
pub(crate) fn or_dash(text: &str) -> String {
    match text.is_empty() {
        true => "–".to_owned(),
        false => plain(text),
    }
}

/// Returns a number of seconds in the largest unit that it fills.
pub(crate) fn span(seconds: i64) -> String {
    let (number, unit) = match seconds {
        ..=59 => (seconds, "s"),
        60..=3599 => (seconds / 60, "min"),
        3600..=86_399 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    format!("{number} {unit}")
}

/// Returns a number with its thousands apart.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Returns the beginning of a digest.
pub(crate) fn short(digest: &str) -> String {
    let digest = digest.strip_prefix("sha256:").unwrap_or(digest);
    digest.chars().take(12).collect()
}

/// Returns what stands in place of an empty list: why it is empty, and the next command to run.
pub(crate) fn empty(what: &str, why: &str, command: &str) -> Markup {
    html! {
        div.empty {
            b { (what) }
            (why)
            @if !command.is_empty() { br; pre { (command) } }
        }
    }
}

/// Returns an address on this server with a query.
pub(crate) fn address(path: &str, query: &[(&str, &str)]) -> String {
    let query = serde_urlencoded::to_string(query).unwrap_or_else(|_no_text| String::new());
    format!("{path}?{query}")
}
