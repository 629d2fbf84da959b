//! `host:webhook`: sends the alert as JSON to a web server.

use std::sync::{Mutex, PoisonError};

use outputs::{HttpChannel, HttpError, HttpOptions, TlsOptions, alert_json};
use rules::Alert;

use crate::outcome::{Outcome, Status};
use crate::parameters::WebhookOptions;

/// Folder of the system's authorities.
const AUTHORITIES: &str = "/etc/ssl/certs";

/// A web server that alerts are sent to, one at a time.
#[derive(Debug)]
pub(crate) struct Webhook {
    url: String,
    channel: Mutex<HttpChannel>,
}

impl Webhook {
    /// Reads certificates. Connects with the first alert.
    ///
    /// # Errors
    ///
    /// The address, a header or a certificate cannot be used.
    pub(crate) fn open(options: &WebhookOptions) -> Result<Self, HttpError> {
        let channel = HttpChannel::open(HttpOptions {
            url: options.url.clone(),
            user_agent: "tollgate".to_owned(),
            headers: options.headers.clone(),
            json: true,
            tls: TlsOptions {
                insecure: options.insecure,
                authorities: options.authorities.clone(),
                authority_folder: AUTHORITIES.into(),
                client: None,
            },
            echo: None,
            compress: false,
            keep_alive: false,
            max_consecutive_timeouts: 0,
            timeout: options.timeout,
        })?;
        Ok(Self {
            url: options.url.clone(),
            channel: Mutex::new(channel),
        })
    }

    /// Sends an alert and waits for the answer.
    pub(crate) fn send(&self, alert: &Alert) -> Outcome {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        match channel.post_text(&alert_json(alert)) {
            Ok(()) => Outcome::new(Status::Done, format!("sent to {}", self.url)),
            Err(error) => {
                let text = format!("cannot send to {}: {error}", self.url);
                Outcome::new(Status::Failed, text)
            }
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}
