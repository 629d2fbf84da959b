//! What a kind of output is: its part of the configuration, and the channel that is made of it.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use yaml::key::Key;
use yaml::settings::{Node, Problem};

use crate::channel::Channel;

/// The settings of one kind of output, which are also their own description. `Default` has the defaults.
pub trait OutputKind: Clone + Debug + Default + PartialEq + 'static {
    /// Name of its group in the configuration: `file_output`.
    const GROUP: &'static str;

    /// Its keys; the path of each begins with the group.
    const KEYS: &'static [Key<Self>];

    /// Returns true if alerts go there.
    fn is_enabled(&self) -> bool;

    /// The key without which it cannot be enabled, if that is empty.
    fn missing(&self) -> Option<Missing> {
        None
    }

    /// Opens what can be opened before the first alert, so that a mistake stops the start. Makes no thread: the
    /// process still forks.
    ///
    /// # Errors
    ///
    /// If a setting cannot be used.
    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError>;
}

/// A key that an output needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name in the group.
    pub key: &'static str,
    /// A value, for the message.
    pub example: &'static str,
}

impl Missing {
    /// The key, if its value is empty.
    pub(crate) fn if_empty(
        value: &(impl AsRef<std::ffi::OsStr> + ?Sized),
        key: &'static str,
        example: &'static str,
    ) -> Option<Self> {
        let is_empty = value.as_ref().is_empty();
        is_empty.then_some(Self { key, example })
    }
}

/// Settings that concern every output.
#[derive(Clone, Debug)]
pub struct Common {
    /// Whether alerts are JSON.
    pub json: bool,
    /// How long a channel may take over an alert.
    pub timeout: Duration,
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
    /// An error with its next step.
    pub(crate) fn new(source: impl Error + Send + Sync + 'static, help: &'static str) -> Self {
        let source = Box::new(source);
        Self { source, help }
    }
}

/// An [`OutputKind`] of any type.
pub(crate) trait Output {
    fn group(&self) -> &'static str;
    fn is_enabled(&self) -> bool;
    fn missing(&self) -> Option<Missing>;
    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError>;
    /// None: there is no such key.
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

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        OutputKind::open(self, common)
    }

    fn set(&mut self, path: &str, node: &Node) -> Option<Result<(), Problem>> {
        let key = T::KEYS.iter().find(|key| key.path == path)?;
        Some(key.set(self, node))
    }
}

/// Paths and JSON types of the keys of one kind.
pub(crate) fn keys<T: OutputKind>() -> Vec<(&'static str, &'static str)> {
    let keys = T::KEYS.iter();
    keys.map(|key| (key.path, key.json_type())).collect()
}

/// Makes [`crate::Outputs`] of a list of kinds.
macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// The settings of all outputs, with a method for what is done with each.
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

            /// Paths of all keys, and the JSON types of what they take.
            pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$($crate::kind::keys::<$kind>()),*].into_iter().flatten()
            }
        }
    };
}
pub(crate) use outputs;
