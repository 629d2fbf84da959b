//! What an action does: its actionner with parameters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use abi::Deniable;
use yaml::{Kind, Location, Node};

use crate::actionner::Actionner;
use crate::denials::CALLS;
use crate::diagnostic::Code;
use crate::guard;
use crate::load::reader::{Fields, Reader};

/// What an action does.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Kills the process and its descendants.
    Terminate {
        /// Protected programs that may be killed.
        allowed: Vec<String>,
    },
    /// Stops the process and its descendants.
    Freeze {
        /// Protected programs that may be stopped.
        allowed: Vec<String>,
        /// Time after which they go on; `None` for never.
        duration: Option<Duration>,
    },
    /// Has calls of the process and its descendants fail.
    Deny {
        /// Protected programs that may be hit.
        allowed: Vec<String>,
        /// What is withheld.
        calls: Vec<Deniable>,
        /// Time after which they may again; `None` for never.
        duration: Option<Duration>,
    },
    /// Cuts the container of the process off from the network.
    Quarantine {
        /// Protected programs that may be in it.
        allowed: Vec<String>,
        /// The rest.
        options: QuarantineOptions,
    },
    /// Records events.
    Capture(CaptureOptions),
    /// Lets those go on that the actions before have stopped.
    Thaw,
    /// Runs a program.
    Script(ScriptOptions),
    /// Sends the alert to a web server.
    Webhook(WebhookOptions),
}

/// A network by its first address and the length of its prefix.
pub type Network = (IpAddr, u8);

/// Options of `container:quarantine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuarantineOptions {
    /// Networks that stay reachable.
    pub(crate) networks: Vec<Network>,
    /// Time after which all are; `None` for never.
    pub(crate) duration: Option<Duration>,
}

/// Options of `host:capture`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaptureOptions {
    /// Folder of the file.
    pub(crate) folder: PathBuf,
    pub(crate) duration: Duration,
    /// Largest file in MiB.
    pub(crate) max_mib: u32,
}

impl CaptureOptions {
    /// Returns the size of the largest file in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        // At most `LARGEST_CAPTURE`.
        usize::try_from(u64::from(self.max_mib) << 20).unwrap_or(usize::MAX)
    }
}

/// Options of `host:script`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptOptions {
    pub(crate) command: ScriptCommand,
    /// Time after which its process group is killed.
    pub(crate) timeout: Duration,
}

/// What `host:script` runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptCommand {
    /// A program by its path.
    File(PathBuf),
    /// A text for a shell.
    Text {
        /// Path of the shell.
        shell: PathBuf,
        /// The text.
        script: String,
    },
}

/// Options of `host:webhook`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookOptions {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Authorities of the server's certificate; those of the system if `None`.
    pub(crate) authorities: Option<PathBuf>,
    /// Accept every certificate.
    pub(crate) insecure: bool,
    pub(crate) timeout: Duration,
}

/// Time limit of a script.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a request.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time and size of a capture, and the most of both: it is kept in memory, and one of few threads waits for it.
const CAPTURE_TIME: Duration = Duration::from_secs(10);
const LONGEST_CAPTURE: Duration = Duration::from_secs(300);
const CAPTURE_MIB: u32 = 16;
const LARGEST_CAPTURE: u32 = 256;
/// Networks that stay reachable from a container.
const MOST_NETWORKS: usize = 1024;
const SHELL: &str = "/bin/sh";

impl Operation {
    /// Reports parameters that the actionner does not know.
    pub(crate) fn check_names(
        reader: &mut Reader,
        actionner: Actionner,
        parameters: &[(String, Node)],
    ) {
        let known = actionner.parameters();
        for (name, node) in parameters {
            if !known.contains(&name.as_str()) {
                let message = format!("`{}` has no parameter `{name}`", actionner.name());
                let word = (name.as_str(), known);
                reader.unknown(Code::UnknownKey, &node.location, message, word);
            }
        }
    }

