//! `tollgate policy explain`.

use std::fmt::Write as _;

use agent::policy_files::{self, machine, with_other_names};
use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use policy::compile::{MachineFeatures, assess};
use policy::{Enforcer, Policy, Rule, RuleOrigin};
use serde_json::{Map, Value, json};

use super::args::{EnforcerName, Explain};
use super::list::{json_assessment, push_assessment};
use super::{load, profiles};

/// Runs the verb.
pub(crate) fn execute(args: &Explain) -> Outcome {
    let machine = machine();
    let loaded = load(&args.file, &args.accept.rules, &machine);
    let exit = policy_files::exit(loaded.diagnostics.iter());
    terminal::complain(&loaded.render());
    if exit == Exit::BadInput {
        return Ok(exit);
    }
    let only = args.enforcer.map(EnforcerName::enforcer);
    let enforcers = |policy: &Policy| -> Vec<Enforcer> {
        match only {
            Some(enforcer) => vec![enforcer],
            None => policy.enforcers.iter().collect(),
        }
    };
    let text = if args.json {
        let policies = loaded.policies.iter();
        let values: Vec<_> = policies
            .map(|policy| {
                let machine = with_other_names(&machine, policy);
                json_policy(policy, &enforcers(policy), &machine)
            })
            .collect();
        format!("{}\n", json!({ "policies": values }))
    } else {
        let policies = loaded.policies.iter();
        let texts: Vec<_> = policies
            .map(|policy| {
                let machine = with_other_names(&machine, policy);
                let mut text = text_policy(policy, &enforcers(policy), &machine);
                if let Some(enforcer) = only {
                    text.push_str(&format!("\n{enforcer} profile:\n"));
                    text.push_str(&profiles::text(policy, enforcer, &machine));
                }
                text
            })
            .collect();
        texts.join("\n")
    };
    terminal::print(&text)?;
    Ok(exit)
}

/// Where a rule comes from, in a word.
fn origin(rule: &Rule) -> &'static str {
    match rule.origin {
        RuleOrigin::Builtin(_) => "built in",
        RuleOrigin::Base(_) => "runtime default",
        RuleOrigin::Raw => "raw",
    }
}

fn text_policy(policy: &Policy, enforcers: &[Enforcer], machine: &MachineFeatures) -> String {
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
        let what = match profile.custom {
            Some(_) => "the profile that the policy holds",
            None => "the profile that behaviour modelling makes",
        };
        let _ = writeln!(out, "  {}: {what}", profile.enforcer);
    }
    for rule in &policy.rules {
        let _ = writeln!(
            out,
            "\n{} ({}): {}",
            rule.id,
            origin(rule),
            rule.verdict.name()
        );
        // Its parts are the same in every policy; `--enforcer` shows them within the profile.
        let is_base = matches!(rule.origin, RuleOrigin::Base(_));
        for target in &rule.targets {
            let _ = writeln!(out, "  for: {target}");
        }
        for restriction in rule.restrictions.iter().filter(|_| !is_base) {
            let _ = writeln!(out, "  denies: {restriction}");
        }
        for enforcer in enforcers {
            let mut assessment = assess(policy, rule, *enforcer, machine);
            if is_base {
                assessment.output.clear();
            }
            push_assessment(&mut out, *enforcer, &assessment);
        }
    }
    out
}

fn json_policy(policy: &Policy, enforcers: &[Enforcer], machine: &MachineFeatures) -> Value {
    let rules: Vec<_> = policy
        .rules
        .iter()
        .map(|rule| json_rule(policy, rule, enforcers, machine))
        .collect();
    let mut compiled = Map::new();
    for enforcer in enforcers {
        compiled.insert(
            enforcer.id().to_owned(),
            profiles::json(policy, *enforcer, machine),
        );
    }
    let chosen: Vec<_> = policy.enforcers.iter().map(Enforcer::id).collect();
    json!({
        "name": policy.name,
        "mode": policy.mode.name(),
        "enforcers": chosen,
        "privileged": policy.privileged,
        "rules": rules,
        "profiles": compiled,
    })
}

fn json_rule(
    policy: &Policy,
    rule: &Rule,
    enforcers: &[Enforcer],
    machine: &MachineFeatures,
) -> Value {
    let mut assessments = Map::new();
    for enforcer in enforcers {
        let assessment = assess(policy, rule, *enforcer, machine);
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
