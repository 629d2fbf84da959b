//! Output templates: text with `%field` placeholders, and their values.
//!
//! ```text
//! output = [ "*" ] { text | "%" [ width ] ( field | transformer ) }
//! ```
//!
//! A leading `*` is dropped: in Falco it asks for output even if a field is absent, which is always the case
//! here. A width truncates or pads with blanks. A percent sign cannot be written.

use std::fmt::Write as _;
use std::sync::Arc;

use event::Value;
use serde::{Deserialize, Serialize};

use crate::alert::AlertValue;
use crate::compile::check::{Checker, Problem};
use crate::compile::eval::Evaluation;
use crate::compile::operand::{OperandId, Operands, Spread};
use crate::condition::ast::{Operand, SourceId, Span};
use crate::condition::parser;
use crate::diagnostic::Code;

/// Text printed for an absent value.
const ABSENT: &str = "<NA>";

/// Maximum length of a template in bytes. The longest one in public rule sets has about 1 kB.
const MAX_LENGTH: usize = 1 << 16;
/// Maximum number of problems of one template that are reported one by one.
const MAX_PROBLEMS: usize = 20;
/// Maximum column width. The standard library formats none wider than 65,535.
const MAX_WIDTH: usize = 4096;
/// Maximum message length in bytes: values have up to 4 KiB, and a template may name them thousands of times.
const MAX_MESSAGE: usize = 1 << 18;
/// Suffix of a truncated message.
const CUT: &str = "... (cut)";

/// A compiled template.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Template {
    parts: Vec<Part>,
    /// Distinct fields of the template, also inside transformers.
    fields: Vec<(Arc<str>, OperandId)>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
enum Part {
    Text(Box<str>),
    Value {
        operand: OperandId,
        width: Option<usize>,
    },
}

impl Template {
    /// Compiles a template; `source` identifies it in diagnostics.
    ///
    /// # Errors
    /// Returns all problems of the template.
    pub(crate) fn new(
        text: &str,
        source: SourceId,
        checker: &mut Checker,
    ) -> Result<Self, Vec<Problem>> {
        if text.len() > MAX_LENGTH {
            return Err(vec![too_long(text, source)]);
        }
        let mut template = Self::default();
        let mut problems = Vec::new();
        let mut at = usize::from(text.starts_with('*'));
        while let Some(percent) = text[at..].find('%').map(|offset| at + offset) {
            template.push_text(&text[at..percent]);
            match template.push_value(text, percent, source, checker) {
                Ok(end) => at = end,
                Err(found) => {
                    problems.extend(found);
                    at = percent + 1;
                }
            }
            if problems.len() > MAX_PROBLEMS {
                problems.truncate(MAX_PROBLEMS);
                problems.push(unread(&text[at..], span(source, percent, text.len())));
                break;
            }
        }
        template.push_text(&text[at..]);
        if problems.is_empty() {
            Ok(template)
        } else {
            Err(problems)
        }
    }

