//! Tests that cannot run everywhere prove why.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

/// Ends a test that cannot run here. `proof` is a closure that shows that it cannot: it returns
/// what it found, or an error if the test could have run after all, which fails the test.
#[macro_export]
macro_rules! skip {
    ($reason:expr, $proof:expr) => {{
        $crate::record(concat!(module_path!(), ":", line!()), $reason, $proof());
        return;
    }};
}

/// Ends a test that needs root when the user is not root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("needs root", || Ok(String::from(
                "the effective user id is not 0"
            )));
        }
    };
}

/// Ends a test that takes long unless `TOLLGATE_TEST_SLOW` asks for it.
#[macro_export]
macro_rules! need_slow {
    () => {
        if !$crate::slow() {
            $crate::skip!("takes long", || Ok(String::from(
                "TOLLGATE_TEST_SLOW is not set"
            )));
        }
    };
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether tests that take long are asked for.
pub fn slow() -> bool {
    env::var_os("TOLLGATE_TEST_SLOW").is_some_and(|value| value == "1")
}

/// Prints that a test was skipped, and writes it to the file that `TOLLGATE_SKIPS` names.
///
/// # Panics
/// If the proof failed, or the file cannot be written.
pub fn record(test: &str, reason: &str, proof: Result<String, String>) {
    let found = proof.unwrap_or_else(|why| panic!("{test} claims that it {reason}, but {why}"));
    let line = format!("skipped: {test}: {reason} ({found})");
    println!("{line}");
    if let Some(path) = env::var_os("TOLLGATE_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}
