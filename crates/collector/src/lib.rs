//! The collector of a fleet: takes batches of agents and alerts of Falco, keeps them in a
//! [`store::Store`], and answers questions about them.
//!
//! Everything that a sender says is hostile. Who it is comes from its credential alone; bodies,
//! batches, connections and the time a client may take are bounded; text is returned as JSON, which
//! escapes what could control a terminal, or as HTML, which escapes what could control a browser.

mod alert;
mod answer;
mod api;
mod auth;
mod body;
mod bundles;
mod captured;
mod captures;
mod certificates;
mod counter;
mod download;
mod grouping;
mod identity;
mod ingest;
mod json;
mod losses;
mod metrics;
mod oidc;
mod otlp;
mod page;
mod queue;
mod routes;
mod secret;
mod server;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod user_name;

pub use bundles::{Choice, Choices};
pub use certificates::{CertificateError, own_certificate};
pub use oidc::{OidcError, OidcSettings};
pub use outputs::CaptureOnAlert;
pub use page::{
    AccountError, AlertToExplain, BrowseCapture, ClauseValue, Exception, ExplainAlert,
    MatchedClause, MatchedRule, ProposeException, add_user, first_link, set_password,
};
pub use queue::{QueueError, QueueSettings};
#[doc(hidden)]
pub use routes::Paths;
pub use secret::{NewSecret, hash};
#[doc(hidden)]
pub use server::paths;
pub use server::{Collector, CollectorError, Settings};