    /// Returns the names of the fields, in the order of their first occurrence.
    pub(crate) fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(Part::Text(text.into()));
        }
    }

    /// Parses the placeholder after the percent sign at `percent`; returns its end.
    fn push_value(
        &mut self,
        text: &str,
        percent: usize,
        source: SourceId,
        checker: &mut Checker,
    ) -> Result<usize, Vec<Problem>> {
        let after = percent + 1;
        let digits = text[after..].bytes().take_while(u8::is_ascii_digit).count();
        let start = after + digits;
        let span = |from: usize, to: usize| span(source, from, to);
        let Some(width) = width(&text[after..start]) else {
            return Err(vec![too_wide(&text[after..start], span(after, start))]);
        };
        let (mut operand, mut len) =
            parser::parse_operand_prefix(&text[start..], source).map_err(|error| {
                vec![unfinished(
                    &text[start..],
                    span(percent, start),
                    &error.message,
                )]
            })?;
        // `%proc.name.` and `%evt.type.x` end at the longest known name.
        while let Operand::Field(field) = &mut operand {
            let bracket = field.arg.as_ref().map(|arg| arg.text.to_lossy());
            let shorter = field
                .name
                .rsplit_once('.')
                .map(|(shorter, _)| shorter.to_owned());
            match shorter {
                Some(shorter)
                    if checker
                        .parse_field(&field.name, bracket.as_deref())
                        .is_err()
                        && shorter.contains('.')
                        && checker.parse_field(&shorter, None).is_ok() =>
                {
                    len = shorter.len();
                    field.name = shorter;
                    field.arg = None;
                }
                _ => break,
            }
        }
        let id = checker.output_operand(&operand).map_err(|mut problems| {
            // Positions inside the operand are relative to its start.
            problems
                .iter_mut()
                .for_each(|problem| problem.span = span(start, start + len));
            problems
        })?;
        self.parts.push(Part::Value { operand: id, width });
        self.add_fields(id, &checker.operands);
        Ok(start + len)
    }

    fn add_fields(&mut self, id: OperandId, operands: &Operands) {
        operands.each_field_operand(id, &mut |id| {
            if self.fields.iter().all(|(_, known)| *known != id) {
                self.fields
                    .push((operands.get(id).text.as_ref().into(), id));
            }
        });
    }

    /// Adds fields that are reported but not printed.
    pub(crate) fn report_also(&mut self, other: &Self) {
        for (name, id) in &other.fields {
            if self.fields.iter().all(|(_, known)| known != id) {
                self.fields.push((Arc::clone(name), *id));
            }
        }
    }

    /// Returns all operands that the template needs from an event.
    pub(crate) fn operands(&self) -> impl Iterator<Item = OperandId> {
        let printed = self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value { operand, .. } => Some(*operand),
        });
        printed.chain(self.fields.iter().map(|(_, id)| *id))
    }

    /// Formats the message for an event, truncated to the maximum length.
    pub(crate) fn message(&self, evaluation: &mut Evaluation<'_, '_, '_>) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Value {
                    operand,
                    width: None,
                } => push_value(&mut out, *operand, evaluation),
                Part::Value {
                    operand,
                    width: Some(width),
                } => {
                    let mut text = String::new();
                    push_value(&mut text, *operand, evaluation);
                    let text: String = text.chars().take(*width).collect();
                    push(&mut out, format_args!("{text:<width$}"));
                }
            }
            if out.len() > MAX_MESSAGE {
                cut(&mut out);
                break;
            }
        }
        out
    }

    /// Returns the values of the template's fields for an event.
    pub(crate) fn values(
        &self,
        evaluation: &mut Evaluation<'_, '_, '_>,
    ) -> Vec<(Arc<str>, AlertValue)> {
        let mut value = |id: OperandId| {
            let value = evaluation.shown(id);
            match never(&value, id, evaluation) {
                Some(why) => AlertValue::Text(format!("<NA: {why}>")),
                None => alert_value(&value, evaluation.operands(), id),
            }
        };
        self.fields
            .iter()
            .map(|(name, id)| (Arc::clone(name), value(*id)))
            .collect()
    }
}

fn span(source: SourceId, from: usize, to: usize) -> Span {
    let offset = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Span::new(source, offset(from), offset(to))
}

/// Parses the width after a percent sign: `Some(None)` if there is none, `None` if it is too wide.
fn width(digits: &str) -> Option<Option<usize>> {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(None);
    }
    let width = digits.parse().ok()?;
    (width <= MAX_WIDTH).then_some(Some(width))
}

/// Truncates a message to its limit at a character boundary.
fn cut(message: &mut String) {
    let limit = MAX_MESSAGE - CUT.len();
    let end = (0..=limit).rev().find(|end| message.is_char_boundary(*end));
    message.truncate(end.unwrap_or(0));
    message.push_str(CUT);
}

fn problem(span: Span, message: String, help: &str) -> Problem {
    Problem {
        code: Code::CompileOutput,
        span,
        message,
        help: Some(help.to_owned()),
        unknown: false,
    }
}

fn too_long(text: &str, source: SourceId) -> Problem {
    let length = text.len();
    let message = format!("the output has {length} bytes, the limit is {MAX_LENGTH}");
    // Marking the whole text would make the report as long as the text.
    problem(span(source, 0, 1), message, "write a shorter output")
}

fn too_wide(width: &str, span: Span) -> Problem {
    let message = format!("the width {width} is too large, the limit is {MAX_WIDTH}");
    problem(span, message, "write a smaller width, or none")
}

fn unread(rest: &str, span: Span) -> Problem {
    let left = rest.matches('%').count();
    let message = format!("too many problems; {left} more `%` in this output are not checked");
    problem(span, message, "correct those above first")
}

