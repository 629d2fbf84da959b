//! Credentials that the store has confirmed, so that agents can go on while it is away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use store::{Credential, Store, StoreError};

use super::KEPT;
use super::asking::{Health, Questions, Unanswered};
use super::bounded::Bounded;
use crate::answer::Refusal;

/// Time for which a confirmed credential is accepted without asking again: the bound on how long a revoked one still works.
const FRESH: Duration = Duration::from_secs(5);

/// Time limit for an answer of the store.
const ANSWER: Duration = Duration::from_secs(2);

/// A credential, and the number up to which the records of its agent are stored.
type Answer = (Credential, Option<u64>);

/// What the store has said by the hash of a secret. `None` is a credential that was confirmed once and is not in force any more.
type Known = Bounded<[u8; 32], Option<Credential>>;

/// Confirmed credentials.
pub(super) struct KnownCredentials {
    known: Arc<Mutex<Known>>,
    questions: Questions,
    grace: Duration,
}

impl KnownCredentials {
    pub(super) fn new(health: Arc<Health>, grace: Duration) -> Self {
        Self {
            known: Arc::new(Mutex::new(Bounded::new(KEPT))),
            questions: Questions::new(health, ANSWER),
            grace,
        }
    }

    /// Returns whom a secret with this hash belongs to and, of an agent whom the store was asked about just now, the number up
    /// to which its records are stored.
    pub(super) async fn credential(
        &self,
        hash: [u8; 32],
        question: impl FnOnce() -> Result<Option<Answer>, StoreError> + Send + 'static,
    ) -> Result<Option<Answer>, Refusal> {
        let without_number = |known: Option<Credential>| known.map(|it| (it, None));
        if let Some(known @ Some(_)) = since(&self.known, &hash, FRESH) {
            return Ok(without_number(known));
        }
        let known = Arc::clone(&self.known);
        let asked = self.questions.ask(move || {
            let asked = Instant::now();
            let answer = question()?;
            // Here, so that an answer counts also if nobody waits for it any more.
            let credential = answer.as_ref().map(|(credential, _)| credential);
            keep(&known, hash, asked, credential);
            Ok(answer)
        });
        match asked.await {
            Ok(answer) => Ok(answer),
            Err(why) => match since(&self.known, &hash, self.grace) {
                Some(known) => Ok(without_number(known)),
                None => Err(refusal(why)),
            },
        }
    }
}

fn refusal(why: Unanswered) -> Refusal {
    match why {
        Unanswered::Failed(error) => error.into(),
        Unanswered::Away => StoreError::Stopped.into(),
        Unanswered::Late => StoreError::Busy.into(),
    }
}

/// Returns what the store has said about a hash within `limit`.
fn since(known: &Mutex<Known>, hash: &[u8; 32], limit: Duration) -> Option<Option<Credential>> {
    let known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let (asked, credential) = known.get(hash)?;
    (asked.elapsed() < limit).then(|| credential.clone())
}

/// Keeps what the store has said when it was asked at this time.
fn keep(known: &Mutex<Known>, hash: [u8; 32], asked: Instant, credential: Option<&Credential>) {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let before = known.get(&hash).map(|(asked, _)| asked);
    let is_newer = before.is_none_or(|before| before <= asked);
    // Of a secret that never was in force nothing is kept: anybody can make them up.
    if is_newer && (credential.is_some() || before.is_some()) {
        known.insert(hash, asked, credential.cloned());
    }
}

/// Asks the store.
pub(super) fn ask(store: &dyn Store, hash: &[u8; 32]) -> Result<Option<Answer>, StoreError> {
    let Some(credential) = store.credential(hash)? else {
        return Ok(None);
    };
    let last = match &credential {
        Credential::Agent { id, .. } => Some(store.acknowledged(*id)?),
        Credential::Token { .. } => None,
    };
    Ok(Some((credential, last)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use store::AgentId;

    use super::super::asking::tests::{on_runtime, questions};
    use super::*;

    const HASH: [u8; 32] = [1; 32];

    fn known(grace: Duration) -> KnownCredentials {
        KnownCredentials {
            known: Arc::new(Mutex::new(Bounded::new(10))),
            questions: questions(Duration::from_millis(100)),
            grace,
        }
    }

    fn agent() -> Credential {
        Credential::Agent {
            id: AgentId(3),
            host: "a".to_owned(),
            certificate: None,
        }
    }

    /// Time at which an answer that is this old was asked for.
    fn ago(seconds: u64) -> Instant {
        let time = Instant::now().checked_sub(Duration::from_secs(seconds));
        time.expect("the machine runs for longer")
    }

    fn away() -> Result<Option<Answer>, StoreError> {
        Err(StoreError::Silent { seconds: 1 })
    }

    #[test]
    fn a_confirmed_credential_holds_while_the_store_is_away_until_the_grace_ends() {
        on_runtime(async {
            let known = known(Duration::from_secs(30));
            keep(&known.known, HASH, ago(29), Some(&agent()));
            let answer = known.credential(HASH, away).await.expect("it is known");
            assert_eq!(answer, Some((agent(), None)));
            let other = known.credential([2; 32], away).await;
            assert!(other.is_err(), "the store never confirmed it");
            keep(&known.known, [3; 32], ago(31), Some(&agent()));
            let late = known.credential([3; 32], away).await;
            assert!(late.is_err(), "its grace has ended");
        });
    }

    #[test]
    fn a_credential_that_was_revoked_stays_refused_while_the_store_is_away() {
        on_runtime(async {
            let known = known(Duration::from_secs(30));
            keep(&known.known, HASH, ago(9), Some(&agent()));
            let answer = known.credential(HASH, || Ok(None)).await;
            assert_eq!(answer.expect("the store answers"), None);
            let answer = known.credential(HASH, away).await;
            assert_eq!(answer.expect("the store has answered"), None);
            // An answer to an earlier question comes later.
            keep(&known.known, HASH, ago(8), Some(&agent()));
            let answer = known.credential(HASH, away).await;
            assert_eq!(answer.expect("the store has answered"), None);
        });
    }

    #[test]
    fn an_answer_that_comes_late_counts() {
        on_runtime(async {
            let known = known(Duration::from_secs(30));
            keep(&known.known, HASH, ago(9), Some(&agent()));
            let (answer, answered) = channel::<()>();
            let slow = move || {
                // It ends with the sender.
                let _ = answered.recv();
                Ok(None)
            };
            let before = known.credential(HASH, slow).await;
            assert!(before.expect("its grace holds").is_some());
            drop(answer);
            let is_refused = async || {
                let answer = known.credential(HASH, || Err(StoreError::Busy)).await;
                answer.expect("it is known").is_none()
            };
            while !is_refused().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    #[test]
    fn made_up_secrets_are_not_kept() {
        on_runtime(async {
            let known = known(Duration::from_secs(30));
            keep(&known.known, HASH, Instant::now(), Some(&agent()));
            for n in 2..100 {
                let answer = known.credential([n; 32], || Ok(None)).await;
                assert_eq!(answer.expect("the store answers"), None);
            }
            let answer = known.credential(HASH, away).await.expect("it is known");
            assert_eq!(answer, Some((agent(), None)));
        });
    }
}
