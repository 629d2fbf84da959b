//! TLS to a PostgreSQL server, as the parameters `sslmode`, `sslrootcert`, `sslcert` and `sslkey` of its URL ask for it.

mod connector;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use postgres::config::SslMode;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use self::connector::Connector;
use crate::error::StoreError;

/// Protocol identifier (ALPN) of PostgreSQL, which a server needs for `sslnegotiation=direct`.
const PROTOCOL: &[u8] = b"postgresql";

/// Values of `sslmode`, as messages name them.
const MODES: &str = "disable, prefer, require, verify-ca or verify-full";

/// The parameters of a URL that are about TLS, as they are written.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    mode: Option<OsString>,
    authorities: Option<OsString>,
    certificate: Option<OsString>,
    key: Option<OsString>,
}

/// What is checked of a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Whoever answers is believed.
    Nothing,
    /// A trusted authority issued it, for whatever name.
    Authority,
    /// A trusted authority issued it for the host of the URL.
    Name,
}

/// How connections are encrypted. The files are read with each connection, so that renewed ones count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tls {
    mode: SslMode,
    check: Check,
    /// File of authorities; `None` for those of the system.
    authorities: Option<PathBuf>,
    /// Certificate and key of the client.
    client: Option<(PathBuf, PathBuf)>,
}

impl Parameters {
    /// Takes the parameters about TLS out of a URL, which the client would not know, and returns the rest.
    pub(super) fn take(url: &str) -> Result<(String, Self), StoreError> {
        let mut taken = Self::default();
        // As the client reads it: a password may have a `?`.
        let credentials = url.find('@').map_or(0, |at| at + 1);
        let Some(mark) = url[credentials..].find('?').map(|at| credentials + at) else {
            return Ok((url.to_owned(), taken));
        };
        let mut rest = Vec::new();
        for parameter in url[mark + 1..].split('&') {
            let (key, value) = match parameter.split_once('=') {
                Some(parts) => parts,
                // The client says what is wrong with it.
                None => (parameter, ""),
            };
            let key = percent_decode_str(key).decode_utf8_lossy();
            let place = match &*key {
                "sslmode" => &mut taken.mode,
                "sslrootcert" => &mut taken.authorities,
                "sslcert" => &mut taken.certificate,
                "sslkey" => &mut taken.key,
                _ => {
                    rest.push(parameter);
                    continue;
                }
            };
            let value = OsString::from_vec(percent_decode_str(value).collect());
            if value.is_empty() {
                return Err(wrong(format!("`{key}` has no value")));
            }
            if place.replace(value).is_some() {
                return Err(wrong(format!("`{key}` is there twice")));
            }
        }
        let rest = match rest.is_empty() {
            true => url[..mark].to_owned(),
            false => format!("{}?{}", &url[..mark], rest.join("&")),
        };
        Ok((rest, taken))
    }
}

