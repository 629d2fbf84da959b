//! Atoms: single comparisons. Equal atoms of all rules are one, so each is decided once per event.

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

/// Position of an atom in [`Atoms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct AtomId(u32);

impl AtomId {
    /// Position in tables that run along with the table of atoms.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an atom says. Two atoms with the same key are the same atom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct AtomKey {
    /// What is compared.
    pub(crate) operand: OperandId,
    /// How; `None` asks whether it exists.
    pub(crate) op: Option<Op>,
    /// How many of the constants have to hold.
    pub(crate) quantifier: Option<Quantifier>,
    /// With what.
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
    /// Brings a key into its normal form, in which what means the same looks the same:
    /// equality is `in`, and one constant of a text operator is `anyof` one.
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

    /// Whether it holds if it holds for one of its constants, so that two such atoms on the same
    /// operand can become one.
    pub(crate) fn is_union(&self) -> bool {
        match (self.op, self.quantifier) {
            (Some(Op::In | Op::Intersects | Op::PMatch), None) => true,
            (Some(op), Some(Quantifier::AnyOf)) => is_text_op(op),
            _ => false,
        }
    }
}

/// Operators on texts of which one suffices.
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

/// One comparison, ready to run.
#[derive(Debug)]
pub(crate) struct Atom {
    /// What it says.
    pub(crate) key: AtomKey,
    /// What decides it.
    pub(crate) check: Check,
    /// It has to hold for all values of a list, not for one.
    for_all: bool,
    /// It holds for a present value if the check does not: `!=`.
    pub(crate) inverted: bool,
    /// Whether an empty list exists.
    spread: Spread,
    /// How dear the check is apart from its operands.
    pub(crate) cost: f32,
    /// A guess how likely it holds, for ordering.
    pub(crate) likelihood: f32,
}

/// What decides an atom.
#[derive(Debug)]
pub(crate) enum Check {
    /// Constants.
    Test(Test),
    /// Another operand.
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

    /// Decides it for a value, and for the value on the right-hand side if that is an operand.
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

/// Compares two present values of one type; `!=` is answered as `=`, its atom inverts.
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

/// Guesses in nanoseconds and probabilities: only the order they produce counts.
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

/// Guesses in nanoseconds what it takes to have an operand.
pub(crate) fn operand_cost(cost: Cost) -> f32 {
    match cost {
        Cost::Free => 2.0,
        Cost::Text => 15.0,
        Cost::Remembered => 40.0,
        // Each takes a look or more into /proc.
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
    /// For the compiler alone.
    by_key: HashMap<AtomKey, AtomId, BuildHasherDefault<ByteHasher>>,
}

/// What they say: the rest is made of that.
impl Serialize for Atoms {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.items.iter().map(|atom| &atom.key))
    }
}

impl Atoms {
    /// Those with these keys, in their order.
    ///
    /// # Errors
    /// What is wrong with the constants, as the end of a sentence.
    pub(crate) fn of(keys: Vec<AtomKey>, operands: &Operands) -> Result<Self, String> {
        let items = keys.into_iter().map(|key| Atom::new(key, operands));
        Ok(Self {
            items: items.collect::<Result<_, _>>()?,
            by_key: HashMap::default(),
        })
    }

    /// The atom with this key.
    ///
    /// # Errors
    /// What is wrong with the constants, as the end of a sentence.
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

    /// The atom at this position.
    pub(crate) fn get(&self, id: AtomId) -> &Atom {
        &self.items[id.index()]
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Atom> {
        self.items.iter()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The atom as a condition would have it.
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
