//! `tollgate version`: prints the version, and how the program was built.

use diagnostics::failure::Outcome;
use diagnostics::terminal;
use event::EngineKind;
use policy::EnforcerKind;
use serde_json::json;

use crate::args::Version;

/// Commit that the program was built from, with `-dirty` if files were changed. The Makefile sets the variable.
const COMMIT: Option<&str> = option_env!("TOLLGATE_COMMIT");
/// Optional parts, by the names of the features in Cargo.toml, and whether this build has them.
const FEATURES: [(&str, bool); 4] = [
    ("bench", cfg!(feature = "bench")),
    ("embedded-runtime", cfg!(feature = "embedded-runtime")),
    ("kubernetes", cfg!(feature = "kubernetes")),
    ("serve", cfg!(feature = "serve")),
];
/// Whether the C library is linked into the program.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// Runs the verb.
pub(crate) fn execute(args: &Version) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    // Outside a clone the variable is empty.
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let features = FEATURES.iter().filter(|(_, has_it)| *has_it);
    let features: Vec<&str> = features.map(|(name, _)| *name).collect();
    if !args.json {
        let linked = if IS_STATIC { "static" } else { "dynamic" };
        return terminal::print(&format!(
            "tollgate {version}\ncommit: {}\nfeatures: {}\ntarget: {} ({linked})\n",
            commit.unwrap_or("unknown"),
            if features.is_empty() {
                "none".to_owned()
            } else {
                features.join(", ")
            },
            target(),
        ));
    }
    let uname = rustix::system::uname();
    let object = json!({
        "name": "tollgate",
        "version": version,
        "commit": commit,
        "features": features,
        "target": target(),
        "static": IS_STATIC,
        "architecture": std::env::consts::ARCH,
        "kernel": uname.release().to_string_lossy(),
        "engines": EngineKind::WITH_EVENTS.map(EngineKind::name),
        "enforcers": EnforcerKind::ALL.map(EnforcerKind::id),
    });
    terminal::print(&format!("{object}\n"))
}

/// Returns the target of the build, as rustc names it.
fn target() -> String {
    let library = if cfg!(target_env = "musl") {
        "musl"
    } else {
        "gnu"
    };
    format!("{}-unknown-linux-{library}", std::env::consts::ARCH)
}
