//! The webhook of clusters without MutatingAdmissionPolicy: marks of workloads, and whether policies are valid.
//!
//! Every operator of an installation serves it, whoever is the leader. It keeps of each policy what marks need.

mod certificates;
mod keeper;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use apiserver::{Change, Client, Resource, watch};
use cluster::{Admission, PolicyId, Review};
use kinds::Scope;
use kinds::crd::Definition;
use kinds::validate::Installation;
use serve::{PostAnswer, PostLimits, PostListener, ReplaceableCertificate, ServeError, WebServer};

use crate::manifests::{MUTATE, VALIDATE, WEBHOOK};
use crate::metrics::Metrics;
use certificates::Times;
use keeper::{Keeper, KeeperError};

/// A question has an object, and the one before, each of at most 1.5 MB in etcd and more as JSON.
const LIMITS: PostLimits = PostLimits {
    body: 8 << 20,
    all: 16 << 20,
    at_once: 4,
};

/// Settings of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Address to listen at.
    pub listen: SocketAddr,
    /// Names in certificates besides that of the Service.
    pub names: Vec<String>,
    /// How long a certificate is valid.
    pub lifetime: Duration,
    /// How long all API servers and operators have to learn of a change of certificates.
    pub settle: Duration,
    /// Time between two looks at the certificates.
    pub check: Duration,
    /// How long what is known of policies may be old, because the API server does not answer.
    pub stale: Duration,
}

impl WebhookSettings {
    /// The usual times.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            names: Vec::new(),
            lifetime: Duration::from_secs(90 * 24 * 3600),
            settle: Duration::from_secs(300),
            check: Duration::from_secs(20),
            stale: Duration::from_secs(60),
        }
    }
}

/// A webhook cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The server cannot start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A thread cannot be started, or the system does not tell the address.
    #[error("cannot start the webhook")]
    Start(#[source] io::Error),
}

/// A running webhook. Its threads end with the process.
#[derive(Debug)]
pub struct Webhook {
    /// Where it listens.
    pub address: SocketAddr,
    _server: WebServer,
}

/// The policies, and which kinds of them are all known.
struct Known {
    admission: Admission,
    listed: BTreeSet<Scope>,
    /// Since when kinds of them cannot be asked for.
    failing: BTreeMap<Scope, Instant>,
    stale: Duration,
    /// The configurations lead to another installation.
    is_of_other: bool,
}

impl Known {
    /// For a short time old marks are better than none. After that, an object without its marks would run without its policies.
    fn is_stale(&self) -> bool {
        let mut since = self.failing.values();
        since.any(|since| since.elapsed() > self.stale)
    }

    fn is_complete(&self) -> bool {
        self.listed.len() == 2 && !self.is_stale()
    }
}

/// Starts the webhook of an installation. `say` gets messages for people.
///
/// # Errors
///
/// If the address cannot be used, or there are no threads.
pub(crate) fn start(
    client: &Client,
    namespace: &str,
    settings: WebhookSettings,
    metrics: &Arc<Metrics>,
    say: impl Fn(String) + Send + 'static,
) -> Result<Webhook, WebhookError> {
    let known = Arc::new(RwLock::new(Known {
        admission: Admission::new(namespace),
        listed: BTreeSet::new(),
        failing: BTreeMap::new(),
        stale: settings.stale,
        is_of_other: false,
    }));
    let certificate = Arc::new(ReplaceableCertificate::default());
    let listener = PostListener::bind(settings.listen, Arc::clone(&certificate))?;
    let address = listener.address().map_err(WebhookError::Start)?;
    for scope in [Scope::Namespace, Scope::Cluster] {
        let (client, known) = (client.clone(), Arc::clone(&known));
        spawn("webhook-policies", move || follow(&client, scope, &known))?;
    }
    let names = names_of(namespace, settings.names);
    let mut keeper = Keeper {
        client: client.clone(),
        namespace: namespace.to_owned(),
        names,
        times: Times {
            lifetime: settings.lifetime,
            settle: settings.settle,
        },
        presented: None,
    };
    let (of_leader, check) = (Arc::clone(metrics), settings.check);
    let of_keeper = Arc::clone(&known);
    spawn("webhook-certificates", move || {
        keep(
            &mut keeper,
            &certificate,
            &of_keeper,
            &of_leader,
            check,
            say,
        );
    })?;
    let (namespace, metrics) = (namespace.to_owned(), Arc::clone(metrics));
    let ready = Arc::clone(&known);
    let is_ready = move || {
        let known = ready.read().unwrap_or_else(PoisonError::into_inner);
        known.is_complete() && !known.is_of_other
    };
    let server = listener.start(LIMITS, is_ready, move |path, body| {
        answer(&namespace, &known, &metrics, path, body)
    })?;
    Ok(Webhook {
        address,
        _server: server,
    })
}

