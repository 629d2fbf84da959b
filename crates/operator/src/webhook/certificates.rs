//! Certificates of the webhook, and when the next one comes.
//!
//! Each certificate has an authority of its own, whose key is thrown away. A new one is trusted before it is used, and the one before
//! is trusted for a while after: API servers and operators learn of a change at different times.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::{Value, json};

/// How much earlier than now a certificate is valid: clocks differ.
const SKEW: Duration = Duration::from_secs(300);

/// Seconds since 1970.
pub(super) type Seconds = u64;

/// Now. A clock before 1970 is not set: certificates are then made anew when it is.
pub(super) fn now() -> Seconds {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// A certificate with its authority and key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) authority: String,
    pub(super) chain: String,
    pub(super) key: String,
    pub(super) expires: Seconds,
}

impl Certificate {
    /// Makes one for a server of these names.
    pub(super) fn make(
        names: &[String],
        now: Seconds,
        lifetime: Duration,
    ) -> Result<Self, rcgen::Error> {
        let since = Duration::from_secs(now);
        let epoch = date_time_ymd(1970, 1, 1);
        let (begin, end) = (epoch + since.saturating_sub(SKEW), epoch + since + lifetime);
        let mut of_authority = CertificateParams::new(Vec::new())?;
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        of_authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let name = format!("tollgate-webhook {now}");
        of_authority
            .distinguished_name
            .push(DnType::CommonName, name);
        (of_authority.not_before, of_authority.not_after) = (begin, end);
        let key_of_authority = KeyPair::generate()?;
        let authority = of_authority.self_signed(&key_of_authority)?;
        let issuer = Issuer::new(of_authority, key_of_authority);
        let mut of_server = CertificateParams::new(names.to_vec())?;
        of_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (of_server.not_before, of_server.not_after) = (begin, end);
        let key = KeyPair::generate()?;
        let server = of_server.signed_by(&key, &issuer)?;
        Ok(Self {
            authority: authority.pem(),
            chain: server.pem(),
            key: key.serialize_pem(),
            expires: now.saturating_add(lifetime.as_secs()),
        })
    }
}

/// When certificates are replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How long a certificate is valid. The next one is made when a third of it is left.
    pub(super) lifetime: Duration,
    /// How long all API servers and operators have to learn of a change.
    pub(super) settle: Duration,
}

/// The certificates of an installation, as its Secret has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Certificates {
    /// The one that is presented.
    pub(super) current: Option<Certificate>,
    /// The one that is trusted already, and presented next.
    pub(super) next: Option<Certificate>,
    /// The authority of the one that was presented before.
    pub(super) before: Option<String>,
    /// Time of the last change.
    pub(super) since: Seconds,
}

impl Certificates {
    /// The authorities that API servers have to trust.
    pub(super) fn bundle(&self) -> String {
        let certificates = [&self.current, &self.next].into_iter().flatten();
        let authorities = certificates.map(|one| one.authority.as_str());
        authorities.chain(self.before.as_deref()).collect()
    }

    /// The next state; `None` if nothing has to change yet. All API servers trust [`Certificates::bundle`] since `since`.
    pub(super) fn step(
        &self,
        now: Seconds,
        times: Times,
        make: impl FnOnce() -> Result<Certificate, rcgen::Error>,
    ) -> Result<Option<Self>, rcgen::Error> {
        // Seconds are cut: only a larger difference is that long.
        let is_settled = now.saturating_sub(self.since) > times.settle.as_secs();
        let current = self.current.as_ref().filter(|one| now < one.expires);
        let Some(current) = current else {
            // Nobody trusts what is presented: there is nothing to keep.
            return Ok(Some(Self {
                current: Some(make()?),
                since: now,
                ..Self::default()
            }));
        };
        if let Some(next) = &self.next {
            return Ok(is_settled.then(|| Self {
                current: Some(next.clone()),
                next: None,
                before: Some(current.authority.clone()),
                since: now,
            }));
        }
        if self.before.is_some() {
            return Ok(is_settled.then(|| Self {
                before: None,
                since: now,
                ..self.clone()
            }));
        }
        if current.expires - now > times.lifetime.as_secs() / 3 {
            return Ok(None);
        }
        Ok(Some(Self {
            next: Some(make()?),
            since: now,
            ..self.clone()
        }))
    }

