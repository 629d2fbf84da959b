//! Parser of the `policy:` section.

use std::collections::BTreeMap;

use yaml::{Location, Node};

use super::reader::{Fields, Reader};
use super::recorded::{self, RecordedModel};
use super::{allow_profile, proxy, raw, syscalls};
use crate::builtin::{self, Builtin, Class};
use crate::diagnostic::{Code, Diagnostic};
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::policy::{Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
use crate::restriction::Restriction;

const FIELDS: [&str; 7] = [
    "enforcer",
    "mode",
    "acceptPartial",
    "enhanceProtect",
    "modelingOptions",
    "defenseInDepth",
    "networkProxyConfig",
];

const ENHANCE_FIELDS: [&str; 12] = [
    "hardeningRules",
    "attackProtectionRules",
    "vulMitigationRules",
    "appArmorRawRules",
    "bpfRawRules",
    "landlockRawRules",
    "connectRawRules",
    "syscallRawRules",
    "networkProxyRawRules",
    "privileged",
    "auditViolations",
    "allowViolations",
];

/// The boolean switches of a policy.
#[derive(Clone, Copy, Default)]
pub(super) struct Switches {
    pub(super) allow: bool,
    pub(super) audit: bool,
}

impl Switches {
    pub(super) fn verdict(self) -> RuleAction {
        RuleAction::from_switches(self.allow, self.audit)
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node, name: &str) -> Option<Policy> {
    let fields = reader.fields(node, "policy", &FIELDS);
    let enforcers = read_enforcers(reader, &fields);
    let mode = read_mode(reader, &fields)?;
    let mut policy = Policy {
        name: name.to_owned(),
        location: fields.location.clone(),
        mode,
        enforcers: enforcers?,
        privileged: false,
        rules: Vec::new(),
        accepted: Vec::new(),
        modeling_minutes: None,
        profiles: Vec::new(),
    };
    for (node, rule) in reader.words_of(&fields, "acceptPartial") {
        policy
            .accepted
            .push((rule.to_owned(), node.location.clone()));
    }
    check_mode_parts(reader, &fields, mode);
    let config = fields.find("networkProxyConfig");
    let of_proxy = config.map(|node| proxy::read_config(reader, node, Switches::default()));
    match mode {
        Mode::AlwaysAllow => {}
        Mode::RuntimeDefault => policy.rules = base_rules(&fields.location, Switches::default()),
        Mode::EnhanceProtect => {
            let part = reader.required(&fields, "policy", "enhanceProtect")?;
            read_enhance(reader, part, &mut policy);
        }
        Mode::BehaviorModeling => policy.modeling_minutes = read_modeling(reader, &fields),
        Mode::DefenseInDepth => {
            let part = reader.required(&fields, "policy", "defenseInDepth")?;
            read_defense(reader, part, &mut policy);
        }
    }
    policy.rules.extend(of_proxy.into_iter().flatten());
    Some(policy)
}

/// Reports sections that belong to another mode: they would be ignored.
fn check_mode_parts(reader: &mut Reader, fields: &Fields<'_>, mode: Mode) {
    for (key, its_mode) in [
        ("enhanceProtect", Mode::EnhanceProtect),
        ("modelingOptions", Mode::BehaviorModeling),
        ("defenseInDepth", Mode::DefenseInDepth),
    ] {
        if let Some(node) = fields.find(key).filter(|_| mode != its_mode) {
            let message = format!("`{key}` does nothing in the mode {mode}");
            let problem = Diagnostic::new(Code::Contradiction, node.location.clone(), message);
            let help = format!("remove it, or choose `mode: {its_mode}`");
            reader.report(problem.with_help(help));
        }
    }
}

/// The enforcers of what a `NetworkProxy` does with addresses: lists of denied ones need BPF, lists of allowed
/// ones Seccomp and Landlock.
const OF_ADDRESSES: [EnforcerKind; 3] = [
    EnforcerKind::Seccomp,
    EnforcerKind::Landlock,
    EnforcerKind::Bpf,
];

/// Parses concatenated names of enforcers, as vArmor writes them: `AppArmorBPFSeccomp`. `NetworkProxy` stands
/// for the enforcers of addresses.
fn read_enforcers(reader: &mut Reader, fields: &Fields<'_>) -> Option<Enforcers> {
    let node = reader.required(fields, "policy", "enforcer")?;
    let text = reader.text(node, "enforcer")?;
    const PROXY: &str = "networkproxy";
    let known = text.to_lowercase();
    let others = known.replace(PROXY, "");
    let enforcers = match (Enforcers::parse(&others), others != known) {
        (None, true) if !others.contains(char::is_alphanumeric) => Some(Enforcers::default()),
        (enforcers, _) => enforcers,
    };
    let enforcers = enforcers.map(|enforcers| match others != known {
        true => OF_ADDRESSES.into_iter().fold(enforcers, Enforcers::with),
        false => enforcers,
    });
    if enforcers.is_none() && !others.trim().is_empty() {
        let names = EnforcerKind::ALL.iter().map(|enforcer| enforcer.name());
        let names: Vec<_> = names.chain(["Auto"]).collect();
        reader.unknown_value(&node.location, "enforcer", text, &names);
    }
    enforcers
}

fn read_mode(reader: &mut Reader, fields: &Fields<'_>) -> Option<Mode> {
    let node = reader.required(fields, "policy", "mode")?;
    let text = reader.text(node, "mode")?;
    let mode = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    if mode.is_none() {
        let names = Mode::ALL.map(Mode::name);
        reader.unknown_value(&node.location, "mode", text, &names);
    }
    mode
}

/// The rules that a runtime applies by default. They deny even if `allowViolations` is set.
fn base_rules(location: &Location, switches: Switches) -> Vec<Rule> {
    let verdict = RuleAction::from_switches(false, switches.audit);
    let rule = |builtin: &'static Builtin| Rule {
        id: builtin.name.clone(),
        origin: RuleOrigin::Base(builtin),
        location: location.clone(),
        verdict,
        restrictions: builtin.restrictions.clone(),
        targets: Vec::new(),
        left_to: BTreeMap::new(),
    };
    builtin::base().iter().map(rule).collect()
}

fn read_enhance(reader: &mut Reader, node: &Node, policy: &mut Policy) {
    let fields = reader.fields(node, "enhanceProtect", &ENHANCE_FIELDS);
    let switches = Switches {
        allow: reader.switch(&fields, "allowViolations"),
        audit: reader.switch(&fields, "auditViolations"),
    };
    policy.privileged = reader.switch(&fields, "privileged");
    if !policy.privileged {
        policy.rules = base_rules(&fields.location, switches);
    }
    let rules = &mut policy.rules;
    for class in [Class::Hardening, Class::Vulnerability] {
        for (node, name) in reader.words_of(&fields, class.key()) {
            rules.extend(read_builtin(reader, node, name, class, switches));
        }
    }
    for item in reader.items_of(&fields, Class::Attack.key()) {
        rules.extend(read_attack(reader, item, switches));
    }
    read_apparmor(reader, &fields, switches, rules);
    if let Some(node) = fields.find("bpfRawRules") {
        raw::read(reader, node, switches, rules);
    }
    if let Some(node) = fields.find("landlockRawRules") {
        rules.extend(raw::read_only_files(reader, node, switches));
    }
    if let Some(node) = fields.find("connectRawRules") {
        rules.extend(raw::read_only_peers(reader, node, switches));
    }
    rules.extend(syscalls::read(
        reader,
        &fields,
        switches,
        syscalls::Default::Allowed,
    ));
    if let Some(node) = fields.find("networkProxyRawRules") {
        rules.extend(proxy::read(reader, node, "networkProxyRawRules", switches));
    }
    refuse_twice(reader, rules);
}

/// Reports duplicate rules: a duplicate is a mistake, and its violations could not be told apart.
fn refuse_twice(reader: &mut Reader, rules: &mut Vec<Rule>) {
    let mut kept: Vec<Rule> = Vec::with_capacity(rules.len());
    for rule in rules.drain(..) {
        match kept
            .iter()
            .find(|other| other.id == rule.id && other.targets == rule.targets)
        {
            Some(first) => {
                let message = format!(
                    "the rule `{}` is named twice, first in line {}",
                    rule.id, first.location.line
                );
                reader.problem(Code::Contradiction, &rule.location, message);
            }
            None => kept.push(rule),
        }
    }
    *rules = kept;
}

fn read_builtin(
    reader: &mut Reader,
    node: &Node,
    name: &str,
    class: Class,
    switches: Switches,
) -> Option<Rule> {
    let Some(builtin) = builtin::find(name) else {
        let message = format!("no such rule: `{name}`");
        let help = match builtin::suggest(name) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`tollgate policy list` shows all rules".to_owned(),
        };
        let problem = Diagnostic::new(Code::UnknownRule, node.location.clone(), message);
        reader.report(problem.with_help(help));
        return None;
    };
    if builtin.class != class {
        let message = format!("`{name}` is not one of `{}`", class.key());
        let problem = Diagnostic::new(Code::Contradiction, node.location.clone(), message);
        reader.report(problem.with_help(format!("move it to `{}`", builtin.class.key())));
    }
    Some(Rule {
        id: builtin.name.clone(),
        origin: RuleOrigin::Builtin(builtin),
        location: node.location.clone(),
        verdict: switches.verdict(),
        restrictions: builtin.restrictions.clone(),
        targets: Vec::new(),
        left_to: BTreeMap::new(),
    })
}

