//! Converts rules of other programs.

use std::path::{Path, PathBuf};

use config::rule_files::{BUILTIN, MORE};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use serde_json::{Value, json};

use crate::sigma::{self, Conversion, Remark};

/// Maximum depth of folders below one that is named.
const MAX_DEPTH: usize = 16;

/// What to convert.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Files, and folders of `.yml` and `.yaml` files.
    pub files: Vec<PathBuf>,
    /// Succeed although rules are refused.
    pub accept_partial: bool,
    /// Print JSON.
    pub json: bool,
}

/// Converts Sigma rules and prints a rule file; exit status 3 if a rule is refused.
///
/// # Errors
///
/// A file cannot be read, there is none, or the result cannot be printed.
pub fn execute(options: &ConvertOptions) -> Outcome {
    let mut files = Vec::new();
    for path in &options.files {
        gather(path, 0, &mut files)?;
    }
    // A rule with the name of a built-in one would replace that.
    let mut names = [BUILTIN, MORE]
        .into_iter()
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("- rule: ").map(str::to_owned))
        .collect();
    let mut all = Vec::new();
    for file in &files {
        let text = text_file::read(file).map_err(|cause| unreadable(file, &cause))?;
        all.extend(sigma::convert(
            &file.display().to_string(),
            &text,
            &mut names,
        ));
    }
    if all.is_empty() {
        let message = "there is no Sigma rule in the named files";
        let help = "name files, or folders of .yml files";
        return Err(Failure::new(Exit::BadInput, message).help(help));
    }
    if options.json {
        terminal::print(&format!("{}\n", report(&all)))?;
    } else {
        terminal::complain(&remarks(&all));
        terminal::print(&rule_file(&all))?;
    }
    let has_refused = all.iter().any(|one| one.outcome.is_err());
    Ok(match has_refused && !options.accept_partial {
        true => Exit::Unsupported,
        false => Exit::Ok,
    })
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Failure {
    let message = format!("cannot read {}: {cause}", path.display());
    Failure::new(Exit::BadInput, message)
}

/// Gathers a file, or the files of a folder in the order of their names.
fn gather(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let unreadable = |cause| unreadable(path, &cause);
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    if depth > MAX_DEPTH {
        let message = format!(
            "cannot read {}: folders nest deeper than {MAX_DEPTH}",
            path.display()
        );
        return Err(Failure::new(Exit::BadInput, message));
    }
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        inside.push(entry.map_err(unreadable)?.path());
    }
    inside.sort();
    for path in inside {
        let is_rule = |path: &Path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("yml" | "yaml"))
        };
        // A link to a folder could lead back to it.
        let kind =
            std::fs::symlink_metadata(&path).map_err(|cause| self::unreadable(&path, &cause))?;
        if kind.is_dir() || (is_rule(&path) && !path.is_dir()) {
            gather(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

fn rule_file(all: &[Conversion]) -> String {
    let texts = all.iter().filter_map(|one| one.outcome.as_ref().ok());
    let texts: Vec<_> = texts.map(|carried| carried.text.as_str()).collect();
    texts.join("\n")
}

/// Lists what is refused and what is lost, and how many rules were converted.
fn remarks(all: &[Conversion]) -> String {
    let mut out = String::new();
    let mut push = |remark: &Remark, kind: &str, title: &str| {
        let title = match title {
            "" => "a document without a title".to_owned(),
            title => yaml::quote::comment(title),
        };
        let message = yaml::quote::comment(&remark.message);
        out.push_str(&format!(
            "{}: {kind}: {title}: {message}\n",
            yaml::quote::comment(&remark.location.to_string())
        ));
    };
    for one in all {
        match &one.outcome {
            Ok(carried) => carried
                .lost
                .iter()
                .for_each(|remark| push(remark, "lost", &carried.name)),
            Err(reasons) => reasons
                .iter()
                .for_each(|remark| push(remark, "refused", &one.title)),
        }
    }
    let (converted, refused) = counts(all);
    out.push_str(&format!("{converted} converted, {refused} refused\n"));
    out
}

fn counts(all: &[Conversion]) -> (usize, usize) {
    let converted = all.iter().filter(|one| one.outcome.is_ok()).count();
    (converted, all.len() - converted)
}

fn report(all: &[Conversion]) -> Value {
    let remark = |remark: &Remark| {
        let at = &remark.location;
        json!({ "file": &*at.file, "line": at.line, "column": at.column, "message": remark.message })
    };
    let remarks = |all: &[Remark]| -> Vec<Value> { all.iter().map(remark).collect() };
    let rules = all.iter().map(|one| {
        let (name, text, lost, refused) = match &one.outcome {
            Ok(carried) => (
                Some(&carried.name),
                Some(&carried.text),
                remarks(&carried.lost),
                Vec::new(),
            ),
            Err(reasons) => (None, None, Vec::new(), remarks(reasons)),
        };
        json!({
            "file": &*one.location.file,
            "line": one.location.line,
            "title": one.title,
            "id": one.id,
            "rule": name,
            "text": text,
            "lost": lost,
            "refused": refused,
        })
    });
    let (converted, refused) = counts(all);
    json!({
        "version": 1,
        "converted": converted,
        "refused": refused,
        "rules": rules.collect::<Vec<_>>(),
    })
}
