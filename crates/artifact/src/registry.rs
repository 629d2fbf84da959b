//! A client of registries, as the OCI's specification of distribution describes them.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use outputs::TlsOptions;
use outputs::http_client::{self, ClientOptions};
use serde::Deserialize;
use ureq::http::{Method, Request, Response, Uri, header};
use ureq::{Agent, Body};

use crate::credentials::Credentials;
use crate::form::{Digest, INDEX_TYPE, MANIFEST_TYPE};
use crate::{ArtifactError, Reference, Sink, Source, limits};

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Redirections that one request follows.
const MOST_REDIRECTIONS: usize = 3;
/// Folder of the certificates of the system.
const AUTHORITIES: &str = "/etc/ssl/certs";
const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

/// How to reach a registry.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// Speak HTTP without TLS. For registries on loopback alone.
    pub plain_http: bool,
    /// File of certificate authorities instead of the system's.
    pub authorities: Option<PathBuf>,
    /// Credentials, if any.
    pub credentials: Option<Credentials>,
}

/// A repository of a registry.
pub struct Remote {
    agent: Agent,
    scheme: &'static str,
    registry: String,
    repository: String,
    basic: Option<String>,
    /// The header of the last answer of a server of tokens.
    authorization: RefCell<Option<String>>,
}

/// Shows no secret.
impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)
    }
}

/// What is sent with a request.
struct Sent<'b> {
    method: Method,
    url: String,
    accept: Option<String>,
    content_type: Option<&'b str>,
    body: &'b [u8],
}

impl<'b> Sent<'b> {
    fn get(url: String) -> Self {
        Self {
            method: Method::GET,
            url,
            accept: None,
            content_type: None,
            body: &[],
        }
    }

    fn with_body(method: Method, url: String, content_type: &'b str, body: &'b [u8]) -> Self {
        Self {
            method,
            url,
            accept: None,
            content_type: Some(content_type),
            body,
        }
    }
}

impl Remote {
    /// Makes a client for the repository of a reference.
    ///
    /// # Errors
    ///
    /// The certificates cannot be used, or HTTP without TLS would leave this machine.
    pub fn new(reference: &Reference, options: &RemoteOptions) -> Result<Self, ArtifactError> {
        let registry = &reference.registry;
        if options.plain_http && !is_loopback(registry) {
            return Err(ArtifactError::Reference {
                text: reference.to_string(),
                problem:
                    "HTTP without TLS is for registries on loopback alone, such as localhost:5000"
                        .to_owned(),
            });
        }
        let scheme = if options.plain_http { "http" } else { "https" };
        Ok(Self {
            agent: agent(
                &format!("{scheme}://{registry}"),
                options.authorities.clone(),
            )?,
            scheme,
            registry: registry.clone(),
            repository: reference.repository.clone(),
            basic: options
                .credentials
                .as_ref()
                .and_then(|all| all.basic(registry)),
            authorization: RefCell::new(None),
        })
    }

    fn url(&self, rest: &str) -> String {
        format!(
            "{}://{}/v2/{}/{rest}",
            self.scheme, self.registry, self.repository
        )
    }

    /// Sends a request, and once more with a token if the registry asks for one.
    fn send(&self, sent: &Sent<'_>, access: &str) -> Result<Response<Body>, ArtifactError> {
        let authorization = self.authorization.borrow().clone();
        let answer = run(&self.agent, sent, authorization.as_deref())?;
        if answer.status().as_u16() != 401 {
            return Ok(answer);
        }
        let asked = answer.headers().get(header::WWW_AUTHENTICATE);
        let asked = asked
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
            .to_owned();
        let Some(authorization) = self.authorize(&asked, access)? else {
            return Ok(answer);
        };
        *self.authorization.borrow_mut() = Some(authorization.clone());
        run(&self.agent, sent, Some(&authorization))
    }

    /// Returns the header that a challenge asks for; `None` if there is nothing to answer it with.
    fn authorize(&self, asked: &str, access: &str) -> Result<Option<String>, ArtifactError> {
        if asked
            .get(..5)
            .is_some_and(|word| word.eq_ignore_ascii_case("basic"))
        {
            return Ok(self.basic.clone());
        }
        let Some(realm) = parameter(asked, "realm") else {
            return Ok(None);
        };
        if !may_have_credentials(&realm, self.scheme) {
            let problem = "its server of tokens has neither an https:// address, nor, as it has itself, one of loopback";
            return Err(ArtifactError::form("the registry", problem));
        }
        let scope = format!("repository:{}:{access}", self.repository);
        let sign = if realm.contains('?') { '&' } else { '?' };
        let mut url = format!("{realm}{sign}scope={}", escaped(&scope));
        if let Some(service) = parameter(asked, "service") {
            url.push_str(&format!("&service={}", escaped(&service)));
        }
        let answer = run(&self.agent, &Sent::get(url.clone()), self.basic.as_deref())?;
        let text = accepted(
            answer,
            &url,
            "the answer of the server of tokens",
            limits::ANSWER,
        )?;
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let what = "the answer of the server of tokens";
        let token: Token = crate::form::json(&text, what)?;
        let token = token.token.or(token.access_token);
        let token = token.ok_or_else(|| ArtifactError::form(what, "it has no token"))?;
        Ok(Some(format!("Bearer {token}")))
    }

