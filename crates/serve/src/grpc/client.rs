//! The gRPC client: receives a detector's alerts.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::channel::Channel as Body;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::frame;
use super::message::Output;
use crate::error::ServeError;
use crate::listen::{Address, Stream};
use crate::tls;

/// Time limit for connecting.
const PATIENCE: Duration = Duration::from_secs(10);

/// Certificate files of a client over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificate authorities of the server.
    pub authorities: PathBuf,
}

/// Subscribes to a server's alerts. They arrive until the server ends the call or the receiver is
/// dropped; the last item may be the error that ended it.
///
/// # Errors
///
/// The server cannot be reached or refuses the call.
pub fn subscribe(
    address: &Address,
    files: &ClientFiles,
) -> Result<Receiver<Result<Output, ServeError>>, ServeError> {
    let start = |source| ServeError::Start { source };
    let connector = match address {
        Address::Unix(_) => None,
        Address::Tcp(host) => {
            let config = tls::client(&files.certificate, &files.key, &files.authorities)?;
            let name = host
                .rsplit_once(':')
                .map_or(host.as_str(), |(name, _)| name);
            let name = name.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(name.to_owned());
            let name = name.map_err(|error| unreached(address, error))?;
            Some((TlsConnector::from(config), name))
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(start)?;
    let (alerts, receiver) = channel();
    let (ready, is_ready) = channel();
    let address = address.clone();
    let work = move || {
        runtime.block_on(async move {
            let response = tokio::time::timeout(PATIENCE, open(&address, connector)).await;
            let response = response.unwrap_or_else(|elapsed| Err(unreached(&address, elapsed)));
            match response {
                // The caller no longer waits.
                Err(error) => drop(ready.send(Err(error))),
                Ok(opened) => {
                    drop(ready.send(Ok(())));
                    let send = |alert| alerts.send(alert).is_ok();
                    if let Err(error) = receive(&address, opened, send).await {
                        drop(alerts.send(Err(error)));
                    }
                }
            }
        });
    };
    thread::Builder::new()
        .name("grpc".to_owned())
        .spawn(work)
        .map_err(start)?;
    match is_ready.recv() {
        Ok(result) => result.map(|()| receiver),
        Err(gone) => Err(start(std::io::Error::other(gone))),
    }
}

fn unreached(
    address: &Address,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ServeError {
    ServeError::Connect {
        address: address.to_string(),
        source: source.into(),
    }
}

/// A call that the server has accepted. Dropping the sender would end it.
struct Opened {
    response: Response<Incoming>,
    _requests: http_body_util::channel::Sender<Bytes>,
}

async fn open(
    address: &Address,
    connector: Option<(TlsConnector, ServerName<'static>)>,
) -> Result<Opened, ServeError> {
    let failed = |error| unreached(address, error);
    let stream = Stream::connect(address).await;
    let stream = stream.map_err(|error| unreached(address, error))?;
    match connector {
        None => call(address, stream, "http").await.map_err(failed),
        Some((connector, name)) => {
            let stream = connector.connect(name, stream).await;
            let stream = stream.map_err(|error| unreached(address, error))?;
            call(address, stream, "https").await.map_err(failed)
        }
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn call(
    address: &Address,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    scheme: &str,
) -> Result<Opened, AnyError> {
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // The call's result shows the end of the connection.
    tokio::spawn(async move { drop(connection.await) });
    let authority = match address {
        Address::Unix(_) => "localhost",
        Address::Tcp(address) => address,
    };
    let (mut requests, body) = Body::new(1);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{scheme}://{authority}/falco.outputs.service/sub"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(body)?;
    // The request has no fields.
    requests.send_data(Bytes::from_static(&[0; 5])).await?;
    let response = client.send_request(request).await?;
    Ok(Opened {
        response,
        _requests: requests,
    })
}

/// Receives alerts until the server ends the call.
async fn receive(
    address: &Address,
    opened: Opened,
    mut take: impl FnMut(Result<Output, ServeError>) -> bool,
) -> Result<(), ServeError> {
    let status = opened.response.status();
    let head = opened.response.headers().clone();
    if status != StatusCode::OK {
        return Err(ServeError::Refused {
            address: address.to_string(),
            status: status.to_string(),
            message: String::new(),
        });
    }
    let mut body = opened.response.into_body();
    let mut received = BytesMut::new();
    let mut trailers = None;
    loop {
        let next =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context));
        let Some(frame) = next.await else {
            break;
        };
        match frame
            .map_err(|error| unreached(address, error))?
            .into_data()
        {
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
            Ok(data) => {
                received.extend_from_slice(&data);
                loop {
                    let alert = frame::decode::<Output>(&mut received);
                    let alert = alert.map_err(|error| unreached(address, error))?;
                    let Some(alert) = alert else {
                        break;
                    };
                    if !take(Ok(alert)) {
                        return Ok(());
                    }
                }
            }
        }
    }
    verdict(address, &trailers.unwrap_or(head))
}

/// Checks the gRPC status, which follows the last message, or is in the headers if there is no
/// message.
fn verdict(address: &Address, headers: &HeaderMap) -> Result<(), ServeError> {
    let text = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let status = text("grpc-status").unwrap_or_else(|| "missing".to_owned());
    if status == "0" {
        return Ok(());
    }
    Err(ServeError::Refused {
        address: address.to_string(),
        status,
        message: text("grpc-message").unwrap_or_default(),
    })
}
