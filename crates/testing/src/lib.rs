//! Skips of tests, and programs that a test makes.
//!
//! A test that cannot run here proves why, and is counted.
//!
//! A test never ends by a plain `return`, which would look like success. `skip!` reports the test, its reason
//! and the proof on standard output and in the file that `TOLLGATE_SKIPS` names. `cargo run -p xtask -- skips
//! FILE` compares that file with `tests/skips.txt`.
//!
//! ```
//! fn reads_a_device() {
//!     testing::need_root!();
//!     if !std::path::Path::new("/dev/null").exists() {
//!         testing::skip!("needs /dev/null", || Ok("it is not there".to_owned()));
//!     }
//! }
//! ```

mod authority;
pub mod postgres;

use std::cell::RefCell;
use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

mod program;

pub use authority::{Authority, Issued};
pub use program::{copy_program, write_program};

/// Ends a test that cannot run here. `$proof` is a closure that returns what it found as proof, or an error if
/// the test could have run after all, which fails the test.
#[macro_export]
macro_rules! skip {
    ($reason:expr, $proof:expr) => {{
        $crate::record!($crate::Extent::Test, $reason, $proof);
        return;
    }};
}

/// Reports that a part of a test cannot run here, and continues with the rest. The arguments are those of
/// `skip!`.
#[macro_export]
macro_rules! skip_part {
    ($reason:expr, $proof:expr) => {
        $crate::record!($crate::Extent::Part, $reason, $proof)
    };
}

/// Reports a skip of this extent in the enclosing test.
#[doc(hidden)]
#[macro_export]
macro_rules! record {
    ($extent:expr, $reason:expr, $proof:expr) => {{
        // The name of a function inside a test starts with the name of the test.
        fn here() {}
        $crate::record(
            $extent,
            env!("CARGO_PKG_NAME"),
            ::core::any::type_name_of_val(&here),
            $reason,
            $proof(),
        );
    }};
}

/// Ends a test that needs root if the user is not root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("needs root", || Ok(
                "the effective user id is not 0".to_owned()
            ));
        }
    };
}

/// Ends a slow test unless `TOLLGATE_TEST_SLOW` requests it.
#[macro_export]
macro_rules! need_slow {
    () => {
        if !$crate::slow() {
            $crate::skip!("takes long", || Ok(
                "TOLLGATE_TEST_SLOW is not set".to_owned()
            ));
        }
    };
}

/// Returns true if the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if slow tests are requested.
#[must_use]
pub fn slow() -> bool {
    env::var_os("TOLLGATE_TEST_SLOW").is_some_and(|value| value == "1")
}

/// The extent of a skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The whole test, or the rest of it.
    Test,
    /// A part of the test; the rest runs.
    Part,
}

/// A test, or a part of one, that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The extent of the skip.
    pub extent: Extent,
    /// Package and path of the function, such as `e2e::keeper::agents_are_replaced`.
    pub test: String,
    /// Requirement of the test, the same text on every host.
    pub reason: String,
    /// The result of the proof on this host.
    pub found: String,
}

impl Skip {
    /// Appends one line of four columns, separated by tabs.
    fn append(&self, path: &Path) -> io::Result<()> {
        let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let extent = match self.extent {
            Extent::Test => "test",
            Extent::Part => "part",
        };
        let columns = [extent, &self.test, &self.reason, &self.found].map(in_one_line);
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        // One write for each line, because test programs may append at the same time.
        file.write_all((columns.join("\t") + "\n").as_bytes())
    }
}

thread_local! {
    /// Skips of this thread while `collect` runs.
    static COLLECTED: RefCell<Option<Vec<Skip>>> = const { RefCell::new(None) };
}

/// Runs `body` and returns its skips, which are not reported: for tests of macros that skip.
///
/// # Panics
/// If `body` panics.
pub fn collect(body: impl FnOnce()) -> Vec<Skip> {
    COLLECTED.set(Some(Vec::new()));
    body();
    COLLECTED.take().unwrap_or_default()
}

