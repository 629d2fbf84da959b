//! What a container's record says to a later command about it.
//!
//! Engines do not repeat all options: podman calls `state` without those of `--runtime-flag`. The record that
//! `create` has left says which runtime has the container, and with which configuration and state folder.

use diagnostics::failure::Failure;

use crate::containers::state_failure;
use crate::{CommandLine, Note, Settings, Store, Verb};

/// Completes a command line by the record of its container, and returns the record. Options that are given stay.
///
/// # Errors
///
/// The id is invalid, or the record cannot be read.
pub fn recall(line: &mut CommandLine) -> Result<Option<Note>, Failure> {
    let makes = |verb| matches!(verb, Verb::Create | Verb::Run | Verb::Restore);
    let call = line.call.as_ref();
    let Some(id) = call
        .filter(|call| !makes(call.verb) && !call.asks_for_help)
        .and_then(|call| call.id.clone())
    else {
        return Ok(None);
    };
    let state = Settings::default().state;
    let Ok(store) = Store::new(&state, line.root.as_deref(), &id) else {
        // The runtime says what is wrong with the id.
        return Ok(None);
    };
    let mut note = store.note().map_err(|error| state_failure(&error))?;
    if note.is_none() && line.root.is_none() {
        note = Store::only_note(&state, &id).map_err(|error| state_failure(&error))?;
    }
    if let Some(note) = &note {
        complete(line, note);
    }
    Ok(note)
}

fn complete(line: &mut CommandLine, note: &Note) {
    // A file that is gone says nothing; the container can still be deleted.
    let file = note.config.as_ref().filter(|file| file.is_file());
    if line.config.is_none() {
        line.config = file.cloned();
    }
    if line.root.is_none()
        && let Some(root) = &note.root
    {
        line.root = Some(root.clone());
        line.global.extend(["--root".into(), root.into()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_given_stay_and_others_come_from_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.yaml");
        std::fs::write(&file, "").unwrap();
        let note: Note = serde_json::from_value(serde_json::json!({
            "id": "a", "bundle": "/b", "has_mounts": true, "groups": [], "config": file, "root": "/r"
        }))
        .unwrap();
        assert!(
            note.is_watched,
            "records of earlier builds are of watched containers"
        );
        let parse = |words: &str| {
            let words: Vec<_> = words.split(' ').map(Into::into).collect();
            CommandLine::parse(&words).unwrap()
        };
        let mut line = parse("state a");
        complete(&mut line, &note);
        assert_eq!(line.config.as_deref(), Some(file.as_path()));
        assert_eq!(line.root.as_deref(), Some("/r".as_ref()));
        assert_eq!(line.global, ["--root", "/r"]);
        let mut line = parse("--root /x --config /y state a");
        complete(&mut line, &note);
        assert_eq!(line.config.as_deref(), Some("/y".as_ref()));
        assert_eq!(line.global, ["--root", "/x"]);
        std::fs::remove_file(&file).unwrap();
        let mut line = parse("delete a");
        complete(&mut line, &note);
        assert_eq!(line.config, None);
    }
}
