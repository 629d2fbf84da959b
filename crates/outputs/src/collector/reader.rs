//! Questions to a collector, as programs for people ask them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

use super::link::read_token;
use crate::net::client::{self, ClientOptions, HttpError};
use crate::net::tls::TlsOptions;

/// Longest answer in bytes.
const MAX_ANSWER: u64 = 64 << 20;

/// Time limit of one question.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of a collector's API.
pub struct CollectorReader {
    agent: Agent,
    url: String,
    secret: String,
}

impl CollectorReader {
    /// Prepares questions to the collector at `url`, with the token in a file. Asks nothing yet.
    ///
    /// # Errors
    ///
    /// The URL, the token or the certificates cannot be used.
    pub fn open(url: &str, token_file: &Path, ca_file: Option<PathBuf>) -> Result<Self, HttpError> {
        let secret = read_token(token_file).map_err(|source| HttpError::Token {
            path: token_file.to_owned(),
            source,
        })?;
        let tls = TlsOptions {
            insecure: false,
            authorities: ca_file,
            authority_folder: PathBuf::from(super::settings::STORE),
            client: None,
        };
        let options = ClientOptions {
            url,
            user_agent: concat!("tollgate/", env!("CARGO_PKG_VERSION")),
            tls: &tls,
            idle: TIMEOUT,
            timeout: TIMEOUT,
        };
        Ok(Self {
            agent: client::agent(&options)?,
            url: url.trim_end_matches('/').to_owned(),
            secret,
        })
    }

    /// Asks, and returns the status and the answer in JSON.
    ///
    /// # Errors
    ///
    /// The collector does not answer, or not in JSON.
    pub fn get(&self, path: &str) -> io::Result<(u16, Value)> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.secret));
        read(request.call())
    }

    /// Downloads a file, or returns the status and the refusal in JSON.
    ///
    /// # Errors
    ///
    /// The collector does not answer, refuses not in JSON, or the file is larger than 64 MiB.
    pub fn bytes(&self, path: &str) -> io::Result<Result<Vec<u8>, (u16, Value)>> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.secret));
        let mut answer = request.call().map_err(client::io_error)?;
        if !answer.status().is_success() {
            return read(Ok(answer)).map(Err);
        }
        let data = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_vec();
        data.map_err(client::io_error).map(Ok)
    }

    /// Asks for something new in JSON, and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// The collector does not answer, or not in JSON.
    pub fn post(&self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request
            .header("Authorization", format!("Bearer {}", self.secret))
            .header("Content-Type", "application/json");
        read(request.send(body.to_string().as_bytes()))
    }

    /// Sends a change in JSON, and returns the status and the answer.
    ///
    /// # Errors
    ///
    /// The collector does not answer, or not in JSON.
    pub fn put(&self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        let request = self.agent.put(format!("{}{path}", self.url));
        let request = request
            .header("Authorization", format!("Bearer {}", self.secret))
            .header("Content-Type", "application/json");
        read(request.send(body.to_string().as_bytes()))
    }
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> io::Result<(u16, Value)> {
    let mut answer = answer.map_err(client::io_error)?;
    let status = answer.status().as_u16();
    let text = answer
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER)
        .read_to_string();
    let text = text.map_err(client::io_error)?;
    let value = serde_json::from_str(&text).map_err(|_error| {
        io::Error::other("it does not answer in JSON; is that the address of a collector?")
    })?;
    Ok((status, value))
}
