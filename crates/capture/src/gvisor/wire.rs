//! Reader of protocol buffers as far as gVisor's messages use them: numbers and length-delimited bytes.
//!
//! The workload may have taken over the sandbox that sends, so every length is checked against the available bytes.

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'m> {
    /// A number of any width.
    Number(u64),
    /// A text, a message or bytes.
    Bytes(&'m [u8]),
}

/// Error: the bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The fields of a message, in the order in which they were sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'m>(&'m [u8]);

impl<'m> Fields<'m> {
    pub(super) fn of(message: &'m [u8]) -> Self {
        Self(message)
    }

    /// Reads the next field: its number and value.
    fn read(&mut self) -> Result<(u32, Value<'m>), Malformed> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or(Malformed)?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Number(self.fixed::<8>().map(u64::from_le_bytes)?),
            2 => {
                let len = usize::try_from(self.varint()?).ok().ok_or(Malformed)?;
                let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Number(u64::from(self.fixed::<4>().map(u32::from_le_bytes)?)),
            // Groups, which are obsolete.
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            // Bits beyond the 64th are dropped.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn fixed<const LEN: usize>(&mut self) -> Result<[u8; LEN], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk::<LEN>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u32, Value<'m>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Writers of messages, for tests.
#[cfg(test)]
pub(super) mod testing {
    pub(in crate::gvisor) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
        varint(out, u64::from(field) << 3);
        varint(out, value);
    }

    pub(in crate::gvisor) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
        varint(out, u64::from(field) << 3 | 2);
        varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }

    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).expect("seven bits"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut message = Vec::new();
        testing::number(&mut message, 1, u64::MAX);
        testing::bytes(&mut message, 16, b"text");
        testing::number(&mut message, 2, 0);
        message.extend([0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0]);
        let fields: Vec<_> = Fields::of(&message).map(|field| field.unwrap()).collect();
        let expected = [
            (1, Value::Number(u64::MAX)),
            (16, Value::Bytes(b"text")),
            (2, Value::Number(0)),
            (3, Value::Number(1)),
            (4, Value::Number(2)),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn whatever_the_bytes_are_reading_ends() {
        let mut message = Vec::new();
        testing::bytes(&mut message, 1, b"some text");
        testing::number(&mut message, 2, 300);
        for end in 0..message.len() {
            let complete = Fields::of(&message[..end]).all(|field| field.is_ok());
            assert!(!complete || end == 0 || end == 11, "{end}");
        }
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = [0_u8; 24];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = u8::try_from(state >> 56).expect("eight bits");
            }
            assert!(Fields::of(&bytes).count() <= bytes.len());
        }
        let endless = [0xff; 32];
        assert_eq!(Fields::of(&endless).next(), Some(Err(Malformed)));
        let huge = [
            0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ];
        assert_eq!(Fields::of(&huge).next(), Some(Err(Malformed)));
    }
}