    /// Follows redirections, as registries send them to a store of blobs. Credentials are not sent there.
    fn follow(
        &self,
        mut answer: Response<Body>,
    ) -> Result<(Response<Body>, String), ArtifactError> {
        let mut url = String::new();
        for _ in 0..MOST_REDIRECTIONS {
            if !answer.status().is_redirection() {
                return Ok((answer, url));
            }
            let to = answer.headers().get(header::LOCATION);
            let to = to.and_then(|value| value.to_str().ok()).unwrap_or("");
            url = match to.starts_with('/') {
                true => format!("{}://{}{to}", self.scheme, self.registry),
                false => to.to_owned(),
            };
            // From TLS to none, or from loopback to elsewhere.
            if !url.starts_with(&format!("{}://", self.scheme)) {
                let problem = "it redirects to another scheme";
                return Err(ArtifactError::form("the registry", problem));
            }
            if self.scheme == "http" && !host_of(&url).is_some_and(|host| is_loopback(&host)) {
                let problem = "it redirects away from loopback";
                return Err(ArtifactError::form("the registry", problem));
            }
            answer = run(&self.agent, &Sent::get(url.clone()), None)?;
        }
        let problem = format!("it redirects more than {MOST_REDIRECTIONS} times");
        Err(ArtifactError::form("the registry", problem))
    }

    /// Returns where to send a blob.
    fn upload(&self) -> Result<String, ArtifactError> {
        let url = self.url("blobs/uploads/");
        let start = Sent::with_body(Method::POST, url.clone(), "application/octet-stream", &[]);
        let answer = self.send(&start, "pull,push")?;
        let location = answer.headers().get(header::LOCATION);
        let location = location
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        accepted(answer, &url, "an answer of the registry", limits::ANSWER)?;
        // An answer without a place is refused below, as one with a place elsewhere is.
        let location = location.unwrap_or_default();
        let base = format!("{}://{}", self.scheme, self.registry);
        match location.starts_with('/') {
            true => Ok(base + &location),
            false if location.starts_with(&format!("{base}/")) => Ok(location),
            false => {
                let problem = "it names no place of its own to send content to";
                Err(ArtifactError::form("the registry", problem))
            }
        }
    }
}

impl Source for Remote {
    fn manifest(&self, version: &str) -> Result<Option<(Vec<u8>, Option<String>)>, ArtifactError> {
        let url = self.url(&format!("manifests/{version}"));
        let mut sent = Sent::get(url.clone());
        sent.accept = Some(format!("{MANIFEST_TYPE}, {INDEX_TYPE}"));
        let (answer, _) = self.follow(self.send(&sent, "pull")?)?;
        if answer.status().as_u16() == 404 {
            return Ok(None);
        }
        let said = answer.headers().get(header::CONTENT_TYPE);
        let said = said
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let bytes = accepted(answer, &url, "the manifest", limits::MANIFEST)?;
        Ok(Some((bytes, said)))
    }

    fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ArtifactError> {
        let url = self.url(&format!("blobs/{digest}"));
        let (answer, _) = self.follow(self.send(&Sent::get(url.clone()), "pull")?)?;
        accepted(answer, &url, "a blob", limit)
    }
}

impl Sink for Remote {
    fn put_blob(&self, bytes: &[u8]) -> Result<Digest, ArtifactError> {
        let digest = Digest::of(bytes);
        let mut known = Sent::get(self.url(&format!("blobs/{digest}")));
        known.method = Method::HEAD;
        if self.send(&known, "pull,push")?.status().is_success() {
            return Ok(digest);
        }
        let place = self.upload()?;
        let sign = if place.contains('?') { '&' } else { '?' };
        let url = format!("{place}{sign}digest={}", escaped(digest.as_str()));
        let sent = Sent::with_body(Method::PUT, url.clone(), "application/octet-stream", bytes);
        accepted(
            self.send(&sent, "pull,push")?,
            &url,
            "an answer of the registry",
            limits::ANSWER,
        )?;
        Ok(digest)
    }