fn unfinished(rest: &str, span: Span, message: &str) -> Problem {
    let what = match rest.chars().next() {
        None => "the output ends with `%`".to_owned(),
        Some('%') => "`%%` is not a field, and a percent sign cannot be printed".to_owned(),
        Some(_) => format!("no field follows `%`: {message}"),
    };
    let help = "write the name of a field after `%`, or leave the `%` out";
    problem(span, what, help)
}

fn push(out: &mut String, args: std::fmt::Arguments<'_>) {
    out.write_fmt(args)
        .expect("writing to a string cannot fail");
}

fn push_value(out: &mut String, id: OperandId, evaluation: &mut Evaluation<'_, '_, '_>) {
    let value = evaluation.shown(id);
    if let Some(why) = never(&value, id, evaluation) {
        return push(out, format_args!("<NA: {why}>"));
    }
    let notation = Notation::of(evaluation.operands(), id);
    push_shown(out, &value, notation);
}

/// Returns the reason why a field never has a value in events of an engine.
fn never(
    value: &Value<'_>,
    id: OperandId,
    evaluation: &Evaluation<'_, '_, '_>,
) -> Option<&'static str> {
    if !matches!(value, Value::Absent | Value::Unknown) {
        return None;
    }
    let field = evaluation.operands().as_field(id)?;
    field.spec.never(evaluation.event().world.engine())
}

/// Number format of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    Decimal,
    /// Nine digits, the nanosecond part of a time.
    PaddedNanoseconds,
    Hexadecimal,
}

impl Notation {
    fn of(operands: &Operands, id: OperandId) -> Self {
        match operands.as_field(id).map(|field| field.spec.name) {
            Some(
                "evt.rawtime.ns" | "evt.reltime" | "evt.reltime.ns" | "evt.latency.ns"
                | "evt.deltatime.ns",
            ) => Self::PaddedNanoseconds,
            Some("fd.dev") => Self::Hexadecimal,
            _ => Self::Decimal,
        }
    }
}

fn push_shown(out: &mut String, value: &Value<'_>, notation: Notation) {
    match (value, notation) {
        (Value::Unknown | Value::Absent, _) => out.push_str(ABSENT),
        (Value::Bool(value), _) => push(out, format_args!("{value}")),
        (Value::Int(number), Notation::Decimal) => push(out, format_args!("{number}")),
        (Value::Int(number), Notation::PaddedNanoseconds) => push(out, format_args!("{number:09}")),
        (Value::Int(number), Notation::Hexadecimal) => push(out, format_args!("{number:X}")),
        (Value::Uint(number), Notation::Decimal) => push(out, format_args!("{number}")),
        (Value::Uint(number), Notation::PaddedNanoseconds) => {
            push(out, format_args!("{number:09}"));
        }
        (Value::Uint(number), Notation::Hexadecimal) => push(out, format_args!("{number:X}")),
        (Value::Text(text), _) => out.push_str(&String::from_utf8_lossy(text)),
        (Value::Ip(address), _) => push(out, format_args!("{address}")),
        (Value::List(values), _) => {
            out.push('(');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                push_shown(out, value, notation);
            }
            out.push(')');
        }
    }
}

