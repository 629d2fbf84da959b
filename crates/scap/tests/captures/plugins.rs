//! Events of plugins are written and read as they were, in their order among others, and those that lie are errors.

use std::sync::{Arc, Mutex};

use event::testing::{self, Arg, EventBuilder};
use event::{Evaluator, Event, Relevance, Stage};
use scap::Error;
use scap::read::Reader;
use scap::replay::{PluginEvent, PluginEvents, Replay};
use scap::write::{Header, Writer};

type Log<'l> = &'l Mutex<Vec<String>>;

/// Notes the calls that it is shown.
struct Calls<'l>(Log<'l>);

impl Evaluator for Calls<'_> {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), _: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        note(self.0, format!("call {}", event.number));
        Vec::new()
    }
}

/// Notes events of plugins when they are evaluated, which is later.
struct Waiting<'l>(Log<'l>, Vec<String>);

impl PluginEvents for Waiting<'_> {
    fn take(&mut self, event: &PluginEvent<'_>) {
        let name = event.asynchronous.map(<[u8]>::escape_ascii);
        let name = name.map_or_else(String::new, |name| format!(" `{name}`"));
        self.1.push(format!(
            "event {}{name} of {} at {}: {}",
            event.number,
            event.plugin,
            event.time_ns,
            event.data.escape_ascii()
        ));
    }

    fn flush(&mut self) {
        self.1.drain(..).for_each(|text| note(self.0, text));
    }
}

fn note(log: Log<'_>, text: String) {
    log.lock().expect("nothing panics").push(text);
}

fn event(time_ns: u64, plugin: u64, data: &[u8]) -> EventBuilder {
    EventBuilder::new("pluginevent")
        .process(&testing::process(-1, None, &["none"]))
        .time_ns(time_ns)
        .arg("plugin_id", Arg::Uint(plugin))
        .arg("event_data", Arg::Text(data.to_vec()))
}

fn begun() -> (Writer, Vec<u8>) {
    let mut writer = Writer::new(Header::default());
    let mut file = Vec::new();
    writer.begin(&mut file);
    (writer, file)
}

