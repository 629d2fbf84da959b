//! Table of the rates that a detector sustains, by its limits, next to those published for Falco.

use std::fmt::Write as _;
use std::fs;

use super::cgroup::Limits;
use super::knee;
use super::round::Round;

/// Processors, system calls per second and events per second of Falco, as published by its project.
const PUBLISHED: [(f64, &str, &str); 3] = [
    (0.5, "150K", "2800"),
    (1.0, "250K", "4200"),
    (2.0, "320K", "7000"),
];

/// Returns the title of a series: its limits.
pub(super) fn title(limits: Limits) -> String {
    format!("{} CPU, {} memory", cpus(limits), memory(limits))
}

fn cpus(limits: Limits) -> String {
    limits
        .cpus
        .map_or_else(|| "all".to_owned(), |cpus| cpus.to_string())
}

fn memory(limits: Limits) -> String {
    limits
        .memory
        .map_or_else(|| "all".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
}

/// Formats the table, one row for each series.
pub(super) fn text(series: &[(Limits, Vec<Round>)]) -> String {
    let mut text = format!("\n{}\n\n", host());
    text += "| CPU | memory | syscalls/s | EPS | average syscalls/s | average EPS | first loss | published: syscalls/s | EPS |\n";
    text += "|---:|---:|---:|---:|---:|---:|---|---:|---:|\n";
    for (limits, rounds) in series {
        let published = PUBLISHED
            .iter()
            .find(|(cpus, ..)| limits.cpus.is_some_and(|ours| (ours - cpus).abs() < 1e-9));
        let (calls, events) = published.map_or(("", ""), |(_, calls, events)| (calls, events));
        let rates = knee::find(rounds).map_or_else(
            || "| - | - | - | - | in the first round ".to_owned(),
            |knee| {
                let or_dash = |value: Option<f64>| {
                    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
                };
                let first = if knee.is_found {
                    let last = rounds.last().map_or(0.0, Round::eps);
                    format!("at {last:.0} EPS")
                } else {
                    "none; the generator was the limit".to_owned()
                };
                format!(
                    "| {} | {:.0} | {} | {:.0} | {first} ",
                    or_dash(knee.calls_per_s),
                    knee.eps,
                    or_dash(knee.average_calls_per_s),
                    knee.average_eps,
                )
            },
        );
        let _ = writeln!(
            text,
            "| {} | {} {rates}| {calls} | {events} |",
            cpus(*limits),
            memory(*limits)
        );
    }
    text
}

/// Describes the host on one line.
fn host() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = value(&processors, "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let count = processors
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kib: u64 = value(&memory, "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy();
    format!(
        "host: {count} x {model}, {} MiB, Linux {kernel}; the generator runs beside the detector",
        kib >> 10
    )
}

#[cfg(test)]
mod tests {
    use super::super::round::tests::round;
    use super::*;

    #[test]
    fn rows_stand_beside_what_was_published() {
        let limits = Limits {
            cpus: Some(0.5),
            memory: Some(512 << 20),
        };
        let text = text(&[(limits, vec![round(1, 100, 0), round(2, 200, 9)])]);
        let row = text.lines().last().unwrap();
        assert_eq!(
            row,
            "| 0.5 | 512 MiB | 1000 | 100 | 1000 | 100 | at 200 EPS | 150K | 2800 |"
        );
        assert!(text.contains("Linux "));
    }

    #[test]
    fn a_series_that_begins_with_a_loss_has_no_rates() {
        let text = text(&[(Limits::default(), vec![round(1, 200, 9)])]);
        assert!(
            text.contains("| all | all | - | - | - | - | in the first round |  |  |"),
            "{text}"
        );
    }
}
