//! Policies in force in the fleet: what is enforced by what, what is not, and why.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde_json::Value;
use store::Agent;

use super::inventory::{ENFORCERS, Inventory, Presence, clipped, presence};
use super::text::{self, address, empty, number, or_dash, plain, short};

/// Policies on the page; the API has what each agent says.
const SHOWN: usize = 200;

/// Gaps that are taken from one agent, which names fewer.
const GAPS: usize = 16;

/// Texts of a kind on the page for each policy: reasons of an enforcer, gaps, hosts.
const TEXTS: usize = 8;

/// A policy, by name and digest of its file.
type Key = (String, String);

/// How many agents say something.
type Counts = BTreeMap<String, u64>;

/// What agents say about an enforcer of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
struct Enforcer {
    /// Agents that name it.
    agents: u64,
    /// Extents of enforcement.
    extents: Counts,
    /// Why it does not enforce everything.
    reasons: Counts,
    /// Agents on which it does not, and that do not tell why.
    untold: u64,
}

/// What agents say about a policy that is in force.
#[derive(Debug, Default, PartialEq, Eq)]
struct InForce {
    agents: u64,
    reporting: u64,
    /// Agents on which it only reports.
    audits: u64,
    /// Agents that do not say whether it denies.
    vague: u64,
    enforcers: BTreeMap<String, Enforcer>,
    /// Rules that are not enforced in full, with the reason.
    gaps: Counts,
    /// Agents that do not tell which rules those are.
    untold: u64,
    /// Violations since the start of the agents that count them.
    violations: Option<u64>,
    hosts: BTreeSet<String>,
}

/// The policies of the agents, and the number of agents without one and with one that they do not name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Policies {
    in_force: BTreeMap<Key, InForce>,
    without: u64,
    unnamed: u64,
}

impl Policies {
    /// Collects what the agents say whose token is good.
    fn of(agents: &[Agent], now_ns: i64) -> Self {
        let mut all = Self::default();
        for agent in agents.iter().filter(|agent| !agent.is_ended) {
            let inventory = Inventory::of(agent);
            let policy = &inventory.value()["policy"];
            let name = policy.as_str().or_else(|| policy["name"].as_str());
            match name.filter(|name| !name.is_empty()) {
                Some(name) => {
                    // Older agents told the name alone: those share a row, without a digest.
                    let digest = policy["digest"].as_str().unwrap_or_default();
                    let key = (clipped(name), clipped(digest));
                    let in_force = all.in_force.entry(key).or_default();
                    in_force.add(policy);
                    in_force.violations = sum(in_force.violations, inventory.count("violations"));
                    let is_here = presence(agent, now_ns) == Presence::Reporting;
                    in_force.reporting += u64::from(is_here);
                    if !agent.host.is_empty() {
                        in_force.hosts.insert(agent.host.clone());
                    }
                }
                None if policy.is_object() => all.unnamed += 1,
                // An agent without an engine yet, or a sender that is no agent, has not said anything.
                None => all.without += u64::from(inventory.value().get("policy").is_some()),
            }
        }
        all
    }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (known, None) | (None, known) => known,
    }
}

fn count(counts: &mut Counts, text: &str) {
    *counts.entry(clipped(text)).or_default() += 1;
}

/// Returns what agents say, what most of them say first: agents name their policy themselves, so that one that lies has a
/// place in the row of others, and must not choose the first one there.
fn ranked(counts: &Counts) -> Vec<(&String, u64)> {
    let mut ranked: Vec<_> = counts.iter().map(|(text, count)| (text, *count)).collect();
    // The order of texts stays among those of as many agents.
    ranked.sort_by_key(|(_, count)| Reverse(*count));
    ranked
}

