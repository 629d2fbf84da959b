//! Rules that alert when they have matched often enough: the `count` of a rule. [`super::risk`] is about those that sum
//! weights of other rules, which use the same windows.
//!
//! The state of each rule is bounded: at most [`MAX_KEYS`] keys, each with at most `over` values of [`MAX_SHOWN`] bytes. Keys
//! and values are compared by a hash that no workload can foresee. Times are those of the events, so that a replayed
//! capture counts as the run that it shows.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::risk::{Signal, Sum, add_sum};
use super::{Engine, RuleMatching};
use crate::alert::{Alert, AlertValue};
use crate::compile::eval::Evaluation;
use crate::compile::operand::OperandId;
use crate::compile::program::Entry;
use crate::output::Template;

/// Number of keys that a rule counts at a time. Beyond it the half that matched longest ago is forgotten.
const MAX_KEYS: usize = 4096;

/// Number of bytes of a value that an alert shows.
const MAX_SHOWN: usize = 160;

/// Longest rest after an alert, in nanoseconds: matches that go on without a pause alert again after it.
const MAX_REST_NS: u64 = 3_600_000_000_000;

/// A compiled `count`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Counting {
    over: u64,
    within_ns: u64,
    /// What is counted apart: events whose values here are equal belong together.
    by: Template,
    /// What counts once; `None` if each match counts.
    distinct: Option<Template>,
    /// How weights of other rules are summed; `None` if the rule counts its own matches.
    pub(super) sum: Option<Sum>,
    #[serde(skip)]
    state: State,
}

#[derive(Debug, Default)]
struct State {
    windows: Mutex<HashMap<u128, Window>>,
    hashers: [RandomState; 2],
    forgotten: AtomicU64,
}

/// The matches of one key.
#[derive(Debug, Default)]
struct Window {
    values: Vec<Match>,
    last_ns: u64,
    /// Time of the alert, as long as the matches after it go on.
    alerted_ns: Option<u64>,
}

/// A value, or a match where nothing has to be distinct.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// `None` where nothing has to be distinct.
    pub(super) hash: Option<u128>,
    /// Beginning of the value; empty where nothing has to be distinct. In a sum of risk the name of the signal's program.
    pub(super) shown: String,
    pub(super) last_ns: u64,
    /// What it counts: 1, or the weight of a signal.
    pub(super) weight: u32,
    /// Rule of a signal, as its index in the engine.
    pub(super) rule: Option<usize>,
}

/// What had been counted when a rule alerted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The number of values, or the sum of their weights.
    pub(super) number: u64,
    /// Nanoseconds between the first and the last of the matches.
    pub(super) within_ns: u64,
    /// The values in the order in which each was first counted.
    pub(super) values: Vec<Match>,
}

impl Counting {
    pub(super) fn new(
        over: u32,
        within_ns: u64,
        by: Template,
        distinct: Option<Template>,
        sum: Option<Sum>,
    ) -> Self {
        Self {
            over: u64::from(over),
            within_ns,
            by,
            distinct,
            sum,
            state: State::default(),
        }
    }

    pub(super) fn operands(&self) -> impl Iterator<Item = OperandId> {
        let distinct = self.distinct.iter().flat_map(Template::operands);
        self.by.operands().chain(distinct)
    }

    /// Counts a match. Returns what was counted if the rule alerts now.
    fn count(&self, evaluation: &mut Evaluation<'_, '_, '_>) -> Option<Counted> {
        let key = self.by.message(evaluation);
        let distinct = self.distinct.as_ref();
        let value = distinct.map(|distinct| distinct.message(evaluation));
        self.add(&key, value.as_deref(), evaluation.event().time_ns)
    }

