//! `ps` and `update`: reads and sets a container's control groups.

use std::fs::File;
use std::io::{self, Read};
use std::process::Command;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use libcgroups::common::{AnyCgroupManager, CgroupConfig, CgroupManager, ControllerOpt};
use libcontainer::container::Container;
use libcontainer::oci_spec::runtime::{
    LinuxBlockIoBuilder, LinuxCpu, LinuxCpuBuilder, LinuxMemory, LinuxMemoryBuilder,
    LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder,
};
use liboci_cli::{Ps, Update};

use super::{FAILED, failed};

fn groups(container: &Container) -> Result<AnyCgroupManager, Failure> {
    let config = CgroupConfig {
        cgroup_path: container.spec().map_err(failed)?.cgroup_path,
        systemd_cgroup: container.systemd(),
        container_name: container.id().to_owned(),
    };
    libcgroups::common::create_cgroup_manager(config)
        .map_err(|error| cannot("find its control groups", &error))
}

fn cannot(action: &str, cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Command(FAILED), format!("cannot {action}: {cause}"))
        .help("look at /sys/fs/cgroup")
}

/// Lists the processes of a container.
pub(super) fn ps(container: &Container, args: &Ps) -> Outcome {
    let pids = groups(container)?.get_all_pids();
    let pids = pids.map_err(|error| cannot("read its control groups", &error))?;
    let pids: Vec<i32> = pids.iter().map(|pid| pid.as_raw()).collect();
    match args.format.as_str() {
        "json" => {
            let text = serde_json::to_string(&pids).expect("they are numbers");
            terminal::print(&format!("{text}\n"))
        }
        "table" => {
            let usual = ["-ef".to_owned()];
            let options = match args.ps_options[..] {
                [] => &usual[..],
                ref options => options,
            };
            let output = Command::new("ps").args(options).output();
            let output = output.map_err(|error| cannot("execute ps", &error))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(cannot("list processes by ps", &said.trim()));
            }
            let table = String::from_utf8_lossy(&output.stdout);
            let table = rows(&table, &pids).ok_or_else(|| {
                cannot("tell processes apart", &"the table of ps has no column PID")
            })?;
            terminal::print(&table)
        }
        other => Err(Failure::new(
            Exit::BadInput,
            format!("cannot list processes as `{other}`"),
        )
        .help("use --format table or --format json")),
    }
}

/// Returns the rows of a table of ps(1) that are about these processes, below its header.
fn rows(table: &str, pids: &[i32]) -> Option<String> {
    let (head, rest) = table.split_once('\n')?;
    let column = head.split_whitespace().position(|name| name == "PID")?;
    let is_among = |line: &&str| {
        let pid = line.split_whitespace().nth(column);
        let pid = pid.and_then(|pid| pid.parse::<i32>().ok());
        pid.is_some_and(|pid| pids.contains(&pid))
    };
    let rows = rest
        .lines()
        .filter(is_among)
        .map(|line| format!("{line}\n"));
    Some(format!("{head}\n{}", rows.collect::<String>()))
}

/// Sets limits of a container's control groups.
pub(super) fn update(container: &Container, args: &Update) -> Outcome {
    let resources = resources(args)?;
    let options = ControllerOpt {
        resources: &resources,
        disable_oom_killer: false,
        oom_score_adj: None,
        freezer_state: None,
    };
    let applied = groups(container)?.apply(&options);
    applied.map_err(|error| cannot("set its limits", &error))?;
    Ok(Exit::Ok)
}

fn resources(args: &Update) -> Result<LinuxResources, Failure> {
    if args.l3_cache_schema.is_some() || args.mem_bw_schema.is_some() {
        let message = "cannot set limits of caches and memory bandwidth";
        return Err(Failure::new(Exit::Unsupported, message).help("use --runtime runc for it"));
    }
    if let Some(path) = &args.resources {
        let mut text = String::new();
        let read = match path.to_str() {
            Some("-") => io::stdin().read_to_string(&mut text),
            _ => File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
        };
        read.map_err(|error| wrong(&format!("{}: {error}", path.display())))?;
        return serde_json::from_str(&text).map_err(|error| wrong(&error));
    }
    let mut resources = LinuxResourcesBuilder::default();
    if let Some(weight) = args.blkio_weight {
        let weight = u16::try_from(weight).map_err(|error| wrong(&error))?;
        let io = LinuxBlockIoBuilder::default().weight(weight).build();
        resources = resources.block_io(io.map_err(|error| wrong(&error))?);
    }
    if let Some(limit) = args.pids_limit {
        let pids = LinuxPidsBuilder::default().limit(limit).build();
        resources = resources.pids(pids.map_err(|error| wrong(&error))?);
    }
    resources
        .cpu(cpu(args)?)
        .memory(memory(args)?)
        .build()
        .map_err(|error| wrong(&error))
}

fn wrong(cause: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot understand the limits: {cause}");
    Failure::new(Exit::BadInput, message).help("`runc update --help` shows their form")
}

fn cpu(args: &Update) -> Result<LinuxCpu, Failure> {
    let mut cpu = LinuxCpuBuilder::default();
    if let Some(shares) = args.cpu_share {
        cpu = cpu.shares(shares);
    }
    if let Some(quota) = args.cpu_quota {
        cpu = cpu.quota(i64::try_from(quota).map_err(|error| wrong(&error))?);
    }
    if let Some(period) = args.cpu_period {
        cpu = cpu.period(period);
    }
    if let Some(runtime) = args.cpu_rt_runtime {
        cpu = cpu.realtime_runtime(i64::try_from(runtime).map_err(|error| wrong(&error))?);
    }
    if let Some(period) = args.cpu_rt_period {
        cpu = cpu.realtime_period(period);
    }
    if let Some(cpus) = &args.cpuset_cpus {
        cpu = cpu.cpus(cpus.clone());
    }
    if let Some(nodes) = &args.cpuset_mems {
        cpu = cpu.mems(nodes.clone());
    }
    cpu.build().map_err(|error| wrong(&error))
}

fn memory(args: &Update) -> Result<LinuxMemory, Failure> {
    let mut memory = LinuxMemoryBuilder::default();
    let bytes = |bytes: u64| i64::try_from(bytes).map_err(|error| wrong(&error));
    if let Some(limit) = args.memory {
        memory = memory.limit(bytes(limit)?);
    }
    if let Some(limit) = args.memory_reservation {
        memory = memory.reservation(bytes(limit)?);
    }
    if let Some(limit) = args.memory_swap {
        memory = memory.swap(limit);
    }
    memory.build().map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_identified_by_the_column_of_pids() {
        let table = "UID PID CMD\nroot 1 init 17\nroot 17 sh\nroot 170 x\n";
        let expected = "UID PID CMD\nroot 17 sh\n";
        assert_eq!(rows(table, &[17]).as_deref(), Some(expected));
        assert_eq!(rows("A B\n1 2\n", &[1]), None);
    }
}
