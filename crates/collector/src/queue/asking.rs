//! Questions to a store that may be away, or be silent.
//!
//! A question to a silent store keeps its thread until the store gives up, long after the caller has. So few are asked at the
//! same time, and the turn of a question belongs to its thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use store::{Fault, StoreError};
use tokio::sync::Semaphore;

use super::report::{Reports, Source};

/// Questions of one kind that are asked at the same time.
pub(super) const TURNS: usize = 2;

/// Time for which a store that is away is not asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the store is away, as its last errors say.
#[derive(Debug)]
pub(super) struct Health {
    away_until: Mutex<Option<Instant>>,
    reports: Arc<Reports>,
}

impl Health {
    pub(super) fn new(reports: Arc<Reports>) -> Self {
        Self {
            away_until: Mutex::default(),
            reports,
        }
    }

    /// Returns true if the store was away a moment ago.
    pub(super) fn is_store_away(&self) -> bool {
        let until = self.away_until.lock();
        let until = until.unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes an error of the store. Only one that says that the store does not answer makes it away: a slow store, or one that
    /// refuses something, is there.
    pub(super) fn note(&self, error: &StoreError) {
        if error.fault() == Fault::Away {
            let until = self.away_until.lock();
            *until.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PAUSE);
        }
    }
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The store is away, or does not answer those who have asked before.
    Away,
    /// No turn was free in time, or the answer did not come in time. It counts when it comes.
    Late,
    /// The store fails.
    Failed(StoreError),
}

/// Begin of each question that is being asked.
type Asked = Arc<Mutex<[Option<Instant>; TURNS]>>;

/// Questions of one kind, with a bound on how many are asked at the same time.
pub(super) struct Questions {
    turns: Arc<Semaphore>,
    asked: Asked,
    health: Arc<Health>,
    /// Time limit for an answer.
    limit: Duration,
}

/// The place of a question among those that are being asked.
struct Place {
    asked: Asked,
    at: Option<usize>,
}

impl Place {
    fn take(asked: &Asked) -> Self {
        let mut places = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let at = places.iter().position(Option::is_none);
        if let Some(at) = at {
            places[at] = Some(Instant::now());
        }
        drop(places);
        let asked = Arc::clone(asked);
        Self { asked, at }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = self.at {
            places[at] = None;
        }
    }
}

impl Questions {
    pub(super) fn new(health: Arc<Health>, limit: Duration) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(TURNS)),
            asked: Arc::default(),
            health,
            limit,
        }
    }

    /// Returns true if nobody gets a turn, because the store has not answered those who have one for longer than the limit.
    fn is_stuck(&self) -> bool {
        let places = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = |began: &Instant| began.elapsed() >= self.limit;
        places
            .iter()
            .all(|began| began.as_ref().is_some_and(is_late))
    }

    /// Runs a question on a thread that may block, and returns its answer if it comes in time.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        if self.health.is_store_away() {
            return Err(Unanswered::Away);
        }
        if self.is_stuck() {
            let silent = "the store does not answer".to_owned();
            self.health.reports.trouble(Source::Ask, silent);
            return Err(Unanswered::Away);
        }
        match tokio::time::timeout(self.limit, self.answer(question)).await {
            Ok(answer) => answer.map_err(Unanswered::Failed),
            Err(_elapsed) => Err(Unanswered::Late),
        }
    }

    async fn answer<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_closed| StoreError::Stopped)?;
        let place = Place::take(&self.asked);
        let health = Arc::clone(&self.health);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = question();
            match &answer {
                Ok(_) => health.reports.over(Source::Ask),
                Err(error) => {
                    health.note(error);
                    let text = format!("cannot ask the store: {}", super::explain(error));
                    health.reports.trouble(Source::Ask, text);
                }
            }
            // In this order: whoever has a turn finds a place.
            drop(place);
            drop(turn);
            answer
        });
        asked.await.unwrap_or(Err(StoreError::Stopped))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    pub(in super::super) fn questions(limit: Duration) -> Questions {
        let reports = Arc::new(Reports::new(|_| {}));
        Questions::new(Arc::new(Health::new(reports)), limit)
    }

    pub(in super::super) fn on_runtime<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(TURNS + 1)
            .enable_time()
            .build();
        runtime.expect("threads").block_on(test)
    }

    #[test]
    fn a_silent_store_keeps_as_many_threads_as_there_are_turns() {
        on_runtime(async {
            let questions = questions(Duration::from_millis(100));
            let (silence, silent) = channel::<()>();
            let silent = Arc::new(Mutex::new(silent));
            let ask = || {
                let silent = Arc::clone(&silent);
                questions.ask(move || {
                    // It ends with the test.
                    let _ = silent.lock().expect("no panic").recv();
                    Ok(1)
                })
            };
            for _ in 0..TURNS {
                assert!(matches!(ask().await, Err(Unanswered::Late)));
            }
            let began = Instant::now();
            for _ in 0..20 {
                assert!(matches!(ask().await, Err(Unanswered::Away)));
            }
            assert!(began.elapsed() < Duration::from_millis(100), "nobody waits");
            let other = tokio::task::spawn_blocking(|| 7);
            let other = tokio::time::timeout(Duration::from_secs(5), other).await;
            assert_eq!(other.expect("a thread is left").expect("no panic"), 7);
            assert!(!questions.health.is_store_away(), "slow is not away");
            drop(silence);
            let mut answer = ask().await;
            while answer.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                answer = ask().await;
            }
            assert_eq!(answer.expect("it answers again"), 1);
        });
    }

    #[test]
    fn only_a_store_that_does_not_answer_is_away() {
        on_runtime(async {
            let questions = questions(Duration::from_secs(5));
            let failed = questions.ask(|| Err::<(), _>(StoreError::Busy)).await;
            assert!(matches!(failed, Err(Unanswered::Failed(StoreError::Busy))));
            assert_eq!(questions.ask(|| Ok(3)).await.expect("it is asked"), 3);
            let silent = || Err::<(), _>(StoreError::Silent { seconds: 1 });
            assert!(matches!(
                questions.ask(silent).await,
                Err(Unanswered::Failed(_))
            ));
            assert!(questions.health.is_store_away());
            assert!(matches!(
                questions.ask(|| Ok(3)).await,
                Err(Unanswered::Away)
            ));
        });
    }
}
