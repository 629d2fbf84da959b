//! The error type of every wrapper.

use std::{fmt, io};

use abi::Errno;

/// Result of a wrapper.
pub type Result<T> = std::result::Result<T, SyscallError>;

/// Error of a failed kernel call.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{call}` failed: {}", Described(*.errno))]
pub struct SyscallError {
    /// Name of the call, with its operation where one call has many (`ptrace(SEIZE)`).
    pub call: &'static str,
    /// The error number.
    pub errno: Errno,
}

impl SyscallError {
    /// The error number as an integer.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno.0
    }

    /// Returns true if the error number is `errno`, such as `Errno::EINTR`, or `libc::EINTR` in this crate.
    #[must_use]
    pub fn is(&self, errno: impl Into<Errno>) -> bool {
        self.errno == errno.into()
    }

    /// Creates an error from the calling thread's `errno`.
    pub(crate) fn last(call: &'static str) -> Self {
        let errno = io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        Self {
            call,
            errno: Errno(errno),
        }
    }

    pub(crate) fn new(call: &'static str, errno: i32) -> Self {
        Self {
            call,
            errno: Errno(errno),
        }
    }
}

impl From<SyscallError> for io::Error {
    fn from(error: SyscallError) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

struct Described(Errno);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0.0).to_string();
        // std appends the number, which the name already gives.
        let words = text.split(" (os error").next().unwrap_or(&text);
        write!(f, "{} ({words})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_call_name_and_words() {
        let error = SyscallError::new("openat", libc::ENOENT);
        assert_eq!(
            error.to_string(),
            "`openat` failed: ENOENT (No such file or directory)"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
        assert!(error.is(libc::ENOENT));
    }
}
