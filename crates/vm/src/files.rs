//! Guest side of a warm machine: receives the container's files over the connection.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::FIRST;
use super::guest::{broken, switch_off};
use crate::{Frame, Kind};

/// Reports that the machine is ready, and unpacks the container's files when they arrive.
pub(super) fn wait(line: &File, reader: &mut impl Read) {
    let tell = |kind, content: &str| Frame::new(FIRST, kind, content).write(&mut &*line);
    if tell(Kind::Ready, "").is_err() {
        switch_off();
    }
    let mut pieces = ChunkedFile {
        from: reader,
        piece: io::Cursor::default(),
        has_ended: false,
    };
    let unpacked = crate::unpack(&mut pieces, Path::new("/"), &mut make_node)
        // Reads up to the last chunk, after which other frames follow.
        .and_then(|()| io::copy(&mut pieces, &mut io::sink()));
    if let Err(cause) = unpacked {
        let failure = broken("unpack the container's files")(cause);
        // If the host has gone, the machine ends anyway.
        let _ = tell(Kind::Failed, failure.render().trim());
        switch_off();
    }
}

fn make_node(path: &Path, mode: u32, (major, minor): (u32, u32)) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    sys::namespace::make_node(None, &name, mode, rustix::fs::makedev(major, minor))?;
    Ok(())
}

/// Reads the file that the host sends in chunks.
struct ChunkedFile<R> {
    from: R,
    piece: io::Cursor<Vec<u8>>,
    has_ended: bool,
}

impl<R: Read> Read for ChunkedFile<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let size = self.piece.read(buf)?;
            if size > 0 || self.has_ended || buf.is_empty() {
                return Ok(size);
            }
            let frame = Frame::read(&mut self.from).map_err(io::Error::other)?;
            if frame.kind != Kind::Files {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.has_ended = frame.content.is_empty();
            self.piece = io::Cursor::new(frame.content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.write(&mut bytes).unwrap();
        }
        bytes
    }

    #[test]
    fn pieces_are_one_stream_until_an_empty_one() {
        let piece = |content: &str| Frame::new(FIRST, Kind::Files, content);
        let other = Frame::new(FIRST, Kind::Start, "later");
        let bytes = pieces(&[piece("abc"), piece("de"), piece(""), other.clone()]);
        let mut from = &bytes[..];
        let mut stream = ChunkedFile {
            from: &mut from,
            piece: io::Cursor::default(),
            has_ended: false,
        };
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abcde");
        assert_eq!(Frame::read(&mut from).unwrap(), other);
        let bytes = pieces(&[piece("abc"), other]);
        let mut stream = ChunkedFile {
            from: &bytes[..],
            piece: io::Cursor::default(),
            has_ended: false,
        };
        assert!(stream.read_to_string(&mut text).is_err());
    }
}
