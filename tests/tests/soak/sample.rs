//! What processes use, and what they say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::verdict::Usage;

/// A process of `/proc`.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Its pid.
    pub(crate) pid: i32,
    /// Its name.
    pub(crate) name: String,
    parent: i32,
}

/// Processes of this machine at one moment.
pub(crate) struct Processes(BTreeMap<i32, Process>);

impl Processes {
    /// Reads `/proc`.
    pub(crate) fn read() -> Self {
        let entries = fs::read_dir("/proc").expect("procfs").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(pids.filter_map(|pid| Some((pid, process(pid)?))).collect())
    }

    /// Returns a process and all below it.
    pub(crate) fn tree(&self, top: i32) -> Vec<&Process> {
        let mut found: Vec<&Process> = self.0.get(&top).into_iter().collect();
        let mut at = 0;
        while let Some(parent) = found.get(at).map(|process| process.pid) {
            found.extend(self.0.values().filter(|process| process.parent == parent));
            at += 1;
        }
        found
    }

    /// Returns processes of ours that belong to one of these folders: their program, folder or environment is in it.
    pub(crate) fn ours(&self, folders: &[PathBuf]) -> Vec<&Process> {
        let all = self.0.values();
        all.filter(|process| process.is_ours(folders)).collect()
    }
}

impl Process {
    fn is_ours(&self, folders: &[PathBuf]) -> bool {
        let is_inside = |folder: &PathBuf| belongs(self.pid, folder);
        self.name.starts_with("tollgate") && folders.iter().any(is_inside)
    }
}

/// Returns true for a living process of ours that belongs to one of these folders, as [`Processes::ours`] finds it.
pub(crate) fn is_ours(pid: i32, folders: &[PathBuf]) -> bool {
    process(pid).is_some_and(|process| process.is_ours(folders))
}

/// Reads a process. `None` for one that has ended, also if nobody has waited for it.
fn process(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let name = head.split_once('(')?.1.to_owned();
    (state != "Z").then_some(Process { pid, name, parent })
}

fn belongs(pid: i32, folder: &Path) -> bool {
    let is_inside = |name: &str| {
        fs::read_link(format!("/proc/{pid}/{name}")).is_ok_and(|path| path.starts_with(folder))
    };
    let text = folder.display().to_string();
    let mentions = |name: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{name}"));
        bytes.is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(&text))
    };
    is_inside("exe") || is_inside("cwd") || mentions("cmdline") || mentions("environ")
}

/// Returns what the processes use together. One that ends meanwhile counts with what could be read.
pub(crate) fn usage(pids: &[i32]) -> Usage {
    let mut sum = Usage::default();
    for pid in pids {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_ascii_whitespace().next());
            // A process that is ending has no memory any more.
            word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        let (maps, map_memory) = maps(*pid);
        sum.processes += 1;
        sum.memory += number("VmRSS:");
        sum.threads += number("Threads:");
        sum.descriptors +=
            fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count() as u64);
        sum.maps += maps;
        sum.map_memory += map_memory;
    }
    sum
}

/// Returns the number of descriptors of BPF maps, and their memory in KiB, each map once.
fn maps(pid: i32) -> (u64, u64) {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten()
        .flatten();
    let (mut count, mut bytes, mut seen) = (0, 0, BTreeSet::new());
    for entry in entries {
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        if let (Some(id), Some(memory)) = (value("map_id:"), value("memlock:")) {
            count += 1;
            if seen.insert(id) {
                bytes += memory;
            }
        }
    }
    (count, bytes / 1024)
}

/// Returns the last whole line of a stats file; null if there is none yet.
pub(crate) fn stats(path: &Path) -> Value {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        // No line is that long.
        file.seek(SeekFrom::Start(length.saturating_sub(1 << 16)))?;
        file.read_to_string(&mut text)
    });
    if read.is_err() {
        return Value::Null;
    }
    let lines = text.lines().rev();
    let mut values = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // The start of the file has none.
    values.find(Value::is_object).unwrap_or(Value::Null)
}

/// Returns alerts that the output to a file has lost, by all lines of a stats file: an agent that takes over counts
/// from 0 again.
pub(crate) fn lost_by_all_agents(path: &Path) -> u64 {
    let file = fs::File::open(path).expect("it was written");
    let (mut sum, mut last) = (0, 0);
    for line in BufReader::new(file).lines() {
        let line = line.expect("it is text");
        let stats: Value = serde_json::from_str(&line).expect("it is JSON");
        let channel = &stats["alerts"]["channels"]["file"];
        let kinds = ["lost_queue_full", "lost_write_failed", "lost_rejected"];
        // An agent that is just opening its outputs has no channel yet.
        let lost: u64 = kinds
            .iter()
            .filter_map(|kind| channel[*kind].as_u64())
            .sum();
        if lost < last {
            sum += last;
        }
        last = lost;
    }
    sum + last
}

/// Returns what a sample keeps of the statistics of a detector.
pub(crate) fn extract(stats: &Value) -> Value {
    let channels = stats["alerts"]["channels"].as_object();
    let pending = channels.into_iter().flatten();
    let pending: BTreeMap<&str, &Value> = pending
        .map(|(name, channel)| (name.as_str(), &channel["pending"]))
        .collect();
    json!({
        "drops": stats["cur"]["drops"],
        "events": stats["cur"]["events"],
        "pending": pending,
        "table_processes": stats["counters"]["processes"],
        "table_places": stats["counters"]["container_keys"],
        "gaps": stats["counters"]["gaps"],
    })
}

/// Returns the usage as JSON.
pub(crate) fn as_json(usage: &Usage) -> Value {
    json!({
        "processes": usage.processes,
        "rss_kib": usage.memory,
        "descriptors": usage.descriptors,
        "threads": usage.threads,
        "maps": usage.maps,
        "maps_kib": usage.map_memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_agents_that_were_replaced_are_added() {
        let folder = e2e::Scratch::new();
        let line = |lost: u64| {
            let file = json!({"lost_write_failed": lost, "lost_queue_full": 1});
            format!("{}\n", json!({"alerts": {"channels": {"file": file}}}))
        };
        let text = [3, 7, 0, 0, 5].map(line).concat();
        let path = folder.file("stats", 0o644, text);
        assert_eq!(lost_by_all_agents(&path), 8 + 6);
    }
}
