//! A client of Kubernetes' API server: what an operator and an agent need of it, on threads.
//!
//! [`Client`] reads and writes objects as JSON; it writes by server-side apply. [`watch`] keeps a caller informed about
//! all objects of a kind, through lost connections and expired versions. Nothing is cached but the names of objects.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use apiserver::{Access, Change, Client, Resource, watch};
//!
//! let client = Client::new(&Access::in_cluster()?, "example")?;
//! let nodes = Resource::new("", "v1", "nodes");
//! watch(&client, &nodes, |change| {
//!     if let Change::Applied(node) = change {
//!         println!("{}", node["metadata"]["name"]);
//!     }
//!     ControlFlow::Continue(())
//! });
//! # Ok::<(), apiserver::AccessError>(())
//! ```

mod access;
mod client;
#[cfg(feature = "testing")]
pub mod fake;
mod kubeconfig;
mod page;
#[cfg(feature = "testing")]
pub mod real;
mod resource;
#[cfg(test)]
mod tests;
mod watch;

pub use access::{Access, AccessError, Credential};
pub use client::{ApiError, Client};
pub use kubeconfig::Context;
pub use resource::Resource;
pub use watch::{Change, watch};
