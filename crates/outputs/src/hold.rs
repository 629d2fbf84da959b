//! Alerts that a terminal does not show at once: those that come while a program has the terminal
//! to itself, and repetitions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::Alert;

use crate::channel::Delivery;
use crate::pretty;

/// Maximum number of alerts that are held one by one.
const HELD: usize = 256;
/// Maximum memory of held alerts in bytes.
const HELD_BYTES: usize = 1 << 20;
/// Time in which equal alerts are shown once.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of different alerts of one rule that are shown in that time.
const SHOWN_OF_RULE: usize = 10;
/// Maximum length in bytes of what identifies an alert.
const LIKENESS: usize = 512;

/// Numbers of alerts by rule.
pub(crate) type LeftOut = Vec<(Arc<str>, u64)>;

/// Alerts that wait until a program gives the terminal back. Those beyond a bound are counted by
/// rule.
#[derive(Debug, Default)]
pub(crate) struct Held {
    waiting: VecDeque<Arc<Delivery>>,
    bytes: usize,
    left_out: BTreeMap<Arc<str>, u64>,
}

impl Held {
    pub(crate) fn push(&mut self, alert: &Arc<Delivery>) {
        let size = alert.size();
        if self.waiting.len() < HELD && self.bytes.saturating_add(size) <= HELD_BYTES {
            self.bytes += size;
            self.waiting.push_back(Arc::clone(alert));
        } else {
            let rule = Arc::clone(&alert.alert().rule);
            *self.left_out.entry(rule).or_default() += 1;
        }
    }

    /// Number of alerts, those that are only counted included.
    pub(crate) fn count(&self) -> usize {
        let left_out: u64 = self.left_out.values().sum();
        self.waiting
            .len()
            .saturating_add(usize::try_from(left_out).unwrap_or(usize::MAX))
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Alerts are only counted when others wait.
        self.waiting.is_empty()
    }

    /// Takes the alerts, and the number of others of each rule.
    pub(crate) fn take(&mut self) -> (Vec<Arc<Delivery>>, LeftOut) {
        self.bytes = 0;
        let left_out = std::mem::take(&mut self.left_out);
        (
            self.waiting.drain(..).collect(),
            left_out.into_iter().collect(),
        )
    }
}

/// Alerts that were not shown because they repeat others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    pub(crate) rule: Arc<str>,
    /// The object, or a word for many.
    pub(crate) what: String,
    pub(crate) count: u64,
    pub(crate) seconds: u64,
}

/// Shows the first of equal alerts, and counts the others for a time. The memory is bounded by the
/// number of rules: each has at most `SHOWN_OF_RULE` windows and one for the rest.
#[derive(Debug, Default)]
pub(crate) struct Repetitions {
    by_rule: HashMap<Arc<str>, HashMap<Option<String>, Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    /// The alert that began the window was shown.
    began_shown: bool,
    hidden: u64,
    what: String,
}

impl Repetitions {
    /// Returns true if the alert is to be shown; otherwise it is counted.
    pub(crate) fn is_shown(&mut self, alert: &Alert, now: Instant) -> bool {
        let windows = self.by_rule.entry(Arc::clone(&alert.rule)).or_default();
        windows.retain(|_, window| window.hidden > 0 || now < window.since + WINDOW);
        let likeness = shortened(pretty::likeness(alert));
        if let Some(window) = windows.get_mut(&Some(likeness.clone())) {
            window.hidden += 1;
            return false;
        }
        let is_one_too_many = windows.len() >= SHOWN_OF_RULE;
        let (key, what) = match is_one_too_many {
            true => (None, "others".to_owned()),
            false => (Some(likeness), shortened(pretty::object(alert))),
        };
        let window = windows.entry(key).or_insert(Window {
            since: now,
            began_shown: !is_one_too_many,
            hidden: 0,
            what,
        });
        window.hidden += u64::from(is_one_too_many);
        !is_one_too_many
    }

    /// Number of alerts that were counted and not reported yet.
    pub(crate) fn hidden(&self) -> u64 {
        self.windows().map(|window| window.hidden).sum()
    }

