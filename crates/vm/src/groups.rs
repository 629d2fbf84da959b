//! The control group of a container in its machine: `linux.resources` for cgroup version 2.

use std::fs;
use std::io;
use std::path::Path;

use diagnostics::failure::Failure;
use serde_json::Value;

use super::guest::broken;

/// Mount point of the hierarchy in the machine.
pub(super) const PLACE: &str = "/sys/fs/cgroup";
/// Group of the container. The agent is not in it.
const GROUP: &str = "/sys/fs/cgroup/container";
const CONTROLLERS: [&str; 5] = ["cpu", "memory", "pids", "io", "cpuset"];
/// Lower bound of values that mean unlimited. The specification has `-1`; some callers use `2^63 - 1`
/// in whole pages.
const MORE_THAN_ANY: u64 = 1 << 62;

/// Creates the group with its limits.
pub(super) fn make(config: &Value) -> Result<(), Failure> {
    let failed = broken("set linux.resources");
    // A kernel may lack some; a limit that needs a missing one fails below.
    for controller in CONTROLLERS {
        let file = Path::new(PLACE).join("cgroup.subtree_control");
        let _ = fs::write(file, format!("+{controller}"));
    }
    fs::create_dir_all(GROUP).map_err(&failed)?;
    for (file, value) in limits(&config["linux"]["resources"]) {
        if file.contains('/') {
            return Err(failed(io::Error::other(format!(
                "{file} is not a file of a control group"
            ))));
        }
        fs::write(Path::new(GROUP).join(&file), &value)
            .map_err(|error| failed(io::Error::other(format!("{file} = {value}: {error}"))))?;
    }
    Ok(())
}

/// Moves this process into the group.
pub(super) fn enter() -> Result<(), Failure> {
    fs::write(Path::new(GROUP).join("cgroup.procs"), "0")
        .map_err(broken("enter the container's control group"))
}

/// Returns the processes in the group.
pub(super) fn members() -> Vec<i32> {
    // Without the group there are no members.
    let text = fs::read_to_string(Path::new(GROUP).join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the files of the group with their values.
fn limits(resources: &Value) -> Vec<(String, String)> {
    let mut limits = Vec::new();
    let mut add = |file: &str, value: Option<String>| {
        limits.extend(value.map(|value| (file.to_owned(), value)));
    };
    let (memory, cpu) = (&resources["memory"], &resources["cpu"]);
    add("memory.max", most(&memory["limit"]));
    add("memory.low", most(&memory["reservation"]));
    add("pids.max", most(&resources["pids"]["limit"]));
    add("cpu.weight", cpu["shares"].as_u64().and_then(weight));
    let quota = most(&cpu["quota"]);
    // The kernel's own when only a quota is given (Documentation/admin-guide/cgroup-v2.rst).
    let period = cpu["period"]
        .as_u64()
        .filter(|period| *period > 0)
        .unwrap_or(100_000);
    add("cpu.max", quota.map(|quota| format!("{quota} {period}")));
    let burst = cpu["burst"].as_u64().filter(|burst| *burst > 0);
    add("cpu.max.burst", burst.map(|burst| burst.to_string()));
    let idle = cpu["idle"].as_i64().filter(|idle| *idle != 0);
    add("cpu.idle", idle.map(|idle| idle.to_string()));
    for (file, value) in resources["unified"].as_object().into_iter().flatten() {
        add(file, value.as_str().map(str::to_owned));
    }
    limits
}

/// Formats a limit; zero and less means none.
fn most(value: &Value) -> Option<String> {
    let number = value.as_u64()?;
    (1..MORE_THAN_ANY)
        .contains(&number)
        .then(|| number.to_string())
}

/// Converts shares (2 to 262,144) to a weight (1 to 10,000).
fn weight(shares: u64) -> Option<String> {
    let shares = (shares > 0).then(|| shares.clamp(2, 262_144))?;
    Some((1 + (shares - 2) * 9_999 / 262_142).to_string())
}

/// Returns the memory in MiB that the machine needs for the container in addition to that for its
/// files.
pub(super) fn memory_mib(config: &Value) -> u64 {
    let limit = &config["linux"]["resources"]["memory"]["limit"];
    let limit = most(limit).and_then(|limit| limit.parse::<u64>().ok());
    limit.map_or(0, |limit| limit >> 20)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_have_files_of_version_2() {
        let resources = json!({
            "memory": {"limit": 64 << 20, "reservation": -1, "swap": 128 << 20},
            "pids": {"limit": 20},
            "cpu": {"shares": 1024, "quota": 50_000, "period": 0, "burst": 0, "idle": 0},
            "unified": {"memory.high": "33554432"},
            "devices": [{"allow": false, "access": "rwm"}],
        });
        let limits = limits(&resources);
        let limits: Vec<_> = limits
            .iter()
            .map(|(file, value)| (&**file, &**value))
            .collect();
        let expected = [
            ("memory.max", "67108864"),
            ("pids.max", "20"),
            ("cpu.weight", "39"),
            ("cpu.max", "50000 100000"),
            ("memory.high", "33554432"),
        ];
        assert_eq!(limits, expected);
        assert_eq!(memory_mib(&json!({"linux": {"resources": resources}})), 64);
    }

    #[test]
    fn no_limit_is_no_file() {
        let resources = json!({"memory": {"limit": -1}, "pids": {"limit": 0},
            "cpu": {"quota": -1, "shares": 0}});
        assert_eq!(limits(&resources), []);
        let most =
            json!({"linux": {"resources": {"memory": {"limit": 9_223_372_036_854_771_712_u64}}}});
        assert_eq!(memory_mib(&most), 0);
        assert_eq!(memory_mib(&Value::Null), 0);
    }
}
