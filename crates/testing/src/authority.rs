//! An authority that issues client certificates.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};

/// An authority with a key of its own. All have the same name, so that the key alone tells them apart.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub pem: String,
}

/// What an authority has issued.
#[derive(Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: Certificate,
    /// Its private key.
    pub key: KeyPair,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Panics
    /// If no key can be made.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "agents");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("it can be signed");
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Issues a certificate with this serial number and these URIs.
    ///
    /// # Panics
    /// If a URI has other characters than ASCII, or the certificate cannot be signed.
    pub fn issue(
        &self,
        serial: u64,
        uris: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = CertificateParams::default();
        for &uri in uris {
            let uri = uri.try_into().expect("ASCII");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let key = KeyPair::generate().expect("keys can be made");
        let certificate = params.signed_by(&key, &self.issuer);
        Issued {
            certificate: certificate.expect("it can be signed"),
            key,
        }
    }

    /// Returns a list that revokes a serial number, until the beginning of a year.
    ///
    /// # Panics
    /// If the list cannot be signed.
    pub fn revoke(&self, serial: u64, until: i32) -> String {
        let begin = date_time_ymd(2020, 1, 1);
        let list = CertificateRevocationListParams {
            this_update: begin,
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(serial),
                revocation_time: begin,
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("it can be signed");
        list.pem().expect("a list has a PEM form")
    }
}
