//! Requests to the collector.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::StatusCode;

use super::spool::Pending;
use super::standing::{LocalError, NotEnrolled};
use super::{CollectorOptions, SEQUENCE_HEADER};
use crate::capture::CapturedAlert;
use crate::net::client::{self, ClientOptions, HttpError};
use crate::net::tls::{ClientFiles, TlsError};

/// The connection to a collector, and who this agent is there.
pub(super) struct Link {
    agent: Agent,
    url: String,
    credential: Credential,
    /// Version of the files of the client certificate that `agent` presents.
    certificate: Option<FileVersions>,
    /// File that keeps the secret, beside the spool.
    identity: Option<PathBuf>,
    secret: Option<String>,
}

/// What this agent enrols with.
enum Credential {
    /// The token in this file.
    Token(PathBuf),
    /// The client certificate of its connection.
    Certificate,
}

impl Credential {
    fn of(options: &CollectorOptions) -> Result<Self, HttpError> {
        let wrong = |problem| Err(HttpError::Credential { problem });
        match (&options.token_file, &options.tls.client) {
            (Some(_), Some(_)) => wrong("token_file and cert_file exclude one another"),
            (None, None) => wrong("there is neither token_file nor cert_file"),
            (Some(path), None) => match read_token(path) {
                Ok(_) => Ok(Self::Token(path.clone())),
                Err(source) => Err(HttpError::Token {
                    path: path.clone(),
                    source,
                }),
            },
            (None, Some(_)) if options.url.starts_with("http://") => {
                wrong("cert_file needs a collector at https://")
            }
            (None, Some(_)) => Ok(Self::Certificate),
        }
    }
}

/// Times of the files of a client certificate; they differ after a renewal.
type FileVersions = [Option<SystemTime>; 2];

fn versions(files: &ClientFiles) -> FileVersions {
    [&files.certificate, &files.key].map(|path| fs::metadata(path).ok()?.modified().ok())
}

/// Refuses a private key that every user of this machine can read.
fn check_key(files: &ClientFiles) -> Result<(), TlsError> {
    let metadata = fs::metadata(&files.key).map_err(|source| TlsError::Read {
        path: files.key.clone(),
        source,
    })?;
    let mode = metadata.mode() & 0o777;
    match mode & 0o007 {
        0 => Ok(()),
        _ => Err(TlsError::Pem {
            path: files.key.clone(),
            problem: format!(
                "a private key must not be open to others, and its mode is {mode:o}; run `chmod o= {}`",
                files.key.display()
            ),
        }),
    }
}

/// Whether the collector knows this agent.
pub(super) enum Introduced {
    /// It does, and has the bundle of this digest for it.
    Known {
        bundle: Option<String>,
        /// What it is to record.
        capture: Option<Order>,
        /// The alerts around which it is to record, as JSON; `None` if the collector says nothing about that.
        capture_on: Option<Value>,
    },
    /// It does now.
    Enrolled,
}

/// A capture that the collector asks for.
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) seconds: u64,
    /// Parts that the collector has.
    pub(super) parts: u64,
}

impl Order {
    /// Returns `None` if the answer asks for none, as that of an older collector.
    fn of(answer: &Value) -> Option<Self> {
        let capture = &answer["capture"];
        Some(Self {
            id: capture["id"].as_u64()?,
            seconds: capture["seconds"].as_u64()?,
            // An older collector does not say it.
            parts: capture["parts"].as_u64().unwrap_or(0),
        })
    }
}

/// Where captures around alerts are announced.
const ALERT_CAPTURES: &str = "/api/v1/captures/alert";

/// Largest answer with a bundle.
const MAX_BUNDLE: u64 = 8 << 20;

/// What the collector makes of a request about a capture.
pub(super) enum CaptureAnswer<T> {
    /// It has done what was asked.
    Taken(T),
    /// It does not want the capture, or knows it no more.
    Unwanted,
    /// It cannot do it now: it is busy, slow or full, or does not know who asks.
    Later(io::Error),
}

impl<T> CaptureAnswer<T> {
    fn of(
        (status, answer): (StatusCode, Value),
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> io::Result<Self> {
        match status {
            StatusCode::OK | StatusCode::CREATED => {
                let missing = || io::Error::other("the answer about a capture lacks a number");
                read(&answer).ok_or_else(missing).map(Self::Taken)
            }
            // These may be others the next time: who asks is not known now, or it is too early.
            StatusCode::UNAUTHORIZED
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => Ok(Self::Later(answered(status, &answer))),
            _ if status.is_client_error() => Ok(Self::Unwanted),
            _ => Ok(Self::Later(answered(status, &answer))),
        }
    }
}

/// What became of a batch.
pub(super) enum Sent {
    /// Everything up to this number is stored.
    Acknowledged(u64),
    /// The collector will never take it.
    Refused(String),
    /// The collector does not know this agent any more.
    Unknown,
}

impl Link {
    pub(super) fn open(options: &CollectorOptions) -> Result<Self, HttpError> {
        let credential = Credential::of(options)?;
        // Before they are read: what changes meanwhile is read again.
        let certificate = options.tls.client.as_ref().map(versions);
        Ok(Self {
            agent: agent(options)?,
            url: options.url.trim_end_matches('/').to_owned(),
            credential,
            certificate,
            identity: None,
            secret: None,
        })
    }

