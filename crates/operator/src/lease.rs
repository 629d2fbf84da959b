//! Leadership: one operator of an installation acts, those beside it wait.

use std::time::{Duration, Instant};

use apiserver::{ApiError, Client, Resource};
use jiff::Timestamp;
use kinds::ObjectKey;
use serde_json::{Value, json};

/// Name of the Lease.
const NAME: &str = "tollgate-operator";

/// The lease is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Another operator has it.
    #[error("another operator has become leader: {holder}")]
    Taken {
        /// The other one.
        holder: String,
    },
    /// The API server could not be reached for so long that another operator may have become leader.
    #[error("cannot renew the lease for {}s", silence.as_secs())]
    Expired {
        /// How long.
        silence: Duration,
        /// The last failure.
        #[source]
        source: ApiError,
    },
}

/// A lease that is held.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    client: &'a Client,
    namespace: String,
    identity: String,
    duration: Duration,
    /// When the lease was renewed.
    renewed: Instant,
}

/// What was seen of another holder's lease, and when it was seen first: clocks of machines differ, so a lease has
/// expired when it did not change for its duration.
type Sighting = (Option<Value>, Instant);

impl<'a> Lease<'a> {
    /// Waits until the lease can be held.
    pub(crate) fn acquire(
        client: &'a Client,
        namespace: &str,
        identity: &str,
        duration: Duration,
    ) -> Self {
        let mut lease = Self {
            client,
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            duration,
            renewed: Instant::now(),
        };
        let mut seen = (None, Instant::now());
        loop {
            let begin = Instant::now();
            match lease.try_acquire(&mut seen) {
                Ok(true) => {
                    lease.renewed = begin;
                    return lease;
                }
                // Another one has it, or the server cannot be asked: the same wait.
                Ok(false) | Err(_) => std::thread::sleep(lease.pause()),
            }
        }
    }

    /// How long to wait between two renewals.
    pub(crate) fn pause(&self) -> Duration {
        self.duration / 5
    }

    fn resource() -> Resource {
        Resource::new("coordination.k8s.io", "v1", "leases")
    }

    fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: NAME.to_owned(),
        }
    }

    fn object(&self, version: Option<&Value>) -> Value {
        let mut object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": NAME, "namespace": self.namespace },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.duration.as_secs().max(1),
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = version.clone();
        }
        object
    }

    /// Takes the lease if nobody has it, or its holder did not renew it for its duration.
    fn try_acquire(&self, seen: &mut Sighting) -> Result<bool, ApiError> {
        let current = match self.client.get(&Self::resource(), &self.key()) {
            Err(error) if error.code() == Some(404) => {
                let created = self.client.create(&Self::resource(), &self.object(None));
                return unless_conflict(created);
            }
            current => current?,
        };
        let version = &current["metadata"]["resourceVersion"];
        if seen.0.as_ref() != Some(version) {
            *seen = (Some(version.clone()), Instant::now());
        }
        let holder = current["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default();
        let is_free = holder.is_empty() || holder == self.identity;
        let seconds = current["spec"]["leaseDurationSeconds"]
            .as_u64()
            .unwrap_or_default();
        let has_expired = seen.1.elapsed() > Duration::from_secs(seconds).max(self.duration);
        if !is_free && !has_expired {
            return Ok(false);
        }
        let taken = self
            .client
            .replace(&Self::resource(), &self.object(Some(version)));
        unless_conflict(taken)
    }

    /// Renews the lease.
    ///
    /// # Errors
    ///
    /// If another operator has it, or may have it.
    pub(crate) fn renew(&mut self) -> Result<(), LeaseError> {
        let begin = Instant::now();
        let current = self.client.get(&Self::resource(), &self.key());
        let renewed = current.and_then(|current| {
            let holder = current["spec"]["holderIdentity"]
                .as_str()
                .unwrap_or_default();
            if holder != self.identity {
                return Ok(Err(holder.to_owned()));
            }
            let version = &current["metadata"]["resourceVersion"];
            let object = self.object(Some(version));
            self.client
                .replace(&Self::resource(), &object)
                .map(|_| Ok(()))
        });
        match renewed {
            Ok(Ok(())) => {
                self.renewed = begin;
                Ok(())
            }
            Ok(Err(holder)) => Err(LeaseError::Taken { holder }),
            // Another one may take the lease when it has not changed for its duration: end before.
            Err(source) if self.renewed.elapsed() > self.duration * 2 / 3 => {
                Err(LeaseError::Expired {
                    silence: self.renewed.elapsed(),
                    source,
                })
            }
            Err(_) => Ok(()),
        }
    }
}

/// Gives up the lease if this operator holds it, so that the next one need not wait until it expires.
///
/// # Errors
///
/// If the API server does not answer, or another one was faster.
pub(crate) fn release(client: &Client, namespace: &str, identity: &str) -> Result<(), ApiError> {
    let key = ObjectKey {
        namespace: namespace.to_owned(),
        name: NAME.to_owned(),
    };
    let mut lease = client.get(&Lease::resource(), &key)?;
    if lease["spec"]["holderIdentity"] != identity {
        return Ok(());
    }
    lease["spec"]["holderIdentity"] = json!("");
    client.replace(&Lease::resource(), &lease).map(drop)
}

/// False if another one was faster.
fn unless_conflict(result: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(409) => Ok(false),
        Err(error) => Err(error),
    }
}
