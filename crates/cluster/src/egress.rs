//! Services and Pods in egress rules become addresses.
//!
//! A connection is seen before the node translates the address of a Service, so a rule about a Service is one about its
//! own addresses and about those behind it. `pod-self` stays: only the node knows the address of a container.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kinds::{EndpointSlice, LabelSelector, ObjectKey, Pod, PolicyObject, Service};
use serde_json::{Map, Value, json};

use crate::{ObjectKind, ProfileError};

/// Where a policy has egress rules.
const EGRESS: [&str; 4] = ["enhanceProtect", "bpfRawRules", "network", "egress"];

/// Maximum number of addresses of one policy: the expanded policy has to stay well below the 1.5 MB that an object of
/// Kubernetes may have, and each change of an address is sent to every node that uses the policy.
const MAX_ADDRESSES: usize = 4096;

type Labels = BTreeMap<String, String>;

/// An address, and the ports of it; `None` means all.
type Addresses = BTreeMap<IpAddr, Option<BTreeSet<u16>>>;

/// Services, what is behind them, and Pods.
#[derive(Debug, Default)]
pub(crate) struct Network {
    services: BTreeMap<ObjectKey, (Labels, Addresses)>,
    /// The Service and the addresses of each EndpointSlice.
    slices: BTreeMap<ObjectKey, (ObjectKey, Addresses)>,
    pods: BTreeMap<ObjectKey, (Labels, BTreeSet<IpAddr>)>,
}

/// Inserts a value; true if that changes the map.
fn put<T: PartialEq>(map: &mut BTreeMap<ObjectKey, T>, key: ObjectKey, value: T) -> bool {
    match map.get(&key) == Some(&value) {
        true => false,
        false => {
            map.insert(key, value);
            true
        }
    }
}

fn key(meta: &kinds::Meta) -> ObjectKey {
    ObjectKey {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone(),
    }
}

impl Network {
    pub(crate) fn add_service(&mut self, service: &Service) -> bool {
        let spec = &service.spec;
        let ports: BTreeSet<u16> = spec.ports.iter().map(|port| port.port).collect();
        let balancers = service.status.load_balancer.ingress.iter();
        let texts = spec.cluster_ips.iter().chain(&spec.external_ips);
        let texts = texts.chain(balancers.map(|ingress| &ingress.ip));
        // A Service without an address of its own says `None`.
        let own = texts.filter_map(|text| text.parse().ok());
        let own = own.map(|ip| (ip, Some(ports.clone()))).collect();
        let value = (service.metadata.labels.clone(), own);
        put(&mut self.services, key(&service.metadata), value)
    }

    pub(crate) fn remove_service(&mut self, key: &ObjectKey) -> bool {
        self.services.remove(key).is_some()
    }

    pub(crate) fn add_slice(&mut self, slice: &EndpointSlice) -> bool {
        let meta = &slice.metadata;
        let Some(name) = meta.labels.get(EndpointSlice::SERVICE) else {
            return self.remove_slice(&key(meta));
        };
        let service = ObjectKey {
            name: name.clone(),
            ..key(meta)
        };
        // A slice without ports, and a port without a number, mean every port.
        let ports: Option<BTreeSet<u16>> = slice.ports.iter().map(|port| port.port).collect();
        let ports = ports.filter(|ports| !ports.is_empty());
        let addresses = slice
            .endpoints
            .iter()
            .flat_map(|endpoint| &endpoint.addresses);
        let addresses = addresses.filter_map(|text| text.parse().ok());
        let addresses = addresses.map(|ip| (ip, ports.clone())).collect();
        put(&mut self.slices, key(meta), (service, addresses))
    }

    pub(crate) fn remove_slice(&mut self, key: &ObjectKey) -> bool {
        self.slices.remove(key).is_some()
    }

    /// Adds a Pod. One with the network of its node has no address of its own, and one that has ended has none any more.
    pub(crate) fn add_pod(&mut self, pod: &Pod) -> bool {
        let has_ended = ["Succeeded", "Failed"].contains(&pod.status.phase.as_str());
        if pod.spec.host_network || has_ended {
            return self.remove_pod(&key(&pod.metadata));
        }
        let ips = pod
            .status
            .pod_ips
            .iter()
            .filter_map(|ip| ip.ip.parse().ok());
        let value = (pod.metadata.labels.clone(), ips.collect());
        put(&mut self.pods, key(&pod.metadata), value)
    }

    pub(crate) fn remove_pod(&mut self, key: &ObjectKey) -> bool {
        self.pods.remove(key).is_some()
    }

    /// The addresses of the Services that a rule is about, and those behind them.
    fn services(&self, rule: &Value, namespace: &str) -> Result<Addresses, String> {
        let selector = selector(rule, "serviceSelector")?;
        let name = word(rule, "name");
        if name.is_empty() != selector.is_some() {
            return Err("needs one of `name` and `serviceSelector`, and not both".to_owned());
        }
        let wanted = match (word(rule, "namespace"), name.is_empty()) {
            ("", true) => "",
            // A name without a namespace is one of the policy's namespace.
            ("", false) if namespace.is_empty() => return Err("needs `namespace`".to_owned()),
            ("", false) => namespace,
            (wanted, _) => wanted,
        };
        let mut found = Addresses::new();
        for (key, (labels, own)) in &self.services {
            let is_named = wanted.is_empty() || key.namespace == wanted;
            let is_wanted = match &selector {
                Some(selector) => selector.matches(labels),
                None => key.name == name,
            };
            if !is_named || !is_wanted {
                continue;
            }
            let slices = self.slices.values().filter(|(service, _)| service == key);
            let behind = slices.flat_map(|(_, addresses)| addresses);
            for (ip, ports) in own.iter().chain(behind) {
                add(&mut found, *ip, ports.as_ref());
            }
        }
        Ok(found)
    }

