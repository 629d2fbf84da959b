//! Whether a rule still detects its own action, done for real, with an exception.

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use serde_json::{Value, json};

use super::evaluation::RulesUnderTest;

/// Plays the action that the named rule is for, under rules with these texts, and tells what the rule did.
pub type PlayRule = fn(rule: &str, texts: &[&str]) -> Result<OwnAction, Failure>;

/// What a rule did when its own action was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnAction {
    /// No action is for this rule.
    None,
    /// It alerted.
    Detected {
        /// Name of the action.
        action: String,
    },
    /// It did not alert.
    Missed {
        /// Name of the action.
        action: String,
    },
    /// This machine or user cannot play the action, or the rule does not alert on it even without the exception.
    NotPlayed {
        /// Name of the action.
        action: String,
        /// The reason.
        reason: String,
    },
    /// This build has no event generator.
    NoGenerator,
}

/// Why the actions of rules are not played in such a build.
const NO_GENERATOR: &str = "this build has no event generator; build with the feature `bench`";

/// Plays the action of a rule with the exception. A miss counts only if the rule alerts without the exception.
///
/// # Errors
///
/// Nothing can be played.
pub(super) fn judge(
    play: PlayRule,
    before: &RulesUnderTest,
    after: &RulesUnderTest,
) -> Result<OwnAction, Failure> {
    let name = &*after.rule().name;
    let own = play(name, &after.texts())?;
    let OwnAction::Missed { action } = own else {
        return Ok(own);
    };
    Ok(match play(name, &before.texts())? {
        OwnAction::Detected { .. } => OwnAction::Missed { action },
        _ => OwnAction::NotPlayed {
            action,
            reason: "the rule does not alert on it here, even without the exception".to_owned(),
        },
    })
}

impl OwnAction {
    /// Refuses an exception with which the rule misses its own action.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] for that, without `force`.
    pub(super) fn is_acceptable(&self, condition: &str, force: bool) -> Result<(), Failure> {
        let Self::Missed { action } = self else {
            return Ok(());
        };
        if force {
            return Ok(());
        }
        let message = format!(
            "cannot write the exception `{condition}`: with it, the rule no longer detects its own action {action}"
        );
        Err(Failure::new(Exit::BadInput, message).help(format!(
            "choose a narrower candidate, or use --force; `tollgate generate run ^{action}$` performs the action"
        )))
    }

    /// Says it in a line for people.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::None => "no action of the event generator is for this rule".to_owned(),
            Self::Detected { action } => {
                format!("detected: the rule's own action {action}, performed")
            }
            Self::Missed { action } => {
                format!("not detected: the rule's own action {action}, performed (--force)")
            }
            Self::NotPlayed { action, reason } => {
                format!("not checked: the rule's own action {action}: {reason}")
            }
            Self::NoGenerator => format!("not checked: {NO_GENERATOR}"),
        }
    }

    /// Returns it for programs.
    pub(super) fn object(&self) -> Value {
        match self {
            Self::None => json!({ "verdict": "no action" }),
            Self::Detected { action } => json!({ "verdict": "detected", "action": action }),
            Self::Missed { action } => json!({ "verdict": "missed", "action": action }),
            Self::NotPlayed { action, reason } => {
                json!({ "verdict": "not checked", "action": action, "reason": reason })
            }
            Self::NoGenerator => json!({ "verdict": "not checked", "reason": NO_GENERATOR }),
        }
    }
}

#[cfg(test)]
mod tests {
    use config::rule_files::RuleFile;

    use super::*;

    const RULE: &str =
        "- {rule: R, desc: d, condition: evt.type = openat, output: o, priority: NOTICE}";

    fn rules() -> RulesUnderTest {
        let file = RuleFile {
            name: "r.yaml".into(),
            text: Ok(RULE.to_owned()),
        };
        RulesUnderTest::load(vec![file], "R").expect("the rule is right")
    }

    fn missed() -> OwnAction {
        OwnAction::Missed {
            action: "a".to_owned(),
        }
    }

    #[test]
    fn a_miss_counts_only_if_the_exception_is_its_cause() {
        let before = rules();
        let after = before.with("x.yaml", "[]").expect("it is right");
        let by_the_exception: PlayRule = |_, texts| {
            let action = "a".to_owned();
            Ok(match texts.len() {
                1 => OwnAction::Detected { action },
                _ => OwnAction::Missed { action },
            })
        };
        let own = judge(by_the_exception, &before, &after).expect("it was played");
        assert_eq!(own, missed());
        let failure = own.is_acceptable("c", false).expect_err("it is refused");
        assert!(
            failure.render().contains("own action a"),
            "{}",
            failure.render()
        );
        own.is_acceptable("c", true).expect("it is forced");

        let always: PlayRule = |_, _| Ok(missed());
        let own = judge(always, &before, &after).expect("it was played");
        assert!(matches!(own, OwnAction::NotPlayed { .. }), "{own:?}");
        own.is_acceptable("c", false)
            .expect("nothing is known against it");
    }
}
