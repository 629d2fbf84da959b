//! Parser of `bpfRawRules.network`.

use yaml::{Kind, Node};

use super::body::Switches;
use super::raw::{raw_rule, read_verdict};
use super::reader::{Fields, Reader};
use crate::diagnostic::{Code, Diagnostic};
use crate::policy::Rule;
use crate::restriction::{
    Destination, PortRange, Restriction, SocketMatch, read_network, socket_domain, socket_type,
};

pub(super) fn read(reader: &mut Reader, node: &Node, switches: Switches, rules: &mut Vec<Rule>) {
    let fields = reader.fields(node, "bpfRawRules.network", &["sockets", "egress"]);
    for (index, item) in reader.items_of(&fields, "sockets").iter().enumerate() {
        let id = format!("bpfRawRules.network.sockets[{index}]");
        rules.extend(read_socket(reader, item, id, switches));
    }
    let Some(egress) = fields.find("egress") else {
        return;
    };
    let what = "bpfRawRules.network.egress";
    let egress = reader.fields(egress, what, &["toDestinations", "toServices", "toPods"]);
    for (list, read) in [
        ("toDestinations", read_destinations as ReadDestinations),
        ("toServices", read_service),
        ("toPods", read_pods),
    ] {
        for (index, item) in reader.items_of(&egress, list).iter().enumerate() {
            let id = format!("{what}.{list}[{index}]");
            rules.extend(read_egress(reader, item, id, switches, read));
        }
    }
}

