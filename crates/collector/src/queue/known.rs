//! Credentials that the store has confirmed, so that agents can go on while it is away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use store::{Credential, Store, StoreError};

use crate::answer::Refusal;

/// Time for which a confirmed credential is accepted without asking again: the bound on how long a revoked one still works.
const FRESH: Duration = Duration::from_secs(5);

/// Time limit for an answer of the store.
const ANSWER: Duration = Duration::from_secs(2);

/// Time for which a store that does not answer is not asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Credentials that are kept. Beyond that those that are not fresh are forgotten.
const KEPT: usize = 50_000;

/// A credential, and the number up to which the records of its agent are stored.
type Answer = (Credential, Option<u64>);

/// A confirmed credential.
struct Known {
    credential: Credential,
    /// When the store was asked.
    asked: Instant,
}

/// Confirmed credentials by the hash of their secret.
pub(super) struct KnownCredentials {
    known: Mutex<HashMap<[u8; 32], Known>>,
    away_until: Mutex<Option<Instant>>,
    grace: Duration,
}

impl KnownCredentials {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            known: Mutex::default(),
            away_until: Mutex::default(),
            grace,
        }
    }

    /// Returns true if the store did not answer a moment ago.
    pub(super) fn is_store_away(&self) -> bool {
        let until = self
            .away_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes that the store does not answer.
    pub(super) fn store_is_away(&self) {
        let mut until = self
            .away_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *until = Some(Instant::now() + PAUSE);
    }

    /// Returns whom a secret with this hash belongs to and, of an agent whom the store was asked about just now, the number up
    /// to which its records are stored.
    pub(super) async fn credential(
        &self,
        store: &Arc<dyn Store>,
        hash: [u8; 32],
    ) -> Result<Option<Answer>, Refusal> {
        let now = Instant::now();
        if let Some(credential) = self.since(&hash, now, FRESH) {
            return Ok(Some((credential, None)));
        }
        if !self.is_store_away() {
            match ask(store, hash).await {
                Some(answer) => {
                    self.keep(hash, now, answer.as_ref().map(|(credential, _)| credential));
                    return Ok(answer);
                }
                None => self.store_is_away(),
            }
        }
        let known = self.since(&hash, now, self.grace);
        let known = known.map(|credential| Some((credential, None)));
        known.ok_or_else(|| StoreError::Stopped.into())
    }

    /// Returns a credential that was confirmed within `limit`.
    fn since(&self, hash: &[u8; 32], now: Instant, limit: Duration) -> Option<Credential> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(hash)?;
        let age = now.saturating_duration_since(found.asked);
        (age < limit).then(|| found.credential.clone())
    }

    fn keep(&self, hash: [u8; 32], asked: Instant, answer: Option<&Credential>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(credential) = answer else {
            known.remove(&hash);
            return;
        };
        if known.len() >= KEPT {
            known.retain(|_, known| known.asked.elapsed() < FRESH);
        }
        // With so many fresh ones, another one is asked for with each request.
        if known.len() < KEPT {
            let credential = credential.clone();
            known.insert(hash, Known { credential, asked });
        }
    }
}

/// Asks the store. `None` if it does not answer.
async fn ask(store: &Arc<dyn Store>, hash: [u8; 32]) -> Option<Option<Answer>> {
    let store = Arc::clone(store);
    let asked = tokio::task::spawn_blocking(move || {
        let Some(credential) = store.credential(&hash)? else {
            return Ok::<_, StoreError>(None);
        };
        let last = match &credential {
            Credential::Agent { id, .. } => Some(store.acknowledged(*id)?),
            Credential::Token { .. } => None,
        };
        Ok(Some((credential, last)))
    });
    let answer = tokio::time::timeout(ANSWER, asked).await;
    answer.ok()?.ok()?.ok()
}