    /// Counts a signal in the process tree of its event. Returns the sum if the rule alerts now.
    fn count_signal(
        &self,
        sum: &Sum,
        signal: Signal,
        evaluation: &mut Evaluation<'_, '_, '_>,
    ) -> Option<Counted> {
        let by = self.by.message(evaluation);
        let event = evaluation.event();
        let key = sum.tree(event.process).key(&by);
        let name = event.process.exec_name();
        let one = Match {
            hash: Some(u128::try_from(signal.rule).expect("128 bits hold any index")),
            shown: String::from_utf8_lossy(name.as_bytes()).into_owned(),
            last_ns: event.time_ns,
            weight: signal.weight,
            rule: Some(signal.rule),
        };
        self.add_match(&key, one)
    }

    fn add(&self, key: &str, value: Option<&str>, now_ns: u64) -> Option<Counted> {
        let one = Match {
            hash: value.map(|value| self.hash(value)),
            shown: value.map(shown).unwrap_or_default(),
            last_ns: now_ns,
            weight: 1,
            rule: None,
        };
        self.add_match(key, one)
    }

    pub(super) fn add_match(&self, key: &str, one: Match) -> Option<Counted> {
        let key = self.hash(key);
        let now_ns = one.last_ns;
        let mut windows = self.windows();
        if windows.len() >= MAX_KEYS && !windows.contains_key(&key) {
            self.make_room(&mut windows, now_ns);
        }
        let window = windows.entry(key).or_default();
        window.add(one, self.over, self.within_ns)
    }

    fn hash(&self, text: &str) -> u128 {
        let [upper, lower] = &self.state.hashers;
        u128::from(upper.hash_one(text)) << u64::BITS | u128::from(lower.hash_one(text))
    }

