//! What a rule compiles to for one enforcer, and the grade of that.

use std::fmt;

use crate::enforcer::EnforcerKind;
use crate::pattern::Pattern;
use crate::policy::{Rule, RuleAction};
use crate::restriction::Restriction;

/// How completely an enforcer enforces a rule. Better grades compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// The enforcer does not enforce the rule.
    None,
    /// The enforcer enforces the rule with known gaps.
    Partial,
    /// The enforcer enforces the rule without known gaps.
    Full,
}

impl Grade {
    /// The grade as one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result of compiling a rule or restriction for an enforcer.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledPart<T> {
    /// The compiled entries.
    pub entries: Vec<T>,
    /// Known bypasses.
    pub gaps: Vec<String>,
    /// Parts that the enforcer cannot deny at all.
    pub missing: Vec<String>,
    /// Legitimate behaviour that the entries break.
    pub breaks: Vec<String>,
}

impl<T> Default for CompiledPart<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            gaps: Vec::new(),
            missing: Vec::new(),
            breaks: Vec::new(),
        }
    }
}

impl<T> CompiledPart<T> {
    pub(super) fn one(entry: T) -> Self {
        Self::many([entry])
    }

    pub(super) fn many(entries: impl IntoIterator<Item = T>) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            ..Self::default()
        }
    }

    pub(super) fn missing(reason: impl Into<String>) -> Self {
        Self {
            missing: vec![reason.into()],
            ..Self::default()
        }
    }

    pub(super) fn gap(mut self, text: impl Into<String>) -> Self {
        self.gaps.push(text.into());
        self
    }

    pub(super) fn breaks(mut self, text: impl Into<String>) -> Self {
        self.breaks.push(text.into());
        self
    }

    /// Adds what an enforcer of paths does to the folders above a file, and which of them it cannot keep.
    pub(super) fn with_folders_of(self, path: &Pattern, denies: bool) -> Self {
        let kept = match has_renamable_folder(path) {
            true => self.gap(FOLDER_RENAMED),
            false => self,
        };
        match denies && !path.folders_above().is_empty() {
            true => kept.breaks(ABOVE_BREAKS),
            false => kept,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        let extend = |own: &mut Vec<String>, more: Vec<String>| {
            for text in more {
                if !own.contains(&text) {
                    own.push(text);
                }
            }
        };
        self.entries.extend(other.entries);
        extend(&mut self.gaps, other.gaps);
        extend(&mut self.missing, other.missing);
        extend(&mut self.breaks, other.breaks);
    }

    fn grade(&self) -> Grade {
        match (
            self.entries.is_empty(),
            self.gaps.len() + self.missing.len(),
        ) {
            (_, 0) => Grade::Full,
            (false, _) => Grade::Partial,
            (true, _) => Grade::None,
        }
    }

    /// Grades the result. `names` lists further names of the files, which bypass the entries.
    pub(super) fn assess(mut self, names: Vec<String>, text: impl Fn(&T) -> String) -> Assessment {
        if !self.entries.is_empty() {
            self.gaps.extend(names);
        }
        Assessment {
            grade: self.grade(),
            notes: self.missing.into_iter().chain(self.gaps).collect(),
            breaks: self.breaks,
            output: self.entries.iter().map(text).collect(),
        }
    }
}

/// Assessment of one enforcer for one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Assessment {
    /// The grade.
    pub grade: Grade,
    /// Uncovered parts and known bypasses.
    pub notes: Vec<String>,
    /// Legitimate behaviour that the rule breaks.
    pub breaks: Vec<String>,
    /// The compiled entries, one per line.
    pub output: Vec<String>,
}

