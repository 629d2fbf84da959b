//! Why the rule of an alert matched, clause by clause.

use std::sync::Arc;

use maud::{Markup, html};
use serde_json::Value;
use store::{Agent, Store, StoreError};

use super::text::{plain, short};

/// Rows on the page: more than the stock rules need, and fewer than a hostile bundle could have.
const SHOWN: usize = 200;

/// Characters of a value on the page; the alert's fields have the rest.
const VALUE: usize = 300;

/// Depths that the style tells apart.
const DEPTHS: usize = 6;

/// The value of a field in an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClauseValue {
    /// The alert does not have the field.
    Unknown,
    /// The field had no value.
    Absent,
    /// The value, as alerts print it.
    Text(String),
}

/// A clause of a rule's condition, evaluated on the fields of an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedClause {
    /// Number of clauses that it is a part of.
    pub depth: usize,
    /// The clause as written, or the name of its macro.
    pub text: String,
    /// Fields that it compares, with their values.
    pub values: Vec<(String, ClauseValue)>,
    /// Result; `None` if the alert's fields do not tell.
    pub holds: Option<bool>,
}

/// The rule of an alert, evaluated on the fields of the alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedRule {
    /// Its clauses.
    pub clauses: Vec<MatchedClause>,
    /// Result of the whole condition; `None` if the alert's fields do not tell.
    pub holds: Option<bool>,
    /// The type that was inferred for the event, if the alert does not have it.
    pub inferred: Option<String>,
    /// Digests of rules that agents with the same rules report, without `sha256:`.
    pub digests: Vec<String>,
    /// It is a rule of the agent's bundle; otherwise, as with a bundle without rules, one that the collector loads itself.
    pub is_of_bundle: bool,
}

/// An alert, and where its rule is.
#[derive(Clone, Copy, Debug)]
pub struct AlertToExplain<'a> {
    /// The alert in JSON.
    pub alert: &'a str,
    /// The signed bundle that is in force at the agent; `None` if it has its own rules.
    pub bundle: Option<&'a str>,
}

