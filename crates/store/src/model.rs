//! What a store holds.

use labels::Labels;

use crate::certificate::CertificateName;
use crate::severity::Severity;

/// Number of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(pub i64);

/// Number of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenId(pub i64);

/// Number of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AlertId(pub i64);

/// Number of a group of alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub i64);

/// One alert to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAlert {
    /// Time of the event, nanoseconds since 1970.
    pub time_ns: i64,
    /// Severity.
    pub severity: Severity,
    /// Name of the rule.
    pub rule: String,
    /// Host as the alert names it.
    pub host: String,
    /// Program that the alert is about. Alerts are grouped by rule, program and object.
    pub program: String,
    /// Pattern of the object that the alert is about.
    pub object: String,
    /// Text that a search looks at.
    pub message: String,
    /// The whole alert as JSON.
    pub body: String,
}

/// Kind of something that nobody saw or that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LossKind {
    /// Events that the kernel dropped.
    DroppedEvents,
    /// Alerts that an output lost.
    LostAlerts,
    /// An interval in which nobody watched, in calls.
    Unwatched,
    /// Items that an agent's spool dropped.
    Spool,
}

impl LossKind {
    /// Returns the name, which the database has.
    pub fn name(self) -> &'static str {
        match self {
            Self::DroppedEvents => "dropped_events",
            Self::LostAlerts => "lost_alerts",
            Self::Unwatched => "unwatched",
            Self::Spool => "spool",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Self::DroppedEvents,
            Self::LostAlerts,
            Self::Unwatched,
            Self::Spool,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that nobody saw or that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time of the report, nanoseconds since 1970.
    pub time_ns: i64,
    /// Kind.
    pub kind: LossKind,
    /// How many.
    pub count: u64,
    /// The report in words.
    pub detail: String,
}

/// One record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An alert, and what it says about losses if it is such a report.
    Alert(NewAlert, Option<Loss>),
    /// A loss without an alert.
    Loss(Loss),
    /// A number whose record the sender had to drop.
    Dropped,
}

/// Records of one sender, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The sender, known by its credential.
    pub sender: AgentId,
    /// Sequence number of the first record; the others follow. Without numbers nothing is a duplicate.
    pub first: Option<u64>,
    /// The records.
    pub records: Vec<Record>,
    /// Time of arrival, nanoseconds since 1970.
    pub received_ns: i64,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Sequence number up to which everything of this sender is stored or counted as missing.
    pub acknowledged: u64,
    /// Records that were stored.
    pub stored: u64,
    /// Records that were stored before.
    pub duplicates: u64,
    /// Records between the last batch and this one that never came.
    pub missing: u64,
}

/// What a credential allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Send, as an agent of this class.
    Agents(String),
    /// Read alerts and the fleet.
    Viewer,
    /// Also acknowledge.
    Operator,
    /// Also manage tokens.
    Admin,
}

impl Scope {
    /// Returns the class and the role, of which one is empty; as in the database.
    pub(crate) fn columns(&self) -> (&str, &'static str) {
        match self {
            Self::Agents(class) => (class, ""),
            Self::Viewer => ("", "viewer"),
            Self::Operator => ("", "operator"),
            Self::Admin => ("", "admin"),
        }
    }

    /// Returns the scope of these columns. An unknown role allows nothing.
    pub(crate) fn of(class: &str, role: &str) -> Option<Self> {
        match role {
            "" if !class.is_empty() => Some(Self::Agents(class.to_owned())),
            "viewer" => Some(Self::Viewer),
            "operator" => Some(Self::Operator),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

/// A token to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// What it allows.
    pub scope: Scope,
    /// Hash of the secret.
    pub hash: [u8; 32],
    /// Time at which it ends, nanoseconds since 1970.
    pub expires_ns: Option<i64>,
    /// Who adds it.
    pub actor: String,
}

/// A token. The secret is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Number.
    pub id: TokenId,
    /// What it allows.
    pub scope: Scope,
    /// Who added it.
    pub created_by: String,
    /// When.
    pub created_ns: i64,
    /// Time at which it ends.
    pub expires_ns: Option<i64>,
    /// Time at which it was revoked.
    pub revoked_ns: Option<i64>,
    /// Number of agents that enrolled with it.
    pub agents: u64,
    /// Name of an agent in its client certificate, which takes the place of the secret; `None` for a token with a secret.
    pub certificate: Option<String>,
}

/// Whom a secret belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A token.
    Token {
        /// Its number.
        id: TokenId,
        /// What it allows.
        scope: Scope,
    },
    /// An agent that has enrolled.
    Agent {
        /// Its number.
        id: AgentId,
        /// Its host, as given when it enrolled.
        host: String,
        /// Name in the certificate with which it enrolled; `None` if that was a token.
        certificate: Option<CertificateName>,
    },
}

/// An agent to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAgent {
    /// The token it enrols with.
    pub token: TokenId,
    /// Hash of its secret.
    pub hash: [u8; 32],
    /// Its host.
    pub host: String,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Number.
    pub id: AgentId,
    /// Class of its token.
    pub class: String,
    /// Host, as given when it enrolled; empty for a direct sender.
    pub host: String,
    /// True if it sends with a token alone: Falco, falcosidekick.
    pub is_direct: bool,
    /// When it was first seen.
    pub first_seen_ns: i64,
    /// When it was last seen.
    pub last_seen_ns: i64,
    /// Sequence number up to which everything is stored.
    pub acknowledged: u64,
    /// Records that never came.
    pub missing: u64,
    /// Its last inventory, a JSON object.
    pub inventory: String,
    /// Its token is revoked or has expired.
    pub is_ended: bool,
    /// Labels that it says it has.
    pub labels: Labels,
}