/// Reports a skip; the macros call this. `here` is the path of a function inside the test.
///
/// # Panics
/// If the proof failed, or the file that `TOLLGATE_SKIPS` names cannot be written.
pub fn record(
    extent: Extent,
    package: &str,
    here: &str,
    reason: &str,
    proof: Result<String, String>,
) {
    let path = here.trim_end_matches("::here").replace("::{{closure}}", "");
    // The path of a unit test starts with the name of its crate, which is that of the package.
    let test = match path.split_once("::") {
        Some((library, _)) if library == package.replace('-', "_") => path,
        _ => format!("{package}::{path}"),
    };
    let found = proof.unwrap_or_else(|why| panic!("{test} was skipped ({reason}), but {why}"));
    let skip = Skip {
        extent,
        test,
        reason: reason.to_owned(),
        found,
    };
    let is_collected = COLLECTED.with_borrow_mut(|collected| match collected {
        Some(skips) => {
            skips.push(skip.clone());
            true
        }
        None => false,
    });
    if is_collected {
        return;
    }
    println!("skipped: {}: {} ({})", skip.test, skip.reason, skip.found);
    if let Some(path) = env::var_os("TOLLGATE_SKIPS") {
        let written = skip.append(Path::new(&path));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_ends_the_test_and_names_it() {
        let mut reached = false;
        let skips = collect(|| {
            skip!("needs a second moon", || Ok("there is one".to_owned()));
            #[expect(unreachable_code, reason = "what follows a skip must not run")]
            {
                reached = true;
            }
        });
        assert!(!reached);
        let expected = Skip {
            extent: Extent::Test,
            test: "testing::tests::a_skip_ends_the_test_and_names_it".to_owned(),
            reason: "needs a second moon".to_owned(),
            found: "there is one".to_owned(),
        };
        assert_eq!(skips, [expected]);
    }

    #[test]
    fn a_test_goes_on_behind_a_part_that_is_skipped() {
        let mut reached = 0;
        let skips = collect(|| {
            for part in ["one", "two"] {
                skip_part!(part, || Ok("found".to_owned()));
                reached += 1;
            }
        });
        assert_eq!((reached, skips.len()), (2, 2));
        assert_eq!((skips[1].extent, &*skips[1].reason), (Extent::Part, "two"));
    }

    #[test]
    #[should_panic(expected = "was skipped (needs nothing), but it could run")]
    fn a_skip_without_proof_fails_the_test() {
        collect(|| skip!("needs nothing", || Err("it could run".to_owned())));
    }

    #[test]
    fn what_is_needed_and_there_skips_nothing() {
        let (mut as_root, mut at_leisure) = (false, false);
        let skips = collect(|| {
            need_root!();
            as_root = true;
        });
        assert_eq!((as_root, skips.is_empty()), (is_root(), is_root()));
        let skips = collect(|| {
            need_slow!();
            at_leisure = true;
        });
        assert_eq!((at_leisure, skips.is_empty()), (slow(), slow()));
    }

    #[test]
    fn names_start_with_the_package() {
        let name = |package, here| {
            let skips = collect(|| record(Extent::Test, package, here, "r", Ok(String::new())));
            skips[0].test.clone()
        };
        assert_eq!(name("e2e", "keeper::test::here"), "e2e::keeper::test");
        assert_eq!(
            name("sys", "sys::file::tests::test::{{closure}}::here"),
            "sys::file::tests::test"
        );
    }

    #[test]
    fn each_skip_is_a_line_of_four_columns() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let skip = |extent, found: &str| Skip {
            extent,
            test: "a::b".to_owned(),
            reason: "needs c".to_owned(),
            found: found.to_owned(),
        };
        skip(Extent::Test, "one\ttwo\nthree")
            .append(file.path())
            .unwrap();
        skip(Extent::Part, "four").append(file.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(file.path()).unwrap(),
            "test\ta::b\tneeds c\tone two three\npart\ta::b\tneeds c\tfour\n"
        );
    }
}
