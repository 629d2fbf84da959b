//! Alerts, repeated ones folded, within a fixed bound.

use std::collections::VecDeque;

use crate::escaped;

/// Most rows; the oldest goes first.
const MOST: usize = 500;
/// Most lines that are kept of a process tree and of a reason.
const MOST_LINES: usize = 40;

/// Alerts that differ in nothing that the user would look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlertRow {
    /// Priority, as Falco writes it.
    pub priority: String,
    /// Name of the rule.
    pub rule: String,
    /// Message of the latest of them.
    pub message: String,
    /// Process id and name of the latest.
    pub process: String,
    /// Subject by which they are folded: the name of the process and of its file or connection.
    pub subject: String,
    /// Time of the latest, as a clock shows it.
    pub time: String,
    /// The process and its ancestors.
    pub tree: Vec<String>,
    /// The parts of the condition that matched, with the values of their fields.
    pub why: Vec<String>,
    /// Number of alerts.
    pub count: u64,
}

/// The latest alerts.
#[derive(Debug, Default)]
pub struct Alerts {
    rows: VecDeque<AlertRow>,
    /// Number of all alerts.
    pub total: u64,
    /// Number of rows that were dropped for newer ones.
    pub dropped_rows: u64,
}

impl Alerts {
    /// Adds an alert. One that repeats an earlier row is counted there, and replaces its details.
    pub fn add(&mut self, alert: AlertRow) {
        self.total += 1;
        let mut alert = cleaned(alert);
        let is_same =
            |row: &AlertRow| row.rule == alert.rule && row.subject == alert.subject;
        let earlier = self.rows.iter().position(is_same);
        let before = earlier.and_then(|position| self.rows.remove(position));
        alert.count = 1 + before.map_or(0, |row| row.count);
        self.rows.push_back(alert);
        if self.rows.len() > MOST {
            self.rows.pop_front();
            self.dropped_rows += 1;
        }
    }

    /// Returns the rows, the latest first.
    pub fn latest(&self) -> impl Iterator<Item = &AlertRow> {
        self.rows.iter().rev()
    }
}

fn cleaned(alert: AlertRow) -> AlertRow {
    let lines = |lines: Vec<String>| -> Vec<String> {
        lines.iter().take(MOST_LINES).map(|line| escaped(line)).collect()
    };
    AlertRow {
        priority: escaped(&alert.priority),
        rule: escaped(&alert.rule),
        message: escaped(&alert.message),
        process: escaped(&alert.process),
        subject: escaped(&alert.subject),
        time: alert.time,
        tree: lines(alert.tree),
        why: lines(alert.why),
        count: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(rule: &str, subject: &str, process: &str) -> AlertRow {
        AlertRow {
            rule: rule.to_owned(),
            subject: subject.to_owned(),
            process: process.to_owned(),
            ..AlertRow::default()
        }
    }

    #[test]
    fn repeated_alerts_are_folded_and_move_to_the_top() {
        let mut alerts = Alerts::default();
        alerts.add(alert("a", "cat /etc/shadow", "1 cat"));
        alerts.add(alert("b", "nc", "2 nc"));
        alerts.add(alert("a", "cat /etc/shadow", "3 cat"));
        let rows: Vec<_> = alerts.latest().map(|row| (&*row.rule, &*row.process, row.count)).collect();
        assert_eq!(rows, [("a", "3 cat", 2), ("b", "2 nc", 1)]);
        assert_eq!(alerts.total, 3);
    }

    #[test]
    fn the_number_of_rows_is_bounded_and_the_total_is_exact() {
        let mut alerts = Alerts::default();
        for number in 0..MOST + 7 {
            alerts.add(alert("a", &number.to_string(), "1 \u{1b}c"));
        }
        assert_eq!(alerts.latest().count(), MOST);
        assert_eq!(alerts.dropped_rows, 7);
        assert_eq!(alerts.total, u64::try_from(MOST + 7).unwrap());
        assert_eq!(alerts.latest().next().unwrap().process, "1 \\u{1b}c");
    }
}
