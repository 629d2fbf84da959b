//! Reading what people have written: rules, policies, configurations.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than a hundred times the largest rule file that is known of. Whoever names a disk image or
/// `/dev/zero` is told so, instead of waiting until there is no memory left.
const LIMIT: u64 = 64 << 20;

/// The text of a file.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    bounded(File::open(path)?, LIMIT)
}

fn bounded(from: impl Read, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).map_or(true, |len| len > limit) {
        let message = format!("it is longer than {} MiB", limit >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        let message = format!("it is not UTF-8 text (byte {place})");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_no_text_says_so() {
        let said = |bytes: &[u8]| bounded(bytes, 4).map_err(|error| error.to_string());
        assert_eq!(said(b"abcd"), Ok("abcd".to_owned()));
        assert_eq!(said(b"abcde"), Err("it is longer than 0 MiB".to_owned()));
        assert_eq!(
            said(b"ab\xff"),
            Err("it is not UTF-8 text (byte 2)".to_owned())
        );
    }

    #[test]
    fn a_device_that_never_ends_is_not_read_to_its_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
