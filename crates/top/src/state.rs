//! What the user chose: tab, order, filter, selection.

use crate::alerts::AlertRow;
use crate::tally::{Caller, Costs, Tally};

/// A table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    /// One row a process.
    #[default]
    Processes,
    /// One row a system call.
    Calls,
    /// One row for alike alerts.
    Alerts,
}

/// The order of processes and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Time of evaluation in the last second, then in total.
    #[default]
    Cost,
    /// Number of events.
    Events,
    /// Number of alerts.
    Alerts,
    /// Name.
    Name,
}

impl Sort {
    /// The word for the status line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Events => "events",
            Self::Alerts => "alerts",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Cost => Self::Events,
            Self::Events => Self::Alerts,
            Self::Alerts => Self::Name,
            Self::Name => Self::Cost,
        }
    }
}

/// A key that has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Deletes the last character of the filter.
    Backspace,
    /// Ends typing.
    Enter,
    /// Ends typing and removes the filter.
    Escape,
    /// The next tab.
    Tab,
    /// Moves the selection by so many rows.
    Move(i32),
    /// Ctrl-C.
    Interrupt,
}

/// Longest filter, in characters.
const LONGEST_FILTER: usize = 60;

/// What the user chose.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The table that is shown.
    pub tab: Tab,
    /// Its order.
    pub sort: Sort,
    /// Rows without this text are hidden.
    pub filter: String,
    /// Set while keys go to the filter.
    pub is_typing: bool,
    /// Number of the selected row.
    pub selected: usize,
    /// Set if the user asked for the end.
    pub is_ended: bool,
}

impl State {
    /// Follows a key.
    pub fn press(&mut self, key: Key) {
        match (key, self.is_typing) {
            (Key::Interrupt, _) => self.is_ended = true,
            (Key::Char(c), true) if self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(c);
                self.selected = 0;
            }
            (Key::Char(_), true) => {}
            (Key::Backspace, true) => {
                self.filter.pop();
                self.selected = 0;
            }
            (Key::Enter, _) => self.is_typing = false,
            (Key::Escape, _) => {
                self.is_typing = false;
                self.filter.clear();
                self.selected = 0;
            }
            (Key::Tab, _) => self.show(match self.tab {
                Tab::Processes => Tab::Calls,
                Tab::Calls => Tab::Alerts,
                Tab::Alerts => Tab::Processes,
            }),
            (Key::Move(rows), _) => {
                let step = usize::try_from(rows.unsigned_abs()).unwrap_or(usize::MAX);
                self.selected = match rows < 0 {
                    true => self.selected.saturating_sub(step),
                    false => self.selected.saturating_add(step),
                };
            }
            (Key::Char(c), false) => self.command(c),
            (Key::Backspace, false) => {}
        }
    }

    fn command(&mut self, key: char) {
        match key {
            '/' => self.is_typing = true,
            '1' => self.show(Tab::Processes),
            '2' => self.show(Tab::Calls),
            '3' => self.show(Tab::Alerts),
            's' => self.sort = self.sort.next(),
            'q' => self.is_ended = true,
            _ => {}
        }
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.selected = 0;
    }

    /// Keeps the selection within `rows`, and returns it.
    pub fn clamp(&mut self, rows: usize) -> Option<usize> {
        self.selected = self.selected.min(rows.saturating_sub(1));
        (rows > 0).then_some(self.selected)
    }

    fn passes(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// Returns the processes to show, in order.
    #[must_use]
    pub fn processes<'t>(&self, tally: &'t Tally) -> Vec<&'t Caller> {
        let passes = |caller: &&Caller| {
            self.passes(&format!("{} {} {}", caller.pid, caller.name, caller.parent))
        };
        let mut rows: Vec<_> = tally.processes().filter(passes).collect();
        rows.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Cost => by_cost(&a.costs, &b.costs),
                Sort::Events => by_events(&a.costs, &b.costs),
                Sort::Alerts => b.alerts.cmp(&a.alerts),
                Sort::Name => a.name.cmp(&b.name),
            };
            order.then_with(|| a.pid.cmp(&b.pid))
        });
        rows
    }

    /// Returns the calls to show, in order.
    #[must_use]
    pub fn calls<'t>(&self, tally: &'t Tally) -> Vec<(&'static str, &'t Costs)> {
        let mut rows: Vec<_> = tally.calls().filter(|(call, _)| self.passes(call)).collect();
        rows.sort_by(|(a, costs), (b, others)| {
            let order = match self.sort {
                Sort::Cost => by_cost(costs, others),
                Sort::Events | Sort::Alerts => by_events(costs, others),
                Sort::Name => std::cmp::Ordering::Equal,
            };
            order.then_with(|| a.cmp(b))
        });
        rows
    }

    /// Returns the alerts to show, the latest first.
    #[must_use]
    pub fn alerts<'t>(&self, tally: &'t Tally) -> Vec<&'t AlertRow> {
        let passes = |row: &&AlertRow| {
            self.passes(&format!("{} {} {} {}", row.priority, row.rule, row.process, row.message))
        };
        tally.alerts.latest().filter(passes).collect()
    }
}

