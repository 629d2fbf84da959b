//! What the queue says about itself: each problem once, until its source works again.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Different texts of one source that are said until it works again.
const SAID: usize = 8;

/// What a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The connection to NATS, and what is made there.
    Link,
    /// Taking batches from the stream, and confirming them.
    Take,
    /// Writing to the store.
    Write,
    /// Batches that the store refuses, while it stores others.
    Batch,
    /// The stream of batches that are set aside.
    Aside,
    /// Questions to the store.
    Ask,
    /// Putting batches into the stream.
    Put,
}

/// Number of the sources.
const SOURCES: usize = Source::Put as usize + 1;

/// What was said.
#[derive(Debug, Default)]
struct Said {
    troubles: [Vec<String>; SOURCES],
    notices: Vec<String>,
}

/// Says what is wrong.
#[derive(Debug)]
pub(super) struct Reports {
    say: fn(&str),
    said: Mutex<Said>,
}

impl Reports {
    pub(super) fn new(say: fn(&str)) -> Self {
        Self {
            say,
            said: Mutex::default(),
        }
    }

    /// Says what is wrong, once until it is over.
    pub(super) fn trouble(&self, source: Source, text: String) {
        add(&mut self.said().troubles[source as usize], text, self.say);
    }

    /// Says what does not end by itself, once.
    pub(super) fn notice(&self, text: String) {
        add(&mut self.said().notices, text, self.say);
    }

    /// Says each time what happened.
    pub(super) fn event(&self, text: &str) {
        (self.say)(&format!("warning: the queue: {text}"));
    }

    /// Notes that a source works, and says so if nothing else is wrong any more.
    pub(super) fn over(&self, source: Source) {
        let mut said = self.said();
        let troubles = &mut said.troubles[source as usize];
        if troubles.is_empty() {
            return;
        }
        troubles.clear();
        if said.troubles.iter().all(Vec::is_empty) {
            (self.say)("the queue works");
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says a text that was not said yet.
fn add(said: &mut Vec<String>, text: String, say: fn(&str)) {
    if said.len() < SAID && !said.contains(&text) {
        say(&format!("warning: the queue: {text}"));
        said.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_said_once_until_its_source_works() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let say = |text: &str| SAID.lock().expect("no panic").push(text.to_owned());
        let reports = Reports::new(say);
        reports.over(Source::Write);
        for _ in 0..3 {
            reports.trouble(Source::Write, "a".to_owned());
            reports.trouble(Source::Put, "b".to_owned());
            reports.trouble(Source::Write, "c".to_owned());
            reports.over(Source::Take);
            reports.notice("d".to_owned());
        }
        reports.over(Source::Put);
        reports.over(Source::Write);
        reports.over(Source::Write);
        reports.trouble(Source::Write, "a".to_owned());
        let said = SAID.lock().expect("no panic");
        let warning = |text| format!("warning: the queue: {text}");
        let mut expected: Vec<String> = ["a", "b", "c", "d"].map(warning).into();
        expected.extend(["the queue works".to_owned(), warning("a")]);
        assert_eq!(*said, expected);
    }
}
