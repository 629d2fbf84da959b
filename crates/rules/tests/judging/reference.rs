//! A slow and obvious interpreter of conditions to compare the compiler with. It was written from Falco's
//! documentation of operators and not from the compiler.

use event::field::Field;
use event::{Event, Lookup, Value};
use rules::condition::ast::{
    Arg, Call, Compare, Expr, ExprKind, Op, Operand, Quantifier, Transformer, Value as Right,
};

/// Yes, no, or not known.
pub(crate) type Answer = Option<bool>;

/// Evaluates a condition on an event.
pub(crate) fn holds(expr: &Expr, event: &Event<'_>) -> Answer {
    match &expr.kind {
        ExprKind::And(children) => all(children.iter().map(|child| holds(child, event))),
        ExprKind::Or(children) => any(children.iter().map(|child| holds(child, event))),
        ExprKind::Not(child) => holds(child, event).map(|answer| !answer),
        ExprKind::Expanded { body, .. } => holds(body, event),
        ExprKind::Macro(name) => panic!("unresolved macro {name}"),
        ExprKind::Exists(operand) => match value(operand, event) {
            Value::Unknown => None,
            Value::Absent => Some(false),
            Value::List(values) => Some(!values.is_empty()),
            _ => Some(true),
        },
        ExprKind::Compare(compare) => compares(compare, event),
    }
}

fn all(answers: impl Iterator<Item = Answer>) -> Answer {
    let answers: Vec<Answer> = answers.collect();
    if answers.contains(&Some(false)) {
        return Some(false);
    }
    if answers.contains(&None) {
        None
    } else {
        Some(true)
    }
}

fn any(answers: impl Iterator<Item = Answer>) -> Answer {
    all(answers.map(|answer| answer.map(|answer| !answer))).map(|answer| !answer)
}

fn value<'a>(operand: &Operand, event: &Event<'a>) -> Value<'a> {
    match operand {
        Operand::Field(name) => field(name).extract(event),
        Operand::Call(call) => transform(call, event),
    }
}

fn field(name: &rules::condition::ast::Field) -> Field {
    let bracket = name
        .arg
        .as_ref()
        .map(|arg| arg.text.to_lossy().into_owned());
    Field::new(&name.name, bracket.as_deref()).expect("rules of tests name real fields")
}

fn transform<'a>(call: &Call, event: &Event<'a>) -> Value<'a> {
    let Arg::Operand(inner) = &call.args[0] else {
        panic!("tests transform fields only")
    };
    let text = match value(inner, event) {
        Value::Text(text) => text,
        Value::Unknown => return Value::Unknown,
        _ => return Value::Absent,
    };
    let keep = |bytes: Vec<u8>| Value::Text(event.arena.alloc_slice_copy(&bytes));
    match call.transformer {
        Transformer::ToLower => keep(text.to_ascii_lowercase()),
        Transformer::ToUpper => keep(text.to_ascii_uppercase()),
        Transformer::Len => Value::Uint(text.len() as u64),
        Transformer::Basename => {
            let start = text
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |slash| slash + 1);
            Value::Text(&text[start..])
        }
        other => panic!("tests do not use {other:?}"),
    }
}

fn compares(compare: &Compare, event: &Event<'_>) -> Answer {
    // Nothing is in an empty list, known or not.
    if matches!(&compare.right, Right::List(list, _) if list.is_empty()) {
        return Some(false);
    }
    let left = value(&compare.left, event);
    let name = match &compare.left {
        Operand::Field(name) => field(name).spec.name,
        Operand::Call(_) => "",
    };
    let values = match left {
        Value::Unknown => vec![Value::Unknown],
        Value::Absent => return Some(false),
        Value::List(values) => values.to_vec(),
        value => vec![value],
    };
    let answers = values.into_iter().map(|value| match value {
        Value::Absent => Some(false),
        // Nothing compares with what does not exist, known or not.
        Value::Unknown => match &compare.right {
            Right::Operand(right) if self::value(right, event) == Value::Absent => Some(false),
            _ => None,
        },
        value => one(compare, name, value, event),
    });
    let both_ends = matches!(name, "fd.ip" | "fd.net" | "fd.port" | "fd.proto");
    if both_ends && compare.op == Op::Ne {
        all(answers)
    } else {
        any(answers)
    }
}

