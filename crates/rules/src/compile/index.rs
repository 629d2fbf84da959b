//! Finds the rules that one text rules out, with one lookup for all of them.
//!
//! Most conditions need one field to be in a set (`proc.name in (..) and ..`). For a kind of
//! events the field that most rules need is looked up once; rules whose set lacks the value are
//! false without being evaluated.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use event::Value;
use event::field::Cost;

use super::atom::{Atoms, Right};
use super::operand::{OperandId, Operands, Spread};
use super::program::{Entry, Node, NodeId};
use super::text_set::ByteHasher;
use crate::condition::ast::Op;

/// How many rules one index can tell apart; more are evaluated as if they had no set.
const MAX_INDEXED: usize = 64;

/// Fewer rules than this, or less than a third of all, are evaluated as fast as they are looked up.
const MIN_INDEXED: usize = 3;

/// The rules of one kind by the value of one operand. Bits are positions of entries.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// What is looked up.
    pub(crate) operand: OperandId,
    by_value: HashMap<Box<[u8]>, u64, BuildHasherDefault<ByteHasher>>,
    /// Entries that do not need the operand to be in a set.
    others: u64,
}

impl Index {
    /// Builds the index for the entries of a kind, if it is worth it. `conjuncts` gives what a
    /// root needs all of.
    pub(crate) fn new<'n>(
        entries: &[Entry],
        atoms: &Atoms,
        operands: &Operands,
        conjuncts: impl Fn(NodeId) -> &'n [NodeId],
        node: impl Fn(NodeId) -> Node,
    ) -> Option<Self> {
        let needed = |root: NodeId, wanted: Option<OperandId>| {
            conjuncts(root).iter().find_map(|id| match node(*id) {
                Node::Literal {
                    atom,
                    negated: false,
                } => {
                    let key = &atoms.get(atom).key;
                    let operand = operands.get(key.operand);
                    let is_set = key.op == Some(Op::In)
                        && operand.spread == Spread::One
                        && is_text(operand.ty)
                        && operands.cost(key.operand) < Cost::Far
                        && !operands
                            .as_field(key.operand)
                            .is_some_and(|it| it.spec.host_name);
                    match &key.right {
                        Right::Constants(texts)
                            if is_set && wanted.is_none_or(|wanted| wanted == key.operand) =>
                        {
                            Some((key.operand, texts))
                        }
                        _ => None,
                    }
                }
                _ => None,
            })
        };
        let roots = || entries.iter().take(MAX_INDEXED).enumerate();
        let mut counts: HashMap<OperandId, usize> = HashMap::new();
        for (_, entry) in roots() {
            if let Some((operand, _)) = entry.root.and_then(|root| needed(root, None)) {
                *counts.entry(operand).or_default() += 1;
            }
        }
        let best = counts
            .into_iter()
            .max_by_key(|(operand, count)| (*count, *operand));
        let (operand, _) =
            best.filter(|(_, count)| *count >= MIN_INDEXED && *count * 3 >= entries.len())?;
        let mut index = Self {
            operand,
            by_value: HashMap::default(),
            others: 0,
        };
        for (position, entry) in roots() {
            match entry.root.and_then(|root| needed(root, Some(operand))) {
                Some((_, texts)) => {
                    for text in texts {
                        *index.by_value.entry(text.as_bytes().into()).or_default() |= 1 << position;
                    }
                }
                None => index.others |= 1 << position,
            }
        }
        Some(index)
    }

    /// The entries that a value does not rule out.
    pub(crate) fn candidates(&self, value: &Value<'_>) -> Candidates {
        let bits = match value {
            Value::Text(text) => self.by_value.get(*text).copied().unwrap_or_default(),
            Value::Absent => 0,
            _ => return Candidates(u64::MAX),
        };
        Candidates(bits | self.others)
    }
}

fn is_text(ty: event::ValueType) -> bool {
    matches!(ty, event::ValueType::Text | event::ValueType::Path)
}

/// Entries that have to be evaluated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates(u64);

impl Candidates {
    /// All entries.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// Whether the entry at this position is one.
    pub(crate) fn has(self, position: usize) -> bool {
        position >= MAX_INDEXED || self.0 >> position & 1 == 1
    }
}
