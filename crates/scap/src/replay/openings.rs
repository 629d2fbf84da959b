//! Cache of file openings, keyed by their bytes in the capture.
//!
//! Programs open the same files again and again, with only the result differing. The cache keeps
//! what was derived from all other bytes: the resulting descriptor, and that no rule can match.
//! Comparing the bytes takes a fraction of the time for decoding, evaluating and copying the name.

use std::rc::Rc;

use crate::state::descriptor::Open;
use crate::state::hash::fold;

/// The exit event of an opening, without its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenExit<'b> {
    /// Number of the event type.
    pub(super) code: u16,
    /// Lengths of the other parameters.
    pub(super) lens: &'b [u8],
    /// The other parameters.
    pub(super) rest: &'b [u8],
}

/// A cached opening.
#[derive(Clone, Debug)]
pub(super) struct KnownOpen {
    /// Resulting descriptor; `None` if the opening failed.
    pub(super) open: Option<Rc<Open>>,
    /// Its result, and the threshold from which results are equivalent.
    pub(super) result: i64,
    pub(super) alike_from: i64,
}

impl KnownOpen {
    fn is_of(&self, result: i64) -> bool {
        self.result == result || self.result.min(result) >= self.alike_from
    }
}

/// The cache.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// Empty until an opening repeats.
    slots: Vec<Slot>,
    met: OpenFilter,
    /// Number of evictions.
    replaced: usize,
}

/// Number of cache entries. Each opening can use one of a few adjacent ones.
const SLOTS: usize = 4096;
const CHOICE: usize = 4;
/// Maximum size of an opening in bytes. An entry fills three cache lines.
const MAX_BYTES: usize = 136;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Slot {
    hash: u64,
    /// `None` for an empty entry.
    known: Option<KnownOpen>,
    code: u16,
    lens: u8,
    rest: u8,
    bytes: [u8; MAX_BYTES],
}

impl Slot {
    const FREE: Self = Self {
        hash: 0,
        known: None,
        code: 0,
        lens: 0,
        rest: 0,
        bytes: [0; MAX_BYTES],
    };

    /// Returns `None` if there are too many bytes.
    fn new(hash: u64, exit: &OpenExit<'_>, known: KnownOpen) -> Option<Self> {
        let mut slot = Self {
            hash,
            known: Some(known),
            code: exit.code,
            lens: u8::try_from(exit.lens.len()).ok()?,
            rest: u8::try_from(exit.rest.len()).ok()?,
            ..Self::FREE
        };
        let (lens, rest) = slot.bytes.split_at_mut_checked(exit.lens.len())?;
        lens.copy_from_slice(exit.lens);
        let rest = rest.get_mut(..exit.rest.len())?;
        rest.copy_from_slice(exit.rest);
        Some(slot)
    }

    #[inline]
    fn known(&self, hash: u64, exit: &OpenExit<'_>, result: i64) -> Option<&KnownOpen> {
        if self.hash != hash || self.code != exit.code {
            return None;
        }
        let (lens, rest) = self.bytes.split_at_checked(usize::from(self.lens))?;
        let rest = rest.get(..usize::from(self.rest))?;
        let known = self.known.as_ref().filter(|known| known.is_of(result))?;
        (lens == exit.lens && rest == exit.rest).then_some(known)
    }
}

impl Openings {
    /// Looks up an opening with this result.
    #[inline]
    pub(super) fn find(&self, exit: &OpenExit<'_>, result: i64) -> Option<&KnownOpen> {
        if self.slots.is_empty() {
            return None;
        }
        let hash = hash(exit);
        let first = slot(hash);
        let mut slots = self.slots[first..first + CHOICE].iter();
        slots.find_map(|slot| slot.known(hash, exit, result))
    }

    /// Caches an opening from its second occurrence on: copying one that does not repeat would be
    /// useless.
    pub(super) fn keep(&mut self, exit: &OpenExit<'_>, known: impl FnOnce() -> Option<KnownOpen>) {
        let hash = hash(exit);
        if !self.met.again(hash) {
            return;
        }
        let Some(kept) = known().and_then(|known| Slot::new(hash, exit, known)) else {
            return;
        };
        if self.slots.is_empty() {
            self.slots = vec![Slot::FREE; SLOTS];
        }
        let first = slot(hash);
        let choice = &mut self.slots[first..first + CHOICE];
        let free = choice.iter().position(|slot| slot.known.is_none());
        let at = free.unwrap_or_else(|| {
            self.replaced += 1;
            self.replaced % CHOICE
        });
        choice[at] = kept;
    }
}

/// Filter of seen openings by some bits of their hashes.
#[derive(Debug, Default)]
struct OpenFilter {
    bits: Vec<u64>,
    count: usize,
}

impl OpenFilter {
    /// Size in words: one bit per 16-bit number.
    const WORDS: usize = 1 << 10;
    /// Number of openings that the filter distinguishes well enough; then it is cleared.
    const MANY: usize = 1 << 14;

