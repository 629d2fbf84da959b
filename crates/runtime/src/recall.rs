//! What a container's record says to a later command about it.
//!
//! Engines do not repeat all options: podman calls `state` without those of `--runtime-flag`. The record that
//! `create` has left says which runtime has the container, and with which configuration and state folder.

use std::path::PathBuf;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::caller::warn;
use crate::containers::state_failure;
use crate::store::OnlyNote;
use crate::{Call, CommandLine, Note, Store, Verb, settings};

/// What is recorded about the container of a command.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// The record; `None` if there is none, or the command has no container yet.
    pub note: Option<Note>,
    /// The folder of records that has it, or that gets new ones.
    pub state: PathBuf,
}

/// Completes a command line by the record of its container, and returns the record. Options that are given stay.
///
/// Without `--root`, a container that was made with another `--root` is only found by commands that change nothing,
/// and only if the runtime does not know the id by itself, which `is_known` answers: else anybody who can choose an
/// id could have the container of another engine ended.
///
/// # Errors
///
/// - The record cannot be read.
/// - [`Exit::BadInput`] if the command would change a container that was made with another `--root`.
pub fn recall(
    line: &mut CommandLine,
    is_known: impl FnOnce(&CommandLine, &str) -> Result<bool, Failure>,
) -> Result<Recalled, Failure> {
    let folders = settings::note_folders();
    let (state, others) = folders.split_first().expect("there is one for new notes");
    let none = Recalled {
        note: None,
        state: state.clone(),
    };
    let Some((call, id)) = container(line) else {
        return Ok(none);
    };
    let Ok(store) = Store::new(state, line.root.as_deref(), &id) else {
        // The runtime says what is wrong with the id.
        return Ok(none);
    };
    let mut found = store.note().map_err(|error| state_failure(&error))?;
    let mut folder = state;
    for other in others {
        if found.is_some() {
            break;
        }
        let store = Store::new(other, line.root.as_deref(), &id);
        match store.and_then(|store| store.note()) {
            Ok(note) => (found, folder) = (note, other),
            Err(error) => warn(line, &state_failure(&error).render()),
        }
    }
    if found.is_none() && line.root.is_none() {
        let mut only = OnlyNote::default();
        folders.iter().for_each(|folder| only.look(folder, &id));
        only.unreadable
            .iter()
            .for_each(|error| warn(line, &state_failure(error).render()));
        if let Some((note, state)) = only.take()
            && !is_known(line, &id)?
        {
            is_usable(&note, &call)?;
            complete(line, &note);
            let note = Some(note);
            return Ok(Recalled { note, state });
        }
    }
    if let Some(note) = &found {
        complete(line, note);
    }
    Ok(Recalled {
        note: found,
        state: folder.clone(),
    })
}

/// Returns the command about an existing container, and the container's id.
fn container(line: &CommandLine) -> Option<(Call, String)> {
    let makes = |verb| matches!(verb, Verb::Create | Verb::Run | Verb::Restore);
    let call = line.call.clone()?;
    let id = call.id.clone()?;
    (!makes(call.verb) && !call.asks_for_help).then_some((call, id))
}

/// Refuses commands that would change a container of another state folder than the default one.
fn is_usable(note: &Note, call: &Call) -> Result<(), Failure> {
    let Some(root) = note.root.as_ref().filter(|_| !call.only_reads()) else {
        return Ok(());
    };
    let (verb, id, root) = (call.name(), &note.id, root.display());
    let message =
        format!("cannot {verb} {id}: its runtime keeps it in {root}, not in the default folder");
    Err(Failure::new(Exit::BadInput, message).help(format!("name that folder: --root {root}")))
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
