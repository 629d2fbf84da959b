//! Implication between conditions.
//!
//! The test looks only at the form of the conditions: it is sound, but does not find every implication.

use std::collections::HashMap;

use event::EventKind;

use crate::compile::atom::{AtomId, Right};
use crate::compile::operand::Spread;
use crate::compile::program::{Node, NodeId, Program};
use crate::condition::ast::{Op, Quantifier};

/// Finds implications and caches them.
pub(super) struct Implications<'p> {
    program: &'p Program,
    known: HashMap<(NodeId, NodeId), bool>,
}

impl<'p> Implications<'p> {
    pub(super) fn new(program: &'p Program) -> Self {
        Self {
            program,
            known: HashMap::new(),
        }
    }

    /// Returns true if the first rule matches every event that the second one matches, and the second can
    /// match.
    pub(super) fn shadows(&mut self, first: usize, second: usize) -> bool {
        let mut any = false;
        for kind in EventKind::all() {
            let entries = &self.program.kind(kind).entries;
            let of = |rule: usize| entries.iter().find(|entry| entry.rule == rule);
            let Some(second) = of(second) else {
                continue;
            };
            any = true;
            let implied = match (of(first), second.root) {
                (None, _) => false,
                (Some(first), second) => match (first.root, second) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(first), Some(second)) => self.implies(second, first),
                },
            };
            if !implied {
                return false;
            }
        }
        any
    }

    /// Returns true if `a` implies `b`.
    fn implies(&mut self, a: NodeId, b: NodeId) -> bool {
        if a == b {
            return true;
        }
        if let Some(known) = self.known.get(&(a, b)) {
            return *known;
        }
        let program = self.program;
        let found = match (program.node(a), program.node(b)) {
            (_, Node::All { children, .. }) => {
                let mut all = program.children(children).iter();
                all.all(|child| self.implies(a, *child))
            }
            (Node::Any { children, .. }, _) => {
                let mut all = program.children(children).iter();
                all.all(|child| self.implies(*child, b))
            }
            (
                Node::Literal { atom, negated },
                Node::Literal {
                    atom: other,
                    negated: same,
                },
            ) => {
                negated == same
                    && if negated {
                        self.covers(atom, other)
                    } else {
                        self.covers(other, atom)
                    }
            }
            (of_a, of_b) => {
                let by_parts = match of_b {
                    Node::Any { children, .. } => {
                        let mut any = program.children(children).iter();
                        any.any(|child| self.implies(a, *child))
                    }
                    _ => false,
                };
                by_parts
                    || match of_a {
                        Node::All { children, .. } => {
                            let mut any = program.children(children).iter();
                            any.any(|child| self.implies(*child, b))
                        }
                        _ => false,
                    }
            }
        };
        self.known.insert((a, b), found);
        found
    }

    /// Returns true if the second atom implies the first.
    fn covers(&self, wide: AtomId, narrow: AtomId) -> bool {
        let (wide, narrow) = (
            &self.program.atoms.get(wide).key,
            &self.program.atoms.get(narrow).key,
        );
        if wide.operand != narrow.operand {
            return false;
        }
        // A value that satisfies a comparison exists.
        if wide.op.is_none() {
            return true;
        }
        let (Right::Constants(of_wide), Right::Constants(of_narrow)) = (&wide.right, &narrow.right)
        else {
            return wide == narrow;
        };
        if wide.is_union() && wide.op == narrow.op && wide.quantifier == narrow.quantifier {
            return match wide.op {
                Some(Op::StartsWith) => of_narrow.iter().all(|text| {
                    let mut prefixes = of_wide.iter();
                    prefixes.any(|prefix| text.as_bytes().starts_with(prefix.as_bytes()))
                }),
                Some(Op::EndsWith) => of_narrow.iter().all(|text| {
                    let mut suffixes = of_wide.iter();
                    suffixes.any(|suffix| text.as_bytes().ends_with(suffix.as_bytes()))
                }),
                _ => of_narrow.iter().all(|text| of_wide.contains(text)),
            };
        }
        // An accepted text has such a prefix. In a list, every value would need it.
        if self.program.operands.get(wide.operand).spread != Spread::List
            && wide.op == Some(Op::StartsWith)
            && wide.quantifier == Some(Quantifier::AnyOf)
            && narrow.op == Some(Op::In)
        {
            return of_narrow.iter().all(|text| {
                let mut prefixes = of_wide.iter();
                prefixes.any(|prefix| text.as_bytes().starts_with(prefix.as_bytes()))
            });
        }
        wide == narrow
    }
}
