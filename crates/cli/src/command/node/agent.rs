//! The agent itself.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use agent::embedded::Embedded;
use apiserver::{Access, AccessError, Client};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use node::{Parts, PodEvents, Settings, ViolationFiles};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::enforcers;

use super::args::Node;
use super::detect::Detecting;

/// Writer of the agent's fields.
const MANAGER: &str = "tollgate-node";
/// Time between two reports without a change. The operator takes a node for silent after two minutes.
const RENEWAL: Duration = Duration::from_secs(30);

/// How often it is looked whether the agent has ended by itself.
const POLL: Duration = Duration::from_millis(100);

/// Runs the agent until a signal ends it.
pub(crate) fn execute(args: Node) -> Outcome {
    let (name, installation) = names(&args)?;
    let client = client(&args)?;
    // Before there are threads: the probe forks.
    let enforcers = enforcers::of_agent();
    let kernel = args.bpf.then(super::kernel::enforcer).flatten();
    // Before there are threads: the engine blocks signals, and forks.
    let events: Option<Arc<PodEvents>> = args.events.then(Arc::default);
    let detecting = args
        .detect
        .then(|| Detecting::start(&args, &name, events.clone()));
    let (stop, stopped) = mpsc::channel();
    match detecting.as_ref().and_then(Detecting::engine) {
        Some(_) => {}
        None => end_by_signal(stop.clone())?,
    }
    let settings = Settings {
        node: name,
        installation,
        socket: args.nri_socket,
        state: args.state,
        handlers: args.handlers,
        policies: args.policies,
        runtime_state: args.runtime_state,
        deadline: Duration::from_millis(args.answer_within),
        listen: args.listen,
        renewal: RENEWAL,
    };
    let behavior = args.behavior_modeling.then(super::behavior::behavior);
    let say = |message| terminal::complain(&format!("tollgate: {message}\n"));
    let parts = Parts {
        detection: detecting.as_ref().map(Detecting::detection),
        events,
        violations: ViolationFiles {
            alerts: args.violations,
            log: args.violations_log,
        },
        behavior,
        kernel,
        enforcers,
    };
    let agent = thread::spawn(move || node::run(settings, parts, &client, &stopped, say));
    let mut exit = Exit::Ok;
    if let Some(engine) = detecting.as_ref().and_then(Detecting::engine) {
        exit = watch(engine, || agent.is_finished());
        // An agent that has ended already needs no order.
        let _ = stop.send(());
    }
    let ended = agent.join().map_err(|_panic| {
        Failure::new(Exit::Internal, "the agent has ended by a defect")
            .help("report the message above")
    })?;
    if let Some(detecting) = detecting {
        detecting.finish();
    }
    ended.map_err(|error| {
        Failure::from_error(Exit::Unsupported, &error).help("see `tollgate help node`")
    })?;
    Ok(exit)
}

/// Names of the node, and of the namespace of the installation.
fn names(args: &Node) -> Result<(String, String), Failure> {
    let name = given(args.name.as_ref(), "NODE_NAME").ok_or_else(|| {
        let message = "cannot be the agent of a node without its name";
        Failure::new(Exit::BadInput, message)
            .help("give --name, or set NODE_NAME by the downward API: fieldRef spec.nodeName")
    })?;
    let installation = given(args.namespace.as_ref(), "POD_NAMESPACE").ok_or_else(|| {
        let message = "cannot tell the profiles of the cluster without the operator's namespace";
        Failure::new(Exit::BadInput, message).help(
            "give --namespace, or set POD_NAMESPACE by the downward API: fieldRef metadata.namespace",
        )
    })?;
    Ok((name, installation))
}

/// Waits for a signal, or for the end of the agent or of the engine.
fn watch(engine: &Embedded, is_agent_finished: impl Fn() -> bool) -> Exit {
    while !is_agent_finished() && !engine.wait(POLL) {
        if engine.has_ended() {
            // As the configuration wants it when too many events are lost. Whoever started the agent starts another.
            terminal::complain("tollgate: the engine has ended, and the agent with it\n");
            return Exit::Failed;
        }
    }
    Exit::Ok
}

/// Ends the agent by a signal, where no engine takes them.
fn end_by_signal(stop: Sender<()>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        Failure::new(Exit::Internal, format!("cannot handle signals: {error}"))
            .help("report this as a defect")
    })?;
    thread::spawn(move || {
        let _ = signals.forever().next();
        // An agent that has ended already needs no order.
        let _ = stop.send(());
    });
    Ok(())
}

/// The value of an option, or of a variable in its place; `None` if it is empty.
fn given(option: Option<&String>, variable: &str) -> Option<String> {
    let value = option.cloned().or_else(|| std::env::var(variable).ok());
    value.filter(|value| !value.is_empty())
}

fn client(args: &Node) -> Result<Client, Failure> {
    let client = access(args).and_then(|access| Client::new(&access, MANAGER));
    client.map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("outside of a pod, give --kubeconfig, or --server and its files")
    })
}

fn access(args: &Node) -> Result<Access, AccessError> {
    if let Some(path) = &args.kubeconfig {
        return Access::kubeconfig(path);
    }
    let Some(server) = &args.server else {
        return Access::in_cluster();
    };
    Ok(Access::files(
        server,
        args.certificate_authority.clone(),
        args.token.clone(),
        args.client_certificate.clone().zip(args.client_key.clone()),
    ))
}