    pub(super) fn reopen(&mut self, options: &CollectorOptions) -> Result<(), HttpError> {
        let certificate = options.tls.client.as_ref().map(versions);
        self.agent = agent(options)?;
        self.certificate = certificate;
        Ok(())
    }

    /// Presents a renewed client certificate from now on.
    pub(super) fn renew(&mut self, options: &CollectorOptions) -> Result<(), HttpError> {
        match options.tls.client.as_ref().map(versions) == self.certificate {
            true => Ok(()),
            false => self.reopen(options),
        }
    }

    /// Asks at another place.
    #[cfg(test)]
    pub(super) fn move_to(&mut self, url: &str) {
        url.clone_into(&mut self.url);
    }

    /// Finds out who this agent was, if the spool is one of before.
    pub(super) fn identify(&mut self, folder: &Path) -> io::Result<()> {
        let path = folder.join("identity.json");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
                // Another collector does not know it.
                let is_here = value["url"] == *self.url;
                let secret = value["secret"].as_str().filter(|_| is_here);
                self.secret = secret.map(str::to_owned);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(LocalError::of("read", &path)(error)),
        }
        self.identity = Some(path);
        Ok(())
    }

    /// Shows a sign of life with the inventory, and enrols if the collector does not know this agent.
    pub(super) fn introduce(&mut self, inventory: &Value) -> io::Result<Introduced> {
        if let Some(secret) = self.secret.clone() {
            let inventory = inventory.to_string();
            let (status, answer) =
                self.request("PUT", "/api/v1/inventory", Some(&secret), |request| {
                    request.send(inventory.as_bytes())
                })?;
            match status {
                StatusCode::OK => {
                    let bundle = answer["bundle"].as_str().map(str::to_owned);
                    let capture = Order::of(&answer);
                    return Ok(Introduced::Known {
                        bundle,
                        capture,
                        capture_on: answer.get("capture_on").cloned(),
                    });
                }
                StatusCode::UNAUTHORIZED => self.secret = None,
                _ => return Err(answered(status, &answer)),
            }
        }
        let token = match &self.credential {
            Credential::Token(path) => {
                let token = read_token(path);
                Some(token.map_err(LocalError::of("read the token in", path))?)
            }
            Credential::Certificate => None,
        };
        let body = json!({"host": inventory["host"]}).to_string();
        let (status, answer) =
            self.request("POST", "/api/v1/agents", token.as_deref(), |request| {
                request.send(body.as_bytes())
            })?;
        if NotEnrolled::is(status) {
            // The status says what is wrong; a collector need not say more.
            let why = answer["error"].as_str().unwrap_or_default().to_owned();
            return Err(io::Error::other(NotEnrolled {
                status,
                why,
                has_token: token.is_some(),
            }));
        }
        let secret = answer["secret"]
            .as_str()
            .filter(|_| status == StatusCode::CREATED);
        let secret = secret.ok_or_else(|| answered(status, &answer))?.to_owned();
        if let Some(path) = &self.identity {
            let text = json!({"url": self.url, "secret": secret}).to_string();
            write_identity(path, &text).map_err(LocalError::of("write", path))?;
        }
        self.secret = Some(secret);
        Ok(Introduced::Enrolled)
    }