fn by_cost(a: &Costs, b: &Costs) -> std::cmp::Ordering {
    let rates = b.ns_rate.total_cmp(&a.ns_rate);
    rates.then_with(|| b.ns.cmp(&a.ns))
}

fn by_events(a: &Costs, b: &Costs) -> std::cmp::Ordering {
    let rates = b.events_rate.total_cmp(&a.events_rate);
    rates.then_with(|| b.events.cmp(&a.events))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::tally::Seen;

    fn tally() -> Tally {
        let now = Instant::now();
        let mut tally = Tally::new(now);
        for (pid, name, call, ns) in
            [(1, "bash", "openat", 10), (2, "curl", "connect", 900), (3, "cat", "openat", 40)]
        {
            let seen = Seen { pid, call, ns, is_new: true };
            tally.count(seen, now, || (name.to_owned(), "sh".to_owned()));
        }
        let seen = Seen { pid: 1, call: "openat", ns: 10, is_new: true };
        tally.count(seen, now, || unreachable!("known"));
        tally
    }

    fn names(state: &State) -> Vec<String> {
        let tally = tally();
        state.processes(&tally).iter().map(|caller| caller.name.clone()).collect()
    }

    #[test]
    fn rows_are_sorted_as_chosen() {
        let mut state = State::default();
        assert_eq!(names(&state), ["curl", "cat", "bash"]);
        state.press(Key::Char('s'));
        assert_eq!(names(&state)[0], "bash", "it has two events");
        state.press(Key::Char('s'));
        state.press(Key::Char('s'));
        assert_eq!(names(&state), ["bash", "cat", "curl"]);
    }

    #[test]
    fn the_filter_follows_each_key() {
        let mut state = State::default();
        state.press(Key::Char('/'));
        state.press(Key::Char('C'));
        assert_eq!(names(&state), ["curl", "cat"]);
        state.press(Key::Char('a'));
        assert_eq!(names(&state), ["cat"]);
        // `q` is a letter here.
        state.press(Key::Char('q'));
        assert!(names(&state).is_empty() && !state.is_ended);
        state.press(Key::Backspace);
        state.press(Key::Enter);
        assert_eq!(names(&state), ["cat"], "Enter keeps the filter");
        state.press(Key::Escape);
        assert_eq!(names(&state).len(), 3);
        state.press(Key::Char('q'));
        assert!(state.is_ended);
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut state = State::default();
        state.press(Key::Move(-1));
        assert_eq!(state.clamp(3), Some(0));
        state.press(Key::Move(10));
        assert_eq!(state.clamp(3), Some(2));
        assert_eq!(state.clamp(0), None);
    }
}
