//! Certificates of the webhook, and when the next one comes.
//!
//! Each certificate has an authority of its own, whose key is thrown away. A new one is trusted before it is used, and the one before
//! is trusted for a while after: API servers and operators learn of a change at different times.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::{Value, json};

use crate::manifests::WEBHOOK;

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
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) authority: String,
    pub(super) chain: String,
    pub(super) key: String,
    pub(super) expires: Seconds,
}

impl fmt::Debug for Certificate {
    /// Leaves the key out.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Certificate")
            .field("chain", &self.chain)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// It has not expired, and expires no later than one of now would: a clock that was wrong makes certificates that nobody
    /// would replace.
    fn is_valid(&self, now: Seconds, times: Times) -> bool {
        let end = now.saturating_add((times.lifetime + SKEW).as_secs());
        now < self.expires && self.expires <= end
    }

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
        of_server
            .distinguished_name
            .push(DnType::CommonName, WEBHOOK);
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
        let valid = |one: &&Certificate| one.is_valid(now, times);
        let Some(current) = self.current.as_ref().filter(valid) else {
            // Nobody trusts what is presented: there is nothing to keep.
            return Ok(Some(Self {
                current: Some(make()?),
                since: now,
                ..Self::default()
            }));
        };
        if self.since > now {
            // A clock was wrong, this one or another. What depends on the time waits again, from now on.
            return Ok(Some(self.trusted_since(now)));
        }
        if self.next.as_ref().is_some_and(|next| !valid(&next)) {
            return Ok(Some(Self {
                next: Some(make()?),
                since: now,
                ..self.clone()
            }));
        }
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

    /// The same, of which API servers were told at another time.
    pub(super) fn trusted_since(&self, since: Seconds) -> Self {
        Self {
            since,
            ..self.clone()
        }
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
            // An operator that has not read the Secret for some seconds presents what it knew then, and API servers trust that, too.
            let before = presented
                .len()
                .checked_sub(usize::try_from(TIMES.settle.as_secs()).unwrap());
            if let Some(old) = before {
                assert!(known.bundle().contains(&presented[old]), "{now}");
            }
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

    #[test]
    fn what_a_wrong_clock_made_is_made_anew() {
        let year = 365 * 24 * 3600;
        let now = 1_000_000;
        let of_future = make(now + year).unwrap();
        let good = make(now).unwrap();
        let known = Certificates {
            current: Some(of_future.clone()),
            since: now + year,
            ..Certificates::default()
        };
        let step = |known: &Certificates| known.step(now, TIMES, || make(now)).unwrap();
        let made = step(&known).unwrap();
        assert!(made.current.unwrap().expires < now + year);
        assert_eq!(made.since, now);
        // One of a clock that is a little fast counts.
        let fast = make(now + 200).unwrap();
        let known = Certificates {
            current: Some(fast),
            since: now,
            ..Certificates::default()
        };
        assert_eq!(step(&known), None);
        let known = Certificates {
            current: Some(good.clone()),
            next: Some(of_future),
            since: now,
            ..Certificates::default()
        };
        let made = step(&known).unwrap();
        assert_eq!(made.current.as_ref(), Some(&good));
        assert!(made.next.unwrap().expires < now + year);
        // A time in the future is as good as now.
        let known = Certificates {
            current: Some(good.clone()),
            before: Some("x".to_owned()),
            since: now + year,
            ..Certificates::default()
        };
        let made = step(&known).unwrap();
        assert_eq!((made.since, &made.before), (now, &known.before));
        let later = now + TIMES.settle.as_secs() + 1;
        let made = made.step(later, TIMES, || make(later)).unwrap().unwrap();
        assert_eq!(made.before, None);
    }

    #[test]
    fn a_certificate_that_is_printed_has_no_key_in_it() {
        let made = make(1000).unwrap();
        let printed = format!("{made:?}");
        assert!(printed.contains("expires: 1900") && !printed.contains("PRIVATE"));
        assert!(!printed.contains(made.key.lines().nth(1).unwrap()));
    }
}
