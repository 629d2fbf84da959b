//! Groups that are open, and what they hold so far.

use regex_syntax::hir::Hir;

use super::flags::Flags;
use super::{MAX_REPEAT, Parsed, SyntaxError};

/// How deep groups may be nested.
const MAX_DEPTH: usize = 1000;

/// A part of an expression.
struct Part {
    hir: Hir,
    /// How often its innermost part is repeated by number, the counts of nested repetitions multiplied.
    repeats: u32,
}

/// A group that is open, or the whole pattern.
#[derive(Default)]
struct Group {
    alternatives: Vec<Part>,
    sequence: Vec<Part>,
    /// The flags that hold again after it.
    flags: Flags,
}

impl Group {
    /// Ends the alternative that is being read.
    fn alternate(&mut self) {
        let sequence = std::mem::take(&mut self.sequence);
        let repeats = sequence.iter().map(|part| part.repeats).max().unwrap_or(1);
        let hir = Hir::concat(sequence.into_iter().map(|part| part.hir).collect());
        self.alternatives.push(Part { hir, repeats });
    }

    fn finish(mut self) -> Part {
        self.alternate();
        let repeats = self.alternatives.iter().map(|part| part.repeats).max();
        let alternatives = self.alternatives.into_iter().map(|part| part.hir).collect();
        Part {
            hir: Hir::alternation(alternatives),
            repeats: repeats.unwrap_or(1),
        }
    }
}

/// The whole pattern and the groups that are open in it.
#[derive(Default)]
pub(super) struct Stack {
    open: Vec<Group>,
    /// The innermost group.
    group: Group,
}

impl Stack {
    pub(super) fn push(&mut self, hir: Hir) {
        self.group.sequence.push(Part { hir, repeats: 1 });
    }

    pub(super) fn alternate(&mut self) {
        self.group.alternate();
    }

    /// Opens a group after which `flags` hold again.
    pub(super) fn open(&mut self, flags: Flags) -> Parsed<()> {
        if self.open.len() == MAX_DEPTH {
            return Err(SyntaxError::TooDeep);
        }
        let group = Group {
            flags,
            ..Group::default()
        };
        self.open.push(std::mem::replace(&mut self.group, group));
        Ok(())
    }

    /// Closes the innermost group and returns the flags that hold after it.
    pub(super) fn close(&mut self) -> Parsed<Flags> {
        let outer = self.open.pop().ok_or(SyntaxError::UnopenedGroup)?;
        let group = std::mem::replace(&mut self.group, outer);
        let flags = group.flags;
        self.group.sequence.push(group.finish());
        Ok(flags)
    }

    /// Counts `times` repetitions, written as `operator`, of the part before.
    pub(super) fn count(&mut self, operator: &str, times: u32) -> Parsed<()> {
        let Some(part) = self.group.sequence.last_mut() else {
            return Err(SyntaxError::NothingToRepeat(operator.to_owned()));
        };
        let repeats = part.repeats.saturating_mul(times.max(1));
        // A count of 0 or 1 is not checked, whatever it repeats.
        if times >= 2 && repeats > MAX_REPEAT {
            return Err(SyntaxError::TooManyRepetitions(operator.to_owned()));
        }
        part.repeats = repeats;
        Ok(())
    }

    /// Replaces the part before by its repetition, written as `operator`.
    pub(super) fn repeat(
        &mut self,
        operator: String,
        repetition: impl FnOnce(Box<Hir>) -> Hir,
    ) -> Parsed<()> {
        let Some(part) = self.group.sequence.last_mut() else {
            return Err(SyntaxError::NothingToRepeat(operator));
        };
        let hir = std::mem::replace(&mut part.hir, Hir::empty());
        part.hir = repetition(Box::new(hir));
        Ok(())
    }

    pub(super) fn finish(self) -> Parsed<Hir> {
        if self.open.is_empty() {
            Ok(self.group.finish().hir)
        } else {
            Err(SyntaxError::UnclosedGroup)
        }
    }
}
