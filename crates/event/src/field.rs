//! The field registry.
