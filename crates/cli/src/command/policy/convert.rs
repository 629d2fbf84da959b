//! `tollgate policy convert`: policies of other programs as policies of this one, and models in vArmor's form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use ::policy::compile::NarrowedPolicy;
use ::policy::{EnforcerKind, Model, Policy};
use agent::learn;
use agent::policy_files::{machine, narrowed};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use kinds::convert::{Conversion, Options};
use kinds::{LabelSelector, Target, yaml_text};
use serde_json::{Value, json};

use super::args::Convert;

/// Runs the verb.
pub(crate) fn execute(args: &Convert) -> Outcome {
    let file = args.file.display().to_string();
    if let Some((namespace, policy)) = &args.to_model {
        return print_model(args, &file, namespace, policy);
    }
    let text = text_file::read(&args.file)
        .map_err(|cause| Failure::new(Exit::BadInput, format!("cannot read {file}: {cause}")))?;
    let options = Options {
        enforcers: args.enforcer.map(|enforcers| enforcers.joined()),
        target: target(args),
    };
    let conversions = kinds::convert::convert(&file, &text, &options)
        .map_err(|error| Failure::new(Exit::BadInput, format!("cannot convert {error}")))?;
    check_names(&conversions, &args.accept.rules)?;
    let mut checked = Vec::new();
    for conversion in &conversions {
        checked.push(Checked::new(conversion)?);
    }
    let refused = conversions
        .iter()
        .any(|conversion| conversion.refused(&args.accept.rules).next().is_some());
    if args.json {
        let all: Vec<Value> = checked.iter().map(Checked::json).collect();
        terminal::print(&format!("{}\n", json!({ "policies": all })))?;
    } else {
        let tables: String = checked.iter().map(Checked::table).collect();
        terminal::complain(&tables);
    }
    if refused {
        return Ok(complain(&conversions, &file, &args.accept.rules));
    }
    if let Some(empty) = conversions.iter().find(|conversion| conversion.is_empty()) {
        let message = format!(
            "nothing of {} {} can be carried over",
            empty.kind, empty.name
        );
        return Err(Failure::new(Exit::Unsupported, message));
    }
    if !args.json {
        let files = conversions.iter().map(Conversion::yaml);
        terminal::print(&files.collect::<String>())?;
    }
    Ok(Exit::Ok)
}

/// Says what is refused, and why.
fn complain(conversions: &[Conversion], file: &str, accepted: &[String]) -> Exit {
    let problems = conversions.iter();
    let problems = problems.map(|conversion| conversion.problems(file, accepted));
    terminal::complain(&problems.collect::<String>());
    Exit::Unsupported
}

/// Reads a file that `tollgate learn --model` wrote.
fn recorded(file: &Path) -> Result<Model, Failure> {
    learn::read(file)?.ok_or_else(|| {
        let message = format!("cannot read {}: no such file", file.display());
        Failure::new(Exit::BadInput, message)
            .help("`tollgate learn -o POLICY.yaml --model FILE -- CMD` writes one")
    })
}

/// Prints what `tollgate learn` has recorded as an ArmorProfileModel.
fn print_model(args: &Convert, file: &str, namespace: &str, policy: &str) -> Outcome {
    let mut model = recorded(&args.file)?;
    for other in &args.merge {
        model.merge(recorded(other)?);
    }
    let conversion = kinds::convert::to_profile_model(namespace, policy, &model)
        .map_err(|error| Failure::new(Exit::BadInput, format!("cannot convert {file}: {error}")))?;
    let conversions = std::slice::from_ref(&conversion);
    check_names(conversions, &args.accept.rules)?;
    let checked = Checked {
        conversion: &conversion,
        policy: None,
    };
    if args.json {
        terminal::print(&format!("{}\n", json!({ "models": [checked.json()] })))?;
    } else {
        terminal::complain(&checked.table());
    }
    if conversion.refused(&args.accept.rules).next().is_some() {
        return Ok(complain(conversions, file, &args.accept.rules));
    }
    if !args.json {
        terminal::print(&conversion.yaml())?;
    }
    Ok(Exit::Ok)
}

/// Refuses a name that `--accept-partial` gives and no source has.
fn check_names(conversions: &[Conversion], accepted: &[String]) -> Result<(), Failure> {
    let mut rules = conversions.iter().flat_map(|conversion| &conversion.rules);
    let is_there = |name: &&String| !rules.any(|rule| rule.source == **name);
    match accepted.iter().find(is_there) {
        None => Ok(()),
        Some(name) => {
            let message = format!("cannot accept `{name}`: the file has no such rule");
            Err(Failure::new(Exit::BadInput, message))
        }
    }
}

