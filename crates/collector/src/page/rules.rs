//! Rules of the fleet: which rule sets are in force, and what the evaluation of each rule takes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;
use store::Agent;

use super::inventory::{Inventory, clipped};
use super::text::{self, address, empty, number, or_dash, plain, short};

/// Rules on the page, those that take the most time.
const SHOWN: usize = 100;

/// Rule sets on the page.
const SETS: usize = 50;

/// Rules that are taken from one agent, which names as many.
const OF_AGENT: usize = 50;

/// Different names of rules that are told apart: hostile agents could name more without end.
const NAMES: usize = 5000;

/// A rule set, by its digest.
#[derive(Debug, Default, PartialEq, Eq)]
struct RuleSet {
    agents: u64,
    /// Number of rules that are enabled, and of those that the filter does not cover, as the last agent says.
    enabled: Option<u64>,
    refused: u64,
}

/// What a rule took on the agents that name it.
#[derive(Debug, Default, PartialEq, Eq)]
struct EvaluationCost {
    agents: u64,
    /// Events on these agents.
    events: u64,
    evaluations: u64,
    nanoseconds: u64,
}

/// What agents say about their rules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    sets: BTreeMap<String, RuleSet>,
    prices: BTreeMap<String, EvaluationCost>,
    /// Agents that measure rules, and that do not.
    measuring: u64,
    others: u64,
    events: u64,
    nanoseconds: u64,
}

impl Rules {
    /// Collects what the agents say whose token is good.
    fn of(agents: &[Agent]) -> Self {
        let mut all = Self::default();
        let agents = agents.iter().filter(|it| !it.is_ended && !it.is_direct);
        for inventory in agents.map(Inventory::of) {
            all.add_set(inventory.value());
            let times = &inventory.value()["rule_times"];
            match times.is_object() {
                true => all.add_times(times),
                false => all.others += 1,
            }
        }
        all
    }

    fn add_set(&mut self, inventory: &Value) {
        let Some(digest) = inventory["rules"].as_str() else {
            return;
        };
        let set = self.sets.entry(short(digest)).or_default();
        set.agents += 1;
        set.enabled = inventory["rules_enabled"].as_u64().or(set.enabled);
        set.refused = inventory["rules_refused"].as_u64().unwrap_or(set.refused);
    }

    fn add_times(&mut self, times: &Value) {
        // What is no number counts nothing.
        let of = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
        self.measuring += 1;
        let events = of(times, "events");
        self.events = self.events.saturating_add(events);
        self.nanoseconds = self.nanoseconds.saturating_add(of(times, "nanoseconds"));
        let rules = times["rules"].as_array();
        for rule in rules.into_iter().flatten().take(OF_AGENT) {
            // Times without a name stay in the sums, in a row without one.
            let name = clipped(rule["rule"].as_str().unwrap_or_default());
            if self.prices.len() >= NAMES && !self.prices.contains_key(&name) {
                continue;
            }
            let price = self.prices.entry(name).or_default();
            price.agents += 1;
            price.events = price.events.saturating_add(events);
            price.evaluations = price.evaluations.saturating_add(of(rule, "evaluations"));
            price.nanoseconds = price.nanoseconds.saturating_add(of(rule, "nanoseconds"));
        }
    }
}

/// Returns the time of one of `count`, with a unit.
fn each(nanoseconds: u64, count: u64) -> String {
    match (nanoseconds.saturating_mul(10)).checked_div(count) {
        None => "–".to_owned(),
        Some(tenths @ ..10_000) => format!("{}.{} ns", tenths / 10, tenths % 10),
        Some(tenths @ 10_000..10_000_000) => {
            format!("{}.{} µs", tenths / 10_000, tenths / 1000 % 10)
        }
        Some(tenths) => format!("{}.{} ms", tenths / 10_000_000, tenths / 1_000_000 % 10),
    }
}

/// Returns a part of a whole.
fn share(part: u64, whole: u64) -> String {
    let per_mille = (u128::from(part) * 1000).checked_div(u128::from(whole));
    match per_mille {
        None => "–".to_owned(),
        Some(per_mille) => format!("{}.{} %", per_mille / 10, per_mille % 10),
    }
}

/// Returns the page of the rules of these agents.
pub(super) fn page(agents: &[Agent]) -> Markup {
    let rules = Rules::of(agents);
    html! {
        (text::title("Rules", "What is in force in the fleet, and what each rule takes", &html! {}))
        section.panel.flush { h2 { "Price of each rule" } (prices(&rules)) }
        section.panel.flush { h2 { "Rules in force" } (sets(&rules)) }
    }
}

fn prices(rules: &Rules) -> Markup {
    let mut rows: Vec<_> = rules.prices.iter().collect();
    rows.sort_by_key(|(_, price)| Reverse(price.nanoseconds));
    html! {
        @if rules.measuring == 0 { (empty(
            "Not measured",
            "Agents measure the evaluation of rules with their metrics:",
            "tollgate watch -o metrics.enabled=true --collector https://HOST:6443",
        )) } @else {
            p.note { "Rules take " b { (each(rules.nanoseconds, rules.events)) } " of an event: "
                (number(rules.events)) " events on " (number(rules.measuring)) " agents since they started. "
                @if rules.others > 0 { (number(rules.others)) " agents: not measured. " }
                "One evaluation in 64 is timed; each agent names its 50 rules that take the most time." }
            div.scroll { table.cards-on-phone {
                thead { tr {
                    th { "Rule" } th.num { "Per event" } th.num { "Share" } th.num { "Per evaluation" } th.num { "Evaluations" } th.num { "Agents" }
                } }
                tbody { @for (name, price) in rows.into_iter().take(SHOWN) { tr {
                    td.full { a.main href=(link(name)) { (or_dash(name)) } }
                    td.num data-label="Per event" { (each(price.nanoseconds, price.events)) }
                    td.num data-label="Share" { (share(price.nanoseconds, rules.nanoseconds)) }
                    td.num data-label="Per evaluation" { (each(price.nanoseconds, price.evaluations)) }
                    td.num data-label="Evaluations" { (number(price.evaluations)) }
                    td.num data-label="Agents" { (number(price.agents)) }
                } } }
            } }
        }
    }
}