impl Tls {
    /// Returns what the parameters ask for. `is_elsewhere` says that a host is another machine: without `sslmode` its
    /// certificate and name are verified then, and also if any other parameter about TLS is there.
    pub(super) fn new(parameters: Parameters, is_elsewhere: bool) -> Result<Self, StoreError> {
        let Parameters {
            mode,
            authorities,
            certificate,
            key,
        } = parameters;
        let client = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("`sslcert` needs `sslkey`".to_owned())),
            (None, Some(_)) => return Err(wrong("`sslkey` needs `sslcert`".to_owned())),
        };
        let is_asked = is_elsewhere || authorities.is_some() || client.is_some();
        let mode = match (mode, is_asked) {
            (Some(mode), _) => mode,
            (None, true) => "verify-full".into(),
            (None, false) => "prefer".into(),
        };
        let mode = mode.to_string_lossy().into_owned();
        let is_system = authorities.as_deref().is_none_or(|it| it == "system");
        let (ssl, check) = match (&*mode, is_system) {
            ("disable", _) => (SslMode::Disable, Check::Nothing),
            // As libpq: whoever names authorities wants them to be asked.
            ("prefer", true) => (SslMode::Prefer, Check::Nothing),
            ("prefer", false) => (SslMode::Prefer, Check::Authority),
            ("require", true) => (SslMode::Require, Check::Nothing),
            ("require" | "verify-ca", false) => (SslMode::Require, Check::Authority),
            ("verify-full", _) => (SslMode::Require, Check::Name),
            ("verify-ca", true) => {
                return Err(wrong(
                    "`sslmode=verify-ca` needs `sslrootcert=FILE`: authorities of the system certify every host"
                        .to_owned(),
                ));
            }
            _ => return Err(wrong(format!("`sslmode` has to be {MODES}"))),
        };
        // `system` says that the certificate has to be verified, so it is refused where that is not done.
        if authorities.is_some() && is_system && check != Check::Name {
            return Err(wrong(
                "`sslrootcert=system` needs `sslmode=verify-full`".to_owned(),
            ));
        }
        if ssl == SslMode::Disable && (authorities.is_some() || client.is_some()) {
            let problem =
                "`sslmode=disable` and `sslrootcert`, `sslcert` or `sslkey` exclude each other";
            return Err(wrong(problem.to_owned()));
        }
        Ok(Self {
            mode: ssl,
            check,
            authorities: authorities.filter(|_| !is_system).map(PathBuf::from),
            client,
        })
    }

    /// Returns the files that each connection reads.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let client = self
            .client
            .iter()
            .flat_map(|(certificate, key)| [certificate, key]);
        self.authorities.iter().chain(client).map(PathBuf::as_path)
    }

    /// Returns the mode of the client.
    pub(super) fn mode(&self) -> SslMode {
        self.mode
    }

    /// Returns what somebody between the collector and a server on another machine can do, or `None`.
    pub(super) fn risk(&self) -> Option<&'static str> {
        match (self.mode, self.check) {
            (SslMode::Disable, _) => Some(
                "sslmode=disable: everybody on the way to PostgreSQL can read and change what the collector stores",
            ),
            (SslMode::Prefer, _) => Some(
                "sslmode=prefer: somebody on the way to PostgreSQL can turn TLS off, and read and change what the collector stores",
            ),
            (_, Check::Nothing) => Some(
                "sslmode=require verifies no certificate: somebody on the way can pretend to be PostgreSQL",
            ),
            (_, Check::Authority) => Some(
                "the name of the PostgreSQL server is not verified: every server with a certificate of that authority is believed",
            ),
            (_, Check::Name) => None,
        }
    }

    /// Reads the files and returns what encrypts one connection.
    pub(super) fn connector(&self) -> Result<Connector, StoreError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| StoreError::Encryption {
                problem: error.to_string(),
            })?;
        let builder = match self.check {
            Check::Name => builder.with_root_certificates(self.roots()?),
            Check::Authority | Check::Nothing => {
                let roots = match self.check {
                    Check::Nothing => None,
                    _ => Some(self.roots()?),
                };
                let verifier = Arc::new(Nameless { provider, roots });
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(verifier)
            }
        };
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| unusable(key, &error))?,
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Connector::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, StoreError> {
        let mut roots = RootCertStore::empty();
        let Some(file) = &self.authorities else {
            let found = rustls_native_certs::load_native_certs();
            // Certificates that nobody can use are skipped, as by every client.
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map(|error| format!(": {error}"));
                let why = why.unwrap_or_else(|| ", for instance in /etc/ssl/certs".to_owned());
                let problem = format!("the system has no authorities{why}");
                return Err(StoreError::Encryption { problem });
            }
            return Ok(roots);
        };
        for certificate in certificates(file)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable(file, &error))?;
        }
        Ok(roots)
    }
}

/// Verifies the authority of a server's certificate, if there are any to trust, and no name.
#[derive(Debug)]
struct Nameless {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Nameless {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Reads the certificates in a PEM file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let pem = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|error| unusable(file, &error))?;
    match all.is_empty() {
        true => Err(unusable(file, &"the file has no PEM certificate")),
        false => Ok(all),
    }
}

/// Reads a key that only its owner can read; the group, too, if the owner is root, as libpq allows it.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, StoreError> {
    let about = fs::metadata(file).map_err(|source| cannot_read(file, source))?;
    let others = if about.uid() == 0 { 0o037 } else { 0o077 };
    if about.mode() & others != 0 {
        let problem = format!(
            "others can use the key: its mode is {:04o}, and has to be 0600, or 0640 if it is root's",
            about.mode() & 0o7777
        );
        return Err(unusable(file, &problem));
    }
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|error| {
        let problem = format!("the file has no PEM private key without a passphrase: {error}");
        unusable(file, &problem)
    })
}

