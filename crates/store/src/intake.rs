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

/// Program and object of the alerts beyond [`GROUPS_OF_A_RULE`], host beyond [`NAMES`].
pub(crate) const OTHER: &str = "(other)";

/// Entries of each map of a [`Cache`]. Beyond that they begin anew.
const REMEMBERED: usize = 20_000;

/// Rule, severity, program and object pattern.
pub(crate) type GroupKey = (String, u8, String, String);

/// A record that was not stored before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewRecord {
    pub(crate) sequence: Option<u64>,
    pub(crate) alert: Option<NewAlert>,
    pub(crate) loss: Option<Loss>,
}

/// Returns what of a batch was not stored before. `before` is the number up to which the sender's records are
/// stored, `host` the host of an agent that has enrolled; empty for a direct sender.
pub(crate) fn new_records(batch: Batch, before: u64, host: &str) -> (Receipt, Vec<NewRecord>) {
    let mut receipt = Receipt {
        acknowledged: before,
        ..Receipt::default()
    };
    if let Some(first) = batch.first {
        receipt.missing = first.saturating_sub(before.saturating_add(1));
    }
    let mut records = Vec::new();
    for (sequence, record) in numbered(batch.first, batch.records) {
        if let Some(sequence) = sequence {
            if sequence <= before {
                receipt.duplicates += 1;
                continue;
            }
            receipt.acknowledged = sequence;
        }
        receipt.stored += 1;
        let (mut alert, loss) = match record {
            Record::Alert(alert, loss) => (Some(alert), loss),
            Record::Loss(loss) => (None, Some(loss)),
            Record::Dropped => (None, None),
        };
        if let Some(alert) = alert.as_mut().filter(|_| !host.is_empty()) {
            // An agent that has enrolled writes as itself, whatever its alerts say.
            host.clone_into(&mut alert.host);
        }
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
    records: Vec<Record>,
) -> impl Iterator<Item = (Option<u64>, Record)> {
    let numbers = (0_u64..).map(move |at| first.map(|first| first.saturating_add(at)));
    numbers.zip(records)
}

/// Number, first and last time of alerts in one hour, of one group and host.
type Counts = BTreeMap<(i64, i64, i64), (i64, i64, i64)>;

/// What a batch adds to the sums: a row for each instead of one for each alert.
#[derive(Default)]
pub(crate) struct Sums {
    /// By hour, group and host.
    pub(crate) counts: Counts,
    /// By hour and severity.
    pub(crate) hours: BTreeMap<(i64, Severity), i64>,
}

impl Sums {
    pub(crate) fn add(&mut self, alert: &NewAlert, group: i64, host: i64) {
        let (time, hour) = (alert.time_ns, alert.time_ns.div_euclid(HOUR_NS));
        let entry = self.counts.entry((hour, group, host));
        let entry = entry.or_insert((0, time, time));
        *entry = (entry.0 + 1, entry.1.min(time), entry.2.max(time));
        *self.hours.entry((hour, alert.severity)).or_default() += 1;
    }
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
