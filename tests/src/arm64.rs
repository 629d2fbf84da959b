//! What an emulated machine of arm64 is made of. Debian's packages come by `packaging/arm64.sh`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::{installed, repository};

/// Names the program under test, built by `make arm64`.
const PROGRAM: &str = "TOLLGATE_ARM64_BIN";
/// Removes debug information from it.
pub(crate) const STRIP: &str = "aarch64-linux-gnu-strip";

pub(crate) fn missing() -> Option<String> {
    if std::env::var_os(PROGRAM).is_none() {
        return Some(format!("{PROGRAM} is not set; `./x test-arm64` builds it"));
    }
    let programs = ["qemu-system-aarch64", STRIP, "clang"];
    let missing = programs.into_iter().find(|name| !installed(name))?;
    Some(format!(
        "there is no {missing}; `./x test-arm64` installs it"
    ))
}

/// Returns the program under test.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os(PROGRAM).unwrap_or_else(|| panic!("{PROGRAM} is not set"));
    let program = PathBuf::from(named);
    assert!(
        program.is_file(),
        "{PROGRAM} names {}, which is no file",
        program.display()
    );
    program
}

/// Returns the image of a kernel: `6.1` or `newer`.
pub(crate) fn kernel(name: &str) -> PathBuf {
    PathBuf::from(ask(&["kernel", name]))
}

/// Returns a file of a package.
pub(crate) fn packaged(package: &str, path: &str) -> PathBuf {
    Path::new(&ask(&["folder", package])).join(path)
}

fn ask(arguments: &[&str]) -> String {
    let script = repository().join("packaging/arm64.sh");
    let said = Command::new(script).args(arguments).output();
    let said = said.expect("packaging/arm64.sh can be executed");
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{arguments:?}: {error}");
    String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
}
