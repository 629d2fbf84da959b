//! Atoms: single comparisons. Equal atoms of all rules are shared, so each is decided once per event.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;

use event::field::Cost;
use event::{Value, ValueType};
use serde::{Deserialize, Serialize, Serializer};

use super::operand::{OperandId, Operands, Spread};
use super::ternary::Ternary;
use super::test::{Context, Order, Test, number};
use super::text_set::ByteHasher;
use crate::condition::ast::{Op, Quantifier, Text};
use event::glob::Glob;

/// Index of an atom in [`Atoms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct AtomId(u32);

impl AtomId {
    /// Returns the index in tables that are parallel to the table of atoms.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Definition of an atom. Two atoms with the same key are the same atom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct AtomKey {
    /// Left-hand side of the comparison.
    pub(crate) operand: OperandId,
    /// Comparison operator; `None` tests whether the operand exists.
    pub(crate) op: Option<Op>,
    /// Number of constants that must satisfy the comparison.
    pub(crate) quantifier: Option<Quantifier>,
    /// Right-hand side of the comparison.
    pub(crate) right: Right,
}

/// The right-hand side of an atom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) enum Right {
    /// Constants; none for `exists`.
    Constants(Vec<Text>),
    /// Another operand.
    Operand(OperandId),
}

impl AtomKey {
    /// Normalizes a key, so that equivalent keys are equal: equality becomes `in`, and one constant of a text
    /// operator becomes `anyof` one.
    pub(crate) fn normalise(mut self, spread: Spread) -> Self {
        let Right::Constants(constants) = &self.right else {
            return self;
        };
        match (self.op, self.quantifier) {
            (Some(Op::Eq), None | Some(Quantifier::AnyOf)) if !constants.is_empty() => {
                (self.op, self.quantifier) = (Some(Op::In), None);
            }
            (Some(Op::Intersects), None) if spread != Spread::List => self.op = Some(Op::In),
            (Some(op), None) if is_text_op(op) => self.quantifier = Some(Quantifier::AnyOf),
            _ => {}
        }
        if self.is_union()
            && let Right::Constants(constants) = &mut self.right
        {
            constants.sort_unstable();
            constants.dedup();
        }
        self
    }

    /// Returns true if the atom holds when it holds for one of its constants, so that two such atoms on the
    /// same operand can be merged.
    pub(crate) fn is_union(&self) -> bool {
        match (self.op, self.quantifier) {
            (Some(Op::In | Op::Intersects | Op::PMatch), None) => true,
            (Some(op), Some(Quantifier::AnyOf)) => is_text_op(op),
            _ => false,
        }
    }
}

/// Returns true for text operators that hold if one constant does.
fn is_text_op(op: Op) -> bool {
    matches!(
        op,
        Op::Contains
            | Op::IContains
            | Op::BContains
            | Op::StartsWith
            | Op::BStartsWith
            | Op::EndsWith
            | Op::Glob
            | Op::IGlob
            | Op::Regex
    )
}

/// One compiled comparison.
#[derive(Debug)]
pub(crate) struct Atom {
    /// Definition of the atom.
    pub(crate) key: AtomKey,
    /// Compiled right-hand side.
    pub(crate) check: Check,
    /// Whether the comparison must hold for all values of a list instead of one.
    for_all: bool,
    /// Whether the result is inverted for a present value: `!=`.
    pub(crate) inverted: bool,
    /// Meaning of several values; decides whether an empty list exists.
    spread: Spread,
    /// Estimated cost of the check without its operands.
    pub(crate) cost: f32,
    /// Estimated probability that the atom holds, for ordering.
    pub(crate) likelihood: f32,
}

/// Compiled right-hand side of an atom.
#[derive(Debug)]
pub(crate) enum Check {
    /// A test against constants.
    Test(Test),
    /// A comparison with another operand.
    Operand(Op, OperandId),
}

