//! `tollgate version`: prints the version.

use diagnostics::failure::Outcome;
use diagnostics::terminal;
use event::EngineKind;
use policy::EnforcerKind;
use serde_json::json;

use crate::args::Version;

/// Runs the verb.
pub(crate) fn execute(args: &Version) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    if !args.json {
        return terminal::print(&format!("tollgate {version}\n"));
    }
    let uname = rustix::system::uname();
    let object = json!({
        "name": "tollgate",
        "version": version,
        "architecture": std::env::consts::ARCH,
        "kernel": uname.release().to_string_lossy(),
        "engines": EngineKind::WITH_EVENTS.map(EngineKind::name),
        "enforcers": EnforcerKind::ALL.map(EnforcerKind::id),
    });
    terminal::print(&format!("{object}\n"))
}
