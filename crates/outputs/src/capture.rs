//! Captures for a collector: those that it asks for, and those around alerts.

use std::fmt;
use std::time::Instant;

use rules::Priority;
use serde_json::{Value, json};

/// Longest time before an alert in seconds.
pub const MAX_BEFORE: u64 = 60;
/// Longest time after an alert in seconds.
pub const MAX_AFTER: u64 = 300;

/// Largest memory of past events in MiB.
pub const MAX_LIMIT_MIB: u64 = 12;

/// Rules that are named at most: agents repeat them in each sign of life, which is bounded.
pub const MAX_CAPTURE_RULES: usize = 200;

/// Bytes of their names together.
pub const MAX_CAPTURE_RULE_BYTES: usize = 16 << 10;

/// Too much is named to record around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureOnAlertError {
    /// Too many rules.
    #[error(
        "{found} rules are named to record around, and {MAX_CAPTURE_RULES} is the most; name a priority that includes them"
    )]
    Rules {
        /// Their number.
        found: usize,
    },
    /// Names that are too long.
    #[error(
        "the names of the rules to record around have {found} bytes, and {MAX_CAPTURE_RULE_BYTES} is the most; \
         name a priority that includes them"
    )]
    Bytes {
        /// Bytes of all names.
        found: usize,
    },
}

/// Alerts around which an agent records without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOnAlert {
    /// Alerts of this priority or a more severe one; `None`: no alert because of its priority.
    pub priority: Option<Priority>,
    /// Alerts of the rules with these names.
    pub rules: Vec<String>,
    /// Seconds before the alert.
    pub before: u64,
    /// Seconds after it.
    pub after: u64,
    /// Memory for past events in MiB.
    pub limit_mib: u64,
    /// Captures that are begun in an hour at most.
    pub max_per_hour: u64,
}

impl Default for CaptureOnAlert {
    fn default() -> Self {
        Self {
            priority: None,
            rules: Vec::new(),
            before: 5,
            after: 10,
            limit_mib: 4,
            max_per_hour: 6,
        }
    }
}

impl CaptureOnAlert {
    /// Returns true if some alert is one to record around.
    pub fn is_on(&self) -> bool {
        self.priority.is_some() || !self.rules.is_empty()
    }

    /// Returns true if an alert of a rule is one to record around.
    pub fn fits(&self, rule: &str, priority: Priority) -> bool {
        // The more severe, the less.
        self.priority.is_some_and(|least| priority <= least)
            || self.rules.iter().any(|name| name == rule)
    }

    /// Returns true if an alert of a rule and the priority of this name is one to record around.
    pub fn fits_named(&self, rule: &str, priority: &str) -> bool {
        match Priority::parse(priority) {
            Some(priority) => self.fits(rule, priority),
            None => self.rules.iter().any(|name| name == rule),
        }
    }

    /// Returns what a collector and an agent tell one another of it.
    pub fn as_json(&self) -> Value {
        json!({
            "priority": self.priority.map(Priority::name),
            "rules": self.rules,
            "before": self.before,
            "after": self.after,
        })
    }

    /// Reads what a collector wants. How much memory it takes, and how often, the agent decides: that is of `own`. `None` if
    /// it names no alerts.
    ///
    /// # Errors
    ///
    /// It names more than [`CaptureOnAlert::check`] allows.
    pub fn of_json(value: &Value, own: &Self) -> Result<Option<Self>, CaptureOnAlertError> {
        let seconds = |name: &str, default: u64| value[name].as_u64().unwrap_or(default);
        let rules = value["rules"].as_array();
        let rules = rules.into_iter().flatten().filter_map(Value::as_str);
        let wanted = Self {
            priority: value["priority"].as_str().and_then(Priority::parse),
            rules: rules.map(str::to_owned).collect(),
            before: seconds("before", own.before).min(MAX_BEFORE),
            after: seconds("after", own.after).min(MAX_AFTER),
            ..own.clone()
        };
        wanted.check()?;
        Ok(wanted.is_on().then_some(wanted))
    }

    /// Checks that an agent can repeat what is named.
    ///
    /// # Errors
    ///
    /// Too many rules are named, or their names are too long.
    pub fn check(&self) -> Result<(), CaptureOnAlertError> {
        let bytes = self.rules.iter().map(String::len).sum();
        match self.rules.len() {
            found if found > MAX_CAPTURE_RULES => Err(CaptureOnAlertError::Rules { found }),
            _ if bytes > MAX_CAPTURE_RULE_BYTES => Err(CaptureOnAlertError::Bytes { found: bytes }),
            _ => Ok(()),
        }
    }
}

/// Alerts that are recorded around, in words.
impl fmt::Display for CaptureOnAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(priority) = self.priority {
            write!(f, "priority {priority} or more severe")?;
        }
        if !self.rules.is_empty() {
            let or = if self.priority.is_some() { ", or " } else { "" };
            write!(f, "{or}rule {}", self.rules.join(", "))?;
        }
        Ok(())
    }
}

/// The alert around which a capture was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedAlert {
    /// Its rule.
    pub rule: String,
    /// Time of its event in nanoseconds since 1970.
    pub time_ns: u64,
    /// Milliseconds before it that the capture has.
    pub before_ms: u64,
    /// Milliseconds after it.
    pub after_ms: u64,
}

/// Why there is a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureCause {
    /// The collector asked for it, and gave it this number.
    Asked(u64),
    /// There was an alert.
    Alert(CapturedAlert),
}