/// Parses rules together with the programs to which they apply.
fn read_attack(reader: &mut Reader, node: &Node, switches: Switches) -> Vec<Rule> {
    let fields = reader.fields(node, Class::Attack.key(), &["rules", "targets"]);
    let targets = read_targets(reader, &fields);
    let named = reader.words_of(&fields, "rules");
    if named.is_empty() {
        let message = "an entry of `attackProtectionRules` without rules does nothing";
        reader.problem(Code::Contradiction, &fields.location, message);
    }
    let rules = named
        .into_iter()
        .filter_map(|(node, name)| read_builtin(reader, node, name, Class::Attack, switches));
    rules
        .map(|rule| Rule {
            targets: targets.clone(),
            ..rule
        })
        .collect()
}

fn read_targets(reader: &mut Reader, fields: &Fields<'_>) -> Vec<String> {
    let mut targets = Vec::new();
    for (node, path) in reader.words_of(fields, "targets") {
        let literal = crate::pattern::Pattern::parse(path)
            .is_ok_and(|pattern| pattern.literal() == Some(path));
        if literal {
            targets.push(path.to_owned());
        } else {
            let message = format!("a target has to be the full path of a program, found `{path}`");
            reader.problem(Code::UnknownValue, &node.location, message);
        }
    }
    targets
}

