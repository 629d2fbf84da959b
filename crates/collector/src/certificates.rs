//! A certificate for a collector that was given none.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serve::{ClientCertificates, ServerFiles};

/// A certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A name cannot stand in a certificate, or no key can be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

/// Returns the files of a certificate that signs itself, and makes them in `folder` at the first call. Agents
/// trust it by `--collector-ca`.
///
/// # Errors
///
/// A file cannot be written, or a name cannot stand in a certificate.
pub fn own_certificate(folder: &Path, names: &[String]) -> Result<ServerFiles, CertificateError> {
    let files = ServerFiles {
        certificates: folder.join("collector.crt"),
        key: folder.join("collector.key"),
        clients: ClientCertificates::Ignored,
    };
    // The certificate is written last; without it, what is left of an interrupted start is written again.
    if files.certificates.exists() && files.key.exists() {
        return Ok(files);
    }
    let mut parameters = CertificateParams::new(names)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "tollgate collector");
    parameters.distinguished_name = name;
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?;
    write(&files.key, 0o600, &key.serialize_pem())?;
    write(&files.certificates, 0o644, &certificate.pem())?;
    Ok(files)
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), CertificateError> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path);
    opened
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .map_err(|source| CertificateError::Write {
            path: path.to_owned(),
            source,
        })
}
