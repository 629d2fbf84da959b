//! Every enforcer, as this process finds it by trying: what `tollgate runtime` leaves for the agent of a Kubernetes node.

use std::fs;
use std::io;
use std::path::Path;

use kinds::EnforcerState;
use policy::EnforcerKind;
use probe::Support;
use serde_json::{Value, json};

/// File in the folder of `tollgate runtime`.
const NOTE: &str = ".enforcers.json";
/// File with the id of the boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Version of the format.
const VERSION: u32 = 1;

/// Tries an enforcer. The calling process must have one thread, because the probe forks.
fn probe(kind: EnforcerKind) -> EnforcerState {
    let support = enforce::probe::probe(kind);
    EnforcerState {
        name: kind.name().to_owned(),
        available: support.is_usable(),
        unknown: false,
        reason: match support {
            Support::Yes { .. } => String::new(),
            Support::Partial { why, .. } | Support::No { why, .. } => why,
        },
    }
}

/// All enforcers, of which the agent of a node can try one: the others need rights that it lacks. The calling process must have
/// one thread.
#[cfg(feature = "kubernetes")]
pub(crate) fn of_agent() -> Vec<EnforcerState> {
    let state = |kind: EnforcerKind| match kind {
        EnforcerKind::Seccomp => probe(kind),
        _ => EnforcerState {
            name: kind.name().to_owned(),
            available: false,
            unknown: true,
            reason: String::new(),
        },
    };
    EnforcerKind::ALL.map(state).into()
}

/// Leaves what this process can enforce in a folder, once in each boot and for each version of the program. A note that cannot
/// be written leaves it unknown, which is what the agent reports then.
pub(crate) fn note(folder: &Path) {
    let Ok(boot) = fs::read_to_string(BOOT) else {
        return;
    };
    let (boot, program) = (boot.trim(), env!("CARGO_PKG_VERSION"));
    let path = folder.join(NOTE);
    let known = fs::read(&path).ok();
    let known: Option<Value> = known.and_then(|text| serde_json::from_slice(&text).ok());
    let is_current = |note: Value| note["boot"] == boot && note["program"] == program;
    if known.is_some_and(is_current) {
        return;
    }
    let note = json!({ "version": VERSION, "boot": boot, "program": program, "enforcers": EnforcerKind::ALL.map(probe) });
    let _ = write(folder, &path, &note);
}

/// Writes a file that is there as a whole or not at all.
fn write(folder: &Path, path: &Path, note: &Value) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let begun = folder.join(format!("{NOTE}.{}", std::process::id()));
    fs::write(&begun, note.to_string())?;
    fs::rename(&begun, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_this_boot_and_this_program_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NOTE);
        let read = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
        let known = json!({ "boot": fs::read_to_string(BOOT).unwrap().trim(), "program": env!("CARGO_PKG_VERSION"),
            "enforcers": [] });
        fs::write(&path, known.to_string()).unwrap();
        note(folder.path());
        assert_eq!(read(), known);
    }
}
