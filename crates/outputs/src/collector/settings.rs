//! `collector_output`: its keys and the options of its channel.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use labels::Labels;
use rules::Priority;
use yaml::key::Key;
use yaml::settings::{Node, Problem};

use super::{CollectorChannel, CollectorOptions};
use crate::capture::{CaptureOnAlert, MAX_AFTER, MAX_BEFORE, MAX_LIMIT_MIB};
use crate::channel::Channel;
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::net::tls::{ClientFiles, TlsOptions};

/// `collector_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorOutput {
    /// Send alerts.
    pub enabled: bool,
    /// URL of the collector.
    pub url: String,
    /// File with the token of the agents' class.
    pub token_file: PathBuf,
    /// Client certificate that the agent presents in place of a token; empty for none.
    pub cert_file: PathBuf,
    /// Private key of that certificate.
    pub key_file: PathBuf,
    /// Certificate authorities of the collector; empty for those of the system.
    pub ca_file: PathBuf,
    /// File with the public key of bundles; empty for none, then no bundle is taken.
    pub bundle_key: PathBuf,
    /// Least version of a bundle that is taken.
    pub bundle_min_version: u64,
    /// Take bundles that are older than the one in force.
    pub allow_rollback: bool,
    /// Take bundles whose policies allow more than those in force.
    pub allow_loosening: bool,
    /// Record captures for the collector: those that it asks for, and those around alerts.
    pub allow_captures: bool,
    /// Alerts around which the agent records without being asked.
    pub capture_on_alert: CaptureOnAlert,
    /// Labels of the agent, by which the collector assigns bundles.
    pub labels: Labels,
    /// Folder of alerts that are not acknowledged; empty for the default.
    pub spool: PathBuf,
    /// Size of that folder in MiB, for each agent.
    pub spool_limit_mib: u64,
}

impl Default for CollectorOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            url: String::new(),
            token_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            bundle_key: PathBuf::new(),
            bundle_min_version: 0,
            allow_rollback: false,
            allow_loosening: false,
            allow_captures: false,
            capture_on_alert: CaptureOnAlert::default(),
            labels: Labels::default(),
            spool: PathBuf::new(),
            spool_limit_mib: 64,
        }
    }
}

#[rustfmt::skip]
impl OutputKind for CollectorOutput {
    const GROUP: &'static str = "collector_output";
    const KEYS: &'static [Key<Self>] = &[
        Key::boolean("collector_output.allow_captures", |output| &mut output.allow_captures),
        Key::boolean("collector_output.allow_loosening", |output| &mut output.allow_loosening),
        Key::boolean("collector_output.allow_rollback", |output| &mut output.allow_rollback),
        Key::file("collector_output.bundle_key", |output| &mut output.bundle_key),
        Key::integer("collector_output.bundle_min_version", |output| &mut output.bundle_min_version),
        Key::file("collector_output.ca_file", |output| &mut output.ca_file),
        Key::other("collector_output.capture_on_alert.after", "integer", |output, node| {
            set_within(&mut output.capture_on_alert.after, node, 0..=MAX_AFTER)
        }),
        Key::other("collector_output.capture_on_alert.before", "integer", |output, node| {
            set_within(&mut output.capture_on_alert.before, node, 0..=MAX_BEFORE)
        }),
        Key::other("collector_output.capture_on_alert.limit", "integer", |output, node| {
            set_within(&mut output.capture_on_alert.limit_mib, node, 1..=MAX_LIMIT_MIB)
        }),
        Key::integer("collector_output.capture_on_alert.max_per_hour", |output| &mut output.capture_on_alert.max_per_hour),
        Key::other("collector_output.capture_on_alert.priority", "string", set_priority),
        Key::other("collector_output.capture_on_alert.rules", "array", set_rules),
        Key::file("collector_output.cert_file", |output| &mut output.cert_file),
        Key::boolean("collector_output.enabled", |output| &mut output.enabled),
        Key::file("collector_output.key_file", |output| &mut output.key_file),
        Key::other("collector_output.labels", "object", set_labels),
        Key::file("collector_output.spool", |output| &mut output.spool),
        Key::integer("collector_output.spool_limit", |output| &mut output.spool_limit_mib),
        Key::file("collector_output.token_file", |output| &mut output.token_file),
        Key::text("collector_output.url", |output| &mut output.url),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        let url = Missing::if_empty(&self.url, "url", "https://HOST:6443");
        let has_certificate = !(self.cert_file.as_os_str().is_empty() && self.key_file.as_os_str().is_empty());
        url.or_else(|| match has_certificate {
            true => Missing::if_empty(&self.cert_file, "cert_file", "FILE")
                .or_else(|| Missing::if_empty(&self.key_file, "key_file", "FILE")),
            false => Missing::if_empty(&self.token_file, "token_file", "FILE"),
        })
        .or_else(|| {
            // A capture has arguments of commands: one setting decides whether any leaves this machine.
            let is_idle = self.capture_on_alert.is_on() && !self.allow_captures;
            is_idle.then_some(Missing { key: "allow_captures", example: "true" })
        })
    }

    fn exposure(&self) -> Option<String> {
        self.url.starts_with("http://").then(|| {
            "collector_output.url: without TLS everybody on the way can read the token and the alerts\n  help: \
             use https://".to_owned()
        })
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let help = "see the keys collector_output.* in `tollgate man run`";
        match CollectorChannel::open(self.options(common)) {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }
}

