//! What a machine and a user let rules see.

use std::collections::BTreeMap;
use std::sync::Arc;

use event::EngineKind;
use event::field::FieldSpec;
use rules::{Engine, Level, Rule};

/// What a machine and a user let rules see.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Engines to look at: those that work here, or that were named.
    pub engines: Vec<EngineKind>,
    /// Live engines that do not work here.
    pub missing: Vec<MissingEngine>,
    /// Whether the files of container runtimes are readable.
    pub reads_runtime_files: bool,
    /// What this user cannot see of any rule's events.
    pub limits: Vec<String>,
}

/// An engine that does not work here.
#[derive(Clone, Debug)]
pub struct MissingEngine {
    /// The engine.
    pub kind: EngineKind,
    /// The reason.
    pub why: String,
    /// A remedy, if there is one.
    pub fix: Option<String>,
}

/// Whether a rule can alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It can, with these engines.
    Full(Vec<EngineKind>),
    /// It can, with these engines, but not on all that it is about.
    Part(Vec<EngineKind>, String),
    /// It cannot.
    None(String),
}

impl Sight {
    pub(super) fn is_seen(&self) -> bool {
        !matches!(self, Self::None(_))
    }

    pub(super) fn why_not(&self) -> Option<&str> {
        match self {
            Self::None(why) => Some(why),
            Self::Full(_) | Self::Part(..) => None,
        }
    }

    /// Returns what the rule does not see although it can alert.
    pub(super) fn limit(&self) -> Option<&str> {
        match self {
            Self::Part(_, limit) => Some(limit),
            Self::Full(_) | Self::None(_) => None,
        }
    }

    pub(super) fn engines(&self) -> &[EngineKind] {
        match self {
            Self::Full(engines) | Self::Part(engines, _) => engines,
            Self::None(_) => &[],
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Full(_) => "full",
            Self::Part(..) => "part",
            Self::None(_) => "none",
        }
    }
}

type Reasons = BTreeMap<Arc<str>, String>;

/// Tells which rules can alert.
pub(super) struct SightResolver<'a> {
    /// Highest level of the rules that are on.
    level: Level,
    /// Rules that an engine at hand cannot raise.
    blind: Vec<(EngineKind, Reasons)>,
    /// Rules that an engine at hand cannot raise for containers of other users.
    limited: Vec<(EngineKind, Reasons)>,
    /// The same as `blind`, of engines that do not work here.
    missing: Vec<(&'a MissingEngine, Reasons)>,
}

/// The reason why a user has no metadata of containers.
const METADATA: &str = "only root and the user of a container's runtime may read its metadata";

fn runtime_metadata(field: &FieldSpec) -> Option<&'static str> {
    field.is_runtime_metadata().then_some(METADATA)
}

impl<'a> SightResolver<'a> {
    pub(super) fn new(engine: &Engine, abilities: &'a Abilities, level: Level) -> Self {
        let all = || abilities.engines.iter().copied();
        let blind = all().map(|kind| (kind, engine.blind(kind, &|_| None)));
        // gVisor and captures bring the metadata with their events.
        let is_live = |kind: &EngineKind| {
            matches!(
                kind,
                EngineKind::Notify | EngineKind::Ptrace | EngineKind::Ebpf
            )
        };
        let restricted = all().filter(|kind| is_live(kind) && !abilities.reads_runtime_files);
        let limited = restricted.map(|kind| (kind, engine.blind(kind, &runtime_metadata)));
        let missing = abilities.missing.iter();
        let missing = missing.map(|missing| (missing, engine.blind(missing.kind, &|_| None)));
        Self {
            level,
            blind: blind.collect(),
            limited: limited.collect(),
            missing: missing.collect(),
        }
    }

    pub(super) fn sight(&self, rule: &Rule) -> Sight {
        if rule.level() > self.level && !rule.is_enabled_by_name {
            return Sight::None(format!("level {} is off", rule.level()));
        }
        if !rule.enabled {
            return Sight::None("disabled".to_owned());
        }
        if rule.is_silent() {
            return Sight::None("it only adds to a risk, and raises no alert".to_owned());
        }
        if rule.source != "syscall" {
            return Sight::None(format!("no engine has events of source {}", rule.source));
        }
        let seeing = self
            .blind
            .iter()
            .filter(|(_, blind)| !blind.contains_key(&rule.name));
        let engines: Vec<_> = seeing.map(|(kind, _)| *kind).collect();
        if engines.is_empty() {
            return Sight::None(self.why_not(rule));
        }
        let limits: Vec<_> = engines
            .iter()
            .map_while(|kind| {
                let (_, limited) = self.limited.iter().find(|(limited, _)| limited == kind)?;
                limited.get(&rule.name)
            })
            .collect();
        match limits.first() {
            Some(limit) if limits.len() == engines.len() => Sight::Part(engines, (*limit).clone()),
            _ => Sight::Full(engines),
        }
    }

    /// Returns why no engine at hand can raise the rule, and which other one would.
    fn why_not(&self, rule: &Rule) -> String {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (kind, blind) in &self.blind {
            if let Some(why) = blind.get(&rule.name) {
                by_reason.entry(why).or_default().push(kind.name());
            }
        }
        let reasons = by_reason.iter();
        let reasons: Vec<_> = reasons
            .map(|(why, kinds)| format!("{}: {why}", kinds.join(", ")))
            .collect();
        let other = self
            .missing
            .iter()
            .find(|(_, blind)| !blind.contains_key(&rule.name));
        let other = other.map(|(missing, _)| {
            format!(
                "; {} would see it, but does not work here",
                missing.kind.name()
            )
        });
        reasons.join("; ") + &other.unwrap_or_default()
    }
}