    /// Reads the parameters of an actionner. `at` is the action. `None` if something required is missing or wrong.
    pub(crate) fn read(
        reader: &mut Reader,
        actionner: Actionner,
        parameters: &[(String, Node)],
        at: &Location,
    ) -> Option<Self> {
        let before = reader.diagnostics.len();
        let node = mapping(parameters, at);
        let what = format!("`{}`", actionner.name());
        let known = actionner.parameters();
        // Names are reported where the definition or the rule writes them.
        let unknown = |name: &String| !known.contains(&name.as_str());
        if parameters.iter().any(|(name, _)| unknown(name)) {
            Self::check_names(reader, actionner, parameters);
            return None;
        }
        let fields = reader.fields(&node, &what, known);
        let act = match actionner {
            Actionner::Terminate => Self::Terminate {
                allowed: allowed(reader, &fields),
            },
            Actionner::Freeze => Self::Freeze {
                allowed: allowed(reader, &fields),
                duration: seconds(reader, &fields, "duration"),
            },
            Actionner::Deny => Self::Deny {
                allowed: allowed(reader, &fields),
                calls: calls(reader, &fields),
                duration: seconds(reader, &fields, "duration"),
            },
            Actionner::Quarantine => Self::Quarantine {
                allowed: allowed(reader, &fields),
                options: QuarantineOptions {
                    networks: networks(reader, &fields),
                    duration: seconds(reader, &fields, "duration"),
                },
            },
            Actionner::Capture => Self::Capture(capture(reader, &fields)?),
            Actionner::Thaw => Self::Thaw,
            Actionner::Script => Self::Script(script(reader, &fields)?),
            Actionner::Webhook => Self::Webhook(webhook(reader, &fields)?),
        };
        (reader.diagnostics.len() == before).then_some(act)
    }

    /// Returns true if it may take long: it waits for what is not under this program's control.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::Script(_) | Self::Webhook(_) | Self::Capture(_) => true,
            Self::Terminate { .. }
            | Self::Freeze { .. }
            | Self::Deny { .. }
            | Self::Quarantine { .. }
            | Self::Thaw => false,
        }
    }

    /// Returns the actionner.
    pub(crate) fn actionner(&self) -> Actionner {
        match self {
            Self::Terminate { .. } => Actionner::Terminate,
            Self::Freeze { .. } => Actionner::Freeze,
            Self::Deny { .. } => Actionner::Deny,
            Self::Quarantine { .. } => Actionner::Quarantine,
            Self::Capture(_) => Actionner::Capture,
            Self::Thaw => Actionner::Thaw,
            Self::Script(_) => Actionner::Script,
            Self::Webhook(_) => Actionner::Webhook,
        }
    }
}

fn mapping(parameters: &[(String, Node)], at: &Location) -> Node {
    let key = |name: &String| Node {
        kind: Kind::Scalar(yaml::SourceText::new(name.clone(), at.clone())),
        location: at.clone(),
    };
    let pairs = parameters
        .iter()
        .map(|(name, node)| (key(name), node.clone()));
    Node {
        kind: Kind::Mapping(pairs.collect()),
        location: at.clone(),
    }
}

/// Reads names of protected programs.
fn allowed(reader: &mut Reader, fields: &Fields<'_>) -> Vec<String> {
    let words = reader.words_of(fields, "allow_protected");
    for (word, at) in &words {
        if !guard::PROTECTED.contains(&word.as_str()) {
            let message = format!("`{word}` is not protected, so it need not be allowed");
            reader.unknown(Code::UnknownValue, at, message, (word, guard::PROTECTED));
        }
    }
    words.into_iter().map(|(word, _)| word).collect()
}

/// Reads which calls are withheld; all without the key.
fn calls(reader: &mut Reader, fields: &Fields<'_>) -> Vec<Deniable> {
    let Some(node) = fields.find("calls") else {
        return Deniable::ALL.to_vec();
    };
    let words = reader.words(node, "calls");
    if words.is_empty() && matches!(node.kind, Kind::Sequence(_)) {
        let message = "`calls` is empty, so that nothing would be denied; leave it out for all";
        reader.problem(Code::UnknownValue, &node.location, message);
    }
    let mut calls = Vec::new();
    for (word, at) in &words {
        match CALLS.iter().find(|(name, _)| name == word) {
            Some((_, call)) => calls.push(*call),
            None => {
                let message = format!("`{word}` cannot be denied");
                let known = CALLS.map(|(name, _)| name);
                reader.unknown(Code::UnknownValue, at, message, (word, &known));
            }
        }
    }
    calls
}

/// Reads the networks that stay reachable: addresses, or prefixes such as `10.0.0.0/8`.
fn networks(reader: &mut Reader, fields: &Fields<'_>) -> Vec<Network> {
    let words = reader.words_of(fields, "allow");
    if let Some((_, at)) = words.get(MOST_NETWORKS) {
        let message = format!("`allow` has more than {MOST_NETWORKS} networks");
        reader.problem(Code::UnknownValue, at, message);
    }
    let mut networks = Vec::new();
    for (word, at) in &words {
        match network(word) {
            Ok(network) => networks.push(network),
            Err(why) => {
                let message = format!("`allow` cannot have `{word}`: {why}");
                reader.problem(Code::UnknownValue, at, message);
            }
        }
    }
    networks
}

fn network(word: &str) -> Result<Network, &'static str> {
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (word, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_not_a_prefix| "expected an address or a prefix, such as 10.0.0.1 or fd00::/8")?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits =
        match bits {
            None => most,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or(
                "the length of the prefix has to be at most 32 with IPv4, and 128 with IPv6",
            )?,
        };
    Ok((address, bits))
}

