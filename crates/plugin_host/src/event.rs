//! Layout of an event of a plugin: a header, the lengths of two parameters, the number of the plugin, and its bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use plugin::protocol::{MAX_EVENT_DATA, RecordedEvent};

use crate::asynchronous;

/// Length of the header in bytes: time (8), thread (8), length (4), type (2), number of parameters (4).
pub(crate) const HEADER: usize = 26;
/// Offset of the plugin's number: after two lengths.
const PLUGIN_ID: usize = HEADER + 2 * 4;
/// Offset of the bytes of the plugin.
const DATA: usize = PLUGIN_ID + 4;
/// Type of the event in Falco's event table.
pub(crate) const PLUGIN_EVENT: u16 = 322;
/// Longest event in bytes.
const MAX_EVENT: usize = DATA + MAX_EVENT_DATA;
/// The time of an event whose plugin leaves it to who reads it.
pub(crate) const NO_TIME: u64 = u64::MAX;

/// A copy of an event, aligned as one from `malloc`.
pub(crate) struct Buffer {
    words: Vec<u64>,
    time_ns: u64,
    length: usize,
    /// Offset of the bytes of the plugin.
    data_at: usize,
    /// Name of an asynchronous event.
    name: Option<String>,
}

impl Buffer {
    pub(crate) fn as_ptr(&self) -> *const u64 {
        self.words.as_ptr()
    }

    /// Returns the time in nanoseconds since the epoch.
    pub(crate) fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Returns the name of an asynchronous event; `None` for an event of the source.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the length of the event in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the bytes of the plugin.
    pub(crate) fn data(&self) -> Vec<u8> {
        let bytes = self.words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(self.length).skip(self.data_at).collect()
    }

    fn new(bytes: &[u8], time_ns: u64) -> Self {
        Self::of(bytes, time_ns, DATA, None)
    }

    /// Copies an event whose own bytes begin at an offset. `name` is that of an asynchronous event.
    pub(crate) fn of(bytes: &[u8], time_ns: u64, data_at: usize, name: Option<String>) -> Self {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        Self {
            words: words.collect(),
            time_ns,
            length: bytes.len(),
            data_at,
            name,
        }
    }
}

/// Returns an event that the source with number `id` had before.
pub(crate) fn recorded(event: &RecordedEvent, id: u32) -> Result<Buffer, String> {
    if let Some(name) = &event.asynchronous {
        return asynchronous::built(event.time_ns, id, name, &event.data);
    }
    let length = event.data.len();
    let too_long = || format!("asked for an event of {length} bytes, above {MAX_EVENT_DATA}");
    let data_length = u32::try_from(length)
        .ok()
        .filter(|_| length <= MAX_EVENT_DATA);
    let data_length = data_length.ok_or_else(too_long)?;
    let mut bytes = Vec::with_capacity(DATA + length);
    bytes.extend(event.time_ns.to_le_bytes());
    // No thread.
    bytes.extend(u64::MAX.to_le_bytes());
    let header = u32::try_from(DATA).map_err(|_too_long| too_long())?;
    bytes.extend((header + data_length).to_le_bytes());
    bytes.extend(PLUGIN_EVENT.to_le_bytes());
    bytes.extend(2_u32.to_le_bytes());
    bytes.extend(4_u32.to_le_bytes());
    bytes.extend(data_length.to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(&event.data);
    Ok(Buffer::new(&bytes, event.time_ns))
}

/// Returns the length of an event that begins with this header.
pub(crate) fn length(header: &[u8]) -> Result<usize, String> {
    let length = usize::try_from(u32_at(header, 16)).unwrap_or(usize::MAX);
    if (DATA..=MAX_EVENT).contains(&length) {
        return Ok(length);
    }
    Err(format!(
        "it returns an event of {length} bytes; from {DATA} to {MAX_EVENT} are possible"
    ))
}

/// Checks an event, and copies it. `id` is the number of the plugin.
pub(crate) fn checked(event: &[u8], id: u32) -> Result<Buffer, String> {
    let ty = u16::from_le_bytes([event[20], event[21]]);
    let params = u32_at(event, 22);
    if (ty, params) != (PLUGIN_EVENT, 2) {
        return Err(format!(
            "it returns an event of type {ty} with {params} parameters"
        ));
    }
    let lengths = [HEADER, HEADER + 4].map(|at| u64::from(u32_at(event, at)));
    let whole = u64::try_from(PLUGIN_ID).unwrap_or(u64::MAX) + lengths[0] + lengths[1];
    if lengths[0] != 4 || Ok(whole) != u64::try_from(event.len()) {
        return Err(format!(
            "it returns an event of {} bytes whose parameters have {} and {}",
            event.len(),
            lengths[0],
            lengths[1]
        ));
    }
    let mut bytes = event.to_vec();
    match u32_at(event, PLUGIN_ID) {
        // The reader fills it in.
        0 => bytes[PLUGIN_ID..DATA].copy_from_slice(&id.to_le_bytes()),
        other if other == id => {}
        other => {
            return Err(format!(
                "it returns an event of plugin {other}, but is {id}"
            ));
        }
    }
    let time_ns = match u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) {
        NO_TIME => now(),
        time => time,
    };
    bytes[..8].copy_from_slice(&time_ns.to_le_bytes());
    Ok(Buffer::new(&bytes, time_ns))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the time in nanoseconds since the epoch.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.map_or(0, |since| since.as_nanos());
    u64::try_from(since).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Buffer {
        pub(crate) fn bytes(&self) -> Vec<u8> {
            let bytes = self.words.iter().flat_map(|word| word.to_ne_bytes());
            bytes.take(self.length).collect()
        }
    }

    fn event(length: u32, params: [u32; 2], id: u32, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(5_u64.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(PLUGIN_EVENT.to_le_bytes());
        out.extend(2_u32.to_le_bytes());
        params
            .iter()
            .for_each(|length| out.extend(length.to_le_bytes()));
        out.extend(id.to_le_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn an_event_is_copied_with_the_number_of_its_plugin() {
        let good = event(41, [4, 3], 0, b"abc");
        assert_eq!(length(&good), Ok(41));
        let copy = checked(&good, 7).expect("it is whole");
        assert_eq!(copy.time_ns(), 5);
        assert_eq!(copy.bytes()[PLUGIN_ID..], [7, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(copy.data(), b"abc");
        // What is recorded of it makes the same event.
        let mut again = RecordedEvent {
            number: 1,
            time_ns: copy.time_ns(),
            asynchronous: None,
            data: copy.data(),
        };
        let made = recorded(&again, 7).expect("it is short");
        assert_eq!((made.words, made.time_ns), (copy.words, copy.time_ns));
        again.data = vec![0; MAX_EVENT_DATA + 1];
        assert!(recorded(&again, 7).is_err());
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for wrong in [0, 37, u32::MAX] {
            assert!(length(&event(wrong, [4, 3], 0, b"abc")).is_err(), "{wrong}");
        }
        for params in [[4, 4], [4, u32::MAX], [5, 2], [u32::MAX, 3]] {
            assert!(
                checked(&event(41, params, 0, b"abc"), 7).is_err(),
                "{params:?}"
            );
        }
        assert!(
            checked(&event(41, [4, 3], 8, b"abc"), 7).is_err(),
            "another plugin's"
        );
    }
}
