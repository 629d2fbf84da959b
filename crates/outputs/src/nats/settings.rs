//! `nats_output`: its keys and the options of its channel.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use yaml::key::Key;

use super::address::Address;
use super::credentials::Credentials;
use super::{NatsChannel, NatsError, NatsOptions};
use crate::channel::Channel;
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::net::tls::{ClientFiles, TlsOptions};

/// `nats_output`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsOutput {
    /// Publish alerts.
    pub enabled: bool,
    /// URLs of the servers. The channel connects to one of them.
    pub url: Vec<String>,
    /// Template of an alert's subject.
    pub subject: String,
    /// Time limit of one attempt in milliseconds; 0 for `output_timeout`.
    pub timeout_ms: u64,
    /// Name of the user.
    pub user: String,
    /// The file with the password.
    pub password_file: PathBuf,
    /// The file with the token.
    pub token_file: PathBuf,
    /// The file with JWT and seed, or with the seed alone.
    pub credentials_file: PathBuf,
    /// `tls`.
    pub tls: NatsTls,
    /// `jetstream`.
    pub jetstream: JetStream,
}

/// `nats_output.tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsTls {
    /// Require encryption.
    pub enabled: bool,
    /// Certificate authorities of the server; empty for those of the system.
    pub ca_file: PathBuf,
    /// Certificate of this client.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
}

/// `nats_output.jetstream`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JetStream {
    /// Wait until a stream has stored the alert.
    pub enabled: bool,
    /// Name of the stream that must store the alert; empty for any.
    pub stream: String,
}

impl Default for NatsOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            url: Vec::new(),
            subject: "falco.<priority>.<rule>".to_owned(),
            timeout_ms: 0,
            user: String::new(),
            password_file: PathBuf::new(),
            token_file: PathBuf::new(),
            credentials_file: PathBuf::new(),
            tls: NatsTls::default(),
            jetstream: JetStream::default(),
        }
    }
}

#[rustfmt::skip]
impl OutputKind for NatsOutput {
    const GROUP: &'static str = "nats_output";
    const KEYS: &'static [Key<Self>] = &[
        Key::file("nats_output.credentials_file", |output| &mut output.credentials_file),
        Key::boolean("nats_output.enabled", |output| &mut output.enabled),
        Key::boolean("nats_output.jetstream.enabled", |output| &mut output.jetstream.enabled),
        Key::text("nats_output.jetstream.stream", |output| &mut output.jetstream.stream),
        Key::file("nats_output.password_file", |output| &mut output.password_file),
        Key::text("nats_output.subject", |output| &mut output.subject),
        Key::integer("nats_output.timeout", |output| &mut output.timeout_ms),
        Key::file("nats_output.tls.ca_file", |output| &mut output.tls.ca_file),
        Key::file("nats_output.tls.cert_file", |output| &mut output.tls.cert_file),
        Key::boolean("nats_output.tls.enabled", |output| &mut output.tls.enabled),
        Key::file("nats_output.tls.key_file", |output| &mut output.tls.key_file),
        Key::file("nats_output.token_file", |output| &mut output.token_file),
        Key::texts("nats_output.url", |output| &mut output.url),
        Key::text("nats_output.user", |output| &mut output.user),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        let first = self.url.first().map_or("", String::as_str);
        Missing::if_empty(first, "url", "nats://HOST:4222")
    }

    fn exposure(&self) -> Option<String> {
        let is_set = |file: &Path| !file.as_os_str().is_empty();
        let secret = [
            ("password_file", is_set(&self.password_file)),
            ("token_file", is_set(&self.token_file)),
        ];
        let (secret, _) = secret.into_iter().find(|(_, is_set)| *is_set)?;
        let far = self.url.iter().filter_map(|url| Address::parse(url).ok());
        let far = far.map(|address| address.host).find(|host| !is_loopback(host))?;
        (!self.tls.enabled).then(|| {
            format!(
                "nats_output: the secret in {secret} is sent to {far} without encryption\n  help: set \
                 nats_output.tls.enabled, or use credentials_file, whose seed is never sent"
            )
        })
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        let help = "see the keys nats_output.* in `tollgate man run`";
        let channel = self.options(common).and_then(NatsChannel::open);
        match channel {
            Ok(channel) => Ok(Box::new(channel)),
            Err(error) => Err(ChannelOpenError::new(error, help)),
        }
    }
}

/// Returns true if what is sent to this host does not leave this one.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_matches(['[', ']']);
    let address = bare.parse::<IpAddr>();
    address.map_or(bare.eq_ignore_ascii_case("localhost"), |address| {
        address.to_canonical().is_loopback()
    })
}

impl NatsOutput {
    /// Returns host and port of each server. An address that is none is left out: whoever connects refuses it.
    #[must_use]
    pub fn hosts(&self) -> Vec<(String, u16)> {
        let parsed = self.url.iter().filter_map(|url| Address::parse(url).ok());
        parsed.map(|it| (it.host, it.port)).collect()
    }