fn link(rule: &str) -> String {
    address("/alerts", &[("rule", rule), ("hidden", "1")])
}

fn sets(rules: &Rules) -> Markup {
    let mut rows: Vec<_> = rules.sets.iter().collect();
    rows.sort_by_key(|(_, set)| Reverse(set.agents));
    html! {
        @if rows.is_empty() { (empty("No agent has said which rules it has", "Agents say it when their engine runs.", "")) } @else {
            div.scroll { table.cards-on-phone {
                thead { tr { th { "Digest" } th.num { "Agents" } th.num { "Enabled" } th.num { "Not in force" } } }
                tbody { @for (digest, set) in rows.into_iter().take(SETS) { tr {
                    td.full { span.mono { (plain(digest)) } }
                    td.num data-label="Agents" { (number(set.agents)) }
                    td.num data-label="Enabled" { @match set.enabled { Some(enabled) => (number(enabled)), None => "–" } }
                    td.num data-label="Not in force" { (number(set.refused)) }
                } } }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use labels::Labels;
    use serde_json::json;
    use store::AgentId;

    use super::*;

    fn rules(inventories: &[Value]) -> Rules {
        let agents = inventories.iter().map(|inventory| Agent {
            id: AgentId(1),
            class: "web".to_owned(),
            host: "h".to_owned(),
            is_direct: false,
            first_seen_ns: 0,
            last_seen_ns: 0,
            acknowledged: 0,
            missing: 0,
            inventory: inventory.to_string(),
            is_ended: false,
            labels: Labels::default(),
        });
        Rules::of(&agents.collect::<Vec<_>>())
    }

    fn times(events: u64, rules: &[(&str, u64, u64)]) -> Value {
        let all: u64 = rules.iter().map(|(_, _, nanoseconds)| nanoseconds).sum();
        let rules = rules.iter().map(|(rule, evaluations, nanoseconds)| {
            json!({"rule": rule, "evaluations": evaluations, "nanoseconds": nanoseconds})
        });
        json!({"rules": "sha256:0123456789abcdef", "rules_enabled": 3,
               "rule_times": {"events": events, "nanoseconds": all, "rules": rules.collect::<Vec<_>>()}})
    }

    #[test]
    fn times_of_all_agents_are_added_and_divided_by_their_events() {
        let all = rules(&[
            times(1000, &[("<a>", 100, 9000), ("b", 10, 1000)]),
            times(1000, &[("<a>", 100, 11_000)]),
            json!({"rules": "sha256:0123456789abcdef"}),
        ]);
        assert_eq!((all.measuring, all.others), (2, 1));
        let page = prices(&all).into_string();
        let rows: Vec<_> = page.split("<tr>").skip(2).collect();
        assert_eq!(rows.len(), 2, "{page}");
        for part in [
            "&lt;a&gt;",
            ">10.0 ns<",
            ">95.2 %<",
            ">100.0 ns<",
            ">200<",
            ">2<",
        ] {
            assert!(rows[0].contains(part), "{part} in {}", rows[0]);
        }
        assert!(
            rows[1].contains(">1.0 ns<") && rows[1].contains(">4.7 %<"),
            "{}",
            rows[1]
        );
        assert!(page.contains("1 agents: not measured"), "{page}");
        let sets = sets(&all).into_string();
        assert!(
            sets.contains("0123456789ab<") && sets.contains(">3<"),
            "{sets}"
        );
    }

    #[test]
    fn what_no_agent_measures_is_not_shown_as_zero() {
        let page = prices(&rules(&[json!({"rules": "sha256:ab"})])).into_string();
        assert!(
            page.contains("Not measured") && !page.contains("<table"),
            "{page}"
        );
        assert_eq!((each(5, 0), share(1, 0)), ("–".to_owned(), "–".to_owned()));
        assert_eq!(each(1, 3), "0.3 ns");
        assert_eq!(each(1_234_567, 1), "1.2 ms");
        assert_eq!(each(1500, 1), "1.5 µs");
    }

    #[test]
    fn a_hostile_agent_can_neither_overflow_nor_fill_the_page() {
        let max = u64::MAX;
        let many: Vec<_> = (0..1000)
            .map(|n| json!({"rule": n.to_string().repeat(500), "nanoseconds": max}))
            .collect();
        let hostile = json!({"rule_times": {"events": max, "nanoseconds": max, "rules": many}});
        let all = rules(&[
            hostile.clone(),
            hostile,
            json!({"rule_times": {"rules": [7, null]}}),
        ]);
        let page = prices(&all).into_string();
        assert!(page.matches("<tr>").count() <= OF_AGENT + 2, "{page}");
        assert!(page.len() < 100_000, "{}", page.len());
    }
}
