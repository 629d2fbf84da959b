//! What an agent says about itself, and whether it still says anything.

use maud::{Markup, html};
use serde_json::Value;
use store::Agent;

use super::text::{number, or_dash, plain, short, span};

const SECOND_NS: i64 = 1_000_000_000;

/// Whether an agent shows signs of life. They come every 15 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Reporting,
    Late,
    Silent,
    Ended,
}

pub(super) fn presence(agent: &Agent, now_ns: i64) -> Presence {
    let silent = now_ns.saturating_sub(agent.last_seen_ns) / SECOND_NS;
    match silent {
        _ if agent.is_ended => Presence::Ended,
        // It has no heartbeat: it speaks when there is an alert.
        ..=86_400 if agent.is_direct => Presence::Reporting,
        ..=60 => Presence::Reporting,
        61..=600 => Presence::Late,
        _ => Presence::Silent,
    }
}

/// What an agent says about itself. A member that it does not name, or of another type, is empty.
#[derive(Debug)]
pub(super) struct Inventory(Value);

impl Inventory {
    pub(super) fn of(agent: &Agent) -> Self {
        // What is no inventory shows nothing; it is the sender's own page that suffers.
        Self(serde_json::from_str(&agent.inventory).unwrap_or(Value::Null))
    }

    /// Returns what the agent said; nothing for what it did not say, which the page does not guess.
    pub(super) fn text(&self, name: &str) -> &str {
        // Older agents leave members out: nothing is shown for those.
        self.0[name].as_str().unwrap_or_default()
    }

    /// Returns all that it said.
    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.0["counters"][name].as_u64()
    }

    pub(super) fn allows_captures(&self) -> bool {
        self.0["captures"] == true
    }

    /// Engine, with the number of rules that could not be evaluated.
    pub(super) fn engine(&self) -> Markup {
        let undecided = self.count("undecided").unwrap_or(0);
        html! {
            (or_dash(self.text("engine")))
            @if undecided > 0 { span.sub { (number(undecided)) " undecided" } }
        }
    }

    /// Beginning of the digest of the rules, with their number.
    pub(super) fn rules(&self) -> Markup {
        let enabled = self.0["rules_enabled"].as_u64();
        let refused = self.0["rules_refused"].as_u64().unwrap_or(0);
        html! {
            span.mono { (or_dash(&short(self.text("rules")))) }
            @if let Some(enabled) = enabled { span.sub { (number(enabled)) " enabled" } }
            @if refused > 0 { span.sub { (number(refused)) " not in force" } }
        }
    }

    /// Policy, with the extent to which each enforcer enforces it. A policy that the agent has not named is not
    /// shown as none.
    pub(super) fn policy(&self) -> Markup {
        let policy = &self.0["policy"];
        let name = policy.as_str().or_else(|| policy["name"].as_str());
        let audits = policy["audits"].as_bool() == Some(true);
        let extents = policy["enforcers"].as_object();
        html! {
            @match name {
                Some(name) => (or_dash(&clipped(name))),
                None if policy.is_object() => "unknown",
                None if policy.is_null() && self.0.get("policy").is_some() => "none",
                None => (or_dash("")),
            }
            @if let Some(digest) = policy["digest"].as_str() { span.sub.mono { (plain(&short(digest))) } }
            @if audits { span.sub { "only reports" } }
            @for (enforcer, extent) in extents.into_iter().flatten().take(ENFORCERS) {
                span.sub { (plain(&clipped(enforcer))) ": " (plain(&clipped(extent.as_str().unwrap_or("unknown")))) }
            }
        }
    }

    /// What became of the policies of the bundle. One that is kept confines nobody before the command starts again.
    pub(super) fn bundled_policies(&self) -> Markup {
        let policies = self.0["bundle"]["policies"].as_array();
        html! {
            @for policy in policies.into_iter().flatten().take(POLICIES) {
                @let (name, state) = (policy["name"].as_str(), policy["state"].as_str());
                @let state = match state { Some("next start") => "in force from the next start", Some(state) => state, None => "unknown" };
                span.sub { "policy " (plain(name.unwrap_or("unknown"))) ": " (plain(state))
                    @if let Some(why) = policy["reason"].as_str() { ", " (plain(&clipped(why))) } }
            }
        }
    }

    /// What watches and confines there: the engine, and the enforcers that enforce some of the policy.
    pub(super) fn layers(&self) -> Markup {
        let extents = self.0["policy"]["enforcers"].as_object();
        let active = extents.into_iter().flatten().take(ENFORCERS);
        let active = active.filter(|(_, extent)| **extent != "not enforced");
        let active: Vec<_> = active.map(|(name, _)| plain(&clipped(name))).collect();
        let audits = self.0["policy"]["audits"] == true;
        html! {
            (or_dash(self.text("engine")))
            @if !active.is_empty() { span.sub { (active.join(", ")) @if audits { " (only report)" } } }
        }
    }

    /// Records that had not been acknowledged when the agent last spoke, with the age of the oldest.
    pub(super) fn waiting(&self) -> Markup {
        let spool = &self.0["spool"];
        html! {
            @match spool["pending"].as_u64() {
                None => (or_dash("")),
                Some(0) => "0",
                Some(pending) => span class="badge s-warning" { (number(pending)) },
            }
            @if let Some(age) = spool["oldest_seconds"].as_i64() { span.sub { "oldest " (span(age)) } }
        }
    }

    /// Events that were dropped, and intervals in which nobody watched.
    pub(super) fn unseen(&self) -> Markup {
        let (drops, gaps) = (self.count("drops"), self.count("gaps").unwrap_or(0));
        html! {
            @match drops {
                Some(0) => "0",
                Some(drops) => span class="badge s-loss" { (number(drops)) },
                None => (or_dash("")),
            }
            @if gaps > 0 { span.sub { (number(gaps)) " unwatched intervals" } }
        }
    }
}