    /// The addresses of the Pods that a rule is about.
    fn pods(&self, rule: &Value) -> Result<BTreeSet<IpAddr>, String> {
        let selector = selector(rule, "podSelector")?.ok_or("needs `podSelector`")?;
        let namespace = word(rule, "namespace");
        let wanted = self.pods.iter().filter(|(key, (labels, _))| {
            (namespace.is_empty() || key.namespace == namespace) && selector.matches(labels)
        });
        Ok(wanted
            .flat_map(|(_, (_, ips))| ips.iter().copied())
            .collect())
    }
}

/// Adds ports of an address; all ports stay all ports.
fn add(found: &mut Addresses, ip: IpAddr, ports: Option<&BTreeSet<u16>>) {
    let known = found.entry(ip).or_insert_with(|| Some(BTreeSet::new()));
    match (known.as_mut(), ports) {
        (Some(known), Some(ports)) => known.extend(ports),
        _ => *known = None,
    }
}

fn word<'v>(rule: &'v Value, key: &str) -> &'v str {
    rule.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn selector(rule: &Value, key: &str) -> Result<Option<LabelSelector>, String> {
    let Some(value) = rule.get(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let selector = serde_json::from_value(value.clone());
    selector
        .map(Some)
        .map_err(|error| format!("has a bad `{key}`: {error}"))
}

/// The kinds that a policy needs to know before it can be expanded.
pub(crate) fn needs(policy: &PolicyObject) -> Vec<ObjectKind> {
    let egress = egress_of(&policy.spec.policy);
    let has = |key: &str| {
        let list = egress
            .and_then(|egress| egress.get(key))
            .and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    };
    let of_services = [ObjectKind::Services, ObjectKind::Endpoints];
    let services = of_services.into_iter().filter(|_| has("toServices"));
    services
        .chain(has("toPods").then_some(ObjectKind::Pods))
        .collect()
}

/// Returns true if a policy has rules about Services or Pods.
pub(crate) fn is_used(policy: &PolicyObject) -> bool {
    !needs(policy).is_empty()
}

fn egress_of(part: &Map<String, Value>) -> Option<&Value> {
    let (first, rest) = EGRESS.split_first()?;
    rest.iter()
        .try_fold(part.get(*first)?, |value, key| value.get(key))
}

/// The part `policy` of an object, with addresses in place of Services and Pods.
pub(crate) fn expand(
    policy: &PolicyObject,
    network: &Network,
) -> Result<Map<String, Value>, ProfileError> {
    let mut part = policy.spec.policy.clone();
    if !is_used(policy) {
        return Ok(part);
    }
    let egress = EGRESS
        .iter()
        .skip(1)
        .fold(part.get_mut(EGRESS[0]), |value, key| {
            value.and_then(|value| value.get_mut(key))
        });
    let Some(egress) = egress.and_then(Value::as_object_mut) else {
        return Ok(part);
    };
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let mut added = Vec::new();
    for key in ["toServices", "toPods"] {
        let rules = egress.remove(key).unwrap_or_default();
        for (index, rule) in rules.as_array().into_iter().flatten().enumerate() {
            let destinations = match key {
                "toServices" => network
                    .services(rule, namespace)
                    .map(|all| of_services(&all, rule)),
                _ => network.pods(rule).map(|all| of_pods(&all, rule)),
            };
            added.extend(destinations.map_err(|cause| ProfileError::Egress {
                rule: format!("{key}[{index}]"),
                cause,
            })?);
        }
    }
    if added.len() > MAX_ADDRESSES {
        return Err(ProfileError::TooManyAddresses {
            found: added.len(),
            limit: MAX_ADDRESSES,
        });
    }
    let destinations = egress.entry("toDestinations").or_insert_with(|| json!([]));
    if let Some(list) = destinations.as_array_mut() {
        list.extend(added);
    }
    Ok(part)
}

fn of_services(addresses: &Addresses, rule: &Value) -> Vec<Value> {
    let destinations = addresses.iter().map(|(ip, ports)| {
        let ports = ports
            .as_ref()
            .map(|ports| ports.iter().map(|port| json!({ "port": port })));
        destination(*ip, rule, ports.map(Iterator::collect))
    });
    destinations.collect()
}

fn of_pods(addresses: &BTreeSet<IpAddr>, rule: &Value) -> Vec<Value> {
    let destinations = addresses
        .iter()
        .map(|ip| destination(*ip, rule, rule.get("ports").cloned()));
    destinations.collect()
}

fn destination(ip: IpAddr, rule: &Value, ports: Option<Value>) -> Value {
    let mut destination = json!({ "ip": ip.to_string() });
    let qualifiers = rule.get("qualifiers").cloned();
    for (key, value) in [("qualifiers", qualifiers), ("ports", ports)] {
        if let Some(value) = value {
            destination[key] = value;
        }
    }
    destination
}
