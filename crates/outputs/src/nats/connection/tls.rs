//! TLS: the server's name is checked though the client connects to an address.

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::errors::refused;
use crate::net::tls::{TlsError, TlsOptions, authorities, client_certificate};

/// A TLS configuration, in which the name of the server is still missing.
#[derive(Clone, Debug)]
pub(in super::super) struct Unnamed {
    config: ClientConfig,
    verifier: Arc<WebPkiServerVerifier>,
}

/// Reads the certificates. Returns `None` without options.
pub(in super::super) fn client_config(
    options: Option<&TlsOptions>,
) -> Result<Option<Unnamed>, TlsError> {
    let Some(options) = options else {
        return Ok(None);
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    // Unusable certificates in the system's store are skipped, as by every client.
    roots.add_parsable_certificates(authorities(options)?);
    let roots = Arc::new(roots);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has the versions that it is built with")
        .with_root_certificates(Arc::clone(&roots));
    let config = match &options.client {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let (chain, key) = client_certificate(files, &provider)?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| TlsError::Pem {
                path: files.key.clone(),
                problem: error.to_string(),
            })?
        }
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    let verifier = verifier.map_err(|error| TlsError::Pem {
        path: options
            .authorities
            .clone()
            .unwrap_or_else(|| options.authority_folder.clone()),
        problem: error.to_string(),
    })?;
    Ok(Some(Unnamed { config, verifier }))
}

/// Checks what `async-nats` reads before each encrypted connection, though the configuration has its
/// own authorities: the certificates of the system. An error there fails every connection.
pub(in super::super) fn check_system_store() -> Result<(), String> {
    match rustls_native_certs::load_native_certs().errors.first() {
        None => Ok(()),
        Some(error) => Err(format!(
            "the certificates of the system have to be readable, also with tls.ca_file: {error} \
             (SSL_CERT_FILE and SSL_CERT_DIR name others)"
        )),
    }
}

/// Returns the configuration for the server `host`. Without TLS options it trusts nobody.
pub(super) fn naming(unnamed: Option<&Unnamed>, host: &str) -> io::Result<ClientConfig> {
    let Some(unnamed) = unnamed else {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the versions that it is built with")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        return Ok(config);
    };
    let bare = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(bare).map_err(|error| refused(error.to_string()))?;
    let mut config = unnamed.config.clone();
    let verifier = Arc::clone(&unnamed.verifier);
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(Named { name, verifier }));
    Ok(config)
}

/// Verifies the certificate of the server with this name, whatever address it has.
#[derive(Debug)]
struct Named {
    name: ServerName<'static>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Self { name, verifier } = self;
        verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.verifier;
        verifier.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.verifier;
        verifier.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
