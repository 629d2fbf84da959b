//! The actionners: those of this host, and those of Falco Talon that are refused.

use yaml::{Location, closest};

use crate::diagnostic::{Code, Diagnostic};

/// An actionner that this program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Actionner {
    /// `process:terminate`.
    Terminate,
    /// `process:freeze`.
    Freeze,
    /// `process:thaw`.
    Thaw,
    /// `process:deny`.
    Deny,
    /// `container:quarantine`.
    Quarantine,
    /// `host:capture`.
    Capture,
    /// `host:script`.
    Script,
    /// `host:webhook`.
    Webhook,
}

impl Actionner {
    /// All actionners of this host.
    pub(crate) const ALL: [Self; 8] = [
        Self::Terminate,
        Self::Freeze,
        Self::Thaw,
        Self::Deny,
        Self::Quarantine,
        Self::Capture,
        Self::Script,
        Self::Webhook,
    ];

    /// Returns the name in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Terminate => "process:terminate",
            Self::Freeze => "process:freeze",
            Self::Thaw => "process:thaw",
            Self::Deny => "process:deny",
            Self::Quarantine => "container:quarantine",
            Self::Capture => "host:capture",
            Self::Script => "host:script",
            Self::Webhook => "host:webhook",
        }
    }

    /// Returns the parameters that it takes.
    pub(crate) fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Terminate => &["allow_protected"],
            Self::Freeze => &["allow_protected", "duration"],
            Self::Thaw => &[],
            Self::Deny => &["allow_protected", "calls", "duration"],
            Self::Quarantine => &["allow", "allow_protected", "duration"],
            Self::Capture => &["duration", "folder", "max_mib"],
            Self::Script => &["file", "script", "shell", "timeout"],
            Self::Webhook => &["ca_file", "headers", "insecure", "timeout", "url"],
        }
    }

    /// Returns true if the next action of a rule follows unless `continue` says otherwise. As Talon's `terminate`,
    /// that of a process ends the rule.
    pub(crate) fn continues(self) -> bool {
        self != Self::Terminate
    }

    /// Returns true if it acts on the process of the alert.
    pub(crate) fn needs_process(self) -> bool {
        matches!(
            self,
            Self::Terminate | Self::Freeze | Self::Deny | Self::Quarantine
        )
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// An actionner that files may name, and that this program refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// Name in files.
    pub name: &'static str,
    /// Why it is refused.
    pub why: &'static str,
    /// What does the same here, or how to go on.
    pub instead: &'static str,
}

const CLUSTER: &str =
    "it acts through the API of a Kubernetes cluster, which this program does not use";
const CLOUD: &str = "it calls a service of a cloud provider with the provider's credentials";

const fn refused(name: &'static str, why: &'static str, instead: &'static str) -> Unavailable {
    Unavailable { name, why, instead }
}

/// The refused actionners of Falco Talon, sorted by name.
const UNAVAILABLE: &[Unavailable] = &[
    refused(
        "aws:lambda",
        CLOUD,
        "use `host:webhook` to the function's URL",
    ),
    refused("calico:networkpolicy", CLUSTER, "keep Falco Talon for it"),
    refused("cilium:networkpolicy", CLUSTER, "keep Falco Talon for it"),
    refused(
        "gcp:function",
        CLOUD,
        "use `host:webhook` to the function's URL",
    ),
    refused("kubernetes:annotation", CLUSTER, "keep Falco Talon for it"),
    refused("kubernetes:cordon", CLUSTER, "keep Falco Talon for it"),
    refused("kubernetes:delete", CLUSTER, "keep Falco Talon for it"),
    refused(
        "kubernetes:download",
        CLUSTER,
        "use `host:script` that copies the file",
    ),
    refused("kubernetes:drain", CLUSTER, "keep Falco Talon for it"),
    refused(
        "kubernetes:exec",
        CLUSTER,
        "use `host:script` with nsenter(1)",
    ),
    refused("kubernetes:label", CLUSTER, "keep Falco Talon for it"),
    refused(
        "kubernetes:log",
        CLUSTER,
        "use `host:script` that reads the log",
    ),
    refused(
        "kubernetes:networkpolicy",
        CLUSTER,
        "use `container:quarantine`, or keep Falco Talon for it",
    ),
    refused("kubernetes:script", CLUSTER, "use `host:script`"),
    refused(
        "kubernetes:sysdig",
        CLUSTER,
        "use `host:capture`, which records what the rules use",
    ),
    refused(
        "kubernetes:tcpdump",
        CLUSTER,
        "use `host:script` with tcpdump(8)",
    ),
    refused(
        "kubernetes:terminate",
        CLUSTER,
        "use `process:terminate`, which ends the process and its descendants",
    ),
];

/// Returns the names of the actionners that this program has.
pub fn host_actionners() -> impl Iterator<Item = &'static str> {
    Actionner::ALL.into_iter().map(Actionner::name)
}

/// Returns the actionners that are refused by name.
#[must_use]
pub fn unavailable() -> &'static [Unavailable] {
    UNAVAILABLE
}

/// Returns an error for a name that is no refused actionner, with a suggestion.
///
/// # Errors
///
/// The message names the nearest one.
pub(crate) fn check_accepted(name: &str) -> Result<(), String> {
    if UNAVAILABLE.iter().any(|known| known.name == name) {
        return Ok(());
    }
    let names = UNAVAILABLE.iter().map(|known| known.name);
    let none = "is no actionner that is refused";
    let reason = match (Actionner::named(name), closest(name, names)) {
        (Some(_), _) => "is available, so there is nothing to accept".to_owned(),
        (None, Some(near)) => format!("{none}; did you mean `{near}`?"),
        (None, None) => none.to_owned(),
    };
    Err(format!("`{name}` {reason}"))
}

/// Looks an actionner up. `accepted` are the names whose actions are left out.
///
/// # Errors
///
/// There is no such actionner, or it is refused: a warning if that is accepted.
pub(crate) fn find(
    name: &str,
    at: &Location,
    accepted: &[String],
) -> Result<Actionner, Diagnostic> {
    if let Some(known) = Actionner::named(name) {
        return Ok(known);
    }
    let Some(refused) = UNAVAILABLE.iter().find(|refused| refused.name == name) else {
        let names = Actionner::ALL.map(Actionner::name);
        let all = names
            .into_iter()
            .chain(UNAVAILABLE.iter().map(|refused| refused.name));
        let help = match closest(name, all) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the actionners are {}", names.join(", ")),
        };
        let message = format!("there is no actionner `{name}`");
        return Err(Diagnostic::new(Code::UnknownActionner, at.clone(), message).with_help(help));
    };
    let Unavailable { why, instead, .. } = refused;
    if accepted.iter().any(|accepted| accepted == name) {
        let message = format!("actions by `{name}` are left out: {why}");
        return Err(Diagnostic::new(Code::Accepted, at.clone(), message));
    }
    let message = format!("`{name}` is not available: {why}");
    let help =
        format!("{instead}; or leave its actions out: `-o 'responses.accept_partial[0]={name}'`");
    Err(Diagnostic::new(Code::Unavailable, at.clone(), message).with_help(help))
}