fn read_apparmor(
    reader: &mut Reader,
    fields: &Fields<'_>,
    switches: Switches,
    rules: &mut Vec<Rule>,
) {
    for (index, item) in reader
        .items_of(fields, "appArmorRawRules")
        .iter()
        .enumerate()
    {
        // Early releases of the same version had a list of strings here.
        let (text, targets) = match item.scalar() {
            Some(text) => (Some((item, text.text())), Vec::new()),
            None => {
                let fields = reader.fields(item, "appArmorRawRules", &["rules", "targets"]);
                let node = reader.required(&fields, "appArmorRawRules", "rules");
                let text = node.and_then(|node| Some((node, reader.text(node, "rules")?)));
                (text, read_targets(reader, &fields))
            }
        };
        let Some((node, text)) = text else { continue };
        if let Err(problem) = check_apparmor(text) {
            reader.problem(Code::UnknownValue, &node.location, problem);
            continue;
        }
        rules.push(Rule {
            id: format!("appArmorRawRules[{index}]"),
            origin: RuleOrigin::Raw,
            location: node.location.clone(),
            verdict: switches.verdict(),
            restrictions: vec![Restriction::AppArmorText(text.to_owned())],
            targets,
            left_to: BTreeMap::new(),
        });
    }
}

/// Checks that a text can stand inside an AppArmor profile without ending it.
fn check_apparmor(text: &str) -> Result<(), &'static str> {
    let mut depth = 0_usize;
    let mut last = None;
    for line in text.lines() {
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                '#' if !quoted => break,
                '{' if !quoted => depth += 1,
                '}' if !quoted => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or("`}` would end the profile that the rules are put in")?;
                }
                _ => {}
            }
            if !c.is_whitespace() {
                last = Some(c);
            }
        }
        if quoted {
            return Err("a quote is not closed");
        }
    }
    match last {
        None => Err("there is no rule"),
        Some(_) if depth > 0 => Err("a `{` is not closed"),
        Some(',') => Ok(()),
        Some(_) => Err("each rule has to end with a comma"),
    }
}

fn read_modeling(reader: &mut Reader, fields: &Fields<'_>) -> Option<u64> {
    let node = reader.required(fields, "policy", "modelingOptions")?;
    let options = reader.fields(node, "modelingOptions", &["duration"]);
    let node = reader.required(&options, "modelingOptions", "duration")?;
    // The maximum is one year.
    let minutes = reader.number(node, "duration", 525_600)?;
    if minutes == 0 {
        let message = "`duration` has to be at least one minute";
        reader.problem(Code::UnknownValue, &node.location, message);
    }
    (minutes > 0).then_some(minutes)
}

