//! The alerts that an action must raise, and their comparison with those that came.
//!
//! `generate test`, described tests, the demo and the end-to-end tests share this. An
//! [`Expectation`] belongs to an action, a [`Comparison`] to one time that it is played.
//!
//! ```
//! use generator::expectation::{Comparison, Expectation, Fit};
//!
//! let expectation = Expectation::nothing()
//!     .require("Read secrets", |rule: &&str| *rule == "Read secrets", |_| Vec::new())
//!     .allow(|rule| rule.starts_with("Read"));
//! let mut comparison = Comparison::new(expectation);
//! assert_eq!(comparison.take("Read files"), Fit::Allowed);
//! assert_eq!(comparison.missed(), ["Read secrets"]);
//! assert_eq!(comparison.take("Read secrets"), Fit::Expected(0));
//! assert_eq!(comparison.take("Write files"), Fit::Unexpected);
//! assert!(comparison.is_met());
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use crate::action::Outcome;
use crate::alerts::{Alert, Alerts};

type Test<'e, A> = Box<dyn Fn(&A) -> bool + 'e>;
type Compare<'e, A> = Box<dyn Fn(&A) -> Vec<String> + 'e>;

/// The alerts of type `A` that an action must and may raise.
pub struct Expectation<'e, A> {
    required: Vec<Required<'e, A>>,
    allowed: Vec<Test<'e, A>>,
}

/// An alert that has to come.
struct Required<'e, A> {
    rule: String,
    is_candidate: Test<'e, A>,
    differences: Compare<'e, A>,
}

impl<'e, A> Expectation<'e, A> {
    /// Expects no alert; each one is unexpected.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            required: Vec::new(),
            allowed: Vec::new(),
        }
    }

    /// Requires an alert of the rule `rule`. `is_candidate` tells alerts of that rule apart from
    /// others; `differences` lists what such an alert has wrong.
    #[must_use]
    pub fn require(
        mut self,
        rule: impl Into<String>,
        is_candidate: impl Fn(&A) -> bool + 'e,
        differences: impl Fn(&A) -> Vec<String> + 'e,
    ) -> Self {
        self.required.push(Required {
            rule: rule.into(),
            is_candidate: Box::new(is_candidate),
            differences: Box::new(differences),
        });
        self
    }

    /// Allows other alerts.
    #[must_use]
    pub fn allow(mut self, is_allowed: impl Fn(&A) -> bool + 'e) -> Self {
        self.allowed.push(Box::new(is_allowed));
        self
    }

    /// Returns the number of required alerts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.required.len()
    }

    fn fit(&self, alert: &A) -> Fit {
        let mut different = None;
        for (at, required) in self.required.iter().enumerate() {
            if (required.is_candidate)(alert) {
                let differences = (required.differences)(alert);
                if differences.is_empty() {
                    return Fit::Expected(at);
                }
                different.get_or_insert(differences);
            }
        }
        match different {
            Some(differences) => Fit::Different(differences),
            None if self.allowed.iter().any(|is_allowed| is_allowed(alert)) => Fit::Allowed,
            None => Fit::Unexpected,
        }
    }
}

/// The relation of an alert to an expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The alert is the required one with this index.
    Expected(usize),
    /// The alert is of a required rule, and has these things wrong.
    Different(Vec<String>),
    /// The alert is allowed.
    Allowed,
    /// The alert must not be raised.
    Unexpected,
}

/// The alerts that came while an action was played.
pub struct Comparison<'e, A> {
    expectation: Expectation<'e, A>,
    came: Vec<(A, Fit)>,
}

impl<A: fmt::Debug> fmt::Debug for Comparison<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison")
            .field("missed", &self.missed())
            .field("came", &self.came)
            .finish()
    }
}

impl<'e> Comparison<'e, Alert> {
    /// Compares alerts until all required ones have come, or the deadline has passed.
    pub(crate) fn of(
        expectation: Expectation<'e, Alert>,
        alerts: &Alerts,
        deadline: Instant,
    ) -> Self {
        let mut comparison = Self::new(expectation);
        while !comparison.is_met() && Instant::now() < deadline {
            if let Some(alert) = alerts.next(deadline) {
                comparison.take(alert);
            }
        }
        comparison
    }
}

impl<'e, A> Comparison<'e, A> {
    /// Creates a comparison without alerts.
    #[must_use]
    pub fn new(expectation: Expectation<'e, A>) -> Self {
        Self {
            expectation,
            came: Vec::new(),
        }
    }

