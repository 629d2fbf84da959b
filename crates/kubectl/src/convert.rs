//! `kubectl tollgate convert`: needs no cluster.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use kinds::convert::{Conversion, Options, convert};

use crate::session::Failure;

/// Prints the policies of a file, and how each rule is carried over on stderr.
pub(crate) fn print(file: &Path, accepted: &[String]) -> Result<(), Failure> {
    let name = file.display().to_string();
    let wrong = |problem: String| Failure::File {
        name: name.clone(),
        problem,
    };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let all = convert(&name, &text, &Options::default())
        .map_err(|error| wrong(format!("line {}: {}", error.line, error.problem)))?;
    for conversion in &all {
        eprint!("{}", table(conversion));
    }
    let problems: String = all
        .iter()
        .map(|one| one.problems(&name, accepted))
        .collect();
    if !problems.is_empty() {
        eprint!("{problems}");
        return Err(Failure::Refused { name });
    }
    if let Some(empty) = all.iter().find(|one| one.is_empty()) {
        let problem = format!(
            "nothing of {} {} can be carried over",
            empty.kind, empty.name
        );
        return Err(wrong(problem));
    }
    let text: String = all.iter().map(Conversion::yaml).collect();
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::Output)
}

fn table(conversion: &Conversion) -> String {
    let lines = conversion.rules.iter().map(|rule| {
        let (word, cause) = rule.carried.words();
        let becomes = rule.becomes.join(", ");
        let line = format!("  {}  {word}  {becomes}  {cause}", rule.source);
        format!("{}\n", line.trim_end())
    });
    let lines: String = lines.collect();
    format!("{} {}\n{lines}", conversion.kind, conversion.name)
}
