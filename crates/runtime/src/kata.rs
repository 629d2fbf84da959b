//! Detection of Kata Containers, which are not supported. `kata-runtime` has no OCI command line;
//! containerd drives Kata's shim itself as `io.containerd.kata.v2`.

use std::ffi::OsStr;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use probe::Support;

const SHIM: &str = "containerd-shim-kata-v2";
/// Names by which users may ask for Kata.
const NAMES: [&str; 3] = ["kata", "kata-runtime", SHIM];

/// Refuses Kata under each of its names.
///
/// # Errors
///
/// [`Exit::Unsupported`] if `asked` is such a name.
pub fn refuse(asked: &OsStr) -> Result<(), Failure> {
    let name = Path::new(asked).file_name().and_then(OsStr::to_str);
    if !name.is_some_and(|name| NAMES.contains(&name)) {
        return Ok(());
    }
    let message = format!(
        "cannot stand in for {}: Kata has no OCI command line",
        asked.display()
    );
    Err(Failure::new(Exit::Unsupported, message).help(
        "let containerd run it as `io.containerd.kata.v2`, or use `--runtime vm`, which evaluates rules \
        in the virtual machine",
    ))
}

/// Reports whether Kata is installed.
#[must_use]
pub fn support() -> Support {
    let path = std::env::var_os("PATH");
    match diagnostics::lookup::resolve(SHIM.as_ref(), path.as_deref()) {
        Ok(shim) => Support::Partial {
            why: format!(
                "{} is installed; containerd drives it, tollgate does not and was never tried with it",
                shim.display()
            ),
            fix: None,
        },
        Err(_) => Support::No {
            why: format!("{SHIM} not found"),
            // No distribution packages it, and tollgate does not drive it.
            fix: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_refused_by_each_of_its_names() {
        for name in ["kata", "/opt/kata/bin/kata-runtime", SHIM] {
            let failure = refuse(name.as_ref()).unwrap_err();
            assert_eq!(failure.exit, Exit::Unsupported, "{name}");
        }
        assert!(refuse("runc".as_ref()).is_ok());
        assert!(refuse("/usr/bin/katana".as_ref()).is_ok());
    }
}