fn read_defense(reader: &mut Reader, node: &Node, policy: &mut Policy) {
    let known = ["appArmor", "seccomp", "networkProxy", "allowViolations"];
    let fields = reader.fields(node, "defenseInDepth", &known);
    let switches = Switches {
        allow: reader.switch(&fields, "allowViolations"),
        audit: true,
    };
    let proxy = fields.find("networkProxy");
    // A proxy stands for the enforcers of addresses, which need no part of their own then.
    let is_of_proxy = |kind: EnforcerKind| proxy.is_some() && OF_ADDRESSES.contains(&kind);
    if let Some(node) = proxy {
        let rules = proxy::read(reader, node, "networkProxy", switches);
        policy.rules.extend(rules);
    }
    let parts = [
        ("appArmor", EnforcerKind::AppArmor, "appArmorRawRules"),
        ("seccomp", EnforcerKind::Seccomp, "syscallRawRules"),
    ];
    for (key, enforcer, raw_key) in parts {
        let part = fields.find(key);
        let has_enforcer = policy.enforcers.contains(enforcer);
        let is_alone = part.is_none() && has_enforcer && !is_of_proxy(enforcer);
        if is_alone || part.is_some() && !has_enforcer {
            let message = format!("`{key}` and `enforcer: {enforcer}` have to come together");
            reader.problem(Code::Contradiction, &fields.location, message);
        }
        let Some(part) = part else { continue };
        let part = reader.fields(part, key, &["profileType", "customProfile", raw_key]);
        let model = recorded::of_policy(&reader.models, &policy.name).cloned();
        let profile = read_profile(reader, &part, key, enforcer, model.as_ref());
        match enforcer {
            EnforcerKind::AppArmor => read_apparmor(reader, &part, switches, &mut policy.rules),
            _ => {
                let (profile, model) = (profile.as_ref(), model.as_ref());
                let rules = allow_profile::read(reader, &part, profile, model, switches);
                policy.rules.extend(rules);
            }
        }
        policy.profiles.extend(profile);
    }
    let has_part = |kind: &EnforcerKind| parts.iter().any(|(_, of_part, _)| of_part == kind);
    let lacks_part = |kind: &EnforcerKind| !has_part(kind) && !is_of_proxy(*kind);
    for enforcer in policy.enforcers.iter().filter(lacks_part) {
        let message =
            format!("`defenseInDepth` has no part for {enforcer}, which would do nothing");
        reader.problem(Code::Contradiction, &fields.location, message);
    }
}

/// Returns true if raw rules can be inserted before the last bracket.
fn is_profile(text: &str) -> bool {
    text.trim_end().ends_with('}') && text.contains('{')
}

fn read_profile(
    reader: &mut Reader,
    part: &Fields<'_>,
    key: &str,
    enforcer: EnforcerKind,
    model: Option<&RecordedModel>,
) -> Option<Profile> {
    let node = reader.required(part, key, "profileType")?;
    let kind = reader.text(node, "profileType")?;
    let text = match kind {
        "BehaviorModel" => model.and_then(|model| match enforcer {
            EnforcerKind::AppArmor => model.apparmor.clone(),
            _ => {
                let text = model.seccomp.as_ref()?.scalar()?.text();
                Some(text.to_owned())
            }
        }),
        "Custom" => {
            let node = reader.required(part, key, "customProfile")?;
            let text = reader.text(node, "customProfile")?;
            if enforcer == EnforcerKind::AppArmor && !is_profile(text) {
                let message = "a profile has to begin with a name and `{`, and to end with `}`";
                reader.problem(Code::UnknownValue, &node.location, message);
            }
            Some(text.to_owned())
        }
        other => {
            reader.unknown_value(
                &node.location,
                "profileType",
                other,
                &["BehaviorModel", "Custom"],
            );
            return None;
        }
    };
    let has_calls = || model.is_some_and(|model| !model.calls.is_empty());
    Some(Profile {
        enforcer,
        is_recorded: kind == "BehaviorModel",
        is_known: text.is_some() || enforcer == EnforcerKind::Seccomp && has_calls(),
        text,
        location: node.location.clone(),
    })
}
