//! What both databases do alike with a batch: which of its records are new, numbers of hosts and groups, and sums.

use std::collections::{BTreeMap, HashMap};

use crate::error::StoreError;
use crate::model::{Batch, Loss, NewAlert, Receipt, Record};
use crate::severity::Severity;

/// Nanoseconds of an hour.
pub(crate) const HOUR_NS: i64 = 3_600_000_000_000;

/// Groups of one rule at most. Programs and objects have names that a hostile workload chooses: beyond this
/// number its alerts share one group, so that it cannot fill the pages of others.
const GROUPS_OF_A_RULE: i64 = 2000;

/// Rules, and hosts, at most, for the same reason: a sender names them.
const NAMES: i64 = 20_000;

/// Rows of losses of one sender at most. Further losses are added to its latest row of their kind, so that a sender cannot
/// fill the store with them, and none is forgotten.
pub(crate) const LOSSES: i64 = 5000;

/// Program and object of the alerts beyond [`GROUPS_OF_A_RULE`], host beyond [`NAMES`].
pub(crate) const OTHER: &str = "(other)";

/// Entries of each map of a [`Cache`]. Beyond that they begin anew.
const REMEMBERED: usize = 20_000;

/// Rule, severity, program and object pattern.
pub(crate) type GroupKey = (String, u8, String, String);

/// A record that was not stored before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewRecord<'a> {
    pub(crate) sequence: Option<u64>,
    pub(crate) alert: Option<&'a NewAlert>,
    pub(crate) loss: Option<&'a Loss>,
}

/// What becomes of a batch whose numbers pass over some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// They are counted as missing.
    Counted,
    /// The batch is refused: they can still come.
    Refused,
}

/// Refuses a batch that has to follow what is stored, and does not.
pub(crate) fn check_order(batch: &Batch, before: u64, hole: Hole) -> Result<(), StoreError> {
    let expected = before.saturating_add(1);
    match batch.first {
        Some(first) if hole == Hole::Refused && first > expected => {
            Err(StoreError::OutOfOrder { first, expected })
        }
        _ => Ok(()),
    }
}

/// Returns what of a batch was not stored before. `before` is the number up to which the sender's records are
/// stored, `host` the host of an agent that has enrolled; empty for a direct sender.
pub(crate) fn new_records<'a>(
    batch: &'a mut Batch,
    before: u64,
    host: &str,
) -> (Receipt, Vec<NewRecord<'a>>) {
    for record in &mut batch.records {
        if let Record::Alert(alert, _) = record
            && !host.is_empty()
        {
            // An agent that has enrolled writes as itself, whatever its alerts say.
            host.clone_into(&mut alert.host);
        }
    }
    let mut receipt = Receipt {
        acknowledged: before,
        ..Receipt::default()
    };
    // A batch without records acknowledges nothing, so what it passes over would be counted again with the next one.
    if let Some(first) = batch.first.filter(|_| !batch.records.is_empty()) {
        receipt.missing = first.saturating_sub(before.saturating_add(1));
    }
    let mut records = Vec::new();
    for (sequence, record) in numbered(batch.first, &batch.records) {
        if let Some(sequence) = sequence {
            if sequence <= before {
                receipt.duplicates += 1;
                continue;
            }
            receipt.acknowledged = sequence;
        }
        receipt.stored += 1;
        let (alert, loss) = match record {
            Record::Alert(alert, loss) => (Some(alert), loss.as_ref()),
            Record::Loss(loss) => (None, Some(loss)),
            Record::Dropped => (None, None),
        };
        records.push(NewRecord {
            sequence,
            alert,
            loss,
        });
    }
    (receipt, records)
}

/// Pairs each record with its sequence number.
fn numbered(
    first: Option<u64>,
    records: &[Record],
) -> impl Iterator<Item = (Option<u64>, &Record)> {
    let numbers = (0_u64..).map(move |at| first.map(|first| first.saturating_add(at)));
    numbers.zip(records)
}

/// Number, first and last time of alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) count: i64,
    pub(crate) first_ns: i64,
    pub(crate) last_ns: i64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