    /// Fetches the bundle that the collector has for this agent.
    pub(super) fn bundle(&self) -> io::Result<String> {
        let Some(secret) = &self.secret else {
            return Err(io::Error::other("the collector does not know this agent"));
        };
        let request = self.agent.get(format!("{}/api/v1/bundle", self.url));
        let request = request.header("Authorization", format!("Bearer {secret}"));
        let mut answer = request.call().map_err(client::io_error)?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_BUNDLE)
            .read_to_string()
            .map_err(client::io_error)?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match (answer.status(), value["bundle"].as_str()) {
            (StatusCode::OK, Some(bundle)) => Ok(bundle.to_owned()),
            (status, _) => Err(answered(status, &value)),
        }
    }

    /// Announces a capture around an alert. Returns its number and the part that the collector expects. An older collector wants none.
    pub(super) fn announce(
        &self,
        alert: &CapturedAlert,
    ) -> io::Result<CaptureAnswer<(u64, usize)>> {
        let Some(secret) = &self.secret else {
            return Err(io::Error::other("the collector does not know this agent"));
        };
        let body = json!({
            "rule": alert.rule,
            "time_ns": alert.time_ns,
            "before_ms": alert.before_ms,
            "after_ms": alert.after_ms,
        });
        let body = body.to_string();
        let answered = self.request("POST", ALERT_CAPTURES, Some(secret), |request| {
            request.send(body.as_bytes())
        })?;
        CaptureAnswer::of(answered, |answer| {
            let part = answer["parts"].as_u64();
            let part = part.and_then(|part| usize::try_from(part).ok());
            answer["capture"].as_u64().zip(part)
        })
    }

    /// Sends a part of a capture. Returns the number of the part that is expected next.
    pub(super) fn send_chunk(
        &self,
        id: u64,
        number: usize,
        data: &[u8],
    ) -> io::Result<CaptureAnswer<usize>> {
        let path = format!("/api/v1/captures/{id}/chunks/{number}");
        CaptureAnswer::of(self.put_capture(&path, data)?, |answer| {
            let next = answer["next"].as_u64();
            next.and_then(|next| usize::try_from(next).ok())
        })
    }

    /// Ends a capture.
    pub(super) fn end_capture(&self, id: u64, end: &Value) -> io::Result<CaptureAnswer<()>> {
        let path = format!("/api/v1/captures/{id}/done");
        CaptureAnswer::of(
            self.put_capture(&path, end.to_string().as_bytes())?,
            |_answer| Some(()),
        )
    }

    fn put_capture(&self, path: &str, body: &[u8]) -> io::Result<(StatusCode, Value)> {
        let Some(secret) = &self.secret else {
            return Err(io::Error::other("the collector does not know this agent"));
        };
        self.request("PUT", path, Some(secret), |request| request.send(body))
    }

    pub(super) fn send(&self, pending: &Pending) -> io::Result<Sent> {
        let Some(secret) = &self.secret else {
            return Ok(Sent::Unknown);
        };
        let body = client::compressed(&pending.text)?;
        let (status, answer) =
            self.request("POST", "/api/v1/batches", Some(secret), |request| {
                request
                    .header(SEQUENCE_HEADER, pending.first.to_string())
                    .header("Content-Encoding", "gzip")
                    .send(&body)
            })?;
        match status {
            StatusCode::OK => {
                let number = answer["acknowledged"].as_u64();
                let up_to =
                    number.ok_or_else(|| io::Error::other("the answer has no `acknowledged`"))?;
                if up_to < pending.first {
                    return Err(io::Error::other("the collector acknowledged nothing"));
                }
                Ok(Sent::Acknowledged(up_to))
            }
            StatusCode::UNAUTHORIZED => Ok(Sent::Unknown),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => {
                Ok(Sent::Refused(answered(status, &answer).to_string()))
            }
            _ => Err(answered(status, &answer)),
        }
    }

    /// Sends, in place of a record that the collector does not take, that it is lost.
    pub(super) fn skip(&self, pending: &Pending, why: &str) -> io::Result<()> {
        let line = json!({"loss": "spool", "count": 1, "detail": why}).to_string();
        let replaced = Pending {
            first: pending.first,
            lines: 1,
            text: line.into_bytes(),
        };
        match self.send(&replaced)? {
            Sent::Acknowledged(_) => Ok(()),
            Sent::Refused(why) => Err(io::Error::other(why)),
            Sent::Unknown => Err(io::Error::other("the collector does not know this agent")),
        }
    }

    /// Makes a request and reads the answer.
    fn request(
        &self,
        method: &str,
        path: &str,
        secret: Option<&str>,
        send: impl FnOnce(
            ureq::RequestBuilder<ureq::typestate::WithBody>,
        ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> io::Result<(StatusCode, Value)> {
        let url = format!("{}{path}", self.url);
        let request = match method {
            "PUT" => self.agent.put(url),
            _ => self.agent.post(url),
        };
        let request = match secret {
            Some(secret) => request.header("Authorization", format!("Bearer {secret}")),
            None => request,
        };
        let mut answer = send(request).map_err(client::io_error)?;
        let text = client::read(answer.body_mut())?.unwrap_or_default();
        let value = serde_json::from_slice(&text).unwrap_or(Value::Null);
        Ok((answer.status(), value))
    }
}

fn write_identity(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

fn answered(status: StatusCode, answer: &Value) -> io::Error {
    let why = answer["error"].as_str().unwrap_or_default();
    io::Error::other(format!("the collector answered {status} {why}"))
}

/// Time a connection is kept: a sign of life follows sooner.
const IDLE: Duration = Duration::from_secs(45);

fn agent(options: &CollectorOptions) -> Result<Agent, HttpError> {
    if let Some(files) = &options.tls.client {
        check_key(files)?;
    }
    client::agent(&ClientOptions {
        url: &options.url,
        user_agent: concat!("tollgate/", env!("CARGO_PKG_VERSION")),
        tls: &options.tls,
        idle: IDLE,
        timeout: options.timeout,
    })
}

pub(super) fn read_token(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let token = text.trim();
    let is_token = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
    match is_token {
        true => Ok(token.to_owned()),
        false => Err(io::Error::other("it has no token")),
    }
}
