//! What a verb prints.

use std::io::Write;

use crate::error::Error;

/// Prints text, and returns the exit code 0. A reader that closed the pipe is no error.
pub(crate) fn print(out: &mut dyn Write, text: &str) -> Result<u8, Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader (`head`, a pager) closed the pipe.
        Err(source) if source.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(source) => Err(Error::Print { source }),
        Ok(()) => Ok(0),
    }
}