/// What batches add to the sums: a row for each instead of one for each alert. Those of all batches in a transaction are
/// written together, because batches of different agents add to the same rows.
#[derive(Default)]
pub(crate) struct Sums {
    /// By host, hour and group.
    pub(crate) host_hours: BTreeMap<(i64, i64, i64), Sum>,
    /// By hour and severity.
    pub(crate) hours: BTreeMap<(i64, Severity), i64>,
    /// By hour and rule.
    rules: BTreeMap<(i64, String), i64>,
}

impl Sums {
    /// Entries of a transaction's sums from which on they are written before its end: bounds memory.
    pub(crate) const MANY: usize = 50_000;

    pub(crate) fn is_empty(&self) -> bool {
        self.host_hours.is_empty()
    }

    pub(crate) fn is_large(&self) -> bool {
        self.host_hours.len() >= Self::MANY
    }

    /// Adds the sums of another batch.
    pub(crate) fn merge(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        for (key, sum) in other.host_hours {
            add_to(&mut self.host_hours, key, sum);
        }
        for (key, count) in other.hours {
            *self.hours.entry(key).or_default() += count;
        }
        for (key, count) in other.rules {
            *self.rules.entry(key).or_default() += count;
        }
    }

    pub(crate) fn add(&mut self, alert: &NewAlert, group: i64, host: i64) {
        let (time, hour) = (alert.time_ns, alert.time_ns.div_euclid(HOUR_NS));
        let one = Sum {
            count: 1,
            first_ns: time,
            last_ns: time,
        };
        add_to(&mut self.host_hours, (host, hour, group), one);
        *self.hours.entry((hour, alert.severity)).or_default() += 1;
        let rule = self.rules.entry((hour, alert.rule.clone()));
        *rule.or_default() += 1;
    }

    /// Sums by hour and group.
    pub(crate) fn group_hours(&self) -> BTreeMap<(i64, i64), Sum> {
        self.by(|_, hour, group| (hour, group))
    }

    /// Sums by group and host.
    pub(crate) fn group_hosts(&self) -> BTreeMap<(i64, i64), Sum> {
        self.by(|host, _, group| (group, host))
    }

    /// Sums by group.
    pub(crate) fn groups(&self) -> BTreeMap<i64, Sum> {
        self.by(|_, _, group| group)
    }

    /// Sums by host.
    pub(crate) fn hosts(&self) -> BTreeMap<i64, Sum> {
        self.by(|host, _, _| host)
    }

    fn by<K: Ord>(&self, key: impl Fn(i64, i64, i64) -> K) -> BTreeMap<K, Sum> {
        let mut sums = BTreeMap::new();
        for ((host, hour, group), sum) in &self.host_hours {
            add_to(&mut sums, key(*host, *hour, *group), *sum);
        }
        sums
    }

    /// Numbers of alerts by span, its start and rule.
    pub(crate) fn rules(&self) -> BTreeMap<(i64, i64, &str), i64> {
        let mut sums = BTreeMap::new();
        for ((hour, rule), count) in &self.rules {
            for (span, start) in spans(*hour) {
                *sums.entry((span, start, &**rule)).or_default() += count;
            }
        }
        sums
    }

    /// Numbers of alerts by span, its start and host.
    pub(crate) fn host_spans(&self) -> BTreeMap<(i64, i64, i64), i64> {
        let mut sums = BTreeMap::new();
        for ((host, hour, _), sum) in &self.host_hours {
            for (span, start) in spans(*hour) {
                *sums.entry((span, start, *host)).or_default() += sum.count;
            }
        }
        sums
    }
}

fn add_to<K: Ord>(sums: &mut BTreeMap<K, Sum>, key: K, sum: Sum) {
    let add = |known: &mut Sum| known.add(sum);
    sums.entry(key).and_modify(add).or_insert(sum);
}

/// Hours of a day, which are its span in sums of rules and hosts.
pub(crate) const DAY: i64 = 24;

/// Returns the spans that an hour is in, each with its start: the hour and the day.
fn spans(hour: i64) -> [(i64, i64); 2] {
    [(1, hour), (DAY, hour.div_euclid(DAY))]
}

