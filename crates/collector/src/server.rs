//! The running collector.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hyper::body::Incoming;
use outputs::CaptureOnAlert;
use serve::{
    Address, ConnectionDeadlines, ConnectionLimits, HttpListener, ServeError, ServerFiles,
};
use store::{Retention, Store, StoreError};
use tokio::runtime::Runtime;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::answer::Refusal;
use crate::metrics::Metrics;
use crate::oidc::{OidcError, OidcSettings};
use crate::page::{BrowseCapture, Door, ExplainAlert, OidcDoor, ProposeException, Tails};
use crate::queue::{self, Queue, QueueError, QueueSettings};
use crate::routes::{Paths, Routes};
use crate::{answer, api, body, bundles, captures, ingest, page};

/// Connections in all, and of one address: many agents may be behind one.
const LIMITS: ConnectionLimits = ConnectionLimits {
    all: 12_000,
    of_one_peer: 12_000,
};

/// An agent shows a sign of life every 15 seconds on the connection that it keeps.
const DEADLINES: ConnectionDeadlines = ConnectionDeadlines {
    handshake: Duration::from_secs(10),
    request: Duration::from_secs(60),
    write: Duration::from_secs(20),
    age: Duration::from_secs(24 * 3600),
    last: Duration::from_secs(60),
};

/// Bodies that are read and stored at the same time: bounds memory, whatever the number of senders. The more batches wait for a
/// commit, the more share one.
const UPLOADS: usize = 32;

/// Turns that a large body takes, so that 16 of them are in memory at most. A body is large that exceeds [`SMALL_BODY`], is
/// compressed, or announces no length.
const LARGE_TURNS: u32 = 2;

/// Bytes of a body that takes one turn.
const SMALL_BODY: u64 = 1 << 20;

/// Captures that are downloaded at the same time: two parts of each are in memory at most. They have turns of their own, so that slow
/// readers do not keep agents from sending.
const DOWNLOADS: usize = 16;

/// Turns of those who look into captures, and the bytes of a capture that each stands for: a capture takes as many as its size needs.
/// A page takes much more memory than the bytes that it evaluates, and a thread for some seconds, so that these threads are no
/// others' ([`Collector::start`]).
const BROWSERS: usize = 4;
const BROWSED_BYTES: u64 = 4 << 20;

/// Requests of OpenTelemetry that are decoded at the same time: a small one becomes a larger one in memory.
const DECODERS: usize = 2;

/// Alerts whose rules are evaluated at the same time: rules are read and compiled for each.
const EXPLANATIONS: usize = 2;

/// Threads that may block, without those of [`BROWSERS`].
const THREADS: usize = 8;

/// Questions of others than agents that a store with a queue is asked at the same time, each by a thread of its own. A silent store
/// would take all threads otherwise, and agents would wait for it in spite of the queue.
const QUESTIONS: usize = 4;

/// Time limit for a turn to upload, download or decode.
const TURN: Duration = Duration::from_secs(20);

/// Time limit for a turn to evaluate the rule of an alert: whoever looks at the alert waits for the rest of it meanwhile.
const EXPLANATION_TURN: Duration = Duration::from_secs(2);

/// Time limit for the turns to look into a capture.
const BROWSER_TURN: Duration = Duration::from_secs(5);

/// Interval of retention.
const PRUNE: Duration = Duration::from_secs(300);

/// What a collector is started with.
pub struct Settings {
    /// Where it listens.
    pub listen: Address,
    /// Certificate and key; `None` for HTTP without TLS.
    pub files: Option<ServerFiles>,
    /// Alerts older than this are deleted.
    pub max_age: Option<Duration>,
    /// The oldest alerts are deleted while the store is larger than this number of bytes.
    pub max_bytes: Option<u64>,
    /// Proposes exceptions for the page; `None` leaves that out.
    pub propose: Option<ProposeException>,
    /// Says for the page why the clauses of a rule matched; `None` leaves that out.
    pub explain: Option<ExplainAlert>,
    /// Looks into captures for the page; `None` leaves that out.
    pub browse: Option<BrowseCapture>,
    /// Alerts around which agents record that allow captures.
    pub capture_on: Option<CaptureOnAlert>,
    /// Identity provider by which people log in, beside passwords.
    pub oidc: Option<OidcSettings>,
    /// Queue in front of the store; without one, a batch is acknowledged when the store has it.
    pub queue: Option<QueueSettings>,
}

/// A collector cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The server cannot start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The identity provider cannot be used as it is configured.
    #[error(transparent)]
    Oidc(#[from] OidcError),
    /// The queue cannot be used as it is configured.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// There are no threads for the asynchronous runtime.
    #[error("cannot start the collector")]
    Start {
        /// The cause.
        source: std::io::Error,
    },
}

