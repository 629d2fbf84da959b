//! Results of loading rule files in the form that Falco prints them, as JSON and as text.

mod document;
mod places;
mod schema;

use std::sync::Arc;

use config::falco_files;
use config::rule_files::{Environment, Loaded, RuleFile};
use rules::diagnostic::Diagnostic;
use serde_json::{Value, json};

use self::document::Documents;
use self::places::{Place, places};
pub use self::schema::PRIORITIES;
use crate::check;

/// What Falco says of one file.
#[derive(Debug)]
pub struct FileResult {
    /// Name of the file.
    pub name: Arc<str>,
    /// How the file differs from the schema of rule files.
    pub schema_warnings: Vec<String>,
    /// Errors, at most one.
    pub errors: Vec<Problem>,
    /// Warnings in the order in which they were found.
    pub warnings: Vec<Problem>,
}

/// A problem with the items that enclose it.
#[derive(Debug)]
pub struct Problem {
    diagnostic: Diagnostic,
    /// From the whole file to the place of the problem.
    places: Vec<Place>,
    /// The line, and a mark below the place.
    snippet: String,
}

/// Loads files as Falco does, one after the other. `compile` compiles the rules of each source.
pub fn results(
    files: &[RuleFile],
    environment: &Environment,
    compile: impl Fn(&mut Loaded),
) -> Vec<FileResult> {
    let documents = Documents::of(files);
    let problems = falco_files::problems(files, environment, compile);
    let of_file = |(file, found): (&RuleFile, Vec<Diagnostic>)| {
        let found = found.into_iter().map(|diagnostic| {
            let at = &diagnostic.location;
            Problem {
                places: places(&diagnostic, &documents),
                snippet: check::snippet(at, documents.text(&at.file)),
                diagnostic,
            }
        });
        let (errors, warnings) = found.partition(|problem| problem.diagnostic.is_error());
        FileResult {
            name: Arc::clone(&file.name),
            schema_warnings: schema::warnings(documents.of_file(&file.name)),
            errors,
            warnings,
        }
    };
    files.iter().zip(problems).map(of_file).collect()
}

impl FileResult {
    /// Returns true if the file has no error.
    #[must_use]
    pub fn is_successful(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the object that stands for the file in `falco_load_results`.
    #[must_use]
    pub fn json(&self) -> Value {
        let list = |problems: &[Problem]| problems.iter().map(Problem::json).collect::<Vec<_>>();
        json!({
            "errors": list(&self.errors),
            "name": &*self.name,
            "schema_valid": self.schema_warnings.is_empty(),
            "schema_warnings": self.schema_warnings,
            "successful": self.is_successful(),
            "warnings": list(&self.warnings),
        })
    }

    /// Returns the verdict on the file and its problems, each with its places, the line, and a mark below it.
    #[must_use]
    pub fn text(&self) -> String {
        let verdict = match (self.is_successful(), self.warnings.is_empty()) {
            (false, _) => "Invalid",
            (true, false) => "Ok, with warnings",
            (true, true) => "Ok",
        };
        let mut out = format!("{}: {verdict}", self.name);
        if !self.schema_warnings.is_empty() {
            let count = self.schema_warnings.len();
            out.push_str(&format!("\n{count} Schema warnings:\n"));
            for warning in &self.schema_warnings {
                out.push_str(&format!("------\n{warning}\n"));
            }
            out.push_str("------\n");
        }
        for (problems, word) in [(&self.errors, "Errors"), (&self.warnings, "Warnings")] {
            if !problems.is_empty() {
                out.push_str(&format!("\n{} {word}:\n", problems.len()));
            }
            problems.iter().for_each(|problem| problem.print(&mut out));
        }
        out
    }
}

impl Problem {
    fn json(&self) -> Value {
        let places: Vec<_> = self.places.iter().map(Place::json).collect();
        json!({
            "code": self.diagnostic.code.name(),
            "codedesc": self.diagnostic.code.title(),
            "context": { "locations": places, "snippet": self.snippet },
            "message": self.message(),
        })
    }

    /// Returns the message. Falco has no place for the next step but this one.
    fn message(&self) -> String {
        match &self.diagnostic.help {
            Some(help) => format!("{} (help: {help})", self.diagnostic.message),
            None => self.diagnostic.message.clone(),
        }
    }

    fn print(&self, out: &mut String) {
        for (index, place) in self.places.iter().enumerate() {
            let start = if index == 0 { "In " } else { "    " };
            out.push_str(&format!("{start}{place}\n"));
        }
        let snippet = match self.snippet.as_str() {
            "" => "<No context available>\n",
            snippet => snippet,
        };
        let (code, message) = (self.diagnostic.code, self.message());
        let code = format!("{} ({})", code.name(), code.title());
        out.push_str(&format!("------\n{snippet}------\n{code}: {message}\n"));
    }
}

#[cfg(test)]
mod tests;
