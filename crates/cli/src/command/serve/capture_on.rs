//! The alerts around which agents record, as `tollgate serve` tells them.

use clap::Args;
use outputs::{CaptureOnAlert, CaptureOnAlertError, MAX_AFTER, MAX_BEFORE};
use rules::Priority;

/// Heading in the help.
const CAPTURES: &str = "Captures";

/// The alerts around which agents record.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CaptureOnOptions {
    /// Have agents that allow captures record around alerts that are at least as severe as a priority (priority=WARNING), or
    /// of a rule (rule=NAME); repeatable [default: around none]
    #[arg(long, value_name = "CONDITION", value_parser = condition, help_heading = CAPTURES)]
    pub(crate) capture_on: Vec<Condition>,
    /// Record this many seconds before the alert
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "capture_on", help_heading = CAPTURES,
          value_parser = clap::value_parser!(u64).range(..=MAX_BEFORE))]
    pub(crate) capture_before: u64,
    /// Record this many seconds after it
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "capture_on", help_heading = CAPTURES,
          value_parser = clap::value_parser!(u64).range(..=MAX_AFTER))]
    pub(crate) capture_after: u64,
}

/// One of the conditions that an alert may meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Priority(Priority),
    Rule(String),
}

fn condition(text: &str) -> Result<Condition, String> {
    let wrong = "expected priority=PRIORITY or rule=NAME";
    match text.split_once('=') {
        Some(("priority", name)) => {
            let priority = Priority::parse(name);
            let unknown =
                || format!("unknown priority `{name}`; name one as in rules, such as WARNING");
            priority.map(Condition::Priority).ok_or_else(unknown)
        }
        Some(("rule", name)) if !name.is_empty() => Ok(Condition::Rule(name.to_owned())),
        _ => Err(wrong.to_owned()),
    }
}

#[cfg_attr(
    not(feature = "serve"),
    expect(dead_code, reason = "the collector alone tells agents")
)]
impl CaptureOnOptions {
    /// Returns what agents are told; `None` if nothing.
    ///
    /// # Errors
    ///
    /// More rules are named than an agent takes.
    pub(crate) fn told(&self) -> Result<Option<CaptureOnAlert>, CaptureOnAlertError> {
        let mut told = CaptureOnAlert {
            before: self.capture_before,
            after: self.capture_after,
            ..CaptureOnAlert::default()
        };
        for condition in &self.capture_on {
            match condition {
                // The least severe one includes the others.
                Condition::Priority(priority) => {
                    told.priority = told.priority.max(Some(*priority));
                }
                Condition::Rule(name) => told.rules.push(name.clone()),
            }
        }
        told.check()?;
        Ok(told.is_on().then_some(told))
    }
}

#[cfg(test)]
mod tests {
    use outputs::MAX_CAPTURE_RULES;

    use super::*;

    #[test]
    fn conditions_are_priorities_or_rules_and_anything_else_is_refused() {
        let of = |texts: &[&str]| {
            let conditions = texts.iter().map(|text| condition(text));
            CaptureOnOptions {
                capture_on: conditions.collect::<Result<_, _>>().expect("valid"),
                capture_before: 3,
                capture_after: 4,
            }
        };
        assert_eq!(of(&[]).told(), Ok(None));
        let told = of(&["priority=error", "priority=Warning", "rule=A=b c"]).told();
        let told = told.expect("few").expect("some");
        assert_eq!(told.priority, Some(Priority::Warning));
        assert_eq!(told.rules, ["A=b c"]);
        assert_eq!((told.before, told.after), (3, 4));
        let many = vec!["rule=A"; MAX_CAPTURE_RULES];
        let told = of(&many).told().expect("an agent takes so many");
        assert_eq!(told.map(|told| told.rules.len()), Some(many.len()));
        let error = of(&[many, vec!["rule=A"]].concat()).told();
        let found = MAX_CAPTURE_RULES + 1;
        assert_eq!(error, Err(CaptureOnAlertError::Rules { found }));
        for wrong in ["priority=loud", "rule=", "warning", "tag=x", ""] {
            condition(wrong).expect_err(wrong);
        }
    }
}