    /// Returns true if the opening was seen before.
    fn again(&mut self, hash: u64) -> bool {
        if self.bits.is_empty() || self.count == Self::MANY {
            self.bits.clear();
            self.bits.resize(Self::WORDS, 0);
            self.count = 0;
        }
        let number = usize::try_from(hash >> 48).expect("16 bits");
        let (word, bit) = (&mut self.bits[number / 64], 1 << (number % 64));
        let is_again = *word & bit != 0;
        *word |= bit;
        self.count += usize::from(!is_again);
        is_again
    }
}

/// Returns the first possible entry of an opening.
fn slot(hash: u64) -> usize {
    let choices = u64::try_from(SLOTS / CHOICE).expect("few slots");
    usize::try_from(hash % choices).expect("below the number of slots") * CHOICE
}

/// Hashes the last bytes of an opening, because names differ at their ends and the bytes after them
/// locate the file. A deliberate collision only causes a comparison.
fn hash(exit: &OpenExit<'_>) -> u64 {
    const LAST: usize = 48;
    let last: [u8; LAST] = match exit.rest.last_chunk() {
        Some(last) => *last,
        None => {
            let mut last = [0; LAST];
            last[..exit.rest.len()].copy_from_slice(exit.rest);
            last
        }
    };
    let (words, _) = last.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    /// Odd numbers without a pattern: digits of pi.
    const PI: [u64; 4] = [
        0x243f_6a88_85a3_08d3,
        0x1319_8a2e_0370_7345,
        0xa409_3822_299f_31d1,
        0x082e_fa98_ec4e_6c89,
    ];
    let len = u64::try_from(exit.rest.len()).unwrap_or(u64::MAX);
    let start = fold(word(0) ^ PI[0], word(1) ^ PI[1]);
    let middle = fold(word(2) ^ PI[2], word(3) ^ PI[3]);
    let end = fold(word(4) ^ PI[1], word(5) ^ PI[2] ^ len.rotate_left(32));
    fold(start ^ middle.rotate_left(21) ^ end.rotate_left(42), PI[3])
}

#[cfg(test)]
mod tests {
    use event::DescriptorKind;

    use super::*;

    fn exit(rest: &[u8]) -> OpenExit<'_> {
        OpenExit {
            code: 307,
            lens: &[1, 0],
            rest,
        }
    }

    fn known(name: &[u8]) -> Option<KnownOpen> {
        Some(KnownOpen {
            open: Some(Rc::new(Open::new(DescriptorKind::File, name))),
            result: 7,
            alike_from: 5,
        })
    }

    fn name(openings: &Openings, exit: &OpenExit<'_>, result: i64) -> Option<Vec<u8>> {
        let known = openings.find(exit, result)?;
        Some(known.open.as_ref()?.name.clone())
    }

    #[test]
    fn a_place_takes_three_lines() {
        assert_eq!(size_of::<Slot>(), 192);
    }

    #[test]
    fn what_is_kept_is_of_the_same_bytes_and_of_results_that_are_alike() {
        let mut openings = Openings::default();
        let longest = [b'/'; MAX_BYTES - 2];
        for rest in [&b"/a"[..], b"/b", b"", &longest] {
            let exit = exit(rest);
            openings.keep(&exit, || panic!("met once"));
            assert_eq!(name(&openings, &exit, 7), None);
            openings.keep(&exit, || known(rest));
            assert_eq!(name(&openings, &exit, 7).as_deref(), Some(rest));
            assert_eq!(name(&openings, &exit, 5).as_deref(), Some(rest));
            assert_eq!(name(&openings, &exit, 4), None);
            for other in [
                OpenExit { code: 3, ..exit },
                OpenExit {
                    lens: &[2, 0],
                    ..exit
                },
            ] {
                assert_eq!(name(&openings, &other, 7), None);
            }
        }
        let long = [b'/'; MAX_BYTES - 1];
        for _ in 0..3 {
            openings.keep(&exit(&long), || known(&long));
        }
        assert_eq!(name(&openings, &exit(&long), 7), None);
        // Of the first bytes of a long one the hash knows nothing.
        let mut other = longest;
        other[0] = b'x';
        assert_eq!(hash(&exit(&other)), hash(&exit(&longest)));
        assert_eq!(name(&openings, &exit(&other), 7), None);
    }

    #[test]
    fn only_so_many_are_kept() {
        let mut openings = Openings::default();
        let names: Vec<String> = (0..3 * SLOTS).map(|at| format!("/file-{at}")).collect();
        for name in &names {
            for _ in 0..2 {
                openings.keep(&exit(name.as_bytes()), || known(name.as_bytes()));
            }
        }
        let kept = names.iter().filter(|at| {
            let found = name(&openings, &exit(at.as_bytes()), 7);
            assert!(found.is_none() || found.as_deref() == Some(at.as_bytes()));
            found.is_some()
        });
        let kept = kept.count();
        assert!((SLOTS / 2..=SLOTS).contains(&kept), "{kept}");
    }

    #[test]
    fn a_few_hundred_are_kept_all() {
        let mut openings = Openings::default();
        let names: Vec<String> = (0..300).map(|at| format!("/usr/lib/file-{at}")).collect();
        for round in 0..3 {
            for each in &names {
                let exit = exit(each.as_bytes());
                assert!(round < 2 || name(&openings, &exit, 7).is_some(), "{each}");
                if round < 2 {
                    openings.keep(&exit, || known(each.as_bytes()));
                }
            }
        }
    }
}