/// Policies of a bundle on the page for each agent.
const POLICIES: usize = 8;

/// Characters of a reason on the page.
const REASON: usize = 200;

/// Returns the beginning of a text of an agent.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(REASON).collect()
}

/// Enforcers of an agent on the page: more than there are, and fewer than a hostile agent can name.
pub(super) const ENFORCERS: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(inventory: &Value) -> String {
        Inventory(inventory.clone()).policy().into_string()
    }

    #[test]
    fn a_policy_that_is_not_named_is_not_shown_as_none() {
        assert_eq!(policy(&json!({"policy": null})), "none");
        assert_eq!(policy(&json!({"policy": {}})), "unknown");
        assert_eq!(policy(&json!({})), "–");
        assert_eq!(policy(&json!({"policy": "p"})), "p");
        let known = policy(&json!({"policy": {
            "name": "<p>", "audits": true, "digest": "sha256:0123456789abcdef",
            "enforcers": {"BPF": "fully enforced", "Caps": 7},
        }}));
        for part in [
            "&lt;p&gt;",
            "0123456789ab<",
            "only reports",
            "BPF: fully enforced",
        ] {
            assert!(known.contains(part), "{part} in {known}");
        }
        let hostile: Value = (0..1000).map(|n| (n.to_string(), json!("x"))).collect();
        let shown = policy(&json!({"policy": {"name": "p", "enforcers": hostile}}));
        assert_eq!(shown.matches(": x").count(), ENFORCERS);
    }

    #[test]
    fn a_policy_that_waits_for_the_next_start_is_not_shown_as_in_force() {
        let policies = json!([
            {"name": "web", "state": "next start", "reason": null},
            {"name": "<db>", "state": "refused", "reason": "z".repeat(1000)},
            {},
        ]);
        let inventory = Inventory(json!({"bundle": {"policies": policies}}));
        let shown = inventory.bundled_policies().into_string();
        for part in [
            "policy web: in force from the next start<",
            "policy &lt;db&gt;: refused, zzz",
            "policy unknown: unknown<",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(shown.matches('z').count(), REASON);
        let hostile = json!({"bundle": {"policies": vec![json!({}); 1000]}});
        let shown = Inventory(hostile).bundled_policies().into_string();
        assert_eq!(shown.matches("policy unknown").count(), POLICIES);
    }

    #[test]
    fn layers_that_enforce_nothing_and_an_unknown_lag_are_not_shown() {
        let of = |inventory| Inventory(inventory);
        let layers = of(
            json!({"engine": "notify", "policy": {"audits": true, "enforcers":
            {"<b>": "fully enforced", "BPF": "not enforced", "Caps": "partially enforced"}}}),
        );
        let layers = layers.layers().into_string();
        assert!(
            layers.contains("notify") && layers.contains("&lt;b&gt;, Caps (only report)"),
            "{layers}"
        );
        assert!(!layers.contains("BPF"), "{layers}");
        let waiting = |inventory| of(inventory).waiting().into_string();
        assert_eq!(waiting(json!({})), "–");
        assert_eq!(waiting(json!({"spool": {"pending": 0}})), "0");
        let some = waiting(json!({"spool": {"pending": 12, "oldest_seconds": 7300}}));
        assert!(
            some.contains(">12<") && some.contains("oldest 2 h"),
            "{some}"
        );
    }

    #[test]
    fn an_agent_that_does_not_count_drops_is_not_shown_with_zero() {
        let unseen = |inventory: Value| Inventory(inventory).unseen().into_string();
        assert_eq!(unseen(json!({})), "–");
        assert_eq!(unseen(json!({"counters": {"drops": 0}})), "0");
        let some = unseen(json!({"counters": {"drops": 1234, "gaps": 2}}));
        assert!(
            some.contains("badge s-loss") && some.contains("2 unwatched intervals"),
            "{some}"
        );
    }
}
