//! What the webhook checks of the proxy's settings. tollgate starts no proxy; it refuses what the peer refuses.

use serde_json::{Map, Value};

use super::Invalid;
use super::quantity::billionths;
use crate::policy_object::PolicySpec;

const CONFIG: &str = "networkProxyConfig";

/// Settings that are fixed in pods when they start.
const FIXED: [(&str, &str); 3] = [
    ("proxyUID", "networkProxyConfig.proxyUID"),
    ("proxyPort", "networkProxyConfig.proxyPort"),
    ("proxyAdminPort", "networkProxyConfig.proxyAdminPort"),
];

fn invalid(field: impl Into<String>, cause: impl Into<String>) -> Invalid {
    Invalid::Proxy {
        field: field.into(),
        cause: cause.into(),
    }
}

fn items<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn check(spec: &PolicySpec, found: &mut Vec<Invalid>) {
    if let Some(config) = spec.policy.get(CONFIG).filter(|config| config.is_object()) {
        if let Some(mitm) = config.get("mitm").filter(|mitm| mitm.is_object()) {
            check_mitm(mitm, found);
        }
        check_resources(config, found);
        let (port, admin) = (config.get("proxyPort"), config.get("proxyAdminPort"));
        if port.is_some() && port == admin {
            let cause = "has to differ from `proxyAdminPort`";
            found.push(invalid("networkProxyConfig.proxyPort", cause));
        }
    }
    for (part, key) in [
        ("enhanceProtect", "networkProxyRawRules"),
        ("defenseInDepth", "networkProxy"),
    ] {
        let rules = spec.policy.get(part).and_then(|part| part.get(key));
        if let Some(egress) = rules.and_then(|rules| rules.get("egress")) {
            check_egress(egress, &format!("{part}.{key}.egress"), found);
        }
    }
}

/// Compares the settings that cannot be changed, nor set later. Those of a policy that has no proxy any more do not matter.
pub(super) fn check_change(new: &PolicySpec, old: &PolicySpec, found: &mut Vec<Invalid>) {
    let Some(new) = new.policy.get(CONFIG) else {
        return;
    };
    let old = old.policy.get(CONFIG);
    for (key, field) in FIXED {
        if new.get(key) != old.and_then(|old| old.get(key)) {
            found.push(Invalid::Immutable { field });
        }
    }
}

/// Reports characters that end a scalar in the proxy's configuration.
fn check_text(text: &str, field: String, found: &mut Vec<Invalid>) {
    let ends = |c: char| {
        matches!(
            c,
            '\0'..='\u{1f}' | '\u{7f}' | '\u{85}' | '\u{2028}' | '\u{2029}' | '"' | '\\'
        )
    };
    if text.contains(ends) {
        let cause = format!("contains a control character, a quote or a backslash: {text:?}");
        found.push(invalid(field, cause));
    }
}

fn check_mitm(mitm: &Value, found: &mut Vec<Invalid>) {
    let what = "networkProxyConfig.mitm";
    let domains = items(mitm, "domains");
    if domains.is_empty() {
        found.push(invalid(
            format!("{what}.domains"),
            "needs at least one name",
        ));
    }
    for (index, domain) in domains.iter().enumerate() {
        let domain = domain.as_str().unwrap_or_default();
        check_text(domain, format!("{what}.domains[{index}]"), found);
    }
    for (index, mutation) in items(mitm, "headerMutations").iter().enumerate() {
        let what = format!("{what}.headerMutations[{index}]");
        let domain = mutation.get("domain");
        if !domain.is_some_and(|domain| domains.contains(domain)) {
            found.push(invalid(
                format!("{what}.domain"),
                "is not one of `mitm.domains`",
            ));
        }
        let headers = items(mutation, "headers");
        if headers.is_empty() {
            found.push(invalid(
                format!("{what}.headers"),
                "needs at least one header",
            ));
        }
        for (index, header) in headers.iter().enumerate() {
            check_header(header, &format!("{what}.headers[{index}]"), found);
        }
    }
}

fn check_header(header: &Value, what: &str, found: &mut Vec<Invalid>) {
    if text(header, "name").is_empty() {
        found.push(invalid(format!("{what}.name"), "is empty"));
    }
    check_text(text(header, "name"), format!("{what}.name"), found);
    let secret = header.get("secretRef").filter(|secret| secret.is_object());
    if text(header, "value").is_empty() != secret.is_some() {
        let cause = "needs one of `value` and `secretRef`, and not both";
        found.push(invalid(what, cause));
    }
    for key in ["name", "key"] {
        if secret.is_some_and(|secret| text(secret, key).is_empty()) {
            found.push(invalid(format!("{what}.secretRef.{key}"), "is empty"));
        }
    }
}

fn check_resources(config: &Value, found: &mut Vec<Invalid>) {
    let part = |key: &str| -> Option<&Map<String, Value>> {
        config.get("resources")?.get(key)?.as_object()
    };
    let (Some(requests), Some(limits)) = (part("requests"), part("limits")) else {
        return;
    };
    let amount = |value: &Value| match value {
        Value::String(text) => billionths(text),
        other => billionths(&other.to_string()),
    };
    for (name, request) in requests {
        let Some(limit) = limits.get(name) else {
            continue;
        };
        let field = format!("networkProxyConfig.resources.limits.{name}");
        match (amount(request), amount(limit)) {
            (Some(request), Some(limit)) if limit >= request => {}
            (Some(_), Some(_)) => found.push(invalid(field, "is less than the request")),
            _ => found.push(invalid(field, "or its request is no quantity")),
        }
    }
}

fn check_egress(egress: &Value, what: &str, found: &mut Vec<Invalid>) {
    let action = text(egress, "defaultAction");
    if !["allow", "deny"]
        .iter()
        .any(|known| action.eq_ignore_ascii_case(known))
    {
        let cause = format!("has to be allow or deny, found `{action}`");
        found.push(invalid(format!("{what}.defaultAction"), cause));
    }
    for (index, rule) in items(egress, "httpRules").iter().enumerate() {
        let what = format!("{what}.httpRules[{index}].match");
        let wanted = rule.get("match").unwrap_or(&Value::Null);
        for key in ["hosts", "methods"] {
            for (index, item) in items(wanted, key).iter().enumerate() {
                let item = item.as_str().unwrap_or_default();
                check_text(item, format!("{what}.{key}[{index}]"), found);
            }
        }
        for (index, path) in items(wanted, "paths").iter().enumerate() {
            for key in ["exact", "prefix"] {
                check_text(
                    text(path, key),
                    format!("{what}.paths[{index}].{key}"),
                    found,
                );
            }
        }
    }
    for (index, rule) in items(egress, "rules").iter().enumerate() {
        for key in ["ip", "cidr"] {
            check_text(
                text(rule, key),
                format!("{what}.rules[{index}].{key}"),
                found,
            );
        }
    }
}
