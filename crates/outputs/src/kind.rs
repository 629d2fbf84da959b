//! The [`OutputKind`] trait: an output's configuration keys and the channel built from them.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use yaml::key::Key;
use yaml::settings::{Node, Problem};

use crate::channel::Channel;
use crate::stdout::StandardStream;

/// Settings of one kind of output, with the table of their keys. `Default` has the default values.
pub trait OutputKind: Clone + Debug + Default + PartialEq + 'static {
    /// Name of the configuration group, such as `file_output`.
    const GROUP: &'static str;

    /// Keys of the group. The path of each begins with the group.
    const KEYS: &'static [Key<Self>];

    /// Returns true if the output is enabled.
    fn is_enabled(&self) -> bool;

    /// Returns the required key whose value is empty, if any.
    fn missing(&self) -> Option<Missing> {
        None
    }

    /// Returns a warning if the settings give a secret away.
    fn exposure(&self) -> Option<String> {
        None
    }

    /// Opens everything that can fail, so that a mistake is an error at the start. Creates no
    /// thread: the process still forks.
    ///
    /// # Errors
    ///
    /// A setting cannot be used.
    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError>;
}

/// A required key without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the key in its group.
    pub key: &'static str,
    /// Example value for the message.
    pub example: &'static str,
}

impl Missing {
    /// Returns the key if its value is empty.
    pub(crate) fn if_empty(
        value: &(impl AsRef<std::ffi::OsStr> + ?Sized),
        key: &'static str,
        example: &'static str,
    ) -> Option<Self> {
        let is_empty = value.as_ref().is_empty();
        is_empty.then_some(Self { key, example })
    }
}

/// Settings that all outputs share.
#[derive(Clone, Debug)]
pub struct Common {
    /// Write alerts as JSON.
    pub json: bool,
    /// Time limit of a channel for one alert.
    pub timeout: Duration,
    /// Stream that programs and answers are printed to.
    pub prints_to: StandardStream,
}

/// A channel cannot be opened as configured.
#[derive(Debug)]
pub struct ChannelOpenError {
    /// The error, with its causes.
    pub source: Box<dyn Error + Send + Sync>,
    /// The next step.
    pub help: &'static str,
}

impl ChannelOpenError {
    /// Creates an error with its next step.
    pub(crate) fn new(source: impl Error + Send + Sync + 'static, help: &'static str) -> Self {
        let source = Box::new(source);
        Self { source, help }
    }
}

/// An [`OutputKind`] behind dynamic dispatch.
pub(crate) trait Output {
    fn group(&self) -> &'static str;
    fn is_enabled(&self) -> bool;
    fn missing(&self) -> Option<Missing>;
    fn exposure(&self) -> Option<String>;
    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError>;
    /// Sets the key at `path`. Returns `None` if there is no such key.
    fn set(&mut self, path: &str, node: &Node) -> Option<Result<(), Problem>>;
}

impl<T: OutputKind> Output for T {
    fn group(&self) -> &'static str {
        T::GROUP
    }

    fn is_enabled(&self) -> bool {
        OutputKind::is_enabled(self)
    }

    fn missing(&self) -> Option<Missing> {
        OutputKind::missing(self)
    }

    fn exposure(&self) -> Option<String> {
        OutputKind::exposure(self)
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        OutputKind::open(self, common)
    }

    fn set(&mut self, path: &str, node: &Node) -> Option<Result<(), Problem>> {
        let key = T::KEYS.iter().find(|key| key.path == path)?;
        Some(key.set(self, node))
    }
}

/// Returns the paths and JSON types of the keys of one kind.
pub(crate) fn keys<T: OutputKind>() -> Vec<(&'static str, &'static str)> {
    let keys = T::KEYS.iter();
    keys.map(|key| (key.path, key.json_type())).collect()
}

/// Defines [`crate::Outputs`] from a list of kinds.
macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// Settings of all outputs.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Outputs {
            $($(#[$doc])* pub $name: $kind,)*
        }

        impl Outputs {
            fn each(&self) -> impl Iterator<Item = &dyn $crate::kind::Output> {
                [$(&self.$name as &dyn $crate::kind::Output),*].into_iter()
            }

            fn each_mut(&mut self) -> impl Iterator<Item = &mut dyn $crate::kind::Output> {
                [$(&mut self.$name as &mut dyn $crate::kind::Output),*].into_iter()
            }

            /// Returns the paths of all keys with the JSON types of their values.
            pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$($crate::kind::keys::<$kind>()),*].into_iter().flatten()
            }
        }
    };
}
pub(crate) use outputs;
