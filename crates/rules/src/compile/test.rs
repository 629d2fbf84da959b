//! Compiled tests of one value: the right-hand side of a comparison.

use std::net::IpAddr;

use bumpalo::Bump;
use event::{Lookup, SystemInfo, Value, ValueType};
use memchr::memmem::Finder;
use regex_automata::meta::Regex;

use super::literal;
use super::path_prefix::PathPrefixes;
use super::substrings::Substrings;
use super::ternary::Ternary;
use super::text_set::TextSet;
use crate::condition::ast::{Op, Quantifier, Text};
use event::glob::Glob;

/// A test of one present value.
#[derive(Debug)]
pub(crate) enum Test {
    /// The field exists.
    Exists,
    /// The value equals this boolean.
    Bool(bool),
    /// The value stands in this relation to the number.
    Number(Order, i128),
    /// The value is one of these numbers (sorted).
    Numbers(Box<[i128]>),
    /// The value is one of these texts.
    Texts(TextSet),
    /// The value stands in this lexical relation to the text.
    TextOrder(Order, Box<[u8]>),
    /// The text begins with one of these.
    Prefixes(Box<[Box<[u8]>]>),
    /// The text ends with one of these.
    Suffixes(Box<[Box<[u8]>]>),
    /// The text contains one of these few substrings, which are searched one by one.
    FewSubstrings(Box<[Finder<'static>]>),
    /// The text contains one of these substrings.
    Substrings(Box<Substrings>),
    /// The text matches one of these shell patterns.
    Globs(Box<[Glob]>),
    /// The whole text matches one of these regular expressions.
    Regexes(Box<[Regex]>),
    /// The path is one of these or below one.
    Paths(PathPrefixes),
    /// The address is one of these.
    Addresses(Box<[IpAddr]>),
    /// The address is in one of these networks.
    Networks(Box<[Network]>),
    /// The address belongs to one of these host names.
    HostNames(Box<[Box<str>]>),
    /// The negation of another test.
    Not(Box<Test>),
    /// The number of these tests that hold satisfies the quantifier.
    Counted(Quantifier, Box<[Test]>),
}

/// Maximum number of substrings in [`Test::FewSubstrings`]. Searching so many one by one takes no longer than
/// searching all at once, and is prepared sixty times as fast.
const FEW: usize = 8;

/// A relation between two numbers or texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Equal.
    Equal,
    /// Below.
    Less,
    /// Below or equal.
    LessEqual,
    /// Above.
    Greater,
    /// Above or equal.
    GreaterEqual,
}

impl Order {
    /// Returns the relation of an operator. `!=` returns `Equal`: its atom inverts the result.
    pub(crate) fn of(op: Op) -> Option<Self> {
        Some(match op {
            Op::Eq | Op::Ne => Self::Equal,
            Op::Lt => Self::Less,
            Op::Le => Self::LessEqual,
            Op::Gt => Self::Greater,
            Op::Ge => Self::GreaterEqual,
            _ => return None,
        })
    }

    /// Returns true if `left` stands in this relation to `right`.
    pub(crate) fn holds<T: Ord + ?Sized>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Less => left < right,
            Self::LessEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterEqual => left >= right,
        }
    }
}

/// An IP network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Parses `ADDRESS/PREFIX`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let prefix = prefix.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Self { address, prefix })
    }

    /// Returns the address and the number of prefix bits.
    pub(crate) fn parts(self) -> (IpAddr, u8) {
        (self.address, self.prefix)
    }

    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let different = u32::from(a) ^ u32::from(b);
                different.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let different = u128::from(a) ^ u128::from(b);
                different.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

/// Inputs of a test besides the value.
#[derive(Clone, Copy)]
pub(crate) struct Context<'e> {
    pub(crate) world: &'e dyn SystemInfo,
    pub(crate) arena: &'e Bump,
}

impl Test {
    /// Builds the test for an operator and constants of a type.
    ///
    /// # Errors
    /// Returns the error in the constants, as the end of a sentence.
    pub(crate) fn new(
        ty: ValueType,
        op: Op,
        quantifier: Option<Quantifier>,
        constants: &[Text],
    ) -> Result<Self, String> {
        match quantifier {
            // An empty list satisfies no quantifier.
            Some(_) if constants.is_empty() => Ok(Self::Numbers(Box::new([]))),
            // "not equal to at least one of them" and "equal to exactly one" must try each constant.
            Some(Quantifier::AnyOf) if op != Op::Ne => Self::any(ty, op, constants),
            Some(quantifier) => {
                let each = constants.iter().map(|constant| {
                    let test = Self::any(ty, op, std::slice::from_ref(constant))?;
                    Ok(if op == Op::Ne {
                        Self::Not(Box::new(test))
                    } else {
                        test
                    })
                });
                Ok(Self::Counted(
                    quantifier,
                    each.collect::<Result<_, String>>()?,
                ))
            }
            None => Self::any(ty, op, constants),
        }
    }

