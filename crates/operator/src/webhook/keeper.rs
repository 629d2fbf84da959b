//! Keeps the certificates of the webhook: in a Secret of the installation, and as what API servers trust.

use std::path::Path;

use apiserver::{ApiError, Client, Resource};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kinds::ObjectKey;
use serde_json::{Value, json};
use serve::{ReplaceableCertificate, ServeError};

use super::certificates::{Certificate, Certificates, Times, now};
use crate::manifests::WEBHOOK;

/// What keeps certificates from being as they have to be.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeeperError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("cannot make a certificate for the webhook")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the certificate of the Secret {WEBHOOK}")]
    Present(#[from] ServeError),
    #[error(
        "cannot serve the webhook: the {kind} {WEBHOOK} is of the installation in namespace {namespace}. \
         help: a cluster has one webhook; remove this installation's, or that one"
    )]
    OfOther {
        kind: &'static str,
        namespace: String,
    },
    #[error(
        "cannot keep certificates: there is no Secret {WEBHOOK}. help: apply the manifests again"
    )]
    NoSecret,
}

pub(super) struct Keeper {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Names in certificates.
    pub(super) names: Vec<String>,
    pub(super) times: Times,
    /// What is presented.
    pub(super) presented: Option<Certificate>,
}

/// Kinds of configurations of webhooks.
const CONFIGURATIONS: [(&str, &str); 2] = [
    (
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    (
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
];

impl Keeper {
    fn secret(&self) -> (Resource, ObjectKey) {
        let key = ObjectKey {
            namespace: self.namespace.clone(),
            name: WEBHOOK.to_owned(),
        };
        (Resource::new("", "v1", "secrets"), key)
    }

    /// Returns the configurations. It is an error if one of them leads to another installation.
    fn configurations(&self) -> Result<Vec<(&'static str, Resource, Value)>, KeeperError> {
        let mut all = Vec::new();
        for (kind, plural) in CONFIGURATIONS {
            let resource = Resource::new("admissionregistration.k8s.io", "v1", plural);
            let key = ObjectKey {
                namespace: String::new(),
                name: WEBHOOK.to_owned(),
            };
            let found = self.client.get(&resource, &key)?;
            let webhooks = found["webhooks"].as_array().into_iter().flatten();
            let mut namespaces =
                webhooks.filter_map(|one| one["clientConfig"]["service"]["namespace"].as_str());
            if let Some(other) = namespaces.find(|one| *one != self.namespace) {
                let namespace = other.to_owned();
                return Err(KeeperError::OfOther { kind, namespace });
            }
            all.push((kind, resource, found));
        }
        Ok(all)
    }

    /// Presents the certificate of the Secret. The leader writes it, too, and tells API servers what to trust.
    pub(super) fn round(
        &mut self,
        is_leader: bool,
        presented: &ReplaceableCertificate,
    ) -> Result<(), KeeperError> {
        let configurations = self.configurations()?;
        let (resource, key) = self.secret();
        let secret = match self.client.get(&resource, &key) {
            Err(error) if error.code() == Some(404) => return Err(KeeperError::NoSecret),
            secret => secret?,
        };
        let mut known = Certificates::of_secret(&secret);
        let used = self.present(&known, presented);
        if !is_leader {
            return used;
        }
        if used.is_err() {
            // Nobody can present it: it is as good as none.
            known.current = None;
        }
        let now = now();
        // API servers trust what is there before anything changes. If they were told just now, what follows waits for them.
        if known.current.is_some() && self.trust(&configurations, &known.bundle())? {
            self.write(secret, &known.trusted_since(now))?;
            return Ok(());
        }
        let make = || Certificate::make(&self.names, now, self.times.lifetime);
        let Some(next) = known.step(now, self.times, make)? else {
            return Ok(());
        };
        if !self.write(secret, &next)? {
            return Ok(());
        }
        self.trust(&configurations, &next.bundle())?;
        self.present(&next, presented)
    }

    fn present(
        &mut self,
        known: &Certificates,
        presented: &ReplaceableCertificate,
    ) -> Result<(), KeeperError> {
        let Some(current) = &known.current else {
            return Ok(());
        };
        if self.presented.as_ref() == Some(current) {
            return Ok(());
        }
        let source = Path::new("Secret").join(WEBHOOK);
        presented.replace(&source, current.chain.as_bytes(), current.key.as_bytes())?;
        self.presented = Some(current.clone());
        Ok(())
    }

    /// Writes the Secret; false if somebody else was faster.
    fn write(&self, mut secret: Value, new: &Certificates) -> Result<bool, ApiError> {
        let (resource, _) = self.secret();
        // The rest stays as it is, with the version that was read.
        secret["data"] = new.data();
        match self.client.replace(&resource, &secret) {
            Err(error) if error.code() == Some(409) => Ok(false),
            written => written.map(|_| true),
        }
    }

    /// Has API servers trust these authorities. Returns true if they did not yet.
    fn trust(
        &self,
        configurations: &[(&'static str, Resource, Value)],
        bundle: &str,
    ) -> Result<bool, ApiError> {
        let bundle = STANDARD.encode(bundle);
        let mut is_changed = false;
        for (kind, resource, found) in configurations {
            let webhooks = found["webhooks"].as_array().into_iter().flatten();
            let is_right = |one: &Value| one["clientConfig"]["caBundle"] == *bundle;
            if webhooks.clone().all(is_right) {
                continue;
            }
            let trusting: Vec<Value> = webhooks
                .map(|one| json!({ "name": one["name"], "clientConfig": { "caBundle": bundle } }))
                .collect();
            let object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": WEBHOOK }, "webhooks": trusting });
            self.client.apply(resource, &object)?;
            is_changed = true;
        }
        Ok(is_changed)
    }
}
