//! Checks conditions against the field registry and converts them into the form that is compiled.
//!
//! All problems of a condition are reported, not only the first one: an invalid part becomes "never", and
//! checking continues after it.

use std::sync::Arc;

use event::field::{Field, FieldError, SourceFields, Supplied};
use event::{EngineSupport, EventKind, ValueType};

use super::atom::{AtomKey, Atoms, Right};
use super::doubt::{DEPRECATED, is_field_name, needs_no_regex};
use super::operand::{OperandId, Operands, Spread};
use super::tree::Tree;
use crate::condition::ast::{
    Arg, Call, Compare, Expr, ExprKind, Field as FieldName, Literal, Op, Operand, Span,
    Transformer, Value,
};
use crate::diagnostic::Code;

/// A problem of a condition or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Diagnostic code.
    pub(crate) code: Code,
    /// Position of the problem.
    pub(crate) span: Span,
    /// Error message.
    pub(crate) message: String,
    /// Suggested fix.
    pub(crate) help: Option<String>,
    /// Whether the problem is an unknown field or event, which `skip-if-unknown-filter` tolerates.
    pub(crate) unknown: bool,
}

impl Problem {
    /// Creates a problem of a condition, without a suggested fix.
    pub(crate) fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self {
            code,
            span,
            message: message.into(),
            help: None,
            unknown: false,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Checks conditions and collects the operands and atoms of all of them.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// Operands of all conditions.
    pub(crate) operands: Operands,
    /// Atoms of all conditions.
    pub(crate) atoms: Atoms,
    /// Fields of the source of the rules; `None` for `syscall`.
    fields: Option<Arc<SourceFields>>,
    /// Problems found since the last time they were taken.
    problems: Vec<Problem>,
}

impl Checker {
    /// Creates a checker of rules of another source than `syscall`, if one is given.
    pub(crate) fn of(fields: Option<Arc<SourceFields>>) -> Self {
        Self {
            fields,
            ..Self::default()
        }
    }

    /// Parses a field of the source of the rules.
    pub(crate) fn parse_field(
        &self,
        name: &str,
        bracket: Option<&str>,
    ) -> Result<Field, FieldError> {
        Field::new_of(self.fields.as_deref(), name, bracket)
    }

    /// Checks one resolved condition and returns its tree and problems.
    pub(crate) fn condition(&mut self, expr: &Expr) -> (Tree, Vec<Problem>) {
        let tree = self.expr(expr, false);
        (tree, std::mem::take(&mut self.problems))
    }

    /// Checks the field or transformer of an output.
    pub(crate) fn output_operand(&mut self, operand: &Operand) -> Result<OperandId, Vec<Problem>> {
        let id = self.operand(operand);
        let mut problems = std::mem::take(&mut self.problems);
        for problem in &mut problems {
            problem.code = Code::CompileOutput;
        }
        id.ok_or(problems)
    }

    fn expr(&mut self, expr: &Expr, negated: bool) -> Tree {
        match &expr.kind {
            ExprKind::And(children) | ExprKind::Or(children) => {
                let trees = children
                    .iter()
                    .map(|child| self.expr(child, negated))
                    .collect();
                let conjunction = matches!(expr.kind, ExprKind::And(_)) != negated;
                if conjunction {
                    Tree::all(trees)
                } else {
                    Tree::any(trees)
                }
            }
            ExprKind::Not(child) => self.expr(child, !negated),
            ExprKind::Expanded { body, .. } => self.expr(body, negated),
            ExprKind::Exists(operand) => {
                let Some(operand) = self.operand(operand) else {
                    return Tree::Const(false);
                };
                let right = Right::Constants(Vec::new());
                let key = AtomKey {
                    operand,
                    op: None,
                    quantifier: None,
                    right,
                };
                self.literal(key, negated, expr.span)
            }
            ExprKind::Compare(compare) => self.compare(compare, negated),
            ExprKind::Macro(name) => {
                self.report(
                    Problem::new(
                        Code::CompileCondition,
                        expr.span,
                        format!("`{name}` is neither a macro nor a comparison"),
                    )
                    .help("define the macro, or compare a field with something"),
                );
                Tree::Const(false)
            }
        }
    }

