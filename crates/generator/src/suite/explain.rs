//! `tollgate generate suite explain`: prints the language of descriptions from the schema that checks them.

use std::fmt::Write as _;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use super::schema::{Kind, Property, ROOT, active};

/// A segment of a path: a property, and the words that select choices of the object in it.
#[derive(Debug, PartialEq)]
struct Segment {
    name: String,
    choices: Vec<(String, String)>,
}

/// Describes what a description may hold at a path such as `tests.steps{type=syscall}{syscall=open}.args`; None is
/// the whole document. `with` are further choices, each `PATH.NAME=WORD`.
///
/// # Errors
///
/// If the path is malformed, or names an unknown property or choice.
pub fn text(path: Option<&str>, with: &[String]) -> Result<String, Failure> {
    let mut segments = path.map_or(Ok(Vec::new()), parse)?;
    for clause in with {
        add(&mut segments, clause)?;
    }
    let mut properties: Vec<&'static Property> = ROOT.iter().collect();
    let mut text = String::new();
    let mut depth = 0;
    for segment in &segments {
        let property = properties
            .iter()
            .find(|property| property.name == segment.name)
            .ok_or_else(|| unknown(&segment.name, &properties))?;
        write_property(&mut text, property, depth);
        depth += 1;
        properties = inner(property, segment)?;
    }
    for property in properties {
        write_property(&mut text, property, depth);
    }
    Ok(text)
}

fn inner(
    property: &'static Property,
    segment: &Segment,
) -> Result<Vec<&'static Property>, Failure> {
    let properties: &'static [Property] = match &property.kind {
        Kind::Object(properties) | Kind::List(properties) => properties,
        _ => &[],
    };
    let choice = |name: &str| {
        let found = segment.choices.iter().find(|(known, _)| known == name);
        found.map(|(_, word)| word.clone())
    };
    let all = active(properties, &choice);
    for (name, word) in &segment.choices {
        let chosen = all.iter().find(|property| property.name == name);
        let chosen = chosen.ok_or_else(|| unknown(name, &all))?;
        let Kind::Choice(variants) = &chosen.kind else {
            return Err(bad(format!("`{name}` is not a choice")));
        };
        if !variants.iter().any(|(known, _)| known == word) {
            let words: Vec<_> = variants.iter().map(|(word, _)| *word).collect();
            return Err(bad(format!("`{name}` has no `{word}`"))
                .help(format!("one of {}", words.join(", "))));
        }
    }
    Ok(all)
}

fn write_property(text: &mut String, property: &Property, depth: usize) {
    let indent = "  ".repeat(depth);
    let kind = match &property.kind {
        Kind::Text => "text".to_owned(),
        Kind::Value => "number, names or reference".to_owned(),
        Kind::Texts => "names and texts".to_owned(),
        Kind::Anything => "names and values".to_owned(),
        Kind::Object(_) => "object".to_owned(),
        Kind::List(_) => "list of objects".to_owned(),
        Kind::Choice(variants) => {
            let words: Vec<_> = variants.iter().map(|(word, _)| *word).collect();
            format!("one of {}", words.join(", "))
        }
    };
    let required = if property.required { ", required" } else { "" };
    let _ = writeln!(
        text,
        "{indent}{}: <{kind}{required}>\n{indent}    {}",
        property.name, property.text
    );
}

fn parse(path: &str) -> Result<Vec<Segment>, Failure> {
    path.split('.')
        .map(|part| {
            let (name, mut rest) = part.split_at(part.find('{').unwrap_or(part.len()));
            let mut choices = Vec::new();
            while !rest.is_empty() {
                let clause = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let (clause, after) = clause.ok_or_else(|| bad(format!("cannot read `{part}`")))?;
                let (key, word) = clause
                    .split_once('=')
                    .ok_or_else(|| bad(format!("cannot read `{part}`")))?;
                choices.push((key.to_owned(), word.to_owned()));
                rest = after;
            }
            Ok(Segment {
                name: name.to_owned(),
                choices,
            })
        })
        .collect()
}

fn add(segments: &mut [Segment], clause: &str) -> Result<(), Failure> {
    let wrong = || {
        bad(format!("cannot use `{clause}`"))
            .help("as in tests.steps.type=syscall, for a part of the path")
    };
    let (path, word) = clause.split_once('=').ok_or_else(wrong)?;
    let mut names: Vec<&str> = path.split('.').collect();
    let key = names.pop().ok_or_else(wrong)?;
    let fits = segments
        .iter()
        .zip(&names)
        .all(|(segment, name)| segment.name == *name);
    let at = names.len().checked_sub(1).ok_or_else(wrong)?;
    let segment = segments.get_mut(at).filter(|_| fits).ok_or_else(wrong)?;
    segment.choices.push((key.to_owned(), word.to_owned()));
    Ok(())
}

fn bad(message: String) -> Failure {
    Failure::new(Exit::BadInput, format!("cannot explain this: {message}"))
}

fn unknown(name: &str, properties: &[&'static Property]) -> Failure {
    let names: Vec<_> = properties.iter().map(|property| property.name).collect();
    bad(format!("no such key: `{name}`")).help(if names.is_empty() {
        "nothing is below it".to_owned()
    } else {
        format!("one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_through_choices() {
        let how = "tests.steps{type=syscall}{syscall=openat2}.args.how";
        let explained = text(Some(how), &[]).unwrap();
        assert!(
            explained.contains("RESOLVE_NO_SYMLINKS") && !explained.contains("context:"),
            "{explained}"
        );
        let with = [
            "tests.steps.type=syscall".to_owned(),
            "tests.steps.syscall=openat2".to_owned(),
        ];
        assert_eq!(
            text(Some("tests.steps.args.how"), &with).unwrap(),
            explained
        );
        assert!(
            text(None, &[])
                .unwrap()
                .starts_with("tests: <list of objects, required>")
        );
    }

    #[test]
    fn paths_to_nothing_are_refused_with_what_there_is() {
        for (path, message) in [
            ("tests.nothing", "one of name, runner"),
            ("tests.steps{type=other}", "one of syscall"),
            ("tests.steps{name=x}", "`name` is not a choice"),
            ("tests.name.x", "nothing is below it"),
            ("tests{", "cannot read `tests{`"),
        ] {
            let refusal = text(Some(path), &[]).unwrap_err().render();
            assert!(refusal.contains(message), "{path}: {refusal}");
        }
        assert!(text(Some("tests"), &["steps.type=syscall".to_owned()]).is_err());
    }
}
