//! The threads of an agent.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use apiserver::Client;
use kinds::EnforcerState;
use nri::{Options, Plugin};
use serve::{Page, ServeError, WebListener, WebServer};

use crate::agent::Agent;
use crate::behavior::Behavior;
use crate::detect::Detection;
use crate::kernel::KernelEnforcer;
use crate::pod_events::PodEvents;
use crate::profiles::{ask, follow};
use crate::store::{StoreError, retain_policies};
use crate::violations::{self, ViolationFiles};
use crate::{Settings, chain, detect, enforcers, event_writer, kernel_violations, observe, report};

/// Order among the plug-ins of a runtime: late, so that nothing changes the filter afterwards.
const INDEX: u8 = 90;
/// Wait before the runtime is connected to again.
const RECONNECT: Duration = Duration::from_millis(500);
/// How often the agent looks whether something has to be written.
const TICK: Duration = Duration::from_millis(100);
/// Least time between two reports.
const PAUSE: Duration = Duration::from_millis(500);
/// Wait after a report that could not be written.
const RETRY: Duration = Duration::from_secs(2);

/// An agent cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The id of the boot cannot be read.
    #[error("cannot read the id of the boot")]
    Boot(#[source] io::Error),
    /// The folder of policies cannot be made.
    #[error("cannot make {folder}")]
    Policies {
        /// The folder.
        folder: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The address cannot be listened on.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// What an agent may have besides enforcement.
#[derive(Clone, Default)]
pub struct Parts {
    /// Detection, if the agent watches its node.
    pub detection: Option<Detection>,
    /// What becomes Events of pods, if the agent writes some.
    pub events: Option<Arc<PodEvents>>,
    /// Where violations are read from and written to besides.
    pub violations: ViolationFiles,
    /// Behaviour modelling, if the agent observes containers.
    pub behavior: Option<Behavior>,
    /// Enforces in the containers of every runtime, if the agent uses it.
    pub kernel: Option<Arc<dyn KernelEnforcer>>,
    /// Every enforcer, as this process has found it by trying.
    pub enforcers: Vec<EnforcerState>,
}

/// Runs an agent, until `stop` says something. `say` gets messages for people.
///
/// The agent ends by itself never: it connects again to a runtime and to an API server that are gone.
///
/// # Errors
///
/// If the agent cannot begin.
pub fn run(
    settings: Settings,
    parts: Parts,
    client: &Client,
    stop: &Receiver<()>,
    say: impl Fn(String) + Send + Sync + 'static,
) -> Result<(), RunError> {
    let boot = report::boot_id().map_err(RunError::Boot)?;
    if !settings.handlers.is_empty() {
        fs::create_dir_all(&settings.policies).map_err(|source| RunError::Policies {
            folder: settings.policies.display().to_string(),
            source,
        })?;
    }
    let alerts = parts.violations.alerts.clone();
    let agent = Arc::new(Agent::new(settings, parts, Arc::new(say))?);
    let _server = serve_pages(&agent)?;
    // Before the container runtime asks, which does not wait for it.
    agent.prepare_known();
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(work).map(drop).map_err(RunError::Thread)
    };
    let (of_watch, of_fetch, of_plugin) = (agent.clone(), agent.clone(), agent.clone());
    let (watcher, fetcher) = (client.clone(), client.clone());
    start("watch", Box::new(move || follow(&of_watch, &watcher)))?;
    start("fetch", Box::new(move || ask(&of_fetch, &fetcher)))?;
    start("nri", Box::new(move || connect(&of_plugin)))?;
    if let Some(alerts) = alerts {
        let follower = agent.clone();
        let follow = move || violations::follow(&follower, &alerts);
        start("violations", Box::new(follow))?;
    }
    if agent.kernel.enforcer().is_some() {
        let (of_changes, follower) = (agent.clone(), agent.clone());
        start("kernel", Box::new(move || of_changes.keep_current()))?;
        let follow = move || kernel_violations::follow(&follower);
        start("denials", Box::new(follow))?;
    }
    if let Some(behavior) = agent.behavior.clone() {
        let of_behavior = agent.clone();
        let observe = move || observe::observe(&of_behavior, &behavior);
        start("behavior", Box::new(observe))?;
    }
    if agent.events.is_some() {
        let (of_events, writer) = (agent.clone(), client.clone());
        let write = move || event_writer::write(&of_events, &writer);
        start("events", Box::new(write))?;
    }
    if let Some(detection) = &agent.detection {
        detect::start(&agent, client, detection).map_err(RunError::Thread)?;
    }
    write_reports(&agent, client, &boot, stop);
    Ok(())
}

fn serve_pages(agent: &Arc<Agent>) -> Result<Option<WebServer>, RunError> {
    let Some(address) = agent.settings.listen else {
        return Ok(None);
    };
    let of_metrics = Arc::clone(agent);
    let metrics = Page {
        path: "/metrics".to_owned(),
        content_type: "text/plain; version=0.0.4",
        is_instant: false,
        content: Box::new(move || report::metrics(&of_metrics)),
    };
    let of_health = Arc::clone(agent);
    let listener =
        WebListener::bind(address, None)?.with_health(move || of_health.state().health());
    Ok(Some(listener.start(vec![metrics])?))
}

/// A connection to the runtime. It ends in the state, too, when its thread panics.
struct Connection<'a>(&'a Agent);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