fn played(file: &[u8]) -> (Vec<String>, u64, Result<(), Error>) {
    let log = Mutex::new(Vec::new());
    let (calls, mut waiting) = (Calls(&log), Waiting(&log, Vec::new()));
    let mut replay = Replay::new(&calls, 0).with_plugins(&mut waiting);
    let mut reader = Reader::new(file).expect("a capture");
    let result = loop {
        match replay.step(&mut reader, 64) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let events = replay.counts().of_plugins;
    drop(replay);
    (log.into_inner().expect("nothing panics"), events, result)
}

#[test]
fn events_of_plugins_are_read_as_written_in_their_order_among_calls() {
    let (mut writer, mut file) = begun();
    // Longer than events of calls can be.
    let long = vec![b'x'; 100_000];
    let call = EventBuilder::new("getpid")
        .process(&testing::process(42, None, &["/bin/test"]))
        .time_ns(8)
        .result(42);
    assert!(writer.event(&event(7, 999, b"a\0\xff").at(Stage::Exit), &mut file));
    assert!(writer.event(&call.at(Stage::Exit), &mut file));
    assert!(writer.event(&event(5, 4_000_000_000, &long).at(Stage::Exit), &mut file));
    assert!(writer.event(&event(6, 1, b"").at(Stage::Exit), &mut file));
    let (log, events, result) = played(&file);
    result.expect("a whole capture");
    assert_eq!(events, 3);
    assert_eq!(log[0], "event 1 of 999 at 7: a\\x00\\xff");
    let call = log.iter().position(|text| text.starts_with("call"));
    assert_eq!(call, Some(1), "{:?}", &log[..2]);
    assert!(log[2].contains(" of 4000000000 at 5: xxx"));
    assert!(log[2].ends_with(&"x".repeat(100_000)));
    assert!(log[3].ends_with(" of 1 at 6: "), "{}", log[3]);
    assert_eq!(log.len(), 4);
}

fn asynchronous(name: &[u8], data: &[u8]) -> EventBuilder {
    EventBuilder::new("asyncevent")
        .process(&testing::process(-1, None, &["none"]))
        .time_ns(9)
        .arg("plugin_id", Arg::Uint(999))
        .arg("name", Arg::Text(name.to_vec()))
        .arg("data", Arg::Text(data.to_vec()))
}

#[test]
fn asynchronous_events_are_read_as_written() {
    let (mut writer, mut file) = begun();
    let long = vec![b'x'; 100_000];
    assert!(writer.event(&asynchronous(b"ping", b"a\0b").at(Stage::Exit), &mut file));
    assert!(writer.event(&event(7, 999, b"c").at(Stage::Exit), &mut file));
    assert!(writer.event(&asynchronous(b"pong", &long).at(Stage::Exit), &mut file));
    let (log, events, result) = played(&file);
    result.expect("a whole capture");
    assert_eq!(events, 3);
    assert_eq!(log[0], "event 1 `ping` of 999 at 9: a\\x00b");
    assert_eq!(log[1], "event 2 of 999 at 7: c");
    assert!(log[2].starts_with("event 3 `pong` of 999 at 9: xxx"));
    assert!(log[2].ends_with(&"x".repeat(100_000)));
}

#[test]
fn an_asynchronous_event_of_no_plugin_is_none_of_a_source() {
    let (_, file) = begun();
    let parameters = |plugin: u32| [&plugin.to_le_bytes()[..], b"n\0d"].concat();
    let block = |plugin| block_of(402, &[4, 2, 1], &parameters(plugin));
    let (log, events, result) = played(&[&file[..], &block(0), &block(5)].concat());
    result.expect("a whole capture");
    assert_eq!(
        (log, events),
        (vec!["event 2 `n` of 5 at 9: d".to_owned()], 1)
    );
    let cut = block_of(402, &[4, 2], &parameters(5)[..6]);
    let (_, _, result) = played(&[&file[..], &cut].concat());
    let error = result.expect_err("it has no data").to_string();
    assert!(
        error.contains("no number of a plugin and its event"),
        "{error}"
    );
}

#[test]
fn an_event_without_its_bytes_is_not_written() {
    let (mut writer, mut file) = begun();
    let before = file.len();
    let without = EventBuilder::new("pluginevent")
        .process(&testing::process(-1, None, &["none"]))
        .arg("plugin_id", Arg::Uint(7));
    assert!(!writer.event(&without.at(Stage::Exit), &mut file));
    assert_eq!(file.len(), before);
}

/// Returns a block with an event of a plugin whose parameters have these lengths.
fn block(lengths: &[u32], bytes: &[u8]) -> Vec<u8> {
    block_of(322, lengths, bytes)
}

fn block_of(ty: u16, lengths: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut event = Vec::new();
    event.extend(0_u16.to_le_bytes());
    event.extend(9_u64.to_le_bytes());
    event.extend(u64::MAX.to_le_bytes());
    let length = 26 + lengths.len() * 4 + bytes.len();
    event.extend(u32::try_from(length).expect("it is short").to_le_bytes());
    event.extend(ty.to_le_bytes());
    event.extend(u32::try_from(lengths.len()).expect("few").to_le_bytes());
    lengths
        .iter()
        .for_each(|length| event.extend(length.to_le_bytes()));
    event.extend(bytes);
    event.resize(event.len().next_multiple_of(4), 0);
    let length = u32::try_from(event.len() + 12).expect("it is short");
    let frame = length.to_le_bytes();
    [&0x221_u32.to_le_bytes()[..], &frame, &event, &frame].concat()
}

#[test]
fn lengths_that_lie_are_errors_after_the_events_before() {
    let good = block(&[4, 1], &[7, 0, 0, 0, b'a']);
    for (lengths, bytes, expected) in [
        (
            &[4, u32::MAX][..],
            &[7, 0, 0, 0][..],
            "longer than their event",
        ),
        (&[u32::MAX, 4], &[7, 0, 0, 0], "longer than their event"),
        (&[4], &[7, 0, 0, 0], "no number of a plugin and its event"),
        (&[], &[], "no number of a plugin and its event"),
        (
            &[3, 1],
            &[7, 0, 0, b'a'],
            "no number of a plugin and its event",
        ),
    ] {
        let (_, file) = begun();
        let file = [&file[..], &good, &block(lengths, bytes)].concat();
        let (log, _, result) = played(&file);
        assert_eq!(log, ["event 1 of 7 at 9: a"], "{lengths:?}");
        let error = result.expect_err("it lies").to_string();
        assert!(error.contains(expected), "{lengths:?}: {error}");
    }
}
