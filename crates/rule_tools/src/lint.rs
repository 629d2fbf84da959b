//! Finds rules that never alert, cannot match or are expensive.

use config::rule_files::NoSink;
use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use event::EngineKind;
use rules::EngineOptions;
use rules::lint::{Check, Finding};
use serde_json::{Value, json};

use crate::RuleFiles;

/// The engines that `run` and `watch` choose from.
const LIVE: [EngineKind; 3] = [EngineKind::Notify, EngineKind::Ptrace, EngineKind::Ebpf];

/// Prints findings for the named engines, or all live ones; exit status 1 if there is a finding.
///
/// # Errors
///
/// The rules have errors, or a source whose plugin is not loaded.
pub fn execute(rules: &RuleFiles, engines: &[EngineKind], is_json: bool) -> Outcome {
    let mut with_plugins = rules.load()?;
    with_plugins.refuse_unknown_sources("lint")?;
    let of_plugins = with_plugins.compile_sources();
    let mut loaded = with_plugins.loaded;
    let (engine, _plan) = loaded.compile(&EngineOptions::default(), NoSink);
    loaded.usable()?;
    let mut findings = engine.lint(if engines.is_empty() { &LIVE } else { engines });
    // The other checks are about engines and system calls.
    let of_plugins = of_plugins.iter();
    let of_plugins = of_plugins.flat_map(|(_, engine)| engine.lint(&[]));
    findings.extend(of_plugins.filter(|finding| finding.check == Check::Shadowed));
    terminal::print(&if is_json {
        let objects: Vec<_> = findings.iter().map(object).collect();
        format!("{}\n", json!({ "findings": objects }))
    } else {
        text(&findings, loaded.ruleset.rules.len())
    })?;
    Ok(if findings.is_empty() {
        Exit::Ok
    } else {
        Exit::Failed
    })
}

fn text(findings: &[Finding], rules: usize) -> String {
    let mut out = String::new();
    for finding in findings {
        let by: Vec<_> = finding.by.iter().map(|by| by.name()).collect();
        let by = if by.is_empty() {
            String::new()
        } else {
            format!(" (engine {})", by.join(", "))
        };
        out.push_str(&format!(
            "{}: {}: rule {}{by}: {}\n  help: {}\n",
            finding.location,
            finding.check.name(),
            finding.rule,
            finding.message,
            finding.help
        ));
    }
    out.push_str(&format!("{} findings in {rules} rules\n", findings.len()));
    out
}

fn object(finding: &Finding) -> Value {
    json!({
        "check": finding.check.name(),
        "rule": &*finding.rule,
        "file": &*finding.location.file,
        "line": finding.location.line,
        "column": finding.location.column,
        "engines": finding.by.iter().map(|by| by.name()).collect::<Vec<_>>(),
        "message": finding.message,
        "help": finding.help,
    })
}