    /// Builds a test that holds if the operator holds for one of the constants.
    fn any(ty: ValueType, op: Op, constants: &[Text]) -> Result<Self, String> {
        match ty {
            ValueType::Bool => literal::bools(constants),
            ValueType::Int
            | ValueType::Uint
            | ValueType::AbsTime
            | ValueType::RelTime
            | ValueType::Port => {
                let numbers = literal::numbers(ty, constants)?;
                Ok(match (Order::of(op), &*numbers) {
                    // A negative number gives two unsigned ones, the larger one for fields of 64 bits.
                    (Some(order), [.., number]) => Self::Number(order, *number),
                    (None, [number]) => Self::Number(Order::Equal, *number),
                    _ => Self::Numbers(numbers),
                })
            }
            ValueType::Ip => literal::addresses(constants).map(Self::Addresses),
            ValueType::Net => literal::networks(constants).map(Self::Networks),
            ValueType::Text | ValueType::Path => Self::any_text(op, constants),
        }
    }

    fn any_text(op: Op, constants: &[Text]) -> Result<Self, String> {
        let bytes = || constants.iter().map(Text::as_bytes);
        let boxed = || bytes().map(Box::from).collect();
        Ok(match op {
            Op::Eq | Op::Ne | Op::In | Op::Intersects => Self::Texts(TextSet::new(bytes())),
            Op::Lt | Op::Le | Op::Gt | Op::Ge => {
                let order = Order::of(op).expect("these operators compare");
                let [constant] = constants else {
                    return Err("needs one value".to_owned());
                };
                Self::TextOrder(order, constant.as_bytes().into())
            }
            Op::Contains if constants.len() <= FEW => {
                let finders = bytes().map(|text| Finder::new(text).into_owned());
                Self::FewSubstrings(finders.collect())
            }
            Op::Contains => Self::substrings(bytes(), false),
            Op::IContains => Self::substrings(bytes(), true),
            Op::BContains => Self::substrings(literal::hex(constants)?.into_iter(), false),
            Op::StartsWith => Self::Prefixes(boxed()),
            Op::BStartsWith => Self::Prefixes(
                literal::hex(constants)?
                    .into_iter()
                    .map(Box::from)
                    .collect(),
            ),
            Op::EndsWith => Self::Suffixes(boxed()),
            Op::Glob => Self::Globs(bytes().map(|text| Glob::new(text, false)).collect()),
            Op::IGlob => Self::Globs(bytes().map(|text| Glob::new(text, true)).collect()),
            Op::Regex => Self::Regexes(literal::regexes(constants)?),
            Op::PMatch => Self::Paths(PathPrefixes::new(bytes())),
        })
    }

    fn substrings(needles: impl Iterator<Item: Into<Box<[u8]>>>, ignore_case: bool) -> Self {
        Self::Substrings(Box::new(Substrings::new(needles, ignore_case)))
    }

    /// Tests a value that is neither unknown, absent nor a list.
    pub(crate) fn holds(&self, value: &Value<'_>, context: Context<'_>) -> Ternary {
        let decided = match (self, value) {
            (Self::Exists, _) => true,
            (Self::Not(test), _) => return !test.holds(value, context),
            (Self::Counted(quantifier, tests), _) => {
                return counted(
                    *quantifier,
                    tests.iter().map(|test| test.holds(value, context)),
                );
            }
            (Self::HostNames(names), Value::Ip(address)) => {
                return belongs_to_host(names, *address, context.world);
            }
            (Self::Bool(expected), Value::Bool(actual)) => expected == actual,
            (Self::Number(order, expected), _) => {
                number(value).is_some_and(|number| order.holds(&number, expected))
            }
            (Self::Numbers(numbers), _) => {
                number(value).is_some_and(|number| numbers.binary_search(&number).is_ok())
            }
            (Self::Addresses(addresses), Value::Ip(address)) => addresses.contains(address),
            (Self::Networks(networks), Value::Ip(address)) => {
                networks.iter().any(|network| network.contains(*address))
            }
            (_, Value::Text(text)) => self.holds_for_text(text, context.arena),
            _ => false,
        };
        decided.into()
    }

    fn holds_for_text(&self, text: &[u8], arena: &Bump) -> bool {
        match self {
            Self::Texts(set) => set.contains(text),
            Self::TextOrder(order, other) => order.holds(text, other),
            Self::Prefixes(prefixes) => prefixes.iter().any(|prefix| text.starts_with(prefix)),
            Self::Suffixes(suffixes) => suffixes.iter().any(|suffix| text.ends_with(suffix)),
            Self::FewSubstrings(finders) => {
                finders.iter().any(|finder| finder.find(text).is_some())
            }
            Self::Substrings(substrings) => substrings.are_in(text),
            Self::Globs(globs) => globs.iter().any(|glob| glob.matches(text)),
            Self::Paths(paths) => paths.matches(text),
            Self::Regexes(regexes) => {
                let text = literal::valid_utf8(text, arena);
                regexes.iter().any(|regex| regex.is_match(text))
            }
            _ => false,
        }
    }
}

/// Converts a value to a number type that holds both signed and unsigned values.
pub(crate) fn number(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(number) => Some((*number).into()),
        Value::Uint(number) => Some((*number).into()),
        _ => None,
    }
}

