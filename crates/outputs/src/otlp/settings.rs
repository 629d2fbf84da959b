//! `otlp_output`: its keys and the options of its channel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use yaml::key::Key;

use super::{Encoding, OtlpChannel, OtlpOptions};
use crate::channel::Channel;
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::net::tls::{ClientFiles, TlsOptions};

/// `otlp_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpOutput {
    /// Export alerts.
    pub enabled: bool,
    /// URL of the collector. The default path of logs is added if it has no path.
    pub endpoint: String,
    /// Encoding of records.
    pub protocol: Encoding,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// Compress requests with gzip.
    pub compress: bool,
    /// Time limit of one request in milliseconds; 0 for `output_timeout`.
    pub timeout_ms: u64,
    /// The resource attribute `service.name`.
    pub service_name: String,
    /// Further resource attributes.
    pub resource_attributes: Vec<(String, String)>,
    /// Certificate authorities of the server; empty for those of the system.
    pub ca_file: PathBuf,
    /// Certificate of this client.
    pub cert_file: PathBuf,
    /// Key of the client certificate.
    pub key_file: PathBuf,
}

impl Default for OtlpOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            endpoint: String::new(),
            protocol: Encoding::Protobuf,
            headers: Vec::new(),
            compress: false,
            timeout_ms: 0,
            service_name: "tollgate".to_owned(),
            resource_attributes: Vec::new(),
            ca_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
        }
    }
}

/// Words of OpenTelemetry's environment variables.
const PROTOCOLS: [(&str, Encoding); 2] = [
    ("http/protobuf", Encoding::Protobuf),
    ("http/json", Encoding::Json),
];
const COMPRESSIONS: [(&str, bool); 2] = [("none", false), ("gzip", true)];

#[rustfmt::skip]
impl OutputKind for OtlpOutput {
    const GROUP: &'static str = "otlp_output";
    const KEYS: &'static [Key<Self>] = &[
        Key::other("otlp_output.compression", "string", |output, node| {
            node.word(&COMPRESSIONS).map(|compress| output.compress = compress)
        }),
        Key::boolean("otlp_output.enabled", |output| &mut output.enabled),
        Key::text("otlp_output.endpoint", |output| &mut output.endpoint),
        Key::texts_by_name("otlp_output.headers", |output| &mut output.headers),
        Key::other("otlp_output.protocol", "string", |output, node| {
            node.word(&PROTOCOLS).map(|encoding| output.protocol = encoding)
        }),
        Key::texts_by_name("otlp_output.resource_attributes", |output| &mut output.resource_attributes),
        Key::text("otlp_output.service_name", |output| &mut output.service_name),
        Key::integer("otlp_output.timeout", |output| &mut output.timeout_ms),
        Key::file("otlp_output.tls.ca_file", |output| &mut output.ca_file),
        Key::file("otlp_output.tls.cert_file", |output| &mut output.cert_file),
        Key::file("otlp_output.tls.key_file", |output| &mut output.key_file),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        Missing::if_empty(&self.endpoint, "endpoint", "http://HOST:4318")
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let help = "see the keys otlp_output.* in `tollgate man run`";
        match OtlpChannel::open(self.options(common)) {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }
}

/// Directory of certificate authorities on Linux systems.
const STORE: &str = "/etc/ssl/certs";

impl OtlpOutput {
    fn options(&self, common: &Common) -> OtlpOptions {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        let name = ("service.name".to_owned(), self.service_name.clone());
        OtlpOptions {
            url: of_logs(&self.endpoint),
            encoding: self.protocol,
            headers: self.headers.clone(),
            compress: self.compress,
            resource: [name]
                .into_iter()
                .chain(self.resource_attributes.iter().cloned())
                .collect(),
            tls: TlsOptions {
                insecure: false,
                authorities: is_set(&self.ca_file).then(|| self.ca_file.clone()),
                authority_folder: PathBuf::from(STORE),
                // One without the other is an error when they are read.
                client: (is_set(&self.cert_file) || is_set(&self.key_file)).then(|| ClientFiles {
                    certificate: self.cert_file.clone(),
                    key: self.key_file.clone(),
                }),
            },
            timeout: match self.timeout_ms {
                0 => common.timeout,
                ms => Duration::from_millis(ms),
            },
        }
    }
}

/// Adds the default path of logs to a URL without a path.
fn of_logs(endpoint: &str) -> String {
    let after_scheme = endpoint
        .split_once("://")
        .map_or(endpoint, |(_, rest)| rest);
    match after_scheme.split_once('/') {
        None => format!("{endpoint}/v1/logs"),
        Some((_, "")) => format!("{endpoint}v1/logs"),
        Some(_) => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_is_that_of_all_signals() {
        for (endpoint, url) in [
            ("http://c:4318", "http://c:4318/v1/logs"),
            ("http://c:4318/", "http://c:4318/v1/logs"),
            ("https://c/v1/logs", "https://c/v1/logs"),
            ("https://c/otlp", "https://c/otlp"),
        ] {
            assert_eq!(of_logs(endpoint), url);
        }
    }

    #[test]
    fn words_are_those_of_opentelemetry() {
        let node = |text| yaml::settings::read("f", text).unwrap();
        let mut output = OtlpOutput::default();
        let key = |path: &str| {
            let keys = OtlpOutput::KEYS.iter();
            keys.into_iter().find(|key| key.path == path).unwrap()
        };
        let protocol = key("otlp_output.protocol");
        protocol.set(&mut output, &node("http/json")).unwrap();
        assert_eq!(output.protocol, Encoding::Json);
        assert!(protocol.set(&mut output, &node("grpc")).is_err());
        let compression = key("otlp_output.compression");
        compression.set(&mut output, &node("gzip")).unwrap();
        assert!(output.compress);
    }
}