/// The names by which API servers find the webhook: those of its Service, and more.
fn names_of(namespace: &str, more: Vec<String>) -> Vec<String> {
    let service = format!("{WEBHOOK}.{namespace}.svc");
    let mut names = vec![service.clone(), format!("{service}.cluster.local")];
    names.extend(more);
    names
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), WebhookError> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(work).map(drop).map_err(WebhookError::Start)
}

/// Looks at the certificates, and at how old the policies are, again and again. Each problem is said once.
fn keep(
    keeper: &mut Keeper,
    certificate: &ReplaceableCertificate,
    known: &RwLock<Known>,
    metrics: &Metrics,
    check: Duration,
    say: impl Fn(String),
) {
    let (mut said, mut was_stale) = (String::new(), false);
    loop {
        let is_leader = metrics.leader.load(Ordering::Relaxed) == 1;
        let round = keeper.round(is_leader, certificate);
        let is_stale = {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            known.is_of_other = matches!(round, Err(KeeperError::OfOther { .. }));
            known.is_stale()
        };
        metrics.stale.store(is_stale.into(), Ordering::Relaxed);
        if is_stale && !was_stale {
            say("cannot answer the webhook's questions: the API server has not answered about policies for too long. \
                 help: objects are refused until it does; see the messages about it"
                .to_owned());
        }
        was_stale = is_stale;
        let problem = match round {
            Ok(()) => String::new(),
            Err(error) => crate::error_text::chain_of(&error),
        };
        if problem != said && !problem.is_empty() {
            Metrics::add(&metrics.errors);
            say(problem.clone());
        }
        said = problem;
        thread::sleep(check);
    }
}

/// Follows the policies of a scope.
fn follow(client: &Client, scope: Scope, known: &RwLock<Known>) {
    let definition = Definition::of_kind(scope.kind()).expect("the kind is in the table");
    watch(client, &Resource::of(definition), |change| {
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        match &change {
            Change::Failed(_) => drop(known.failing.entry(scope).or_insert_with(Instant::now)),
            _ => drop(known.failing.remove(&scope)),
        }
        match change {
            Change::Applied(policy) => known.admission.apply(scope, &policy),
            Change::Deleted(key) => known.admission.remove(&PolicyId { scope, key }),
            Change::Listed => drop(known.listed.insert(scope)),
            // What is known stays, for a while.
            Change::Failed(_) => {}
        }
        ControlFlow::Continue(())
    });
}

fn answer(
    namespace: &str,
    known: &RwLock<Known>,
    metrics: &Metrics,
    path: &str,
    body: &[u8],
) -> PostAnswer {
    let plain = |status: u16, text: String| PostAnswer {
        status,
        content_type: "text/plain",
        content: text.into_bytes(),
    };
    if path != MUTATE && path != VALIDATE {
        return plain(404, format!("there are {MUTATE} and {VALIDATE}\n"));
    }
    Metrics::add(&metrics.reviews);
    let review = match Review::read(body) {
        Ok(review) => review,
        Err(error) => return plain(400, format!("{error}\n")),
    };
    let decision = if path == VALIDATE {
        review.validity(Installation {
            namespace,
            // Whether it is enabled is in the status of a policy, as without a webhook.
            behavior_modeling: true,
        })
    } else {
        let known = known.read().unwrap_or_else(PoisonError::into_inner);
        if !known.is_complete() {
            // No answer about the object: what follows is what the configuration says of failures.
            return plain(
                503,
                "the policies are not known, or not as they are now\n".to_owned(),
            );
        }
        review.marks(&known.admission)
    };
    metrics.decided(&decision);
    PostAnswer {
        status: 200,
        content_type: "application/json",
        content: review.answer(&decision).to_string().into_bytes(),
    }
}
