//! Largest sizes of what comes from a registry. Falco's largest rule file has 90 KiB, and its archive 25 KiB.

/// Bytes of a manifest or an index of manifests.
pub const MANIFEST: u64 = 1 << 20;
/// Bytes of the configuration of an artefact.
pub const CONFIG: u64 = 256 << 10;
/// Bytes of a layer as it is stored.
pub const LAYER: u64 = 4 << 20;
/// Bytes of an archive after decompression.
pub const UNPACKED: u64 = 16 << 20;
/// Entries of an archive.
pub const ENTRIES: usize = 512;
/// Bytes of a name in an archive.
pub const NAME: usize = 255;
/// Bytes of a payload that is signed.
pub const PAYLOAD: u64 = 64 << 10;
/// Signatures of one artefact that are looked at.
pub const SIGNATURES: usize = 16;
/// Manifests of one index, dependencies of one artefact, and their alternatives.
pub const PARTS: usize = 64;
/// Artefacts that one installation brings, with their dependencies.
pub const STEPS: usize = 32;
/// Bytes of an index file.
pub const INDEX: u64 = 4 << 20;
/// Bytes of the answer of a server of tokens, and of an error.
pub const ANSWER: u64 = 64 << 10;