/// A running collector. Dropping it stops it. What it acknowledged is stored; with a queue, it is stored or in the stream.
pub struct Collector {
    runtime: Option<Runtime>,
    address: Option<SocketAddr>,
}

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Metrics,
    /// Clients speak TLS: cookies are for that alone.
    pub(crate) is_secure: bool,
    pub(crate) door: Door,
    pub(crate) oidc: Option<OidcDoor>,
    pub(crate) tails: Tails,
    pub(crate) propose: Option<ProposeException>,
    pub(crate) explain: Option<ExplainAlert>,
    pub(crate) browse: Option<BrowseCapture>,
    pub(crate) capture_on: Option<CaptureOnAlert>,
    pub(crate) queue: Option<Arc<Queue>>,
    /// Turns of questions to the store; `None` without a queue.
    questions: Option<Arc<Semaphore>>,
    uploads: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    decoders: Arc<Semaphore>,
    explanations: Arc<Semaphore>,
    browsers: Arc<Semaphore>,
}

impl Shared {
    /// Asks the store on a thread that may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = match &self.questions {
            Some(questions) => {
                let crowded = "the store is slow, and too many wait for it; ask again";
                Some(self.turn_of(questions, crowded).await?)
            }
            None => None,
        };
        let store = Arc::clone(&self.store);
        let answer = self.working(move || {
            // It belongs to the thread: the store may be silent, and the client may go.
            let _turn = turn;
            ask(&*store)
        });
        Ok(answer.await??)
    }

    /// Runs what does not ask the store on a thread that may block.
    pub(crate) async fn working<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let worked = tokio::task::spawn_blocking(work).await;
        worked.map_err(|_panic| {
            let message = "the collector has a defect";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    }

    /// Waits for a turn to upload a body with these headers.
    pub(crate) async fn turn(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, Refusal> {
        let crowded = "too many senders upload at the same time; send it again";
        self.turns_of(&self.uploads, upload_turns(headers), crowded)
            .await
    }

    /// Waits for a turn to download. It lasts as long as what is downloaded is in memory.
    pub(crate) async fn download_turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let crowded = "too many captures are downloaded at the same time; ask again";
        self.turn_of(&self.downloads, crowded).await
    }

    /// Waits for a turn to decode.
    pub(crate) async fn decoder_turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let crowded = "too many senders send log records at the same time; send them again";
        self.turn_of(&self.decoders, crowded).await
    }

    /// Waits for a turn to evaluate the rule of an alert.
    pub(crate) async fn explanation_turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let turn = Arc::clone(&self.explanations).acquire_owned();
        match tokio::time::timeout(EXPLANATION_TURN, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            // The page goes without it, so this counts as no refused request.
            Ok(Err(_)) | Err(_) => Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many alerts are looked at at the same time; look at this one again",
            )),
        }
    }

    /// Waits for the turns to look into a capture of this size.
    pub(crate) async fn browser_turns(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Refusal> {
        let crowded =
            "too many captures are looked into at the same time; look into this one again";
        let limit = BROWSER_TURN;
        let turns = Arc::clone(&self.browsers).acquire_many_owned(browser_turns(bytes));
        self.within(limit, turns, crowded).await
    }

    async fn turn_of(
        &self,
        turns: &Arc<Semaphore>,
        crowded: &str,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        self.turns_of(turns, 1, crowded).await
    }

    async fn turns_of(
        &self,
        turns: &Arc<Semaphore>,
        number: u32,
        crowded: &str,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        let turns = Arc::clone(turns).acquire_many_owned(number);
        self.within(TURN, turns, crowded).await
    }

    /// Waits for turns, and counts a request that gets none in this time.
    async fn within(
        &self,
        limit: Duration,
        turns: impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>>,
        crowded: &str,
    ) -> Result<OwnedSemaphorePermit, Refusal> {
        match tokio::time::timeout(limit, turns).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => {
                self.metrics.crowded.add(1);
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, crowded))
            }
        }
    }

    /// Reads a body as text within a turn to upload.
    pub(crate) async fn text_in_turn(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<String, Refusal> {
        let _turn = self.turn(headers).await?;
        body::text(headers, body).await
    }
}

impl Collector {
    /// Binds the address and starts serving on threads of its own.
    ///
    /// # Errors
    ///
    /// The address is in use, the certificate is invalid, or there are no threads.
    pub fn start(settings: Settings, store: Arc<dyn Store>) -> Result<Self, CollectorError> {
        let oidc = settings.oidc.map(OidcDoor::new).transpose()?;
        let queue = open_queue(settings.queue, &store)?;
        let questions = queue.is_some().then(|| Arc::new(Semaphore::new(QUESTIONS)));
        let listener =
            HttpListener::bind(&settings.listen, settings.files.as_ref(), LIMITS, DEADLINES)?;
        let address = listener.address();
        let threads = THREADS + BROWSERS + questions.as_ref().map_or(0, |_| queue::THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(threads)
            .thread_name("collector")
            .enable_all()
            .build()
            .map_err(|source| CollectorError::Start { source })?;
        let shared = Arc::new(Shared {
            store,
            metrics: Metrics::default(),
            is_secure: settings.files.is_some(),
            door: Door::new(),
            oidc,
            tails: Tails::new(),
            propose: settings.propose,
            explain: settings.explain,
            browse: settings.browse,
            capture_on: settings.capture_on,
            queue,
            questions,
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS)),
            decoders: Arc::new(Semaphore::new(DECODERS)),
            explanations: Arc::new(Semaphore::new(EXPLANATIONS)),
            browsers: Arc::new(Semaphore::new(BROWSERS)),
        });
        let router = router(Arc::clone(&shared));
        let answer = move |request: Request<Incoming>| {
            let mut router = router.clone();
            async move {
                let answered: Result<Response, _> = router.call(request.map(Body::new)).await;
                answered.unwrap_or_else(|never| match never {})
            }
        };
        runtime.spawn(async move {
            // Fails only if the runtime cannot watch the socket; then `/readyz` answers nobody.
            let _ = listener.serve(answer).await;
        });
        if let Some(oidc) = &shared.oidc {
            let provider = oidc.provider();
            runtime.spawn_blocking(move || provider.try_out());
        }
        runtime.spawn(bundles::watch(Arc::clone(&shared)));
        if let Some(queue) = &shared.queue {
            runtime.spawn(queue::run(Arc::clone(queue)));
        }
        runtime.spawn(keep(shared, settings.max_age, settings.max_bytes));
        Ok(Self {
            runtime: Some(runtime),
            address,
        })
    }

    /// Returns the address that it listens on, if it has a port.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

