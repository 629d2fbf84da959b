//! Cache of file openings that no rule matches, whichever process makes them.
//!
//! Programs open the same files again and again, and in most cases the name, the flags and the result alone
//! exclude every rule. That holds for every process, so it is computed only once.

use std::hash::Hasher as _;

use event::field::Field;
use event::{Event, EventKind, Opening, OpeningParams, Stage, ValueType};
use serde::{Deserialize, Serialize};

use super::atom::{AtomId, Atoms, Check};
use super::operand::Operands;
use super::test::Test;
use super::text_set::ByteHasher;

/// Inputs that conditions use from a kind of event that opens files.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Openable {
    params: OpeningParams,
    /// Highest result that conditions distinguish; larger results are equivalent.
    highest: i64,
    /// Stage by operand: [`Stage::Registers`] if the opening alone decides it, else [`Stage::Exit`].
    pub(crate) stages: Box<[Stage]>,
}

impl Openable {
    /// Creates the value from `asked`, the atoms of all rules that can match the kind. Returns `None` if an
    /// opening alone decides none of them.
    pub(crate) fn new(
        kind: EventKind,
        asked: &[AtomId],
        atoms: &Atoms,
        operands: &Operands,
    ) -> Option<Self> {
        let params = OpeningParams::of(kind)?;
        let mut is_own: Vec<bool> = operands
            .ids()
            .map(|id| operands.as_field(id).is_some_and(Field::is_of_opening))
            .collect();
        let mut highest = -1;
        for id in asked {
            let atom = atoms.get(*id);
            let left = atom.key.operand;
            match &atom.check {
                Check::Operand(_, right) => {
                    is_own[left.index()] = false;
                    is_own[right.index()] = false;
                }
                Check::Test(test) if is_number(operands.get(left).ty) => match bound(test) {
                    Some(bound) => highest = bound.max(highest),
                    None => is_own[left.index()] = false,
                },
                Check::Test(_) => {}
            }
        }
        let mut lefts = asked.iter().map(|id| atoms.get(*id).key.operand);
        if !lefts.any(|left| is_own[left.index()]) {
            return None;
        }
        let stage = |is_own| {
            if is_own {
                Stage::Registers
            } else {
                Stage::Exit
            }
        };
        Some(Self {
            params,
            highest,
            stages: is_own.into_iter().map(stage).collect(),
        })
    }

    /// Returns the opening of an event, if the event contains all that conditions may use of it.
    pub(crate) fn opening<'a>(&self, event: &Event<'a>) -> Option<Opening<'a>> {
        Opening::of(event, self.params).map(|opening| self.simplify(&opening))
    }

    /// Returns the representative of all openings that no condition distinguishes from this one.
    pub(crate) fn simplify<'a>(&self, opening: &Opening<'a>) -> Opening<'a> {
        Opening {
            result: opening.result.min(self.alike_from()),
            ..*opening
        }
    }

    /// Returns the smallest result from which no condition distinguishes results.
    pub(crate) fn alike_from(&self) -> i64 {
        // No number is above the maximum.
        self.highest.saturating_add(1)
    }
}

fn is_number(ty: ValueType) -> bool {
    matches!(ty, ValueType::Int | ValueType::Uint)
}

/// Returns the highest number that a test distinguishes from the next one; `None` if that is unknown.
fn bound(test: &Test) -> Option<i64> {
    let number = match test {
        Test::Exists => return Some(-1),
        Test::Number(_, number) => *number,
        Test::Numbers(numbers) => numbers.last().copied().unwrap_or(-1),
        _ => return None,
    };
    i64::try_from(number).ok()
}

/// Maximum length of a cached name in bytes. An entry of this size takes two cache lines.
const MAX_NAME: usize = 80;
/// Number of cached answers.
const ANSWERS: usize = 2048;
/// Number of openings before the first answer is cached: a few openings are not worth the memory.
const PATIENCE: u32 = 4096;
/// Number of lookups after which the cache checks its use. If few openings were ruled out, it pauses for
/// [`PAUSE`] openings.
const TRIAL: u32 = 16_384;
const PAUSE: u32 = 1 << 20;

/// Cache of answers. A new answer replaces an old one.
#[derive(Debug)]
pub(crate) struct Openings {
    /// Cached answers; empty until there have been enough openings.
    answers: Vec<Answer>,
    /// Remaining number of openings for which the cache is not consulted.
    pause: u32,
    asked: u32,
    ruled_out: u32,
}

impl Default for Openings {
    fn default() -> Self {
        Self {
            answers: Vec::new(),
            pause: PATIENCE,
            asked: 0,
            ruled_out: 0,
        }
    }
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Answer {
    /// Kind of the call; `None` for an empty entry.
    kind: Option<EventKind>,
    flags: Option<u64>,
    mode: Option<u64>,
    result: i64,
    len: u8,
    is_ruled_out: bool,
    name: [u8; MAX_NAME],
}

impl Answer {
    const NONE: Self = Self {
        kind: None,
        flags: None,
        mode: None,
        result: 0,
        len: 0,
        is_ruled_out: false,
        name: [0; MAX_NAME],
    };

