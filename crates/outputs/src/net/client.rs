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

/// The options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is not one that alerts can be sent to.
    #[error("cannot send alerts to `{url}`: {problem}")]
    Url {
        /// The address.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A header is not one.
    #[error("cannot send the header `{name}`: {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
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

/// What a client is for.
pub(crate) struct ClientOptions<'o> {
    /// `http://` or `https://`.
    pub(crate) url: &'o str,
    /// Value of the `User-Agent` header.
    pub(crate) user_agent: &'o str,
    /// Whom to trust, and who to be, for `https://`.
    pub(crate) tls: &'o TlsOptions,
    /// How long a connection is kept without requests.
    pub(crate) idle: Duration,
    /// How long one request may take from the look-up of the name to the end of the answer.
    pub(crate) timeout: Duration,
}

/// Makes a client that follows no redirection, and to which every status is an answer.
pub(crate) fn agent(options: &ClientOptions<'_>) -> Result<Agent, HttpError> {
    let is_secure = check_url(options.url)?;
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // The environment is the watched command's: its proxy need not know where alerts go.
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

/// Longest answer that is read; a receiver of alerts has little to say.
const MAX_ANSWER: u64 = 64 << 10;

/// Headers that are set here: two of a name, or another length, would break the request.
const OWN_HEADERS: [&str; 7] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "user-agent",
];

/// The headers that the user wants.
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

/// Whether the address is one of `https`.
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

/// The port, whatever is written there; without one the scheme decides.
fn written_port(authority: &Authority) -> Option<&str> {
    let text = authority.as_str();
    let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
    let port = place.strip_prefix(authority.host())?.strip_prefix(':')?;
    (!port.is_empty()).then_some(port)
}

/// The text of an answer; nothing of one that is too long.
pub(crate) fn read(body: &mut Body) -> io::Result<Vec<u8>> {
    let text = body.with_config().limit(MAX_ANSWER).read_to_vec();
    match text {
        Err(ureq::Error::BodyExceedsLimit(_)) => Ok(Vec::new()),
        text => text.map_err(io_error),
    }
}

/// The cause of an error, if that is one of the system.
pub(crate) fn io_error(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Timeout(_) => {
            io::Error::new(ErrorKind::TimedOut, "the server did not answer in time")
        }
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

/// Whether the server may have closed a connection that was in use before.
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
