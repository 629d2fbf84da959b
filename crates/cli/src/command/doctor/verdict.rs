//! The verdict of `tollgate doctor`: what can be done on this machine, and which fixes add to it.

use policy::EnforcerKind;
use probe::{Finding, Support};
use serde_json::{Value, json};

/// What a probe is about. The order is that of the fixes: what more users need comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    WatchCommand,
    WatchHost,
    Confine,
    Containers,
    Better,
}

impl Purpose {
    fn of(finding: &Finding) -> Self {
        match finding.name {
            _ if finding.notify_needs_it => Self::WatchCommand,
            "ebpf" => Self::WatchHost,
            name if name.starts_with("enforce-") => Self::Confine,
            "landlock" | "user-namespace" => Self::Confine,
            "cgroup" | "container-identity" | "oci-runtime" | "containerd" | "machines"
            | "kata" => Self::Containers,
            _ => Self::Better,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::WatchCommand => "watch a command",
            Self::WatchHost => "watch the host",
            Self::Confine => "confine",
            Self::Containers => "containers",
            Self::Better => "miss nothing, and run faster",
        }
    }
}

/// What works on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    notify: bool,
    ptrace: bool,
    host: bool,
    enforcers: usize,
    containers: bool,
    is_root: bool,
}

impl Verdict {
    pub(super) fn new(findings: &[Finding], is_root: bool) -> Self {
        let works = |name: &str| {
            let named = |finding: &&Finding| finding.name == name;
            findings
                .iter()
                .find(named)
                .is_some_and(|finding| finding.support.is_usable())
        };
        let mut needed = findings.iter().filter(|finding| finding.notify_needs_it);
        let notify = needed.all(|finding| finding.support.is_usable());
        let ptrace = probe::ptrace_works(findings);
        let host = works("ebpf");
        let usable = findings
            .iter()
            .filter(|finding| finding.support.is_usable());
        Self {
            notify,
            ptrace,
            host,
            enforcers: usable
                .filter(|finding| finding.name.starts_with("enforce-"))
                .count(),
            // Running ones by `watch --container`, new ones by `runtime`.
            containers: works("cgroup") && (host || (notify && works("oci-runtime"))),
            is_root,
        }
    }

    /// The verdict in one line of words.
    pub(super) fn text(&self) -> String {
        let yes = |works: bool| if works { "yes" } else { "no" };
        let command = match (self.notify, self.ptrace) {
            (true, _) => "yes",
            (false, true) => "yes, slower (--engine ptrace)",
            (false, false) => "no",
        };
        let host = match (self.host, self.is_root) {
            (false, false) => "not without root",
            (works, _) => yes(works),
        };
        format!(
            "watch a command: {command}; watch the host: {host}; confine: {} of {} mechanisms; containers: {}",
            self.enforcers,
            EnforcerKind::ALL.len(),
            yes(self.containers)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "text": self.text(),
            "watch_command": self.notify || self.ptrace,
            "watch_host": self.host,
            "confine": {"working": self.enforcers, "all": EnforcerKind::ALL.len()},
            "containers": self.containers,
        })
    }
}

/// A fix, and the probes that it helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fix<'a> {
    purpose: Purpose,
    text: &'a str,
    probes: Vec<&'static str>,
}

impl<'a> Fix<'a> {
    /// Returns each fix once, in the order in which they help: what does not work before what works in part.
    pub(super) fn of(findings: &'a [Finding]) -> Vec<Self> {
        let mut wanted: Vec<_> = findings
            .iter()
            .filter_map(|f| Some((f, remedy(f)?)))
            .collect();
        wanted.sort_by_key(|(finding, _)| (Purpose::of(finding), finding.support.is_usable()));
        let mut fixes: Vec<Self> = Vec::new();
        for (finding, text) in wanted {
            match fixes.iter_mut().find(|fix| fix.text == text) {
                Some(fix) => fix.probes.push(finding.name),
                None => fixes.push(Self {
                    purpose: Purpose::of(finding),
                    text,
                    probes: vec![finding.name],
                }),
            }
        }
        fixes
    }

    /// The fix in one line, with what it is for.
    pub(super) fn line(&self) -> String {
        let (text, purpose) = (self.text, self.purpose.words());
        format!("{text}    # {purpose}: {}", self.probes.join(", "))
    }

    pub(super) fn json(&self) -> Value {
        json!({"fix": self.text, "purpose": self.purpose.words(), "probes": self.probes})
    }
}

fn remedy(finding: &Finding) -> Option<&str> {
    match &finding.support {
        Support::Yes { .. } => None,
        Support::Partial { fix, .. } | Support::No { fix, .. } => fix.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &'static str, support: Support) -> Finding {
        Finding {
            name,
            purpose: "p",
            notify_needs_it: name.starts_with("notify"),
            support,
        }
    }

    #[test]
    fn the_verdict_says_what_can_be_done() {
        let mut findings = vec![
            finding("notify-listener", Support::yes("")),
            finding("ptrace-engine", Support::yes("")),
            finding("ebpf", Support::no("", "")),
            finding("cgroup", Support::yes("")),
            finding("oci-runtime", Support::yes("")),
            finding("enforce-seccomp", Support::yes("")),
            finding("enforce-bpf", Support::no("", "")),
        ];
        assert_eq!(
            Verdict::new(&findings, true).text(),
            "watch a command: yes; watch the host: no; confine: 1 of 5 mechanisms; containers: yes"
        );
        findings[0].support = Support::no("", "");
        let verdict = Verdict::new(&findings, false);
        assert_eq!(
            verdict.text(),
            "watch a command: yes, slower (--engine ptrace); watch the host: not without root; \
             confine: 1 of 5 mechanisms; containers: no"
        );
        assert_eq!(verdict.json()["confine"], json!({"working": 1, "all": 5}));
    }

    #[test]
    fn fixes_come_once_in_the_order_in_which_they_help() {
        let findings = [
            finding("oci-runtime", Support::no("", "install")),
            finding(
                "kernel",
                Support::partial_unless_fixed("", Some("boot".into())),
            ),
            finding("enforce-bpf", Support::no("", "mount")),
            finding("enforce-apparmor", Support::no_unless_fixed("", None)),
            finding("notify-continue", Support::no("", "boot")),
        ];
        let lines: Vec<_> = Fix::of(&findings).iter().map(Fix::line).collect();
        assert_eq!(
            lines,
            [
                "boot    # watch a command: notify-continue, kernel",
                "mount    # confine: enforce-bpf",
                "install    # containers: oci-runtime",
            ]
        );
    }
}