/// Returns whether the number of true answers satisfies a quantifier.
pub(crate) fn counted(quantifier: Quantifier, answers: impl Iterator<Item = Ternary>) -> Ternary {
    let (mut yes, mut maybe, mut all) = (0_u32, 0_u32, Ternary::True);
    for answer in answers {
        yes += u32::from(answer == Ternary::True);
        maybe += u32::from(answer == Ternary::Unknown);
        all = all.and(answer);
    }
    match quantifier {
        Quantifier::AllOf => all,
        Quantifier::AnyOf if yes > 0 => Ternary::True,
        Quantifier::OneOf if yes > 1 => Ternary::False,
        _ if maybe > 0 => Ternary::Unknown,
        Quantifier::AnyOf => Ternary::False,
        Quantifier::OneOf => (yes == 1).into(),
    }
}

fn belongs_to_host(names: &[Box<str>], address: IpAddr, world: &dyn SystemInfo) -> Ternary {
    let belongs = |name: &str| match world.addresses(name) {
        Lookup::Found(addresses) => addresses.contains(&address).into(),
        Lookup::Missing => Ternary::False,
        Lookup::Unknown => Ternary::Unknown,
    };
    names
        .iter()
        .fold(Ternary::False, |truth, name| truth.or(belongs(name)))
}

#[cfg(test)]
mod tests {
    use event::NoSystemInfo;

    use super::*;

    fn holds(op: Op, quantifier: Option<Quantifier>, constants: &[&str], text: &str) -> Ternary {
        let constants: Vec<Text> = constants.iter().map(|text| Text::from(*text)).collect();
        let test = Test::new(ValueType::Text, op, quantifier, &constants).unwrap();
        let arena = Bump::new();
        test.holds(
            &Value::text(text),
            Context {
                world: &NoSystemInfo,
                arena: &arena,
            },
        )
    }

    #[test]
    fn text_operators_hold_as_in_falco() {
        let cases: &[(Op, &str, &str, bool)] = &[
            (Op::Eq, "abc", "abc", true),
            (Op::Contains, "b", "abc", true),
            (Op::Contains, "", "abc", true),
            (Op::Contains, "B", "abc", false),
            (Op::IContains, "B", "abc", true),
            (Op::BContains, "6263", "abc", true),
            (Op::BStartsWith, "6263", "abc", false),
            (Op::BStartsWith, "6162", "abc", true),
            (Op::StartsWith, "ab", "abc", true),
            (Op::EndsWith, "bc", "abc", true),
            (Op::EndsWith, "aabc", "abc", false),
            (Op::Glob, "a*", "abc", true),
            (Op::IGlob, "A*", "abc", true),
            (Op::Regex, "b", "abc", false),
            (Op::Regex, ".b.", "abc", true),
            (Op::Regex, "a|abc", "abc", true),
            (Op::PMatch, "/etc", "/etc/passwd", true),
            (Op::Lt, "5", "4", true),
        ];
        for (op, constant, text, expected) in cases {
            let truth = holds(*op, None, &[constant], text);
            assert_eq!(truth, (*expected).into(), "{text} {op:?} {constant}");
        }
    }

    #[test]
    fn quantifiers_count_the_constants_that_hold() {
        use Quantifier::{AllOf, AnyOf, OneOf};
        let both = &["a", "b"];
        for (quantifier, constants, expected) in [
            (OneOf, &["a", "x"][..], true),
            (OneOf, both, false),
            (OneOf, &["x", "y"], false),
            (AnyOf, both, true),
            (AnyOf, &["x", "y"], false),
            (AllOf, both, true),
            (AllOf, &["a", "x"], false),
            (AllOf, &[], false),
            (AnyOf, &[], false),
            (OneOf, &[], false),
        ] {
            let truth = holds(Op::Contains, Some(quantifier), constants, "abc");
            assert_eq!(truth, expected.into(), "{quantifier:?} {constants:?}");
        }
    }

    #[test]
    fn few_and_many_texts_are_found_in_others_alike() {
        let words: Vec<String> = (0..2 * FEW).map(|n| format!("<{n}>")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for count in 0..=words.len() {
            let constants = &words[..count];
            for (at, word) in words.iter().enumerate() {
                let truth = holds(Op::Contains, None, constants, &format!("a {word} b"));
                assert_eq!(truth, (at < count).into(), "{word} of {count}");
            }
            assert_eq!(
                holds(Op::Contains, None, constants, "<"),
                false.into(),
                "{count}"
            );
        }
    }

    #[test]
    fn networks_compare_only_within_a_family() {
        let holds = |network: &str, address: &str| {
            Network::parse(network)
                .unwrap()
                .contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.200.1.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(!holds("0.0.0.0/0", "::1"));
        assert!(holds("fe80::/10", "febf::1"));
        assert!(!holds("fe80::/10", "fec0::1"));
        for bad in ["10.0.0.0", "10.0.0.0/33", "::/129", "x/8", "10.0.0.0/-1"] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }
}
