//! Durations of single operations: a histogram.

use std::collections::BTreeMap;
use std::time::Duration;

/// Histogram of durations, which are rounded down by two or three percent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    counts: BTreeMap<u64, u64>,
    all: u64,
    longest: u64,
}

/// Number of buckets in each power of two.
const PARTS: u64 = 32;

impl Latencies {
    pub(crate) fn note(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        *self.counts.entry(rounded(ns)).or_insert(0) += 1;
        self.all += 1;
        self.longest = self.longest.max(ns);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (ns, count) in &other.counts {
            *self.counts.entry(*ns).or_insert(0) += count;
        }
        self.all += other.all;
        self.longest = self.longest.max(other.longest);
    }

    /// Returns percentiles by name; far percentiles only if enough operations lie beyond them.
    pub(crate) fn figures(&self) -> Vec<(String, f64)> {
        let tails: [(&str, u64); 4] = [
            ("p50_ns", 500),
            ("p90_ns", 900),
            ("p99_ns", 990),
            ("p999_ns", 999),
        ];
        let mut figures: Vec<(String, f64)> = tails
            .into_iter()
            .filter(|(_, permille)| self.all * (1000 - permille) / 1000 >= 10 || *permille == 500)
            .filter_map(|(name, permille)| Some((name.to_owned(), self.at(permille)? as f64)))
            .collect();
        if self.all > 0 {
            figures.push(("max_ns".to_owned(), self.longest as f64));
        }
        figures
    }

    fn at(&self, permille: u64) -> Option<u64> {
        let mut left = (self.all * permille).div_ceil(1000).max(1);
        for (ns, count) in &self.counts {
            if *count >= left {
                return Some(*ns);
            }
            left -= count;
        }
        None
    }
}

fn rounded(ns: u64) -> u64 {
    if ns < PARTS {
        return ns;
    }
    let step = 1_u64 << (ns.ilog2() - PARTS.ilog2());
    ns / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_durations() {
        let mut latencies = Latencies::default();
        for ns in 1..=100_000_u64 {
            latencies.note(Duration::from_nanos(ns));
        }
        let figures: BTreeMap<String, f64> = latencies.figures().into_iter().collect();
        for (name, expected) in [
            ("p50_ns", 50_000.0),
            ("p99_ns", 99_000.0),
            ("p999_ns", 99_900.0),
        ] {
            let got = figures[name];
            assert!((expected * 0.96..=expected).contains(&got), "{name} {got}");
        }
        assert_eq!(figures["max_ns"], 100_000.0);
    }

    #[test]
    fn tails_need_enough_operations() {
        let mut latencies = Latencies::default();
        assert!(latencies.figures().is_empty());
        for _ in 0..900 {
            latencies.note(Duration::from_nanos(7));
        }
        let mut both = latencies.clone();
        both.merge(&latencies);
        let names: Vec<String> = both.figures().into_iter().map(|(name, _)| name).collect();
        // Of 1800 operations 18 lie beyond the 99th percentile and two beyond the next.
        assert_eq!(names, ["p50_ns", "p90_ns", "p99_ns", "max_ns"]);
        assert_eq!(both.at(500), Some(7));
    }
}