impl InForce {
    /// Adds what an agent says.
    fn add(&mut self, policy: &Value) {
        self.agents += 1;
        match policy["audits"].as_bool() {
            Some(audits) => self.audits += u64::from(audits),
            None => self.vague += 1,
        }
        let extents = policy["enforcers"].as_object();
        for (name, extent) in extents.into_iter().flatten().take(ENFORCERS) {
            let enforcer = self.enforcers.entry(clipped(name)).or_default();
            enforcer.agents += 1;
            let extent = extent.as_str().unwrap_or("unknown");
            count(&mut enforcer.extents, extent);
            match policy["reasons"][name].as_str() {
                Some(reason) => count(&mut enforcer.reasons, reason),
                None if extent != FULLY => enforcer.untold += 1,
                None => {}
            }
        }
        match policy["gaps"].as_array() {
            Some(gaps) => {
                let gaps = gaps.iter().filter_map(Value::as_str);
                gaps.take(GAPS).for_each(|gap| count(&mut self.gaps, gap));
            }
            None => self.untold += 1,
        }
    }

    fn mode(&self) -> Markup {
        let denies = self.agents - self.audits - self.vague;
        html! {
            @if denies > 0 { span class="badge s-good" { "denies" } @if denies < self.agents { " on " (number(denies)) } " " }
            @if self.audits > 0 { span class="badge s-warning" { "only reports" } @if self.audits < self.agents { " on " (number(self.audits)) } " " }
            @if self.vague > 0 { span.badge { "not told" } @if self.vague < self.agents { " by " (number(self.vague)) } }
        }
    }

    fn enforced(&self) -> Markup {
        let mut enforcers: Vec<_> = self.enforcers.iter().collect();
        enforcers.sort_by_key(|(_, enforcer)| Reverse(enforcer.agents));
        let more = enforcers.len().saturating_sub(ENFORCERS);
        html! {
            @if enforcers.is_empty() { span.soft { "not told" } }
            @for (name, enforcer) in enforcers.into_iter().take(ENFORCERS) { (enforcer.draw(name, self.agents)) }
            @if more > 0 { span.sub { (more) " more" } }
        }
    }

    /// What is not enforced. A policy of which everything is enforced has no gap, and no agent that does not tell.
    fn lacking(&self) -> Markup {
        html! {
            @if self.gaps.is_empty() && self.untold == 0 { "nothing" }
            (texts(&self.gaps, self.agents))
            @if self.untold > 0 { span.sub.soft { "not told" @if self.untold < self.agents { " by " (number(self.untold)) } } }
        }
    }

    /// Violations name no policy, so they are found by the hosts of its agents.
    fn violations(&self) -> Markup {
        let link = |host: &str| address("/violations", &[("host", host)]);
        html! {
            @match self.violations { Some(count) => (number(count)), None => span.soft { "not counted" } }
            @for host in self.hosts.iter().take(TEXTS) {
                span.sub { a href=(link(host)) { (or_dash(host)) } }
            }
            @if self.hosts.len() > TEXTS { span.sub { a href="/violations" { (self.hosts.len() - TEXTS) " more hosts" } } }
        }
    }
}

impl Enforcer {
    /// Draws what agents say about it, of so many that have the policy.
    fn draw(&self, name: &str, agents: u64) -> Markup {
        let extents = ranked(&self.extents);
        let more = extents.len().saturating_sub(ENFORCERS);
        html! { div {
            b { (plain(name)) } " "
            @for (extent, count) in extents.into_iter().take(ENFORCERS) {
                span class={ "badge " (tone(extent)) } { (plain(extent)) }
                @if count < agents { " on " (number(count)) } " "
            }
            @if more > 0 { span.sub { (more) " more" } }
            (texts(&self.reasons, agents))
            @if self.untold > 0 { span.sub { "reason not told" @if self.untold < agents { " by " (number(self.untold)) } } }
        } }
    }
}

/// The words of an agent for an enforcer that enforces everything.
const FULLY: &str = "fully enforced";

fn tone(extent: &str) -> &'static str {
    match extent {
        FULLY => "s-good",
        "partially enforced" => "s-warning",
        "not enforced" => "s-error",
        _ => "",
    }
}

