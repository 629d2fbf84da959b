//! Whether something grows, from samples.

use std::collections::BTreeMap;

/// Memory may grow by so many parts of a thousand after ten minutes.
pub(crate) const GROWTH: u64 = 20;

/// The same in a run that is shorter: tables and caches still fill.
pub(crate) const GROWTH_OF_SHORT_RUNS: u64 = 150;

/// Growth of memory that is no growth, in KiB: what an allocator gets from the kernel at once.
const MEMORY_STEP: u64 = 256;

/// Growth of other counts that is no growth: a connection or a thread that only sometimes exists.
const COUNT_STEP: u64 = 2;

/// What is measured of the processes of one role at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Processes.
    pub(crate) processes: u64,
    /// Resident memory, in KiB.
    pub(crate) memory: u64,
    /// Open descriptors.
    pub(crate) descriptors: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Descriptors of BPF maps.
    pub(crate) maps: u64,
    /// Memory of these maps, in KiB.
    pub(crate) map_memory: u64,
}

/// Something that grew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// What, such as `watch: memory`.
    pub(crate) of: String,
    /// In the first third, and in the last.
    pub(crate) from: u64,
    /// See `from`.
    pub(crate) to: u64,
}

/// Samples of one role, in order.
pub(crate) type Series = BTreeMap<String, Vec<Usage>>;

/// Returns what has grown by more than so many parts of a thousand from the first third of the samples to the last. Memory is compared by its median, because
/// a load comes and goes; counts by their lower quartile, because what leaks is never given back, and a process that has
/// just started has little.
pub(crate) fn growth(series: &Series, per_mille: u64) -> Vec<Growth> {
    let mut found = Vec::new();
    for (role, samples) in series {
        let third = samples.len() / 3;
        if third == 0 {
            continue;
        }
        let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
        let mut compare =
            |what: &str, value: fn(&Usage) -> u64, pick: fn(Vec<u64>) -> u64, step: u64| {
                let of = |part: &[Usage]| pick(part.iter().map(value).collect());
                let (from, to) = (of(first), of(last));
                if to > from + step.max(from * per_mille / 1000) {
                    let of = format!("{role}: {what}");
                    found.push(Growth { of, from, to });
                }
            };
        compare("memory in KiB", |usage| usage.memory, median, MEMORY_STEP);
        compare(
            "memory of maps in KiB",
            |usage| usage.map_memory,
            median,
            MEMORY_STEP,
        );
        compare("descriptors", |usage| usage.descriptors, low, COUNT_STEP);
        compare("threads", |usage| usage.threads, low, COUNT_STEP);
        compare("maps", |usage| usage.maps, low, COUNT_STEP);
        compare("processes", |usage| usage.processes, low, COUNT_STEP);
    }
    found
}

/// Returns the middle of the values; 0 of none.
pub(crate) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Returns the lower quartile of the values; 0 of none.
fn low(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 4).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: impl IntoIterator<Item = Usage>) -> Series {
        Series::from([("watch".to_owned(), values.into_iter().collect())])
    }

    fn memory(memory: u64) -> Usage {
        Usage {
            memory,
            ..Usage::default()
        }
    }

    #[test]
    fn memory_that_grows_by_more_than_two_per_cent_is_found() {
        let steady = (0..90_u64).map(|at| memory(100_000 + at % 7 * 500));
        assert_eq!(growth(&series(steady), GROWTH), []);
        let leak = (0..90_u64).map(|at| memory(100_000 + at * 50));
        let found = growth(&series(leak), GROWTH);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].of, "watch: memory in KiB");
        assert_eq!((found[0].from, found[0].to), (100_750, 103_750));
    }

    #[test]
    fn a_peak_is_no_growth() {
        let peaks = (0..90_u64).map(|at| memory(if at % 10 == 0 { 150_000 } else { 100_000 }));
        assert_eq!(growth(&series(peaks), GROWTH), []);
    }

    #[test]
    fn descriptors_that_are_never_closed_are_found_and_those_of_a_load_are_not() {
        let of = |descriptors| Usage {
            descriptors,
            ..Usage::default()
        };
        let load = (0..90_u64).map(|at| of(40 + at % 20));
        assert_eq!(growth(&series(load), GROWTH), []);
        let leak = (0..90_u64).map(|at| of(40 + at % 20 + at / 10));
        assert_eq!(growth(&series(leak), GROWTH)[0].of, "watch: descriptors");
    }

    #[test]
    fn two_samples_say_nothing() {
        assert_eq!(growth(&series([memory(1), memory(1_000_000)]), GROWTH), []);
    }
}
