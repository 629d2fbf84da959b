//! Certificates that clients may present: whether they are in force, and which URIs they name.
//!
//! The handshake proves that a client has the key of its certificate, and nothing else. The certificate itself is verified when a
//! request asks for its names, and again with later requests: so revocation and expiry end connections that are open and sessions
//! that are resumed, which a handshake does not verify again, and the client is told the reason.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outputs::TlsError;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use webpki::EndEntityCert;

use crate::error::ServeError;
use crate::tls::{read, roots, unusable};

#[cfg(test)]
mod tests;

/// Seconds for which the result of a verification holds on its connection, if the files stay the same.
const VERIFIED_SECS: u64 = 60;

/// Authorities of clients that may present a certificate, and what these revoked. The files are read again when they change.
#[derive(Clone, Debug)]
pub struct ClientAuthorities {
    /// PEM file with the certificates of the authorities.
    pub certificates: PathBuf,
    /// PEM file with lists of revoked certificates, one of each issuer; `None` if nothing is revoked.
    pub revocations: Option<PathBuf>,
    /// Reports a problem of these files, once for each of their versions.
    pub report: fn(&str),
}

/// A certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRefusal {
    /// The server's files are not readable.
    #[error(
        "the server cannot read its authorities of clients, or what they revoked; its messages name the file and what to do"
    )]
    Unreadable,
    /// A list has its serial number.
    #[error("the certificate is revoked")]
    Revoked,
    /// Its time, or that of a certificate between it and its authority, is over.
    #[error("the certificate has expired")]
    Expired,
    /// Its time has not begun.
    #[error("the certificate is not valid yet")]
    Early,
    /// It leads to no authority of clients.
    #[error("no authority of clients of this server has issued the certificate")]
    Foreign,
    /// There are lists, but none of its issuer.
    #[error("the server has no list of revoked certificates of the certificate's issuer")]
    NoList,
    /// The list of its issuer is outdated.
    #[error(
        "the server's list of revoked certificates has ended, so nobody knows whether this one is revoked"
    )]
    OldList,
    /// Another defect.
    #[error("the certificate cannot be verified: {problem}")]
    Invalid {
        /// What is wrong.
        problem: String,
    },
}

impl CertificateRefusal {
    fn of(error: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(problem) = error else {
            return Self::Invalid {
                problem: error.to_string(),
            };
        };
        match problem {
            CertificateError::Revoked => Self::Revoked,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::Early
            }
            CertificateError::UnknownIssuer => Self::Foreign,
            CertificateError::UnknownRevocationStatus => Self::NoList,
            CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. } => Self::OldList,
            other => Self::Invalid {
                problem: other.to_string(),
            },
        }
    }

    /// True if the administrator of the server has to do something about lists that can be read: a file that cannot be is
    /// reported when it is read.
    fn is_of_server(&self) -> bool {
        matches!(self, Self::NoList | Self::OldList)
    }
}

/// Verifies certificates of clients by files that can change.
#[derive(Debug)]
pub(crate) struct Authorities {
    files: ClientAuthorities,
    provider: Arc<CryptoProvider>,
    /// As it was at the start: says in the handshake what signatures may be like, and which authorities are meant.
    first: Arc<dyn ClientCertVerifier>,
    loaded: Mutex<Loaded>,
}

/// What the files had when they were read last.
#[derive(Debug)]
struct Loaded {
    versions: [Option<FileVersion>; 2],
    /// Grows when the files are read again.
    generation: u64,
    /// `None` if they cannot be used: then no certificate is accepted.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Problems that were reported.
    reported: Vec<String>,
}

/// Tells a file from what it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl ClientAuthorities {
    fn versions(&self) -> [Option<FileVersion>; 2] {
        let revocations = self.revocations.as_deref();
        [
            FileVersion::of(&self.certificates),
            revocations.and_then(FileVersion::of),
        ]
    }

    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ServeError> {
        let roots = Arc::new(roots(&self.certificates)?);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
            .allow_unauthenticated();
        let mut file = &self.certificates;
        if let Some(revocations) = &self.revocations {
            file = revocations;
            builder = builder
                .with_crls(lists(revocations)?)
                .enforce_revocation_expiration();
        }
        builder.build().map_err(|error| unusable(file, &error))
    }
}

/// Says that a file which changed cannot be used, why, and what to do.
fn nobody_accepted(error: &ServeError) -> String {
    let cause = match error.source() {
        Some(cause) => format!(": {cause}"),
        None => String::new(),
    };
    let help = match error {
        ServeError::Tls(TlsError::Read { source, .. }) => match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "let the collector read it; if another file took its place in a folder with files of others, such as /etc, \
                 restart the collector, which has granted itself the old one alone, and give the file a folder of its own"
            }
            _ => "put the file there; it is read at once",
        },
        _ => "put a correct file there; it is read at once",
    };
    format!("no certificate of an agent is accepted: {error}{cause}\n  help: {help}")
}

/// Reads the lists of revoked certificates in a file, at least one.
fn lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, ServeError> {
    let pem = read(file)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|error| unusable(file, &error))?;
    if all.is_empty() {
        let problem = "the file has no PEM list of revoked certificates";
        return Err(unusable(file, &problem));
    }
    Ok(all)
}

