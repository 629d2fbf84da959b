//! Published figures of others, for comparison.

use crate::plan::Suite;

/// A published ratio to native.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Published {
    /// Environment of the published measurement: system, place and time.
    pub(crate) environment: &'static str,
    /// The corresponding workload of the suite; `index` is the geometric mean of all.
    pub(crate) workload: &'static str,
    /// Direction of the ratio as published: time divided by native time (1.5 is slower), or score divided by
    /// native score (0.67 is slower).
    pub(crate) kind: Kind,
    pub(crate) ratio: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Score,
    Time,
}

impl Published {
    /// Returns the published ratio as time divided by native time.
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
const GVISOR: &str = "gVisor over runc, 1 CPU, 2018";
const KATA: &str = "Kata over runc, 1 CPU, 2018";
const STUDY: &str = "bpftrace tracepoint on the call, 2023";

/// Workload and ratio.
type Figures = &'static [(&'static str, f64)];

#[rustfmt::skip]
const PUBLISHED: &[(Suite, Kind, &str, Figures)] = &[
    (Suite::Unix, Kind::Score, PDIG_1, &[("index", 0.445), ("syscall", 0.023), ("execl", 0.167), ("spawn", 0.275), ("shell1", 0.233), ("shell8", 0.288)]),
    (Suite::Unix, Kind::Score, PDIG_2, &[("index", 0.499), ("syscall", 0.050), ("execl", 0.266), ("spawn", 0.303), ("shell1", 0.271), ("shell8", 0.294)]),
    (Suite::Unix, Kind::Score, SYSDIG, &[("index", 0.710), ("syscall", 0.357), ("execl", 0.591), ("spawn", 0.599), ("shell1", 0.601), ("shell8", 0.693)]),
    (Suite::Unix, Kind::Score, VARMOR, &[("execl", 0.9745), ("spawn", 0.9768)]),
    (Suite::Unix, Kind::Score, GVISOR, &[("index", 70.0 / 672.6)]),
    (Suite::Unix, Kind::Score, KATA, &[("index", 124.2 / 672.6)]),
    (Suite::Syscalls, Kind::Time, STUDY, &[("gettimeofday", 1.68), ("getpid", 2.03), ("getppid", 1.65), ("times", 1.83)]),
    (Suite::Os, Kind::Score, "pdig (ptrace), 2022", &[("create_files", 0.245), ("create_threads", 0.495), ("launch_programs", 0.255), ("create_processes", 0.285)]),
];

/// Applications of the policy study (vArmor 0.5), as `bench apps` names them: requests a second, seconds
/// of an image job, MiB or events a second.
#[rustfmt::skip]
const APPLICATIONS: [(&str, Kind); 17] = [
    ("apache-4", Kind::Score), ("apache-20", Kind::Score), ("apache-100", Kind::Score), ("apache-200", Kind::Score), ("apache-500", Kind::Score), ("apache-1000", Kind::Score),
    ("image-resize", Kind::Time), ("image-rotate", Kind::Time), ("image-levels", Kind::Time), ("image-unsharp", Kind::Time),
    ("redis-get-50", Kind::Score), ("redis-set-50", Kind::Score), ("redis-get-500", Kind::Score), ("redis-set-500", Kind::Score), ("redis-lpop-500", Kind::Score),
    ("sysbench-memory", Kind::Score), ("sysbench-cpu", Kind::Score),
];

/// Results without any protection.
const NO_PROTECTION: [f64; 17] = [
    16838.6,
    17073.8,
    16961.78,
    16619.65,
    14029.19,
    11944.99,
    16.616,
    11.842,
    16.543,
    19.888,
    2_356_517.0,
    1_612_305.0,
    1_944_514.0,
    1_614_023.0,
    2_298_349.0,
    4189.51,
    2831.65,
];

/// Scenarios of the study. Its row for BPF equals the row for AppArmor times a constant in most columns, and no
/// spread is given: compare with the others.
#[rustfmt::skip]
const SCENARIOS: &[(&str, [f64; 17])] = &[
    ("vArmor 0.5, AlwaysAllow, AppArmor", [16469.41, 16505.84, 16764.14, 16312.69, 13750.24, 11729.78, 16.672, 11.951, 16.658, 20.04, 2_336_892.0, 1_610_689.0, 1_936_035.0, 1_605_186.0, 2_287_682.0, 4030.55, 2821.5]),
    ("vArmor 0.5, RuntimeDefault, AppArmor", [16376.54, 16067.09, 16461.39, 16242.69, 13385.87, 11599.9, 16.737, 11.977, 16.734, 20.221, 2_316_004.0, 1_610_480.0, 1_957_586.0, 1_598_156.0, 2_281_477.0, 4023.67, 2818.7]),
    ("vArmor 0.5, EnhanceProtect, AppArmor", [15833.43, 15802.84, 16385.19, 16101.51, 13276.16, 11429.32, 16.855, 11.958, 16.814, 20.312, 2_314_458.0, 1_597_515.0, 1_929_528.0, 1_589_630.0, 2_252_763.0, 3939.25, 2808.13]),
    ("vArmor 0.5, EnhanceProtect, BPF (looks scaled, not measured)", [15817.6, 15787.04, 16368.8, 16085.41, 13262.88, 11417.89, 16.876, 12.101, 16.947, 20.411, 2_300_571.0, 1_587_930.0, 1_917_951.0, 1_580_093.0, 2_239_246.0, 3935.311, 2805.322]),
    ("vArmor 0.5, seccomp", [14882.43, 15035.12, 15454.24, 15312.25, 12870.28, 11162.86, 16.915, 12.863, 18.082, 21.096, 2_280_476.0, 1_596_606.0, 1_875_229.0, 1_547_045.0, 2_316_358.0, 4138.07, 2832.87]),
];

/// Returns the figures published about a suite.
pub(crate) fn published(suite: Suite) -> Vec<Published> {
    let mut all: Vec<Published> = PUBLISHED
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
        .collect();
    if suite == Suite::Apps {
        all.extend(SCENARIOS.iter().flat_map(policy_study));
    }
    all
}

/// Compares a scenario of the study with no protection.
fn policy_study(
    (environment, figures): &(&'static str, [f64; 17]),
) -> impl Iterator<Item = Published> {
    let of_all = APPLICATIONS.iter().zip(figures).zip(&NO_PROTECTION);
    of_all.map(|(((workload, kind), figure), without)| Published {
        environment,
        workload,
        kind: *kind,
        ratio: figure / without,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_become_time() {
        let unix = published(Suite::Unix);
        assert_eq!(unix.len(), 22);
        assert!((unix[1].time() - 43.48).abs() < 0.01);
        let study = published(Suite::Syscalls);
        assert!((study[1].time() - 2.03).abs() < 1e-12);
        assert!(published(Suite::Lifecycle).is_empty());
        let apps = published(Suite::Apps);
        assert_eq!(apps.len(), 5 * 17);
        let of = |environment: &str, workload: &str| {
            let mut found = apps.iter().filter(|figure| {
                figure.environment.ends_with(environment) && figure.workload == workload
            });
            found.next().expect("a figure of the study").time()
        };
        assert!((of("seccomp", "apache-4") - 1.131).abs() < 1e-3);
        assert!((of("EnhanceProtect, AppArmor", "image-unsharp") - 1.021).abs() < 1e-3);
    }
}
