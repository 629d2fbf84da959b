//! TLS certificates for both sides of a connection.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Makes an authority, `ca.pem`, and a certificate for each side that it signs: `server.pem` and `client.pem`,
/// with their keys in `server-key.pem` and `client-key.pem`.
///
/// # Panics
/// If the folder cannot be written.
pub fn certificates(folder: &Path) {
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).expect("the scratch folder is writable");
    };
    let mut params = CertificateParams::new(Vec::new()).expect("good names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("keys can be made");
    let authority = CertifiedIssuer::self_signed(params, key).expect("it can be signed");
    write("ca.pem", authority.pem());
    for side in ["server", "client"] {
        let key = KeyPair::generate().expect("keys can be made");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("good names");
        let certificate = params
            .signed_by(&key, &authority)
            .expect("it can be signed");
        write(&format!("{side}.pem"), certificate.pem());
        write(&format!("{side}-key.pem"), key.serialize_pem());
    }
}