/// Evaluates the rule of an alert. Returns `None` if the collector does not know the rule; an error says why the clauses
/// cannot be evaluated.
pub type ExplainAlert =
    Arc<dyn Fn(AlertToExplain<'_>) -> Result<Option<MatchedRule>, String> + Send + Sync>;

/// What the sender of an alert says about its rules now.
#[derive(Debug, Default)]
pub(super) struct RulesOfAgent {
    /// Digest of its rules.
    digest: Option<String>,
    /// The signed bundle that is in force, if the store has it.
    pub(super) bundle: Option<String>,
    /// A bundle is in force that the store does not have.
    lacks_bundle: bool,
}

/// Asks the store for the rules of an agent.
pub(super) fn rules_of(
    store: &dyn Store,
    agent: Option<&Agent>,
) -> Result<RulesOfAgent, StoreError> {
    let Some(agent) = agent else {
        return Ok(RulesOfAgent::default());
    };
    // What is no inventory names no rules.
    let inventory: Value = serde_json::from_str(&agent.inventory).unwrap_or(Value::Null);
    let digest = inventory["rules"].as_str();
    let digest = digest.and_then(|digest| digest.strip_prefix("sha256:"));
    let in_force = inventory["bundle"]["digest"].as_str();
    let bundle = match in_force {
        Some(in_force) => {
            let bundles = store.bundles()?;
            let known = bundles.iter().find(|bundle| bundle.digest == in_force);
            match known {
                Some(bundle) => store.bundle_text(bundle.id)?,
                None => None,
            }
        }
        None => None,
    };
    Ok(RulesOfAgent {
        digest: digest.map(str::to_owned),
        lacks_bundle: in_force.is_some() && bundle.is_none(),
        bundle,
    })
}

/// The title of the section.
const TITLE: &str = "Why each clause matched";

/// Draws the section where the collector itself failed.
pub(super) fn draw_failed(problem: &str) -> Markup {
    html! { section.panel { h2 { (TITLE) }
        p.soft { "The clauses cannot be evaluated now: " (plain(problem)) }
    } }
}

/// Draws the section of the page of an alert.
pub(super) fn draw(
    explained: &Result<Option<MatchedRule>, String>,
    of_agent: &RulesOfAgent,
) -> Markup {
    html! { section.panel { h2 { (TITLE) }
        @match explained {
            Err(problem) => p.soft { "The clauses cannot be evaluated: " (plain(problem)) },
            Ok(None) => {
                p { "The collector does not know this rule, so it cannot tell why it matched." }
                p.soft.small { @if of_agent.lacks_bundle {
                    "The agent has rules of a bundle that this collector does not have."
                } @else {
                    "It knows the rules that " code { "tollgate run" } " loads on its machine, and those of the bundles that it hands out."
                } }
            },
            Ok(Some(rule)) => {
                (origin(rule, of_agent))
                (result(rule))
                (list(&rule.clauses))
            },
        }
    } }
}

/// Says whether the agent has these rules now, too: a rule of the same name can have another condition there. Which rules it had
/// when it raised the alert, nobody has recorded.
fn origin(rule: &MatchedRule, of_agent: &RulesOfAgent) -> Markup {
    let whose = match rule.is_of_bundle {
        true => "the agent's bundle",
        false => "the collector",
    };
    let own = rule.digests.first().map_or("", String::as_str);
    html! { @match &of_agent.digest {
        Some(digest) if rule.digests.contains(digest) => p.soft.small {
            "By the rules of " (whose) ", which the agent has now, too: " span.mono { (short(digest)) } },
        Some(digest) => div.note.lost role="note" {
            "The agent has other rules now (" span.mono { (plain(&short(digest))) } ") than " (whose) " ("
            span.mono { (short(own)) } "): the condition may be another one there." },
        None => div.note.lost role="note" {
            "The sender does not tell which rules it has: the condition may be another one there than that of " (whose) "." },
    } }
}

fn result(rule: &MatchedRule) -> Markup {
    html! {
        @match rule.holds {
            Some(true) => {},
            Some(false) => div.note.bad role="note" {
                "By these rules the condition does not match this alert: another version of the rule raised it." },
            None => p.soft.small { "“not told” marks what the alert has no fields for." },
        }
        @if let Some(kind) = &rule.inferred { p.soft.small {
            code { "evt.type" } " is not in the alert; " code { (plain(kind)) } " is taken because the rule fits it." } }
    }
}

fn list(clauses: &[MatchedClause]) -> Markup {
    html! {
        ul.clauses { @for clause in clauses.iter().take(SHOWN) {
            li class={ "d" (clause.depth.min(DEPTHS)) } {
                @match clause.holds {
                    Some(true) => span class="badge s-good" { "true" },
                    Some(false) => span class="badge s-error" { "false" },
                    None => span.badge { "not told" },
                }
                div { code { (plain(&clipped(&clause.text))) }
                    @for (field, value) in &clause.values { span.sub.mono { (plain(field)) ": " (shown(value)) } } }
            }
        } }
        @if clauses.len() > SHOWN { p.soft.small { (clauses.len() - SHOWN) " more clauses are not shown." } }
    }
}

fn shown(value: &ClauseValue) -> Markup {
    html! { @match value {
        ClauseValue::Unknown => span.soft { "not in the alert" },
        ClauseValue::Absent => span.soft { "no value" },
        ClauseValue::Text(text) => (plain(&clipped(text))),
    } }
}

fn clipped(text: &str) -> String {
    let mut out: String = text.chars().take(VALUE).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(holds: Option<bool>) -> MatchedRule {
        let clause = |holds, values| MatchedClause {
            depth: 90,
            text: "proc.name = <b>".to_owned(),
            values,
            holds,
        };
        let text = ClauseValue::Text(format!("<i>{}", "z".repeat(1000)));
        MatchedRule {
            clauses: vec![
                clause(Some(true), vec![("proc.name".to_owned(), text)]),
                clause(None, vec![("fd.name".to_owned(), ClauseValue::Unknown)]),
                clause(Some(false), vec![("a".to_owned(), ClauseValue::Absent)]),
            ],
            holds,
            inferred: Some("<open>".to_owned()),
            digests: vec!["aa".to_owned(), "bb".to_owned()],
            is_of_bundle: false,
        }
    }

    fn page(holds: Option<bool>, of_agent: &RulesOfAgent) -> String {
        draw(&Ok(Some(rule(holds))), of_agent).into_string()
    }

    #[test]
    fn clauses_are_escaped_and_what_the_alert_lacks_is_not_called_false() {
        let text = page(Some(true), &RulesOfAgent::default());
        for part in [
            "proc.name = &lt;b&gt;",
            "&lt;i&gt;zzz",
            "&lt;open&gt;",
            ">true<",
            ">false<",
            ">not told<",
            "not in the alert",
            "no value",
            "class=\"d6\"",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.matches('z').count(), VALUE - "<i>".len());
        assert!(!text.contains("another version"), "{text}");
        assert!(page(Some(false), &RulesOfAgent::default()).contains("another version"));
        let mut many = rule(None);
        many.clauses = vec![many.clauses[0].clone(); SHOWN + 7];
        let text = draw(&Ok(Some(many)), &RulesOfAgent::default()).into_string();
        assert_eq!(text.matches("<li ").count(), SHOWN);
        assert!(text.contains("7 more clauses"), "{text}");
    }

    #[test]
    fn the_page_says_whether_the_agent_has_the_same_rules() {
        let with = |digest: Option<&str>, bundle: Option<&str>| RulesOfAgent {
            digest: digest.map(str::to_owned),
            bundle: bundle.map(str::to_owned),
            lacks_bundle: false,
        };
        let same = page(None, &with(Some("bb"), None));
        assert!(
            same.contains("the collector, which the agent has now, too"),
            "{same}"
        );
        let of_bundle = MatchedRule {
            is_of_bundle: true,
            ..rule(None)
        };
        let agent = with(Some("<cc>"), Some("{}"));
        let other = draw(&Ok(Some(of_bundle)), &agent).into_string();
        assert!(
            other.contains("other rules now (<span class=\"mono\">&lt;cc&gt;"),
            "{other}"
        );
        assert!(other.contains("than the agent's bundle"), "{other}");
        // A bundle of policies alone leaves the agent its own rules.
        let policies = page(None, &agent);
        assert!(policies.contains("than the collector ("), "{policies}");
        assert!(!policies.contains("the agent's bundle"), "{policies}");
        let untold = page(None, &with(None, None));
        assert!(untold.contains("does not tell which rules"), "{untold}");
        let unknown = draw(&Ok(None), &with(None, None)).into_string();
        assert!(unknown.contains("does not know this rule"), "{unknown}");
        let lacking = RulesOfAgent {
            lacks_bundle: true,
            ..RulesOfAgent::default()
        };
        let unknown = draw(&Ok(None), &lacking).into_string();
        assert!(unknown.contains("of a bundle that this collector does not have"));
        let problem = draw(&Err("<x>".to_owned()), &lacking).into_string();
        assert!(
            problem.contains("cannot be evaluated: &lt;x&gt;"),
            "{problem}"
        );
    }
}
