//! The command line of `tollgate rules coverage`.

use std::path::PathBuf;

use capture::ebpf;
use clap::Args;
use diagnostics::failure::Outcome;
use event::EngineKind;
use probe::{Finding, Support};
use rule_tools::RuleFiles;
use rule_tools::coverage::{self, Abilities, CoverageFormat, MissingEngine};

use crate::args::AddedRules;
use crate::engine;

/// `tollgate rules coverage`.
#[derive(Args, Debug)]
#[command(after_help = "\
A technique counts if an enabled rule has its id as a tag (T1059.004), and an engine can raise that rule. Rules that \
cannot alert here follow with the reason: disabled, calls or fields that no engine at hand has, missing privileges. The \
tag is its author's word: `tollgate generate test --watched` performs what rules are about. The techniques are \
those of MITRE ATT&CK for Linux and for containers.")]
pub(crate) struct Coverage {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    added: AddedRules,
    /// Capture engine to ask about; repeatable [default: those that work here]
    #[arg(long = "engine", value_name = "notify|ptrace|ebpf|gvisor|scap", value_parser = engine::named)]
    engines: Vec<EngineKind>,
    /// Also list techniques that no rule names
    #[arg(long, conflicts_with_all = ["json", "navigator"])]
    long: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a layer for the ATT&CK Navigator
    #[arg(long, conflicts_with = "json")]
    navigator: bool,
}

/// Runs the verb.
pub(super) fn execute(args: Coverage) -> Outcome {
    let format = match (args.json, args.navigator) {
        (true, _) => CoverageFormat::Json,
        (_, true) => CoverageFormat::Navigator,
        _ => CoverageFormat::Text { long: args.long },
    };
    let abilities = match args.engines.is_empty() {
        true => abilities_here(),
        false => Abilities {
            engines: args.engines,
            reads_runtime_files: probe::reads_every_file(),
            ..Abilities::default()
        },
    };
    let rules = RuleFiles {
        named: args.files,
        added: args.added.add_rules,
        level: args.added.level,
        ..RuleFiles::default()
    };
    coverage::execute(&rules, &abilities, format)
}

/// Returns what works on this machine, for this user.
fn abilities_here() -> Abilities {
    let findings = probe::all(ebpf::probe);
    let of = |name: &str| findings.iter().find(|finding| finding.name == name);
    let live = [
        (
            EngineKind::Notify,
            probe::why_not_notify().map(|why| (why, None)),
        ),
        (EngineKind::Ptrace, of("ptrace-engine").and_then(why_not)),
        (EngineKind::Ebpf, of("ebpf").and_then(why_not)),
    ];
    let mut abilities = Abilities {
        reads_runtime_files: probe::reads_every_file(),
        ..Abilities::default()
    };
    for (kind, why_not) in live {
        match why_not {
            None => abilities.engines.push(kind),
            Some((why, fix)) => abilities.missing.push(MissingEngine { kind, why, fix }),
        }
    }
    let limits = ["capabilities", "no-new-privs", "yama"]
        .into_iter()
        .filter_map(of);
    abilities.limits = limits.filter_map(limit).collect();
    abilities
}

/// Returns why a feature does not work, and the remedy.
fn why_not(finding: &Finding) -> Option<(String, Option<String>)> {
    match &finding.support {
        Support::No { why, fix } => Some((why.clone(), fix.clone())),
        Support::Yes { .. } | Support::Partial { .. } => None,
    }
}

/// Returns what this user cannot see because a feature works in part or not at all.
fn limit(finding: &Finding) -> Option<String> {
    match &finding.support {
        Support::No { why, .. } | Support::Partial { why, .. } => Some(why.clone()),
        Support::Yes { .. } => None,
    }
}
