//! `tollgate policy check`.

use policy::{Code, Diagnostic};
use serde_json::{Value, json};

use super::args::Check;
use super::{Loaded, load, machine};
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::terminal;

/// Runs the verb.
pub(crate) fn execute(args: &Check) -> Outcome {
    let machine = machine();
    let files: Vec<Loaded> = args
        .files
        .iter()
        .map(|path| load(path, &args.accept.rules, &machine))
        .collect();
    if args.json {
        let files: Vec<_> = files.iter().map(json_file).collect();
        terminal::print(&format!("{}\n", json!({ "files": files })))?;
    } else {
        let files: String = files.iter().map(text_file).collect();
        terminal::print(&files)?;
    }
    Ok(exit(files.iter().flat_map(|file| &file.diagnostics)))
}

/// Whether a policy can be used: not if it is wrong, and not if nobody can carry it.
pub(crate) fn exit<'d>(diagnostics: impl Iterator<Item = &'d Diagnostic>) -> Exit {
    let mut exit = Exit::Ok;
    for problem in diagnostics.filter(|problem| problem.is_error()) {
        match problem.code {
            Code::NoEnforcer | Code::TargetsIgnored => exit = Exit::Unsupported,
            _ => return Exit::BadInput,
        }
    }
    exit
}

fn text_file(file: &Loaded) -> String {
    let errors = file.diagnostics.iter().filter(|d| d.is_error()).count();
    let warnings = file.diagnostics.len() - errors;
    let count = |number: usize, noun: &str| match number {
        0 => String::new(),
        1 => format!(", 1 {noun}"),
        _ => format!(", {number} {noun}s"),
    };
    let verdict = if errors == 0 { "Ok" } else { "Invalid" };
    format!(
        "{}{}: {verdict}{}{}\n",
        file.render(),
        file.name,
        count(errors, "error"),
        count(warnings, "warning")
    )
}

fn json_file(file: &Loaded) -> Value {
    let list = |errors: bool| -> Vec<Value> {
        let problems = file.diagnostics.iter().filter(|d| d.is_error() == errors);
        problems.map(json_problem).collect()
    };
    json!({
        "name": file.name,
        "errors": list(true),
        "warnings": list(false),
    })
}

fn json_problem(problem: &Diagnostic) -> Value {
    json!({
        "code": yaml::Code::name(problem.code),
        "title": problem.code.title(),
        "line": problem.location.line,
        "column": problem.location.column,
        "message": problem.message,
        "help": problem.help,
    })
}
