//! Index of rules by one text field: one lookup excludes the rules that cannot match.
//!
//! Most conditions need one field to have one of some values (`proc.name in (..) and ..`, or several of these
//! with `or`). For each kind of event, the field that most rules need is looked up once; rules that need
//! other values are false without being evaluated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use event::Value;
use event::field::Cost;
use serde::{Deserialize, Serialize};

use super::atom::{AtomKey, Atoms, Right};
use super::operand::{OperandId, Operands, Spread};
use super::program::{Children, Entry, Node, NodeId};
use super::text_set::ByteHasher;
use crate::condition::ast::Op;

/// Maximum number of rules in one index; further rules are evaluated as if they had no set of values.
const MAX_INDEXED: usize = 64;

/// Minimum number of indexed rules. Fewer rules than this, or less than a third of all, are evaluated as fast
/// as they are looked up.
const MIN_INDEXED: usize = 3;

/// The rules of one kind, indexed by the value of one operand. Bits are positions of entries.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Index {
    /// Operand that is looked up.
    pub(crate) operand: OperandId,
    by_value: HashMap<Box<[u8]>, u64, BuildHasherDefault<ByteHasher>>,
    /// Entries that do not require a value of the operand.
    others: u64,
}

impl Index {
    /// Builds the index for the entries of a kind; `None` if an index would not pay.
    pub(crate) fn new<'n>(
        entries: &[Entry],
        atoms: &Atoms,
        operands: &Operands,
        children: &'n dyn Fn(Children) -> &'n [NodeId],
        node: &dyn Fn(NodeId) -> Node,
    ) -> Option<Self> {
        let needs = Needs {
            atoms,
            operands,
            children,
            node,
        };
        let mut by_operand: BTreeMap<OperandId, Vec<(usize, Texts)>> = BTreeMap::new();
        for (position, entry) in entries.iter().take(MAX_INDEXED).enumerate() {
            for (operand, texts) in entry.root.map(|root| needs.of(root)).unwrap_or_default() {
                by_operand
                    .entry(operand)
                    .or_default()
                    .push((position, texts));
            }
        }
        // Rules that all need the same values share the result already.
        let tells_apart = |rules: &[(usize, Texts)]| rules.iter().any(|rule| rule.1 != rules[0].1);
        let (operand, indexed) = by_operand
            .into_iter()
            .filter(|(_, rules)| rules.len() >= MIN_INDEXED && rules.len() * 3 >= entries.len())
            .filter(|(_, rules)| tells_apart(rules))
            .max_by_key(|(operand, rules)| (rules.len(), *operand))?;
        let mut index = Self {
            operand,
            by_value: HashMap::default(),
            others: u64::MAX,
        };
        for (position, texts) in indexed {
            index.others &= !(1 << position);
            for text in texts {
                *index.by_value.entry(text).or_default() |= 1 << position;
            }
        }
        Some(index)
    }

    /// Returns the entries that a value does not exclude.
    pub(crate) fn candidates(&self, value: &Value<'_>) -> Candidates {
        let bits = match value {
            Value::Text(text) => self.by_value.get(*text).copied().unwrap_or_default(),
            Value::Absent => 0,
            _ => return Candidates(u64::MAX),
        };
        Candidates(bits | self.others)
    }
}

/// Values of which a condition needs one.
type Texts = BTreeSet<Box<[u8]>>;

/// Collects the values that conditions need.
struct Needs<'a, 'n> {
    atoms: &'a Atoms,
    operands: &'a Operands,
    children: &'n dyn Fn(Children) -> &'n [NodeId],
    node: &'a dyn Fn(NodeId) -> Node,
}

impl Needs<'_, '_> {
    /// Returns, by operand, the values of which it must have one for the condition to hold.
    fn of(&self, id: NodeId) -> BTreeMap<OperandId, Texts> {
        match (self.node)(id) {
            Node::Literal { negated: true, .. } => BTreeMap::new(),
            Node::Literal { atom, .. } => {
                let key = &self.atoms.get(atom).key;
                match &key.right {
                    Right::Constants(texts) if self.is_set(key) => {
                        let texts = texts.iter().map(|text| text.as_bytes().into());
                        BTreeMap::from([(key.operand, texts.collect())])
                    }
                    _ => BTreeMap::new(),
                }
            }
            Node::All { children, .. } => {
                let mut all: BTreeMap<OperandId, Texts> = BTreeMap::new();
                for child in (self.children)(children) {
                    for (operand, texts) in self.of(*child) {
                        let known = all.entry(operand).or_insert_with(|| texts.clone());
                        known.retain(|text| texts.contains(text));
                    }
                }
                all
            }
            Node::Any { children, .. } => {
                let each = (self.children)(children)
                    .iter()
                    .map(|child| self.of(*child));
                let either = each.reduce(|mut any, mut other| {
                    any.retain(|operand, texts| match other.remove(operand) {
                        Some(more) => {
                            texts.extend(more);
                            true
                        }
                        None => false,
                    });
                    any
                });
                either.unwrap_or_default()
            }
        }
    }

    fn is_set(&self, key: &AtomKey) -> bool {
        let operand = self.operands.get(key.operand);
        let field = self.operands.as_field(key.operand);
        key.op == Some(Op::In)
            && operand.spread == Spread::One
            && is_text(operand.ty)
            && self.operands.cost(key.operand) < Cost::Far
            && !field.is_some_and(|field| field.spec.host_name)
    }
}

fn is_text(ty: event::ValueType) -> bool {
    matches!(ty, event::ValueType::Text | event::ValueType::Path)
}

/// Bit set of entries that must be evaluated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates(u64);

impl Candidates {
    /// All entries.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// Returns true if the entry at this position must be evaluated.
    pub(crate) fn has(self, position: usize) -> bool {
        position >= MAX_INDEXED || self.0 >> position & 1 == 1
    }
}
