//! Exceptions to conditions.
//!
//! An exception is a table: `fields` are its columns, `comps` the comparison operators of the columns,
//! `values` its rows. A rule with exceptions means `(condition) and not (row or row ..) and not ..`, where a
//! row is `field comp value and field comp value ..`. A single field instead of a list means one comparison
//! with all values: `field in (value, value ..)`.

use super::item::{Entry, ExceptionItem};
use crate::condition::ast::{
    Compare, Expr, ExprKind, Literal, Op, OpClass, Operand, Quantifier, Span, Value,
};
use crate::condition::parser::{parse_operand, parse_operator, parse_value};
use crate::diagnostic::{Code, Diagnostic, Location};
use crate::ruleset::Exception;
use crate::sources::Sources;
use yaml::SourceText;

type Result<T> = std::result::Result<T, Diagnostic>;

/// Returns the condition with its exceptions.
pub(super) fn with_exceptions(
    condition: Expr,
    exceptions: &[ExceptionItem],
    sources: &mut Sources,
    problems: &mut Vec<Diagnostic>,
) -> Expr {
    let span = condition.span;
    let mut children = vec![condition];
    for exception in exceptions {
        match matches_row(exception, sources) {
            Ok(None) => {}
            Ok(Some(rows)) => {
                let span = rows.span;
                children.push(Expr {
                    kind: ExprKind::Not(Box::new(rows)),
                    span,
                });
            }
            Err(problem) => problems.push(problem),
        }
    }
    join(children, ExprKind::And, span)
}

/// Returns the summary of an exception for listings.
pub(super) fn summary(exception: &ExceptionItem) -> Exception {
    let texts = |entry: &Entry| match entry {
        Entry::One(text) => vec![text.text().to_owned()],
        Entry::Many(entries, _) => entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::One(text) => Some(text.text().to_owned()),
                Entry::Many(..) => None,
            })
            .collect(),
    };
    let fields = exception.fields.as_ref().map(texts).unwrap_or_default();
    let comps = match (&exception.comps, &exception.fields) {
        (Some(comps), _) => texts(comps),
        (None, Some(Entry::Many(..))) => vec!["=".to_owned(); fields.len()],
        (None, _) => vec!["in".to_owned()],
    };
    Exception {
        name: exception.name.clone(),
        fields,
        comps,
        values: exception.values.len(),
        location: exception.location.clone(),
    }
}

/// Builds the expression that is true if the event matches one of the rows; `None` if there are no rows.
fn matches_row(exception: &ExceptionItem, sources: &mut Sources) -> Result<Option<Expr>> {
    match &exception.fields {
        Some(Entry::One(field)) => single_field(exception, field, sources),
        Some(Entry::Many(fields, _)) => table(exception, fields, sources),
        None => Err(invalid(
            &exception.location,
            format!("exception `{}` needs fields", exception.name),
        )),
    }
}

fn single_field(
    exception: &ExceptionItem,
    field: &SourceText,
    sources: &mut Sources,
) -> Result<Option<Expr>> {
    let column = Column {
        field: operand(field, sources)?,
        comparison: match &exception.comps {
            Some(Entry::One(comp)) => Comparison::parse(comp)?,
            _ => Comparison {
                op: Op::In,
                quantifier: None,
            },
        },
    };
    if !column.comparison.takes_list() {
        let at = exception
            .comps
            .as_ref()
            .map_or(&exception.location, Entry::location);
        let message = format!(
            "exception `{}` has a single field: comps has to compare with a list (`in`, `pmatch`, \
             `intersects`, `startswith anyof` ..)",
            exception.name
        );
        return Err(invalid(at, message));
    }
    let mut items = Vec::new();
    for value in &exception.values {
        match value {
            Entry::One(text) => items.extend(list_items(text, sources)),
            Entry::Many(_, at) => {
                let message = format!(
                    "exception `{}` has a single field: values are scalars, not lists",
                    exception.name
                );
                return Err(invalid(at, message));
            }
        }
    }
    let Some(span) = items.first().map(|item| item.span) else {
        return Ok(None);
    };
    Ok(Some(column.compare(Value::List(items, span))))
}