    /// Reads a Secret. What cannot be read is missing, and made anew.
    pub(super) fn of_secret(secret: &Value) -> Self {
        let text = |key: &str| -> Option<String> {
            let text = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
            String::from_utf8(text).ok()
        };
        let number = |key: &str| -> Option<Seconds> { text(key)?.parse().ok() };
        let certificate = |prefix: &str| {
            let [authority, chain, key, expires] = KEYS.map(|key| format!("{prefix}{key}"));
            Some(Certificate {
                authority: text(&authority)?,
                chain: text(&chain)?,
                key: text(&key)?,
                expires: number(&expires)?,
            })
        };
        Self {
            current: certificate(""),
            next: certificate(NEXT),
            before: text(BEFORE),
            // Without a time the last change may be of now: what depends on it waits again.
            since: number(SINCE).unwrap_or_else(now),
        }
    }

    /// The data of a Secret.
    pub(super) fn data(&self) -> Value {
        let mut data: BTreeMap<String, String> = BTreeMap::new();
        for (prefix, certificate) in [("", &self.current), (NEXT, &self.next)] {
            let Some(certificate) = certificate else {
                continue;
            };
            let expires = certificate.expires.to_string();
            let values = [
                &certificate.authority,
                &certificate.chain,
                &certificate.key,
                &expires,
            ];
            for (key, value) in KEYS.iter().zip(values) {
                data.insert(format!("{prefix}{key}"), STANDARD.encode(value));
            }
        }
        if let Some(before) = &self.before {
            data.insert(BEFORE.to_owned(), STANDARD.encode(before));
        }
        data.insert(SINCE.to_owned(), STANDARD.encode(self.since.to_string()));
        json!(data)
    }
}

/// Keys of a certificate in the Secret; those of the next one have [`NEXT`] in front.
const KEYS: [&str; 4] = ["ca.crt", "tls.crt", "tls.key", "expires"];
const NEXT: &str = "next-";
const BEFORE: &str = "before-ca.crt";
const SINCE: &str = "since";

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        lifetime: Duration::from_secs(900),
        settle: Duration::from_secs(10),
    };

    fn make(now: Seconds) -> Result<Certificate, rcgen::Error> {
        Certificate::make(&["localhost".to_owned()], now, TIMES.lifetime)
    }

    #[test]
    fn what_is_presented_is_trusted_a_while_before_and_after() {
        let mut known = Certificates::default();
        let mut presented = Vec::new();
        let mut bundles: Vec<(Seconds, String)> = Vec::new();
        for now in 1000..4000 {
            if let Some(next) = known.step(now, TIMES, || make(now)).unwrap() {
                known = Certificates::of_secret(&json!({ "data": next.data() }));
                assert_eq!(known, next);
                bundles.push((now, known.bundle()));
            }
            let current = known.current.clone().unwrap();
            assert!(current.expires > now, "it is presented after its end");
            // An API server that has learnt of no change for some seconds trusts what is presented to it, and the other way round.
            let late = now.saturating_sub(TIMES.settle.as_secs() - 1);
            let learnt = bundles.iter().rfind(|(since, _)| *since <= late);
            if let Some((_, bundle)) = learnt {
                assert!(bundle.contains(&current.authority), "{now}");
            }
            presented.push(current.authority);
        }
        presented.dedup();
        assert!(presented.len() >= 4, "{}", presented.len());
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_made_anew() {
        for secret in [
            json!({}),
            json!({ "data": 7 }),
            json!({ "data": { "tls.crt": "!", "ca.crt": 7 } }),
        ] {
            let read = Certificates::of_secret(&secret);
            let made = read.step(5, TIMES, || make(5)).unwrap().unwrap();
            assert!(made.current.is_some() && made.next.is_none());
        }
    }
}