/// Lowers a rule restriction by restriction, and adds the notes that hold for every enforcer.
pub(super) fn lower_rule<T>(
    rule: &Rule,
    enforcer: EnforcerKind,
    each: impl Fn(&Restriction) -> CompiledPart<T>,
) -> CompiledPart<T> {
    let mut sum = CompiledPart::default();
    if rule.verdict == RuleAction::Allow {
        return sum;
    }
    if !rule.targets.is_empty() && enforcer != EnforcerKind::AppArmor {
        return CompiledPart::missing("rules for single programs are for AppArmor alone");
    }
    if let Some(narrower) = rule.left_to.get(&enforcer) {
        return CompiledPart::missing(format!(
            "left to {narrower}, which enforces the rule in full and stops less besides"
        ));
    }
    for restriction in &rule.restrictions {
        sum.add(each(restriction));
    }
    if let Some(builtin) = rule.builtin().filter(|_| !sum.entries.is_empty()) {
        let weak = builtin.weak.get(&enforcer).into_iter().flatten().cloned();
        let notes = CompiledPart {
            gaps: weak.collect(),
            breaks: builtin.breaks.clone(),
            ..CompiledPart::default()
        };
        sum.add(notes);
    }
    sum
}

/// Says which enforcers support a list of what is allowed, for those that do not.
pub(super) fn supporters(list: &Restriction) -> &'static str {
    match list {
        Restriction::OnlyPeers(_) => "only Seccomp and Landlock support a list of allowed peers",
        _ => "only Landlock supports a list of allowed files",
    }
}

/// What a rule on files also stops where an enforcer matches paths: another name above would free the file.
pub(super) const ABOVE_BREAKS: &str = "renaming and removing the directories above";

/// Gap of rules by path where nothing keeps the names of some folders.
pub(super) const FOLDER_RENAMED: &str =
    "a directory that the pattern names can be renamed, and what is in it has another path then";

/// Places whose folders nobody can rename, or, in cgroup v1, only within the folder that they are in.
const WITHOUT_RENAMING: [&str; 2] = ["/proc/", "/sys/fs/cgroup/"];

/// Returns true if a folder that the pattern cannot name can be renamed.
fn has_renamable_folder(path: &Pattern) -> bool {
    let prefix = path.fixed_prefix();
    let is_kept = WITHOUT_RENAMING
        .iter()
        .any(|place| prefix.starts_with(place));
    path.has_wildcard_folder() && !is_kept
}

/// The reason why no enforcer supports [`Restriction::InsideConnections`].
pub(super) const NEEDS_PROXY: &str =
    "what a connection carries is seen only by a proxy, which tollgate does not run";

/// The note on a rule with patterns, for enforcers that match by path: links of matching files were not
/// searched. File systems that the kernel generates have no such links.
pub(super) fn possible_links(rule: &Rule) -> Option<String> {
    let may_be_linked = |restriction: &Restriction| match restriction {
        Restriction::File { path, .. } => {
            let prefix = path.fixed_prefix();
            let is_made_up = prefix.starts_with("/proc/") || prefix.starts_with("/sys/");
            path.literal().or_else(|| path.subtree()).is_none() && !is_made_up
        }
        _ => false,
    };
    let text = "a hard link of such a file that exists already has another name";
    let is_about_some = rule.restrictions.iter().any(may_be_linked);
    is_about_some.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::policy;
    use super::super::{MachineFeatures, bpf};
    use super::*;

    #[test]
    fn bpf_says_that_folders_which_it_cannot_name_can_be_renamed() {
        let of = |pattern: &str| {
            let rules = format!(
                "    bpfRawRules:\n      files:\n      - {{pattern: '{pattern}', permissions: [read]}}\n"
            );
            let policy = policy("BPF", &rules);
            let [rule] = &policy.rules[..] else {
                panic!("{policy:?}")
            };
            let lowered = bpf::lower(rule, &MachineFeatures::default());
            let is_said = lowered.gaps.iter().any(|gap| gap == FOLDER_RENAMED);
            (lowered.grade(), is_said)
        };
        for pattern in [
            "/home/*/.ssh/id_rsa",
            "/srv/**/key",
            "/home/*/*",
            "/sys/**/x",
        ] {
            assert_eq!(of(pattern), (Grade::Partial, true), "{pattern}");
        }
        for pattern in [
            "/etc/shadow",
            "/**/.ssh/id_rsa",
            "/**/.ssh/**",
            "/home/*/**",
            "/home/u*/.ssh/id_rsa",
            "/proc/**/net/arp",
            "/sys/fs/cgroup/**/release_agent",
        ] {
            assert_eq!(of(pattern), (Grade::Full, false), "{pattern}");
        }
    }
}