fn table(
    exception: &ExceptionItem,
    fields: &[Entry],
    sources: &mut Sources,
) -> Result<Option<Expr>> {
    let columns = columns(exception, fields, sources)?;
    let mut rows = Vec::new();
    for row in &exception.values {
        let cells = match row {
            Entry::Many(cells, _) => cells.as_slice(),
            Entry::One(_) => std::slice::from_ref(row),
        };
        if cells.len() != columns.len() || matches!(row, Entry::One(_)) {
            let message = format!(
                "exception `{}` has {} fields, so each of its values is a list of {}, found {}",
                exception.name,
                columns.len(),
                columns.len(),
                if matches!(row, Entry::One(_)) {
                    "a scalar".to_owned()
                } else {
                    format!("{} entries", cells.len())
                },
            );
            return Err(invalid(row.location(), message));
        }
        let mut checks = Vec::new();
        for (column, cell) in columns.iter().zip(cells) {
            checks.push(column.compare(cell_value(column.comparison, cell, sources)?));
        }
        // A table without columns has no rows that could match.
        if let Some(span) = checks.first().map(|check| check.span) {
            rows.push(join(checks, ExprKind::And, span));
        }
    }
    let Some(span) = rows.first().map(|row| row.span) else {
        return Ok(None);
    };
    Ok(Some(join(rows, ExprKind::Or, span)))
}

fn columns(
    exception: &ExceptionItem,
    fields: &[Entry],
    sources: &mut Sources,
) -> Result<Vec<Column>> {
    let comps = match &exception.comps {
        Some(Entry::Many(comps, _)) => Some(comps),
        _ => None,
    };
    let scalar = |entry: &Entry| match entry {
        Entry::One(text) => Ok(text.clone()),
        Entry::Many(_, at) => {
            let message = format!(
                "fields and comps of exception `{}` are lists of scalars",
                exception.name
            );
            Err(invalid(at, message))
        }
    };
    let mut columns = Vec::with_capacity(fields.len());
    for (index, field) in fields.iter().enumerate() {
        let comparison = match comps.and_then(|comps| comps.get(index)) {
            Some(comp) => Comparison::parse(&scalar(comp)?)?,
            None => Comparison {
                op: Op::Eq,
                quantifier: None,
            },
        };
        columns.push(Column {
            field: operand(&scalar(field)?, sources)?,
            comparison,
        });
    }
    Ok(columns)
}

struct Column {
    field: Operand,
    comparison: Comparison,
}

impl Column {
    fn compare(&self, right: Value) -> Expr {
        let span = right.span();
        let Comparison { op, quantifier } = self.comparison;
        let compare = Compare {
            left: self.field.clone(),
            op,
            quantifier,
            op_span: span,
            right,
        };
        Expr {
            kind: ExprKind::Compare(compare),
            span,
        }
    }
}

#[derive(Clone, Copy)]
struct Comparison {
    op: Op,
    quantifier: Option<Quantifier>,
}

impl Comparison {
    fn parse(text: &SourceText) -> Result<Self> {
        let (op, quantifier) = parse_operator(text.text()).ok_or_else(|| {
            let near = crate::diagnostic::closest(text.text(), Op::ALL.iter().map(|op| op.word()));
            let message = format!(
                "`{}` is not an operator that compares with values",
                text.text()
            );
            let mut problem = invalid(text.start(), message);
            problem.help = near.map(|near| format!("did you mean `{near}`?"));
            problem
        })?;
        Ok(Self { op, quantifier })
    }

    fn takes_list(self) -> bool {
        self.quantifier.is_some() || self.op.class() == OpClass::List
    }
}

