//! What an installation is about, for its caller.

use std::path::PathBuf;

use semver::Version;

use crate::{Digest, Installed, TestFile};

/// A rule file that is to be installed.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name of its artefact.
    pub name: String,
    /// Where it will be.
    pub path: PathBuf,
    /// The file that it takes the place of, if that has another name.
    pub replaces: Option<PathBuf>,
    /// The rules.
    pub rules: String,
    /// Files of its tests.
    pub tests: Vec<TestFile>,
}

/// Checks rules before they are installed.
pub trait Checker {
    /// Checks rule files together with those that are in the folder already, and runs their tests.
    ///
    /// # Errors
    ///
    /// What is wrong, for people. Nothing is installed then.
    fn check(&self, candidates: &[Candidate]) -> Result<(), String>;
}

/// An artefact of an installation.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What is recorded of it.
    pub installed: Installed,
    /// The version before, if another one was installed.
    pub before: Option<Version>,
    /// Number of files of tests that were run.
    pub suites: usize,
}

/// What an installation did.
#[derive(Clone, Debug)]
pub struct Done {
    /// Name of the artefact that was asked for.
    pub name: String,
    /// Its version.
    pub version: Version,
    /// Its digest.
    pub digest: Digest,
    /// What was written, dependencies first; empty if all was installed already.
    pub steps: Vec<Step>,
}