    fn compare(&mut self, compare: &Compare, negated: bool) -> Tree {
        self.doubt_absence(compare);
        let left = self.operand(&compare.left);
        let right = match &compare.right {
            Value::Operand(operand) => self.operand(operand).map(Right::Operand),
            Value::Literal(literal) => Some(Right::Constants(vec![literal.text.clone()])),
            Value::List(literals, _) => Some(Right::Constants(
                literals.iter().map(|l| l.text.clone()).collect(),
            )),
            Value::ListName(name, span) => {
                let message = format!("no such list: `{name}`");
                self.report(Problem::new(Code::CompileCondition, *span, message));
                None
            }
        };
        let (Some(operand), Some(right)) = (left, right) else {
            return Tree::Const(false);
        };
        let key = AtomKey {
            operand,
            op: Some(compare.op),
            quantifier: compare.quantifier,
            right,
        };
        if let Some(problem) = self.mismatch(compare, &key) {
            self.report(problem);
            return Tree::Const(false);
        }
        self.doubts(compare);
        if let Some(names) = self.event_names(operand, compare) {
            if !self.check_event_names(&names) {
                return Tree::Const(false);
            }
            // Only engines that watch system calls leave events out.
            if compare.op != Op::Ne && self.fields.is_none() {
                self.doubt_events(&names);
            }
        }
        let empty = matches!(&key.right, Right::Constants(constants) if constants.is_empty());
        if empty && self.operands.get(operand).spread != Spread::List {
            // An empty list contains nothing, whatever the field is.
            return Tree::Const(negated);
        }
        self.literal(key, negated, compare.right.span())
    }

    fn literal(&mut self, key: AtomKey, negated: bool, span: Span) -> Tree {
        match self.atoms.intern(key, &self.operands) {
            Ok(atom) => Tree::Literal { atom, negated },
            Err(message) => {
                self.report(Problem::new(Code::CompileCondition, span, message));
                Tree::Const(false)
            }
        }
    }

    /// Returns the reason why operator and operands are incompatible, if they are.
    fn mismatch(&self, compare: &Compare, key: &AtomKey) -> Option<Problem> {
        let operand = self.operands.get(key.operand);
        let host_name = self
            .operands
            .as_field(key.operand)
            .is_some_and(|field| field.spec.host_name);
        let op = compare.op;
        let is_buffer = self.is_buffer(key.operand);
        let fits = |op| {
            let by_type = if is_buffer {
                fits_bytes(op)
            } else {
                !takes_hexadecimal(op)
            };
            by_type && fits(operand.ty, operand.spread, host_name, op)
        };
        if !fits(op) {
            let kind = match (operand.spread, host_name) {
                (Spread::List, _) => "a list",
                (_, true) => "a host name",
                _ if is_buffer => "bytes",
                _ => type_name(operand.ty),
            };
            let allowed = Op::ALL.iter().filter(|op| fits(**op)).map(|op| op.word());
            let allowed: Vec<&str> = allowed.chain(["exists"]).collect();
            let word = op.word();
            let message = format!("`{word}` does not apply to `{operand}`, which is {kind}");
            let problem = Problem::new(Code::CompileCondition, compare.op_span, message);
            return Some(problem.help(format!("use one of: {}", allowed.join(" "))));
        }
        let Right::Operand(right) = key.right else {
            return None;
        };
        let message = right_mismatch(op, operand, host_name, self.operands.get(right))?;
        let span = compare.right.span();
        Some(Problem::new(Code::CompileCondition, span, message))
    }

    /// Returns true for the data that a call transfers, which is not text.
    fn is_buffer(&self, operand: OperandId) -> bool {
        let field = self.operands.as_field(operand);
        field.is_some_and(|field| field.spec.name == "evt.buffer")
    }

    /// Warns of a comparison with `<NA>`, the text printed for a missing value. Falco warns of it where
    /// fields of plugins that return JSON are meant.
    fn doubt_absence(&mut self, compare: &Compare) {
        let Operand::Field(field) = &compare.left else {
            return;
        };
        let gives_json = ["ka.", "jevt."]
            .iter()
            .any(|class| field.name.starts_with(class));
        let is_equality = matches!(
            compare.op,
            Op::Eq | Op::Ne | Op::In | Op::Intersects | Op::PMatch
        );
        if !gives_json || !is_equality {
            return;
        }
        let absent =
            constants(&compare.right).find(|literal| literal.text.as_str() == Some("<NA>"));
        if let Some(absent) = absent {
            let message = format!(
                "`{}` is compared with `<NA>`, which is not a value",
                field.name
            );
            self.report(
                Problem::new(Code::UnsafeNaCheck, absent.span, message).help(format!(
                    "write `{} exists`, or `not {} exists`",
                    field.name, field.name
                )),
            );
        }
    }

