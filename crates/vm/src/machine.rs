//! The note about a started machine. Commands of other builds read it, too.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::started;

/// Version of the note, and of the frames that the machine's monitor takes from commands ([`super::frame`]): commands
/// of another version do not talk to it. Notes of the first builds have none, and are as those of version 1.
const VERSION: u32 = 1;

/// Note about a started machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Machine {
    #[serde(default = "first")]
    version: u32,
    /// Pid of the monitor.
    pub(super) pid: i32,
    /// Start time of the monitor in kernel ticks, because pids are reused.
    start: u64,
    pub(super) annotations: BTreeMap<String, String>,
}

/// What every version has.
#[derive(Deserialize)]
struct WrittenVersion {
    #[serde(default = "first")]
    version: u32,
}

fn first() -> u32 {
    1
}

impl Machine {
    pub(super) fn new(pid: i32, start: u64, annotations: BTreeMap<String, String>) -> Self {
        Self {
            version: VERSION,
            pid,
            start,
            annotations,
        }
    }

    /// Returns true if the monitor runs.
    pub(super) fn is_there(&self) -> bool {
        started(self.pid) == Some(self.start)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it is plain data")
    }

    /// Reads the note; `None` if there is none. A note of another version is an error.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // Read first: another version may have other fields.
        let WrittenVersion { version } = serde_json::from_slice(&text)?;
        if version != VERSION {
            return Err(io::Error::other(format!(
                "{} is of version {version}, and this program reads version {VERSION}",
                path.display()
            )));
        }
        Ok(Some(serde_json::from_slice(&text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> io::Result<Option<Machine>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.json");
        assert_eq!(Machine::read(&file).unwrap(), None);
        std::fs::write(&file, text).unwrap();
        Machine::read(&file)
    }

    fn machine() -> Machine {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        Machine::new(7, 8, annotations)
    }

    #[test]
    fn a_note_is_read_as_it_was_written_also_by_the_first_builds() {
        assert_eq!(read(&machine().encode()).unwrap(), Some(machine()));
        let earlier = br#"{"pid":7,"start":8,"annotations":{"a":"b"}}"#;
        assert_eq!(read(earlier).unwrap(), Some(machine()));
    }

    #[test]
    fn a_note_of_another_version_is_refused_by_its_number_whatever_its_fields() {
        for version in [0, VERSION + 1, u32::MAX] {
            let same = Machine {
                version,
                ..machine()
            };
            let other = format!("{{\"version\":{version},\"pid\":\"7\"}}");
            for text in [&same.encode()[..], other.as_bytes()] {
                let why = read(text).unwrap_err().to_string();
                let expected =
                    format!("is of version {version}, and this program reads version {VERSION}");
                assert!(why.contains(&expected), "{why}");
            }
        }
    }

    #[test]
    fn a_part_of_a_note_and_one_with_a_broken_byte_are_errors() {
        let whole = machine().encode();
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "{len}");
            let mut broken = whole.clone();
            broken[len] = 0xff;
            assert!(read(&broken).is_err(), "{len}");
        }
    }
}
