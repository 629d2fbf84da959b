//! Selections of a Sigma rule as conditions.

use yaml::{Kind, Node, closest};

use super::Remark;
use super::fields::{ACCEPTS, CONNECTS, Category, Field, Shape};
use super::pattern::{Pattern, Place, quoted};
use super::source::items;

/// A condition in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    Test(String),
    /// A field has this value, which is quoted.
    Equal(&'static str, String),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Not(Box<Expr>),
}

impl Expr {
    /// Joins conditions that must all hold.
    pub(super) fn all(parts: Vec<Self>) -> Self {
        let parts = parts.into_iter().flat_map(|part| match part {
            Self::All(inner) => inner,
            other => vec![other],
        });
        let mut parts: Vec<_> = parts.collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::All(parts),
        }
    }

    /// Joins conditions of which one must hold.
    pub(super) fn any(mut parts: Vec<Self>) -> Self {
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::in_list(&parts).unwrap_or(Self::Any(parts)),
        }
    }

    /// Joins comparisons of one field with whole values.
    fn in_list(parts: &[Self]) -> Option<Self> {
        let value = |part: &Self| match part {
            Self::Equal(field, value) => Some((*field, value.clone())),
            _ => None,
        };
        let all: Vec<_> = parts.iter().map(value).collect::<Option<_>>()?;
        let (field, _) = *all.first()?;
        let is_one = all.iter().all(|(name, _)| *name == field);
        let values: Vec<_> = all.into_iter().map(|(_, value)| value).collect();
        is_one.then(|| Self::Test(format!("{field} in ({})", values.join(", "))))
    }

    /// Writes the condition; with parentheses where it stands inside of another.
    pub(super) fn text(&self, is_inner: bool) -> String {
        let join = |parts: &[Self], word: &str| {
            let parts: Vec<_> = parts.iter().map(|part| part.text(true)).collect();
            match is_inner {
                true => format!("({})", parts.join(word)),
                false => parts.join(word),
            }
        };
        match self {
            Self::Test(text) => text.clone(),
            Self::Equal(field, value) => format!("{field} = {value}"),
            Self::All(parts) => join(parts, " and "),
            Self::Any(parts) => join(parts, " or "),
            Self::Not(part) => match **part {
                Self::Not(_) => format!("not ({})", part.text(false)),
                _ => format!("not {}", part.text(true)),
            },
        }
    }
}

/// Modifiers of a field, as `CommandLine|contains|all` has two.
#[derive(Debug, Default)]
struct Modifiers {
    place: Place,
    is_all: bool,
    is_cased: bool,
    is_existence: bool,
    is_network: bool,
    /// Operator of a comparison of numbers.
    order: Option<&'static str>,
    /// Flags of a regular expression, if the value is one.
    regex: Option<String>,
}

/// Modifiers of Sigma that are carried.
const MODIFIERS: [&str; 15] = [
    "contains",
    "startswith",
    "endswith",
    "all",
    "cased",
    "exists",
    "cidr",
    "re",
    "i",
    "m",
    "s",
    "lt",
    "lte",
    "gt",
    "gte",
];

/// Reads selections, and gathers what cannot be carried.
#[derive(Debug)]
pub(super) struct Reader {
    category: Category,
    pub(super) refused: Vec<Remark>,
    pub(super) lost: Vec<Remark>,
}

type Found<T> = Result<T, Remark>;

