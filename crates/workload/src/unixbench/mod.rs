//! The twelve tests of UnixBench, reimplemented from their definitions.
//!
//! Units, counts, sizes and baselines are UnixBench's, so that scores can be compared with published ones. The
//! tests whose cost depends on the size of a C program (`spawn`, `execl`) run in a small program that `tiny`
//! makes, because the cost of fork and exec grows with the program.

pub(crate) mod copy;
pub(crate) mod dhrystone;
pub(crate) mod execl;
pub(crate) mod pipe;
pub(crate) mod shell;
pub(crate) mod spawn;
mod tiny;
pub(crate) mod whetstone;

pub use shell::LANGUAGE;

/// A test of UnixBench: its name, its score's unit and baseline, and its passes.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// UnixBench's name.
    pub name: &'static str,
    /// Title in UnixBench's report.
    pub title: &'static str,
    /// The load of this crate that does the same work.
    pub load: &'static str,
    /// The unit of the score.
    pub unit: &'static str,
    /// The score of the system whose index is 10: a SPARCstation 20-61.
    pub baseline: f64,
    /// Duration of one pass, in seconds.
    pub seconds: u32,
    /// True if the test has ten passes; the others have three.
    pub is_long: bool,
    /// Score of one operation of the load per second.
    pub weight: f64,
}

/// UnixBench's twelve tests, in the order of its report.
#[rustfmt::skip]
pub const TESTS: &[Test] = &[
    Test { name: "dhry2reg", title: "Dhrystone 2 using register variables", load: "ub_dhry2reg", unit: "lps", baseline: 116_700.0, seconds: 10, is_long: true, weight: 1.0 },
    Test { name: "whetstone-double", title: "Double-Precision Whetstone", load: "ub_whetstone", unit: "MWIPS", baseline: 55.0, seconds: 10, is_long: true, weight: 10.0 },
    Test { name: "execl", title: "Execl Throughput", load: "ub_execl", unit: "lps", baseline: 43.0, seconds: 30, is_long: false, weight: 1.0 },
    Test { name: "fstime", title: "File Copy 1024 bufsize 2000 maxblocks", load: "ub_fstime", unit: "KBps", baseline: 3960.0, seconds: 30, is_long: false, weight: 1.0 },
    Test { name: "fsbuffer", title: "File Copy 256 bufsize 500 maxblocks", load: "ub_fsbuffer", unit: "KBps", baseline: 1655.0, seconds: 30, is_long: false, weight: 0.25 },
    Test { name: "fsdisk", title: "File Copy 4096 bufsize 8000 maxblocks", load: "ub_fsdisk", unit: "KBps", baseline: 5800.0, seconds: 30, is_long: false, weight: 4.0 },
    Test { name: "pipe", title: "Pipe Throughput", load: "ub_pipe", unit: "lps", baseline: 12_440.0, seconds: 10, is_long: true, weight: 1.0 },
    Test { name: "context1", title: "Pipe-based Context Switching", load: "ub_context1", unit: "lps", baseline: 4000.0, seconds: 10, is_long: true, weight: 1.0 },
    Test { name: "spawn", title: "Process Creation", load: "ub_spawn", unit: "lps", baseline: 126.0, seconds: 30, is_long: false, weight: 1.0 },
    Test { name: "shell1", title: "Shell Scripts (1 concurrent)", load: "ub_shell1", unit: "lpm", baseline: 42.4, seconds: 60, is_long: false, weight: 60.0 },
    Test { name: "shell8", title: "Shell Scripts (8 concurrent)", load: "ub_shell8", unit: "lpm", baseline: 6.0, seconds: 60, is_long: false, weight: 60.0 },
    Test { name: "syscall", title: "System Call Overhead", load: "ub_syscall", unit: "lps", baseline: 15_000.0, seconds: 10, is_long: true, weight: 1.0 },
];

impl Test {
    /// Returns UnixBench's score for a time per operation.
    #[must_use]
    pub fn score(&self, ns_per_operation: f64) -> f64 {
        self.weight * 1e9 / ns_per_operation
    }

    /// Returns the index: 10 for the baseline system.
    #[must_use]
    pub fn index(&self, score: f64) -> f64 {
        score / self.baseline * 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_load() {
        assert_eq!(TESTS.len(), 12);
        for test in TESTS {
            assert!(crate::find(test.load).is_ok(), "{}", test.load);
        }
    }

    /// A shell script in 0.5 s is 120 a minute; a block of 256 bytes in 1 us is 250,000 KiB a second.
    #[test]
    fn scores_are_in_unixbenchs_units() {
        let score = |name: &str, ns| {
            let test = TESTS.iter().find(|test| test.name == name).unwrap();
            test.score(ns)
        };
        assert!((score("shell1", 0.5e9) - 120.0).abs() < 1e-9);
        assert!((score("fsbuffer", 1000.0) - 250_000.0).abs() < 1e-6);
        assert!((score("whetstone-double", 2.5e6) - 4000.0).abs() < 1e-9);
        let shell8 = &TESTS[10];
        assert!((shell8.index(6.0) - 10.0).abs() < 1e-12);
    }
}
