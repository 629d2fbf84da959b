//! Certificates and keys.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Trusted authorities and client certificate of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Accept any server certificate. For tests.
    pub insecure: bool,
    /// File of trusted certificate authorities.
    pub authorities: Option<PathBuf>,
    /// Directory of such files, used if there is no file.
    pub authority_folder: PathBuf,
    /// Certificate and key of this client, if it presents one.
    pub client: Option<ClientFiles>,
}

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificate chain, the client's own first.
    pub certificate: PathBuf,
    /// Private key, not encrypted.
    pub key: PathBuf,
}

/// A certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A PEM file is invalid.
    #[error("cannot use {}: {problem}", path.display())]
    Pem {
        /// The file or folder.
        path: PathBuf,
        /// Description of the error.
        problem: String,
    },
}

/// Builds the TLS configuration of the HTTP client.
pub(crate) fn http_config(options: &TlsOptions) -> Result<TlsConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = options.client.as_ref();
    let client = client.map(|files| http_client_certificate(files, &provider));
    let mut config = TlsConfig::builder()
        .disable_verification(options.insecure)
        .client_cert(client.transpose()?)
        .unversioned_rustls_crypto_provider(provider);
    // A client that trusts every server needs no store, and may have none.
    let roots = if options.insecure {
        Vec::new()
    } else {
        authorities(options)?
    };
    let roots: Vec<_> = roots.iter().map(owned).collect();
    config = config.root_certs(RootCerts::new_with_certs(&roots));
    Ok(config.build())
}

fn http_client_certificate(
    files: &ClientFiles,
    provider: &CryptoProvider,
) -> Result<ClientCert, TlsError> {
    let (chain, _) = client_certificate(files, provider)?;
    let key = PrivateKey::from_pem(&read(&files.key)?).map_err(|error| TlsError::Pem {
        path: files.key.clone(),
        problem: error.to_string(),
    })?;
    let chain: Vec<_> = chain.iter().map(owned).collect();
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// Returns the trusted certificate authorities.
pub(crate) fn authorities(options: &TlsOptions) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match &options.authorities {
        Some(file) => certificates(file),
        None => store(options),
    }
}

/// Reads the certificates of a directory. Like OpenSSL, it reads only names like `1a2b3c4d.0`,
/// which `openssl rehash` creates. In a directory without such names it reads all files except this
/// client's own.
fn store(options: &TlsOptions) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let folder = &options.authority_folder;
    let read_error = |source| TlsError::Read {
        path: folder.clone(),
        source,
    };
    let entries = fs::read_dir(folder).map_err(read_error)?;
    let entries: Result<Vec<_>, _> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let mut files = entries.map_err(read_error)?;
    if files.iter().any(|file| is_hashed(file)) {
        files.retain(|file| is_hashed(file));
    } else {
        files.retain(|file| is_pem(file) && !is_own(file, options));
    }
    // A dead link or a foreign file in the directory is no reason not to trust the others.
    let all = files.iter().filter_map(|file| certificates(file).ok());
    let mut seen = HashSet::new();
    let all: Vec<_> = all
        .flatten()
        .filter(|certificate| seen.insert(certificate.clone()))
        .collect();
    if all.is_empty() {
        return Err(TlsError::Pem {
            path: folder.clone(),
            problem: "no file there has a certificate".to_owned(),
        });
    }
    Ok(all)
}

fn is_hashed(file: &Path) -> bool {
    let Some((hash, number)) = name(file).split_once('.') else {
        return false;
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) && is_number
}

fn is_pem(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("pem" | "crt" | "cer"))
}

fn is_own(file: &Path, options: &TlsOptions) -> bool {
    let own = options.client.as_ref().map(|client| &client.certificate);
    own.is_some_and(|own| own == file)
}

fn name(file: &Path) -> &str {
    let name = file.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

/// Returns the matching certificate chain and key of this client.
pub(crate) fn client_certificate(
    files: &ClientFiles,
    provider: &CryptoProvider,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(&files.certificate)?;
    let unusable = |problem: String| TlsError::Pem {
        path: files.key.clone(),
        problem,
    };
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|error| {
        unusable(format!(
            "the file has no PEM private key without a passphrase: {error}"
        ))
    })?;
    // A connection would panic if the two did not match.
    CertifiedKey::from_der(chain.clone(), key.clone_key(), provider).map_err(|error| {
        let certificate = files.certificate.display();
        unusable(format!("not the key of {certificate}: {error}"))
    })?;
    Ok((chain, key))
}

/// Reads the certificates in a file, at least one.
fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unusable = |problem: String| TlsError::Pem {
        path: file.clone(),
        problem,
    };
    let pem = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|error| unusable(format!("it is damaged: {error}")))?;
    if all.is_empty() {
        return Err(unusable("the file has no PEM certificate".to_owned()));
    }
    Ok(all)
}

fn read(file: &PathBuf) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|source| TlsError::Read {
        path: file.clone(),
        source,
    })
}

fn owned(certificate: &CertificateDer<'_>) -> Certificate<'static> {
    Certificate::from_der(certificate).to_owned()
}
