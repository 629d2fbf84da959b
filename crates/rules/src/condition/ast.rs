//! The condition as a tree.
//!
//! Nothing here knows which fields exist: names are carried as written, and every node keeps the
//! [`Span`] it came from so that whoever checks or explains it can point into the rule file.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names one piece of condition text; `Sources` knows its file and lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// A byte range in one condition text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The text this range is in.
    pub source: SourceId,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset one past the last byte.
    pub end: u32,
}

impl Span {
    /// A range of `source`.
    #[must_use]
    pub fn new(source: SourceId, start: u32, end: u32) -> Self {
        Self { source, start, end }
    }

    /// From the start of `self` to the end of `other`, which is in the same text.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        Self {
            end: other.end,
            ..self
        }
    }
}

/// A boolean expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it was written.
    pub span: Span,
}

/// The kinds of boolean expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExprKind {
    /// All of two or more.
    And(Vec<Expr>),
    /// Any of two or more.
    Or(Vec<Expr>),
    /// The opposite.
    Not(Box<Expr>),
    /// `FIELD exists`.
    Exists(Operand),
    /// `FIELD OP VALUE`.
    Compare(Compare),
    /// A macro by name, as parsed. A resolved condition holds none.
    Macro(String),
    /// A macro after expansion: its name, kept for explanations, and a copy of its condition.
    Expanded {
        /// Name of the macro.
        name: Arc<str>,
        /// Its condition, itself resolved.
        body: Box<Expr>,
    },
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// What is compared.
    pub left: Operand,
    /// How.
    pub op: Op,
    /// How the values of a list count, when `op` is followed by a list (`startswith anyof (..)`).
    pub quantifier: Option<Quantifier>,
    /// Where the operator (and quantifier) stands.
    pub op_span: Span,
    /// What it is compared with.
    pub right: Value,
}

/// Something that an event gives a value for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// `proc.name`, `proc.aname[2]`.
    Field(Field),
    /// `tolower(proc.name)`.
    Call(Call),
}

impl Operand {
    /// Where it was written.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Field(field) => field.span,
            Self::Call(call) => call.span,
        }
    }
}

/// A field of an event, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Dotted name, as written: `evt.arg.flags` is one name.
    pub name: String,
    /// What stands in brackets, if there are any.
    pub arg: Option<FieldArg>,
    /// Where it was written, brackets included.
    pub span: Span,
}

/// The argument of a field or of a transformer: `[0]`, `["a.b"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldArg {
    /// The argument without quotes and escapes.
    pub text: Text,
    /// Whether it was in quotes.
    pub quoted: bool,
    /// Where it was written, without the brackets.
    pub span: Span,
}

/// A transformer applied to arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Which one.
    pub transformer: Transformer,
    /// One or more arguments.
    pub args: Vec<Arg>,
    /// What stands in brackets after it: `getopt(proc.args, "nt:")[t]`.
    pub arg: Option<FieldArg>,
    /// Where it was written.
    pub span: Span,
}

/// One argument of a transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arg {
    /// A field or another transformer.
    Operand(Operand),
    /// A quoted string or a number.
    Literal(Literal),
    /// `(a.b, "x", 1)`; holds no further list.
    List(Vec<Arg>, Span),
}

impl Arg {
    /// Where it was written.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Operand(operand) => operand.span(),
            Self::Literal(literal) => literal.span,
            Self::List(_, span) => *span,
        }
    }
}

/// The right-hand side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One constant.
    Literal(Literal),
    /// Constants in parentheses. Before resolution an unquoted one may be the name of a list.
    List(Vec<Literal>, Span),
    /// The name of a list without parentheses, as parsed. A resolved condition holds none.
    ListName(String, Span),
    /// `val(FIELD)` (then a plain [`Operand::Field`]) or a transformer: compared with at run time.
    Operand(Operand),
}

impl Value {
    /// Where it was written.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Literal(literal) => literal.span,
            Self::List(_, span) | Self::ListName(_, span) => *span,
            Self::Operand(operand) => operand.span(),
        }
    }
}

/// A constant. Its type follows from the field it meets, so numbers are text here too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// The constant without quotes and escapes.
    pub text: Text,
    /// Whether it was in quotes.
    pub quoted: bool,
    /// Where it was written, quotes included.
    pub span: Span,
}

/// Text of a constant: bytes, because `\xff` is a legal escape and paths need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Deserialize, Serialize)]
pub struct Text(Box<[u8]>);