fn set_labels(output: &mut CollectorOutput, node: &Node) -> Result<(), Problem> {
    let labels = Labels::new(node.texts_by_name()?);
    output.labels = labels.map_err(|error| Problem::new(&node.origin, error.to_string()))?;
    Ok(())
}

fn set_within(place: &mut u64, node: &Node, allowed: RangeInclusive<u64>) -> Result<(), Problem> {
    let number = node.integer()?;
    if !allowed.contains(&number) {
        let (least, most) = allowed.into_inner();
        let problem = format!("expected a number from {least} to {most}, found {number}");
        return Err(Problem::new(&node.origin, problem));
    }
    *place = number;
    Ok(())
}

fn set_priority(output: &mut CollectorOutput, node: &Node) -> Result<(), Problem> {
    let text = node.text()?;
    let priority = (!text.is_empty()).then(|| Priority::parse(text));
    output.capture_on_alert.priority = match priority {
        None => None,
        Some(Some(priority)) => Some(priority),
        Some(None) => {
            let problem =
                format!("unknown priority `{text}`; name one as in rules, such as WARNING");
            return Err(Problem::new(&node.origin, problem));
        }
    };
    Ok(())
}

fn set_rules(output: &mut CollectorOutput, node: &Node) -> Result<(), Problem> {
    let named = CaptureOnAlert {
        rules: node.texts()?,
        ..output.capture_on_alert.clone()
    };
    let checked = named.check();
    checked.map_err(|error| Problem::new(&node.origin, error.to_string()))?;
    output.capture_on_alert = named;
    Ok(())
}

/// Directory of certificate authorities on Linux systems.
pub(super) const STORE: &str = "/etc/ssl/certs";

impl CollectorOutput {
    /// Returns the folder of the spools of all agents, which has the last good bundles, too.
    pub fn spool_folder(&self) -> PathBuf {
        match self.spool.as_os_str().is_empty() {
            true => default_spool(),
            false => self.spool.clone(),
        }
    }

    fn options(&self, common: &Common) -> CollectorOptions {
        let is_set = |path: &PathBuf| !path.as_os_str().is_empty();
        CollectorOptions {
            url: self.url.clone(),
            token_file: Some(self.token_file.clone()).filter(is_set),
            tls: TlsOptions {
                insecure: false,
                authorities: Some(self.ca_file.clone()).filter(is_set),
                authority_folder: PathBuf::from(STORE),
                client: is_set(&self.cert_file).then(|| ClientFiles {
                    certificate: self.cert_file.clone(),
                    key: self.key_file.clone(),
                }),
            },
            labels: self.labels.clone(),
            capture_on_alert: self.capture_on_alert.clone(),
            spool: self.spool_folder(),
            // At least two segments, so that one can be dropped.
            spool_limit: self.spool_limit_mib.max(2).saturating_mul(1 << 20),
            timeout: common.timeout,
        }
    }
}

/// Returns `/var/lib/tollgate/spool` for root, and a folder below the user's state for others.
fn default_spool() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/tollgate/spool");
    }
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/state")));
    state
        .unwrap_or_else(std::env::temp_dir)
        .join("tollgate/spool")
}