/// How far a capture for a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureProgress {
    /// There is none.
    Idle,
    /// Events are recorded.
    Recording {
        /// Why there is one.
        cause: CaptureCause,
        /// When it is over.
        until: Instant,
    },
    /// It waits to be sent.
    Done {
        /// Why there is one.
        cause: CaptureCause,
        /// Its size.
        bytes: usize,
        /// Events in it.
        events: u64,
        /// Events that are not in it, because it had reached its size.
        lost: u64,
    },
}

/// What became of alerts to record around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertCaptureCounts {
    /// Captures that were begun.
    pub begun: u64,
    /// Alerts without a capture: another one was being recorded or sent.
    pub busy: u64,
    /// Alerts without a capture: as many as an hour may have were begun.
    pub rate: u64,
    /// Captures that the collector did not take, at once or for too long.
    pub refused: u64,
}

/// Called when a capture has begun by itself. Does not wait.
pub type CaptureWake = Box<dyn Fn() + Send + Sync>;

/// Records events for a collector, one capture at a time. Channels call it, so nothing waits.
pub trait CaptureSource: Send + Sync {
    /// Begins a capture of this many seconds that the collector asks for, unless there is one.
    fn begin(&self, id: u64, seconds: u64);

    /// Sets what is called when a capture around an alert has begun. Only the first call has an effect.
    fn wake_by(&self, wake: CaptureWake);

    /// Records around alerts as the agent's own settings say, from now on, if they name some: they have changed.
    fn set_own(&self, own: &CaptureOnAlert);

    /// Records around alerts as the collector wants, from now on; `None`: around none. What the agent's own settings say goes before.
    fn follow(&self, wanted: Option<CaptureOnAlert>);

    /// Returns around which alerts it records, and what became of them; `None` if around none.
    fn on_alert(&self) -> Option<(CaptureOnAlert, AlertCaptureCounts)>;

    /// Ends the recording before its time.
    fn end(&self);

    /// Returns how far the capture is.
    fn progress(&self) -> CaptureProgress;

    /// Returns at most `length` bytes of the capture from `from` on.
    fn read(&self, from: usize, length: usize) -> Vec<u8>;

    /// Throws the capture away.
    fn forget(&self);

    /// Throws the capture away because the collector does not take it, or could not for too long, and counts that.
    fn refuse(&self);
}

/// Returns what the inventory says of captures around alerts; `null` if there are none.
pub(crate) fn on_alert_json(source: &dyn CaptureSource) -> Value {
    let Some((condition, counts)) = source.on_alert() else {
        return Value::Null;
    };
    json!({
        "condition": condition.as_json(),
        "begun": counts.begun,
        "left_out": {"busy": counts.busy, "rate": counts.rate, "refused": counts.refused},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_fits_by_priority_or_by_rule_and_is_told_as_json() {
        let own = CaptureOnAlert {
            limit_mib: 2,
            ..CaptureOnAlert::default()
        };
        assert!(!own.is_on() && !own.fits("R", Priority::Emergency));
        let condition = CaptureOnAlert {
            priority: Some(Priority::Warning),
            rules: vec!["A rule".to_owned()],
            ..own.clone()
        };
        assert!(condition.fits("x", Priority::Warning) && condition.fits("x", Priority::Error));
        assert!(!condition.fits("x", Priority::Notice));
        assert!(condition.fits("A rule", Priority::Debug));
        assert_eq!(
            condition.to_string(),
            "priority Warning or more severe, or rule A rule"
        );
        let of = |value: &Value| CaptureOnAlert::of_json(value, &own);
        assert_eq!(of(&condition.as_json()), Ok(Some(condition.clone())));
        let endless = json!({"priority": "Warning", "before": u64::MAX, "after": u64::MAX});
        let read = of(&endless).expect("few").expect("it names alerts");
        assert_eq!((read.before, read.after), (MAX_BEFORE, MAX_AFTER));
        assert_eq!(read.limit_mib, 2, "the agent decides");
        for none in [json!({}), json!({"priority": "loud", "rules": 7}), json!(7)] {
            assert_eq!(of(&none), Ok(None));
        }
    }

    #[test]
    fn what_is_named_is_carried_whole_or_refused() {
        let own = CaptureOnAlert::default();
        let of = |rules: Vec<String>| {
            let named = CaptureOnAlert {
                rules,
                ..CaptureOnAlert::default()
            };
            let read = CaptureOnAlert::of_json(&named.as_json(), &own);
            assert_eq!(read.is_ok(), named.check().is_ok());
            read.map(|read| read.map(|read| read == named))
        };
        let some = |number| vec!["R".to_owned(); number];
        assert_eq!(of(some(MAX_CAPTURE_RULES)), Ok(Some(true)));
        let error = of(some(MAX_CAPTURE_RULES + 1)).expect_err("too many");
        assert_eq!(
            error.to_string(),
            "201 rules are named to record around, and 200 is the most; name a priority that includes them"
        );
        let long = |bytes| vec!["R".repeat(bytes - 1), "R".to_owned()];
        assert_eq!(of(long(MAX_CAPTURE_RULE_BYTES)), Ok(Some(true)));
        let error = of(long(MAX_CAPTURE_RULE_BYTES + 1)).expect_err("too long");
        let text = error.to_string();
        assert!(
            text.contains("16385 bytes, and 16384 is the most"),
            "{text}"
        );
    }
}
