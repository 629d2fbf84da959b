//! `tollgate policy explain`: shows what each rule compiles to, and what it leaves open.

use std::fmt::Write as _;

use agent::policy_files::{self, for_policy, machine};
use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use policy::compile::{Grade, MachineFeatures, NarrowedPolicy};
use policy::{EnforcerKind, Policy, Rule, RuleOrigin};
use serde_json::{Map, Value, json};

use super::args::Explain;
use super::check::is_partial;
use super::list::{json_assessment, push_assessment};
use super::load;
use crate::help::{terminal_columns, wrapped};

/// Runs the verb.
pub(crate) fn execute(args: &Explain) -> Outcome {
    let machine = machine();
    let loaded = load(&args.file, &args.accept.rules, &machine);
    let exit = policy_files::exit(loaded.diagnostics.iter());
    let is_long = args.long || args.enforcer.is_some();
    terminal::complain(&loaded.render_if(|problem| is_long || !is_partial(problem)));
    if exit == Exit::BadInput {
        return Ok(exit);
    }
    let only = args.enforcer;
    let enforcers = |policy: &Policy| -> Vec<EnforcerKind> {
        match only {
            Some(enforcer) => vec![enforcer],
            None => policy.enforcers.iter().collect(),
        }
    };
    let text = if args.json {
        let policies = loaded.policies.iter();
        let values: Vec<_> = policies
            .map(|policy| {
                let policy = &seen_by(policy, only, &machine);
                json_policy(policy, &enforcers(policy))
            })
            .collect();
        format!("{}\n", json!({ "policies": values }))
    } else {
        let policies = loaded.policies.iter();
        let texts: Vec<_> = policies
            .map(|policy| {
                let policy = &seen_by(policy, only, &machine);
                if !is_long {
                    return summary(policy);
                }
                let mut text = text_policy(policy, &enforcers(policy));
                if let Some(enforcer) = only {
                    text.push_str(&format!("\n{enforcer} profile:\n"));
                    text.push_str(&policy.text(enforcer));
                }
                text
            })
            .collect();
        texts.join("\n")
    };
    terminal::print(&text)?;
    Ok(exit)
}

/// Returns the policy with the rules that each enforcer leaves to a narrower one. An enforcer that the policy does
/// not choose leaves none: it is shown as if it were alone.
fn seen_by(
    policy: &Policy,
    only: Option<EnforcerKind>,
    machine: &MachineFeatures,
) -> NarrowedPolicy {
    match only {
        Some(enforcer) if !policy.enforcers.contains(enforcer) => {
            let with = Policy {
                enforcers: policy.enforcers.with(enforcer),
                ..policy.clone()
            };
            NarrowedPolicy::wide(policy, &for_policy(machine, &with))
        }
        _ => NarrowedPolicy::new(policy, &for_policy(machine, policy)),
    }
}

/// Returns the origin of a rule, in a word.
fn origin(rule: &Rule) -> &'static str {
    match rule.origin {
        RuleOrigin::Builtin(_) => "built in",
        RuleOrigin::Base(_) => "runtime default",
        RuleOrigin::Raw => "raw",
    }
}

/// Formats a policy with one line a rule: the best grade, what happens to a violation, and the grade of each
/// enforcer that has a part in it.
fn summary(policy: &NarrowedPolicy) -> String {
    let mut out = headline(policy);
    let columns = terminal_columns();
    let widest = policy
        .rules
        .iter()
        .map(|rule| rule.id.len())
        .max()
        .unwrap_or(0);
    for rule in &policy.rules {
        let grades = policy
            .enforcers
            .iter()
            .map(|enforcer| (enforcer, policy.assess(rule, enforcer).grade));
        let grades: Vec<_> = grades.filter(|(_, grade)| *grade != Grade::None).collect();
        let best = grades
            .iter()
            .map(|(_, grade)| *grade)
            .max()
            .unwrap_or(Grade::None);
        let by: Vec<_> = grades
            .iter()
            .map(|(kind, grade)| format!("{kind} {grade}"))
            .collect();
        let by = match by.is_empty() {
            true => "no enforcer".to_owned(),
            false => by.join(", "),
        };
        let (id, verdict) = (&rule.id, rule.verdict.name());
        // After two spaces, the rule, two spaces, the grade and two spaces.
        let by = wrapped(&format!("{verdict}: {by}"), widest + 13, columns);
        let _ = writeln!(out, "  {id:widest$}  {:7}  {by}", best.name());
    }
    out.push_str("--long shows what each rule compiles to, and its gaps\n");
    out
}

/// Formats the first lines: name, mode, enforcers and profiles.
fn headline(policy: &Policy) -> String {
    let mut out = format!(
        "policy {}: {} by {}\n",
        policy.name, policy.mode, policy.enforcers
    );
    if let Some(minutes) = policy.modeling_minutes {
        let _ = writeln!(
            out,
            "  records behaviour for {minutes} minutes and denies nothing"
        );
    }
    for profile in &policy.profiles {
        let what = match (profile.is_recorded, profile.is_known) {
            (false, _) => "custom profile of the policy",
            (true, true) => "profile from behaviour modelling",
            (true, false) => "profile from behaviour modelling, which the file does not have",
        };
        let _ = writeln!(out, "  {}: {what}", profile.enforcer);
    }
    out
}

fn text_policy(policy: &NarrowedPolicy, enforcers: &[EnforcerKind]) -> String {
    let mut out = headline(policy);
    for rule in &policy.rules {
        let _ = writeln!(
            out,
            "\n{} ({}): {}",
            rule.id,
            origin(rule),
            rule.verdict.name()
        );
        // The parts of the base profile are the same in every policy; `--enforcer` shows them within the
        // profile.
        let is_base = matches!(rule.origin, RuleOrigin::Base(_));
        for target in &rule.targets {
            let _ = writeln!(out, "  for: {target}");
        }
        for restriction in rule.restrictions.iter().filter(|_| !is_base) {
            let _ = writeln!(out, "  denies: {restriction}");
        }
        for enforcer in enforcers {
            let mut assessment = policy.assess(rule, *enforcer);
            if is_base {
                assessment.output.clear();
            }
            push_assessment(&mut out, *enforcer, &assessment);
        }
    }
    out
}

fn json_policy(policy: &NarrowedPolicy, enforcers: &[EnforcerKind]) -> Value {
    let rules: Vec<_> = policy
        .rules
        .iter()
        .map(|rule| json_rule(policy, rule, enforcers))
        .collect();
    let mut compiled = Map::new();
    for enforcer in enforcers {
        compiled.insert(enforcer.id().to_owned(), policy.json(*enforcer));
    }
    let chosen: Vec<_> = policy.enforcers.iter().map(EnforcerKind::id).collect();
    json!({
        "name": policy.name,
        "mode": policy.mode.name(),
        "enforcers": chosen,
        "privileged": policy.privileged,
        "rules": rules,
        "profiles": compiled,
    })
}

fn json_rule(policy: &NarrowedPolicy, rule: &Rule, enforcers: &[EnforcerKind]) -> Value {
    let mut assessments = Map::new();
    for enforcer in enforcers {
        let assessment = policy.assess(rule, *enforcer);
        assessments.insert(enforcer.id().to_owned(), json_assessment(&assessment));
    }
    let restrictions: Vec<_> = rule.restrictions.iter().map(ToString::to_string).collect();
    json!({
        "id": rule.id,
        "origin": origin(rule),
        "line": rule.location.line,
        "verdict": rule.verdict.name(),
        "targets": rule.targets,
        "denies": restrictions,
        "enforcers": assessments,
    })
}
