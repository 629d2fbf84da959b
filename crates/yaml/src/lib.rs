//! YAML as a tree with source positions, and diagnostics that point into it.

mod diagnostic;
pub mod key;
pub mod quote;
pub mod settings;
mod text;
mod tree;

pub use diagnostic::{Code, Diagnostic, Location, Severity, closest};
pub use text::SourceText;
pub use tree::{Kind, MAX_FILE_BYTES, MAX_NESTING, MAX_NODES, Node, Problem, read};
