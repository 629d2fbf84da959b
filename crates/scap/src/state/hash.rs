//! Fast hashing, and a map by small numbers that a hostile capture cannot degrade.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map by thread id.
pub(crate) type IdMap<V> = HashMap<i64, V, Mixing>;

/// A hasher that multiplies by a random number, drawn once per map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing(u64);

impl Default for Mixing {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64) | 1)
    }
}

impl BuildHasher for Mixing {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value.cast_unsigned());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = fold(value ^ self.0.rotate_left(32), self.0);
    }
}

/// Mixes both halves of a product.
#[inline]
pub(crate) fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
    u64::try_from(low ^ high).expect("half of the bits")
}
