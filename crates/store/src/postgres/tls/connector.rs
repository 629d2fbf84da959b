//! The handshake of a connection, by rustls, and what binds a password to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

/// Encrypts connections by one configuration.
#[derive(Clone)]
pub(in super::super) struct Connector {
    config: Arc<ClientConfig>,
}

impl Connector {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = ToHost;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<ToHost> {
        Ok(ToHost {
            config: Arc::clone(&self.config),
            host: host.to_owned(),
        })
    }
}

/// Encrypts a connection to a host.
pub(in super::super) struct ToHost {
    config: Arc<ClientConfig>,
    /// Empty for a socket of this machine, on which no handshake takes place.
    host: String,
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let connected = TlsConnector::from(self.config).connect(name, stream);
            Ok(Encrypted(connected.await?))
        })
    }
}

/// An encrypted connection.
pub(in super::super) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let bound = certificate.and_then(|it| end_point(it));
        bound.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// Returns the hash of a server's certificate to which a password is bound (RFC 5929, `tls-server-end-point`): by the
/// hash function of its signature. `None` if that has none, as Ed25519, or one that this build does not know.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = hash_of(&signature_algorithm(certificate)?)?;
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

/// Returns the object identifier of the algorithm by which a certificate is signed.
fn signature_algorithm(certificate: &[u8]) -> Option<Vec<u64>> {
    let read = yasna::parse_der(certificate, |reader| {
        reader.read_sequence(|parts| {
            parts.next().read_der()?;
            let oid = parts.next().read_sequence(|parts| {
                let oid = parts.next().read_oid()?;
                parts.read_optional(|parameters| parameters.read_der())?;
                Ok(oid)
            })?;
            parts.next().read_der()?;
            Ok(oid)
        })
    });
    read.ok().map(|oid| oid.components().clone())
}

fn hash_of(oid: &[u64]) -> Option<&'static Algorithm> {
    match *oid {
        // RSA and ECDSA with SHA-1, in whose place SHA-256 is used, and with SHA-256.
        [1, 2, 840, 113_549, 1, 1, 5 | 11]
        | [1, 2, 840, 10_045, 4, 1]
        | [1, 2, 840, 10_045, 4, 3, 2] => Some(&SHA256),
        [1, 2, 840, 113_549, 1, 1, 12] | [1, 2, 840, 10_045, 4, 3, 3] => Some(&SHA384),
        [1, 2, 840, 113_549, 1, 1, 13] | [1, 2, 840, 10_045, 4, 3, 4] => Some(&SHA512),
        _ => None,
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        let params = rcgen::CertificateParams::default();
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    #[test]
    fn a_password_is_bound_by_the_hash_function_of_the_certificate() {
        for (algorithm, length) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            // It has no hash function of its own.
            (&rcgen::PKCS_ED25519, None),
        ] {
            let found = end_point(&certificate(algorithm));
            assert_eq!(found.map(|hash| hash.len()), length, "{algorithm:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_binds_nothing() {
        let good = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        for length in 0..good.len() {
            assert_eq!(end_point(&good[..length]), None, "{length} bytes of it");
        }
    }
}