    fn options(&self, common: &Common) -> Result<NatsOptions, NatsError> {
        Ok(NatsOptions {
            urls: self.url.clone(),
            subject: self.subject.clone(),
            credentials: self.credentials()?,
            tls: self.tls.enabled.then(|| self.tls.options()).transpose()?,
            jetstream: self.jetstream.enabled,
            stream: self.jetstream.stream.clone(),
            timeout: match self.timeout_ms {
                0 => common.timeout,
                ms => Duration::from_millis(ms),
            },
        })
    }

    pub(super) fn credentials(&self) -> Result<Credentials, NatsError> {
        let file = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
        let conflict = |problem: &str| NatsError::Setting {
            problem: problem.to_owned(),
        };
        let password = match (self.user.as_str(), file(&self.password_file)) {
            ("", None) => None,
            ("", Some(_)) => return Err(conflict("password_file needs user")),
            (_, None) => return Err(conflict("user needs password_file")),
            (user, Some(file)) => Some(Credentials::Password {
                user: user.to_owned(),
                file,
            }),
        };
        let token = file(&self.token_file).map(Credentials::Token);
        let key = file(&self.credentials_file).map(Credentials::Key);
        let all: Vec<_> = [password, token, key].into_iter().flatten().collect();
        match <[Credentials; 1]>::try_from(all) {
            Ok([one]) => Ok(one),
            Err(none) if none.is_empty() => Ok(Credentials::None),
            Err(_) => Err(conflict(
                "user, token_file and credentials_file exclude one another",
            )),
        }
    }
}

/// Directory of certificate authorities on Linux systems.
const STORE: &str = "/etc/ssl/certs";

impl NatsTls {
    pub(super) fn options(&self) -> Result<TlsOptions, NatsError> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        if is_set(&self.cert_file) != is_set(&self.key_file) {
            return Err(NatsError::Setting {
                problem: "tls.cert_file and tls.key_file need one another".to_owned(),
            });
        }
        Ok(TlsOptions {
            insecure: false,
            authorities: is_set(&self.ca_file).then(|| self.ca_file.clone()),
            authority_folder: PathBuf::from(STORE),
            client: is_set(&self.cert_file).then(|| ClientFiles {
                certificate: self.cert_file.clone(),
                key: self.key_file.clone(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stdout::StandardStream;

    fn error(output: &NatsOutput) -> String {
        let common = Common {
            json: true,
            timeout: Duration::from_secs(1),
            prints_to: StandardStream::Output,
        };
        let output = NatsOutput {
            url: vec!["nats://localhost".to_owned()],
            ..output.clone()
        };
        match OutputKind::open(&output, &common) {
            Ok(_) => panic!("opened {output:?}"),
            Err(error) => error.source.to_string(),
        }
    }

    #[test]
    fn hosts_have_the_port_of_their_address_or_the_usual_one() {
        let output = NatsOutput {
            url: ["nats://a.b", "tls://[::1]:7", "http://c"]
                .map(str::to_owned)
                .into(),
            ..NatsOutput::default()
        };
        let expected = [("a.b".to_owned(), 4222), ("[::1]".to_owned(), 7)];
        assert_eq!(output.hosts(), expected);
    }

    #[test]
    fn settings_that_contradict_one_another_are_refused() {
        let user = NatsOutput {
            user: "u".to_owned(),
            ..NatsOutput::default()
        };
        assert!(error(&user).ends_with("user needs password_file"));
        let file = NatsOutput {
            password_file: "/p".into(),
            ..NatsOutput::default()
        };
        assert!(error(&file).ends_with("password_file needs user"));
        let both = NatsOutput {
            token_file: "/t".into(),
            password_file: "/p".into(),
            ..user
        };
        assert!(error(&both).ends_with("exclude one another"));
        let mut tls = NatsOutput::default();
        tls.tls.enabled = true;
        tls.tls.cert_file = "/c".into();
        assert!(error(&tls).ends_with("need one another"));
        let mut stream = NatsOutput::default();
        stream.jetstream.enabled = true;
        stream.jetstream.stream = "a b".to_owned();
        assert!(error(&stream).contains("`a b`"));
    }

    #[test]
    fn a_secret_that_leaves_the_host_without_encryption_is_warned_of() {
        let output = |url: &str| NatsOutput {
            url: vec!["nats://localhost".to_owned(), url.to_owned()],
            token_file: "/t".into(),
            ..NatsOutput::default()
        };
        let far = output("nats://a.example");
        let warning = far.exposure().expect("a warning");
        assert!(
            warning.starts_with("nats_output: the secret in token_file is sent to a.example"),
            "{warning}"
        );
        for near in ["nats://127.0.0.1:1", "nats://[::1]", "LOCALHOST:4222"] {
            assert_eq!(output(near).exposure(), None, "{near}");
        }
        let mut encrypted = far.clone();
        encrypted.tls.enabled = true;
        assert_eq!(encrypted.exposure(), None);
        let key = NatsOutput {
            token_file: PathBuf::new(),
            credentials_file: "/c".into(),
            ..far
        };
        assert_eq!(key.exposure(), None, "the seed is not sent");
    }

    #[test]
    fn a_secret_that_cannot_be_read_stops_the_start() {
        let missing = NatsOutput {
            token_file: "/no/such/token".into(),
            ..NatsOutput::default()
        };
        assert_eq!(error(&missing), "cannot read /no/such/token");
    }
}
