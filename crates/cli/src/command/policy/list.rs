//! `tollgate policy list`: lists the built-in rules and which enforcers support them.

use std::fmt::Write as _;

use agent::policy_files::machine;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use policy::EnforcerKind;
use policy::builtin::{self, Builtin, Class};
use policy::compile::{Assessment, MachineFeatures, assess_builtin};
use serde_json::{Map, Value, json};

use super::args::List;

/// Runs the verb.
pub(crate) fn execute(args: &List) -> Outcome {
    let mut machine = machine();
    if machine.disks.is_empty() {
        // The grade of a rule must not depend on whether this host has a disk.
        machine.disks.push("sda".to_owned());
    }
    let rules: Vec<&Builtin> = match args.rules.is_empty() {
        true => builtin::all().iter().collect(),
        false => args
            .rules
            .iter()
            .map(|name| find(name))
            .collect::<Result<_, _>>()?,
    };
    let text = if args.json {
        let rules: Vec<_> = rules
            .into_iter()
            .map(|rule| json_rule(rule, &machine))
            .collect();
        format!("{}\n", Value::Array(rules))
    } else if args.markdown {
        markdown(&rules, &machine)
    } else if args.rules.is_empty() {
        table(&rules, &machine)
    } else {
        let texts: Vec<_> = rules
            .into_iter()
            .map(|rule| text_rule(rule, &machine))
            .collect();
        texts.join("\n")
    };
    terminal::print(&text)
}

fn find(name: &str) -> Result<&'static Builtin, Failure> {
    builtin::find(name).ok_or_else(|| {
        let failure = Failure::new(
            Exit::BadInput,
            format!("cannot show rule `{name}`: no such rule"),
        );
        failure.help(match builtin::suggest(name) {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => "`tollgate policy list` shows all".to_owned(),
        })
    })
}

/// Assesses a rule under each enforcer. The built-in rules are static.
fn assess(rule: &'static Builtin, machine: &MachineFeatures) -> Vec<(EnforcerKind, Assessment)> {
    let each = EnforcerKind::ALL.into_iter();
    each.map(|enforcer| (enforcer, assess_builtin(rule, enforcer, machine)))
        .collect()
}

const CLASSES: [Class; 3] = [Class::Hardening, Class::Attack, Class::Vulnerability];

fn table(rules: &[&'static Builtin], machine: &MachineFeatures) -> String {
    let mut out = String::new();
    for class in CLASSES {
        let _ = write!(out, "{:<42}", class.key());
        for name in EnforcerKind::ALL.map(EnforcerKind::name) {
            let _ = write!(out, " {name:<9}");
        }
        out.push('\n');
        for rule in rules.iter().filter(|rule| rule.class == class) {
            let _ = write!(out, "  {:<40}", rule.name);
            for (_, assessment) in assess(rule, machine) {
                let _ = write!(out, " {:<9}", assessment.grade.name());
            }
            let _ = writeln!(out, "\n      {}", rule.about);
        }
    }
    out
}

/// Formats the page of the documentation that lists the rules.
fn markdown(rules: &[&'static Builtin], machine: &MachineFeatures) -> String {
    let mut out = String::from(
        "# Built-in rules\n\nPrinted by `tollgate policy list --markdown`: how well each enforcer \
        enforces each rule, where it is available.\n`tollgate policy list RULE` shows the gaps, and what the rule compiles to. Grades cover what the workload does\nitself, not what it makes an unconfined process do.\n",
    );
    let names = EnforcerKind::ALL.map(EnforcerKind::name);
    for class in CLASSES {
        let _ = writeln!(out, "\n## {}\n", class.key());
        let _ = writeln!(out, "| rule | {} | what is denied |", names.join(" | "));
        let _ = writeln!(out, "|---|{}---|", "---|".repeat(names.len()));
        for rule in rules.iter().filter(|rule| rule.class == class) {
            let assessed = assess(rule, machine);
            let grades: Vec<_> = assessed.iter().map(|(_, a)| a.grade.name()).collect();
            let grades = grades.join(" | ");
            let aliases: String = rule
                .aliases
                .iter()
                .map(|name| format!(", `{name}`"))
                .collect();
            let _ = writeln!(
                out,
                "| `{}`{aliases} | {grades} | {} |",
                rule.name, rule.about
            );
        }
    }
    out
}

fn text_rule(rule: &'static Builtin, machine: &MachineFeatures) -> String {
    let mut out = format!("{}\n  {}\n", rule.name, rule.about);
    if !rule.aliases.is_empty() {
        let _ = writeln!(out, "  also called: {}", rule.aliases.join(", "));
    }
    let _ = writeln!(out, "  list: {}", rule.class.key());
    for restriction in &rule.restrictions {
        let _ = writeln!(out, "  denies: {restriction}");
    }
    for text in &rule.breaks {
        let _ = writeln!(out, "  breaks: {text}");
    }
    for (enforcer, assessment) in assess(rule, machine) {
        push_assessment(&mut out, enforcer, &assessment);
    }
    out
}

/// Appends the grade, the reason why it is no better, and what the rule compiles to.
pub(super) fn push_assessment(out: &mut String, enforcer: EnforcerKind, assessment: &Assessment) {
    let _ = writeln!(out, "  {enforcer}: {}", assessment.grade);
    for note in &assessment.notes {
        let _ = writeln!(out, "    not covered: {note}");
    }
    for text in &assessment.breaks {
        let _ = writeln!(out, "    also stops: {text}");
    }
    for line in assessment.output.iter().flat_map(|text| text.lines()) {
        let _ = writeln!(out, "    > {line}");
    }
}

fn json_rule(rule: &'static Builtin, machine: &MachineFeatures) -> Value {
    let mut enforcers = Map::new();
    for (enforcer, assessment) in assess(rule, machine) {
        enforcers.insert(enforcer.id().to_owned(), json_assessment(&assessment));
    }
    let restrictions: Vec<_> = rule.restrictions.iter().map(ToString::to_string).collect();
    json!({
        "name": rule.name,
        "aliases": rule.aliases,
        "list": rule.class.key(),
        "about": rule.about,
        "denies": restrictions,
        "breaks": rule.breaks,
        "enforcers": enforcers,
    })
}

pub(super) fn json_assessment(assessment: &Assessment) -> Value {
    json!({
        "grade": assessment.grade.name(),
        "not_covered": assessment.notes,
        "also_stops": assessment.breaks,
        "compiles_to": assessment.output,
    })
}
