//! `host:webhook`: sends the alert as JSON to a web server.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use outputs::{HttpChannel, HttpError, HttpOptions, TlsOptions, alert_json};
use rules::Alert;

use crate::outcome::{Outcome, Status};
use crate::parameters::WebhookOptions;

/// Folder of the system's authorities.
const AUTHORITIES: &str = "/etc/ssl/certs";

/// A web server that alerts are sent to, one at a time.
#[derive(Debug)]
pub(crate) struct Webhook {
    /// Scheme, host and port: path, query and user may be secrets.
    server: String,
    channel: Mutex<HttpChannel>,
    /// Time that an alert waits for the ones before it.
    patience: Duration,
}

/// Interval between looks whether an earlier alert was sent.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
            server: server(&options.url),
            // A server that is away is not waited for longer than one that does not answer.
            channel: Mutex::new(channel.waiting_at_most(options.timeout)),
            patience: options.timeout,
        })
    }

    /// Sends an alert and waits for the answer.
    pub(crate) fn send(&self, alert: &Alert) -> Outcome {
        let server = &self.server;
        let Some(mut channel) = self.channel() else {
            let text = format!("cannot send to {server}: an earlier alert is still being sent");
            return Outcome::new(Status::Failed, text);
        };
        match channel.post_text(&alert_json(alert)) {
            Ok(()) => Outcome::new(Status::Done, format!("sent to {server}")),
            Err(error) => {
                let text = format!("cannot send to {server}: {error}");
                Outcome::new(Status::Failed, text)
            }
        }
    }

    /// Returns the connection; `None` if earlier alerts have it for too long, as with a server that does not answer.
    fn channel(&self) -> Option<MutexGuard<'_, HttpChannel>> {
        let deadline = Instant::now() + self.patience;
        loop {
            match self.channel.try_lock() {
                Ok(channel) => return Some(channel),
                Err(TryLockError::Poisoned(channel)) => return Some(channel.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Returns scheme, host and port of the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }
}

/// Returns scheme, host and port of a URL.
fn server(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest
        .find(['/', '?', '#', '\\'])
        .map_or(rest, |end| &rest[..end]);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn webhook(url: &str, timeout: Duration) -> Webhook {
        let options = WebhookOptions {
            url: url.to_owned(),
            headers: Vec::new(),
            authorities: None,
            insecure: false,
            timeout,
        };
        Webhook::open(&options).unwrap()
    }

    #[test]
    fn reports_name_the_server_and_no_secret() {
        for (url, expected) in [
            (
                "https://hooks.box/services/T0/B0/secret",
                "https://hooks.box",
            ),
            (
                "https://user:secret@box:8443?token=secret",
                "https://box:8443",
            ),
            ("http://[::1]:80#secret", "http://[::1]:80"),
            ("http://a:secret@b@box/", "http://box"),
        ] {
            assert_eq!(server(url), expected);
        }
        // Nothing listens there any more.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let url = format!("http://127.0.0.1:{port}/services/secret");
        let outcome = webhook(&url, Duration::from_millis(100)).send(&crate::testing::alert());
        assert_eq!(outcome.status, Status::Failed);
        let expected = format!("cannot send to http://127.0.0.1:{port}: ");
        assert!(outcome.text.starts_with(&expected), "{}", outcome.text);
        assert!(!outcome.text.contains("secret"), "{}", outcome.text);
    }

    #[test]
    fn a_server_that_is_away_or_silent_is_not_waited_for_longer_than_the_timeout() {
        let limit = Duration::from_secs(1);
        let away = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let away = webhook(&format!("http://{away}/"), limit);
        let begun = Instant::now();
        assert_eq!(away.send(&crate::testing::alert()).status, Status::Failed);
        assert!(begun.elapsed() < 5 * limit, "{:?}", begun.elapsed());
        // Two alerts to a server that takes the connection and says nothing.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let silent = webhook(&url, Duration::from_secs(3));
        let silent = Webhook {
            patience: Duration::from_millis(50),
            ..silent
        };
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| silent.send(&crate::testing::alert()));
            while silent.channel.try_lock().is_ok() {
                thread::sleep(LOOK_AGAIN);
            }
            let second = silent.send(&crate::testing::alert());
            assert!(!first.is_finished());
            (first.join().unwrap(), second)
        });
        assert_eq!(first.status, Status::Failed);
        assert!(
            second
                .text
                .ends_with("an earlier alert is still being sent")
        );
    }
}
