//! Rules and settings that a program gives to its detector as texts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rules and settings that a program gives to its detector, each text with its name for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenSources {
    /// Leaves the built-in rules out.
    pub without_builtin: bool,
    /// Rule files, in the order in which they are loaded.
    pub rules: Vec<(String, String)>,
    /// Parts of falco.yaml. Each is merged into the ones before: lists are extended, other values replaced.
    pub settings: Vec<(String, String)>,
}

/// Folders for files that given settings name. Whoever gives the settings need not be root of this host, while this program
/// is: it writes and reads no other file for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenFolders {
    /// Where files are written, such as `file_output.filename`. Nobody else may write to it.
    pub written: PathBuf,
    /// Where files are read, such as certificates and tokens. It need not exist.
    pub read: PathBuf,
}

/// The sources that a detector reads when it loads its rules.
#[derive(Debug, Default)]
pub struct GivenHandle(Mutex<Arc<GivenSources>>);

impl GivenHandle {
    /// A handle to these sources.
    #[must_use]
    pub fn new(sources: GivenSources) -> Self {
        Self(Mutex::new(Arc::new(sources)))
    }

    /// The sources.
    #[must_use]
    pub fn sources(&self) -> Arc<GivenSources> {
        Arc::clone(&self.lock())
    }

    pub(crate) fn replace(&self, sources: Arc<GivenSources>) -> Arc<GivenSources> {
        std::mem::replace(&mut *self.lock(), sources)
    }

    fn lock(&self) -> MutexGuard<'_, Arc<GivenSources>> {
        // The value is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
