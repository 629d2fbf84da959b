//! The filter of a page, as it stands in its URL.

use maud::{Markup, html};
use serde::Deserialize;
use store::{Filter, Severity};

use super::view::plain;
use crate::alert::time_text;
use crate::answer::Refusal;
use crate::api::Asked;
use crate::server::now_ns;

/// Ranges that a page offers: name, title, and hours.
pub(super) const RANGES: [(&str, &str, i64); 4] = [
    ("24h", "24 hours", 24),
    ("7d", "7 days", 7 * 24),
    ("30d", "30 days", 30 * 24),
    ("all", "All", 0),
];

const HOUR_NS: i64 = 3_600_000_000_000;

/// The filter. Every member is text as it was sent, so that a page shows it again.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PageQuery {
    pub(super) q: String,
    pub(super) severity: String,
    pub(super) rule: String,
    pub(super) host: String,
    pub(super) program: String,
    pub(super) range: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) hidden: String,
    pub(super) view: String,
    pub(super) after: String,
}

impl PageQuery {
    /// Returns the members with their names.
    fn pairs(&self) -> [(&'static str, &str); 11] {
        [
            ("q", &self.q),
            ("severity", &self.severity),
            ("rule", &self.rule),
            ("host", &self.host),
            ("program", &self.program),
            ("range", &self.range),
            ("from", &self.from),
            ("to", &self.to),
            ("hidden", &self.hidden),
            ("view", &self.view),
            ("after", &self.after),
        ]
    }

    /// Returns the address of this page with some members changed. The position in the list is left out, unless
    /// it is among them.
    pub(super) fn link(&self, path: &str, changes: &[(&str, &str)]) -> String {
        let pairs = self.pairs().into_iter().map(|(name, value)| {
            let changed = changes.iter().find(|(changed, _)| *changed == name);
            let kept = if name == "after" { "" } else { value };
            (name, changed.map_or(kept, |(_, value)| value))
        });
        let pairs: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
        let query = serde_urlencoded::to_string(pairs).unwrap_or_else(|_no_text| String::new());
        match query.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?{query}"),
        }
    }

    /// Returns the filter, or what is wrong with it.
    pub(super) fn filter(&self) -> Result<Filter, Refusal> {
        let hours = RANGES.iter().find(|(name, ..)| *name == self.range);
        let start = hours
            .filter(|(_, _, hours)| *hours > 0 && self.from.is_empty())
            .map(|(_, _, hours)| time_text(now_ns().saturating_sub(hours * HOUR_NS)));
        let asked = Asked {
            from: start.unwrap_or_else(|| self.from.clone()),
            to: self.to.clone(),
            severity: self.severity.clone(),
            rule: self.rule.clone(),
            host: self.host.clone(),
            program: self.program.clone(),
            q: self.q.clone(),
            acknowledged: if self.hidden.is_empty() { "" } else { "true" }.to_owned(),
            after: self.after.clone(),
            ..Asked::default()
        };
        asked.filter()
    }

    /// Returns the form by which people change the filter.
    pub(super) fn form(&self, path: &str) -> Markup {
        html! {
            form.filter method="get" action=(path) role="search" {
                label.grow { "Search in messages"
                    input type="search" name="q" value=(plain(&self.q)) placeholder="/etc/shadow"; }
                label { "At least" select name="severity" {
                    option value="" { "any priority" }
                    @for severity in Severity::all() {
                        option value=(severity.name()) selected[severity.name() == self.severity] { (severity.name()) }
                    }
                } }
                label { "Host" input name="host" value=(plain(&self.host)); }
                label { "Program" input name="program" value=(plain(&self.program)); }
                label { "Time" select name="range" {
                    option value="" { "any time" }
                    @for (name, title, _) in &RANGES[..3] {
                        option value=(name) selected[*name == self.range] { "last " (title) }
                    }
                } }
                @for (name, value) in [("rule", &self.rule), ("from", &self.from), ("to", &self.to), ("view", &self.view)] {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(plain(value)); }
                }
                label.check { input type="checkbox" name="hidden" value="1" checked[!self.hidden.is_empty()]; "Hidden too" }
                button.first type="submit" { "Filter" }
            }
            (self.chips(path))
        }
    }

    /// Returns what of the filter the form does not show, each with a way to remove it.
    fn chips(&self, path: &str) -> Markup {
        let shown = [("rule", &self.rule), ("from", &self.from), ("to", &self.to)];
        html! {
            @if shown.iter().any(|(_, value)| !value.is_empty()) {
                div.chips { @for (name, value) in shown {
                    @if !value.is_empty() {
                        span.chip { span.soft { (name) } (plain(value))
                            a href=(self.link(path, &[(name, "")])) aria-label={ "Remove " (name) } { "×" } }
                    }
                } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_the_filter_and_escapes_it() {
        let query = PageQuery {
            q: "a&b=\"<".to_owned(),
            host: "h".to_owned(),
            after: "1.2".to_owned(),
            ..PageQuery::default()
        };
        assert_eq!(
            query.link("/alerts", &[]),
            "/alerts?q=a%26b%3D%22%3C&host=h"
        );
        let next = query.link("/alerts", &[("after", "3.4"), ("host", "")]);
        assert_eq!(next, "/alerts?q=a%26b%3D%22%3C&after=3.4");
        assert_eq!(PageQuery::default().link("/alerts", &[]), "/alerts");
    }

    #[test]
    fn a_wrong_filter_is_refused() {
        let query = PageQuery {
            severity: "loud".to_owned(),
            ..PageQuery::default()
        };
        assert!(query.filter().is_err());
        let day = PageQuery {
            range: "24h".to_owned(),
            ..PageQuery::default()
        };
        assert!(day.filter().expect("a filter").from_ns.is_some());
    }
}
