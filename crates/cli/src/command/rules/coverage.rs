//! The command line of `tollgate rules coverage`.

use std::path::PathBuf;

use capture::ebpf;
use clap::Args;
use diagnostics::failure::Outcome;
use event::EngineKind;
use rule_tools::RuleFiles;
use rule_tools::coverage::{self, CoverageFormat};

use crate::engine;

/// `tollgate rules coverage`.
#[derive(Args, Debug)]
#[command(after_help = "\
A technique counts if an enabled rule has its id as a tag (T1059.004), and an engine can raise that rule. The \
tag is its author's word: `tollgate generate test --watched` performs what rules are about. The techniques are \
those of MITRE ATT&CK for Linux and for containers.")]
pub(crate) struct Coverage {
    /// Rule files or folders [default: the built-in rules and /etc/tollgate/rules.d]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also load rules from this file or folder, which can change the other rules; repeatable
    #[arg(long, value_name = "RULES")]
    add_rules: Vec<PathBuf>,
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
    let engines = match args.engines.is_empty() {
        true => engines_here(),
        false => args.engines,
    };
    let rules = RuleFiles {
        named: args.files,
        added: args.add_rules,
    };
    coverage::execute(&rules, &engines, format)
}

/// Returns the live engines that work on this machine, for this user.
fn engines_here() -> Vec<EngineKind> {
    let findings = probe::all(ebpf::probe);
    let has_ebpf = findings
        .iter()
        .any(|finding| finding.name == "ebpf" && finding.support.is_usable());
    let works = [
        (EngineKind::Notify, probe::why_not_notify().is_none()),
        (EngineKind::Ptrace, probe::ptrace_works(&findings)),
        (EngineKind::Ebpf, has_ebpf),
    ];
    let working = works.into_iter().filter(|(_, works)| *works);
    working.map(|(kind, _)| kind).collect()
}
