//! What the kernel does before the engine `ebpf` watches: its verifier checks each program.

use std::fs;
use std::time::Duration;

use e2e::{need_root, watch_host_for};

/// Instructions that the verifier may follow in all programs together. It follows about 0.2 million, and four million
/// in a second on an idle machine. The programs had 1.35 million once, which made a watch begin after 2.6 s.
const STEPS_LIMIT: u64 = 300_000;

/// Returns the steps that the verifier took for each program that a process has open.
fn verified(pid: i32) -> Vec<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the watch runs");
    descriptors
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .filter_map(|info| {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix("verified_insns:"))?;
            line.trim().parse().ok()
        })
        .collect()
}

#[test]
fn the_verifier_checks_the_programs_in_few_steps() {
    need_root!();
    let rules =
        "- rule: Each\n  desc: x\n  condition: evt.type = execve\n  output: x\n  priority: DEBUG\n";
    let mut steps = Vec::new();
    watch_host_for(Duration::from_secs(60), &[], rules, |pid| {
        steps = verified(pid)
    });
    let total: u64 = steps.iter().sum();
    println!("{total} steps: {steps:?}");
    assert!(
        steps.len() >= 9,
        "programs with a number of steps: {steps:?}"
    );
    assert!(
        total <= STEPS_LIMIT,
        "the verifier follows {total} instructions, more than {STEPS_LIMIT}: {steps:?}"
    );
}
