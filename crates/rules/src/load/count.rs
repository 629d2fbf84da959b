//! The key `count` of a rule. [`super::risk`] reads what its sums of risk need.

use super::item::{COUNT_KEYS, Key};
use super::reader::Reader;
use crate::condition::ast::SourceId;
use crate::condition::parser::parse_operand;
use crate::ruleset::{Count, Counted};
use crate::version::number;
use yaml::{Kind, Node};

/// Largest `over` and `risk_over`: so many values are kept for each key.
pub(super) const MAX_OVER: u32 = 1000;

/// Longest `within`, in milliseconds.
const MAX_WITHIN_MS: u32 = 3_600_000;

impl<'n> Reader<'n> {
    pub(super) fn count(&mut self, node: &'n Node) -> Option<Count> {
        let keys = self.mapping("`count`", node)?;
        self.check_keys_of(&keys, COUNT_KEYS);
        let key = match keys.contains_key("risk_over") {
            true => "risk_over",
            false => "over",
        };
        let over = self.count_over(key, keys.get(key).copied(), node);
        let of = match key {
            "over" => self.counted_matches(&keys).then_some(Counted::Matches),
            _ => self.summed_risk(&keys),
        };
        let within = match keys.get("within") {
            Some(value) => self.count_within(value),
            None => self.missing("within", node),
        };
        let by = self.count_fields("by", keys.get("by").copied());
        let distinct = self.count_fields("distinct", keys.get("distinct").copied());
        Some(Count {
            over: over?,
            of: of?,
            within_ms: within?,
            by: by?,
            distinct: distinct?,
            location: node.location.clone(),
        })
    }

    fn missing<T>(&mut self, key: &str, node: &Node) -> Option<T> {
        let keys: Vec<_> = COUNT_KEYS.iter().map(|Key { name, .. }| *name).collect();
        let message = format!("the key `{key}` of `count` is missing");
        self.fail(&node.location, message).help =
            Some(format!("`count` has the keys {}", keys.join(", ")));
        None
    }

    fn count_over(&mut self, key: &str, value: Option<&'n Node>, node: &Node) -> Option<u32> {
        let Some(value) = value else {
            return self.missing(key, node);
        };
        let text = self.scalar(key, value)?;
        let over = number(text.text()).filter(|over| (1..=MAX_OVER).contains(over));
        if over.is_none() {
            let found = text.text();
            let message =
                format!("`{key}` has to be a number from 1 to {MAX_OVER}, found `{found}`");
            self.fail(&value.location, message);
        }
        over
    }

    fn count_within(&mut self, value: &'n Node) -> Option<u32> {
        let text = self.scalar("within", value)?;
        let text = text.text();
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
        let read = |(unit, factor): &(&str, u32)| {
            let count = number(text.strip_suffix(unit)?)?;
            count.checked_mul(*factor)
        };
        let within = units.iter().find_map(read);
        let within = within.filter(|within| (1..=MAX_WITHIN_MS).contains(within));
        if within.is_none() {
            let message = format!("`within` has to be a time of at most an hour, found `{text}`");
            self.fail(&value.location, message).help =
                Some("write a number with ms, s, m or h, such as 60s".to_owned());
        }
        within
    }

    /// Reads one field or a list of fields; their names are checked when the rule is compiled.
    fn count_fields(&mut self, key: &str, value: Option<&'n Node>) -> Option<Vec<String>> {
        let Some(value) = value else {
            return Some(Vec::new());
        };
        let texts = match &value.kind {
            Kind::Scalar(_) => vec![self.scalar(key, value)?],
            _ => self.texts(key, value)?,
        };
        let fields: Vec<_> = texts.iter().map(|text| text.text().to_owned()).collect();
        for field in &fields {
            if let Err(error) = parse_operand(field, SourceId(0)) {
                let message = format!(
                    "`{key}` has to be a field or a list of fields: {}",
                    error.message
                );
                self.fail(&value.location, message);
                return None;
            }
        }
        Some(fields)
    }
}
