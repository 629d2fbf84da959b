//! A file of alerts that is rotated.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::Alert;

/// Reads the alerts of a file and of those that it was renamed to.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    rotated: Vec<PathBuf>,
    number: usize,
    /// Alerts by rule, of files that were counted and removed.
    counted: BTreeMap<String, u64>,
    /// Calls in unwatched intervals, and alerts lost with an agent.
    gaps: u64,
    /// Alerts that the file lost.
    lost: u64,
    /// Lines that are no alerts.
    broken: u64,
}

impl Log {
    /// A log at this path.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            rotated: Vec::new(),
            number: 0,
            counted: BTreeMap::new(),
            gaps: 0,
            lost: 0,
            broken: 0,
        }
    }

    /// Renames the file, as logrotate does. Its writer is told by who calls. The file before is counted and removed:
    /// its writer has had the time between two rotations to notice.
    pub(crate) fn rotate(&mut self) {
        for old in std::mem::take(&mut self.rotated) {
            self.count(&old);
            fs::remove_file(&old).expect("it was there");
        }
        self.number += 1;
        let new = self.path.with_extension(self.number.to_string());
        // No alert has come since the last one.
        if fs::rename(&self.path, &new).is_ok() {
            self.rotated.push(new);
        }
    }

    /// Returns the number of rotations.
    pub(crate) fn rotations(&self) -> usize {
        self.number
    }

    /// Counts all that is left, when nobody writes any more.
    pub(crate) fn finish(&mut self) {
        for old in std::mem::take(&mut self.rotated) {
            self.count(&old);
        }
        let path = self.path.clone();
        if path.exists() {
            self.count(&path);
        }
    }

    fn count(&mut self, path: &Path) {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for line in String::from_utf8_lossy(&bytes)
            .lines()
            .filter(|line| !line.is_empty())
        {
            let Some(alert) = Alert::parse(line) else {
                self.broken += 1;
                continue;
            };
            let number = |name: &str| {
                // An alert that lacks the number reports nothing.
                let number = alert.fields.get(name).and_then(serde_json::Value::as_u64);
                number.unwrap_or(0)
            };
            let is_file = alert
                .fields
                .get("tollgate.channel")
                .is_some_and(|name| name == "file");
            if alert.rule == "Tollgate internal: output queue full" && is_file {
                self.lost += number("tollgate.lost");
            }
            if alert.rule == "Tollgate internal: unwatched gap" {
                self.gaps += number("tollgate.gap.calls") + number("tollgate.gap.lost_alerts");
            }
            *self.counted.entry(alert.rule).or_default() += 1;
        }
    }

    /// Returns how often a rule has alerted.
    pub(crate) fn of(&self, rule: &str) -> u64 {
        self.counted.get(rule).copied().unwrap_or(0)
    }

    /// Returns all rules with their numbers of alerts.
    pub(crate) fn rules(&self) -> &BTreeMap<String, u64> {
        &self.counted
    }

    /// Returns calls and alerts that alerts say are missing.
    pub(crate) fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Returns alerts that alerts say the file lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns lines that are no alerts: those that a full disk has cut.
    pub(crate) fn broken(&self) -> u64 {
        self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_of_rotated_files_are_counted_once() {
        let folder = e2e::Scratch::new();
        let path = folder.path().join("alerts");
        let line = r#"{"output":"x","output_fields":{},"priority":"Notice","rule":"R","source":"syscall","tags":[],"time":"t"}"#;
        let mut log = Log::new(path.clone());
        for _ in 0..3 {
            fs::write(&path, format!("{line}\n{line}\n")).expect("it is ours");
            log.rotate();
        }
        fs::write(&path, format!("{line}\nbroken")).expect("it is ours");
        log.finish();
        assert_eq!((log.of("R"), log.broken(), log.rotations()), (7, 1, 3));
    }
}
