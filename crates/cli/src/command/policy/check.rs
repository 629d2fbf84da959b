//! `tollgate policy check`: checks policy files for errors.

use agent::policy_files::{Loaded, exit, machine};
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use policy::{Code, Diagnostic};
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
        let files: String = files
            .iter()
            .map(|file| text_file(file, args.long))
            .collect();
        terminal::print(&files)?;
    }
    Ok(exit(files.iter().flat_map(|file| &file.diagnostics)))
}

/// Formats the diagnostics of a file that are not about partial enforcement in full, and those in one line each
/// unless `long` is set.
fn text_file(file: &Loaded, long: bool) -> String {
    let in_full = file.render_if(|problem| long || !is_partial(problem));
    let partial = file
        .diagnostics
        .iter()
        .filter(|problem| !long && is_partial(problem));
    let lines: Vec<String> = partial.map(|problem| short(file, problem)).collect();
    let hint = match lines.is_empty() {
        true => "",
        false => "; --long shows the gaps",
    };
    let errors = file.diagnostics.iter().filter(|d| d.is_error()).count();
    let warnings = file.diagnostics.len() - errors;
    let count = |number: usize, noun: &str| match number {
        0 => String::new(),
        1 => format!(", 1 {noun}"),
        _ => format!(", {number} {noun}s"),
    };
    let verdict = if errors == 0 { "Ok" } else { "Invalid" };
    format!(
        "{in_full}{}{}: {verdict}{}{}{hint}\n",
        lines.concat(),
        file.name,
        count(errors, "error"),
        count(warnings, "warning")
    )
}

/// Returns true for rules that are enforced, but not in full.
pub(super) fn is_partial(problem: &Diagnostic) -> bool {
    matches!(problem.code, Code::Partial | Code::Accepted)
}

/// Formats a diagnostic in one line, without the gaps that follow its first sentence.
fn short(file: &Loaded, problem: &Diagnostic) -> String {
    let (place, code) = (&problem.location, yaml::Code::name(problem.code));
    let sentence = problem.message.split(". ").next().unwrap_or_default();
    format!(
        "{}:{}:{}: warning[{code}]: {sentence}\n",
        file.name, place.line, place.column
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
