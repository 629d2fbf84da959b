//! Paths that rules name.

use std::collections::BTreeSet;

use crate::compile::atom::Right;
use crate::compile::operand::{OperandId, OperandSource};
use crate::condition::ast::Op;
use crate::engine::Engine;

impl Engine {
    /// Returns the absolute paths and path prefixes that conditions compare with, as a starting point for
    /// watching the file system. Evaluating an event on each path shows which of them matter, and for what.
    pub fn paths(&self) -> BTreeSet<Vec<u8>> {
        let atoms = self.program.atoms.iter();
        let named = |op: Option<Op>| {
            matches!(
                op,
                Some(Op::Eq | Op::In | Op::Intersects | Op::PMatch | Op::StartsWith | Op::Glob)
            )
        };
        atoms
            .filter(|atom| named(atom.key.op) && !self.is_about_words(atom.key.operand))
            .filter_map(|atom| match &atom.key.right {
                Right::Constants(constants) => Some(constants),
                Right::Operand(_) => None,
            })
            .flatten()
            .map(|constant| until_wildcard(constant.as_bytes()))
            .filter(|path| path.len() > 1 && path.starts_with(b"/"))
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// Returns whether an operand is a field of the process other than its executable, such as `proc.args`: a path in
    /// such text is no file that the event is about.
    fn is_about_words(&self, operand: OperandId) -> bool {
        match &self.program.operands.get(operand).source {
            OperandSource::Field(field) => {
                let name = field.to_string();
                name.starts_with("proc.") && !name.contains("exepath")
            }
            OperandSource::Constant(_)
            | OperandSource::List(_)
            | OperandSource::Transform { .. } => false,
        }
    }
}

/// Returns the directory that a pattern starts with.
fn until_wildcard(pattern: &[u8]) -> &[u8] {
    match pattern.iter().position(|byte| b"*?[".contains(byte)) {
        Some(end) => {
            let folder = pattern[..end].iter().rposition(|byte| *byte == b'/');
            &pattern[..folder.map_or(0, |end| end + 1)]
        }
        None => pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_end_at_their_folder() {
        assert_eq!(until_wildcard(b"/etc/shadow"), b"/etc/shadow");
        assert_eq!(until_wildcard(b"/home/*/.ssh"), b"/home/");
        assert_eq!(until_wildcard(b"/etc/pam.d/a?"), b"/etc/pam.d/");
        assert_eq!(until_wildcard(b"*"), b"");
    }
}
