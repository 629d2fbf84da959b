//! What others can ask of the agent: pages over HTTP, alerts over gRPC, metrics on an interval.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use outputs::Channel;
use rules::load::ENGINE_VERSION;
use serve::grpc::{GrpcChannel, GrpcListener, GrpcServer, Version};
use serve::{Address, Page, ServeError, ServerFiles, WebListener, WebServer};

use crate::command::falco::version::{FALCO_VERSION, versions};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::metrics::{self, Snapshots, Source};

/// What listens, before there is a thread.
pub(super) struct Servers {
    web: Option<WebListener>,
    /// Whether there is a page of metrics.
    has_metrics: bool,
    healthz: String,
    grpc: Option<(GrpcListener, GrpcChannel, usize)>,
    snapshots: Option<Snapshots>,
}

/// What answers until it is dropped.
pub(super) struct Serving {
    _web: Option<WebServer>,
    _grpc: Option<GrpcServer>,
    _snapshots: Option<metrics::Running>,
}

/// How long the agent before this one is waited for until it leaves its addresses.
const TAKE_OVER: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);

impl Servers {
    /// Listens, so that a mistake stops the start. `is_resumed`: another agent has listened before.
    pub(super) fn open(config: &Config, is_resumed: bool) -> Result<Self, Failure> {
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
                client_authorities: None,
            });
            patiently(patience, || WebListener::bind(address, files.as_ref()))
        });
        let grpc = config.grpc.enabled.then(|| grpc(config, patience));
        let is_on = config.metrics.enabled;
        let snapshots = is_on.then(|| Snapshots::open(&config.metrics.output_file));
        Ok(Self {
            web: listener.transpose().map_err(failed)?,
            has_metrics: is_on && web.metrics,
            healthz: web.healthz.clone(),
            grpc: grpc.transpose().map_err(failed)?,
            snapshots: snapshots.transpose()?,
        })
    }

    /// Where alerts go for clients of gRPC, if that is wanted.
    pub(super) fn channel(&self, config: &Config) -> Option<Box<dyn Channel>> {
        let (_, channel, _) = self.grpc.as_ref()?;
        config
            .grpc
            .output
            .then(|| Box::new(channel.clone()) as Box<dyn Channel>)
    }

    /// Answers from now on.
    pub(super) fn start(self, source: &Source) -> anyhow::Result<Serving> {
        let mut pages = vec![
            page(self.healthz, "application/json", || {
                "{\"status\": \"ok\"}".to_owned()
            }),
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
        let grpc = self
            .grpc
            .map(|(listener, channel, threads)| listener.start(&channel, version(), threads));
        let snapshots = self
            .snapshots
            .map(|snapshots| snapshots.start(source.clone()));
        Ok(Serving {
            _web: web.transpose().context("cannot start the web server")?,
            _grpc: grpc.transpose().context("cannot start the gRPC server")?,
            _snapshots: snapshots.transpose()?,
        })
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
        content: Box::new(content),
    }
}

fn grpc(
    config: &Config,
    patience: Duration,
) -> Result<(GrpcListener, GrpcChannel, usize), ServeError> {
    let settings = &config.grpc;
    let address = Address::parse(&settings.bind_address)?;
    let files = ServerFiles {
        certificates: settings.cert_chain.clone(),
        key: settings.private_key.clone(),
        client_authorities: Some(settings.root_certs.clone()),
    };
    let listener = patiently(patience, || GrpcListener::bind(&address, &files))?;
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    let threads = match settings.threadiness {
        0 => cpus(),
        threads => usize::from(threads),
    };
    Ok((listener, GrpcChannel::default(), threads))
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
