//! Falco's totals at the end of a run: matches of rules, and losses of events.

use rules::{Engine, Priority};

/// Number of matches of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTotal {
    /// Name of the rule.
    pub rule: String,
    /// Its priority.
    pub priority: Priority,
    /// Number of events that matched.
    pub matches: u64,
}

/// Adds the matches of a rule set to the totals, by rule.
pub fn add(totals: &mut Vec<RuleTotal>, engine: &Engine) {
    for rule in engine.rule_matches().filter(|rule| rule.matches > 0) {
        let known = totals.iter_mut().find(|known| known.rule == rule.rule);
        match known {
            Some(known) => known.matches += rule.matches,
            None => totals.push(RuleTotal {
                rule: rule.rule.to_owned(),
                priority: rule.priority,
                matches: rule.matches,
            }),
        }
    }
}

/// Formats all matches: the total, by priority from the most urgent on, and by rule.
pub fn of_rules(totals: &[RuleTotal]) -> String {
    let all: u64 = totals.iter().map(|total| total.matches).sum();
    let mut out = format!("Events detected: {all}\nRule counts by severity:\n");
    for priority in Priority::ALL {
        let of_it = totals.iter().filter(|total| total.priority == priority);
        let count: u64 = of_it.map(|total| total.matches).sum();
        let word = match priority {
            Priority::Informational => "INFO".to_owned(),
            _ => priority.to_string().to_uppercase(),
        };
        if count > 0 {
            out.push_str(&format!("   {word}: {count}\n"));
        }
    }
    out.push_str("Triggered rules by rule name:\n");
    for RuleTotal { rule, matches, .. } in totals {
        out.push_str(&format!("   {rule}: {matches}\n"));
    }
    out
}

/// Formats the number of seconds with relevant losses, and of actions taken.
pub fn of_losses(detected: u64, acted_on: u64) -> String {
    format!(
        "Syscall event drop monitoring:\n   - event drop detected: {detected} occurrences\n   \
         - num times actions taken: {acted_on}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_counted_by_priority_and_by_rule() {
        let total = |rule: &str, priority, matches| RuleTotal {
            rule: rule.to_owned(),
            priority,
            matches,
        };
        assert_eq!(
            of_rules(&[
                total("B", Priority::Informational, 2),
                total("A", Priority::Warning, 3),
                total("C", Priority::Warning, 1),
            ]),
            "Events detected: 6\nRule counts by severity:\n   WARNING: 4\n   INFO: 2\n\
             Triggered rules by rule name:\n   B: 2\n   A: 3\n   C: 1\n"
        );
        assert_eq!(
            of_rules(&[]),
            "Events detected: 0\nRule counts by severity:\nTriggered rules by rule name:\n"
        );
    }
}
