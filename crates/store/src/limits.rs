//! Limits of answers, the same for each database, and what the audit log says.

use crate::account::Triage;
use crate::bundles::{Assignment, BundleReport};
use crate::certificate::CertificateName;
use crate::model::{Acknowledgement, Filter, GroupId, Scope};

/// Rows of a page if the filter names no number, and at most.
const PAGE: u32 = 50;
const MAX_PAGE: u32 = 1000;

/// Alerts that a search by words looks at, the latest ones. A common word occurs in all of them.
pub(crate) const SEARCHED: u32 = 5000;

/// Rules and hosts in an overview, and the latest losses.
pub(crate) const TOP: u32 = 10;

/// Rows of a tail at most.
pub(crate) const MAX_TAIL: u32 = 1000;

/// Characters of an alert's output that a row of a tail has: a body may have 256 KiB.
pub(crate) const OUTPUT: u32 = 500;

/// Alerts that a tail counts as left out at most.
pub(crate) const COUNTED: u32 = 10_000;

/// Comments of a group that are kept: a script must not fill the store.
pub(crate) const COMMENTS: i64 = 500;

/// Time in which the audit log has no second row of the same kind about what an agent says about itself.
pub(crate) const REPORT_NS: i64 = 60_000_000_000;

/// What the audit log calls a change of an agent's labels.
pub(crate) const CHANGE_LABELS: &str = "change labels";

/// Latest rows of the audit log that are looked through for the first one.
pub(crate) const LATEST: i64 = 1000;

/// Returns the number of rows that a filter asks for.
pub(crate) fn rows(filter: &Filter) -> u32 {
    match filter.limit {
        0 => PAGE,
        limit => limit.min(MAX_PAGE),
    }
}

/// The index along which alerts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    Time,
    Group,
    Host,
}

/// Chooses the index along which the fewest alerts are read, from the number of all alerts and of those of the groups and
/// of the host that the filter accepts, if it names them.
pub(crate) fn index(
    filter: &Filter,
    total: i64,
    (by_group, by_host): (Option<i64>, Option<i64>),
) -> Index {
    /// Reading an alert along its group or host is dearer: they are sorted after that, or lie apart.
    const DEARER: i64 = 4;
    // Along the times about one of `rarity` alerts is accepted, if groups and hosts have nothing to do with each other.
    let rarity = |count: Option<i64>| count.map_or(1, |count| total / count.clamp(1, total.max(1)));
    let rarity = rarity(by_group).saturating_mul(rarity(by_host));
    let by_time = rarity.saturating_mul(i64::from(rows(filter))).min(total);
    let count = |count: Option<i64>| count.unwrap_or(i64::MAX);
    let (by_group, by_host) = (count(by_group), count(by_host));
    match by_group.min(by_host).saturating_mul(DEARER) > by_time {
        true => Index::Time,
        false if by_host < by_group => Index::Host,
        false => Index::Group,
    }
}

/// Returns the words of a search, and whether an asterisk asks for all words that begin so.
pub(crate) fn searched(text: &str) -> impl Iterator<Item = (&str, bool)> {
    text.split(|c: char| !c.is_alphanumeric() && c != '*')
        .flat_map(|part| {
            let mut words: Vec<_> = part.split_inclusive('*').collect();
            words.retain(|word| *word != "*");
            words
        })
        .map(|word| match word.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (word, false),
        })
        .filter(|(word, _)| !word.is_empty())
}

/// Returns what the audit log calls a scope.
pub(crate) fn scope_text(scope: &Scope) -> String {
    match scope.columns() {
        (class, "") => format!("agents of class {class}"),
        (_, role) => role.to_owned(),
    }
}

/// Returns what the audit log calls an agent that a certificate names.
pub(crate) fn certificate_text(name: &CertificateName) -> String {
    format!("certificate {name}")
}

/// Returns what the audit log calls the token of a certificate.
pub(crate) fn certificate_token_text(id: i64, name: &CertificateName) -> String {
    let scope = scope_text(&Scope::Agents(name.class.clone()));
    format!("token {id} ({scope})")
}

/// Returns action and object of an acknowledgement for the audit log.
pub(crate) fn acknowledgement(group: GroupId, how: &Acknowledgement) -> (&'static str, String) {
    let action = match how.is_set {
        true => "acknowledge",
        false => "take acknowledgement back",
    };
    (action, format!("group {}: {}", group.0, how.note))
}

/// Returns action and object of a change of a group for the audit log.
pub(crate) fn triage(group: GroupId, change: &Triage) -> (&'static str, String) {
    let object = |what: &str| format!("group {}: {what}", group.0);
    match change {
        Triage::Assign(to) if to.is_empty() => ("assign", object("nobody")),
        Triage::Assign(to) => ("assign", object(to)),
        Triage::Mute(Some(until)) => ("mute", object(&format!("until {until} ns"))),
        Triage::Mute(None) => ("unmute", object("")),
        Triage::Comment(text) => ("comment", object(text)),
    }
}

/// Returns what the audit log calls a bundle.
pub(crate) fn bundle_text(id: i64, version: u64, digest: &str) -> String {
    format!("bundle {id}, version {version}, sha256:{digest}")
}

/// Returns object of an assignment for the audit log.
pub(crate) fn assignment(assignment: &Assignment, bundle: &str) -> String {
    let (target, percent, gate) = (&assignment.target, assignment.percent, &assignment.gate);
    let priority = match assignment.priority {
        0 => String::new(),
        priority => format!(", priority {priority}"),
    };
    let limit = |name: &str, limit: Option<u64>| {
        limit.map_or(String::new(), |limit| format!(", at most {limit} {name}"))
    };
    format!(
        "{bundle} to {percent} % of {target}{priority}{}{}{}",
        limit("failures", gate.failures),
        limit("losses of an agent", gate.losses),
        limit("alerts of an agent in a minute", gate.alerts)
    )
}

/// Returns action and object of what an agent says about its bundle for the audit log.
pub(crate) fn bundle_report(report: &BundleReport) -> (&'static str, String) {
    match &report.refused {
        None => ("take bundle", format!("sha256:{}", report.digest)),
        Some(why) => ("refuse bundle", format!("sha256:{}: {why}", report.digest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_read_along_the_index_with_the_fewest() {
        let of = |total, by_group, by_host| index(&Filter::default(), total, (by_group, by_host));
        assert_eq!(of(0, None, None), Index::Time);
        assert_eq!(of(1_000_000, None, None), Index::Time);
        // Common: the first page has it soon. Rare: a page would go through all alerts.
        assert_eq!(of(1_000_000, Some(20_000), None), Index::Time);
        assert_eq!(of(1_000_000, Some(100), None), Index::Group);
        assert_eq!(of(1_000_000, None, Some(0)), Index::Host);
        // Both are common, and together rare.
        assert_eq!(of(1_000_000, Some(25_000), Some(5000)), Index::Host);
    }

    #[test]
    fn words_are_what_stands_between_other_characters() {
        let words = |text| searched(text).collect::<Vec<_>>();
        assert_eq!(words("/etc/shad*"), [("etc", false), ("shad", true)]);
        assert_eq!(
            words("a**b* *c \"*\" *"),
            [("a", true), ("b", true), ("c", false)]
        );
    }
}