    /// Warns of comparisons that are allowed but probably mistakes.
    fn doubts(&mut self, compare: &Compare) {
        for literal in constants(&compare.right) {
            let Some(text) = literal.text.as_str() else {
                continue;
            };
            if compare.op == Op::Regex && needs_no_regex(text) {
                let message = format!("`{text}` is compared as a regular expression and has none");
                self.report(
                    Problem::new(Code::ConditionWarning, literal.span, message)
                        .help("`=`, `contains`, `startswith` and `endswith` are faster"),
                );
            }
            let name = text.split_ascii_whitespace().collect::<String>();
            if is_field_name(&name) {
                let message = format!("`{text}` is compared as text but is the name of a field");
                self.report(
                    Problem::new(Code::ConditionWarning, literal.span, message)
                        .help(format!("to compare with the field write `val({name})`")),
                );
            }
            let is_call = |word: &str| {
                name.strip_prefix(word)
                    .is_some_and(|rest| rest.starts_with('(') && rest.ends_with(')'))
            };
            if Transformer::ALL.iter().any(|it| is_call(it.word())) || is_call("val") {
                let message = format!("`{text}` is compared as text but looks like a transformer");
                self.report(
                    Problem::new(Code::ConditionWarning, literal.span, message)
                        .help("leave out the quotes"),
                );
            }
        }
    }

