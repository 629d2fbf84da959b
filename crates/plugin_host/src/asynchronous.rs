//! Asynchronous events: plugins make them at any time, in threads of their own, beside those of the source.
//!
//! Layout: a header, the lengths of three parameters, the number of the plugin that is the source, a name that ends with a NUL
//! byte, and the bytes of the plugin.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plugin::protocol::{MAX_EVENT_DATA, Missed, is_async_name};

use crate::event::{Buffer, HEADER, NO_TIME, now, u32_at};

/// Type of the event in Falco's event table.
pub(crate) const ASYNC_EVENT: u16 = 402;
/// Offset of the number of the plugin: after three lengths.
const PLUGIN_ID: usize = HEADER + 3 * 4;
/// Offset of the name.
const NAME: usize = PLUGIN_ID + 4;
/// Longest name in bytes, with its NUL byte.
const MAX_NAME: usize = 257;
/// Longest event in bytes.
const MAX_EVENT: usize = NAME + MAX_NAME + MAX_EVENT_DATA;
/// Latest time of an event after the present, in nanoseconds. Falco drops later ones.
const MAX_AHEAD_NS: u64 = 10_000_000_000;
/// Most events that wait. Falco has as many.
const MAX_WAITING: usize = 4096;
/// Most bytes of events that wait: four of the longest events.
const MAX_WAITING_BYTES: usize = 32 << 20;

/// Returns the length of an event that begins with this header.
pub(crate) fn length(header: &[u8]) -> Result<usize, String> {
    let (ty, params) = (
        u16::from_le_bytes([header[20], header[21]]),
        u32_at(header, 22),
    );
    if (ty, params) != (ASYNC_EVENT, 3) {
        return Err(format!(
            "the event has type {ty} and {params} parameters, not {ASYNC_EVENT} and 3"
        ));
    }
    let length = usize::try_from(u32_at(header, 16)).unwrap_or(usize::MAX);
    if (NAME..=MAX_EVENT).contains(&length) {
        return Ok(length);
    }
    Err(format!(
        "the event has {length} bytes; from {NAME} to {MAX_EVENT} are possible"
    ))
}

/// Checks an event whose [`length`] is known, and returns it with the number of the source. `names` are those that its plugin
/// announces.
pub(crate) fn checked(
    event: &[u8],
    source: u32,
    names: &BTreeSet<String>,
) -> Result<Buffer, String> {
    // The plugin may have changed it since its length was read.
    if length(event)? != event.len() {
        return Err("the event changed while it was read".to_owned());
    }
    let lengths = [0, 4, 8].map(|at| u32_at(event, HEADER + at));
    let [id, name, data] = lengths.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let whole = name
        .checked_add(data)
        .and_then(|length| length.checked_add(NAME));
    if id != 4 || whole != Some(event.len()) {
        return Err(format!(
            "the event has {} bytes, and parameters of {id}, {name} and {data}",
            event.len()
        ));
    }
    let (name, data) = event[NAME..].split_at(name);
    if data.len() > MAX_EVENT_DATA {
        return Err(format!(
            "the event has {} bytes of data, above {MAX_EVENT_DATA}",
            data.len()
        ));
    }
    let name = name.strip_suffix(b"\0").map(String::from_utf8_lossy);
    let name = name.ok_or("the name of the event does not end with a NUL byte")?;
    if !names.contains(&*name) {
        let shown = name.escape_default();
        return Err(format!(
            "the plugin does not announce events named `{shown:.64}` (plugin_get_async_events)"
        ));
    }
    if event[8..16] != u64::MAX.to_le_bytes() {
        return Err("the event names a thread, which no event of a plugin's source has".to_owned());
    }
    let now = now();
    let time_ns = match u64::from_le_bytes(event[..8].try_into().expect("eight bytes")) {
        NO_TIME => now,
        time if time > now.saturating_add(MAX_AHEAD_NS) => {
            return Err("the time of the event is more than 10 s ahead".to_owned());
        }
        time => time,
    };
    built(time_ns, source, &name, data)
}

