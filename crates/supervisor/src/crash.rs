//! Places between two changes of the shared state, at each of which the process may be killed. Tests end it there.

/// Marks such a place. Does nothing outside of tests.
#[cfg(not(test))]
#[inline]
pub(crate) fn point() {}

#[cfg(test)]
pub(crate) use self::testing::point;

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

    thread_local! {
        /// Number of places that this thread still passes; `None` if it passes all.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// What the thread unwinds with at its last place.
    struct Killed;

    pub(crate) fn point() {
        match LEFT.get() {
            Some(0) => panic_any(Killed),
            left => LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// Runs `work` as a process that is killed when it has passed so many places. Returns `None` if it was.
    pub(crate) fn run_until<T>(places: u64, work: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(places));
        let outcome = catch_unwind(AssertUnwindSafe(work));
        LEFT.set(None);
        outcome
            .map_err(|panic| {
                if !panic.is::<Killed>() {
                    std::panic::resume_unwind(panic);
                }
            })
            .ok()
    }

    #[test]
    fn a_killed_thread_passes_the_places_before() {
        let passed = Cell::new(0);
        let work = || {
            for _ in 0..3 {
                point();
                passed.set(passed.get() + 1);
            }
        };
        assert_eq!(run_until(2, work), None);
        assert_eq!(passed.take(), 2);
        assert_eq!(run_until(3, work), Some(()));
        work();
        assert_eq!(passed.take(), 6);
    }
}
