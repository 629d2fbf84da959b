//! Work that blocks for a person who logs in, a few pieces at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use crate::answer::Refusal;

/// Time limit for a turn.
const WAIT: Duration = Duration::from_secs(20);

/// Turns to run work on a thread that may block. Others get memory, threads and the store meanwhile.
pub(super) struct Turns {
    free: Arc<Semaphore>,
    wait: Duration,
}

impl Turns {
    /// Makes so many turns.
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            wait: WAIT,
        }
    }

    /// Runs `work` when it is its turn. The work goes on when the client goes, so the turn belongs to it and not to the
    /// request.
    ///
    /// # Errors
    ///
    /// If no turn is free within 20 s, or if `work` panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let crowded = || {
            let message = "too many people log in at the same time; try again";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
        };
        let turn = tokio::time::timeout(self.wait, Arc::clone(&self.free).acquire_owned()).await;
        let turn = turn.map_err(|_late| crowded())?;
        let turn = turn.map_err(|_closed| crowded())?;
        let worked = tokio::task::spawn_blocking(move || {
            let worked = work();
            drop(turn);
            worked
        });
        worked.await.map_err(|_panic| {
            let message = "the collector has a defect";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn on_runtime<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build();
        runtime.expect("threads").block_on(test)
    }

    #[test]
    fn a_client_that_goes_frees_no_turn_of_its_work() {
        on_runtime(async {
            let turns = Arc::new(Turns::new(2));
            let (began, has_begun) = channel();
            let (end, ended) = channel::<()>();
            let request = tokio::spawn({
                let turns = Arc::clone(&turns);
                async move {
                    let work = turns.run(move || {
                        began.send(()).expect("the test waits");
                        ended.recv().expect("the test ends it");
                    });
                    work.await.is_ok()
                }
            });
            has_begun.recv().expect("it begins");
            request.abort();
            assert!(request.await.expect_err("it has gone").is_cancelled());
            assert_eq!(turns.free.available_permits(), 1);
            end.send(()).expect("it waits");
            drop(turns.free.acquire_many(2).await.expect("all turns"));
        });
    }

    #[test]
    fn who_gets_no_turn_in_time_is_told_to_try_again() {
        let turns = Turns {
            wait: Duration::from_millis(1),
            ..Turns::new(0)
        };
        let error = on_runtime(turns.run(|| ())).err();
        let status = error.map(|error| error.status);
        assert_eq!(status, Some(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn work_that_panics_gives_its_turn_back() {
        let turns = Turns::new(1);
        let error = on_runtime(turns.run(|| panic!("for the test"))).err();
        let status = error.map(|error| error.status);
        assert_eq!(status, Some(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(on_runtime(turns.run(|| ())).is_ok());
    }
}