    /// Drops the keys whose matches are too long ago; if that is not enough, the half that matched longest ago.
    fn make_room(&self, windows: &mut HashMap<u128, Window>, now_ns: u64) {
        windows.retain(|_, window| now_ns.abs_diff(window.last_ns) <= self.within_ns);
        if windows.len() < MAX_KEYS {
            return;
        }
        let each = windows.iter().map(|(key, window)| (window.last_ns, *key));
        let mut oldest: Vec<_> = each.collect();
        // Many keys can have one time: the key decides between them.
        oldest.sort_unstable();
        oldest.truncate(oldest.len() / 2);
        for (_, key) in &oldest {
            windows.remove(key);
        }
        let forgotten = u64::try_from(oldest.len()).expect("64 bits hold any length");
        self.state.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    /// Returns how many keys were forgotten before their time, because there were too many.
    fn forgotten(&self) -> u64 {
        self.state.forgotten.load(Ordering::Relaxed)
    }

    fn windows(&self) -> MutexGuard<'_, HashMap<u128, Window>> {
        let windows = self.state.windows.lock();
        windows.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the beginning of a value. Several fields are told apart by a zero byte, which is shown as a space.
fn shown(value: &str) -> String {
    beginning(value, MAX_SHOWN).replace('\0', " ")
}

/// Returns at most the first `limit` bytes of a text, in whole characters.
pub(super) fn beginning(text: &str, limit: usize) -> &str {
    let mut ends = (0..=limit.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

impl Window {
    fn add(&mut self, one: Match, over: u64, within_ns: u64) -> Option<Counted> {
        let now_ns = one.last_ns;
        // Events of several threads arrive out of order; a clock that was set makes a pause.
        let since = |then: u64| now_ns.abs_diff(then);
        let has_paused = since(self.last_ns) > within_ns;
        self.last_ns = now_ns;
        if let Some(alerted_ns) = self.alerted_ns {
            if !has_paused && since(alerted_ns) <= MAX_REST_NS {
                return None;
            }
            self.alerted_ns = None;
        }
        self.values
            .retain(|known| since(known.last_ns) <= within_ns);
        let is_same = |known: &&mut Match| one.hash.is_some() && known.hash == one.hash;
        match self.values.iter_mut().find(is_same) {
            Some(known) => *known = one,
            None => self.values.push(one),
        }
        let number = self
            .values
            .iter()
            .map(|known| u64::from(known.weight))
            .sum();
        if number <= over {
            return None;
        }
        self.alerted_ns = Some(now_ns);
        let values = std::mem::take(&mut self.values);
        let longest = values.iter().map(|known| since(known.last_ns)).max();
        Some(Counted {
            number,
            within_ns: longest.unwrap_or_default(),
            values,
        })
    }
}

impl Engine {
    /// Returns whether rules after this one are of no interest once it has matched. A rule that counts never hides
    /// another, as its match may be no alert, nor does one that only adds to a risk.
    pub(super) fn ends_search(&self, entry: &Entry) -> bool {
        let rule = &self.rules[entry.rule];
        self.rule_matching == RuleMatching::First && rule.count.is_none() && !rule.is_silent()
    }

    /// Sends the alert of a rule that matched, and notes its weight as `signal` if it is the heaviest so far: an event adds
    /// to a risk once. Returns false if there is no alert: the rule counts and the count is not reached, or it only adds
    /// to a risk.
    pub(super) fn match_rule(
        &self,
        rule: usize,
        signal: &mut Option<Signal>,
        evaluation: &mut Evaluation<'_, '_, '_>,
    ) -> bool {
        let index = rule;
        let rule = &self.rules[rule];
        let counted = match &rule.count {
            Some(counting) => {
                let counted = match (&counting.sum, *signal) {
                    (None, _) => counting.count(evaluation),
                    (Some(sum), Some(signal)) => counting.count_signal(sum, signal, evaluation),
                    (Some(_), None) => None,
                };
                let Some(counted) = counted else { return false };
                Some((counting, counted))
            }
            None => None,
        };
        rule.matches.fetch_add(1, Ordering::Relaxed);
        if let Some(weight) = rule.weight() {
            let own = Signal {
                rule: index,
                weight,
            };
            *signal = Some(signal.map_or(own, |known| known.heavier(own)));
        }
        if rule.is_silent() {
            return false;
        }
        let mut alert = self.alert(rule, evaluation);
        if let Some((counting, counted)) = counted {
            match &counting.sum {
                Some(sum) => {
                    let tree = sum.tree(evaluation.event().process);
                    add_sum(&mut alert, &counted, &tree, |rule| {
                        Arc::clone(&self.rules[rule].name)
                    });
                }
                None => add_counted(&mut alert, &counted, counting.distinct.is_some()),
            }
        }
        self.sink.emit(alert);
        true
    }

    /// Returns how many keys of rules that count were forgotten before their time, because there were too many.
    pub fn forgotten_counts(&self) -> u64 {
        let counting = self.rules.iter().filter_map(|rule| rule.count.as_ref());
        counting.map(Counting::forgotten).sum()
    }
}

/// Number of bytes of counted values in an alert.
pub(super) const MAX_COUNTED: usize = 1024;

/// Adds to an alert what its rule has counted.
fn add_counted(alert: &mut Alert, counted: &Counted, is_distinct: bool) {
    let number = counted.number;
    let seconds = counted.within_ns / 1_000_000_000;
    alert.message += &format!(" count={number} in {seconds} s");
    let mut add = |name: &str, value| alert.fields.push((name.into(), value));
    add("count.number", AlertValue::Uint(number));
    add("count.within_ns", AlertValue::Uint(counted.within_ns));
    if is_distinct {
        let values: Vec<_> = counted.values.iter().map(|value| &*value.shown).collect();
        let values = values.join(", ");
        let values = beginning(&values, MAX_COUNTED).to_owned();
        alert.message += &format!(": {values}");
        add("count.values", AlertValue::Text(values));
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counting(over: u32, distinct: bool) -> Counting {
        Counting::new(
            over,
            60 * SECOND,
            Template::default(),
            distinct.then(Template::default),
            None,
        )
    }

    fn shown_values(counted: &Counted) -> Vec<&str> {
        let values = counted.values.iter();
        values.map(|value| &*value.shown).collect()
    }

    #[test]
    fn distinct_values_of_one_key_count_once_within_the_time() {
        let counting = counting(2, true);
        let add = |key: &str, value: &str, second| {
            let counted = counting.add(key, Some(value), second * SECOND);
            counted.map(|counted| shown_values(&counted).join(" "))
        };
        assert_eq!(add("a", "id", 0), None);
        assert_eq!(add("a", "ps", 10), None);
        assert_eq!(add("a", "id", 20), None, "it was counted");
        assert_eq!(add("b", "ss", 20), None, "another key");
        assert_eq!(add("a", "ss", 75), None, "the second is too long ago");
        assert_eq!(add("a", "df", 79), Some("id ss df".into()));
    }

    #[test]
    fn each_match_counts_where_nothing_has_to_be_distinct() {
        let counting = counting(2, false);
        let add = |second| counting.add("a", None, second * SECOND);
        assert_eq!(add(0), None);
        assert_eq!(add(1), None);
        let counted = add(2).expect("the third");
        assert_eq!((counted.number, counted.within_ns), (3, 2 * SECOND));
    }

    #[test]
    fn what_goes_on_is_one_alert_an_hour_and_a_pause_ends_it() {
        let counting = counting(1, false);
        let alerts = |from: u64, to: u64| {
            let times = (from..to).step_by(10);
            let alert = |second: &u64| counting.add("a", None, second * SECOND).is_some();
            times.filter(alert).collect::<Vec<_>>()
        };
        assert_eq!(alerts(0, 7000), [10, 3630]);
        assert_eq!(alerts(7061, 7100), [7071], "after a pause");
    }

    #[test]
    fn keys_are_bounded_and_the_forgotten_are_counted() {
        let half = u64::try_from(MAX_KEYS / 2).unwrap();
        let counting = counting(1, false);
        for key in 0..=MAX_KEYS {
            let now = SECOND + u64::try_from(key).unwrap();
            assert_eq!(counting.add(&key.to_string(), None, now), None);
        }
        assert_eq!(counting.windows().len(), MAX_KEYS / 2 + 1);
        assert_eq!(counting.forgotten(), half);
        assert!(
            counting
                .add(&MAX_KEYS.to_string(), None, 2 * SECOND)
                .is_some()
        );
        assert_eq!(
            counting.add("0", None, 2 * SECOND),
            None,
            "it was forgotten"
        );
        // What is too long ago is not forgotten before its time: these fit without it.
        let add_late = |keys: Range<usize>| {
            for key in keys {
                let key = format!("late {key}");
                assert_eq!(counting.add(&key, None, 500 * SECOND), None);
            }
        };
        add_late(0..MAX_KEYS);
        assert_eq!(counting.windows().len(), MAX_KEYS);
        assert_eq!(counting.forgotten(), half);
        // Of keys that have all the same time, half are forgotten too.
        add_late(MAX_KEYS..MAX_KEYS + 1);
        assert_eq!(counting.windows().len(), MAX_KEYS / 2 + 1);
        assert_eq!(counting.forgotten(), 2 * half);
    }

    #[test]
    fn long_values_are_told_apart_and_kept_short() {
        let counting = counting(1, true);
        let long = "x".repeat(100_000);
        assert_eq!(counting.add("a", Some(&format!("{long}1")), SECOND), None);
        assert_eq!(counting.add("a", Some(&format!("{long}1")), SECOND), None);
        let counted = counting
            .add("a", Some(&format!("{long}2")), SECOND)
            .unwrap();
        assert_eq!(counted.number, 2);
        let values = shown_values(&counted);
        assert!(values.iter().all(|value| value.len() == MAX_SHOWN));
        assert_eq!(shown("a\0b"), "a b");
    }

    #[test]
    fn a_clock_that_is_set_back_mutes_nothing() {
        let counting = counting(1, false);
        let add = |second| counting.add("a", None, second * SECOND).is_some();
        assert!(!add(9000) && add(9001) && !add(9002));
        assert!(!add(100), "the first after the clock was set");
        assert!(add(101));
    }
}
