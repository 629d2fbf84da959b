//! Bounds-checked reading of little-endian bytes.

/// A cursor over bytes. Reading past the end returns `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads a 16-bit length and that many bytes.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a 32-bit length that includes itself, and the remaining bytes. Returns `None` for a
    /// length of zero.
    pub(crate) fn sized(&mut self) -> Option<Bytes<'a>> {
        match usize::try_from(self.u32()?).ok()? {
            0 => Some(Bytes(&[])),
            len => self.take(len.checked_sub(4)?).map(Bytes),
        }
    }
}

/// Reads a little-endian number of up to eight bytes.
pub(crate) fn unsigned(bytes: &[u8]) -> Option<u64> {
    Some(match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => u64::from_le_bytes(bytes.try_into().ok()?),
    })
}

/// Reads a signed little-endian number of one, two, four or eight bytes.
pub(crate) fn signed(bytes: &[u8]) -> Option<i64> {
    Some(match *bytes {
        [a] => i64::from(i8::from_le_bytes([a])),
        [a, b] => i64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => i64::from_le_bytes(bytes.try_into().ok()?),
    })
}

/// Returns the text up to the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    match memchr::memchr(0, bytes) {
        Some(end) => &bytes[..end],
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_beyond_the_end() {
        let mut bytes = Bytes::new(&[1, 0, 7, 9]);
        assert_eq!(bytes.text(), Some(&[7_u8][..]));
        assert_eq!((bytes.u16(), bytes.u8(), bytes.u8()), (None, Some(9), None));
        assert!(Bytes::new(&[9, 0, 0, 0, 1]).sized().is_none());
        assert!(Bytes::new(&[3, 0, 0, 0, 1]).sized().is_none());
    }

    #[test]
    fn numbers_have_the_sign_of_their_width() {
        assert_eq!(signed(&[0xff]), Some(-1));
        assert_eq!(signed(&[0xfe, 0xff, 0xff, 0xff]), Some(-2));
        assert_eq!(unsigned(&[0xff, 0xff]), Some(0xffff));
        assert_eq!((unsigned(&[]), unsigned(&[1, 2, 3])), (None, None));
    }
}