fn capture(reader: &mut Reader, fields: &Fields<'_>) -> Option<CaptureOptions> {
    let Some(node) = fields.find("folder") else {
        let message = "`host:capture` needs the parameter `folder`";
        reader.problem(Code::Shape, &fields.location, message);
        return None;
    };
    let folder = PathBuf::from(reader.text(node, "folder")?);
    if !folder.is_absolute() {
        let message = format!(
            "`folder` has to be an absolute path, found `{}`",
            folder.display()
        );
        reader.problem(Code::UnknownValue, &node.location, message);
    }
    let mut max_mib = CAPTURE_MIB;
    if let Some(node) = fields.find("max_mib") {
        let text = reader.text(node, "max_mib")?;
        match text.parse() {
            Ok(mib) if (1..=LARGEST_CAPTURE).contains(&mib) => max_mib = mib,
            _ => {
                let message = format!(
                    "`max_mib` has to be MiB from 1 to {LARGEST_CAPTURE}, as events are kept in memory; found `{text}`"
                );
                reader.problem(Code::UnknownValue, &node.location, message);
            }
        }
    }
    let duration = seconds(reader, fields, "duration").unwrap_or(CAPTURE_TIME);
    if duration > LONGEST_CAPTURE {
        let message = format!(
            "`duration` of `host:capture` is {} s at most",
            LONGEST_CAPTURE.as_secs()
        );
        let at = fields
            .find("duration")
            .map_or(&fields.location, |node| &node.location);
        reader.problem(Code::UnknownValue, at, message);
    }
    Some(CaptureOptions {
        folder,
        duration,
        max_mib,
    })
}

fn seconds(reader: &mut Reader, fields: &Fields<'_>, key: &str) -> Option<Duration> {
    let node = fields.find(key)?;
    reader.seconds(node, key)
}

fn script(reader: &mut Reader, fields: &Fields<'_>) -> Option<ScriptOptions> {
    let file = reader.text_of(fields, "file");
    let script = reader.text_of(fields, "script");
    let shell = reader.text_of(fields, "shell");
    let command = match (file, script, shell) {
        (Some(file), None, None) => {
            let path = PathBuf::from(file);
            if !path.is_absolute() {
                let message = format!("`file` has to be an absolute path, found `{file}`");
                let node = fields.find("file")?;
                reader.problem(Code::UnknownValue, &node.location, message);
                return None;
            }
            ScriptCommand::File(path)
        }
        (None, Some(script), shell) => ScriptCommand::Text {
            shell: shell.unwrap_or(SHELL).into(),
            script: script.to_owned(),
        },
        _ => {
            let message = "`host:script` needs one of the parameters `script` and `file`; `shell` goes with `script`";
            reader.problem(Code::Shape, &fields.location, message);
            return None;
        }
    };
    Some(ScriptOptions {
        command,
        timeout: seconds(reader, fields, "timeout").unwrap_or(SCRIPT_TIMEOUT),
    })
}

fn webhook(reader: &mut Reader, fields: &Fields<'_>) -> Option<WebhookOptions> {
    let Some(url) = reader.text_of(fields, "url") else {
        let message = "`host:webhook` needs the parameter `url`";
        reader.problem(Code::Shape, &fields.location, message);
        return None;
    };
    let mut headers = Vec::new();
    if let Some(node) = fields.find("headers") {
        let Kind::Mapping(pairs) = &node.kind else {
            let message = format!("`headers` has to be a mapping, found {}", node.describe());
            reader.problem(Code::Shape, &node.location, message);
            return None;
        };
        for (name, value) in pairs {
            let name = reader.text(name, "a header's name")?;
            let value = reader.text(value, "a header's value")?;
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    Some(WebhookOptions {
        url: url.to_owned(),
        headers,
        authorities: reader.text_of(fields, "ca_file").map(PathBuf::from),
        insecure: reader.switch(fields, "insecure").unwrap_or(false),
        timeout: seconds(reader, fields, "timeout").unwrap_or(WEBHOOK_TIMEOUT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_addresses_and_prefixes() {
        let parsed = |word| network(word).ok();
        let address = |text: &str| text.parse().expect("an address");
        assert_eq!(parsed("10.0.0.1"), Some((address("10.0.0.1"), 32)));
        assert_eq!(parsed("10.0.0.0/8"), Some((address("10.0.0.0"), 8)));
        assert_eq!(parsed("::/0"), Some((address("::"), 0)));
        assert_eq!(parsed("fd00::1"), Some((address("fd00::1"), 128)));
        for wrong in [
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0/8",
            "example.org",
            "10.0.0.1/",
            "/8",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
