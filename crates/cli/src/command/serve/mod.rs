//! `tollgate serve`: the collector of a fleet, and its page.

pub(crate) mod args;
#[cfg(feature = "serve")]
mod bundles;
mod capture_on;
#[cfg(feature = "serve")]
mod clauses;
#[cfg(feature = "serve")]
mod confine;
mod login;
#[cfg(feature = "serve")]
mod provider;
mod queue;
#[cfg(feature = "serve")]
mod server;
#[cfg(feature = "serve")]
mod tokens;
#[cfg(feature = "serve")]
mod users;

use diagnostics::failure::Outcome;

use self::args::Serve;
#[cfg(feature = "serve")]
use self::args::ServeVerb;

/// Runs the verb.
#[cfg(feature = "serve")]
pub(crate) fn execute(args: Serve) -> Outcome {
    match args.verb {
        None => server::serve(args),
        Some(ServeVerb::Token(verb)) => tokens::execute(verb),
        Some(ServeVerb::Bundle(verb)) => bundles::execute(verb),
        Some(ServeVerb::User(verb)) => users::execute(verb),
        Some(ServeVerb::Backup(args)) => server::backup(&args),
        Some(ServeVerb::Restore(args)) => server::restore(&args),
    }
}

/// Refuses: this build lacks the collector.
#[cfg(not(feature = "serve"))]
pub(crate) fn execute(_args: Serve) -> Outcome {
    use diagnostics::exit::Exit;
    use diagnostics::failure::Failure;
    let message = "cannot serve: this build has no collector";
    Err(Failure::new(Exit::Unsupported, message).help("build with the feature `serve`"))
}
