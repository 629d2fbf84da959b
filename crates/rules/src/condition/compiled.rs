//! Prints conditions as Falco prints them in `condition_compiled`.

use super::ast::{Arg, Call, Expr, ExprKind, Field, FieldArg, Operand, Text, Value};

/// Returns a condition with its macros and lists expanded, in Falco's notation: parentheses around each `and` and each
/// `or`, no blank between the arguments of a transformer, quotes where a value has a blank, a quote, a backslash or `=`.
#[must_use]
pub fn compiled_text(expr: &Expr) -> String {
    let mut out = String::new();
    print(expr, &mut out);
    out
}

fn print(expr: &Expr, out: &mut String) {
    match &expr.kind {
        ExprKind::And(children) => chain(children, " and ", out),
        ExprKind::Or(children) => chain(children, " or ", out),
        ExprKind::Not(child) => {
            out.push_str("not ");
            print(child, out);
        }
        ExprKind::Exists(left) => {
            operand(left, out);
            out.push_str(" exists");
        }
        ExprKind::Compare(compare) => {
            operand(&compare.left, out);
            out.push(' ');
            out.push_str(compare.op.word());
            if let Some(quantifier) = compare.quantifier {
                out.push(' ');
                out.push_str(quantifier.word());
            }
            out.push(' ');
            value(&compare.right, out);
        }
        ExprKind::Macro(name) => out.push_str(name),
        ExprKind::Expanded { body, .. } => print(body, out),
    }
}

fn chain(children: &[Expr], word: &str, out: &mut String) {
    separated(children, ("(", word, ")"), print, out);
}

fn separated<T>(
    items: &[T],
    (open, separator, close): (&str, &str, &str),
    print: impl Fn(&T, &mut String),
    out: &mut String,
) {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(separator);
        }
        print(item, out);
    }
    out.push_str(close);
}

fn operand(operand: &Operand, out: &mut String) {
    match operand {
        Operand::Field(field) => self::field(field, out),
        Operand::Call(call) => self::call(call, out),
    }
}

fn field(field: &Field, out: &mut String) {
    out.push_str(&field.name);
    argument(field.arg.as_ref(), out);
}

fn call(call: &Call, out: &mut String) {
    out.push_str(call.transformer.word());
    separated(&call.args, ("(", ",", ")"), arg, out);
    argument(call.arg.as_ref(), out);
}

fn arg(arg: &Arg, out: &mut String) {
    match arg {
        Arg::Operand(operand) => self::operand(operand, out),
        Arg::Literal(literal) => escaped(&literal.text, out),
        Arg::List(args, _) => separated(args, ("(", ",", ")"), self::arg, out),
    }
}

fn argument(argument: Option<&FieldArg>, out: &mut String) {
    let Some(argument) = argument else { return };
    out.push('[');
    match argument.text.as_bytes().is_empty() {
        true => out.push_str("\"\""),
        false => escaped(&argument.text, out),
    }
    out.push(']');
}

fn value(value: &Value, out: &mut String) {
    match value {
        Value::Literal(literal) => escaped(&literal.text, out),
        Value::List(items, _) => {
            let print = |item: &super::ast::Literal, out: &mut String| escaped(&item.text, out);
            separated(items, ("(", ", ", ")"), print, out);
        }
        Value::ListName(name, _) => out.push_str(name),
        Value::Operand(Operand::Field(field)) => {
            out.push_str("val(");
            self::field(field, out);
            out.push(')');
        }
        Value::Operand(call) => operand(call, out),
    }
}

/// Writes a value; in quotes if it has a character that ends or changes an unquoted one. An empty value has none.
fn escaped(text: &Text, out: &mut String) {
    let text = text.to_lossy();
    let is_special = |c: char| "\u{8}\u{c}\n\r\t =\\\"'\0".contains(c);
    if !text.contains(is_special) {
        out.push_str(&text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ast::SourceId;
    use crate::condition::parser::parse;

    #[test]
    fn conditions_are_printed_as_falco_prints_them() {
        for (written, printed) in [
            ("evt.num = 1", "evt.num = 1"),
            ("a.b = 1 and c.d = 2", "(a.b = 1 and c.d = 2)"),
            (
                "a.b = 1 or c.d = 2 and not (e.f exists or g.h in (1, '2 3'))",
                "(a.b = 1 or (c.d = 2 and not (e.f exists or g.h in (1, \"2 3\"))))",
            ),
            ("((a.b = 1))", "a.b = 1"),
            (
                "toupper(proc.name) = val(proc.pname)",
                "toupper(proc.name) = val(proc.pname)",
            ),
            (
                "join(',', (evt.num, proc.name)) contains x",
                "join(,,(evt.num,proc.name)) contains x",
            ),
            (
                "proc.aname[2] startswith oneof (a, b)",
                "proc.aname[2] startswith oneof (a, b)",
            ),
            (r#"a.b = "x\"y=z""#, r#"a.b = "x\"y=z""#),
        ] {
            let expr = parse(written, SourceId(0));
            let expr = expr.unwrap_or_else(|error| panic!("{written}: {error:?}"));
            assert_eq!(compiled_text(&expr), printed, "{written}");
        }
    }
}