impl Atom {
    fn new(key: AtomKey, operands: &Operands) -> Result<Self, String> {
        let operand = operands.get(key.operand);
        let check = match (&key.right, key.op) {
            (_, None) => Check::Test(Test::Exists),
            (Right::Operand(right), Some(op)) => Check::Operand(op, *right),
            (Right::Constants(constants), Some(op)) => {
                let host_name = operands
                    .as_field(key.operand)
                    .is_some_and(|field| field.spec.host_name);
                Check::Test(if host_name {
                    Test::HostNames(
                        constants
                            .iter()
                            .map(|name| name.to_lossy().into())
                            .collect(),
                    )
                } else {
                    Test::new(operand.ty, op, key.quantifier, constants)?
                })
            }
        };
        let for_all = matches!(
            (operand.spread, key.op),
            (Spread::Ends, Some(Op::Ne)) | (Spread::List, Some(Op::In))
        );
        let inverted = key.op == Some(Op::Ne) && key.quantifier.is_none();
        let (cost, likelihood) = estimate(&key, operand.ty);
        let spread = operand.spread;
        Ok(Self {
            key,
            check,
            for_all,
            inverted,
            spread,
            cost,
            likelihood,
        })
    }

    /// Decides the atom for a value, and for the right-hand value if that side is an operand.
    #[inline]
    pub(crate) fn decide(
        &self,
        left: &Value<'_>,
        right: &Value<'_>,
        context: Context<'_>,
    ) -> Ternary {
        let Value::List(values) = left else {
            return self.decide_one(left, right, context);
        };
        if matches!(self.check, Check::Test(Test::Exists)) {
            return (self.spread == Spread::List || !values.is_empty()).into();
        }
        let each = values
            .iter()
            .map(|value| self.decide_one(value, right, context));
        if self.for_all {
            return each.fold(Ternary::True, Ternary::and);
        }
        each.fold(Ternary::False, Ternary::or)
    }

    #[inline]
    fn decide_one(&self, left: &Value<'_>, right: &Value<'_>, context: Context<'_>) -> Ternary {
        match left {
            Value::Absent => return Ternary::False,
            Value::Unknown if *right == Value::Absent => {}
            Value::Unknown => return Ternary::Unknown,
            _ => {}
        }
        let truth = match &self.check {
            Check::Test(test) => test.holds(left, context),
            Check::Operand(op, _) => match right {
                Value::Absent => return Ternary::False,
                Value::Unknown => return Ternary::Unknown,
                Value::List(values) => values.contains(left).into(),
                right => compare(*op, left, right).into(),
            },
        };
        if self.inverted { !truth } else { truth }
    }
}

/// Compares two present values of one type. `!=` returns the result of `=`; its atom inverts it.
fn compare(op: Op, left: &Value<'_>, right: &Value<'_>) -> bool {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        return compare_texts(op, left, right);
    }
    if let (Some(left), Some(right)) = (number(left), number(right)) {
        return Order::of(op).unwrap_or(Order::Equal).holds(&left, &right);
    }
    left == right
}

fn compare_texts(op: Op, left: &[u8], right: &[u8]) -> bool {
    let finds = |left: &[u8], right: &[u8]| {
        right.is_empty() || left.windows(right.len()).any(|window| window == right)
    };
    match op {
        Op::Contains | Op::BContains => finds(left, right),
        Op::IContains => finds(&left.to_ascii_lowercase(), &right.to_ascii_lowercase()),
        Op::StartsWith | Op::BStartsWith => left.starts_with(right),
        Op::EndsWith => left.ends_with(right),
        Op::Glob => Glob::new(right, false).matches(left),
        Op::IGlob => Glob::new(right, true).matches(left),
        _ => Order::of(op).unwrap_or(Order::Equal).holds(left, right),
    }
}

/// Returns estimates in nanoseconds and probability: only the order they produce counts.
fn estimate(key: &AtomKey, ty: ValueType) -> (f32, f32) {
    match key.op {
        None => (1.0, 0.9),
        Some(Op::Ne) => (3.0, 0.95),
        Some(Op::Lt | Op::Le | Op::Gt | Op::Ge) => (2.0, 0.5),
        Some(Op::Regex) => (80.0, 0.05),
        Some(Op::Glob | Op::IGlob) => (30.0, 0.05),
        Some(Op::Contains | Op::IContains | Op::BContains) => (20.0, 0.05),
        Some(Op::PMatch) => (20.0, 0.1),
        Some(Op::StartsWith | Op::BStartsWith | Op::EndsWith) => (6.0, 0.1),
        Some(_) if ty == ValueType::Bool => (1.0, 0.4),
        Some(_) => (5.0, 0.05),
    }
}