/// Returns an event of this source.
pub(crate) fn built(time_ns: u64, source: u32, name: &str, data: &[u8]) -> Result<Buffer, String> {
    let number = |length: usize| {
        let number = u32::try_from(length).ok();
        number.ok_or_else(|| format!("an event has {length} bytes"))
    };
    if !is_async_name(name) || data.len() > MAX_EVENT_DATA {
        return Err(format!(
            "asked for an asynchronous event with a name of {} bytes and {} bytes of data",
            name.len(),
            data.len()
        ));
    }
    let length = NAME + name.len() + 1 + data.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(time_ns.to_le_bytes());
    // No thread.
    bytes.extend(u64::MAX.to_le_bytes());
    bytes.extend(number(length)?.to_le_bytes());
    bytes.extend(ASYNC_EVENT.to_le_bytes());
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(4_u32.to_le_bytes());
    bytes.extend(number(name.len() + 1)?.to_le_bytes());
    bytes.extend(number(data.len())?.to_le_bytes());
    bytes.extend(source.to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.push(0);
    bytes.extend(data);
    let data_at = length - data.len();
    Ok(Buffer::of(&bytes, time_ns, data_at, Some(name.to_owned())))
}

/// Asynchronous events of all plugins of a source, in the order in which they came. Any thread may add events; none waits
/// longer than another one needs to add or take some.
#[derive(Default)]
pub(crate) struct Queue(Mutex<State>);

/// What becomes of an event that is added.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// It is taken if there is room.
    Open,
    /// It is taken if there is room. Else it is lost, and the plugin is told that it was taken.
    Stopping,
    /// It is refused.
    #[default]
    Closed,
}

#[derive(Default)]
struct State {
    phase: Phase,
    events: VecDeque<Buffer>,
    bytes: usize,
    missed: Missed,
    /// Why the first event was missed, since it was asked for.
    cause: Option<String>,
}

impl State {
    /// Counts events that were taken and that nobody sees.
    fn lose(&mut self, events: usize) {
        if events > 0 {
            self.missed.lost += u64::try_from(events).unwrap_or(u64::MAX);
            self.missed_because(|| "the source failed before it was sent".to_owned());
        }
    }

    fn missed_because(&mut self, cause: impl FnOnce() -> String) {
        self.cause.get_or_insert_with(cause);
    }
}

impl Queue {
    /// Takes events from now on.
    pub(crate) fn open(&self) {
        self.state().phase = Phase::Open;
    }

    /// Takes no event any more without room for it, but says so to no plugin: a thread that tries again until there is room
    /// would wait for the thread that waits for its end.
    pub(crate) fn stopping(&self) {
        self.state().phase = Phase::Stopping;
    }

    /// Takes no more events. Those that wait stay.
    pub(crate) fn close(&self) {
        self.state().phase = Phase::Closed;
    }

    /// Counts events that were taken from the queue as lost.
    pub(crate) fn lose(&self, events: usize) {
        self.state().lose(events);
    }

