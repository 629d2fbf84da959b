//! A condition in negation normal form: only atoms are negated.

use serde::{Deserialize, Serialize};

use super::atom::{AtomId, AtomKey, Atoms, Right};
use super::operand::{Operands, Spread};
use crate::condition::ast::Op;

/// A checked condition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Tree {
    /// A constant condition.
    Const(bool),
    /// An atom or its negation.
    Literal { atom: AtomId, negated: bool },
    /// A conjunction of at least two.
    All(Vec<Tree>),
    /// A disjunction of at least two.
    Any(Vec<Tree>),
}

impl Tree {
    /// Returns the simplified conjunction.
    pub(crate) fn all(children: Vec<Tree>) -> Self {
        match join(children, true) {
            Joined::Decided(value) => Self::Const(value),
            Joined::One(tree) => tree,
            Joined::Many(children) => Self::All(children),
        }
    }

    /// Returns the simplified disjunction.
    pub(crate) fn any(children: Vec<Tree>) -> Self {
        match join(children, false) {
            Joined::Decided(value) => Self::Const(value),
            Joined::One(tree) => tree,
            Joined::Many(children) => Self::Any(children),
        }
    }

    /// Merges atoms that test the same operand in the same way: `a = x or a in (y, z)` becomes one lookup in
    /// a set, `a startswith x or a startswith y` one list of prefixes, `not a contains x and not a contains
    /// y` one automaton.
    pub(crate) fn merge(self, atoms: &mut Atoms, operands: &Operands) -> Self {
        let (children, negated) = match self {
            Self::All(children) => (children, true),
            Self::Any(children) => (children, false),
            other => return other,
        };
        let mut merged: Vec<Tree> = Vec::with_capacity(children.len());
        let mut keys: Vec<(usize, AtomKey)> = Vec::new();
        for child in children {
            let child = child.merge(atoms, operands);
            let key = match &child {
                Self::Literal { atom, negated: own } if *own == negated => &atoms.get(*atom).key,
                _ => {
                    merged.push(child);
                    continue;
                }
            };
            if !key.is_union() || is_for_all(key, operands) {
                merged.push(child);
                continue;
            }
            match keys.iter_mut().find(|(_, known)| same_question(known, key)) {
                Some((_, known)) => unite(known, key),
                None => {
                    keys.push((merged.len(), key.clone()));
                    merged.push(child);
                }
            }
        }
        for (position, key) in keys {
            let atom = atoms
                .intern(key, operands)
                .expect("its parts were atoms already");
            merged[position] = Self::Literal { atom, negated };
        }
        if negated {
            Self::all(merged)
        } else {
            Self::any(merged)
        }
    }
}

/// Returns true for `in` on a list, which holds for all values together: two such atoms cannot be merged.
fn is_for_all(key: &AtomKey, operands: &Operands) -> bool {
    key.op == Some(Op::In) && operands.get(key.operand).spread == Spread::List
}

fn same_question(a: &AtomKey, b: &AtomKey) -> bool {
    let both_constants = matches!(
        (&a.right, &b.right),
        (Right::Constants(_), Right::Constants(_))
    );
    both_constants && a.operand == b.operand && a.op == b.op && a.quantifier == b.quantifier
}

fn unite(into: &mut AtomKey, from: &AtomKey) {
    if let (Right::Constants(into), Right::Constants(from)) = (&mut into.right, &from.right) {
        into.extend(from.iter().cloned());
    }
}

enum Joined {
    Decided(bool),
    One(Tree),
    Many(Vec<Tree>),
}

/// Flattens and folds the children of a conjunction (`neutral` is true) or disjunction.
fn join(children: Vec<Tree>, neutral: bool) -> Joined {
    let mut flat: Vec<Tree> = Vec::with_capacity(children.len());
    for child in children {
        match child {
            Tree::Const(value) if value == neutral => {}
            Tree::Const(value) => return Joined::Decided(value),
            Tree::All(inner) if neutral => inner.into_iter().for_each(|tree| add(&mut flat, tree)),
            Tree::Any(inner) if !neutral => inner.into_iter().for_each(|tree| add(&mut flat, tree)),
            tree => add(&mut flat, tree),
        }
    }
    match flat.len() {
        0 => Joined::Decided(neutral),
        1 => Joined::One(flat.remove(0)),
        _ => Joined::Many(flat),
    }
}

fn add(flat: &mut Vec<Tree>, tree: Tree) {
    if !flat.contains(&tree) {
        flat.push(tree);
    }
}