/// Returns the estimated cost in nanoseconds of obtaining an operand.
pub(crate) fn operand_cost(cost: Cost) -> f32 {
    match cost {
        Cost::Free => 2.0,
        Cost::Text => 15.0,
        Cost::Remembered => 40.0,
        // Each needs at least one read from /proc.
        Cost::Process => 3_000.0,
        Cost::Far => 10_000.0,
        Cost::File => 12_000.0,
        Cost::Container => 60_000.0,
    }
}

/// All atoms of a program.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    items: Vec<Atom>,
    /// Index by key, used only by the compiler.
    by_key: HashMap<AtomKey, AtomId, BuildHasherDefault<ByteHasher>>,
}

/// Serializes only the keys, from which the rest is rebuilt.
impl Serialize for Atoms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.items.iter().map(|atom| &atom.key))
    }
}

impl Atoms {
    /// Compiles atoms with these keys, in their order.
    ///
    /// # Errors
    /// Returns the error in the constants, as the end of a sentence.
    pub(crate) fn of(keys: Vec<AtomKey>, operands: &Operands) -> Result<Self, String> {
        let items = keys.into_iter().map(|key| Atom::new(key, operands));
        Ok(Self {
            items: items.collect::<Result<_, _>>()?,
            by_key: HashMap::default(),
        })
    }

    /// Returns the atom with this key, adding it if it is new.
    ///
    /// # Errors
    /// Returns the error in the constants, as the end of a sentence.
    pub(crate) fn intern(&mut self, key: AtomKey, operands: &Operands) -> Result<AtomId, String> {
        let spread = operands.get(key.operand).spread;
        let key = key.normalise(spread);
        if let Some(id) = self.by_key.get(&key) {
            return Ok(*id);
        }
        let atom = Atom::new(key.clone(), operands)?;
        let id = AtomId(u32::try_from(self.items.len()).expect("fewer atoms than bytes"));
        self.by_key.insert(key, id);
        self.items.push(atom);
        Ok(id)
    }

    /// Returns the atom with this id.
    pub(crate) fn get(&self, id: AtomId) -> &Atom {
        &self.items[id.index()]
    }

    /// Iterates over all atoms.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Atom> {
        self.items.iter()
    }

    /// Returns the number of atoms.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Formats the atom in the syntax of conditions.
    pub(crate) fn show<'a>(&'a self, id: AtomId, operands: &'a Operands) -> impl fmt::Display + 'a {
        Shown {
            key: &self.get(id).key,
            operands,
        }
    }
}

struct Shown<'a> {
    key: &'a AtomKey,
    operands: &'a Operands,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(op) = self.key.op else {
            return write!(f, "{} exists", self.operands.get(self.key.operand));
        };
        write!(f, "{} ", self.operands.get(self.key.operand))?;
        match &self.key.right {
            Right::Operand(right) => {
                write!(f, "{} val({})", op.word(), self.operands.get(*right))
            }
            Right::Constants(constants) => match (op, self.key.quantifier, &**constants) {
                (Op::In, None, [one]) => write!(f, "= {}", one.to_lossy()),
                (_, Some(Quantifier::AnyOf), [one]) => {
                    write!(f, "{} {}", op.word(), one.to_lossy())
                }
                (_, None, [one]) if !matches!(op, Op::Intersects | Op::PMatch) => {
                    write!(f, "{} {}", op.word(), one.to_lossy())
                }
                (_, quantifier, constants) => {
                    let quantifier = quantifier.map_or("", Quantifier::word);
                    let space = if quantifier.is_empty() { "" } else { " " };
                    let list: Vec<_> = constants.iter().map(Text::to_lossy).collect();
                    write!(f, "{} {quantifier}{space}({})", op.word(), list.join(", "))
                }
            },
        }
    }
}
