//! Figures that others have published, to stand beside ours.

use crate::plan::Suite;

/// A published ratio to native.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Published {
    /// What was measured, where and when.
    pub(crate) environment: &'static str,
    /// The workload of the suite that does the same; `index` is the geometric mean of all.
    pub(crate) workload: &'static str,
    /// Which way the ratio goes: time over native's time (1.5 is slower), or score over native's score
    /// (0.67 is slower), as it was published.
    pub(crate) kind: Kind,
    pub(crate) ratio: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Score,
    Time,
}

impl Published {
    /// The published ratio as time over native's time.
    pub(crate) fn time(&self) -> f64 {
        match self.kind {
            Kind::Score => 1.0 / self.ratio,
            Kind::Time => self.ratio,
        }
    }
}

const PDIG_1: &str = "pdig (ptrace), Fargate 0.25 CPU, 1 copy, 2022";
const PDIG_2: &str = "pdig (ptrace), Fargate 0.25 CPU, 2 copies, 2022";
const SYSDIG: &str = "sysdig in the kernel, t2.micro, 2022";
const VARMOR: &str = "vArmor BPF enforcer, 8 rules of each type";
const STUDY: &str = "bpftrace tracepoint on the call, 2023";
const VARMOR_APPS: &str = "vArmor 0.5 seccomp, against no protection";

/// Workload and ratio.
type Figures = &'static [(&'static str, f64)];

#[rustfmt::skip]
const PUBLISHED: &[(Suite, Kind, &str, Figures)] = &[
    (Suite::Unix, Kind::Score, PDIG_1, &[("index", 0.445), ("syscall", 0.023), ("execl", 0.167), ("spawn", 0.275), ("shell1", 0.233), ("shell8", 0.288)]),
    (Suite::Unix, Kind::Score, PDIG_2, &[("index", 0.499), ("syscall", 0.050), ("execl", 0.266), ("spawn", 0.303), ("shell1", 0.271), ("shell8", 0.294)]),
    (Suite::Unix, Kind::Score, SYSDIG, &[("index", 0.710), ("syscall", 0.357), ("execl", 0.591), ("spawn", 0.599), ("shell1", 0.601), ("shell8", 0.693)]),
    (Suite::Unix, Kind::Score, VARMOR, &[("execl", 0.9745), ("spawn", 0.9768)]),
    (Suite::Syscalls, Kind::Time, STUDY, &[("gettimeofday", 1.68), ("getpid", 2.03), ("getppid", 1.65), ("times", 1.83)]),
    (Suite::Os, Kind::Score, "pdig (ptrace), 2022", &[("create_files", 0.245), ("create_threads", 0.495), ("launch_programs", 0.255), ("create_processes", 0.285)]),
    // Rates over rates, and seconds over seconds, from the tables of the study.
    (Suite::Apps, Kind::Score, VARMOR_APPS, &[("apache-4", 14882.43 / 16838.6), ("apache-20", 15035.12 / 17073.8), ("apache-100", 15454.24 / 16961.78), ("apache-200", 15312.25 / 16619.65), ("apache-500", 12870.28 / 14029.19), ("apache-1000", 11162.86 / 11944.99), ("redis-get-50", 2_280_476.0 / 2_356_517.0), ("redis-set-50", 1_596_606.0 / 1_612_305.0), ("redis-get-500", 1_875_229.0 / 1_944_514.0), ("redis-set-500", 1_547_045.0 / 1_614_023.0), ("redis-lpop-500", 2_316_358.0 / 2_298_349.0), ("sysbench-memory", 4138.07 / 4189.51), ("sysbench-cpu", 2832.87 / 2831.65)]),
    (Suite::Apps, Kind::Time, VARMOR_APPS, &[("image-resize", 16.915 / 16.616), ("image-rotate", 12.863 / 11.842), ("image-levels", 18.082 / 16.543), ("image-unsharp", 21.096 / 19.888)]),
];

/// What was published about a suite.
pub(crate) fn published(suite: Suite) -> Vec<Published> {
    PUBLISHED
        .iter()
        .filter(|(of, ..)| *of == suite)
        .flat_map(|(_, kind, environment, figures)| {
            figures.iter().map(|(workload, ratio)| Published {
                environment,
                workload,
                kind: *kind,
                ratio: *ratio,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_become_time() {
        let unix = published(Suite::Unix);
        assert_eq!(unix.len(), 20);
        assert!((unix[1].time() - 43.48).abs() < 0.01);
        let study = published(Suite::Syscalls);
        assert!((study[1].time() - 2.03).abs() < 1e-12);
        assert!(published(Suite::Lifecycle).is_empty());
    }
}
