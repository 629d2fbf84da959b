//! Whether the configuration of a plugin has an address, without which it gets no network.
//!
//! Only a whole value counts, or an item of a value that is a list with commas: an address inside other text opens nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use plugin::protocol::PluginSpec;
use serde_json::Value;

/// Returns true if a value of `init_config` or `open_params` is a URL or a host with a port.
pub(crate) fn has_address(spec: &PluginSpec) -> bool {
    [&spec.init_config, &spec.open_params]
        .into_iter()
        .any(|text| match serde_json::from_str(text) {
            Ok(json) => is_in_json(&json),
            Err(_no_json) => is_in_text(text),
        })
}

/// Looks at the texts of JSON; keys and numbers are no addresses. The parser limits the depth.
fn is_in_json(value: &Value) -> bool {
    match value {
        Value::String(text) => is_in_text(text),
        Value::Array(items) => items.iter().any(is_in_json),
        Value::Object(members) => members.values().any(is_in_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_in_text(text: &str) -> bool {
    let mut items = text.split(',').map(str::trim);
    items.any(|item| match item.split_once("://") {
        Some((scheme, rest)) => is_network(scheme) && is_authority(rest),
        None => has_host_and_port(item),
    })
}

/// Returns true for the scheme of a URL, unless it names something on this machine.
fn is_network(scheme: &str) -> bool {
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_local = ["file", "unix"]
        .iter()
        .any(|local| scheme.eq_ignore_ascii_case(local));
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(is_scheme_char)
        && !is_local
}

/// Returns true if what follows `://` begins with a host, a port, or both.
fn is_authority(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    // A name of a user and a password may stand before the host.
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    is_host(host) || has_host_and_port(host)
}

/// Returns true for `HOST:PORT`, and for `:PORT`, which is every address of this machine.
fn has_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_decimal = port.chars().all(|c| c.is_ascii_digit());
    let is_port = is_decimal && port.parse::<u16>().is_ok_and(|port| port != 0);
    is_port && (host.is_empty() || is_host(host))
}

/// Returns true for an address or a name of DNS. The last part of a name has a letter first, so that `12` is none.
fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        let address = inner.strip_suffix(']');
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    if host.parse::<Ipv4Addr>().is_ok() {
        return true;
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let is_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=63).contains(&label.len())
            && label.chars().all(is_char)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    name.len() <= 253
        && name.split('.').all(is_label)
        && last.starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &str, params: &str) -> bool {
        has_address(&PluginSpec {
            name: String::new(),
            library: String::new(),
            init_config: config.to_owned(),
            open_params: params.to_owned(),
        })
    }

    #[test]
    fn a_value_that_is_a_url_or_a_host_with_a_port_is_an_address() {
        for text in [
            "http://:9765/k8s-audit",
            "https://user:word@collector.example/x?y=1",
            "grpc://[::1]:50051",
            "s3://bucket/path",
            ":9765",
            "collector.example:443",
            "redis:6379",
            "10.0.0.1:80",
            "[2001:db8::1]:80",
            "a.example:1, b.example:2",
        ] {
            assert!(check("", text), "{text}");
            assert!(check(text, ""), "{text}");
            let json = serde_json::json!({"a": [{"server": text}], "n": 4}).to_string();
            assert!(check(&json, ""), "{json}");
        }
    }

    #[test]
    fn times_numbers_keys_and_words_in_a_text_are_no_addresses() {
        for text in [
            "",
            "4",
            "12:30",
            "12:30:15",
            "2026-11-28T12:30:15",
            "a:b",
            "host:",
            "host:0",
            "host:+80",
            "host:65536",
            "-a:80",
            "1.2.3.4.5:80",
            "::1",
            "fe80::1:80",
            "/var/log/audit.json",
            "/var/log/a:80",
            "file:///var/log/audit.json",
            "FILE://host/audit.json",
            "unix:///run/x.sock",
            "http://",
            "http:///path",
            "://host",
            "at 12:30 from collector.example:443",
            "see http://collector.example",
        ] {
            assert!(!check("", text), "{text}");
            let json = serde_json::json!({"collector.example:443": text}).to_string();
            assert!(!check(&json, ""), "{json}");
        }
        assert!(!check("{\"maxEventSize\":262144,\"on\":true}", "4"));
        // What the plugin may read as JSON and this program does not is one text.
        assert!(!check("{\"server\":\"collector.example:443\",}", ""));
    }
}