/// Parses one cell of a table. A list operator takes a scalar as a list of one.
fn cell_value(comparison: Comparison, cell: &Entry, sources: &mut Sources) -> Result<Value> {
    let Comparison { op, quantifier } = comparison;
    match cell {
        Entry::Many(entries, at) => {
            if !comparison.takes_list() {
                let message = format!("`{}` compares with one value, not with a list", op.word());
                return Err(invalid(at, message).with_help("use `in` under comps for this field"));
            }
            let mut items = Vec::new();
            for entry in entries {
                match entry {
                    Entry::One(text) => items.extend(list_items(text, sources)),
                    Entry::Many(_, at) => {
                        return Err(invalid(at, "a list inside a list of values".to_owned()));
                    }
                }
            }
            let span = match items.first() {
                Some(item) => item.span,
                None => whole(&SourceText::new(String::new(), at.clone()), sources),
            };
            Ok(Value::List(items, span))
        }
        Entry::One(text) if comparison.takes_list() => {
            // `(a, b)` in one scalar is a list too.
            let items = match text.text().starts_with('(') {
                true => parsed(op, quantifier, text.clone(), sources).and_then(into_items),
                false => None,
            };
            let items = items.unwrap_or_else(|| list_items(text, sources));
            let span = items
                .first()
                .map_or_else(|| whole(text, sources), |item| item.span);
            Ok(Value::List(items, span))
        }
        Entry::One(text) => scalar_value(op, text, sources),
    }
}

fn scalar_value(op: Op, text: &SourceText, sources: &mut Sources) -> Result<Value> {
    if let Some(value) = parsed(op, None, quote_blanks(text), sources) {
        return Ok(value);
    }
    if op.class() == OpClass::Number {
        let message = format!(
            "`{}` compares with a number, found `{}`",
            op.word(),
            text.text()
        );
        return Err(invalid(text.start(), message));
    }
    Ok(Value::Literal(verbatim(text, sources)))
}

/// Parses the values in one entry of a list: usually one, but `a, b` without quotes is two.
pub(super) fn list_items(text: &SourceText, sources: &mut Sources) -> Vec<Literal> {
    let list = quote_blanks(text).wrapped("(", ")");
    parsed(Op::In, None, list, sources)
        .and_then(into_items)
        .unwrap_or_else(|| vec![verbatim(text, sources)])
}

fn into_items(value: Value) -> Option<Vec<Literal>> {
    match value {
        Value::List(items, _) => Some(items),
        _ => None,
    }
}

fn parsed(
    op: Op,
    quantifier: Option<Quantifier>,
    text: SourceText,
    sources: &mut Sources,
) -> Option<Value> {
    // Parses before storing: a rejected text needs no entry among the sources.
    let unnamed = crate::condition::ast::SourceId(0);
    parse_value(op, quantifier, text.text(), unnamed).ok()?;
    let text_copy = text.text().to_owned();
    let id = sources.add(text);
    parse_value(op, quantifier, &text_copy, id).ok()
}

/// Quotes text that contains blanks, unless it has quotes of its own.
fn quote_blanks(text: &SourceText) -> SourceText {
    if text.text().contains(' ') && !text.text().starts_with(['"', '\'']) {
        text.wrapped("\"", "\"")
    } else {
        text.clone()
    }
}

/// Returns text verbatim that the grammar does not accept, like `a=b`.
fn verbatim(text: &SourceText, sources: &mut Sources) -> Literal {
    let span = whole(text, sources);
    Literal {
        text: text.text().into(),
        quoted: true,
        span,
    }
}

fn whole(text: &SourceText, sources: &mut Sources) -> Span {
    let end = u32::try_from(text.text().len()).unwrap_or(u32::MAX);
    Span::new(sources.add(text.clone()), 0, end)
}

fn operand(text: &SourceText, sources: &mut Sources) -> Result<Operand> {
    let id = sources.add(text.clone());
    parse_operand(text.text(), id).map_err(|error| {
        let at = sources.locate(error.span);
        let message = format!("`{}` is not a field: {}", text.text(), error.message);
        Diagnostic::new(Code::CompileCondition, at, message)
    })
}

fn invalid(at: &Location, message: String) -> Diagnostic {
    Diagnostic::new(Code::Validate, at.clone(), message)
}

/// Returns the only expression, or several joined.
fn join(mut children: Vec<Expr>, kind: fn(Vec<Expr>) -> ExprKind, span: Span) -> Expr {
    if children.len() > 1 {
        return Expr {
            kind: kind(children),
            span,
        };
    }
    children.pop().expect("callers give at least one")
}
