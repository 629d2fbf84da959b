//! Servers on threads of their own.

use std::thread;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::oneshot;

use crate::error::ServeError;
use crate::http::HttpListener;

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct WebServer {
    _stop: oneshot::Sender<()>,
}

/// Serves on a thread of its own, with so many further ones for what blocks.
pub(crate) fn spawn<A, F>(
    name: &str,
    blocking: usize,
    server: HttpListener,
    answer: A,
) -> Result<WebServer, ServeError>
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let start = |source| ServeError::Start { source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking)
        .build()
        .map_err(start)?;
    let (stop, stopped) = oneshot::channel();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                // Fails only if the runtime cannot watch the socket; then nobody is served.
                _ = server.serve(answer) => {}
                // Also completes when the other end is dropped.
                _ = stopped => {}
            }
        });
        // Does not wait for an answer in progress.
        runtime.shutdown_background();
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(start)?;
    Ok(WebServer { _stop: stop })
}