/// Parts of a range of hours: span, first and last start. Days where they fit, so that a month has 30 rows of a host and
/// not 720. A part whose first start exceeds its last is empty.
pub(crate) fn parts(first_hour: i64, last_hour: i64) -> [(i64, i64, i64); 3] {
    let first_day = first_hour.saturating_add(DAY - 1).div_euclid(DAY);
    let last_day = last_hour.saturating_add(1).div_euclid(DAY) - 1;
    if first_day > last_day {
        return [(1, first_hour, last_hour), (DAY, 1, 0), (1, 1, 0)];
    }
    [
        (1, first_hour, first_day * DAY - 1),
        (DAY, first_day, last_day),
        (1, (last_day + 1) * DAY, last_hour),
    ]
}

/// Numbers of hosts and groups that need not be looked up.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    hosts: HashMap<String, i64>,
    groups: HashMap<GroupKey, i64>,
}

impl Cache {
    /// Forgets numbers of rows that may have gone.
    pub(crate) fn forget(&mut self) {
        self.hosts.clear();
        self.groups.clear();
    }

    /// Forgets everything if that is too much.
    pub(crate) fn trim(&mut self) {
        if self.hosts.len() > REMEMBERED || self.groups.len() > REMEMBERED {
            self.forget();
        }
    }
}

/// Numbers of hosts and groups in a database.
pub(crate) trait Names {
    fn cache(&mut self) -> &mut Cache;
    fn find_host(&mut self, name: &str) -> Result<Option<i64>, StoreError>;
    fn add_host(&mut self, name: &str) -> Result<i64, StoreError>;
    fn host_count(&mut self) -> Result<i64, StoreError>;
    fn find_group(&mut self, key: &GroupKey) -> Result<Option<i64>, StoreError>;
    fn add_group(&mut self, key: &GroupKey) -> Result<i64, StoreError>;
    fn groups_of(&mut self, rule: &str) -> Result<i64, StoreError>;
    fn rule_count(&mut self) -> Result<i64, StoreError>;
}

/// Returns the number of a host, and adds it if it is new.
pub(crate) fn host(names: &mut impl Names, name: &str) -> Result<i64, StoreError> {
    if let Some(id) = names.cache().hosts.get(name) {
        return Ok(*id);
    }
    let id = match names.find_host(name)? {
        Some(id) => id,
        None if name != OTHER && names.host_count()? >= NAMES => host(names, OTHER)?,
        None => names.add_host(name)?,
    };
    names.cache().hosts.insert(name.to_owned(), id);
    Ok(id)
}

/// Returns the number of the group of an alert, and adds it if it is new.
pub(crate) fn group(names: &mut impl Names, alert: &NewAlert) -> Result<i64, StoreError> {
    let key = (
        alert.rule.clone(),
        alert.severity.number(),
        alert.program.clone(),
        alert.object.clone(),
    );
    if let Some(id) = names.cache().groups.get(&key) {
        return Ok(*id);
    }
    let id = match names.find_group(&key)? {
        Some(id) => id,
        None => new_group(names, &key)?,
    };
    names.cache().groups.insert(key, id);
    Ok(id)
}

/// Adds a group, or returns the one for all that exceeds the limits.
fn new_group(names: &mut impl Names, key: &GroupKey) -> Result<i64, StoreError> {
    let (rule, severity, ..) = key;
    let other = || OTHER.to_owned();
    let known = names.groups_of(rule)?;
    let key = if known == 0 && names.rule_count()? >= NAMES {
        &(other(), *severity, other(), other())
    } else if known >= GROUPS_OF_A_RULE {
        &(rule.clone(), *severity, other(), other())
    } else {
        key
    };
    match names.find_group(key)? {
        Some(id) => Ok(id),
        None => names.add_group(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_range_have_each_of_its_hours_once() {
        for first in -50..50 {
            for last in first..first + 80 {
                let hours = parts(first, last).into_iter().flat_map(|(span, from, to)| {
                    let starts = from..=to;
                    starts.flat_map(move |start| start * span..(start + 1) * span)
                });
                let hours: Vec<i64> = hours.collect();
                assert_eq!(hours, (first..=last).collect::<Vec<_>>(), "{first} {last}");
            }
        }
        // Times of senders may be anything.
        let widest = i64::MAX.div_euclid(HOUR_NS);
        assert!(parts(-widest, widest)[1].1 < 0);
    }
}