impl Authorities {
    /// Reads the files.
    pub(crate) fn load(
        files: ClientAuthorities,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, ServeError> {
        // Before they are read: what changes meanwhile is read again.
        let versions = files.versions();
        let verifier = files.verifier(&provider)?;
        Ok(Self {
            provider,
            first: Arc::clone(&verifier),
            loaded: Mutex::new(Loaded {
                versions,
                generation: 0,
                verifier: Some(verifier),
                reported: Vec::new(),
            }),
            files,
        })
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        // Each member is replaced by a single assignment; a reader of an older one refuses no less.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what verifies, and its generation. Reads the files again if they have changed.
    fn current(&self) -> (u64, Option<Arc<dyn ClientCertVerifier>>) {
        let mut loaded = self.loaded();
        let versions = self.files.versions();
        if versions != loaded.versions {
            let read = self.files.verifier(&self.provider);
            loaded.versions = versions;
            loaded.generation += 1;
            loaded.reported.clear();
            // Who could keep the new files from being read must not keep a revoked certificate in force: the old ones do not
            // count any more.
            if let Err(error) = &read {
                (self.files.report)(&nobody_accepted(error));
            }
            loaded.verifier = read.ok();
        }
        (loaded.generation, loaded.verifier.clone())
    }

    fn report(&self, refusal: &CertificateRefusal) {
        let file = self.files.revocations.as_ref();
        let file = file.map(|file| format!(" ({})", file.display()));
        let text = format!(
            "a certificate of an agent is refused: {refusal}{}",
            file.unwrap_or_default()
        );
        let mut loaded = self.loaded();
        if !loaded.reported.contains(&text) {
            (self.files.report)(&text);
            loaded.reported.push(text);
        }
    }
}

impl ClientCertVerifier for Authorities {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.first.root_hint_subjects()
    }

    /// Accepts every certificate: [`ClientCertificate::uris`] verifies it, for each request.
    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.first
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.first
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
}

/// The certificate that a client presented, in the extensions of its requests. It is not verified yet, and says nothing about itself
/// before.
#[derive(Clone, Debug)]
pub struct ClientCertificate(Arc<Presented>);

#[derive(Debug)]
struct Presented {
    /// The client's own first.
    chain: Vec<CertificateDer<'static>>,
    authorities: Arc<Authorities>,
    verified: Mutex<Option<Verified>>,
}

/// The last verification. A refusal is kept, too, so that requests with a chain that is slow to verify cost no more than handshakes.
#[derive(Clone, Debug)]
struct Verified {
    generation: u64,
    at: UnixTime,
    result: Result<(), CertificateRefusal>,
}

impl ClientCertificate {
    pub(crate) fn new(
        chain: &[CertificateDer<'_>],
        authorities: &Arc<Authorities>,
    ) -> Option<Self> {
        let chain: Vec<_> = chain.iter().map(|it| it.clone().into_owned()).collect();
        (!chain.is_empty()).then(|| {
            Self(Arc::new(Presented {
                chain,
                authorities: Arc::clone(authorities),
                verified: Mutex::default(),
            }))
        })
    }

    /// Verifies the certificate, and returns the URIs that it names itself by.
    ///
    /// # Errors
    ///
    /// The certificate is not accepted.
    pub fn uris(&self) -> Result<Vec<String>, CertificateRefusal> {
        self.uris_at(UnixTime::now())
    }

    fn uris_at(&self, now: UnixTime) -> Result<Vec<String>, CertificateRefusal> {
        let verified = self.verify(now);
        if let Err(refusal) = &verified
            && refusal.is_of_server()
        {
            self.0.authorities.report(refusal);
        }
        verified?;
        let own = self.0.chain.first().ok_or(CertificateRefusal::Foreign)?;
        let own = EndEntityCert::try_from(own).map_err(|error| CertificateRefusal::Invalid {
            problem: error.to_string(),
        })?;
        Ok(own.valid_uri_names().map(str::to_owned).collect())
    }

    fn verify(&self, now: UnixTime) -> Result<(), CertificateRefusal> {
        let (generation, verifier) = self.0.authorities.current();
        let verifier = verifier.ok_or(CertificateRefusal::Unreadable)?;
        let verified = || {
            let verified = self.0.verified.lock();
            verified.unwrap_or_else(PoisonError::into_inner)
        };
        let known = verified().clone().filter(|known| {
            let age = now.as_secs().checked_sub(known.at.as_secs());
            known.generation == generation && age.is_some_and(|age| age < VERIFIED_SECS)
        });
        if let Some(known) = known {
            return known.result;
        }
        let (own, others) = self
            .0
            .chain
            .split_first()
            .ok_or(CertificateRefusal::Foreign)?;
        let result = verifier
            .verify_client_cert(own, others, now)
            .map(drop)
            .map_err(|error| CertificateRefusal::of(&error));
        *verified() = Some(Verified {
            generation,
            at: now,
            result: result.clone(),
        });
        result
    }
}