/// Returns texts of agents, those of the most agents first, each with their number unless all say it.
fn texts(counts: &Counts, agents: u64) -> Markup {
    html! {
        @for (text, count) in ranked(counts).into_iter().take(TEXTS) {
            span.sub { (plain(text)) @if count < agents { " (" (number(count)) " agents)" } }
        }
        @if counts.len() > TEXTS { span.sub { (counts.len() - TEXTS) " more" } }
    }
}

/// Returns the page of the policies of these agents.
pub(super) fn page(agents: &[Agent], now_ns: i64) -> Markup {
    let policies = Policies::of(agents, now_ns);
    let below = format!(
        "{} policies in force; {} agents without one, {} that do not name theirs",
        policies.in_force.len(),
        policies.without,
        policies.unnamed
    );
    html! {
        (text::title("Policies", &below, &html! {}))
        div.panel.flush {
            @if policies.in_force.is_empty() { (empty(
                "No agent has a policy in force",
                "Try one that only reports first, then let it deny:",
                "tollgate run --policy POLICY.yaml --audit --collector https://HOST:6443 -- CMD",
            )) } @else { (table(&policies)) }
        }
        @if policies.in_force.len() > SHOWN { p.soft { "The " (SHOWN) " policies of the most agents are shown." } }
    }
}

fn table(policies: &Policies) -> Markup {
    let mut rows: Vec<_> = policies.in_force.iter().collect();
    rows.sort_by_key(|(_, in_force)| Reverse(in_force.agents));
    html! { div.scroll { table.cards-on-phone {
        thead { tr {
            th { "Policy" } th.num { "Agents" } th { "Does" } th { "Enforced by" } th { "Not enforced in full" } th { "Violations" }
        } }
        tbody { @for ((name, digest), in_force) in rows.into_iter().take(SHOWN) { tr {
            td.full { span.main { (plain(name)) } @if !digest.is_empty() { span.sub.mono { (plain(&short(digest))) } } }
            td.num data-label="Agents" { (number(in_force.agents)) span.sub { (number(in_force.reporting)) " reporting" } }
            td data-label="Does" { (in_force.mode()) }
            td.full { (in_force.enforced()) }
            td.full data-label="Not enforced in full" { (in_force.lacking()) }
            td.full data-label="Violations" { (in_force.violations()) }
        } } }
    } } }
}

#[cfg(test)]
mod tests {
    use labels::Labels;
    use serde_json::json;
    use store::AgentId;

    use super::*;

    fn agent(id: i64, inventory: &Value) -> Agent {
        Agent {
            id: AgentId(id),
            class: "web".to_owned(),
            host: format!("h{id}"),
            is_direct: false,
            first_seen_ns: 0,
            last_seen_ns: 0,
            acknowledged: 0,
            missing: 0,
            inventory: inventory.to_string(),
            is_ended: false,
            labels: Labels::default(),
        }
    }

    fn policies(inventories: &[Value]) -> Policies {
        let agents = inventories.iter().zip(0..);
        let agents: Vec<_> = agents.map(|(it, id)| agent(id, it)).collect();
        Policies::of(&agents, 0)
    }

    fn known(digest: &str) -> Value {
        json!({"policy": {
            "name": "web", "digest": digest, "audits": false,
            "enforcers": {"Landlock": "fully enforced", "BPF": "not enforced"},
            "reasons": {"BPF": "no <BTF>"}, "gaps": ["BPF: `r` <i>"],
        }, "counters": {"violations": 3}})
    }

    #[test]
    fn agents_with_the_same_policy_share_a_row_with_reasons_and_gaps() {
        let mut audits = known("sha256:aa");
        audits["policy"]["audits"] = true.into();
        let all = policies(&[
            known("sha256:aa"),
            audits,
            known("sha256:bb"),
            json!({"policy": null}),
            json!({"policy": {}}),
            json!({}),
        ]);
        assert_eq!((all.in_force.len(), all.without, all.unnamed), (2, 1, 1));
        let first = &all.in_force[&("web".to_owned(), "sha256:aa".to_owned())];
        assert_eq!((first.agents, first.audits, first.reporting), (2, 1, 2));
        assert_eq!(first.violations, Some(6));
        let page = table(&all).into_string();
        for part in [
            "denies</span> on 1",
            "only reports</span> on 1",
            "s-good\">fully enforced",
            "s-error\">not enforced",
            "no &lt;BTF&gt;<",
            "BPF: `r` &lt;i&gt;<",
            "/violations?host=h1",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("not told"), "{page}");
    }