/// Connects to the runtime, again and again.
fn connect(agent: &Arc<Agent>) {
    agent.wait_for_index();
    let mut last = String::new();
    loop {
        let options = Options {
            name: "tollgate".to_owned(),
            index: INDEX,
            deadline: agent.settings.deadline,
        };
        let plugin: Arc<dyn Plugin> = Arc::clone(agent) as _;
        let socket = &agent.settings.socket;
        let connection = Connection(agent);
        let ended = UnixStream::connect(socket)
            .map_err(|error| format!("cannot connect to {}: {error}", socket.display()))
            .and_then(|stream| nri::run(stream, options, &plugin).map_err(|error| chain(&error)));
        drop(connection);
        let message = ended
            .err()
            .unwrap_or_else(|| "the container runtime has closed the connection".to_owned());
        if message != last {
            agent.say(format!("{message}; trying again"));
            last = message;
        }
        thread::sleep(RECONNECT);
    }
}

/// Writes reports and the index, until `stop` says something or its sender is gone.
fn write_reports(agent: &Agent, client: &Client, boot: &str, stop: &Receiver<()>) {
    let mut next = Instant::now();
    let mut renewal = Instant::now();
    loop {
        match stop.recv_timeout(TICK) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        write_index(agent);
        let enforcers = || {
            enforcers::states(
                &agent.enforcers,
                agent.kernel.enforcers(),
                &agent.settings,
                boot,
            )
        };
        let now = Instant::now();
        let mut state = agent.state();
        state.forget_ended(now);
        // An agent that has not seen all profiles, or hears of no containers, says nothing about them.
        if !state.can_report() || now < next || !state.is_changed && now < renewal {
            continue;
        }
        state.is_changed = false;
        drop(state);
        // A file is read for it.
        let enforcers = enforcers();
        let state = agent.state();
        let detection = agent.detection.as_ref();
        let detection = detection.map(|detection| detection.report(&state.detection));
        let status = report::status(&state, detection, enforcers, boot);
        drop(state);
        let written = report::write(client, &agent.settings.node, &status);
        let mut state = agent.state();
        (next, renewal) = match &written {
            Ok(()) => {
                state.counters.reports += 1;
                (now + PAUSE, now + agent.settings.renewal)
            }
            Err(_) => {
                state.counters.errors += 1;
                state.is_changed = true;
                (now + RETRY, now)
            }
        };
        drop(state);
        if let Err(error) = written {
            agent.say(format!("cannot write the report: {}", chain(&error)));
        }
    }
}

/// Writes the index, and removes policy files that no container needs any more.
pub(crate) fn write_index(agent: &Agent) {
    let mut state = agent.state();
    // A part of a list would be taken for all of it by the next agent.
    if !state.is_index_changed || !state.index.is_usable {
        return;
    }
    state.is_index_changed = false;
    let objects = state.index.objects();
    drop(state);
    if let Err(error) = agent.store.write_objects(&objects) {
        agent.state().is_index_changed = true;
        agent.say(chain(&error));
    }
    let removed = retain_policies(&agent.settings.policies, || agent.state().policy_names());
    if let Err(error) = removed {
        agent.say(chain(&error));
    }
}
