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

    /// Presents the certificate of the Secret. The leader writes it, too, and tells API servers what to trust.
    pub(super) fn round(
        &mut self,
        is_leader: bool,
        presented: &ReplaceableCertificate,
    ) -> Result<(), KeeperError> {
        let (resource, key) = self.secret();
        let secret = match self.client.get(&resource, &key) {
            Err(error) if error.code() == Some(404) => None,
            secret => Some(secret?),
        };
        let mut known = secret
            .as_ref()
            .map_or_else(Certificates::default, Certificates::of_secret);
        let used = self.present(&known, presented);
        if !is_leader {
            return used;
        }
        if used.is_err() {
            // Nobody can present it: it is as good as none.
            known.current = None;
        }
        // API servers trust what is there before anything changes.
        if known.current.is_some() {
            self.trust(&known.bundle())?;
        }
        let now = now();
        let make = || Certificate::make(&self.names, now, self.times.lifetime);
        let Some(next) = known.step(now, self.times, make)? else {
            return Ok(());
        };
        if !self.write(secret.as_ref(), &next)? {
            return Ok(());
        }
        self.trust(&next.bundle())?;
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
    fn write(&self, old: Option<&Value>, new: &Certificates) -> Result<bool, ApiError> {
        let (resource, key) = self.secret();
        let mut metadata = json!({ "name": key.name, "namespace": key.namespace,
            "labels": { "app.kubernetes.io/managed-by": "tollgate" } });
        if let Some(old) = old {
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        }
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
            "data": new.data() });
        let written = match old {
            None => self.client.create(&resource, &object),
            Some(_) => self.client.replace(&resource, &object),
        };
        match written {
            Err(error) if error.code() == Some(409) => Ok(false),
            written => written.map(|_| true),
        }
    }

    /// Has API servers trust these authorities.
    fn trust(&self, bundle: &str) -> Result<(), ApiError> {
        let bundle = STANDARD.encode(bundle);
        for (kind, plural) in CONFIGURATIONS {
            let resource = Resource::new("admissionregistration.k8s.io", "v1", plural);
            let key = ObjectKey {
                namespace: String::new(),
                name: WEBHOOK.to_owned(),
            };
            let found = self.client.get(&resource, &key)?;
            let webhooks = found["webhooks"].as_array();
            let webhooks = webhooks.into_iter().flatten();
            let is_right = |one: &&Value| one["clientConfig"]["caBundle"] == *bundle;
            if webhooks.clone().all(|one| is_right(&one)) {
                continue;
            }
            let trusting: Vec<Value> = webhooks
                .map(|one| json!({ "name": one["name"], "clientConfig": { "caBundle": bundle } }))
                .collect();
            let object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": WEBHOOK }, "webhooks": trusting });
            self.client.apply(&resource, &object)?;
        }
        Ok(())
    }
}
