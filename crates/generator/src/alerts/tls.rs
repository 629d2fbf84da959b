//! The listener's certificate, and authentication of clients.

use std::path::Path;
use std::sync::Arc;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::options::{AlertSource, SecurityMode};

/// Returns the TLS configuration; `None` for plain HTTP.
pub(super) fn server(source: &AlertSource) -> Result<Option<Arc<ServerConfig>>, Failure> {
    if source.http_server_security_mode == SecurityMode::Insecure {
        return Ok(None);
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot use TLS: {error}")))?;
    let builder = if source.http_server_security_mode == SecurityMode::Mtls {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&source.http_client_ca)? {
            roots
                .add(certificate)
                .map_err(|error| unusable(&source.http_client_ca, &error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| unusable(&source.http_client_ca, &error))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(&source.http_server_key)
        .map_err(|error| unusable(&source.http_server_key, &error))?;
    let config = builder
        .with_single_cert(certificates(&source.http_server_cert)?, key)
        .map_err(|error| unusable(&source.http_server_cert, &error))?;
    Ok(Some(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match found {
        Ok(found) if found.is_empty() => Err(unusable(file, &"it has no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(file, &error)),
    }
}

fn unusable(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Exit::BadInput,
        format!("cannot use {}: {error}", file.display()),
    )
    .help("name PEM files with --http-server-cert, --http-server-key and --http-client-ca")
}
