//! Small random number generator with published reference output.

/// xoshiro256++, seeded through SplitMix64 as its authors advise.
///
/// This is not a dependency because a recorded seed must give the same order of subjects and the same
/// interval in every later version of the program.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator whose whole output follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mixer = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut mixer)),
        }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Returns a uniformly distributed number from 0 to `bound` - 1, or 0 if `bound` is 0.
    ///
    /// Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019).
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        let reject_under = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            let (low, high) = (wide & u128::from(u64::MAX), wide >> 64);
            if low >= u128::from(reject_under) {
                return usize::try_from(high).expect("the product's high half is below `bound`");
            }
        }
    }

    /// Returns a number in 0.0..1.0 with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Performs one step of SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for seed 1234567, as published with the reference code.
    #[test]
    fn split_mix_gives_the_published_numbers() {
        let mut state = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    /// The first outputs from state 1, 2, 3, 4 of the reference implementation.
    #[test]
    fn xoshiro_gives_the_published_numbers() {
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn below_is_even_and_in_range() {
        let mut rng = Rng::new(1);
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6)] += 1;
        }
        // Five standard deviations of a binomial count are 456.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 460),
            "{counts:?}"
        );
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn shuffle_reaches_every_order() {
        let mut rng = Rng::new(2);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            rng.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }
}