/// The workloads that the command line names.
fn target(args: &Convert) -> Option<Target> {
    let mut target = Target {
        kind: "Pod".to_owned(),
        name: String::new(),
        selector: None,
        containers: Vec::new(),
    };
    if let Some((kind, name)) = &args.target {
        target.kind.clone_from(kind);
        target.name.clone_from(name);
        return Some(target);
    }
    if args.selector.is_empty() {
        return None;
    }
    target.selector = Some(LabelSelector {
        match_labels: args.selector.iter().cloned().collect::<BTreeMap<_, _>>(),
        match_expressions: Vec::new(),
    });
    Some(target)
}

/// A conversion whose result this program has read.
struct Checked<'c> {
    conversion: &'c Conversion,
    /// `None` if nothing could be carried over.
    policy: Option<NarrowedPolicy>,
}

impl<'c> Checked<'c> {
    fn new(conversion: &'c Conversion) -> Result<Self, Failure> {
        if conversion.is_empty() {
            return Ok(Self {
                conversion,
                policy: None,
            });
        }
        let text = yaml_text::stream(std::slice::from_ref(&conversion.object));
        let (policies, problems) = ::policy::load(&conversion.name, &text);
        if let Some(problem) = problems.iter().find(|problem| problem.is_error()) {
            let (kind, name) = (&conversion.kind, &conversion.name);
            let message = format!("cannot convert {kind} {name}: {}", problem.message);
            return Err(Failure::new(Exit::BadInput, message));
        }
        let machine = machine();
        let policy = policies.first().map(|policy| narrowed(policy, &machine));
        Ok(Self { conversion, policy })
    }

    /// How a rule of the policy is enforced: the grade, and by what.
    fn enforced(&self, name: &str) -> String {
        let Some(policy) = &self.policy else {
            return String::new();
        };
        if let Some(rule) = policy.rules.iter().find(|rule| rule.id == name) {
            let has_part = |kind: &EnforcerKind| {
                policy.assess(rule, *kind).grade != ::policy::compile::Grade::None
            };
            let by: Vec<String> = policy
                .enforcers
                .iter()
                .filter(has_part)
                .map(|kind| kind.to_string())
                .collect();
            let grade = policy.grade(rule).name();
            return match by.is_empty() {
                true => format!("{grade}: no enforcer"),
                false => format!("{grade}: {}", by.join(", ")),
            };
        }
        profile(policy, name)
    }

    fn table(&self) -> String {
        let conversion = self.conversion;
        let mut out = format!("{} {}\n", conversion.kind, conversion.name);
        let widest = conversion.rules.iter().map(|rule| rule.source.len()).max();
        let widest = widest.unwrap_or_default();
        for rule in &conversion.rules {
            let (word, cause) = rule.carried.words();
            // Writing to a String cannot fail.
            let _ = write!(out, "  {:widest$}  {word:7}", rule.source);
            for name in &rule.becomes {
                let _ = match self.enforced(name) {
                    by if by.is_empty() => write!(out, "  {name}"),
                    by => write!(out, "  {name}: {by}"),
                };
            }
            if !cause.is_empty() {
                let _ = write!(out, "  {cause}");
            }
            out.push('\n');
        }
        out
    }

    fn json(&self) -> Value {
        let rules = self.conversion.rules.iter().map(|rule| {
            let (word, cause) = rule.carried.words();
            let becomes = rule.becomes.iter();
            let becomes =
                becomes.map(|name| json!({ "rule": name, "enforced": self.enforced(name) }));
            json!({
                "source": rule.source,
                "line": rule.line,
                "carried": word,
                "cause": cause,
                "becomes": becomes.collect::<Vec<_>>(),
            })
        });
        json!({
            "kind": self.conversion.kind,
            "name": self.conversion.name,
            "rules": rules.collect::<Vec<_>>(),
            "object": self.conversion.object,
        })
    }
}

/// How a profile that is taken as it is is enforced.
fn profile(policy: &Policy, name: &str) -> String {
    let is_named = policy.profiles.iter().any(|profile| {
        profile.enforcer == EnforcerKind::AppArmor && name == "defenseInDepth.appArmor"
    });
    match is_named {
        true => "full: AppArmor".to_owned(),
        false => "unknown".to_owned(),
    }
}