    /// Time at which the first report is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let windows = self.windows().filter(|window| window.hidden > 0);
        windows.map(|window| window.since + WINDOW).min()
    }

    /// Takes the reports that are due, or all.
    pub(crate) fn take(&mut self, now: Instant, all: bool) -> Vec<Repeated> {
        let mut reports = Vec::new();
        for (rule, windows) in &mut self.by_rule {
            for window in windows.values_mut() {
                let is_over = now >= window.since + WINDOW;
                if window.hidden == 0 || !(is_over || all) {
                    continue;
                }
                reports.push(Repeated {
                    rule: Arc::clone(rule),
                    what: window.what.clone(),
                    count: window.hidden + u64::from(window.began_shown),
                    seconds: seconds(now.duration_since(window.since)),
                });
                // What goes on is counted on, in a window that no shown alert begins.
                window.since = now;
                window.began_shown = false;
                window.hidden = 0;
            }
        }
        self.by_rule.retain(|_, windows| {
            windows.retain(|_, window| window.hidden > 0 || now < window.since + WINDOW);
            !windows.is_empty()
        });
        reports.sort_by(|one, other| (&one.rule, &one.what).cmp(&(&other.rule, &other.what)));
        reports
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.by_rule.values().flat_map(HashMap::values)
    }
}

/// Rounds up to whole seconds.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0 || time.is_zero())
}

/// Cuts a text at a character boundary, so that the workload cannot choose how much memory it takes.
fn shortened(mut text: String) -> String {
    if text.len() > LIKENESS {
        let end = (0..=LIKENESS).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::testing;
    use crate::format::Format;
    use crate::pretty::tests::reading;

    #[test]
    fn equal_alerts_are_shown_once_and_counted() {
        let mut seen = Repetitions::default();
        let start = Instant::now();
        assert!(seen.is_shown(&reading("/etc/shadow"), start));
        for _ in 0..36 {
            assert!(!seen.is_shown(&reading("/etc/shadow"), start));
        }
        assert!(seen.is_shown(&reading("/etc/gshadow"), start));
        assert_eq!((seen.hidden(), seen.due()), (36, Some(start + WINDOW)));
        assert_eq!(seen.take(start, false), []);
        let [report] = &seen.take(start + WINDOW, false)[..] else {
            panic!("one report")
        };
        assert_eq!((report.count, report.seconds), (37, 10));
        assert_eq!(report.what, "/etc/shadow");
        // It goes on: no alert is shown, and each is counted once.
        assert!(!seen.is_shown(&reading("/etc/shadow"), start + WINDOW));
        assert_eq!(seen.take(start + 2 * WINDOW, false)[0].count, 1);
        // It stops, and begins again.
        assert_eq!(seen.take(start + 3 * WINDOW, false), []);
        assert!(seen.is_shown(&reading("/etc/shadow"), start + 3 * WINDOW));
    }

    #[test]
    fn many_different_alerts_of_a_rule_are_counted_together_and_none_is_forgotten() {
        let mut seen = Repetitions::default();
        let now = Instant::now();
        let shown = (0..10_000)
            .filter(|n| seen.is_shown(&reading(&format!("/{n}")), now))
            .count();
        assert_eq!(shown, SHOWN_OF_RULE);
        assert_eq!(seen.windows().count(), SHOWN_OF_RULE + 1);
        let reports = seen.take(now, true);
        let counts: Vec<_> = reports
            .iter()
            .map(|report| (&*report.what, report.count))
            .collect();
        assert_eq!(counts, [("others", 10_000 - 10)]);
        assert_eq!(seen.hidden(), 0);
    }

    #[test]
    fn what_is_held_is_bounded_and_counted_exactly() {
        let mut held = Held::default();
        for alert in testing::deliveries(HELD + 37, Format::default()) {
            held.push(&alert);
        }
        assert_eq!(held.count(), HELD + 37);
        let (alerts, left_out) = held.take();
        assert_eq!(alerts.len(), HELD);
        assert_eq!(left_out, [("t".into(), 37)]);
        assert!(held.is_empty());
    }
}
