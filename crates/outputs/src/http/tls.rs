//! Certificates and keys.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::{ClientFiles, HttpError, TlsOptions};

pub(super) fn config(options: &TlsOptions) -> Result<TlsConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = options.client.as_ref();
    let client = client.map(|files| client_certificate(files, &provider));
    let mut config = TlsConfig::builder()
        .disable_verification(options.insecure)
        .client_cert(client.transpose()?)
        .unversioned_rustls_crypto_provider(provider);
    // Whoever trusts every server needs no store, and may have none.
    let roots = if options.insecure {
        Vec::new()
    } else {
        authorities(options)?
    };
    config = config.root_certs(RootCerts::new_with_certs(&roots));
    Ok(config.build())
}

fn authorities(options: &TlsOptions) -> Result<Vec<Certificate<'static>>, HttpError> {
    match &options.authorities {
        Some(file) => {
            let certificates = certificates(file)?;
            Ok(certificates.iter().map(owned).collect())
        }
        None => store(options),
    }
}

/// The certificates of a folder. OpenSSL's way is to look only at names like `1a2b3c4d.0`, which
/// `openssl rehash` makes. A folder without them is taken whole, but for this client's own files.
fn store(options: &TlsOptions) -> Result<Vec<Certificate<'static>>, HttpError> {
    let folder = &options.authority_folder;
    let read_error = |source| HttpError::Read {
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
    // What is in the folder is not this program's affair: a dead link or a foreign file is no
    // reason not to trust the others.
    let all = files.iter().filter_map(|file| certificates(file).ok());
    let mut seen = HashSet::new();
    let all: Vec<_> = all
        .flatten()
        .filter(|certificate| seen.insert(certificate.clone()))
        .map(|certificate| owned(&certificate))
        .collect();
    if all.is_empty() {
        return Err(HttpError::Pem {
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

fn client_certificate(
    files: &ClientFiles,
    provider: &CryptoProvider,
) -> Result<ClientCert, HttpError> {
    let chain = certificates(&files.certificate)?;
    let unusable = |problem: String| HttpError::Pem {
        path: files.key.clone(),
        problem,
    };
    let pem = read(&files.key)?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        unusable(format!(
            "the file has no PEM private key without a passphrase: {error}"
        ))
    })?;
    // The connection would stop the program if the two did not belong together.
    CertifiedKey::from_der(chain.clone(), key, provider).map_err(|error| {
        let certificate = files.certificate.display();
        unusable(format!("not the key of {certificate}: {error}"))
    })?;
    let key = PrivateKey::from_pem(&pem).map_err(|error| unusable(error.to_string()))?;
    let chain: Vec<_> = chain.iter().map(owned).collect();
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// The certificates in a file, at least one.
fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let unusable = |problem: String| HttpError::Pem {
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

fn read(file: &PathBuf) -> Result<Vec<u8>, HttpError> {
    fs::read(file).map_err(|source| HttpError::Read {
        path: file.clone(),
        source,
    })
}

fn owned(certificate: &CertificateDer<'_>) -> Certificate<'static> {
    Certificate::from_der(certificate).to_owned()
}
