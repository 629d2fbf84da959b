//! The detector that `--watched` starts: `tollgate run`, whose standard output is read.

use std::fs;
use std::path::PathBuf;

use clap::ValueEnum;
use config::rule_files;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use generator::detector::Detector;

use super::args::Source;

/// Builds the command line of `tollgate run` and lists the rules that it loads.
pub(super) fn detector(source: &Source) -> Result<Detector, Failure> {
    let (files, builtin) = if source.rules.is_empty() {
        let (files, folder) = builtin_files()?;
        (files, Some(folder))
    } else {
        (source.rules.clone(), None)
    };
    let loaded = rule_files::load(&files);
    let rules = loaded.ruleset.rules.iter();
    let rules = rules.map(|rule| rule.name.to_string()).collect();
    let engine = source.engine.to_possible_value();
    let engine = engine.map_or_else(String::new, |value| value.get_name().to_owned());
    let mut command = vec![generator::own_program()?.display().to_string()];
    // The preparation of an action may fire rules, too; every rule that matches must alert.
    let options = [
        "run",
        "--quiet",
        "--json",
        "--log",
        "-",
        "-o",
        "rule_matching=all",
        "--engine",
    ];
    command.extend(options.map(str::to_owned));
    command.push(engine);
    for file in files {
        command.extend(["-r".to_owned(), file.display().to_string()]);
    }
    Ok(Detector::new(command, rules, builtin))
}

fn builtin_files() -> Result<(Vec<PathBuf>, tempfile::TempDir), Failure> {
    let refuse = |error: std::io::Error| {
        Failure::new(
            Exit::Unsupported,
            format!("cannot write the built-in rules to a temporary folder: {error}"),
        )
    };
    let folder = tempfile::tempdir().map_err(refuse)?;
    let files = [
        ("default.yaml", rule_files::BUILTIN),
        ("more.yaml", rule_files::MORE),
    ];
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::write(&path, text).map_err(refuse)?;
        paths.push(path);
    }
    Ok((paths, folder))
}
