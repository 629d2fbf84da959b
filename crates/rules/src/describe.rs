//! Operators and fields of a condition, for listings.

use std::collections::BTreeSet;

use crate::condition::ast::{Arg, Call, Expr, ExprKind, Field, Operand, Value};

pub use crate::condition::compiled::compiled_text;

/// The operators and fields of a condition and of its macros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// Operators, e.g. `startswith`.
    pub operators: BTreeSet<String>,
    /// Fields with their arguments, e.g. `proc.aname[2]`.
    pub fields: BTreeSet<String>,
}

impl Parts {
    /// Collects the parts of a condition whose names are resolved.
    #[must_use]
    pub fn of(expr: &Expr) -> Self {
        let mut parts = Self::default();
        parts.expr(expr);
        parts
    }

    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::And(children) | ExprKind::Or(children) => {
                children.iter().for_each(|child| self.expr(child));
            }
            ExprKind::Not(child) | ExprKind::Expanded { body: child, .. } => self.expr(child),
            ExprKind::Exists(operand) => {
                self.operators.insert("exists".to_owned());
                self.operand(operand);
            }
            ExprKind::Compare(compare) => {
                self.operators.insert(compare.op.word().to_owned());
                self.operand(&compare.left);
                if let Value::Operand(operand) = &compare.right {
                    self.operand(operand);
                }
            }
            ExprKind::Macro(_) => {}
        }
    }

    fn operand(&mut self, operand: &Operand) {
        match operand {
            Operand::Field(Field { name, arg, .. }) => {
                let arg = arg.as_ref();
                let arg = arg.map(|arg| format!("[{}]", arg.text.to_lossy()));
                self.fields
                    .insert(format!("{name}{}", arg.unwrap_or_default()));
            }
            Operand::Call(Call { args, .. }) => args.iter().for_each(|arg| self.arg(arg)),
        }
    }

    fn arg(&mut self, arg: &Arg) {
        match arg {
            Arg::Operand(operand) => self.operand(operand),
            Arg::List(args, _) => args.iter().for_each(|arg| self.arg(arg)),
            Arg::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loader;

    #[test]
    fn operators_and_fields_are_those_of_macros_too() {
        let text = "- macro: m\n  condition: tolower(proc.aname[2]) startswith x\n\
            - rule: R\n  desc: d\n  condition: evt.type = open and m and not fd.name exists\n  \
            output: o\n  priority: info\n";
        let (ruleset, diagnostics) = Loader::new().add("r.yaml", text).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let parts = Parts::of(&ruleset.rules[0].condition);
        let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(list(&parts.operators), "= exists startswith");
        assert_eq!(list(&parts.fields), "evt.type fd.name proc.aname[2]");
        assert_eq!(ruleset.rules[0].written.macros, ["m"]);
    }
}