impl Text {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, unless it is not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text for messages.
    #[must_use]
    pub fn to_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Declares an enum of words together with the table from word to variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All of them, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word as written in a condition.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The variant for a word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

words! {
    /// How a field is compared with a value. `==` is read as [`Op::Eq`]; `exists` has no value and
    /// is [`ExprKind::Exists`].
    Op {
        /// Equal.
        Eq = "=",
        /// Not equal.
        Ne = "!=",
        /// Number below.
        Lt = "<",
        /// Number below or equal.
        Le = "<=",
        /// Number above.
        Gt = ">",
        /// Number above or equal.
        Ge = ">=",
        /// Has this text in it.
        Contains = "contains",
        /// The same without regard to ASCII case.
        IContains = "icontains",
        /// Has these bytes, written in hex, in it.
        BContains = "bcontains",
        /// Begins with this text.
        StartsWith = "startswith",
        /// Begins with these bytes, written in hex.
        BStartsWith = "bstartswith",
        /// Ends with this text.
        EndsWith = "endswith",
        /// Matches a shell pattern.
        Glob = "glob",
        /// The same without regard to ASCII case.
        IGlob = "iglob",
        /// Matches a regular expression as a whole.
        Regex = "regex",
        /// All values of the field are in the list.
        In = "in",
        /// Some value of the field is in the list.
        Intersects = "intersects",
        /// Some path of the list is a prefix of the field, by components.
        PMatch = "pmatch",
    }
}

/// What may follow an operator on its right-hand side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// A number.
    Number,
    /// One string, or a quantifier and a list.
    String,
    /// A list.
    List,
}

impl Op {
    /// What may follow it.
    #[must_use]
    pub fn class(self) -> OpClass {
        match self {
            Self::Lt | Self::Le | Self::Gt | Self::Ge => OpClass::Number,
            Self::In | Self::Intersects | Self::PMatch => OpClass::List,
            _ => OpClass::String,
        }
    }
}

words! {
    /// How many values of a list a comparison must hold for. None does with an empty list.
    Quantifier {
        /// Exactly one.
        OneOf = "oneof",
        /// At least one.
        AnyOf = "anyof",
        /// Every one.
        AllOf = "allof",
    }
}

words! {
    /// A function of field values. `val` is not here: it is the field itself ([`Value::Operand`]).
    Transformer {
        /// Lower case.
        ToLower = "tolower",
        /// Upper case.
        ToUpper = "toupper",
        /// Decoded from Base64.
        B64 = "b64",
        /// Last component of a path.
        Basename = "basename",
        /// Length in bytes, or the number of values of a list.
        Len = "len",
        /// `join(separator, list)`.
        Join = "join",
        /// `concat(a, b, ..)`.
        Concat = "concat",
        /// `getopt(args, "ab:")[a]`.
        Getopt = "getopt",
    }
}

impl Expr {
    /// Calls `visit` for this expression and all below it, parents first.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        visit(self);
        match &self.kind {
            ExprKind::And(children) | ExprKind::Or(children) => {
                for child in children {
                    child.walk(visit);
                }
            }
            ExprKind::Not(child) | ExprKind::Expanded { body: child, .. } => child.walk(visit),
            ExprKind::Exists(_) | ExprKind::Compare(_) | ExprKind::Macro(_) => {}
        }
    }

    /// Calls `visit` for each field on either side of each check, inside transformers too.
    pub fn walk_fields<'a>(&'a self, visit: &mut impl FnMut(&'a Field)) {
        self.walk(&mut |expr| match &expr.kind {
            ExprKind::Exists(operand) => operand.walk_fields(visit),
            ExprKind::Compare(compare) => {
                compare.left.walk_fields(visit);
                if let Value::Operand(operand) = &compare.right {
                    operand.walk_fields(visit);
                }
            }
            _ => {}
        });
    }
}

impl Operand {
    /// Calls `visit` for the field, or for each field inside the transformer.
    pub fn walk_fields<'a>(&'a self, visit: &mut impl FnMut(&'a Field)) {
        match self {
            Self::Field(field) => visit(field),
            Self::Call(call) => call.args.iter().for_each(|arg| arg.walk_fields(visit)),
        }
    }
}

impl Arg {
    fn walk_fields<'a>(&'a self, visit: &mut impl FnMut(&'a Field)) {
        match self {
            Self::Operand(operand) => operand.walk_fields(visit),
            Self::Literal(_) => {}
            Self::List(args, _) => args.iter().for_each(|arg| arg.walk_fields(visit)),
        }
    }
}
