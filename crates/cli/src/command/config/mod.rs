//! `tollgate config`: shows and checks the configuration.

pub(crate) mod args;

use std::path::Path;

use ::config::rule_files::{NoSink, RuleFile};
use ::config::{Effective, Places, Request, Shown, ShownOrigin};
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rules::EngineOptions;
use serde_json::{Value, json};
use yaml::quote;

use self::args::{Check, Config, Show};

/// Column of the origins, after the longest usual key and value.
const COLUMN: usize = 48;

/// Runs the verb.
pub(crate) fn execute(verb: &Config) -> Outcome {
    match verb {
        Config::Show(args) => show(args),
        Config::Check(args) => check(args),
    }
}

fn show(args: &Show) -> Outcome {
    let places = Places::of_user()?;
    let level = args
        .added
        .level
        .iter()
        .map(|level| format!("rules_level={level}"));
    let options: Vec<_> = args.options.iter().cloned().chain(level).collect();
    let request = Request {
        layers: &places.files,
        file: args.config.as_deref(),
        options: &options,
        ..Request::default()
    };
    let mut effective = request.load()?;
    effective.config.rules_folder = places.rules;
    effective
        .config
        .added_rules
        .clone_from(&args.added.add_rules);
    for warning in &effective.warnings {
        terminal::complain(&format!("tollgate: warning: {warning}\n"));
    }
    let mut keys = effective.shown();
    if args.changed {
        keys.retain(|key| key.origin != ShownOrigin::Default);
    }
    terminal::print(&match args.json {
        true => format!("{}\n", json_of(&effective, &keys)),
        false => head(&effective) + &text(&keys),
    })
}

/// Returns the files that the configuration can come from, and whether each was read.
fn files(effective: &Effective) -> Vec<(&Path, bool)> {
    let config = &effective.config;
    let absent = config
        .layers
        .iter()
        .filter(|path| !config.files.contains(path));
    let absent = absent.map(|path| (path.as_path(), false));
    let read = config.files.iter().map(|path| (path.as_path(), true));
    read.chain(absent).collect()
}

fn rule_files(effective: &Effective) -> Vec<RuleFile> {
    effective.config.rule_sources().read()
}

fn head(effective: &Effective) -> String {
    let mut out = String::new();
    for (path, is_read) in files(effective) {
        let word = if is_read { "read" } else { "absent" };
        let path = quote::comment(&path.display().to_string());
        out.push_str(&format!("# file ({word}): {path}\n"));
    }
    for file in rule_files(effective) {
        let error = file.text.err().map(|error| format!(" ({error})"));
        let line = format!("{}{}", file.name, error.unwrap_or_default());
        out.push_str(&format!("# rules: {}\n", quote::comment(&line)));
    }
    out
}

/// Formats keys as YAML, with the origin of each as a comment.
fn text(keys: &[Shown]) -> String {
    let mut out = String::new();
    let mut group: Vec<&str> = Vec::new();
    for key in keys {
        let mut names: Vec<&str> = key.path.split('.').collect();
        // `split` returns one word at least.
        let last = names.pop().unwrap_or_default();
        let same = group.iter().zip(&names).take_while(|(a, b)| a == b).count();
        for (depth, name) in names.iter().enumerate().skip(same) {
            out.push_str(&format!("{}{name}:\n", "  ".repeat(depth)));
        }
        let indent = "  ".repeat(names.len());
        let line = format!("{indent}{last}: {}", yaml_of(&key.value));
        let origin = quote::comment(&key.origin.to_string());
        out.push_str(&format!("{line:COLUMN$}  # {origin}\n"));
        group = names;
    }
    out
}

/// Formats a value as YAML on one line.
fn yaml_of(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) => quote::scalar(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(yaml_of).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries =
                entries.map(|(key, value)| format!("{}: {}", quote::scalar(key), yaml_of(value)));
            let entries: Vec<_> = entries.collect();
            format!("{{{}}}", entries.join(", "))
        }
        value => value.to_string(),
    }
}

/// Returns true for a text that cannot be read as anything else without quotes.
fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let words = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    starts && text.chars().all(is_word) && !words.contains(&&*text.to_ascii_lowercase())
}

