//! The header of a capture.

use std::fs;

use scap::list::MachineInfo;
use scap::write::Header;

/// Reads the host's properties and users.
pub(super) fn header() -> Header {
    let system = rustix::system::sysinfo();
    let uptime_ns = u64::try_from(system.uptime).unwrap_or(0) * 1_000_000_000;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Header {
        machine: MachineInfo {
            cpus: u32::try_from(cpus).unwrap_or(1),
            memory_bytes: system.totalram * u64::from(system.mem_unit),
            max_pid: number("/proc/sys/kernel/pid_max"),
            hostname: decoder::host::host_name(),
            boot_ns: sys::time::now_ns(sys::time::Clock::Real).saturating_sub(uptime_ns),
        },
        users: lines("/etc/passwd")
            .filter_map(|line| user(&line))
            .collect(),
        groups: lines("/etc/group")
            .filter_map(|line| group(&line))
            .collect(),
    }
}

fn number(path: &str) -> u64 {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns the lines of a file. Without it, captures and alerts have ids instead of names.
fn lines(path: &str) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

fn user(line: &str) -> Option<(u32, u32, String, String, String)> {
    let parts: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = parts[..] else {
        return None;
    };
    let text = str::to_owned;
    Some((
        uid.parse().ok()?,
        gid.parse().ok()?,
        text(name),
        text(home),
        text(shell),
    ))
}

fn group(line: &str) -> Option<(u32, String)> {
    let mut parts = line.split(':');
    let (name, gid) = (parts.next()?, parts.nth(1)?);
    Some((gid.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_read_and_what_is_none_is_not() {
        assert_eq!(
            user("root:x:0:0:root:/root:/bin/bash"),
            Some((0, 0, "root".into(), "/root".into(), "/bin/bash".into()))
        );
        assert_eq!(group("wheel:x:10:a,b"), Some((10, "wheel".into())));
        assert_eq!((user("+::::::"), user("")), (None, None));
        assert_eq!(group("x:y"), None);
    }
}