    fn put_manifest(
        &self,
        tag: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest, ArtifactError> {
        let url = self.url(&format!("manifests/{tag}"));
        let sent = Sent::with_body(Method::PUT, url.clone(), media_type, bytes);
        accepted(
            self.send(&sent, "pull,push")?,
            &url,
            "an answer of the registry",
            limits::ANSWER,
        )?;
        Ok(Digest::of(bytes))
    }
}

/// Reads an index file by HTTPS.
///
/// # Errors
///
/// It cannot be read, or is too large.
pub fn read_index(url: &str, authorities: Option<PathBuf>) -> Result<String, ArtifactError> {
    if !url.starts_with("https://") {
        return Err(ArtifactError::Reference {
            text: url.to_owned(),
            problem: "an index comes from a file or an https:// address".to_owned(),
        });
    }
    let what = "the index";
    let agent = agent(url, authorities)?;
    let answer = run(&agent, &Sent::get(url.to_owned()), None)?;
    let bytes = accepted(answer, url, what, limits::INDEX)?;
    String::from_utf8(bytes).map_err(|error| ArtifactError::form(what, error.to_string()))
}

fn agent(url: &str, authorities: Option<PathBuf>) -> Result<Agent, ArtifactError> {
    let tls = TlsOptions {
        authorities,
        authority_folder: AUTHORITIES.into(),
        ..TlsOptions::default()
    };
    Ok(http_client::agent(&ClientOptions {
        url,
        user_agent: USER_AGENT,
        tls: &tls,
        idle: Duration::from_secs(10),
        timeout: TIMEOUT,
    })?)
}

fn run(
    agent: &Agent,
    sent: &Sent<'_>,
    authorization: Option<&str>,
) -> Result<Response<Body>, ArtifactError> {
    let failed = |error: ureq::Error| ArtifactError::Request {
        url: shown(&sent.url),
        source: error.into_io(),
    };
    let mut request = Request::builder().method(&sent.method).uri(&sent.url);
    if let Some(accept) = &sent.accept {
        request = request.header(header::ACCEPT, accept);
    }
    if let Some(content_type) = sent.content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let answer = match sent.content_type {
        Some(_) => request.body(sent.body).map(|request| agent.run(request)),
        None => request.body(()).map(|request| agent.run(request)),
    };
    let bad = |error: ureq::http::Error| failed(ureq::Error::Http(error));
    answer.map_err(bad)?.map_err(failed)
}

/// Returns the body of a success.
fn accepted(
    mut answer: Response<Body>,
    url: &str,
    what: &'static str,
    limit: u64,
) -> Result<Vec<u8>, ArtifactError> {
    let status = answer.status();
    let limit = if status.is_success() {
        limit
    } else {
        limits::ANSWER
    };
    let body = answer.body_mut().with_config().limit(limit).read_to_vec();
    if !status.is_success() {
        // What it says besides helps, but is not needed.
        let text = body
            .ok()
            .and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok());
        let text = text.and_then(|text| Some(text["errors"][0]["message"].as_str()?.to_owned()));
        let text: Option<String> = text.map(|text| text.chars().take(200).collect());
        return Err(ArtifactError::Status {
            url: shown(url),
            status: status.as_u16(),
            // The status is the error; its text is an addition.
            text: text
                .map(|text| format!(": {}", text.escape_debug()))
                .unwrap_or_default(),
        });
    }
    body.map_err(|error| match error {
        ureq::Error::BodyExceedsLimit(_) => ArtifactError::TooLarge { what, limit },
        error => ArtifactError::Request {
            url: shown(url),
            source: error.into_io(),
        },
    })
}

/// Returns an address for messages: without a query, which may hold a secret.
fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or(url);
    url.chars()
        .take(300)
        .collect::<String>()
        .escape_debug()
        .to_string()
}

/// Whether credentials for a registry that is asked by `scheme` may be sent to an address that it names: by TLS, or from
/// loopback to loopback.
fn may_have_credentials(url: &str, scheme: &str) -> bool {
    url.starts_with("https://")
        || (scheme == "http"
            && url.starts_with("http://")
            && host_of(url).is_some_and(|host| is_loopback(&host)))
}

/// Returns the host of an address: without a port, and without what is before `@`.
fn host_of(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(uri.host()?.to_owned())
}

/// Whether a host, with or without a port, is this machine. An address of IPv6 may have brackets.
fn is_loopback(registry: &str) -> bool {
    let is_bare = registry.parse::<IpAddr>().is_ok();
    let (host, rest) = match registry.strip_prefix('[') {
        Some(inner) => inner.split_once(']').unwrap_or((inner, "]")),
        None if is_bare => (registry, ""),
        None => registry.split_at(registry.find(':').unwrap_or(registry.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Returns a parameter of a challenge, such as `realm="https://..."`.
pub(crate) fn parameter(challenge: &str, name: &str) -> Option<String> {
    let (_, rest) = challenge.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Escapes all that has a meaning in a URL.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests;