fn json_of(effective: &Effective, keys: &[Shown]) -> Value {
    let files: Vec<_> = files(effective)
        .into_iter()
        .map(|(path, is_read)| json!({ "file": path.display().to_string(), "read": is_read }))
        .collect();
    let rules: Vec<_> = rule_files(effective)
        .into_iter()
        .map(|file| json!({ "file": &*file.name, "error": file.text.err() }))
        .collect();
    let keys: serde_json::Map<_, _> = keys
        .iter()
        .map(|key| {
            let origin = match &key.origin {
                ShownOrigin::File { file, line } => {
                    json!({ "kind": "file", "file": file, "line": line })
                }
                ShownOrigin::Option(option) => json!({ "kind": "option", "option": option }),
                ShownOrigin::Default => json!({ "kind": "default" }),
            };
            let shown = json!({ "value": key.value, "origin": origin });
            (key.path.to_owned(), shown)
        })
        .collect();
    json!({ "files": files, "rules": rules, "keys": keys })
}

fn check(args: &Check) -> Outcome {
    match (checked(args), args.json) {
        (Ok((files, warnings)), false) => {
            for warning in &warnings {
                terminal::complain(&format!("tollgate: warning: {warning}\n"));
            }
            let verdict = |file: &String| format!("{file}: Ok\n");
            terminal::print(&files.iter().map(verdict).collect::<String>())
        }
        (Ok((files, warnings)), true) => {
            let object = json!({ "ok": true, "files": files, "warnings": warnings });
            terminal::print(&format!("{object}\n"))
        }
        (Err(failure), false) => Err(failure),
        (Err(failure), true) => {
            let object = json!({ "ok": false, "error": failure.render().trim_end() });
            terminal::print(&format!("{object}\n"))?;
            Ok(failure.exit)
        }
    }
}

/// Returns the files that were checked, and warnings about them.
fn checked(args: &Check) -> Result<(Vec<String>, Vec<String>), Failure> {
    let places = match args.file {
        Some(_) => Places::default(),
        None => Places::of_user()?,
    };
    let request = Request {
        layers: &places.files,
        file: args.file.as_deref(),
        ..Request::default()
    };
    let mut effective = request.load()?;
    // A run goes on without them: the file may be for another version.
    effective.is_known()?;
    effective.config.rules_folder = places.rules;
    let sources = effective.config.rule_sources();
    let names = effective
        .config
        .files
        .iter()
        .map(|path| path.display().to_string());
    let mut names: Vec<_> = names.collect();
    // A file without rules is about the built-in ones.
    if args.file.is_none() || !effective.config.rules_files.is_empty() {
        let mut loaded = sources.load();
        loaded.compile(&EngineOptions::default(), NoSink);
        loaded.usable()?;
        names.extend(loaded.files.iter().map(|file| file.name.to_string()));
    }
    let responses = &effective.config.responses;
    let read = response::load::read_files(&responses.files);
    let loaded = response::load::load(read, &responses.accept_partial);
    loaded.usable()?;
    names.extend(loaded.names().map(str::to_owned));
    Ok((names, effective.warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &'static str, value: Value) -> Shown {
        Shown {
            path,
            value,
            origin: ShownOrigin::Default,
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let keys = [
            key("file_output.filename", json!("/tmp/a b")),
            key("json_output", json!(true)),
            key("metrics.interval", json!("1h")),
            key("outputs.rate", json!(0.5)),
            key("rules", json!([{ "disable": { "rule": "Read *" } }])),
            key("webserver.listen_address", json!("127.0.0.1")),
        ];
        let text = text(&keys);
        let root = yaml::settings::read("t", &text).expect("it is YAML");
        let at = |group: &str, name: &str| {
            let group = &root.entry(group).expect("it is there").node;
            group
                .entry(name)
                .expect("it is there")
                .node
                .text()
                .map(str::to_owned)
        };
        assert_eq!(at("file_output", "filename"), Ok("/tmp/a b".to_owned()));
        assert_eq!(at("metrics", "interval"), Ok("1h".to_owned()));
        assert_eq!(
            at("webserver", "listen_address"),
            Ok("127.0.0.1".to_owned())
        );
        assert!(text.contains("\njson_output: true "), "{text}");
        assert!(
            text.lines()
                .all(|line| line.ends_with(':') || line.ends_with("# default"))
        );
    }
}