    /// Creates an entry; `None` if the name is too long.
    fn new(opening: &Opening<'_>, is_ruled_out: bool) -> Option<Self> {
        let mut answer = Self {
            kind: Some(opening.kind),
            flags: opening.flags,
            mode: opening.mode,
            result: opening.result,
            len: u8::try_from(opening.name.len()).ok()?,
            is_ruled_out,
            ..Self::NONE
        };
        let place = answer.name.get_mut(..opening.name.len())?;
        place.copy_from_slice(opening.name);
        Some(answer)
    }

    #[inline]
    fn is_of(&self, opening: &Opening<'_>) -> bool {
        self.kind == Some(opening.kind)
            && self.result == opening.result
            && self.flags == opening.flags
            && self.mode == opening.mode
            && self.name.get(..usize::from(self.len)) == Some(opening.name)
    }
}

impl Openings {
    /// Returns the cached answer to whether no rule can match an opening.
    #[inline]
    pub(crate) fn is_ruled_out(&mut self, opening: &Opening<'_>) -> Option<bool> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        if self.asked == TRIAL {
            self.rest();
        }
        self.asked += 1;
        let first = place(opening);
        let mut answers = [first, first ^ 1]
            .into_iter()
            .filter_map(|at| self.answers.get(at));
        let answer = answers.find(|answer| answer.is_of(opening))?.is_ruled_out;
        self.ruled_out += u32::from(answer);
        Some(answer)
    }

    /// Returns true if the cache is paused.
    pub(crate) fn are_resting(&self) -> bool {
        self.pause > 0
    }

    /// Pauses the cache if less than a quarter of a trial's openings were ruled out.
    #[cold]
    fn rest(&mut self) {
        if self.ruled_out < TRIAL / 4 {
            self.pause = PAUSE;
        }
        self.asked = 0;
        self.ruled_out = 0;
    }

    /// Caches an answer that was not present.
    pub(crate) fn remember(&mut self, opening: &Opening<'_>, is_ruled_out: bool) {
        if self.pause > 0 {
            return;
        }
        let Some(answer) = Answer::new(opening, is_ruled_out) else {
            return;
        };
        if self.answers.is_empty() {
            self.answers = vec![Answer::NONE; ANSWERS];
        }
        // Each opening has two possible slots, which are neighbours.
        let first = place(opening);
        self.answers.swap(first, first ^ 1);
        self.answers[first] = answer;
    }
}

fn place(opening: &Opening<'_>) -> usize {
    let mut hasher = ByteHasher::default();
    hasher.write(opening.name);
    let flags = opening.flags.unwrap_or_default();
    hasher.write_u64(flags ^ opening.result.cast_unsigned().rotate_left(32));
    let answers = u64::try_from(ANSWERS).expect("few answers");
    usize::try_from(hasher.finish() % answers).expect("below the number of answers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening<'a>(name: &'a [u8], result: i64) -> Opening<'a> {
        Opening {
            kind: EventKind::from_name("openat").unwrap(),
            name,
            flags: Some(0),
            mode: None,
            result,
        }
    }

    /// Creates a cache after its initial pause.
    fn patient() -> Openings {
        let mut openings = Openings::default();
        for _ in 0..PATIENCE {
            openings.remember(&opening(b"/x", 0), true);
            assert_eq!(openings.is_ruled_out(&opening(b"/x", 0)), None);
        }
        assert!(openings.answers.is_empty());
        openings
    }

    #[test]
    fn an_answer_takes_two_lines() {
        assert_eq!(size_of::<Answer>(), 128);
    }

    #[test]
    fn answers_are_those_of_the_same_opening_alone() {
        let mut openings = patient();
        let long = [b'/'; MAX_NAME + 1];
        let longest = &long[..MAX_NAME];
        for (name, result, is_ruled_out) in [
            (&b"/a"[..], 0, true),
            (b"/b", 0, false),
            (b"/a", -2, false),
            (longest, 0, true),
        ] {
            let opening = opening(name, result);
            assert_eq!(openings.is_ruled_out(&opening), None);
            openings.remember(&opening, is_ruled_out);
            assert_eq!(openings.is_ruled_out(&opening), Some(is_ruled_out));
            let mut other = opening;
            other.flags = Some(1);
            assert_eq!(openings.is_ruled_out(&other), None);
            (other.flags, other.mode) = (opening.flags, Some(0));
            assert_eq!(openings.is_ruled_out(&other), None);
        }
        openings.remember(&opening(&long, 0), true);
        assert_eq!(openings.is_ruled_out(&opening(&long, 0)), None);
    }

    #[test]
    fn what_is_in_vain_is_given_up_for_a_while() {
        let mut openings = patient();
        let names: Vec<String> = (0..TRIAL).map(|number| format!("/{number}")).collect();
        for name in &names {
            let opening = opening(name.as_bytes(), 0);
            assert_eq!(openings.is_ruled_out(&opening), None);
            openings.remember(&opening, true);
        }
        let last = opening(names[names.len() - 1].as_bytes(), 0);
        assert_eq!(openings.is_ruled_out(&last), Some(true));
        assert_eq!(openings.pause, PAUSE);
        for _ in 0..PAUSE {
            assert_eq!(openings.is_ruled_out(&last), None);
        }
        assert_eq!(openings.is_ruled_out(&last), Some(true));
    }
}
