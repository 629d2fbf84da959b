//! Execution of programs and exit of this process, without allocation.

use std::ffi::{CStr, CString, NulError, OsString, c_char};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;

use crate::error::SyscallError;

/// Argument or environment strings in the form that exec takes, built before clone because building
/// allocates.
#[derive(Debug)]
pub struct StringArray {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead into `strings`, whose buffers do not move with the value.
unsafe impl Send for StringArray {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for StringArray {}

impl StringArray {
    /// Takes ownership of the strings.
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let ends = std::iter::once(std::ptr::null());
        let pointers = strings.iter().map(|s| s.as_ptr()).chain(ends).collect();
        Self { strings, pointers }
    }

    /// Converts OS strings.
    ///
    /// # Errors
    /// Fails if a string contains a zero byte, where exec would end it.
    pub fn from_words(
        words: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Self, NulError> {
        let strings = words.into_iter().map(|word| CString::new(word.into_vec()));
        Ok(Self::new(strings.collect::<std::result::Result<_, _>>()?))
    }

    /// The arguments of this process.
    #[must_use]
    pub fn own_arguments() -> Self {
        Self::from_words(std::env::args_os()).expect(FROM_KERNEL)
    }

    /// The environment of this process.
    #[must_use]
    pub fn own_environment() -> Self {
        let entries = std::env::vars_os().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        });
        Self::from_words(entries).expect(FROM_KERNEL)
    }

    /// The strings.
    #[must_use]
    pub fn strings(&self) -> &[CString] {
        &self.strings
    }
}

const FROM_KERNEL: &str = "arguments and environment are strings that end with a zero byte";

/// Replaces the program; returns only on failure. Async-signal-safe.
#[must_use]
pub fn execve(path: &CStr, argv: &StringArray, envp: &StringArray) -> SyscallError {
    // SAFETY: path and both arrays are NUL-terminated and live until the call returns or the
    // program is gone.
    let result = unsafe {
        syscall!(
            "execve",
            libc::SYS_execve,
            path,
            argv.pointers.as_ptr(),
            envp.pointers.as_ptr()
        )
    };
    failure("execve", result)
}

/// Replaces the program by the file behind `fd`; returns only on failure. Async-signal-safe.
#[must_use]
pub fn execve_fd(fd: BorrowedFd<'_>, argv: &StringArray, envp: &StringArray) -> SyscallError {
    // SAFETY: as in `execve`; the path is empty, which AT_EMPTY_PATH allows.
    let result = unsafe {
        syscall!(
            "execveat",
            libc::SYS_execveat,
            fd,
            c"",
            argv.pointers.as_ptr(),
            envp.pointers.as_ptr(),
            libc::AT_EMPTY_PATH
        )
    };
    failure("execveat", result)
}

fn failure(call: &'static str, result: crate::Result<usize>) -> SyscallError {
    result
        .err()
        .unwrap_or(SyscallError::new(call, libc::EPROTO))
}

/// Exits the process at once: no destructors, no exit handlers. Async-signal-safe.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` takes a number and does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn array(words: &[&CStr]) -> StringArray {
        StringArray::new(words.iter().map(|w| CString::from(*w)).collect())
    }

    #[test]
    fn programs_run_by_path_and_by_descriptor() {
        let argv = array(&[c"sh", c"-c", c"exit ${CODE}"]);
        let envp = array(&[c"CODE=42"]);
        let child = crate::testing::spawn(|| Err(execve(c"/bin/sh", &argv, &envp).errno()));
        assert_eq!(crate::testing::reap(child), Err(42));
        let file = std::fs::File::open("/bin/sh").expect("a shell");
        let child = crate::testing::spawn(|| Err(execve_fd(file.as_fd(), &argv, &envp).errno()));
        assert_eq!(crate::testing::reap(child), Err(42));
    }

    #[test]
    fn words_are_passed_on_whole_or_refused() {
        let words = |words: &[&str]| StringArray::from_words(words.iter().map(OsString::from));
        let array = words(&["sh", "-c", ""]).expect("none has a zero byte");
        assert_eq!(array.strings(), [c"sh", c"-c", c""].map(CString::from));
        assert!(words(&["sh", "a\0b"]).is_err());
        let own = StringArray::own_arguments();
        assert_eq!(own.strings().len(), std::env::args_os().count());
        let environment = StringArray::own_environment();
        let path = std::env::var("PATH").expect("cargo sets it");
        let entry = CString::new(format!("PATH={path}")).expect("as above");
        assert!(environment.strings().contains(&entry));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let empty = array(&[]);
        assert!(execve(c"/nonexistent/program", &empty, &empty).is(libc::ENOENT));
        assert_eq!(array(&[c"a"]).strings().len(), 1);
    }
}
