//! Names that a condition refers to, before they are replaced.

use crate::condition::ast::{Expr, ExprKind, Literal, Value};
use crate::ruleset::ConditionSource;

/// Collects the names in a parsed condition.
pub(super) fn written(text: &str, expr: &Expr, is_list: &impl Fn(&str) -> bool) -> ConditionSource {
    let mut written = ConditionSource {
        condition: text.to_owned(),
        ..ConditionSource::default()
    };
    collect(expr, is_list, &mut written);
    for names in [&mut written.macros, &mut written.lists] {
        names.sort();
        names.dedup();
    }
    written
}

fn collect(expr: &Expr, is_list: &impl Fn(&str) -> bool, written: &mut ConditionSource) {
    match &expr.kind {
        ExprKind::And(children) | ExprKind::Or(children) => children
            .iter()
            .for_each(|child| collect(child, is_list, written)),
        ExprKind::Not(child) => collect(child, is_list, written),
        ExprKind::Exists(_) | ExprKind::Expanded { .. } => {}
        ExprKind::Macro(name) => written.macros.push(name.clone()),
        ExprKind::Compare(compare) => {
            let literals = match &compare.right {
                Value::Literal(literal) => std::slice::from_ref(literal),
                Value::List(items, _) => items,
                Value::ListName(name, _) => {
                    if is_list(name) {
                        written.lists.push(name.clone());
                    }
                    &[]
                }
                Value::Operand(_) => &[],
            };
            let name = |literal: &Literal| {
                let name = literal.text.as_str().filter(|_| !literal.quoted);
                name.filter(|name| is_list(name)).map(str::to_owned)
            };
            written.lists.extend(literals.iter().filter_map(name));
        }
    }
}