/// Position in a list that is sorted by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Time of the last row of the page before.
    pub time_ns: i64,
    /// Number of that row.
    pub id: i64,
}

/// Which alerts or groups are asked for. The default accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// From this time on, nanoseconds since 1970. Groups are counted in whole hours.
    pub from_ns: Option<i64>,
    /// Before this time.
    pub to_ns: Option<i64>,
    /// This severity and more severe ones.
    pub severity: Option<Severity>,
    /// This rule.
    pub rule: Option<String>,
    /// This host.
    pub host: Option<String>,
    /// This program.
    pub program: Option<String>,
    /// This group.
    pub group: Option<GroupId>,
    /// Words that all occur in the message.
    pub text: Option<String>,
    /// Acknowledged groups, too.
    pub with_acknowledged: bool,
    /// After this position.
    pub after: Option<Cursor>,
    /// Number of rows; 0 is 50.
    pub limit: u32,
}

/// Alerts with the same rule, severity, program and object pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number.
    pub id: GroupId,
    /// Rule.
    pub rule: String,
    /// Severity.
    pub severity: Severity,
    /// Program.
    pub program: String,
    /// Pattern of the object.
    pub object: String,
    /// Number of alerts that the filter accepts.
    pub count: u64,
    /// Time of the first of them.
    pub first_ns: i64,
    /// Time of the last of them.
    pub last_ns: i64,
    /// Number of hosts.
    pub hosts: u64,
    /// Who acknowledged it, if someone has.
    pub acknowledged_by: Option<String>,
    /// What they wrote.
    pub note: String,
    /// Who is responsible; empty for nobody.
    pub assignee: String,
    /// The group is hidden until this time.
    pub muted_until_ns: Option<i64>,
}

/// An alert in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRow {
    /// Number.
    pub id: AlertId,
    /// Time of the event.
    pub time_ns: i64,
    /// Severity.
    pub severity: Severity,
    /// Rule.
    pub rule: String,
    /// Host.
    pub host: String,
    /// Program.
    pub program: String,
    /// Group.
    pub group: GroupId,
    /// The whole alert as JSON.
    pub body: String,
}

/// Alerts in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailRows {
    /// The first ones. Their bodies have the beginning of `output` alone.
    pub rows: Vec<AlertRow>,
    /// Number of further ones, as far as they are counted.
    pub left_out: u64,
    /// There are more than were counted.
    pub is_more: bool,
    /// The alert that was stored last, of whatever severity: where to go on.
    pub last: AlertId,
}

/// One alert with everything that is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertDetail {
    /// What a list shows.
    pub row: AlertRow,
    /// Pattern of the object.
    pub object: String,
    /// Time of arrival.
    pub received_ns: i64,
    /// The sender.
    pub agent: AgentId,
    /// Class of the sender's token.
    pub class: String,
    /// Sequence number, if it had one.
    pub sequence: Option<u64>,
    /// Who acknowledged its group.
    pub acknowledged_by: Option<String>,
}

/// Alerts of one severity in one hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourCount {
    /// Hours since 1970.
    pub hour: i64,
    /// Severity.
    pub severity: Severity,
    /// Number of alerts.
    pub count: u64,
}

/// A loss in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossRow {
    /// The loss.
    pub loss: Loss,
    /// Who reported it.
    pub agent: AgentId,
    /// Host of the agent.
    pub host: String,
}

/// The state of a fleet in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Alerts by hour and severity.
    pub alerts: Vec<HourCount>,
    /// Losses by hour and kind: hours since 1970, kind and sum.
    pub losses_by_hour: Vec<(i64, LossKind, u64)>,
    /// The latest losses.
    pub losses: Vec<LossRow>,
    /// Rules with the most alerts.
    pub rules: Vec<(String, u64)>,
    /// Hosts with the most alerts.
    pub hosts: Vec<(String, u64)>,
}

/// Who acknowledges a group, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Who.
    pub actor: String,
    /// A note.
    pub note: String,
    /// False to take an acknowledgement back.
    pub is_set: bool,
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub time_ns: i64,
    /// Who.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub object: String,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Delete alerts of hours that ended before this time, nanoseconds since 1970.
    pub before_ns: Option<i64>,
    /// Delete the oldest hours while the store is larger than this number of bytes.
    pub max_bytes: Option<u64>,
}

/// What a pruning deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of alerts.
    pub alerts: u64,
    /// Number of losses.
    pub losses: u64,
}

/// Sizes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in use, without free pages.
    pub bytes: u64,
    /// Number of alerts.
    pub alerts: u64,
    /// Number of groups.
    pub groups: u64,
    /// Number of agents, direct senders included.
    pub agents: u64,
    /// Version of the schema.
    pub schema: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_role_allows_nothing() {
        for scope in [
            Scope::Agents("web".to_owned()),
            Scope::Viewer,
            Scope::Operator,
            Scope::Admin,
        ] {
            let (class, role) = scope.columns();
            assert_eq!(Scope::of(class, role), Some(scope.clone()));
        }
        assert_eq!(Scope::of("", ""), None);
        assert_eq!(Scope::of("web", "root"), None);
    }
}
