//! Nodes that have stopped to report.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cluster::Event;
use jiff::Timestamp;
use kinds::NodeReport;

/// When each node has reported last.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    /// `renewTime`, and when a report with it was seen first; by node.
    seen: BTreeMap<String, (String, Instant)>,
}

impl Silences {
    /// Takes a report. One that was old when it was seen first counts from when it was written, as far as the clocks of
    /// both machines agree.
    pub(crate) fn see(&mut self, report: &NodeReport, now: Instant, wall: Timestamp) {
        let Some(status) = &report.status else {
            self.seen.remove(&report.metadata.name);
            return;
        };
        let known = self.seen.get(&report.metadata.name);
        if known.is_some_and(|(time, _)| *time == status.renew_time) {
            return;
        }
        let written: Option<Timestamp> = status.renew_time.parse().ok();
        let age = written.map(|written| wall.duration_since(written));
        // A time that cannot be read, or that lies in the future, says nothing about the age.
        let age = age
            .and_then(|age| Duration::try_from(age).ok())
            .unwrap_or_default();
        let first = now.checked_sub(age).unwrap_or(now);
        let entry = (status.renew_time.clone(), first);
        self.seen.insert(report.metadata.name.clone(), entry);
    }

    pub(crate) fn forget(&mut self, node: &str) {
        self.seen.remove(node);
    }

    /// Events for nodes whose report is older than `limit`. They may come again; that changes nothing.
    pub(crate) fn silent(&self, now: Instant, limit: Duration) -> Vec<Event> {
        let old = self
            .seen
            .iter()
            .filter(|(_, (_, first))| now.duration_since(*first) > limit);
        let silent = old.map(|(node, (since, _))| Event::Silent {
            node: node.clone(),
            since: since.clone(),
        });
        silent.collect()
    }
}