    /// Returns the names in a comparison of the event type.
    fn event_names<'a>(
        &self,
        operand: OperandId,
        compare: &'a Compare,
    ) -> Option<Vec<&'a Literal>> {
        let field = self.operands.as_field(operand)?;
        let by_name = matches!(field.spec.name, "evt.type" | "syscall.type")
            && matches!(compare.op, Op::Eq | Op::Ne | Op::In | Op::Intersects);
        by_name.then(|| constants(&compare.right).collect())
    }

    fn check_event_names(&mut self, names: &[&Literal]) -> bool {
        let mut all_known = true;
        for literal in names {
            let name = literal.text.to_lossy();
            let Err(error) = EventKind::from_name(&name) else {
                continue;
            };
            let fields = self.fields.as_ref();
            if fields.is_some_and(|fields| fields.has_type(&name)) {
                continue;
            }
            all_known = false;
            let message = format!("no such event type: `{}`", error.name);
            let mut problem = Problem::new(Code::CompileCondition, literal.span, message);
            problem.unknown = true;
            problem.help = error
                .suggestion
                .map(|name| format!("did you mean `{name}`?"));
            self.report(problem);
        }
        all_known
    }

    /// Warns of events that no engine delivers while it monitors programs.
    fn doubt_events(&mut self, names: &[&Literal]) {
        for literal in names {
            let name = literal.text.to_lossy();
            let Ok(kind) = EventKind::from_name(&name) else {
                continue;
            };
            let (message, help) = match kind.teller() {
                EngineSupport::Every => continue,
                EngineSupport::Kernel => (
                    format!("only the engine ebpf reports `{name}`"),
                    "watch with --engine ebpf",
                ),
                EngineSupport::Nobody => (
                    format!("no engine reports `{name}`"),
                    "name system calls; `tollgate rules events` lists them",
                ),
            };
            let problem = Problem::new(Code::DoubtfulCondition, literal.span, message);
            self.report(problem.help(help));
        }
    }

    fn operand(&mut self, operand: &Operand) -> Option<OperandId> {
        match operand {
            Operand::Field(name) => self.field(name),
            Operand::Call(call) => self.call(call),
        }
    }

    fn field(&mut self, name: &FieldName) -> Option<OperandId> {
        let bracket = name.arg.as_ref().map(|arg| arg.text.to_lossy());
        match self.parse_field(&name.name, bracket.as_deref()) {
            Ok(field) => {
                if let Some((_, why)) = DEPRECATED.iter().find(|(old, _)| *old == field.spec.name) {
                    let message = format!("`{field}` is deprecated: {why}");
                    let help = "leave the comparison out";
                    self.report(Problem::new(Code::DeprecatedItem, name.span, message).help(help));
                }
                if let Supplied::No(reason) = field.spec.supplied {
                    let message = format!("`{field}` never has a value here: {reason}");
                    self.report(Problem::new(Code::DoubtfulCondition, name.span, message));
                }
                Some(self.operands.field(field))
            }
            Err(error) => {
                self.report(field_problem(&error, name));
                None
            }
        }
    }

    fn call(&mut self, call: &Call) -> Option<OperandId> {
        let args: Option<Vec<OperandId>> = call.args.iter().map(|arg| self.arg(arg)).collect();
        let selector = call.arg.as_ref().map(|arg| arg.text.as_bytes());
        match self.operands.transform(call.transformer, args?, selector) {
            Ok(id) => Some(id),
            Err(message) => {
                self.report(Problem::new(Code::CompileCondition, call.span, message));
                None
            }
        }
    }

    fn arg(&mut self, arg: &Arg) -> Option<OperandId> {
        match arg {
            Arg::Operand(operand) => self.operand(operand),
            Arg::Literal(literal) => Some(self.operands.constant(literal.text.as_bytes())),
            Arg::List(args, _) => {
                let items: Option<Vec<OperandId>> = args.iter().map(|arg| self.arg(arg)).collect();
                Some(self.operands.list(items?))
            }
        }
    }

    fn report(&mut self, problem: Problem) {
        // A macro that a rule uses several times would repeat the problem.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

fn constants(value: &Value) -> impl Iterator<Item = &Literal> {
    match value {
        Value::Literal(literal) => std::slice::from_ref(literal),
        Value::List(literals, _) => literals,
        Value::ListName(..) | Value::Operand(_) => &[],
    }
    .iter()
}

fn field_problem(error: &FieldError, name: &FieldName) -> Problem {
    let (message, suggestion) = match error {
        FieldError::Unknown { name, suggestion } => {
            (format!("no such field: `{name}`"), suggestion.as_ref())
        }
        FieldError::UnknownPart {
            field,
            argument,
            suggestion,
        } => (
            format!("`{field}` has no part `{argument}`"),
            suggestion.as_ref(),
        ),
        other => (other.to_string(), None),
    };
    let mut problem = Problem::new(Code::CompileCondition, name.span, message);
    problem.unknown = matches!(error, FieldError::Unknown { .. });
    problem.help = suggestion.map(|name| format!("did you mean `{name}`?"));
    problem
}

/// Returns true if an operator applies to values of a type.
fn fits(ty: ValueType, spread: Spread, host_name: bool, op: Op) -> bool {
    if spread == Spread::List {
        return matches!(op, Op::In | Op::Intersects);
    }
    let equality = matches!(op, Op::Eq | Op::Ne | Op::In | Op::Intersects);
    if host_name {
        return equality;
    }
    match ty {
        ValueType::Bool | ValueType::Ip | ValueType::Net => equality,
        ValueType::Int
        | ValueType::Uint
        | ValueType::AbsTime
        | ValueType::RelTime
        | ValueType::Port => equality || matches!(op, Op::Lt | Op::Le | Op::Gt | Op::Ge),
        ValueType::Text | ValueType::Path => true,
    }
}

/// Returns true for operators that compare with bytes written as hexadecimal digits.
fn takes_hexadecimal(op: Op) -> bool {
    matches!(op, Op::BContains | Op::BStartsWith)
}

/// Returns the reason why a field or transformer cannot stand right of an operator, if there is one.
fn right_mismatch(
    op: Op,
    left: &super::operand::Operand,
    host_name: bool,
    right: &super::operand::Operand,
) -> Option<String> {
    if matches!(op, Op::PMatch | Op::Regex) {
        return Some(format!("`{}` compares with constants only", op.word()));
    }
    let spread_out = |spread| matches!(spread, Spread::Some | Spread::Ends);
    if left.ty == ValueType::Net || spread_out(left.spread) || host_name {
        return Some(format!("`{left}` compares with constants only"));
    }
    if spread_out(right.spread) {
        return Some(format!(
            "`{right}` has several values and cannot stand here"
        ));
    }
    if !same_type(left.ty, right.ty) || left.spread != right.spread {
        let (of_left, of_right) = (type_name(left.ty), type_name(right.ty));
        return Some(format!("`{left}` is {of_left} and `{right}` is {of_right}"));
    }
    None
}

/// Returns true for the operators of bytes.
fn fits_bytes(op: Op) -> bool {
    matches!(
        op,
        Op::Eq
            | Op::Ne
            | Op::In
            | Op::Intersects
            | Op::Contains
            | Op::BContains
            | Op::StartsWith
            | Op::BStartsWith
            | Op::EndsWith
    )
}

fn same_type(a: ValueType, b: ValueType) -> bool {
    let is_text = |ty| matches!(ty, ValueType::Text | ValueType::Path);
    let is_number = |ty| matches!(ty, ValueType::Int | ValueType::Uint | ValueType::Port);
    a == b || (is_text(a) && is_text(b)) || (is_number(a) && is_number(b))
}

/// Returns a type's name for use as the predicate of a sentence.
fn type_name(ty: ValueType) -> &'static str {
    match ty {
        ValueType::Bool => "true or false",
        ValueType::Int | ValueType::Uint => "a number",
        ValueType::Text => "a text",
        ValueType::Path => "a path",
        ValueType::Ip => "an address",
        ValueType::Net => "an address compared with networks",
        ValueType::AbsTime => "a time",
        ValueType::RelTime => "a duration",
        ValueType::Port => "a port",
    }
}