fn read_socket(reader: &mut Reader, node: &Node, id: String, switches: Switches) -> Option<Rule> {
    let known = ["qualifiers", "domains", "types", "protocols"];
    let fields = reader.fields(node, &id, &known);
    let verdict = read_verdict(reader, &fields, &id, switches);
    let domains = read_numbers(reader, &fields, "domains", socket_domain)?;
    let types = read_numbers(reader, &fields, "types", socket_type)?;
    if fields.find("types").is_some() && fields.find("protocols").is_some() {
        let message = format!("`{id}` can have `types` or `protocols`, not both");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    let is_about = |key: &&str| fields.find(key).is_some();
    if !["domains", "types", "protocols"].iter().any(is_about) {
        let message = format!("`{id}` needs one of `domains`, `types` and `protocols`");
        reader.report(
            Diagnostic::new(Code::Contradiction, fields.location.clone(), message)
                .with_help("`domains: [all]` means every socket"),
        );
        return None;
    }
    let mut restrictions = Vec::new();
    if fields.find("protocols").is_some() {
        for (node, word) in reader.words_of(&fields, "protocols") {
            let Some(found) = protocol_sockets(word, domains.as_deref()) else {
                let known = ["all", "icmp", "tcp", "udp"];
                reader.unknown_value(&node.location, "protocols", word, &known);
                return None;
            };
            restrictions.extend(found.into_iter().map(Restriction::Socket));
        }
    } else {
        restrictions.push(Restriction::Socket(SocketMatch {
            domains,
            types,
            protocols: None,
        }));
    }
    if restrictions.is_empty() {
        let message = format!("`{id}` names no protocol and does nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
        return None;
    }
    Some(raw_rule(id, &fields.location, verdict?, restrictions))
}

/// Parses a list of names to numbers. The inner `None` means any; the outer `None` means that a name is
/// unknown.
fn read_numbers(
    reader: &mut Reader,
    fields: &Fields<'_>,
    key: &str,
    number: fn(&str) -> Option<u16>,
) -> Option<Option<Vec<u16>>> {
    let mut numbers = Vec::new();
    for (node, word) in reader.words_of(fields, key) {
        if matches!(word, "all" | "*") {
            return Some(None);
        }
        match number(word) {
            Some(number) => numbers.push(number),
            None => {
                let message = format!("no such socket: `{key}: {word}`");
                reader.problem(Code::UnknownValue, &node.location, message);
                return None;
            }
        }
    }
    Some((!numbers.is_empty()).then_some(numbers))
}

/// Matches for every way in which a caller can request a socket of a protocol; the built-in rules have the
/// same.
fn protocol_sockets(word: &str, domains: Option<&[u16]>) -> Option<Vec<SocketMatch>> {
    let builtin = match word {
        "all" | "*" => {
            return Some(vec![SocketMatch {
                domains: domains.map(<[u16]>::to_vec),
                ..SocketMatch::default()
            }]);
        }
        "tcp" => "disable-tcp",
        "udp" => "disable-udp",
        "icmp" => "disable-icmp",
        _ => return None,
    };
    let restrictions = &crate::builtin::find(builtin)?.restrictions;
    let sockets = restrictions
        .iter()
        .filter_map(|restriction| match restriction {
            Restriction::Socket(socket) => Some(SocketMatch {
                domains: domains.map_or_else(|| socket.domains.clone(), |list| Some(list.to_vec())),
                ..socket.clone()
            }),
            _ => None,
        });
    Some(sockets.collect())
}

type ReadDestinations = fn(&mut Reader, &Fields<'_>, &str) -> Option<Vec<Destination>>;

const EGRESS_FIELDS: [&str; 8] = [
    "qualifiers",
    "ip",
    "cidr",
    "ports",
    "namespace",
    "name",
    "serviceSelector",
    "podSelector",
];

fn read_egress(
    reader: &mut Reader,
    node: &Node,
    id: String,
    switches: Switches,
    read: ReadDestinations,
) -> Option<Rule> {
    let known: &[&str] = if id.contains("toDestinations") {
        &EGRESS_FIELDS[..4]
    } else if id.contains("toServices") {
        &["qualifiers", "namespace", "name", "serviceSelector"]
    } else {
        &["qualifiers", "namespace", "podSelector", "ports"]
    };
    let fields = reader.fields(node, &id, known);
    if id.contains("toDestinations") {
        reader.required(&fields, &id, "qualifiers")?;
    }
    let verdict = read_verdict(reader, &fields, &id, switches);
    let destinations = read(reader, &fields, &id);
    let ports = read_ports(reader, &fields)?;
    let restrictions = destinations?
        .into_iter()
        .map(|to| Restriction::Egress {
            to,
            ports: ports.clone(),
        })
        .collect();
    Some(raw_rule(id, &fields.location, verdict?, restrictions))
}

pub(super) fn read_destinations(
    reader: &mut Reader,
    fields: &Fields<'_>,
    id: &str,
) -> Option<Vec<Destination>> {
    let (key, node) = match (fields.find("ip"), fields.find("cidr")) {
        (Some(node), None) => ("ip", node),
        (None, Some(node)) => ("cidr", node),
        (None, None) if fields.find("ports").is_some() => return Some(anywhere()),
        _ => {
            let message = format!("`{id}` needs one of `ip` and `cidr`, or ports alone");
            reader.problem(Code::Contradiction, &fields.location, message);
            return None;
        }
    };
    let text = reader.text(node, key)?;
    let names: &[&str] = match text {
        "unspecified" => &["0.0.0.0", "::"],
        "localhost" => &["127.0.0.0/8", "::1"],
        "pod-self" => return Some(vec![Destination::OwnPod]),
        address => &[address],
    };
    let networks = names
        .iter()
        .map(|name| read_network(name).map(Destination::Network));
    let networks: Option<Vec<_>> = networks.collect();
    if networks.is_none() {
        let message = format!("`{key}` has to be an address or network, found `{text}`");
        reader.problem(Code::UnknownValue, &node.location, message);
    }
    networks
}

/// Ports without an address apply to every address.
fn anywhere() -> Vec<Destination> {
    let networks = ["0.0.0.0/0", "::/0"].into_iter().filter_map(read_network);
    networks.map(Destination::Network).collect()
}

fn read_service(reader: &mut Reader, fields: &Fields<'_>, id: &str) -> Option<Vec<Destination>> {
    let namespace = reader.text_of(fields, "namespace").unwrap_or("default");
    let name = match (fields.find("name"), fields.find("serviceSelector")) {
        (Some(name), None) => reader.text(name, "name")?.to_owned(),
        (None, Some(labels)) => read_labels(reader, labels, "serviceSelector")?,
        _ => {
            let message = format!("`{id}` needs one of `name` and `serviceSelector`, and not both");
            reader.problem(Code::Contradiction, &fields.location, message);
            return None;
        }
    };
    Some(vec![Destination::Service {
        namespace: namespace.to_owned(),
        name,
    }])
}

fn read_pods(reader: &mut Reader, fields: &Fields<'_>, id: &str) -> Option<Vec<Destination>> {
    let namespace = reader.text_of(fields, "namespace").unwrap_or("default");
    let labels = reader.required(fields, id, "podSelector")?;
    let selector = read_labels(reader, labels, "podSelector")?;
    Some(vec![Destination::Pods {
        namespace: namespace.to_owned(),
        selector,
    }])
}

/// Parses a Kubernetes selector into kubectl notation.
pub(super) fn read_labels(reader: &mut Reader, node: &Node, what: &str) -> Option<String> {
    let fields = reader.fields(node, what, &["matchLabels", "matchExpressions"]);
    let mut terms = Vec::new();
    if let Some(labels) = fields.find("matchLabels") {
        let Kind::Mapping(pairs) = &labels.kind else {
            let message = format!(
                "`matchLabels` has to be a mapping, found {}",
                labels.describe()
            );
            reader.problem(Code::Shape, &labels.location, message);
            return None;
        };
        for (key, value) in pairs {
            let key = reader.text(key, "matchLabels")?;
            terms.push(format!("{key}={}", reader.text(value, key)?));
        }
    }
    for item in reader.items_of(&fields, "matchExpressions") {
        let item = reader.fields(item, "matchExpressions", &["key", "operator", "values"]);
        let key = reader.text_of(&item, "key")?;
        let operator = reader.text_of(&item, "operator")?;
        let values: Vec<_> = reader
            .words_of(&item, "values")
            .into_iter()
            .map(|(_, v)| v)
            .collect();
        terms.push(format!("{key} {operator} ({})", values.join(",")));
    }
    Some(terms.join(","))
}

pub(super) fn read_ports(reader: &mut Reader, fields: &Fields<'_>) -> Option<Vec<PortRange>> {
    let mut ports = Vec::new();
    for item in reader.items_of(fields, "ports") {
        let item = reader.fields(item, "ports", &["port", "endPort"]);
        let node = reader.required(&item, "ports", "port")?;
        let first = read_port(reader, node, "port")?;
        let last = match item.find("endPort") {
            Some(node) => read_port(reader, node, "endPort")?,
            None => first,
        };
        if last < first {
            let message = format!("`endPort` {last} is below `port` {first}");
            reader.problem(Code::Contradiction, &item.location, message);
            return None;
        }
        ports.push(PortRange { first, last });
    }
    Some(ports)
}

fn read_port(reader: &mut Reader, node: &Node, what: &str) -> Option<u16> {
    let number = reader.number(node, what, u64::from(u16::MAX))?;
    u16::try_from(number).ok()
}