fn read(file: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(file).map_err(|source| cannot_read(file, source))
}

fn cannot_read(file: &Path, source: std::io::Error) -> StoreError {
    StoreError::File {
        action: "read",
        path: file.to_owned(),
        source,
    }
}

fn unusable(file: &Path, problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Pem {
        path: file.to_owned(),
        problem: problem.to_string(),
    }
}

pub(super) fn wrong(problem: String) -> StoreError {
    StoreError::Url { problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str, is_elsewhere: bool) -> Result<Tls, String> {
        let url = format!("postgres://u:p%40?@db.example/db?{query}");
        let made =
            Parameters::take(&url).and_then(|(_, parameters)| Tls::new(parameters, is_elsewhere));
        made.map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_about_tls_are_taken_out_and_others_stay() {
        for (url, rest) in [
            ("postgres://u@h/d", "postgres://u@h/d"),
            ("postgres://u:?@h/d?sslmode=require", "postgres://u:?@h/d"),
            (
                "postgres://h/d?options=a&sslrootcert=%2Fa%20b&hostaddr=192.0.2.1",
                "postgres://h/d?options=a&hostaddr=192.0.2.1",
            ),
            ("postgres://h/d?ssl%6dode=disable&x=1", "postgres://h/d?x=1"),
            ("postgres://h?sslcert=a&sslkey=b", "postgres://h"),
        ] {
            let (found, _) = Parameters::take(url).expect(url);
            assert_eq!(found, rest);
        }
        let url = "postgres://h/d?options=a&sslrootcert=%2Fa%20b";
        let (_, parameters) = Parameters::take(url).expect(url);
        assert_eq!(parameters.authorities, Some("/a b".into()));
    }

    #[test]
    fn the_default_verifies_a_server_elsewhere_and_prefers_tls_here() {
        for (query, is_elsewhere, mode, check) in [
            ("", true, SslMode::Require, Check::Name),
            ("", false, SslMode::Prefer, Check::Nothing),
            ("sslrootcert=f", false, SslMode::Require, Check::Name),
            ("sslrootcert=system", false, SslMode::Require, Check::Name),
            ("sslcert=c&sslkey=k", false, SslMode::Require, Check::Name),
            ("sslmode=disable", true, SslMode::Disable, Check::Nothing),
            ("sslmode=prefer", true, SslMode::Prefer, Check::Nothing),
            (
                "sslmode=prefer&sslrootcert=f",
                true,
                SslMode::Prefer,
                Check::Authority,
            ),
            ("sslmode=require", true, SslMode::Require, Check::Nothing),
            (
                "sslmode=require&sslrootcert=f",
                true,
                SslMode::Require,
                Check::Authority,
            ),
            (
                "sslmode=verify-ca&sslrootcert=f",
                true,
                SslMode::Require,
                Check::Authority,
            ),
            ("sslmode=verify-full", true, SslMode::Require, Check::Name),
        ] {
            let tls = of(query, is_elsewhere).expect(query);
            assert_eq!((tls.mode, tls.check), (mode, check), "{query}");
            assert_eq!(tls.risk().is_none(), check == Check::Name, "{query}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (query, why) in [
            ("sslmode=verify", "has to be disable, prefer"),
            ("sslmode=allow", "has to be disable, prefer"),
            ("sslmode=", "has no value"),
            ("sslmode=require&sslmode=disable", "there twice"),
            ("sslcert=c", "needs `sslkey`"),
            ("sslkey=k", "needs `sslcert`"),
            ("sslmode=verify-ca", "needs `sslrootcert=FILE`"),
            (
                "sslmode=verify-ca&sslrootcert=system",
                "needs `sslrootcert=FILE`",
            ),
            (
                "sslmode=require&sslrootcert=system",
                "needs `sslmode=verify-full`",
            ),
            ("sslmode=disable&sslrootcert=f", "exclude each other"),
            ("sslmode=disable&sslcert=c&sslkey=k", "exclude each other"),
        ] {
            let error = of(query, true).expect_err(query);
            assert!(error.contains(why), "{query}: {error}");
        }
    }
}