pub(crate) fn alert_value(value: &Value<'_>, operands: &Operands, id: OperandId) -> AlertValue {
    let notation = Notation::of(operands, id);
    match value {
        Value::Unknown | Value::Absent => AlertValue::Absent,
        Value::Bool(value) => AlertValue::Bool(*value),
        Value::Int(number) if notation == Notation::Decimal => AlertValue::Int(*number),
        Value::Uint(number) if notation == Notation::Decimal => AlertValue::Uint(*number),
        // Only list operands become lists; other fields with several values print as one text.
        Value::List(values) if operands.get(id).spread == Spread::List => AlertValue::List(
            values
                .iter()
                .map(|value| alert_value(value, operands, id))
                .collect(),
        ),
        value => {
            let mut text = String::new();
            push_shown(&mut text, value, notation);
            AlertValue::Text(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Result<(Template, Checker), Vec<Problem>> {
        let mut checker = Checker::default();
        let template = Template::new(text, SourceId(0), &mut checker)?;
        Ok((template, checker))
    }

    fn shape(text: &str) -> Vec<String> {
        let (template, checker) = compile(text).expect("the template is right");
        let show = |part: &Part| match part {
            Part::Text(text) => text.to_string(),
            Part::Value { operand, width } => {
                let width = width.map_or(String::new(), |width| width.to_string());
                format!("%{width}{}", checker.operands.get(*operand))
            }
        };
        template.parts.iter().map(show).collect()
    }

    #[test]
    fn a_template_is_cut_at_its_fields() {
        assert_eq!(
            shape("*file=%fd.name (%proc.aname[2]) %10evt.type, %toupper(proc.name)!"),
            [
                "file=",
                "%fd.name",
                " (",
                "%proc.aname[2]",
                ") ",
                "%10evt.type",
                ", ",
                "%toupper(proc.name)",
                "!"
            ]
        );
        assert_eq!(shape("no field"), ["no field"]);
        assert_eq!(shape("%evt.arg.flags"), ["%evt.arg.flags"]);
    }

    #[test]
    fn a_name_ends_at_its_longest_known_part() {
        assert_eq!(shape("ran %proc.name."), ["ran ", "%proc.name", "."]);
        assert_eq!(shape("%proc.name.x y"), ["%proc.name", ".x y"]);
    }

    #[test]
    fn every_problem_is_reported_where_it_stands() {
        let problems = compile("a %proc.nme b %% c %").unwrap_err();
        let starts: Vec<u32> = problems.iter().map(|problem| problem.span.start).collect();
        assert_eq!(starts[0], 3);
        assert!(
            problems
                .iter()
                .all(|problem| problem.code == Code::CompileOutput)
        );
        assert!(
            problems[0]
                .help
                .as_deref()
                .is_some_and(|help| help.contains("proc.name"))
        );
        assert!(
            problems
                .last()
                .is_some_and(|problem| problem.message.contains("ends with `%`"))
        );
    }

    #[test]
    fn what_is_wrong_many_times_is_reported_at_a_limit() {
        let few = compile(&"%".repeat(MAX_PROBLEMS)).unwrap_err();
        assert_eq!(few.len(), MAX_PROBLEMS);
        let many = compile(&"%".repeat(MAX_LENGTH)).unwrap_err();
        assert_eq!(many.len(), MAX_PROBLEMS + 1);
        let last = &many[MAX_PROBLEMS].message;
        assert!(last.starts_with("too many problems; 65515 more"), "{last}");
        let long = compile(&"%".repeat(MAX_LENGTH + 1)).unwrap_err();
        assert_eq!(long.len(), 1);
        assert!(long[0].message.contains("the limit is 65536"));
        assert!(compile(&"x".repeat(MAX_LENGTH)).is_ok());
    }

    #[test]
    fn a_width_that_cannot_be_printed_is_an_error() {
        assert_eq!(shape("%4096proc.name %0proc.pname").len(), 3);
        for wide in ["4097", "65536", "99999999999999999999999"] {
            let problems = compile(&format!("%{wide}proc.name")).unwrap_err();
            assert!(problems[0].message.contains(wide), "{wide}");
        }
    }

    #[test]
    fn a_message_is_cut_at_the_end_of_a_character() {
        let mut message = "\u{65e5}".repeat(MAX_MESSAGE);
        cut(&mut message);
        assert!(message.len() <= MAX_MESSAGE && message.ends_with("\u{65e5}... (cut)"));
    }

    #[test]
    fn fields_inside_transformers_are_reported_once() {
        let (template, checker) = compile("%tolower(proc.name) %proc.name %proc.pname").unwrap();
        let names: Vec<&str> = template.fields.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["proc.name", "proc.pname"]);
        assert_eq!(checker.operands.len(), 3);
    }

    #[test]
    fn values_print_as_in_falco() {
        let show = |value: Value<'_>, notation| {
            let mut out = String::new();
            push_shown(&mut out, &value, notation);
            out
        };
        assert_eq!(show(Value::Absent, Notation::Decimal), "<NA>");
        assert_eq!(show(Value::Bool(true), Notation::Decimal), "true");
        assert_eq!(show(Value::Int(-2), Notation::Decimal), "-2");
        assert_eq!(
            show(Value::Uint(42), Notation::PaddedNanoseconds),
            "000000042"
        );
        assert_eq!(show(Value::Uint(0xfd01), Notation::Hexadecimal), "FD01");
        assert_eq!(show(Value::Text(b"a\xff"), Notation::Decimal), "a\u{fffd}");
        let list = [Value::Int(1), Value::Int(2)];
        assert_eq!(show(Value::List(&list), Notation::Decimal), "(1,2)");
    }
}
