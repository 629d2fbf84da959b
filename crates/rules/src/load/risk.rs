//! The key `risk` of a rule, and what sums of risk add to `count`.

use std::collections::BTreeMap;

use super::count::MAX_OVER;
use super::item::RISK_KEYS;
use super::reader::Reader;
use crate::ruleset::{Count, Counted, Risk};
use crate::version::number;
use yaml::{Kind, Node};

/// Longest name of a program, in bytes: the kernel cuts longer ones.
const MAX_NAME: usize = 15;

impl<'n> Reader<'n> {
    /// Reads `count` and `risk` of a rule that is defined. A rule that sums risk cannot add to it.
    pub(super) fn count_and_risk(&mut self) -> (Option<Option<Count>>, Option<Option<Risk>>) {
        let count = match self.get("count") {
            Some(node) => self.count(node).map(Some),
            None => Some(None),
        };
        let risk = match self.get("risk") {
            Some(node) => self.risk(node).map(Some),
            None => Some(None),
        };
        (count, risk)
    }

    /// Reads `risk: WEIGHT` or `risk: {weight: WEIGHT, silent: true}`.
    pub(super) fn risk(&mut self, node: &'n Node) -> Option<Risk> {
        if matches!(node.kind, Kind::Scalar(_)) {
            let weight = self.weight("risk", node)?;
            return Some(Risk {
                weight,
                is_silent: false,
            });
        }
        let keys = self.mapping("`risk`", node)?;
        self.check_keys_of(&keys, RISK_KEYS);
        let is_silent = match keys.get("silent") {
            Some(value) => self.boolean("silent", value),
            None => Some(false),
        };
        let Some(weight) = keys.get("weight") else {
            let message = "the key `weight` of `risk` is missing".to_owned();
            self.fail(&node.location, message).help =
                Some("write `risk: 30`, or `risk: {weight: 30, silent: true}`".to_owned());
            return None;
        };
        Some(Risk {
            weight: self.weight("weight", weight)?,
            is_silent: is_silent?,
        })
    }

    fn weight(&mut self, key: &str, node: &'n Node) -> Option<u32> {
        let text = self.scalar(key, node)?;
        let weight = number(text.text()).filter(|weight| (1..=MAX_OVER).contains(weight));
        if weight.is_none() {
            let found = text.text();
            let message =
                format!("`{key}` has to be a number from 1 to {MAX_OVER}, found `{found}`");
            self.fail(&node.location, message);
        }
        weight
    }

    /// Checks that a rule which counts its own matches has no key of sums. Returns false if it has.
    pub(super) fn counted_matches(&mut self, keys: &BTreeMap<&str, &'n Node>) -> bool {
        let Some(below) = keys.get("below") else {
            return true;
        };
        let message = "`below` needs `risk_over`: it says where process trees begin".to_owned();
        self.fail(&below.location, message).help =
            Some("count apart by fields with `by`, such as `by: proc.sid`".to_owned());
        false
    }

    /// Reads what a sum of risk has beside `risk_over`, `within` and `by`.
    pub(super) fn summed_risk(&mut self, keys: &BTreeMap<&str, &'n Node>) -> Option<Counted> {
        for key in ["over", "distinct"] {
            if let Some(value) = keys.get(key) {
                let message = format!("`{key}` cannot be used with `risk_over`");
                self.fail(&value.location, message).help =
                    Some("a sum of risk counts each signal once, by its weight".to_owned());
                return None;
            }
        }
        let Some(node) = keys.get("below").copied() else {
            return Some(Counted::Risk { below: Vec::new() });
        };
        let names = match &node.kind {
            Kind::Scalar(_) => vec![self.scalar("below", node)?],
            _ => self.texts("below", node)?,
        };
        let names: Vec<_> = names.iter().map(|name| name.text().to_owned()).collect();
        if let Some(long) = names.iter().find(|name| name.len() > MAX_NAME) {
            let message = format!(
                "`below`: the kernel cuts names of programs to {MAX_NAME} bytes, found `{long}`"
            );
            let cut = long
                .char_indices()
                .take_while(|(at, c)| at + c.len_utf8() <= MAX_NAME);
            let cut: String = cut.map(|(_, c)| c).collect();
            self.fail(&node.location, message).help = Some(format!("write `{cut}`"));
            return None;
        }
        Some(Counted::Risk { below: names })
    }
}
