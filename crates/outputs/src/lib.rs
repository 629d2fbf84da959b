//! Where alerts go: text and JSON as Falco writes them, channels with a queue and a thread each,
//! throttling, and the stats file.
//!
//! A [`Dispatcher`] takes alerts from any number of capture threads and never makes them wait: each
//! channel has a bounded queue and its own thread, and what a slow or dead channel cannot take is
//! counted as lost by that channel, announced on the others and, when it recovers, on itself.
//!
//! Preparing and starting are separate, because a process that still has to fork must not have
//! threads: [`Dispatcher::prepare`] opens everything that can fail, [`Prepared::start`] makes the
//! threads.
//!
//! A new kind of channel is one file with one implementation of [`Channel`].

mod channel;
mod dispatcher;
mod file;
mod format;
mod http;
mod internal;
pub mod json;
mod program;
mod queue;
mod stats;
mod stdout;
mod stream;
mod syslog;
mod throttle;
mod time;
mod worker;

pub use channel::{Channel, Delivery, DeliveryError, OnSettled, Peer};
pub use dispatcher::{
    ChannelCounters, Counters, Dispatcher, OnProblem, Pending, Prepared, Settings, StartError,
};
pub use file::{FileChannel, OpenError};
pub use format::{Format, JsonParts, TimeFormat};
pub use http::{ClientFiles, HttpChannel, HttpError, HttpOptions, TlsOptions};
pub use internal::{Internal, internal_alert};
pub use program::{ProgramChannel, ProgramOptions};
pub use queue::{Account, LineOutput, QUEUE_CAPACITY, QueueCapacity};
pub use stats::{
    FILTERED_IN_KERNEL_REASON, Snapshot, StatsError, StatsFile, StatsSource, StatsWriter,
};
pub use stdout::StdoutChannel;
pub use syslog::SyslogChannel;
pub use throttle::{Throttle, ThrottleRate};
pub use time::log_stamp;
