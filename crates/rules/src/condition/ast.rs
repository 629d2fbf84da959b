//! The syntax tree of a condition.
//!
//! The tree does not know which fields exist: names are kept as written, and every node has the [`Span`] it
//! came from, so that checks and explanations can point into the rule file.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Id of one condition text; [`Sources`](crate::load::Sources) maps it to file and lines.
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
    /// Creates a range of `source`.
    #[must_use]
    pub fn new(source: SourceId, start: u32, end: u32) -> Self {
        Self { source, start, end }
    }

    /// Returns the range from the start of `self` to the end of `other`, which is in the same text.
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
    /// Kind of the expression.
    pub kind: ExprKind,
    /// Position in the source text.
    pub span: Span,
}

/// Kind of a boolean expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExprKind {
    /// Conjunction of at least two.
    And(Vec<Expr>),
    /// Disjunction of at least two.
    Or(Vec<Expr>),
    /// Negation.
    Not(Box<Expr>),
    /// `FIELD exists`.
    Exists(Operand),
    /// `FIELD OP VALUE`.
    Compare(Compare),
    /// A macro by name, as parsed. A resolved condition contains none.
    Macro(String),
    /// An expanded macro: its name, kept for explanations, and a copy of its condition.
    Expanded {
        /// Name of the macro.
        name: Arc<str>,
        /// Resolved condition of the macro.
        body: Box<Expr>,
    },
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// Left-hand side.
    pub left: Operand,
    /// Comparison operator.
    pub op: Op,
    /// Quantifier over a list, when `op` is followed by one (`startswith anyof (..)`).
    pub quantifier: Option<Quantifier>,
    /// Position of the operator and quantifier.
    pub op_span: Span,
    /// Right-hand side.
    pub right: Value,
}

/// An expression that an event gives a value for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// `proc.name`, `proc.aname[2]`.
    Field(Field),
    /// `tolower(proc.name)`.
    Call(Call),
}

impl Operand {
    /// Returns the position in the source text.
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
    /// Argument in brackets, if any.
    pub arg: Option<FieldArg>,
    /// Position in the source text, brackets included.
    pub span: Span,
}

/// The argument of a field or of a transformer: `[0]`, `["a.b"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldArg {
    /// The argument without quotes and escapes.
    pub text: Text,
    /// Whether the argument was quoted.
    pub quoted: bool,
    /// Position in the source text, without the brackets.
    pub span: Span,
}

/// A transformer applied to arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The transformer.
    pub transformer: Transformer,
    /// One or more arguments.
    pub args: Vec<Arg>,
    /// Argument in brackets after the call: `getopt(proc.args, "nt:")[t]`.
    pub arg: Option<FieldArg>,
    /// Position in the source text.
    pub span: Span,
}

/// One argument of a transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arg {
    /// A field or another transformer.
    Operand(Operand),
    /// A quoted string or a number.
    Literal(Literal),
    /// A list such as `(a.b, "x", 1)`; contains no further list.
    List(Vec<Arg>, Span),
}

impl Arg {
    /// Returns the position in the source text.
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
    /// Constants in parentheses. Before resolution, an unquoted one may be the name of a list.
    List(Vec<Literal>, Span),
    /// The name of a list without parentheses, as parsed. A resolved condition contains none.
    ListName(String, Span),
    /// `val(FIELD)` (then a plain [`Operand::Field`]) or a transformer, evaluated for each event.
    Operand(Operand),
}

impl Value {
    /// Returns the position in the source text.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Literal(literal) => literal.span,
            Self::List(_, span) | Self::ListName(_, span) => *span,
            Self::Operand(operand) => operand.span(),
        }
    }
}

/// A constant. Its type follows from the field it is compared with, so numbers are text here too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// The constant without quotes and escapes.
    pub text: Text,
    /// Whether the constant was quoted.
    pub quoted: bool,
    /// Position in the source text, quotes included.
    pub span: Span,
}

/// Text of a constant, in bytes because `\xff` is a legal escape and paths need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Deserialize, Serialize)]
pub struct Text(Box<[u8]>);

impl Text {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, or `None` if it is not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Returns the text for messages, with invalid UTF-8 replaced.
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

/// Declares an enum of keywords together with the table from word to variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All variants, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the word as written in a condition.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns the variant of a word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

words! {
    /// Comparison operator. `==` is parsed as [`Op::Eq`]; `exists` has no value and is [`ExprKind::Exists`].
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
        /// Contains this text.
        Contains = "contains",
        /// Contains this text, ignoring ASCII case.
        IContains = "icontains",
        /// Contains these bytes, written in hex.
        BContains = "bcontains",
        /// Begins with this text.
        StartsWith = "startswith",
        /// Begins with these bytes, written in hex.
        BStartsWith = "bstartswith",
        /// Ends with this text.
        EndsWith = "endswith",
        /// Matches a shell pattern.
        Glob = "glob",
        /// Matches a shell pattern, ignoring ASCII case.
        IGlob = "iglob",
        /// Matches a regular expression as a whole.
        Regex = "regex",
        /// All values of the field are in the list.
        In = "in",
        /// Some value of the field is in the list.
        Intersects = "intersects",
        /// Some path of the list is a component-wise prefix of the field.
        PMatch = "pmatch",
    }
}

/// Kind of right-hand side that an operator takes.
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
    /// Returns the kind of right-hand side that the operator takes.
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
    /// Number of values of a list for which a comparison must hold. Always false for an empty list.
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
    /// Function of field values. `val` is not one: it is the field itself ([`Value::Operand`]).
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
    /// Calls `visit` for this expression and all expressions below it, parents first.
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

    /// Calls `visit` for each field on either side of each comparison, also inside transformers.
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
