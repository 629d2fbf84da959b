//! Why the rule of an alert matched, for the page: the same evaluation as that of `tollgate rules explain --alert`.

use std::sync::Arc;

use bundle::Signed;
use collector::{AlertToExplain, ClauseValue, ExplainAlert, MatchedClause, MatchedRule};
use rule_tools::RuleFiles;
use rule_tools::alert_explanation::{BundledRules, evaluate};
use rule_tools::event_explanation::{ClauseRow, shown};
use rules::AlertValue;

/// Returns what evaluates the rule of an alert: that of the agent's bundle, or without one that of the rules that
/// `tollgate run` loads on this machine.
pub(super) fn explanation() -> ExplainAlert {
    Arc::new(explain)
}

fn explain(asked: AlertToExplain<'_>) -> Result<Option<MatchedRule>, String> {
    let (settings, bundled) = match asked.bundle {
        Some(text) => rules_of(text)?,
        None => (Vec::new(), Vec::new()),
    };
    let rules = RuleFiles {
        settings,
        ..RuleFiles::default()
    };
    let is_of_bundle = !bundled.is_empty();
    let evaluated = evaluate(asked.alert, &rules, bundled);
    let evaluated = evaluated.map_err(|failure| failure.message().to_owned())?;
    Ok(evaluated.map(|rule| MatchedRule {
        clauses: rule.clauses.into_iter().map(clause).collect(),
        holds: rule.holds,
        inferred: rule.inferred.map(str::to_owned),
        digests: rule.digests,
        is_of_bundle,
    }))
}

/// Returns the settings and the rule files of a bundle. An agent keeps its own rules if the bundle has none.
fn rules_of(text: &str) -> Result<(Vec<String>, BundledRules), String> {
    // Who assigned it could write to the store; agents verify its signature.
    let signed = Signed::parse(text).map_err(|error| error.to_string())?;
    let content = signed.content().map_err(|error| error.to_string())?;
    let files = content.rules.into_iter().map(|file| (file.name, file.text));
    Ok((content.settings, files.collect()))
}

fn clause(row: ClauseRow) -> MatchedClause {
    let values = row.values.into_iter().map(|(field, value)| {
        let value = match value {
            None => ClauseValue::Unknown,
            Some(AlertValue::Absent) => ClauseValue::Absent,
            Some(value) => ClauseValue::Text(shown(&value)),
        };
        (field, value)
    });
    MatchedClause {
        depth: row.depth,
        text: row.text,
        values: values.collect(),
        holds: row.holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALERT: &str = r#"{"rule": "Read sensitive file untrusted", "output_fields":
        {"evt.type": "openat", "fd.name": "/etc/shadow", "proc.name": "cat", "proc.tty": null}}"#;

    #[test]
    fn the_rules_of_this_machine_or_of_the_bundle_explain_an_alert() {
        let of = |bundle| {
            explain(AlertToExplain {
                alert: ALERT,
                bundle,
            })
        };
        let own = of(None).expect("usable").expect("a built-in rule");
        assert!(own.clauses.len() > 2 && !own.digests.is_empty(), "{own:?}");
        let file = bundle::File {
            name: "r.yaml".to_owned(),
            text: "- rule: Read sensitive file untrusted\n  desc: d\n  condition: evt.type = openat and \
                   fd.name = /etc/shadow and proc.pname = sh\n  output: o\n  priority: INFO\n"
                .to_owned(),
        };
        let content = bundle::Content {
            version: 1,
            rules: vec![file],
            policies: Vec::new(),
            settings: Vec::new(),
        };
        let key = bundle::PrivateKey::generate().expect("random numbers");
        let policy = bundle::File {
            name: "web".to_owned(),
            text: "name: web\n".to_owned(),
        };
        let without_rules = bundle::Content {
            rules: Vec::new(),
            policies: vec![policy],
            settings: vec!["rules[]={disable: {rule: Terminal shell in container}}".to_owned()],
            ..content.clone()
        };
        let signed = without_rules.pack().expect("a bundle").sign(&key).to_text();
        let same = of(Some(&signed)).expect("usable").expect("a built-in rule");
        assert_eq!((&same.clauses, same.is_of_bundle), (&own.clauses, false));
        assert_ne!(same.digests, own.digests, "the settings count");
        let signed = content.pack().expect("a bundle").sign(&key).to_text();
        let other = of(Some(&signed)).expect("usable").expect("it has the rule");
        let texts: Vec<_> = other
            .clauses
            .iter()
            .map(|clause| (&*clause.text, clause.holds))
            .collect();
        assert_eq!(
            texts,
            [
                ("evt.type = openat", Some(true)),
                ("fd.name = /etc/shadow", Some(true)),
                ("proc.pname = sh", None),
            ]
        );
        assert_eq!(
            other.clauses[2].values,
            [("proc.pname".to_owned(), ClauseValue::Unknown)]
        );
        assert_ne!(own.digests, other.digests);
        assert!(other.is_of_bundle && !own.is_of_bundle);
        assert!(of(Some("no bundle")).is_err());
    }
}
