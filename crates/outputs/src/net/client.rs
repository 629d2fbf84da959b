//! The HTTP client: one for each output, with its certificates.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use ureq::http::uri::{Authority, Scheme};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use crate::net::names::Names;
use crate::net::tls::{self, TlsError, TlsOptions};

/// The HTTP options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be used.
    #[error("cannot send alerts to `{url}`: {problem}")]
    Url {
        /// The address.
        url: String,
        /// Description of the error.
        problem: String,
    },
    /// A header is invalid.
    #[error("cannot send the header `{name}`: {problem}")]
    Header {
        /// Name of the header.
        name: String,
        /// Description of the error.
        problem: String,
    },
    /// There is no token in its file.
    #[error("cannot read the token in {}", path.display())]
    Token {
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is no single credential.
    #[error("cannot be known to the collector: {problem}")]
    Credential {
        /// What is wrong.
        problem: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Answers cannot be printed.
    #[error("cannot print answers to the standard output")]
    Echo {
        /// The cause.
        source: io::Error,
    },
}

/// Options of an HTTP client.
#[derive(Debug)]
pub struct ClientOptions<'o> {
    /// `http://` or `https://`.
    pub url: &'o str,
    /// Value of the `User-Agent` header.
    pub user_agent: &'o str,
    /// Certificates for `https://`.
    pub tls: &'o TlsOptions,
    /// Time a connection is kept without requests.
    pub idle: Duration,
    /// Time limit for one request, from the name lookup to the end of the answer.
    pub timeout: Duration,
}

/// Creates a client that follows no redirections and returns every status as an answer.
///
/// # Errors
///
/// The address or the certificates cannot be used.
pub fn agent(options: &ClientOptions<'_>) -> Result<Agent, HttpError> {
    let is_secure = check_url(options.url)?;
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // The environment belongs to the watched command: its proxy must not learn where alerts go.
        .proxy(None)
        .user_agent(options.user_agent)
        .max_idle_age(options.idle)
        .timeout_global(Some(options.timeout));
    if is_secure {
        config = config.tls_config(tls::http_config(options.tls)?);
    }
    let connector = DefaultConnector::default();
    Ok(Agent::with_parts(
        config.build(),
        connector,
        Names::default(),
    ))
}

/// Compresses a body with gzip.
pub(crate) fn compressed(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

/// Maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 64 << 10;

/// Headers that the channel sets itself. A duplicate, or another length, would break the request.
const OWN_HEADERS: [&str; 7] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "user-agent",
];

/// Builds the user's headers.
pub(crate) fn headers(wanted: &[(String, String)]) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let wrong = |problem: &str| HttpError::Header {
            name: name.clone(),
            problem: problem.to_owned(),
        };
        let known: HeaderName = name
            .parse()
            .map_err(|_no_name| wrong("it is not a header name"))?;
        if OWN_HEADERS.contains(&known.as_str()) {
            return Err(wrong("it is set by other keys, or by itself"));
        }
        let value: HeaderValue = value
            .parse()
            .map_err(|_no_value| wrong("its value has characters that a header cannot have"))?;
        headers.append(known, value);
    }
    Ok(headers)
}

/// Checks the address. Returns true for `https`.
fn check_url(url: &str) -> Result<bool, HttpError> {
    let wrong = |problem: String| HttpError::Url {
        url: url.to_owned(),
        problem,
    };
    let uri: Uri = url
        .parse()
        .map_err(|error| wrong(format!("invalid URL: {error}")))?;
    if uri.host().is_none_or(str::is_empty) {
        return Err(wrong("it names no host".to_owned()));
    }
    if let Some(port) = uri.authority().and_then(written_port)
        && !port.parse::<u16>().is_ok_and(|port| port != 0)
    {
        return Err(wrong(format!("invalid port `{port}`: expected 1 to 65535")));
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(false),
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(true),
        _ => Err(wrong("it has to start with http:// or https://".to_owned())),
    }
}

/// Returns the port as written, if there is one.
fn written_port(authority: &Authority) -> Option<&str> {
    let text = authority.as_str();
    let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
    let port = place.strip_prefix(authority.host())?.strip_prefix(':')?;
    (!port.is_empty()).then_some(port)
}

/// Reads an answer; `None` if it is too long.
pub(crate) fn read(body: &mut Body) -> io::Result<Option<Vec<u8>>> {
    let text = body.with_config().limit(MAX_ANSWER).read_to_vec();
    match text {
        Err(ureq::Error::BodyExceedsLimit(_)) => Ok(None),
        text => text.map(Some).map_err(io_error),
    }
}

/// Returns the system error behind an HTTP error, if there is one.
pub(crate) fn io_error(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Timeout(_) => {
            io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
        }
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

/// Returns true if the server may have closed a connection that was in use before.
pub(crate) fn is_hang_up(error: &io::Error) -> bool {
    let is_protocol = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<ureq::Error>())
        .is_some_and(|error| matches!(error, ureq::Error::Protocol(_)));
    is_protocol
        || matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
                | ErrorKind::UnexpectedEof
        )
}
