//! `tollgate policy check`: checks policy files for errors.

use agent::policy_files::{Loaded, exit, machine};
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use policy::Diagnostic;
use serde_json::{Value, json};

use super::args::Check;
use super::load;

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
