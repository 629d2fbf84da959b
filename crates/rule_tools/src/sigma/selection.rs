//! Selections of a Sigma rule as conditions.

use yaml::{Kind, Location, Node, closest};

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

impl Modifiers {
    /// Sets how values are compared; `None` for a word that is not carried.
    fn set(&mut self, word: &str) -> Option<()> {
        match word {
            "contains" => self.place = Place::Anywhere,
            "startswith" => self.place = Place::Start,
            "endswith" => self.place = Place::End,
            "exists" => self.is_existence = true,
            "cidr" => self.is_network = true,
            "lt" => self.order = Some("<"),
            "lte" => self.order = Some("<="),
            "gt" => self.order = Some(">"),
            "gte" => self.order = Some(">="),
            "re" => self.regex = Some(String::new()),
            _ => return None,
        }
        Some(())
    }
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

/// Maximum number of comparisons of a rule; published rules have at most 200.
const MAX_VALUES: usize = 10_000;
/// Maximum number of reasons that are kept for a refused rule.
const MAX_REASONS: usize = 20;

/// Reads selections, and gathers what cannot be carried.
#[derive(Debug)]
pub(super) struct Reader {
    category: Category,
    /// Number of values that may still be compared: a condition can name a selection again and again.
    left: usize,
    /// Regular expressions, which the compiler must take as they are.
    pub(super) regexes: Vec<String>,
    pub(super) refused: Vec<Remark>,
    pub(super) lost: Vec<Remark>,
}

type Found<T> = Result<T, Remark>;

impl Reader {
    pub(super) fn new(category: Category) -> Self {
        Self {
            category,
            left: MAX_VALUES,
            regexes: Vec::new(),
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
        self.push_refused(Remark::new(&node.location, message));
        Expr::Any(Vec::new())
    }

    /// Keeps a reason once: a condition can name a selection again and again.
    fn push_refused(&mut self, remark: Remark) {
        if self.refused.len() < MAX_REASONS && !self.refused.contains(&remark) {
            self.refused.push(remark);
        }
    }

    /// Notes what is asked of the compiler, and what comparisons lose.
    fn note(&mut self, field: Field, modifiers: &Modifiers, values: &[&Node]) {
        let texts = values.iter().filter_map(|value| value.scalar());
        for text in texts {
            if let Some(flags) = &modifiers.regex {
                let flags = match flags.is_empty() {
                    true => String::new(),
                    false => format!("(?{flags})"),
                };
                self.regexes.push(flags + text.text());
                continue;
            }
            let is_of_bytes = text.text().contains('?') || !text.text().is_ascii();
            if is_of_bytes && matches!(field.shape, Shape::Text | Shape::Path | Shape::Folder) {
                self.lose(
                    text.start(),
                    "`?` is one byte here, and letters outside of ASCII are compared as they are",
                );
            }
        }
        if field.shape == Shape::Folder && modifiers.place != Place::Whole {
            self.lose(
                &values[0].location,
                "the current folder ends in a slash here",
            );
        }
    }

    fn lose(&mut self, location: &Location, lost: &str) {
        if !self.lost.iter().any(|known| known.message == lost) {
            self.lost.push(Remark::new(location, lost));
        }
    }

    fn field(&mut self, key: &Node, value: &Node) -> Expr {
        match self.read_field(key, value) {
            Ok(expr) => expr,
            Err(remark) => {
                self.push_refused(remark);
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
            self.lose(&key.location, field.lost);
        }
        let values = items(value);
        let Some(left) = self.left.checked_sub(values.len()) else {
            let message = format!("the rule has more than {MAX_VALUES} comparisons");
            return Err(Remark::new(&value.location, message));
        };
        self.left = left;
        self.note(field, &modifiers, &values);
        let tests: Found<Vec<_>> = values
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
    // The modifier that says how values are compared; there is one.
    let mut manner: Option<&str> = None;
    for word in words {
        match (word, &mut read.regex) {
            ("all", _) => read.is_all = true,
            ("cased", _) => read.is_cased = true,
            ("i" | "m" | "s", Some(flags)) => flags.push_str(word),
            _ => {
                read.set(word).ok_or_else(|| unknown(word, key))?;
                if let Some(other) = manner.replace(word) {
                    let message = format!("`{other}` and `{word}` exclude each other");
                    return Err(Remark::new(&key.location, message));
                }
            }
        }
    }
    Ok(read)
}

fn unknown(word: &str, key: &Node) -> Remark {
    let mut message = format!("the modifier `{word}` is not carried");
    if let Some(known) = closest(word, MODIFIERS) {
        message.push_str(&format!("; did you mean `{known}`?"));
    }
    Remark::new(&key.location, message)
}

/// Groups a regular expression, with its flags.
fn expression(flags: &str, text: &str) -> String {
    match flags.is_empty() {
        true => format!("(?:{text})"),
        false => format!("(?{flags}:{text})"),
    }
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
            Shape::Text | Shape::Path => {
                // Sigma's expressions match anywhere in a value; a match of `regex` is the whole value.
                let whole = format!("(?s:.*){}(?s:.*)", expression(flags, text));
                Ok(Expr::Test(format!("{name} regex {}", quoted(&whole))))
            }
            Shape::Folder => refused(format!(
                "`{name}` ends in a slash, which an expression for Sigma does not expect"
            )),
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