    #[test]
    fn what_older_agents_do_not_tell_is_not_called_enforced() {
        let older = json!({"policy": {
            "name": "web", "audits": false,
            "enforcers": {"Landlock": "partially enforced", "Caps": "fully enforced"},
        }});
        let page = table(&policies(&[older])).into_string();
        assert_eq!(page.matches("reason not told").count(), 1, "{page}");
        assert_eq!(page.matches("\">not told<").count(), 1, "gaps: {page}");
        assert!(
            page.contains("not counted") && !page.contains(">nothing<"),
            "{page}"
        );
        let all = json!({"policy": {"name": "p", "audits": false, "reasons": {}, "gaps": [],
                                    "enforcers": {"Caps": "fully enforced"}}});
        assert!(table(&policies(&[all])).into_string().contains(">nothing<"));
        let bare = table(&policies(&[json!({"policy": "p"})])).into_string();
        assert!(
            bare.contains("not told") && !bare.contains("denies"),
            "{bare}"
        );
    }

    #[test]
    fn a_hostile_agent_cannot_make_a_page_without_end() {
        let names: serde_json::Map<_, _> =
            (0..1000).map(|n| (format!("e{n}"), json!("x"))).collect();
        let gaps: Vec<_> = (0..1000)
            .map(|n| format!("{n}{}", "z".repeat(5000)))
            .collect();
        let hostile =
            json!({"policy": {"name": "p", "enforcers": names, "reasons": names, "gaps": gaps}});
        let all = policies(&[hostile]);
        let page = table(&all).into_string();
        assert!(page.len() < 20_000, "{}", page.len());
        let many: Vec<_> = (0..SHOWN + 5)
            .map(|n| json!({"policy": format!("p{n}")}))
            .collect();
        let page = table(&policies(&many)).into_string();
        assert_eq!(page.matches("class=\"main\"").count(), SHOWN);
    }

    #[test]
    fn a_thousand_hostile_agents_do_not_hide_what_honest_ones_say() {
        let hostile = |n: u32| {
            // Each says something else, which sorts before what honest ones say.
            let own = format!("!{n:04}");
            json!({"policy": {
                "name": "web", "digest": "sha256:aa", "audits": false,
                "enforcers": {&own: &own, "BPF": &own}, "reasons": {&own: &own, "BPF": &own}, "gaps": [&own],
            }})
        };
        let mut inventories: Vec<_> = (0..1000).map(hostile).collect();
        inventories.extend([known("sha256:aa"), known("sha256:aa")]);
        let all = policies(&inventories);
        assert_eq!(all.in_force.len(), 1);
        let page = table(&all).into_string();
        for part in [
            "<b>Landlock</b>",
            "s-good\">fully enforced</span> on 2",
            "s-error\">not enforced</span> on 2",
            "no &lt;BTF&gt; (2 agents)",
            "BPF: `r` &lt;i&gt; (2 agents)",
            "994 more",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(page.len() < 20_000, "{}", page.len());
    }

    #[test]
    fn a_long_name_is_cut_and_extents_are_few() {
        let name = "n".repeat(100_000);
        let inventories: Vec<_> = (0..1000)
            .map(|n| json!({"policy": {"name": &name, "digest": &name, "enforcers": {"BPF": n.to_string()}}}))
            .collect();
        let all = policies(&inventories);
        let page = table(&all).into_string();
        assert_eq!(page.matches("class=\"badge \"").count(), ENFORCERS);
        assert!(page.contains("992 more"), "{page}");
        assert!(page.len() < 10_000, "{}", page.len());
    }
}
