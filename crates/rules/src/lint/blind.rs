//! Rules that cannot match with an engine, and with the fields that a user may read.

use std::collections::BTreeMap;
use std::sync::Arc;

use event::EngineKind;
use event::field::FieldSpec;

use super::Linter;
use crate::engine::Engine;

/// Returns the reason why a field has no value although the engine can set it; `None` if it has one.
pub type Lacks<'l> = &'l dyn Fn(&FieldSpec) -> Option<&'static str>;

impl Engine {
    /// Returns the compiled rules that cannot match any event of `kind`, each with the reason. Fields for which
    /// `lacks` returns a reason count as fields without a value.
    #[must_use]
    pub fn blind(&self, kind: EngineKind, lacks: Lacks<'_>) -> BTreeMap<Arc<str>, String> {
        let rules = self.rules.iter().enumerate();
        let blind = rules.filter_map(|(position, rule)| {
            let linter = Linter {
                engine: self,
                rule,
                position,
                source: kind,
                lacks,
            };
            Some((Arc::clone(&rule.name), linter.why_never()?))
        });
        blind.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alert, AlertSink, EngineOptions, Loader};

    struct Nobody;

    impl AlertSink for Nobody {
        fn emit(&self, _alert: Alert) {}
    }

    #[test]
    fn a_field_that_a_user_may_not_read_makes_blind_only_rules_that_need_it() {
        let rule = |name: &str, condition: &str| {
            format!(
                "- {{rule: {name}, desc: d, condition: {condition:?}, output: o, priority: INFO}}\n"
            )
        };
        let text = [
            rule("needs", "evt.type = execve and container.privileged = true"),
            rule(
                "either",
                "evt.type = execve and (container.privileged = true or proc.name = x)",
            ),
            rule("excludes", "evt.type = execve and not container.image = x"),
            rule("cpu", "evt.type = execve and evt.cpu = 1"),
        ]
        .concat();
        let (ruleset, diagnostics) = Loader::new().add("r.yaml", &text).finish();
        assert!(diagnostics.is_empty(), "{diagnostics:?}");
        let (engine, _) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nobody));
        let names = |kind, lacks: Lacks<'_>| -> Vec<String> {
            let blind = engine.blind(kind, lacks).into_keys();
            blind.map(|name| name.to_string()).collect()
        };
        let secret = |field: &FieldSpec| field.is_runtime_metadata().then_some("secret");
        assert_eq!(names(EngineKind::Ebpf, &|_| None), Vec::<String>::new());
        assert_eq!(names(EngineKind::Notify, &|_| None), ["cpu"]);
        assert_eq!(names(EngineKind::Ebpf, &secret), ["needs"]);
        let why = engine.blind(EngineKind::Ebpf, &secret);
        assert_eq!(why["needs"], "`container.privileged` has no value (secret)");
    }
}
