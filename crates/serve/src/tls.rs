//! Certificates and keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outputs::TlsError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::client_certificate::{Authorities, ClientAuthorities};
use crate::error::ServeError;

/// Certificate files of a server, and the authorities that its clients' certificates must come
/// from.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// The server's certificate chain.
    pub certificates: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Certificates of clients.
    pub clients: ClientCertificates,
}

/// What a server asks of the certificates of its clients.
#[derive(Clone, Debug)]
pub enum ClientCertificates {
    /// They need none, and present none.
    Ignored,
    /// Each needs one of the authorities in this PEM file.
    Required(PathBuf),
    /// They may present one: see [`crate::ClientCertificate`].
    Optional(ClientAuthorities),
}

/// Protocol identifier (ALPN) of HTTP/2.
const H2: &[u8] = b"h2";

/// Protocols that a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// TLS 1.2 and 1.3; HTTP/1 without negotiation, as Falco's web server does.
    Http1,
    /// TLS 1.2 and 1.3; HTTP/2.
    Http2,
    /// TLS 1.3 alone; HTTP/2 or HTTP/1.
    Modern,
}

/// Builds the configuration of a server. If clients may present a certificate, also returns what verifies it.
pub(crate) fn server(
    files: &ServerFiles,
    protocols: Protocols,
) -> Result<(Arc<ServerConfig>, Option<Arc<Authorities>>), ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = match protocols {
        Protocols::Http1 | Protocols::Http2 => rustls::DEFAULT_VERSIONS,
        Protocols::Modern => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| unusable(&files.certificates, &error))?;
    let mut optional = None;
    let builder = match &files.clients {
        ClientCertificates::Ignored => builder.with_no_client_auth(),
        ClientCertificates::Optional(clients) => {
            let clients = Arc::new(Authorities::load(clients.clone(), provider)?);
            optional = Some(Arc::clone(&clients));
            builder.with_client_cert_verifier(clients)
        }
        ClientCertificates::Required(authorities) => {
            let roots = Arc::new(roots(authorities)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|error| unusable(authorities, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates(&files.certificates)?, key(&files.key)?)
        .map_err(|error| unusable(&files.key, &error))?;
    config.alpn_protocols = match protocols {
        Protocols::Http1 => Vec::new(),
        Protocols::Http2 => vec![H2.to_vec()],
        Protocols::Modern => vec![H2.to_vec(), b"http/1.1".to_vec()],
    };
    Ok((Arc::new(config), optional))
}

/// Builds the configuration of a client that presents a certificate and speaks HTTP/2.
pub(crate) fn client(
    certificate: &Path,
    key_file: &Path,
    authorities: &Path,
) -> Result<Arc<ClientConfig>, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(certificate, &error))?
        .with_root_certificates(roots(authorities)?)
        .with_client_auth_cert(certificates(certificate)?, key(key_file)?)
        .map_err(|error| unusable(key_file, &error))?;
    config.alpn_protocols = vec![H2.to_vec()];
    Ok(Arc::new(config))
}

pub(crate) fn roots(file: &Path) -> Result<RootCertStore, ServeError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(file, &error))?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let pem = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|error| unusable(file, &error))?;
    if all.is_empty() {
        return Err(unusable(file, &"the file has no PEM certificate"));
    }
    Ok(all)
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, ServeError> {
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|error| {
        let problem = format!("the file has no PEM private key without a passphrase: {error}");
        unusable(file, &problem)
    })
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>, ServeError> {
    let read = fs::read(file).map_err(|source| TlsError::Read {
        path: file.to_owned(),
        source,
    });
    Ok(read?)
}

pub(crate) fn unusable(file: &Path, problem: &dyn std::fmt::Display) -> ServeError {
    let error = TlsError::Pem {
        path: file.to_owned(),
        problem: problem.to_string(),
    };
    error.into()
}
