//! A set of texts, optimized for lookups that miss.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// A set of texts.
#[derive(Debug, Default)]
pub(crate) struct TextSet {
    items: HashSet<Box<[u8]>, BuildHasherDefault<ByteHasher>>,
    /// Bit n: some item has n bytes; the last bit stands for all longer ones. Most lookups end here, without
    /// hashing.
    lengths: u64,
    /// Bit n: some item ends with the byte n. Paths differ more at their end than at their start.
    ends: [u64; 4],
}

impl TextSet {
    /// Builds a set.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut set = Self::default();
        let texts = texts.into_iter();
        set.items.reserve(texts.size_hint().0);
        for text in texts {
            set.lengths |= 1 << text.len().min(63);
            let (word, bit) = end(text);
            set.ends[word] |= bit;
            set.items.insert(text.into());
        }
        set
    }

    /// Returns true if the set contains `text`.
    pub(crate) fn contains(&self, text: &[u8]) -> bool {
        let (word, bit) = end(text);
        self.lengths >> text.len().min(63) & 1 == 1
            && self.ends[word] & bit != 0
            && self.items.contains(text)
    }
}

/// Returns the position of a text's last byte in [`TextSet::ends`]; an empty text counts as a NUL.
fn end(text: &[u8]) -> (usize, u64) {
    let byte = text.last().copied().unwrap_or_default();
    (usize::from(byte >> 6), 1 << (byte & 63))
}

/// A fast hash of short texts. It need not resist chosen keys: the set's keys come from rules, and texts from
/// the workload are only looked up.
#[derive(Debug, Default)]
pub(crate) struct ByteHasher(u64);

/// 2^64 divided by the golden ratio: spreads the bits of a product.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl ByteHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(SPREAD);
    }
}

impl Hasher for ByteHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
    }

    fn write_usize(&mut self, length: usize) {
        self.add(length as u64);
    }

    fn finish(&self) -> u64 {
        // The hash table takes its index from the low bits and its tag from the high ones.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::TextSet;

    #[test]
    fn contains_what_it_was_made_of_and_nothing_else() {
        let long = [b'x'; 80];
        let texts: [&[u8]; 5] = [b"", b"sh", b"bash", b"exactly8", &long];
        let set = TextSet::new(texts);
        assert!(texts.iter().all(|text| set.contains(text)));
        for other in ["s", "ash", "exactly9", "exactly88"] {
            assert!(!set.contains(other.as_bytes()), "{other}");
        }
        assert!(!set.contains(&[b'x'; 81]));
        assert!(!TextSet::new([]).contains(b""));
    }
}
