//! Where the API server is, and how a client proves who it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, io};

use crate::kubeconfig::Context;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Folder with the token and the authority of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Address and credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// `https://HOST:PORT`, or `http://HOST:PORT` on loopback.
    pub server: String,
    /// The certificates that may sign the server's, in PEM form.
    pub authority: Option<Credential>,
    /// A token. A file is read for each request, because the kubelet replaces it.
    pub token: Option<Credential>,
    /// A certificate of the client and its key, in PEM form.
    pub client: Option<(Credential, Credential)>,
}

/// A file, or what would be in it.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A file.
    File(PathBuf),
    /// The content, and the file that it was written in.
    Inline {
        /// The content.
        content: Vec<u8>,
        /// The file.
        within: PathBuf,
    },
}

impl Credential {
    /// The file that has the content.
    fn path(&self) -> &PathBuf {
        match self {
            Self::File(path) | Self::Inline { within: path, .. } => path,
        }
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>, AccessError> {
        match self {
            Self::File(path) => read(path),
            Self::Inline { content, .. } => Ok(content.clone()),
        }
    }
}

/// Shows no secret.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

/// The API server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// This is no pod.
    #[error("cannot find the API server: `{variable}` is not set, so this is no pod")]
    NoPod {
        /// A variable that the kubelet sets.
        variable: &'static str,
    },
    /// The address is no URL, or would send credentials in the clear.
    #[error("cannot use the API server `{server}`: {problem}")]
    Server {
        /// The address.
        server: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is not what it has to be.
    #[error("cannot use {}: {problem}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file has no certificate or key.
    #[error("cannot use {}: {problem}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Access {
    /// The access that the kubelet gives a pod.
    ///
    /// # Errors
    ///
    /// If this is no pod.
    pub fn in_cluster() -> Result<Self, AccessError> {
        let variable =
            |variable| env::var(variable).map_err(|_unset| AccessError::NoPod { variable });
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        // An address of IPv6 stands in brackets.
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let folder = Path::new(SERVICE_ACCOUNT);
        Ok(Self {
            server: format!("https://{host}:{port}"),
            authority: Some(Credential::File(folder.join("ca.crt"))),
            token: Some(Credential::File(folder.join("token"))),
            client: None,
        })
    }

    /// An access by files: authorities, a token, and a certificate with its key.
    #[must_use]
    pub fn files(
        server: &str,
        authority: Option<PathBuf>,
        token: Option<PathBuf>,
        client: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        Self {
            server: server.to_owned(),
            authority: authority.map(Credential::File),
            token: token.map(Credential::File),
            client: client.map(|(one, key)| (Credential::File(one), Credential::File(key))),
        }
    }

    /// The access of the current context of a kubeconfig file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or says something that is not supported: programs that make credentials, passwords,
    /// impersonation, proxies, and servers that are not verified.
    pub fn kubeconfig(path: &Path) -> Result<Self, AccessError> {
        Self::context(&[path.to_owned()], None).map(|context| context.access)
    }

    /// A context of kubeconfig files, by default the current one.
    ///
    /// # Errors
    ///
    /// As of [`Access::kubeconfig`], and if no file has the context.
    pub fn context(paths: &[PathBuf], name: Option<&str>) -> Result<Context, AccessError> {
        crate::kubeconfig::read(paths, name)
    }

    /// Refuses an address to which credentials cannot be sent.
    pub(crate) fn check(&self) -> Result<(), AccessError> {
        let wrong = |problem| AccessError::Server {
            server: self.server.clone(),
            problem,
        };
        if self.server.starts_with("https://") {
            return match self.authority {
                Some(_) => Ok(()),
                None => Err(wrong("a server with TLS needs a file of authorities")),
            };
        }
        let rest = self.server.strip_prefix("http://");
        let rest = rest.ok_or_else(|| wrong("it has to begin with https://"))?;
        let is_near = ["127.0.0.1:", "[::1]:"]
            .iter()
            .any(|host| rest.starts_with(host));
        match is_near {
            true => Ok(()),
            false => Err(wrong("http:// is only for a server on loopback")),
        }
    }

    pub(crate) fn tls(&self) -> Result<TlsConfig, AccessError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
        if let Some(pem) = &self.authority {
            let roots = certificates(pem)?;
            config = config.root_certs(RootCerts::new_with_certs(&roots));
        }
        if let Some((certificate, key)) = &self.client {
            let chain = certificates(certificate)?;
            let pem = key.read()?;
            let key = PrivateKey::from_pem(&pem).map_err(|error| AccessError::Pem {
                path: key.path().clone(),
                problem: error.to_string(),
            })?;
            config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        Ok(config.build())
    }
}

fn certificates(pem: &Credential) -> Result<Vec<Certificate<'static>>, AccessError> {
    let wrong = |problem: String| AccessError::Pem {
        path: pem.path().clone(),
        problem,
    };
    let pem = pem.read()?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        match item.map_err(|error| wrong(error.to_string()))? {
            PemItem::Certificate(certificate) => found.push(certificate),
            _ => continue,
        }
    }
    match found.is_empty() {
        true => Err(wrong("the file has no PEM certificate".to_owned())),
        false => Ok(found),
    }
}

pub(crate) fn read(path: &PathBuf) -> Result<Vec<u8>, AccessError> {
    fs::read(path).map_err(|source| AccessError::Read {
        path: path.clone(),
        source,
    })
}
