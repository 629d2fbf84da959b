//! Metrics of the host, and of this process's resource use.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{Area, Metric, Value};

/// Number of online CPUs.
pub(super) fn cpus() -> u64 {
    let cpus = std::thread::available_parallelism();
    cpus.map_or(1, |cpus| u64::try_from(cpus.get()).unwrap_or(u64::MAX))
}

/// Boot time of the host.
pub(super) fn boot_time_ns() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse::<u64>().ok()?.checked_mul(1_000_000_000)
}

/// CPU and memory use of this process and of the host. Values that cannot be read, such as hidden
/// files of `/proc`, are omitted.
pub(super) fn resources() -> Vec<Metric> {
    let falco = |name: &str, value| Metric::new(Area::Falco, name, value);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let files = fs::read_to_string("/proc/sys/fs/file-nr").unwrap_or_default();
    let used = kib(&memory, "MemTotal:").zip(kib(&memory, "MemAvailable:"));
    let running = stat
        .lines()
        .find_map(|line| line.strip_prefix("procs_running "))
        .and_then(|count| count.trim().parse().ok());
    let open = files.split_whitespace().next();
    let metrics = [
        cpu_percent().map(|percent| falco("cpu_usage", Value::Percent(percent))),
        kib(&status, "VmRSS:").map(|kib| falco("memory_rss", Value::Kib(kib))),
        kib(&status, "VmSize:").map(|kib| falco("memory_vsz", Value::Kib(kib))),
        kib(&rollup, "Pss:").map(|kib| falco("memory_pss", Value::Kib(kib))),
        container_memory().map(|bytes| falco("container_memory_used", Value::Bytes(bytes))),
        host_cpu_percent(&stat).map(|percent| falco("host_cpu_usage", Value::Percent(percent))),
        used.map(|(total, free)| falco("host_memory_used", Value::Kib(total.saturating_sub(free)))),
        running.map(|count| falco("host_procs_running", Value::Gauge(count))),
        open.and_then(|open| open.parse().ok())
            .map(|open| falco("host_open_fds", Value::Gauge(open))),
    ];
    metrics.into_iter().flatten().collect()
}

/// Parses a line such as `VmRSS:   1234 kB`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// CPU time of this process as a percentage of the time since the first call.
fn cpu_percent() -> Option<f64> {
    static FIRST: OnceLock<(Instant, Duration)> = OnceLock::new();
    let now = cpu_time()?;
    let (since, before) = FIRST.get_or_init(|| (Instant::now(), now));
    let passed = since.elapsed().as_secs_f64();
    let spent = now.saturating_sub(*before).as_secs_f64();
    Some(if passed > 0.0 {
        100.0 * spent / passed
    } else {
        0.0
    })
}

fn cpu_time() -> Option<Duration> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let of_threads = threads.flatten().filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        // The first field is the time on a CPU in nanoseconds.
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(of_threads.sum()))
}

/// CPU use of all CPUs since boot.
fn host_cpu_percent(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line
        .split_whitespace()
        .map(|ticks| ticks.parse::<f64>().ok());
    let ticks: Vec<f64> = ticks.collect::<Option<_>>()?;
    let total: f64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    (total > 0.0).then(|| 100.0 * (total - idle) / total)
}

/// Memory use of the control group, if there is one.
fn container_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let v1 = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|name| name == "memory")
            .then_some(path)
    });
    let paths = [
        v1.map(|path| format!("/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")),
        own.map(|path| format!("/sys/fs/cgroup{path}/memory.current")),
    ];
    paths.into_iter().flatten().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_a_sum_is_a_sum() {
        let names: Vec<_> = resources().into_iter().map(|metric| metric.name).collect();
        for name in [
            "cpu_usage",
            "memory_rss",
            "host_memory_used",
            "host_open_fds",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(boot_time_ns().is_some_and(|boot| boot > 1_000_000_000));
    }

    #[test]
    fn the_hosts_share_is_that_of_what_is_not_idle() {
        let stat = "cpu  720000 0 360000 1080000 0 0 0 0 0 0\n";
        assert_eq!(host_cpu_percent(stat), Some(50.0));
    }
}
