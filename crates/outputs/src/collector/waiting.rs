//! What waits in the spool for the collector.

use std::io;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::spool::Spool;
use super::standing::LocalError;

const SECOND_NS: i128 = 1_000_000_000;

/// Records that the collector has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Number of records.
    pub(super) records: u64,
    /// Age of the oldest alert in seconds; `None` without one, or if the oldest record has no time.
    pub(super) oldest_seconds: Option<u64>,
}

impl Waiting {
    /// Looks at the spool.
    pub(super) fn of(spool: &mut Spool) -> io::Result<Self> {
        Self::at(spool, Timestamp::now())
    }

    fn at(spool: &mut Spool, now: Timestamp) -> io::Result<Self> {
        let folder = spool.folder().to_owned();
        let oldest = spool.pending(1);
        let oldest = oldest.map_err(LocalError::of("read the spool", &folder))?;
        Ok(Self {
            records: spool.next() - spool.first(),
            oldest_seconds: oldest.and_then(|oldest| age(&oldest.text, now)),
        })
    }

    /// Returns the member of the inventory.
    pub(super) fn as_json(self) -> Value {
        json!({"pending": self.records, "oldest_seconds": self.oldest_seconds})
    }
}

/// Returns the age of an alert in seconds. An alert of the future has no age: the clock was set back.
fn age(line: &[u8], now: Timestamp) -> Option<u64> {
    let alert: Value = serde_json::from_slice(line).ok()?;
    let time: Timestamp = alert["time"].as_str()?.parse().ok()?;
    let age = (now.as_nanosecond() - time.as_nanosecond()) / SECOND_NS;
    u64::try_from(age.max(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_record_that_is_not_acknowledged_has_an_age() {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let mut spool = Spool::open(folder.path(), 1 << 20).expect("a spool");
        let now: Timestamp = "2026-11-30T00:10:00Z".parse().expect("a time");
        let waiting = |spool: &mut Spool| Waiting::at(spool, now).expect("readable");
        let empty = waiting(&mut spool);
        assert_eq!((empty.records, empty.oldest_seconds), (0, None));
        let alert = |time: &str| format!(r#"{{"time":"{time}","rule":"r"}}"#);
        let lines = [
            alert("2026-11-30T00:00:00.5Z"),
            alert("2026-11-30T00:20:00Z"),
            "-".to_owned(),
        ];
        spool.append(&lines).expect("writable");
        let expected = [(3, Some(599)), (2, Some(0)), (1, None)];
        for (at, (records, oldest_seconds)) in expected.into_iter().enumerate() {
            assert_eq!(
                waiting(&mut spool),
                Waiting {
                    records,
                    oldest_seconds
                }
            );
            spool.acknowledge(at as u64 + 1).expect("writable");
        }
        assert_eq!(waiting(&mut spool).records, 0);
        let shown = Waiting {
            records: 2,
            oldest_seconds: None,
        };
        assert_eq!(
            shown.as_json(),
            json!({"pending": 2, "oldest_seconds": null})
        );
    }
}
