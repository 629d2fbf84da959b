//! Servers of the agent: pages over HTTP, alerts over gRPC, metrics at an interval.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use config::Config;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::Channel;
use rules::load::ENGINE_VERSION;
use serve::grpc::{GrpcChannel, GrpcListener, GrpcServer, PeerCheck, Version};
use serve::{Address, ClientCertificates, Page, ServeError, ServerFiles, WebListener, WebServer};

use crate::journal;
use crate::metrics::{self, Snapshots, Source};
use crate::version::{FALCO_VERSION, versions};

/// Listening servers without threads.
pub(super) struct Servers {
    web: Option<WebListener>,
    /// Serve a page of metrics.
    has_metrics: bool,
    healthz: String,
    grpc: Option<(GrpcListener, usize)>,
    /// Queue of alerts for gRPC clients.
    alerts: GrpcChannel,
    snapshots: Option<Snapshots>,
}

/// Running servers, which stop when dropped.
pub(super) struct RunningServers {
    _web: Option<WebServer>,
    _grpc: Option<GrpcServer>,
    _snapshots: Option<metrics::Running>,
}

/// Time limit for a previous agent to release its addresses.
const TAKE_OVER: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);

impl Servers {
    /// Binds the addresses, so that a mistake is an error at the start. `is_resumed`: an earlier
    /// agent, or this one with another configuration, has listened before.
    pub(super) fn open(
        config: &Config,
        is_resumed: bool,
        alerts: GrpcChannel,
    ) -> Result<Self, Failure> {
        let patience = if is_resumed {
            TAKE_OVER
        } else {
            Duration::ZERO
        };
        let failed = |error: ServeError| {
            Failure::from_error(Exit::BadInput, &error)
                .help("see the keys webserver.* and grpc.* in `tollgate man run`")
        };
        let web = &config.webserver;
        let listener = web.enabled.then(|| {
            let address = SocketAddr::new(web.address, web.port);
            let files = web.tls.then(|| ServerFiles {
                certificates: web.certificate.clone(),
                key: web.certificate.clone(),
                clients: ClientCertificates::Ignored,
            });
            patiently(patience, || WebListener::bind(address, files.as_ref()))
        });
        let grpc = config.grpc.enabled.then(|| grpc(config, patience));
        if !is_resumed {
            warn_if_exposed(config);
        }
        let is_on = config.metrics.enabled;
        let snapshots = is_on.then(|| Snapshots::open(&config.metrics.output_file));
        Ok(Self {
            web: listener.transpose().map_err(failed)?,
            has_metrics: is_on && web.metrics,
            healthz: web.healthz.clone(),
            grpc: grpc.transpose().map_err(failed)?,
            alerts,
            snapshots: snapshots.transpose()?,
        })
    }

    /// Returns the queue of alerts for gRPC clients.
    pub(super) fn alerts(&self) -> GrpcChannel {
        self.alerts.clone()
    }

    /// Starts serving.
    pub(super) fn start(
        self,
        source: &Source,
        check: &PeerCheck,
    ) -> anyhow::Result<RunningServers> {
        let mut pages = vec![
            Page {
                is_instant: true,
                ..page(self.healthz, "application/json", || {
                    "{\"status\": \"ok\"}".to_owned()
                })
            },
            page("/versions".to_owned(), "application/json", || {
                versions().to_string()
            }),
        ];
        if self.has_metrics {
            let source = source.clone();
            // The content type is that of the text format 0.0.4.
            pages.push(page(
                "/metrics".to_owned(),
                "text/plain; version=0.0.4",
                move || source.page(),
            ));
        }
        let web = self.web.map(|listener| listener.start(pages));
        let grpc = self.grpc.map(|(listener, threads)| {
            listener.start(&self.alerts, version(), threads, Arc::clone(check))
        });
        let snapshots = self
            .snapshots
            .map(|snapshots| snapshots.start(source.clone()));
        Ok(RunningServers {
            _web: web.transpose().context("cannot start the web server")?,
            _grpc: grpc.transpose().context("cannot start the gRPC server")?,
            _snapshots: snapshots.transpose()?,
        })
    }
}

/// Returns the channel for alerts to gRPC clients, if configured.
pub(super) fn channel(config: &Config, alerts: &GrpcChannel) -> Option<Box<dyn Channel>> {
    let is_wanted = config.grpc.enabled && config.grpc.output;
    is_wanted.then(|| Box::new(alerts.clone()) as Box<dyn Channel>)
}

