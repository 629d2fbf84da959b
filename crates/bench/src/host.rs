//! The host and the programs of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::command_line;
use crate::plan::Plan;

/// Content of `host.json`. Values that the host does not provide are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// The command line of this program.
    pub command: String,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Kernel version, as `uname -v` prints it.
    pub kernel_version: Option<String>,
    /// Model name of the first CPU.
    pub cpu_model: Option<String>,
    /// CPUs that this program may use.
    pub cpus: Option<usize>,
    /// CPUs that share a core, as the kernel lists them.
    pub thread_siblings: Vec<String>,
    /// Frequency governor of the first CPU.
    pub governor: Option<String>,
    /// The kernel's clock source, which every time in the samples comes from.
    pub clocksource: Option<String>,
    /// CPU vulnerabilities and the kernel's mitigations, which decide what a system call costs.
    pub mitigations: BTreeMap<String, String>,
    /// Memory of the host, in KiB.
    pub memory_kib: Option<u64>,
    /// The git commit of the current directory.
    pub commit: Option<String>,
    /// True if tracked files differ from that commit.
    pub commit_dirty: Option<bool>,
    /// Version of each subject, as it prints it.
    pub versions: BTreeMap<String, String>,
    /// State of the host before the first sample.
    pub before: State,
    /// State of the host after the last sample.
    pub after: Option<State>,
}

/// The part of the host's state that changes during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Time in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
    /// Load averages of 1, 5 and 15 minutes.
    pub load: Option<[f64; 3]>,
    /// Steal time of all CPUs since boot, in milliseconds: time that the hypervisor gave to other guests.
    pub steal_ms: Option<u64>,
}

impl Host {
    /// Collects the data from the kernel, git and the subjects of `plan`.
    pub fn observe(plan: &Plan) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .as_deref()
            .and_then(|text| value_after(text, "model name"));
        let memory = read("/proc/meminfo").and_then(|text| value_after(&text, "MemTotal"));
        Self {
            command: command_line::join(&std::env::args().collect::<Vec<_>>()),
            kernel: read("/proc/sys/kernel/osrelease"),
            kernel_version: read("/proc/sys/kernel/version"),
            cpu_model: model,
            cpus: std::thread::available_parallelism().ok().map(usize::from),
            thread_siblings: thread_siblings(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            mitigations: mitigations(),
            memory_kib: memory.and_then(|text| text.split(' ').next()?.parse().ok()),
            commit: first_line("git", &["rev-parse", "HEAD"]),
            commit_dirty: output("git", &["status", "--porcelain", "--untracked-files=no"])
                .map(|changes| !changes.trim().is_empty()),
            versions: versions(plan),
            before: State::now(),
            after: None,
        }
    }

    /// Records the state at the end of the run.
    pub fn finish(&mut self) {
        self.after = Some(State::now());
    }
}

impl State {
    /// Reads the current state.
    pub fn now() -> Self {
        Self {
            timestamp_ms: timestamp_ms(),
            load: load(),
            steal_ms: steal_ms(),
        }
    }
}

/// Returns milliseconds since the Unix epoch; 0 if the clock is before the epoch.
fn timestamp_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn load() -> Option<[f64; 3]> {
    let text = read("/proc/loadavg")?;
    let mut numbers = text.split(' ').map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

fn steal_ms() -> Option<u64> {
    steal_in(&read("/proc/stat")?)
}

/// Parses the eighth number of the first line, in clock ticks of 10 ms (proc(5); `USER_HZ` is 100 on every
/// architecture that this program runs on).
fn steal_in(proc_stat: &str) -> Option<u64> {
    let ticks: u64 = proc_stat
        .lines()
        .next()?
        .split_whitespace()
        .nth(8)?
        .parse()
        .ok()?;
    Some(ticks * 10)
}

fn thread_siblings() -> Vec<String> {
    let mut cores: Vec<String> = entries("/sys/devices/system/cpu")
        .filter_map(|(_, path)| read(path.join("topology/thread_siblings_list")))
        .collect();
    cores.sort();
    cores.dedup();
    cores
}

fn mitigations() -> BTreeMap<String, String> {
    entries("/sys/devices/system/cpu/vulnerabilities")
        .filter_map(|(name, path)| Some((name, read(path)?)))
        .collect()
}

fn entries(folder: &str) -> impl Iterator<Item = (String, std::path::PathBuf)> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
}

fn versions(plan: &Plan) -> BTreeMap<String, String> {
    let version = |subject: &crate::plan::Subject| {
        let words = match &subject.version {
            Some(line) => command_line::split(line).ok()?,
            None => {
                let program = command_line::split(&subject.wrapper).ok()?.swap_remove(0);
                vec![program, "--version".to_owned()]
            }
        };
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        Some((subject.name.clone(), first_line(&words[0], &arguments)?))
    };
    plan.subjects.iter().filter_map(version).collect()
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let text = output(program, arguments)?;
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(str::to_owned)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Returns the value of a `key : value` line.
fn value_after(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// Returns true if a program is in PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    // Without PATH no program is found.
    let path = std::env::var_os("PATH").unwrap_or_default();
    program.contains('/') && std::path::Path::new(program).exists()
        || std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number() {
        let stat = "cpu  10 20 30 40 50 60 70 81 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(steal_in(stat), Some(810));
        assert_eq!(steal_in("cpu 1 2"), None);
    }

    #[test]
    fn keys_are_matched_whole() {
        let text = "model\t\t: 85\nmodel name\t: A CPU\n";
        assert_eq!(value_after(text, "model name").as_deref(), Some("A CPU"));
        assert_eq!(value_after(text, "name"), None);
    }
}