    /// Adds an alert.
    pub fn take(&mut self, alert: A) -> Fit {
        let fit = self.expectation.fit(&alert);
        self.came.push((alert, fit.clone()));
        fit
    }

    /// Adds alerts.
    #[must_use]
    pub fn with(mut self, alerts: impl IntoIterator<Item = A>) -> Self {
        alerts.into_iter().for_each(|alert| drop(self.take(alert)));
        self
    }

    /// Returns the number of required alerts.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.expectation.count()
    }

    /// Returns the rules of required alerts that did not come.
    #[must_use]
    pub fn missed(&self) -> Vec<&str> {
        let came = |at| self.came.iter().any(|(_, fit)| *fit == Fit::Expected(at));
        let required = self.expectation.required.iter().enumerate();
        let missed = required.filter(|(at, _)| !came(*at));
        missed.map(|(_, required)| required.rule.as_str()).collect()
    }

    /// Returns true if all required alerts have come.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.missed().is_empty()
    }

    /// Returns all alerts with their relation, in order.
    pub fn alerts(&self) -> impl ExactSizeIterator<Item = (&A, &Fit)> {
        self.came.iter().map(|(alert, fit)| (alert, fit))
    }

    /// Returns the alerts that must not be raised.
    pub fn unexpected(&self) -> impl Iterator<Item = &A> {
        let unexpected = self.came.iter().filter(|(_, fit)| *fit == Fit::Unexpected);
        unexpected.map(|(alert, _)| alert)
    }
}

/// Result of an action that should raise one alert.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The action was played; no alert is expected, or none was looked for.
    Played,
    /// The expected alert arrived, this many nanoseconds after the event.
    Detected { rule: String, delay_ns: Option<u64> },
    /// The expected alert did not arrive in time.
    Missed {
        /// What each alert of its rule has wrong.
        different: Vec<String>,
        /// Rules of other alerts that arrived.
        others: BTreeSet<String>,
    },
    /// The action was not played to its end.
    NotPlayed(Outcome),
}

impl Verdict {
    pub(crate) fn of(comparison: &Comparison<'_, Alert>) -> Self {
        let mut different = Vec::new();
        let mut others = BTreeSet::new();
        for (alert, fit) in comparison.alerts() {
            match fit {
                Fit::Expected(_) => {
                    return Self::Detected {
                        rule: alert.rule.clone(),
                        delay_ns: alert.delay_ns,
                    };
                }
                Fit::Different(differences) => different.push(differences.join(", ")),
                Fit::Allowed | Fit::Unexpected => drop(others.insert(alert.rule.clone())),
            }
        }
        Self::Missed { different, others }
    }

    /// Returns true if the action failed, or the alert did not come.
    pub(crate) fn is_wrong(&self) -> bool {
        matches!(
            self,
            Self::Missed { .. } | Self::NotPlayed(Outcome::Failed { .. })
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is<'e>(rule: &'e str) -> impl Fn(&(&str, u32)) -> bool + 'e {
        move |alert| alert.0 == rule
    }

    fn has_seven(alert: &(&str, u32)) -> Vec<String> {
        let differs = alert.1 != 7;
        differs
            .then(|| format!("{} is not 7", alert.1))
            .into_iter()
            .collect()
    }

    #[test]
    fn each_required_alert_has_to_come_with_what_it_must_have() {
        let expectation = Expectation::nothing()
            .require("A", is("A"), has_seven)
            .require("B", is("B"), |_| Vec::new());
        let mut comparison = Comparison::new(expectation);
        assert_eq!((comparison.expected(), comparison.is_met()), (2, false));
        let different = Fit::Different(vec!["6 is not 7".to_owned()]);
        assert_eq!(comparison.take(("A", 6)), different);
        assert_eq!(comparison.take(("B", 6)), Fit::Expected(1));
        assert_eq!(comparison.missed(), ["A"]);
        assert_eq!(comparison.take(("A", 7)), Fit::Expected(0));
        assert!(comparison.is_met());
        assert_eq!(comparison.unexpected().count(), 0);
    }

    #[test]
    fn an_alert_that_is_neither_required_nor_allowed_is_unexpected() {
        let comparison = Comparison::new(Expectation::nothing().allow(is("A")));
        let comparison = comparison.with([("A", 0), ("B", 1)]);
        assert!(comparison.is_met(), "nothing is required");
        assert_eq!(comparison.unexpected().collect::<Vec<_>>(), [&("B", 1)]);
    }
}