/// The running servers, which a reload can replace.
pub(super) struct ServerSet {
    alerts: GrpcChannel,
    /// Check of clients on this host.
    check: PeerCheck,
    source: Mutex<Source>,
    serving: Mutex<Option<RunningServers>>,
}

impl ServerSet {
    /// Starts serving.
    pub(super) fn open(servers: Servers, source: Source, check: PeerCheck) -> anyhow::Result<Self> {
        let alerts = servers.alerts();
        let serving = servers.start(&source, &check)?;
        Ok(Self {
            alerts,
            check,
            source: Mutex::new(source),
            serving: Mutex::new(Some(serving)),
        })
    }

    pub(super) fn alerts(&self) -> &GrpcChannel {
        &self.alerts
    }

    /// Replaces the servers by those of `new`. Restores those of `old` if that fails.
    pub(super) fn exchange(&self, old: &Config, new: &Config) -> Result<(), Failure> {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        // The addresses may be the same.
        *serving = None;
        let open = |config: &Config| {
            let source = Source {
                wanted: config.metrics.clone(),
                files: metrics::Files::of(config),
                ..source.clone()
            };
            let servers = Servers::open(config, true, self.alerts.clone())?;
            let serving = servers.start(&source, &self.check).map_err(|error| {
                Failure::new(Exit::Unsupported, format!("cannot serve: {error:#}"))
            })?;
            Ok::<_, Failure>((serving, source))
        };
        match open(new) {
            Ok((started, from)) => {
                if old.webserver != new.webserver {
                    warn_if_exposed(new);
                }
                *serving = Some(started);
                *source = from;
                Ok(())
            }
            Err(failure) => {
                match open(old) {
                    Ok((started, _)) => *serving = Some(started),
                    Err(also) => journal::warn(also.render().trim_end()),
                }
                Err(failure)
            }
        }
    }

    /// Releases the addresses.
    pub(super) fn close(&self) {
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Warns if the pages are reachable from other hosts.
fn warn_if_exposed(config: &Config) {
    let web = &config.webserver;
    if web.enabled && !web.address.to_canonical().is_loopback() {
        let address = SocketAddr::new(web.address, web.port);
        journal::warn(&format!(
            "webserver: {address} is reachable from other hosts, without authentication\n  help: set \
            webserver.listen_address to 127.0.0.1, or restrict access with a firewall"
        ));
    }
}

fn page(
    path: String,
    content_type: &'static str,
    content: impl Fn() -> String + Send + Sync + 'static,
) -> Page {
    Page {
        path,
        content_type,
        is_instant: false,
        content: Box::new(content),
    }
}

fn grpc(config: &Config, patience: Duration) -> Result<(GrpcListener, usize), ServeError> {
    let settings = &config.grpc;
    let address = Address::parse(&settings.bind_address)?;
    let files = ServerFiles {
        certificates: settings.cert_chain.clone(),
        key: settings.private_key.clone(),
        clients: ClientCertificates::Required(settings.root_certs.clone()),
    };
    let listener = patiently(patience, || GrpcListener::bind(&address, &files))?;
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    let threads = match settings.threadiness {
        0 => cpus(),
        threads => usize::from(threads),
    };
    Ok((listener, threads))
}

fn patiently<T>(
    patience: Duration,
    mut bind: impl FnMut() -> Result<T, ServeError>,
) -> Result<T, ServeError> {
    let deadline = Instant::now() + patience;
    loop {
        match bind() {
            Err(ServeError::Listen { .. }) if Instant::now() < deadline => thread::sleep(RETRY),
            result => return result,
        }
    }
}

fn version() -> Version {
    let mut parts = FALCO_VERSION.split('.').map(|part| part.parse().ok());
    let mut part = || parts.next().flatten().unwrap_or_default();
    Version {
        version: FALCO_VERSION.to_owned(),
        major: part(),
        minor: part(),
        patch: part(),
        engine_major: ENGINE_VERSION.major,
        engine_minor: ENGINE_VERSION.minor,
        engine_patch: ENGINE_VERSION.patch,
        engine_version: ENGINE_VERSION.to_string(),
        ..Version::default()
    }
}
