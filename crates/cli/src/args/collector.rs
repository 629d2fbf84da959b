//! The collector that a verb sends its alerts to.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use config::path_value;

use super::OUTPUT;

/// The collector that a verb sends its alerts to.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Collector {
    /// Send alerts to the collector at URL, with the token in the file that TOLLGATE_TOKEN_FILE names, or with
    /// --collector-cert [default: TOLLGATE_COLLECTOR, else none]
    #[arg(long = "collector", value_name = "URL", help_heading = OUTPUT)]
    pub(crate) url: Option<String>,
    /// Trust the certificates in FILE for the collector [default: those of the system]
    #[arg(long = "collector-ca", value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) ca: Option<PathBuf>,
    /// Be known to the collector by the client certificate in FILE, in place of a token
    #[arg(long = "collector-cert", value_name = "FILE", requires = "key", help_heading = OUTPUT)]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long = "collector-key", value_name = "FILE", requires = "cert", help_heading = OUTPUT)]
    pub(crate) key: Option<PathBuf>,
    /// Label by which the collector assigns bundles; repeatable [default: those of the configuration]
    #[arg(long = "collector-label", value_name = "KEY=VALUE", value_parser = label, help_heading = OUTPUT)]
    pub(crate) labels: Vec<(String, String)>,
    /// Take bundles of rules and policies from the collector that the public key in FILE has signed [default: take none]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) bundle_key: Option<PathBuf>,
    /// Take no bundle of a version before N, even if none is in force yet
    #[arg(long, value_name = "N", requires = "bundle_key", help_heading = OUTPUT)]
    pub(crate) bundle_min_version: Option<u64>,
    /// Take bundles that are older than the one in force, too
    #[arg(long, requires = "bundle_key", help_heading = OUTPUT)]
    pub(crate) allow_rollback: bool,
    /// Take bundles whose policies allow more than those in force, too
    #[arg(long, requires = "bundle_key", help_heading = OUTPUT)]
    pub(crate) allow_loosening: bool,
    /// Record some seconds of events when an operator of the collector asks for them
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) allow_captures: bool,
}

