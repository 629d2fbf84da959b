//! Corrupts inputs, for those who have no fuzzer that does.

use crate::mutate::Random;

/// Numbers that readers trip over.
const ODD: [u64; 10] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// The same as text, and what structures of texts are made of.
const WORDS: [&str; 34] = [
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ":",
    ": ",
    "- ",
    ",",
    "\n",
    "\r",
    "\t",
    "#",
    "&a ",
    "*a",
    "|",
    "%",
    "\\",
    "\0",
    "\u{feff}",
    "\u{e9}",
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551615",
    "9223372036854775808",
    "/../",
    "\\u0000",
    "\u{1b}[2J",
    "0",
];

/// Makes inputs that are like the seeds of a corpus.
#[derive(Debug)]
pub struct Mutator<'s> {
    seeds: &'s [Vec<u8>],
    max_len: usize,
}

impl<'s> Mutator<'s> {
    /// Makes inputs of these seeds with at most so many bytes.
    ///
    /// # Panics
    ///
    /// If there is no seed.
    #[must_use]
    pub fn new(seeds: &'s [Vec<u8>], max_len: usize) -> Self {
        assert!(!seeds.is_empty(), "there are no seeds");
        Self { seeds, max_len }
    }

    /// Returns the input of this number, which is always the same.
    #[must_use]
    pub fn input(&self, number: u64) -> Vec<u8> {
        let mut random = Random::new(number);
        let mut input = self.seed(&mut random).clone();
        for _ in 0..=random.below(4) {
            self.change(&mut input, &mut random);
        }
        input.truncate(self.max_len);
        input
    }

    /// Returns the seed that the input of this number begins with.
    #[must_use]
    pub fn seed_of(&self, number: u64) -> &[u8] {
        self.seed(&mut Random::new(number))
    }

    fn seed(&self, random: &mut Random) -> &Vec<u8> {
        &self.seeds[random.below(self.seeds.len())]
    }

    fn change(&self, input: &mut Vec<u8>, random: &mut Random) {
        let at = random.below(input.len() + 1);
        let length = random.below(input.len() - at + 1);
        let length = length.min(1 << random.below(10));
        let end = at + length;
        match random.below(10) {
            0 => drop(input.drain(at..end)),
            1 => {
                let again = input[at..end].to_vec();
                let times = 1 + random.below(8);
                insert(input, at, &again.repeat(times));
            }
            // A piece of another seed, which may be of the same structure.
            2 | 3 => {
                let other = self.seed(random);
                let from = random.below(other.len() + 1);
                let until = from + random.below((other.len() - from).min(256) + 1);
                input.splice(at..end, other[from..until].iter().copied());
            }
            4 => insert(input, at, random.of(&WORDS).as_bytes()),
            5 => drop(input.splice(at..end, random.of(&WORDS).bytes())),
            6 => {
                let number = random.of(&ODD).to_le_bytes();
                let width = random.of(&[1, 2, 4, 8]).min(input.len() - at);
                input[at..at + width].copy_from_slice(&number[..width]);
            }
            7 => input.truncate(at),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}
