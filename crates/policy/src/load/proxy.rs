//! Parser of `networkProxyRawRules` and `networkProxyConfig`: rules for a proxy beside the workload, which
//! tollgate does not run. What they say about addresses and ports becomes rules of enforcers; the rest becomes
//! rules that no enforcer supports.

use yaml::Node;

use super::body::Switches;
use super::network::{read_destinations, read_ports};
use super::raw::raw_rule;
use super::reader::{Fields, Reader};
use crate::diagnostic::{Code, Diagnostic};
use crate::pattern::Pattern;
use crate::policy::{Rule, RuleAction};
use crate::restriction::{AllowedPeer, Destination, PeerHost, PortRange, Restriction};

/// One entry of `egress.rules`.
struct AddressRule {
    id: String,
    location: yaml::Location,
    allow: bool,
    deny: bool,
    audit: bool,
    to: Vec<Destination>,
    ports: Vec<PortRange>,
}

/// Parses a mapping with the key `egress`. `what` is its name in messages.
pub(super) fn read(reader: &mut Reader, node: &Node, what: &str, switches: Switches) -> Vec<Rule> {
    let fields = reader.fields(node, what, &["egress"]);
    let Some(node) = fields.find("egress") else {
        return Vec::new();
    };
    let what = format!("{what}.egress");
    let egress = reader.fields(node, &what, &["defaultAction", "rules", "httpRules"]);
    let denies_others = reads_deny(reader, &egress, &what);
    let mut found = Vec::new();
    for (index, item) in reader.items_of(&egress, "rules").iter().enumerate() {
        found.extend(read_rule(reader, item, format!("{what}.rules[{index}]")));
    }
    // An allowed address with a report is a rule as well.
    let own = found.iter().filter(|rule| !rule.allow || rule.audit);
    let mut rules: Vec<Rule> = own.map(|rule| own_rule(rule, switches)).collect();
    if denies_others == Some(true) {
        found.iter().for_each(|rule| refuse_unknown(reader, rule));
        let id = format!("{what}.defaultAction");
        let only = vec![Restriction::OnlyPeers(peers(&found))];
        rules.push(raw_rule(id, &egress.location, switches.verdict(), only));
    }
    for (index, item) in reader.items_of(&egress, "httpRules").iter().enumerate() {
        let what = format!("{what}.httpRules[{index}]");
        rules.push(proxied(item, what, switches));
    }
    rules
}

/// Parses `networkProxyConfig`. Most of it configures a container that tollgate does not start.
pub(super) fn read_config(reader: &mut Reader, node: &Node, switches: Switches) -> Vec<Rule> {
    let what = "networkProxyConfig";
    let known = [
        "proxyUID",
        "proxyPort",
        "proxyAdminPort",
        "resources",
        "mitm",
    ];
    let fields = reader.fields(node, what, &known);
    let mitm = fields.find("mitm");
    mitm.map(|node| proxied(node, format!("{what}.mitm"), switches))
        .into_iter()
        .collect()
}

/// A rule on what is inside of connections.
fn proxied(node: &Node, id: String, switches: Switches) -> Rule {
    let restrictions = vec![Restriction::InsideConnections];
    raw_rule(id, &node.location, switches.verdict(), restrictions)
}

/// Returns true if addresses without a rule are denied.
fn reads_deny(reader: &mut Reader, egress: &Fields<'_>, what: &str) -> Option<bool> {
    let node = reader.required(egress, what, "defaultAction")?;
    match reader.text(node, "defaultAction")? {
        "deny" => Some(true),
        "allow" => Some(false),
        other => {
            reader.unknown_value(&node.location, "defaultAction", other, &["allow", "deny"]);
            None
        }
    }
}

fn read_rule(reader: &mut Reader, node: &Node, id: String) -> Option<AddressRule> {
    let known = ["qualifiers", "description", "ip", "cidr", "ports"];
    let fields = reader.fields(node, &id, &known);
    let (mut allow, mut deny, mut audit) = (false, false, false);
    for (node, word) in reader.words_of(&fields, "qualifiers") {
        match word {
            "allow" => allow = true,
            "deny" => deny = true,
            "audit" => audit = true,
            other => {
                let known = ["allow", "deny", "audit"];
                reader.unknown_value(&node.location, "qualifiers", other, &known);
                return None;
            }
        }
    }
    if allow && deny || !allow && !deny && !audit {
        let message = format!("`{id}` needs one of the qualifiers `allow` and `deny`, or `audit`");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    let ports = read_ports(reader, &fields);
    let to = read_destinations(reader, &fields, &id);
    Some(AddressRule {
        location: fields.location.clone(),
        to: to?,
        ports: ports?,
        id,
        allow,
        deny,
        audit,
    })
}

/// Refuses to allow what only a cluster knows: it would stay denied without a word.
fn refuse_unknown(reader: &mut Reader, rule: &AddressRule) {
    let is_unknown = |to: &&Destination| !matches!(to, Destination::Network(_));
    let Some(to) = rule.to.iter().find(is_unknown).filter(|_| rule.allow) else {
        return;
    };
    let message = format!(
        "`{}` allows {to}, and only Kubernetes knows the addresses of it",
        rule.id
    );
    reader.report(
        Diagnostic::new(Code::UnknownValue, rule.location.clone(), message)
            .with_help("write its addresses as `ip` or `cidr`"),
    );
}

fn own_rule(rule: &AddressRule, switches: Switches) -> Rule {
    let verdict =
        RuleAction::from_switches(switches.allow || !rule.deny, switches.audit || rule.audit);
    let restrictions = rule.to.iter().map(|to| Restriction::Egress {
        to: to.clone(),
        ports: rule.ports.clone(),
    });
    raw_rule(
        rule.id.clone(),
        &rule.location,
        verdict,
        restrictions.collect(),
    )
}

/// The peers that stay reachable where others are denied: those of the rules, and local sockets, which no proxy
/// sees.
fn peers(rules: &[AddressRule]) -> Vec<AllowedPeer> {
    let allowed = rules.iter().filter(|rule| rule.allow);
    let hosts = allowed.flat_map(|rule| {
        rule.to.iter().filter_map(|to| match to {
            Destination::Network(network) => Some(AllowedPeer::Host {
                host: PeerHost::Network(*network),
                ports: rule.ports.clone(),
            }),
            // `refuse_unknown` reports these.
            Destination::OwnPod | Destination::Service { .. } | Destination::Pods { .. } => None,
        })
    });
    let local = Pattern::parse("/**").ok().map(AllowedPeer::Socket);
    hosts.chain(local).collect()
}