fn open_queue(
    settings: Option<QueueSettings>,
    store: &Arc<dyn Store>,
) -> Result<Option<Arc<Queue>>, QueueError> {
    let open = |settings| Queue::new(settings, Arc::clone(store), ingest::records).map(Arc::new);
    settings.map(open).transpose()
}

impl Drop for Collector {
    fn drop(&mut self) {
        /// For requests that are being answered.
        const GRACE: Duration = Duration::from_secs(5);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(GRACE);
        }
    }
}

/// Returns the number of turns that a body with these headers takes.
fn upload_turns(headers: &HeaderMap) -> u32 {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_small = length.is_some_and(|length| length <= SMALL_BODY);
    match is_small && !headers.contains_key(header::CONTENT_ENCODING) {
        true => 1,
        false => LARGE_TURNS,
    }
}

/// Returns the number of turns that looking into a capture of this size takes.
fn browser_turns(bytes: u64) -> u32 {
    let turns = usize::try_from(bytes.div_ceil(BROWSED_BYTES));
    // A larger one than the store takes has all.
    let turns = turns.unwrap_or(BROWSERS).clamp(1, BROWSERS);
    u32::try_from(turns).unwrap_or(1)
}

/// Returns the paths of all routes.
#[doc(hidden)]
pub fn paths() -> Paths {
    Paths {
        programs: programs().into_paths(),
        people: people().into_paths(),
    }
}

/// Returns what answers all requests.
fn router(shared: Arc<Shared>) -> Router {
    programs()
        .into_router()
        .merge(people().into_router())
        .fallback(|| async { Refusal::not_found("page").into_response() })
        .with_state(shared)
        .layer(axum::middleware::map_response(answer::protected))
}

fn people() -> Routes<Arc<Shared>> {
    page::routes().route("/", get(page::overview))
}

fn programs() -> Routes<Arc<Shared>> {
    Routes::new()
        .route("/", post(ingest::falco))
        .route("/api/v1/", post(ingest::falco))
        .route("/api/v1/agents", post(ingest::enrol).get(api::agents))
        .route("/api/v1/inventory", put(ingest::inventory))
        .route("/api/v1/batches", post(ingest::batch))
        .route("/api/v1/groups", get(api::groups))
        .route("/api/v1/groups/{id}/acknowledgement", put(api::acknowledge))
        .route("/api/v1/alerts", get(api::alerts))
        .route("/api/v1/alerts/{id}", get(api::alert))
        .route("/api/v1/overview", get(api::overview))
        .route("/api/v1/bundle", get(bundles::bundle))
        .route("/api/v1/rollouts", get(bundles::rollouts))
        .route(
            "/api/v1/captures",
            get(captures::list).post(captures::request),
        )
        .route("/api/v1/captures/alert", post(captures::announce))
        .route(
            "/api/v1/captures/{id}/chunks/{number}",
            put(captures::chunk),
        )
        .route("/api/v1/captures/{id}/done", put(captures::done))
        .route("/api/v1/captures/{id}/file", get(captures::file))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/v1/logs", post(ingest::logs))
        .route("/healthz", get(api::health))
        .route("/readyz", get(api::ready))
        .route("/metrics", get(api::metrics))
}

/// Deletes at intervals what exceeds the retention.
async fn keep(shared: Arc<Shared>, max_age: Option<Duration>, max_bytes: Option<u64>) {
    let mut interval = tokio::time::interval(PRUNE);
    loop {
        interval.tick().await;
        let age = max_age.and_then(|age| i64::try_from(age.as_nanos()).ok());
        let retention = Retention {
            before_ns: age.map(|age| now_ns().saturating_sub(age)),
            max_bytes,
        };
        // A store that fails here fails for senders, too, who are told; the next turn tries again.
        if let Ok(pruned) = shared.blocking(move |store| store.prune(retention)).await {
            shared.metrics.pruned.add(pruned.alerts);
        }
    }
}

/// Returns the time in nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    i64::try_from(now).unwrap_or(i64::MAX)
}
