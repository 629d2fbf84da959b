//! What engines and container runtimes send, captures, and files below `/proc`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ::capture::gvisor::testing;
use event::testing::FieldReader;
use nri::{Answer, Demultiplexer, Message, MessageKind, Options, Protocol, Step, encode};
use process_info::procfs;
use scap::read::Reader;
use scap::replay::Replay;

use crate::mutate::{self, Random};
use crate::{Outcome, openings};

/// Takes a capture and replays it: what is remembered of openings changes nothing.
///
/// # Panics
///
/// If that does not hold.
pub fn capture(bytes: &[u8]) -> Outcome {
    let Ok(mut reader) = Reader::new(bytes) else {
        return Outcome::Refused;
    };
    let glance = FieldReader::default();
    let mut replay = Replay::new(&glance, 0);
    let ended = loop {
        match replay.step(&mut reader, 256) {
            Ok(true) => {}
            ended => break ended,
        }
    };
    let is_whole = ended.is_ok();
    openings::compare(bytes);
    Outcome::accepted_if(is_whole)
}

/// Corrupts whole blocks of a capture and repairs their frames, so that the error is found inside the blocks.
#[must_use]
pub fn mutate_capture(bytes: &[u8], max_len: usize, seed: u64) -> Vec<u8> {
    mutate::mutate(bytes, max_len, &mut Random::new(seed))
}

/// Takes datagrams of gVisor's sandbox, each after its length in two bytes; the last one may be shorter. Everything that
/// arrives is counted once, and nothing that is malformed is evaluated.
///
/// # Panics
///
/// If that does not hold.
pub fn gvisor(bytes: &[u8]) -> Outcome {
    let mut datagrams = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk() {
        let (datagram, after) =
            after.split_at(usize::from(u16::from_le_bytes(*length)).min(after.len()));
        datagrams.push(datagram);
        rest = after;
    }
    let counts = testing::receive(Arc::new(FieldReader::default()), &datagrams);
    assert_eq!(counts.messages, datagrams.len() as u64);
    assert!(counts.malformed + counts.unknown_messages <= counts.messages);
    // A call that fails by what follows is evaluated then, beside what follows.
    assert!(counts.evaluated <= 2 * counts.messages);
    Outcome::accepted_if(counts.malformed == 0 && counts.evaluated > 0)
}

/// Takes what a container runtime sends to a plug-in: every event can be answered. The bytes are taken as frames, and once
/// more as the payload of a message, so that what is inside is reached without a frame around it.
///
/// # Panics
///
/// If that does not hold.
pub fn nri(bytes: &[u8]) -> Outcome {
    let mut protocol = Protocol::new(Options {
        name: "tollgate".to_owned(),
        index: 10,
        deadline: Duration::from_millis(200),
    });
    let messages = Demultiplexer::default().push(bytes);
    let mut is_accepted = messages.as_ref().is_ok_and(|messages| !messages.is_empty());
    // Bytes that are refused hold no message; `is_accepted` is false for them.
    for message in messages.unwrap_or_default() {
        is_accepted &= receive(&mut protocol, &message);
        if let Ok(encoded) = encode(&message) {
            let again = Demultiplexer::default().push(&encoded);
            assert_eq!(again.as_deref(), Ok(&[message][..]));
        }
    }
    for kind in [MessageKind::Request, MessageKind::Response] {
        for connection in [1, 2] {
            let payload = bytes.to_vec();
            let message = Message {
                connection,
                stream: 1,
                kind,
                payload,
            };
            receive(&mut protocol, &message);
        }
    }
    Outcome::accepted_if(is_accepted)
}

/// Returns whether the message is one.
fn receive(protocol: &mut Protocol, message: &Message) -> bool {
    let step = protocol.receive(message);
    if let Ok(Step::Deliver { stream, event }) = &step {
        for answer in [Answer::Accept, Answer::Refuse("no".to_owned())] {
            let answered = protocol.answer(*stream, event, &answer);
            answered.expect("an answer is short");
        }
    }
    step.is_ok()
}

/// Takes what a process can make `/proc` say of it: no reader returns more than it was given. Accepted is what any of the
/// readers finds something in.
///
/// # Panics
///
/// If that does not hold.
pub fn process(bytes: &[u8]) -> Outcome {
    let mut is_found = procfs::parse_stat(bytes).is_some();
    is_found |= procfs::parse_number(bytes).is_some();
    is_found |= procfs::bracketed_number(bytes).is_some();
    for mount in procfs::mount_lines(bytes) {
        assert!(procfs::unescape(mount.mount_point).len() <= mount.mount_point.len());
        black_box((mount.super_option("upperdir"), mount.is_read_only()));
        is_found = true;
    }
    for line in procfs::cgroup_lines(bytes) {
        black_box(line.controllers);
        is_found = true;
    }
    black_box(container::identify(bytes));
    for is_cut in [false, true] {
        let line = procfs::split_command_line(bytes, is_cut);
        let words = line.args.iter().map(Vec::len).sum::<usize>();
        assert!(words + line.exe.len() <= bytes.len());
        is_found |= !line.args.is_empty();
    }
    let mut rest = bytes;
    let status = procfs::parse_status(|chunk| {
        let count = rest.len().min(chunk.len());
        chunk[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        Ok(count)
    });
    is_found |= status.is_ok();
    Outcome::accepted_if(is_found)
}