impl Collector {
    /// Returns an option that was given and means nothing without a collector.
    pub(crate) fn idle(&self) -> Option<&'static str> {
        let given = [
            (self.ca.is_some(), "--collector-ca"),
            (self.cert.is_some(), "--collector-cert"),
            (!self.labels.is_empty(), "--collector-label"),
            (self.bundle_key.is_some(), "--bundle-key"),
            (self.allow_captures, "--allow-captures"),
        ];
        let given = given.into_iter().find(|(is_given, _)| *is_given);
        given.map(|(_, option)| option)
    }

    /// Returns configuration keys, as `-o` sets them. A flag goes before a variable of the environment.
    pub(crate) fn options(self) -> Vec<String> {
        self.options_with(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn options_with(self, variable: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
        let url = self
            .url
            .map(OsString::from)
            .or_else(|| variable("TOLLGATE_COLLECTOR"));
        let key =
            |name: &str, value: &Path| format!("collector_output.{name}={}", path_value(value));
        // Without it, the collector is that of the configuration, or there is none, which [`Collector::idle`] is about.
        let mut options = Vec::new();
        if let Some(url) = &url {
            options.push("collector_output.enabled=true".to_owned());
            options.push(key("url", Path::new(url)));
        }
        // A certificate goes before the token of the environment.
        let token = variable("TOLLGATE_TOKEN_FILE");
        let token = token.filter(|_| url.is_some() && self.cert.is_none());
        if let Some(file) = token {
            options.push(key("token_file", Path::new(&file)));
        }
        if let (Some(cert), Some(private)) = (self.cert, self.key) {
            // The configuration may have a token, which a certificate excludes.
            options.push(key("token_file", Path::new("")));
            options.push(key("cert_file", &cert));
            options.push(key("key_file", &private));
        }
        if let Some(file) = self.ca {
            options.push(key("ca_file", &file));
        }
        if !self.labels.is_empty() {
            // As pairs: a key that is given twice is an error of the configuration, not the last one.
            let quoted = |(key, value): &(String, String)| format!("\"{key}\": \"{value}\"");
            let labels: Vec<_> = self.labels.iter().map(quoted).collect();
            options.push(format!("collector_output.labels={{{}}}", labels.join(", ")));
        }
        if let Some(file) = self.bundle_key {
            options.push(key("bundle_key", &file));
        }
        if let Some(version) = self.bundle_min_version {
            options.push(format!("collector_output.bundle_min_version={version}"));
        }
        if self.allow_rollback {
            options.push("collector_output.allow_rollback=true".to_owned());
        }
        if self.allow_loosening {
            options.push("collector_output.allow_loosening=true".to_owned());
        }
        if self.allow_captures {
            options.push("collector_output.allow_captures=true".to_owned());
        }
        options
    }
}

/// Parses a label. Keys and values have no character that has to be quoted.
fn label(text: &str) -> Result<(String, String), labels::LabelError> {
    let (key, value) = labels::pair(text)?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_before_the_environment_and_without_a_url_nothing_is_set() {
        let variable = |name: &str| match name {
            "TOLLGATE_COLLECTOR" => Some("https://env:6443".into()),
            "TOLLGATE_TOKEN_FILE" => Some("/run/to ken".into()),
            _ => None,
        };
        let of_flag = Collector {
            url: Some("https://flag:6443".to_owned()),
            ca: Some("/ca.pem".into()),
            bundle_min_version: Some(7),
            labels: vec![
                label("tier=db").expect("valid"),
                label("zone=").expect("valid"),
            ],
            ..Collector::default()
        };
        let options = of_flag.options_with(variable);
        assert_eq!(options.len(), 6, "{options:?}");
        assert_eq!(
            options[4],
            r#"collector_output.labels={"tier": "db", "zone": ""}"#
        );
        assert_eq!(options[5], "collector_output.bundle_min_version=7");
        assert!(label("tier").is_err() && label("a b=c").is_err());
        assert_eq!(options[2], "collector_output.token_file=/run/to ken");
        assert!(options[1].contains("https://flag:6443"), "{options:?}");
        assert!(
            options[3].starts_with("collector_output.ca_file="),
            "{options:?}"
        );
        let options = Collector::default().options_with(variable);
        assert!(options[1].contains("https://env:6443"), "{options:?}");
        assert!(Collector::default().options_with(|_| None).is_empty());
        // The collector may be that of the configuration; the token of the environment is for another one.
        let of_file = Collector {
            allow_captures: true,
            ..Collector::default()
        };
        assert_eq!(of_file.idle(), Some("--allow-captures"));
        let token = |name: &str| (name == "TOLLGATE_TOKEN_FILE").then(|| "/run/token".into());
        let options = of_file.options_with(token);
        assert_eq!(options, ["collector_output.allow_captures=true"]);
        assert_eq!(Collector::default().idle(), None);
    }

    #[test]
    fn a_certificate_takes_the_place_of_a_token() {
        let variable = |name: &str| match name {
            "TOLLGATE_COLLECTOR" => Some("https://env:6443".into()),
            "TOLLGATE_TOKEN_FILE" => Some("/run/token".into()),
            _ => None,
        };
        let of_certificate = Collector {
            cert: Some("/a.crt".into()),
            key: Some("/a.key".into()),
            ..Collector::default()
        };
        let options = of_certificate.options_with(variable);
        let expected = [
            "collector_output.token_file=",
            "collector_output.cert_file=/a.crt",
            "collector_output.key_file=/a.key",
        ];
        assert_eq!(options[2..], expected);
        // As if a file had named that collector with a token.
        let mut all = ["url=https://c:6443", "token_file=/token", "enabled=true"]
            .map(|key| format!("collector_output.{key}"))
            .to_vec();
        all.extend_from_slice(&options[2..]);
        let loaded = config::load(None, &all, config::CompatMode::Tollgate);
        let collector = loaded.expect("valid").0.outputs.collector;
        assert!(collector.enabled && collector.token_file.as_os_str().is_empty());
        assert_eq!(collector.cert_file, Path::new("/a.crt"));
    }
}
