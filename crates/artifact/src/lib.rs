//! Rule files as artefacts of OCI registries, in the form of falcoctl.
//!
//! An artefact is a manifest, a configuration (name, version, dependencies, requirements) and one layer, a compressed
//! archive. A registry is not believed: each part is compared with the digest that names it, the digest of the manifest
//! is what a signature is about, and everything has a largest size ([`limits`]).
//!
//! - [`Source`] and [`Sink`] are where artefacts are read from and written to: a [`Remote`] registry, or a [`Layout`] on disk.
//! - [`fetch()`] reads an artefact and verifies it; [`push()`] writes one.
//! - [`Installer`] resolves dependencies, has the caller check the rules, and puts them into the folder of rule files.

mod archive;
mod credentials;
mod error;
mod fetch;
mod form;
mod index;
mod install;
mod layout;
pub mod limits;
mod push;
mod reference;
mod registry;
mod signature;
mod state;
mod steps;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use archive::{Content, TestFile};
pub use credentials::Credentials;
pub use error::ArtifactError;
pub use fetch::{Fetched, fetch};
pub use form::{Config, Dependency, Digest, Kind, NameAndVersion};
pub use index::{Index, IndexEntry};
pub use install::{InstallOptions, Installer};
pub use layout::Layout;
pub use push::{Package, PushResult, push};
pub use reference::{Reference, Wanted};
pub use registry::{Remote, RemoteOptions, read_index};
pub use signature::{PublicKey, SigningKey, Trust};
pub use state::{Installed, State};
pub use steps::{Candidate, Checker, Done, Step};

use form::Descriptor;

/// A manifest, and its media type if one is given.
pub type ManifestBytes = (Vec<u8>, Option<String>);

/// Where artefacts are read from.
pub trait Source {
    /// Reads a manifest by tag or digest, with its media type if one is given; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is too large.
    fn manifest(&self, tag_or_digest: &str) -> Result<Option<ManifestBytes>, ArtifactError>;

    /// Reads a blob of at most `limit` bytes. Whoever calls this compares the digest.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is too large.
    fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ArtifactError>;
}

/// Where artefacts are written to.
pub trait Sink {
    /// Writes a blob, unless it is there.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn put_blob(&self, bytes: &[u8]) -> Result<Digest, ArtifactError>;

    /// Writes a manifest, and gives it a tag.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn put_manifest(
        &self,
        tag: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest, ArtifactError>;
}

/// Reads a blob, and compares its size and digest with what names it.
fn checked_blob(
    source: &dyn Source,
    descriptor: &Descriptor,
    what: &'static str,
    limit: u64,
) -> Result<Vec<u8>, ArtifactError> {
    if descriptor.size > limit {
        return Err(ArtifactError::TooLarge { what, limit });
    }
    let bytes = source.blob(&descriptor.digest, limit)?;
    descriptor.digest.check(&bytes, what)?;
    Ok(bytes)
}
