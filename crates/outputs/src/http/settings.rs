//! `http_output`: its keys and the options of its channel.

use std::path::PathBuf;

use yaml::key::Key;

use super::{HttpChannel, HttpOptions};
use crate::channel::Channel;
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::net::tls::{ClientFiles, TlsOptions};

/// `http_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOutput {
    /// Post alerts.
    pub enabled: bool,
    /// The URL.
    pub url: String,
    /// Value of the header User-Agent.
    pub user_agent: String,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// Do not verify the certificate of the server.
    pub insecure: bool,
    /// Certificate authority of the server, one file.
    pub ca_cert: PathBuf,
    /// Certificate authorities of the server, one file.
    pub ca_bundle: PathBuf,
    /// Certificate authorities of the server, a folder.
    pub ca_path: PathBuf,
    /// Send a client certificate.
    pub mtls: bool,
    /// The client certificate.
    pub client_cert: PathBuf,
    /// Key of the client certificate.
    pub client_key: PathBuf,
    /// Print the answers of the server.
    pub echo: bool,
    /// Compress requests with gzip.
    pub compress_uploads: bool,
    /// Keep the connection open between alerts.
    pub keep_alive: bool,
    /// Number of timeouts in a row after which alerts are dropped.
    pub max_consecutive_timeouts: u8,
}

impl Default for HttpOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            url: String::new(),
            user_agent: "falcosecurity/falco".to_owned(),
            headers: Vec::new(),
            insecure: false,
            ca_cert: PathBuf::new(),
            ca_bundle: PathBuf::new(),
            ca_path: PathBuf::from("/etc/ssl/certs"),
            mtls: false,
            client_cert: PathBuf::from("/etc/ssl/certs/client.crt"),
            client_key: PathBuf::from("/etc/ssl/certs/client.key"),
            echo: false,
            compress_uploads: false,
            keep_alive: false,
            max_consecutive_timeouts: 5,
        }
    }
}

#[rustfmt::skip]
impl OutputKind for HttpOutput {
    const GROUP: &'static str = "http_output";
    /// `http_output.headers` is not in Falco.
    const KEYS: &'static [Key<Self>] = &[
        Key::file("http_output.ca_bundle", |output| &mut output.ca_bundle),
        Key::file("http_output.ca_cert", |output| &mut output.ca_cert),
        Key::file("http_output.ca_path", |output| &mut output.ca_path),
        Key::file("http_output.client_cert", |output| &mut output.client_cert),
        Key::file("http_output.client_key", |output| &mut output.client_key),
        Key::boolean("http_output.compress_uploads", |output| &mut output.compress_uploads),
        Key::boolean("http_output.echo", |output| &mut output.echo),
        Key::boolean("http_output.enabled", |output| &mut output.enabled),
        Key::texts_by_name("http_output.headers", |output| &mut output.headers),
        Key::boolean("http_output.insecure", |output| &mut output.insecure),
        Key::boolean("http_output.keep_alive", |output| &mut output.keep_alive),
        // Falco stores the value in one byte.
        Key::other("http_output.max_consecutive_timeouts", "integer", |output, node| {
            node.small().map(|limit| output.max_consecutive_timeouts = limit)
        }),
        Key::boolean("http_output.mtls", |output| &mut output.mtls),
        Key::text("http_output.url", |output| &mut output.url),
        Key::text("http_output.user_agent", |output| &mut output.user_agent),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        Missing::if_empty(&self.url, "url", "http://HOST:PORT/")
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let options = HttpOptions {
            url: unquoted(&self.url).to_owned(),
            user_agent: self.user_agent.clone(),
            headers: self.headers.clone(),
            json: common.json,
            tls: self.tls(),
            echo: self.echo.then_some(common.prints_to),
            compress: self.compress_uploads,
            keep_alive: self.keep_alive,
            max_consecutive_timeouts: self.max_consecutive_timeouts.into(),
            timeout: common.timeout,
        };
        let help = "see the keys http_output.* in `tollgate man run`";
        match HttpChannel::open(options) {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }
}

impl HttpOutput {
    fn tls(&self) -> TlsOptions {
        let files = [&self.ca_cert, &self.ca_bundle];
        let authorities = files.into_iter().find(|file| !file.as_os_str().is_empty());
        TlsOptions {
            insecure: self.insecure,
            authorities: authorities.cloned(),
            authority_folder: self.ca_path.clone(),
            client: self.mtls.then(|| ClientFiles {
                certificate: self.client_cert.clone(),
                key: self.client_key.clone(),
            }),
        }
    }
}

/// Removes the quotes that Falco strips from the value.
fn unquoted(url: &str) -> &str {
    let without = |quote| url.strip_prefix(quote)?.strip_suffix(quote);
    without('"').or_else(|| without('\'')).unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_file_wins_over_the_bundle_and_both_over_the_folder() {
        let output = HttpOutput {
            ca_bundle: "/b".into(),
            ..HttpOutput::default()
        };
        assert_eq!(output.tls().authorities, Some("/b".into()));
        let output = HttpOutput {
            ca_cert: "/c".into(),
            mtls: true,
            ..output
        };
        assert_eq!(output.tls().authorities, Some("/c".into()));
        let client = output.tls().client.expect("mtls is on");
        assert_eq!(client.key, PathBuf::from("/etc/ssl/certs/client.key"));
        let tls = HttpOutput::default().tls();
        assert_eq!(tls.authorities, None);
        assert_eq!(tls.authority_folder, PathBuf::from("/etc/ssl/certs"));
    }

    #[test]
    fn quotes_that_are_part_of_the_value_are_taken_off() {
        for url in ["http://a/", "\"http://a/\"", "'http://a/'"] {
            assert_eq!(unquoted(url), "http://a/");
        }
        assert_eq!(unquoted("\"http://a/"), "\"http://a/");
    }
}
