//! What the node can enforce, as whoever enforces it has found by trying.
//!
//! Seccomp filters are installed by the container runtime, and the agent tries one. The other enforcers are those of `tollgate
//! runtime`, which has other rights than the agent: it tries them when it confines the first container of a boot, and leaves the
//! results in its folder.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use kinds::EnforcerState;
use policy::Enforcers;
use serde::Deserialize;

use crate::Settings;

/// File of `tollgate runtime` with what it can enforce.
const NOTE: &str = ".enforcers.json";
/// Maximum length in bytes of that file.
const MAX_NOTE: u64 = 64 << 10;
/// The enforcer of the container runtime.
const SECCOMP: &str = "Seccomp";

/// Why other enforcers are not used by an agent without `tollgate runtime`.
const NO_RUNTIME: &str = "the agent confines by seccomp filters; other enforcers need tollgate's runtime, and `--runtime-handler`";
/// Why nothing is known of the enforcers of `tollgate runtime`.
const NOT_TRIED: &str = "tollgate's runtime has confined no container since the node has started, and so has not tried it";

/// What `tollgate runtime` has found. Unknown members are of newer builds.
#[derive(Deserialize)]
struct Note {
    /// Id of the boot in which it has tried.
    boot: String,
    enforcers: Vec<EnforcerState>,
}

fn read(folder: &Path, boot: &str) -> Option<Vec<EnforcerState>> {
    let read = || -> io::Result<Note> {
        let file = File::open(folder.join(NOTE))?.take(MAX_NOTE);
        Ok(serde_json::from_reader(io::BufReader::new(file))?)
    };
    let note = read().ok()?;
    (note.boot == boot).then_some(note.enforcers)
}

/// What the node can enforce. `own` is what the agent itself has tried; its names are those of all enforcers.
/// `used`: those that the agent uses itself beside seccomp.
pub(crate) fn states(
    own: &[EnforcerState],
    used: Enforcers,
    settings: &Settings,
    boot: &str,
) -> Vec<EnforcerState> {
    let is_used = |name: &str| name == SECCOMP || used.iter().any(|kind| kind.name() == name);
    let of_runtime = match settings.handlers.is_empty() {
        true => Err((false, NO_RUNTIME)),
        false => read(&settings.runtime_state, boot).ok_or((true, NOT_TRIED)),
    };
    let state = |one: &EnforcerState| {
        if is_used(&one.name) {
            return one.clone();
        }
        let not = |(unknown, reason): (bool, &str)| EnforcerState {
            name: one.name.clone(),
            available: false,
            unknown,
            reason: reason.to_owned(),
        };
        match &of_runtime {
            Err(cause) => not(*cause),
            Ok(all) => {
                let found = all.iter().find(|other| other.name == one.name);
                found.cloned().unwrap_or_else(|| not((true, NOT_TRIED)))
            }
        }
    };
    own.iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use policy::EnforcerKind;
    use serde_json::json;

    use super::*;
    use crate::tests::settings;

    fn own() -> Vec<EnforcerState> {
        [("Seccomp", true), ("Landlock", true), ("BPF", false)]
            .map(|(name, available)| EnforcerState {
                name: name.to_owned(),
                available,
                unknown: false,
                reason: String::new(),
            })
            .into()
    }

    fn words(all: &[EnforcerState]) -> Vec<(&str, bool, bool)> {
        let words = all
            .iter()
            .map(|one| (&*one.name, one.available, one.unknown));
        words.collect()
    }

    #[test]
    fn enforcers_of_the_runtime_are_what_it_has_found_in_this_boot_and_else_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(folder.path());
        let none = Enforcers::default();
        let unknown = [
            ("Seccomp", true, false),
            ("Landlock", false, true),
            ("BPF", false, true),
        ];
        assert_eq!(words(&states(&own(), none, &settings, "b1")), unknown);
        fs::create_dir_all(&settings.runtime_state).unwrap();
        let note = json!({ "version": 1, "boot": "b1", "enforcers": [
            { "name": "Seccomp", "available": false, "reason": "not what the container runtime uses" },
            { "name": "BPF", "available": true }] });
        fs::write(settings.runtime_state.join(NOTE), note.to_string()).unwrap();
        let found = [
            ("Seccomp", true, false),
            ("Landlock", false, true),
            ("BPF", true, false),
        ];
        assert_eq!(words(&states(&own(), none, &settings, "b1")), found);
        assert_eq!(words(&states(&own(), none, &settings, "b2")), unknown);
        fs::write(settings.runtime_state.join(NOTE), "{").unwrap();
        assert_eq!(words(&states(&own(), none, &settings, "b1")), unknown);
        settings.handlers.clear();
        let without = states(&own(), none, &settings, "b1");
        assert_eq!(words(&without)[1], ("Landlock", false, false));
        assert!(without[1].reason.contains("--runtime-handler"));
        let landlock = none.with(EnforcerKind::Landlock);
        let used = states(&own(), landlock, &settings, "b1");
        assert_eq!(words(&used)[1], ("Landlock", true, false));
    }
}
