//! The command line of `tollgate run` that watches a container.

use std::ffi::OsString;
use std::path::Path;

use config::WatchedBy;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use runtime::settings::{ALERTS, FIELDS, Settings, make_alert_folder};
use runtime::{Note, Store, Verb};

/// The command line of `tollgate run` that watches a container, up to its CMD.
pub(super) fn words(
    settings: &Settings,
    note: &Note,
    verb: Verb,
    store: &Store,
) -> Result<Vec<OsString>, Failure> {
    let mut words: Vec<OsString> = ["tollgate", "run", "--quiet", "--engine", "notify"]
        .map(OsString::from)
        .into();
    let mut option = |key: &str, value: &dyn AsRef<std::ffi::OsStr>| {
        let mut word = OsString::from(key);
        word.push("=");
        word.push(value);
        words.push(word);
    };
    match &settings.file {
        Some(file) => option("--config", file),
        None => option("--option", &FIELDS),
    }
    if !settings.has_output() {
        make_alert_folder()?;
        option("--option", &"json_output=true");
        option("--option", &"file_output.enabled=true");
        option("--option", &format!("file_output.filename={ALERTS}"));
    }
    // It is the container's.
    option("--option", &"stdout_output.enabled=false");
    if settings.denies_unwatched()? {
        option("--on-agent-death", &"deny");
    }
    if let Some(policy) = &note.policy {
        option("--policy", policy);
        for rule in &settings.config.runtime.accept_partial {
            option("--accept-partial", rule);
        }
    }
    option("--told-container", &note.id);
    option("--told-bundle", &note.bundle);
    push_sharing(&mut words, settings, note, verb, store)?;
    Ok(words)
}

/// What the agent shares with those of other containers and of other programs of this one.
fn push_sharing(
    words: &mut Vec<OsString>,
    settings: &Settings,
    note: &Note,
    verb: Verb,
    store: &Store,
) -> Result<(), Failure> {
    if note.has_mounts {
        // Beside the notes of containers, not among them.
        let above = settings.state.parent().unwrap_or(Path::new("/"));
        let mut word = OsString::from("--told-plans=");
        word.push(above.join("plans"));
        words.push(word);
    } else {
        words.push("--told-host-mounts".into());
    }
    if note.policy.is_some() && settings.config.runtime.audit {
        words.push("--audit".into());
    }
    if settings.config.runtime.agent == WatchedBy::Host {
        can_be_watched_by_host(settings)?;
        let above = settings.state.parent().unwrap_or(Path::new("/"));
        let mut word = OsString::from("--told-agent=");
        word.push(above.join("agents"));
        words.push(word);
    } else if shares_agents(settings) {
        let mut word = OsString::from(match verb {
            Verb::Exec => "--told-session=",
            _ => "--told-door=",
        });
        word.push(store.folder());
        words.push(word);
    }
    Ok(())
}

/// Whether the agent of a container watches its exec sessions, too. Each session is recorded by itself, and
/// where processes may look into their descendants alone, a session is none of that agent's.
fn shares_agents(settings: &Settings) -> bool {
    !settings.config.capture.enabled && !supervisor::sees_descendants_only()
}

fn can_be_watched_by_host(settings: &Settings) -> Result<(), Failure> {
    let refused = |why: &str, help: &str| {
        let message = format!("cannot watch containers with one agent (--agent host): {why}");
        Err(Failure::new(Exit::Unsupported, message).help(help.to_owned()))
    };
    if supervisor::sees_descendants_only() {
        return refused(
            "Yama allows processes to read only their descendants, and containers are not",
            "run as root or with CAP_SYS_PTRACE, or use --agent container",
        );
    }
    if settings.config.capture.enabled {
        return refused(
            "`capture` is enabled, and a recording belongs to one container",
            "use --agent container, or remove `capture` from the configuration",
        );
    }
    Ok(())
}