    /// Gives up the events that wait, which count as lost.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.phase = Phase::Closed;
        state.bytes = 0;
        let events = std::mem::take(&mut state.events);
        state.lose(events.len());
    }

    /// Adds an event of a plugin, or counts that it was refused.
    ///
    /// # Errors
    ///
    /// The reason, for the plugin: the event is refused, the source is closed, or too many events wait and the source is not
    /// about to end.
    pub(crate) fn add(&self, plugin: &str, event: Result<Buffer, String>) -> Result<(), String> {
        let mut state = self.state();
        let phase = state.phase;
        let result = event.and_then(|event| match phase {
            Phase::Open | Phase::Stopping => Ok(event),
            Phase::Closed => Err("the event source is closed".to_owned()),
        });
        let is_full = |length: usize, state: &State| {
            let bytes = state.bytes.saturating_add(length);
            state.events.len() >= MAX_WAITING || bytes > MAX_WAITING_BYTES
        };
        let is_lost = result.is_ok();
        let cause = match result {
            Ok(event) if is_full(event.length(), &state) => {
                state.missed.lost += 1;
                format!(
                    "{} events wait, and there is no room for another one; try again later",
                    state.events.len()
                )
            }
            Ok(event) => {
                state.bytes += event.length();
                state.events.push_back(event);
                return Ok(());
            }
            Err(cause) => {
                state.missed.refused += 1;
                cause
            }
        };
        state.missed_because(|| format!("plugin `{plugin}`: {cause}"));
        match is_lost && phase == Phase::Stopping {
            true => Ok(()),
            false => Err(cause),
        }
    }

    /// Takes the events that wait.
    pub(crate) fn take(&self) -> VecDeque<Buffer> {
        let mut state = self.state();
        state.bytes = 0;
        std::mem::take(&mut state.events)
    }

    /// Returns what was missed since the last call, and why the first event was.
    pub(crate) fn missed(&self) -> Option<(Missed, String)> {
        let mut state = self.state();
        let cause = state.cause.take()?;
        Some((std::mem::take(&mut state.missed), cause))
    }

    /// Nothing that holds the lock can panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> BTreeSet<String> {
        BTreeSet::from(["ping".to_owned()])
    }

    /// Returns an event as a plugin makes it, with these lengths of parameters.
    fn event(name: &[u8], data: &[u8], lengths: [u32; 3]) -> Vec<u8> {
        let length = u32::try_from(NAME + name.len() + data.len()).expect("it is short");
        let mut out = 5_u64.to_le_bytes().to_vec();
        out.extend(u64::MAX.to_le_bytes());
        out.extend(length.to_le_bytes());
        out.extend(ASYNC_EVENT.to_le_bytes());
        out.extend(3_u32.to_le_bytes());
        lengths
            .iter()
            .for_each(|length| out.extend(length.to_le_bytes()));
        // The host fills in the number, whatever the plugin writes.
        out.extend(77_u32.to_le_bytes());
        out.extend(name);
        out.extend(data);
        out
    }

    fn good() -> Vec<u8> {
        event(b"ping\0", b"abc", [4, 5, 3])
    }

    #[test]
    fn an_event_is_copied_with_the_number_of_the_source() {
        let copy = checked(&good(), 7, &names()).expect("it is whole");
        assert_eq!((copy.time_ns(), copy.name()), (5, Some("ping")));
        assert_eq!(copy.data(), b"abc");
        let bytes = copy.bytes();
        assert_eq!(&bytes[PLUGIN_ID..], b"\x07\0\0\0ping\0abc");
        assert_eq!(length(&bytes), Ok(bytes.len()));
        let again = built(5, 7, "ping", b"abc").expect("it is short");
        assert_eq!(again.bytes(), bytes);
        // A plugin may leave the time to who reads it.
        let mut untimed = good();
        untimed[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        let time = checked(&untimed, 7, &names())
            .expect("it is whole")
            .time_ns();
        assert!(time > 1_600_000_000_000_000_000, "{time}");
    }

    #[test]
    fn events_that_do_not_fit_are_refused_with_a_reason() {
        let with = |at: usize, bytes: &[u8]| {
            let mut event = good();
            event[at..at + bytes.len()].copy_from_slice(bytes);
            event
        };
        for (bad, expected) in [
            (
                with(20, &322_u16.to_le_bytes()),
                "type 322 and 3 parameters",
            ),
            (with(22, &2_u32.to_le_bytes()), "type 402 and 2 parameters"),
            (with(16, &[0; 4]), "has 0 bytes; from 42"),
            (with(16, &u32::MAX.to_le_bytes()), "has 4294967295 bytes"),
            (with(16, &43_u32.to_le_bytes()), "changed while it was read"),
            (with(8, &[0; 8]), "names a thread"),
            (with(0, &(u64::MAX - 1).to_le_bytes()), "10 s ahead"),
            (
                event(b"ping\0", b"abc", [4, 5, 4]),
                "parameters of 4, 5 and 4",
            ),
            (
                event(b"ping\0", b"abc", [4, 6, 3]),
                "parameters of 4, 6 and 3",
            ),
            (
                event(b"ping\0", b"abc", [4, u32::MAX, 9]),
                "parameters of 4",
            ),
            (
                event(b"ping\0", b"abc", [0, 5, 3]),
                "parameters of 0, 5 and 3",
            ),
            (event(b"ping\0", b"abc", [4, 4, 4]), "end with a NUL byte"),
            (event(b"pong\0", b"abc", [4, 5, 3]), "named `pong`"),
            (event(b"ping\0\0", b"", [4, 6, 0]), "named `ping\\u{0}`"),
            (event(b"", b"", [4, 0, 0]), "end with a NUL byte"),
        ] {
            // An event that is accepted has no error, which the assertion refuses.
            let error = checked(&bad, 7, &names()).err().unwrap_or_default();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let long = event(b"ping\0", &vec![0; MAX_EVENT_DATA + 1], [4, 5, 8_388_545]);
        let error = checked(&long, 7, &names()).err().unwrap_or_default();
        assert!(error.contains("8388545 bytes of data"), "{error}");
        assert!(built(5, 7, "a\nb", b"").is_err());
    }

    #[test]
    fn a_full_or_closed_queue_refuses_events_and_counts_them() {
        let ping = || built(5, 7, "ping", b"");
        let queue = Queue::default();
        let closed = queue.add("p", ping()).expect_err("it is closed");
        assert_eq!(closed, "the event source is closed");
        queue.open();
        for _ in 0..MAX_WAITING {
            queue.add("p", ping()).expect("there is room");
        }
        let full = queue.add("p", ping()).expect_err("it is full");
        assert!(full.starts_with("4096 events wait"), "{full}");
        let (missed, cause) = queue.missed().expect("some were");
        assert_eq!((missed.lost, missed.refused), (1, 1));
        assert_eq!(cause, "plugin `p`: the event source is closed");
        assert_eq!(queue.missed(), None);
        assert_eq!(queue.take().len(), MAX_WAITING);
        queue.add("p", ping()).expect("there is room again");
        // Few events may have many bytes.
        for _ in 0..4 {
            let long = built(5, 7, "ping", &vec![0; MAX_EVENT_DATA]);
            queue.add("p", long).expect("there is room");
        }
        let long = built(5, 7, "ping", &vec![0; MAX_EVENT_DATA]);
        queue.add("p", long).expect_err("it is full");
        queue.close();
        queue.add("p", ping()).expect_err("it is closed");
        assert_eq!(queue.take().len(), 5, "those that wait stay");
        queue.missed().expect("two were");
        queue.open();
        queue.add("p", ping()).expect("there is room");
        queue.abandon();
        let (missed, _) = queue.missed().expect("one is given up");
        assert_eq!((missed.lost, missed.refused), (1, 0));
        queue.lose(0);
        assert_eq!(queue.missed(), None);
        queue.lose(3);
        assert_eq!(queue.missed().expect("three are").0.lost, 3);
    }

    #[test]
    fn a_full_queue_of_a_source_that_stops_counts_events_and_has_no_plugin_try_again() {
        let ping = || built(5, 7, "ping", b"");
        let queue = Queue::default();
        queue.open();
        queue.stopping();
        for _ in 0..MAX_WAITING + 3 {
            queue.add("p", ping()).expect("the plugin is to go on");
        }
        queue
            .add("p", Err("bad".to_owned()))
            .expect_err("it is bad");
        let (missed, cause) = queue.missed().expect("some were");
        assert_eq!((missed.lost, missed.refused), (3, 1));
        assert!(cause.starts_with("plugin `p`: 4096"), "{cause}");
        assert_eq!(queue.take().len(), MAX_WAITING);
    }
}