impl Reader {
    pub(super) fn new(category: Category) -> Self {
        Self {
            category,
            refused: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Reads a selection: fields that must all match, or a list of such groups of which one must.
    pub(super) fn selection(&mut self, node: &Node) -> Expr {
        match &node.kind {
            Kind::Mapping(pairs) if !pairs.is_empty() => {
                let fields = pairs.iter().map(|(key, value)| self.field(key, value));
                Expr::all(fields.collect())
            }
            Kind::Sequence(groups) if !groups.is_empty() => {
                Expr::any(groups.iter().map(|group| self.selection(group)).collect())
            }
            Kind::Scalar(_) => self.refuse(
                node,
                "keywords look into the line of a log, which events of system calls do not have",
            ),
            _ => self.refuse(node, "the selection is empty"),
        }
    }

    fn refuse(&mut self, node: &Node, message: impl Into<String>) -> Expr {
        self.refused.push(Remark::new(&node.location, message));
        Expr::Any(Vec::new())
    }

    fn field(&mut self, key: &Node, value: &Node) -> Expr {
        match self.read_field(key, value) {
            Ok(expr) => expr,
            Err(remark) => {
                self.refused.push(remark);
                Expr::Any(Vec::new())
            }
        }
    }

    fn read_field(&mut self, key: &Node, value: &Node) -> Found<Expr> {
        let written = key.scalar().map_or("", |key| key.text());
        let mut words = written.split('|');
        let name = words.next().unwrap_or_default();
        let field = self.named(name, key)?;
        let modifiers = modifiers(words, key)?;
        if !field.lost.is_empty() {
            let lost = Remark::new(&key.location, field.lost);
            if !self.lost.iter().any(|known| known.message == lost.message) {
                self.lost.push(lost);
            }
        }
        let tests: Found<Vec<_>> = items(value)
            .into_iter()
            .map(|value| test(field, &modifiers, value))
            .collect();
        let tests = tests?;
        match (tests.is_empty(), modifiers.is_all) {
            (true, _) => Err(Remark::new(&value.location, "the list of values is empty")),
            (false, true) => Ok(Expr::all(tests)),
            (false, false) => Ok(Expr::any(tests)),
        }
    }

    fn named(&self, name: &str, key: &Node) -> Found<Field> {
        if name.is_empty() {
            let message =
                "keywords look into the line of a log, which events of system calls do not have";
            return Err(Remark::new(&key.location, message));
        }
        self.category.field(name).ok_or_else(|| {
            let mut message = format!("no field has the meaning of `{name}`");
            if let Some(known) = closest(name, self.category.field_names()) {
                message.push_str(&format!("; did you mean `{known}`?"));
            }
            Remark::new(&key.location, message)
        })
    }
}

fn modifiers<'w>(words: impl Iterator<Item = &'w str>, key: &Node) -> Found<Modifiers> {
    let mut read = Modifiers::default();
    for word in words {
        match (word, &mut read.regex) {
            ("contains", _) => read.place = Place::Anywhere,
            ("startswith", _) => read.place = Place::Start,
            ("endswith", _) => read.place = Place::End,
            ("all", _) => read.is_all = true,
            ("cased", _) => read.is_cased = true,
            ("exists", _) => read.is_existence = true,
            ("cidr", _) => read.is_network = true,
            ("lt", _) => read.order = Some("<"),
            ("lte", _) => read.order = Some("<="),
            ("gt", _) => read.order = Some(">"),
            ("gte", _) => read.order = Some(">="),
            ("re", regex @ None) => *regex = Some(String::new()),
            ("i" | "m" | "s", Some(flags)) => flags.push_str(word),
            _ => {
                let mut message = format!("the modifier `{word}` is not carried");
                if let Some(known) = closest(word, MODIFIERS) {
                    message.push_str(&format!("; did you mean `{known}`?"));
                }
                return Err(Remark::new(&key.location, message));
            }
        }
    }
    Ok(read)
}

/// Writes the comparison of a field with one value.
fn test(field: Field, modifiers: &Modifiers, value: &Node) -> Found<Expr> {
    let refused = |message: String| Err(Remark::new(&value.location, message));
    let absent = || Expr::Not(Box::new(Expr::Test(format!("{} exists", field.name))));
    let text = match &value.kind {
        Kind::Null => return Ok(absent()),
        Kind::Scalar(text) => text.text(),
        _ => return refused(format!("expected a value, found {}", value.describe())),
    };
    if modifiers.is_existence {
        return match text {
            "true" | "yes" => Ok(Expr::Test(format!("{} exists", field.name))),
            "false" | "no" => Ok(absent()),
            _ => refused(format!("expected true or false, found `{text}`")),
        };
    }
    let name = field.name;
    if let Some(order) = modifiers.order {
        return match (field.shape, text.parse::<i64>()) {
            (Shape::Number, Ok(number)) => Ok(Expr::Test(format!("{name} {order} {number}"))),
            (Shape::Number, Err(_)) => refused(format!("`{text}` is not an integer")),
            _ => refused(format!("`{name}` is not a number")),
        };
    }
    if let Some(flags) = &modifiers.regex {
        return match field.shape {
            Shape::Text | Shape::Path | Shape::Folder => {
                // Sigma's expressions match anywhere in a value; a match of `regex` is the whole value.
                let flags = match flags.is_empty() {
                    true => format!("(?:{text})"),
                    false => format!("(?{flags}:{text})"),
                };
                Ok(Expr::Test(format!(
                    "{name} regex {}",
                    quoted(&format!("(?s:.*){flags}(?s:.*)"))
                )))
            }
            _ => refused(format!("`{name}` has no text for a regular expression")),
        };
    }
    if modifiers.is_network {
        return match field.shape {
            Shape::Address { network } => Ok(Expr::Equal(network, quoted(text))),
            _ => refused(format!("`{name}` is not an address")),
        };
    }
    compared(field, modifiers, Pattern::read(text))
        .map_err(|message| Remark::new(&value.location, message))
}

/// Writes the comparison of a field with a text that may have wildcards.
fn compared(field: Field, modifiers: &Modifiers, pattern: Pattern) -> Result<Expr, String> {
    let name = field.name;
    let pattern = pattern.at(modifiers.place);
    let exact = || {
        pattern
            .plain()
            .ok_or_else(|| format!("`{name}` is compared with whole values only"))
    };
    match field.shape {
        Shape::Text => Ok(pattern.test(name, modifiers.is_cased)),
        Shape::Path => Ok(pattern.test(name, true)),
        Shape::Folder => Ok(pattern.ending_in('/').test(name, modifiers.is_cased)),
        Shape::Number => {
            let text = exact()?;
            let number: Result<i64, _> = text.parse();
            let number = number.map_err(|error| format!("`{text}` is not an integer: {error}"))?;
            Ok(Expr::Equal(name, number.to_string()))
        }
        Shape::Address { .. } => Ok(Expr::Equal(name, quoted(&exact()?))),
        Shape::HostName => match pattern.plain() {
            Some(host) => Ok(Expr::Equal(name, quoted(&host))),
            None => Err(String::from(
                "an event has an address and no host name; a whole name can be resolved, a part of one cannot",
            )),
        },
        Shape::Direction => match exact()?.to_ascii_lowercase().as_str() {
            "true" => Ok(Expr::Test(CONNECTS.to_owned())),
            "false" => Ok(Expr::Test(ACCEPTS.to_owned())),
            other => Err(format!("expected true or false, found `{other}`")),
        },
    }
}