/// Compares one present value with the right-hand side.
fn one(compare: &Compare, name: &str, left: Value<'_>, event: &Event<'_>) -> Answer {
    let texts: Vec<Vec<u8>> = match &compare.right {
        Right::Operand(right) => match value(right, event) {
            Value::Unknown => return None,
            Value::Absent => return Some(false),
            Value::Text(text) => vec![text.to_vec()],
            value => panic!("tests compare texts with fields, not {value:?}"),
        },
        Right::Literal(literal) => vec![literal.text.as_bytes().to_vec()],
        Right::List(list, _) => list
            .iter()
            .map(|item| item.text.as_bytes().to_vec())
            .collect(),
        Right::ListName(name, _) => panic!("unresolved list {name}"),
    };
    let each = |text: &Vec<u8>| {
        let Ok(text) = String::from_utf8(text.clone()) else {
            // Only fields have such values, and tests compare them for equality alone.
            return Some((left == Value::Text(text)) != (compare.op == Op::Ne));
        };
        if name.ends_with(".name") && matches!(left, Value::Ip(_)) {
            return host(left, &text, event).map(|same| same != (compare.op == Op::Ne));
        }
        Some(single(compare.op, left, &text))
    };
    let answers: Vec<Answer> = texts.iter().map(each).collect();
    let yes = answers
        .iter()
        .filter(|answer| **answer == Some(true))
        .count();
    match compare.quantifier {
        None => any(answers.into_iter()),
        Some(_) if answers.is_empty() => Some(false),
        Some(Quantifier::AnyOf) => any(answers.into_iter()),
        Some(Quantifier::AllOf) => all(answers.into_iter()),
        Some(Quantifier::OneOf) => Some(yes == 1),
    }
}

fn host(left: Value<'_>, name: &str, event: &Event<'_>) -> Answer {
    let Value::Ip(address) = left else {
        return Some(false);
    };
    match event.world.addresses(name) {
        Lookup::Found(addresses) => Some(addresses.contains(&address)),
        Lookup::Missing => Some(false),
        Lookup::Unknown => None,
    }
}

fn single(op: Op, left: Value<'_>, right: &str) -> bool {
    if op == Op::Ne {
        return !single(Op::Eq, left, right);
    }
    match left {
        Value::Bool(value) => right == value.to_string(),
        Value::Int(value) => number(op, value.into(), right),
        Value::Uint(value) => number(op, value.into(), right),
        Value::Ip(address) => match right.split_once('/') {
            None => {
                address
                    == right
                        .parse::<std::net::IpAddr>()
                        .expect("a rule of the tests")
            }
            Some(("10.0.0.0", "8")) => address.to_string().starts_with("10."),
            Some(other) => panic!("tests do not use the network {other:?}"),
        },
        Value::Text(text) => compare_text(op, text, right),
        Value::Unknown | Value::Absent | Value::List(_) => unreachable!("handled before"),
    }
}

fn number(op: Op, left: i128, right: &str) -> bool {
    let right: i128 = right.parse().expect("numbers of tests are decimal");
    match op {
        Op::Lt => left < right,
        Op::Le => left <= right,
        Op::Gt => left > right,
        Op::Ge => left >= right,
        _ => left == right,
    }
}

fn compare_text(op: Op, left: &[u8], right: &str) -> bool {
    let lossy = String::from_utf8_lossy(left).into_owned();
    let bytes = right.as_bytes();
    match op {
        Op::Eq | Op::In | Op::Intersects => left == bytes,
        Op::Contains => lossy.contains(right),
        Op::IContains => lossy
            .to_ascii_lowercase()
            .contains(&right.to_ascii_lowercase()),
        Op::StartsWith => left.starts_with(bytes),
        Op::EndsWith => left.ends_with(bytes),
        Op::Glob => glob(left, bytes),
        Op::Regex => regex::Regex::new(&format!("^(?:{right})$"))
            .expect("a rule of the tests")
            .is_match(&lossy),
        Op::PMatch => {
            let parts = |path: &str| -> Vec<String> {
                path.split('/')
                    .filter(|part| !part.is_empty())
                    .map(str::to_owned)
                    .collect()
            };
            parts(&lossy).starts_with(&parts(right))
        }
        // Tests order numbers only. `evt.rawarg.flags` is a number by its first kind of event, and
        // where another kind has a text of that name no number is found.
        Op::Lt | Op::Le | Op::Gt | Op::Ge => false,
        other => panic!("tests do not use {other:?} on texts"),
    }
}

/// Matches a pattern of stars and question marks only.
fn glob(text: &[u8], pattern: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(&text[skip..], rest)),
        Some((b'?', rest)) => !text.is_empty() && glob(&text[1..], rest),
        Some((byte, rest)) => text.first() == Some(byte) && glob(&text[1..], rest),
    }
}
