//! Protocol between the agent of a container and the host agent: the former hands over a container,
//! then sends orders of a few bytes, each answered by one byte.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use capture::notify::{HeldCalls, RuntimeProcess, call_words, calls_from_words};
use serde::{Deserialize, Serialize};

/// A request to watch a container, with its filter and the required information.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct HandoffRequest {
    /// Build of the sender, which must be the receiver's. Every build has this field.
    pub(super) build: String,
    pub(super) container: String,
    pub(super) bundle: PathBuf,
    pub(super) has_mounts: bool,
    /// Generation of the sending agent, which selects its fields of the shared state.
    pub(super) generation: u64,
    pub(super) is_resumed: bool,
    /// Ticket that allows receiving. It is withdrawn if the other agent is late.
    pub(super) ticket: u64,
    pub(super) transparent: Vec<i32>,
    /// A thread answers a runtime's calls and holds some, which are requested when everything is
    /// ready.
    pub(super) is_answered: bool,
    /// Hash of the rules and configuration that the filter was compiled from.
    pub(super) rules: Option<u64>,
    /// Losses of a dead host agent: number of alerts, and outputs with an incomplete last line.
    pub(super) losses: (u64, u64),
}

/// What a request of every build has.
#[derive(Deserialize)]
struct WrittenBuild {
    build: String,
}

/// A received request with its descriptors.
pub(super) struct HandedDescriptors {
    pub(super) hail: HandoffRequest,
    pub(super) shared_state: OwnedFd,
    pub(super) listener: OwnedFd,
}

/// An order to the host agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostAgentCommand {
    /// Ask whether the last watched process has ended.
    HasEnded,
    /// Deliver pending alerts of the container.
    Flush,
    /// Report the unwatched intervals recorded in the shared state.
    Gaps,
    Upgraded,
    UpgradeFailed,
    SignalRefused,
    KeeperGone,
    /// The keeper was replaced by one with this pid.
    KeeperReplaced(i32),
    /// Stop receiving calls.
    HandOver,
}

const GREETING: u8 = b'!';
const YES: u8 = b'1';
const NO: u8 = b'0';
/// Request for held calls, after which no other process answers.
const CALLS: u8 = b'?';
/// The container is watched.
const WELCOME: u8 = b'+';
/// The request is refused; the reason follows.
const REFUSED: u8 = b'-';
/// Maximum size of a request in bytes; actual ones have some hundred.
const LIMIT: usize = 1 << 20;

/// Sends the greeting, which shows that this agent works. Includes its shared state with the
/// account of its alerts if no other process has one.
pub(super) fn greet(stream: &UnixStream, shared_state: Option<BorrowedFd<'_>>) -> io::Result<()> {
    sys::socket::send_fd(stream.as_fd(), &[GREETING], shared_state)?;
    Ok(())
}

/// Waits for the greeting.
pub(super) fn await_greeting(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut letter = [0];
    let (count, shared_state) = sys::socket::receive_fd(stream.as_fd(), &mut letter)?;
    match letter[0] {
        GREETING if count == 1 => Ok(shared_state),
        _ => Err(io::Error::other("invalid greeting")),
    }
}

/// Sends a request to watch a container.
pub(super) fn send(
    stream: &UnixStream,
    hail: &HandoffRequest,
    shared_state: BorrowedFd<'_>,
    listener: BorrowedFd<'_>,
) -> io::Result<()> {
    sys::socket::send_fd(stream.as_fd(), b"B", Some(shared_state))?;
    sys::socket::send_fd(stream.as_fd(), b"L", Some(listener))?;
    write_text(stream, &serde_json::to_vec(hail).expect("it is plain data"))
}

/// Receives the request of [`send`] from a process of the build `own`. Returns `None` if the other side only tested
/// whether an agent exists. A request of another build, and one that is damaged, is an error of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData). If `own` is an error, it is returned once the request is read, so that
/// the other side can be answered.
pub(super) fn receive(
    stream: &UnixStream,
    own: io::Result<String>,
) -> io::Result<Option<HandedDescriptors>> {
    let mut letter = [0];
    let (count, shared_state) = sys::socket::receive_fd(stream.as_fd(), &mut letter)?;
    if count == 0 {
        return Ok(None);
    }
    let (_, listener) = sys::socket::receive_fd(stream.as_fd(), &mut letter)?;
    let text = read_text(stream)?;
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let damaged = |error: serde_json::Error| invalid(format!("the request is damaged: {error}"));
    // Read first: a request of another build may have other fields.
    let WrittenBuild { build } = serde_json::from_slice(&text).map_err(damaged)?;
    let own = own.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read its own build: {error}"))
    })?;
    if build != own {
        return Err(invalid(format!(
            "the agent is a different build of tollgate: it is {own}, and {build} asked"
        )));
    }
    let hail = serde_json::from_slice(&text).map_err(damaged)?;
    let lacks = || invalid("the request came without its descriptors".to_owned());
    Ok(Some(HandedDescriptors {
        hail,
        shared_state: shared_state.ok_or_else(lacks)?,
        listener: listener.ok_or_else(lacks)?,
    }))
}

/// Answers a request: the container is watched, or the reason for refusal.
pub(super) fn answer(mut stream: &UnixStream, outcome: Result<(), &str>) -> io::Result<()> {
    match outcome {
        Ok(()) => stream.write_all(&[WELCOME]),
        Err(why) => {
            stream.write_all(&[REFUSED])?;
            write_text(stream, why.as_bytes())
        }
    }
}

/// Requests the held calls. From then on only this process answers.
pub(super) fn ask_calls(mut stream: &UnixStream) -> io::Result<HeldCalls> {
    stream.write_all(&[CALLS])?;
    let GivenCalls { words, runtime } = serde_json::from_slice(&read_text(stream)?)?;
    let calls = calls_from_words(&words);
    Ok(HeldCalls { calls, runtime })
}

/// Held calls as text.
#[derive(Deserialize, Serialize)]
struct GivenCalls {
    words: Vec<u64>,
    runtime: Option<RuntimeProcess>,
}

/// Sends the held calls.
fn give_calls(stream: &UnixStream, held: HeldCalls) -> io::Result<()> {
    let given = GivenCalls {
        words: held.calls.iter().flat_map(call_words).collect(),
        runtime: held.runtime,
    };
    write_text(
        stream,
        &serde_json::to_vec(&given).expect("it is plain data"),
    )
}

/// Receives the answer of [`answer`]. Calls `calls` if the other side requests held calls.
pub(super) fn hear(
    mut stream: &UnixStream,
    calls: &mut dyn FnMut() -> io::Result<HeldCalls>,
) -> io::Result<Result<(), String>> {
    let mut letter = [0];
    stream.read_exact(&mut letter)?;
    if letter[0] == CALLS {
        give_calls(stream, calls()?)?;
        stream.read_exact(&mut letter)?;
    }
    match letter[0] {
        WELCOME => Ok(Ok(())),
        REFUSED => {
            let why = read_text(stream)?;
            Ok(Err(String::from_utf8_lossy(&why).into_owned()))
        }
        _ => Err(io::Error::other("invalid answer")),
    }
}

/// Sends an order and waits for the answer.
pub(super) fn ask(mut stream: &UnixStream, order: HostAgentCommand) -> io::Result<bool> {
    let mut bytes = [0; ORDER_BYTES];
    bytes[0] = order.letter();
    if let HostAgentCommand::KeeperReplaced(pid) = order {
        bytes[1..].copy_from_slice(&pid.to_le_bytes());
    }
    stream.write_all(&bytes)?;
    let mut letter = [0];
    stream.read_exact(&mut letter)?;
    Ok(letter[0] == YES)
}

/// Returns the next order; `None` when the other side has closed the connection.
pub(super) fn next_order(mut stream: &UnixStream) -> Option<HostAgentCommand> {
    let mut bytes = [0; ORDER_BYTES];
    stream.read_exact(&mut bytes).ok()?;
    let [letter, pid @ ..] = bytes;
    let pid = i32::from_le_bytes(pid);
    HostAgentCommand::all(pid)
        .into_iter()
        .find(|order| order.letter() == letter)
}

/// Answers an order. A closed connection is ignored.
pub(super) fn obey(mut stream: &UnixStream, answer: bool) {
    let letter = if answer { YES } else { NO };
    let _ = stream.write_all(&[letter]);
}

const ORDER_BYTES: usize = 5;

impl HostAgentCommand {
    fn all(pid: i32) -> [Self; 9] {
        [
            Self::HasEnded,
            Self::Flush,
            Self::Gaps,
            Self::Upgraded,
            Self::UpgradeFailed,
            Self::SignalRefused,
            Self::KeeperGone,
            Self::KeeperReplaced(pid),
            Self::HandOver,
        ]
    }

    fn letter(self) -> u8 {
        match self {
            Self::HasEnded => b'e',
            Self::Flush => b'f',
            Self::Gaps => b'g',
            Self::Upgraded => b'u',
            Self::UpgradeFailed => b'x',
            Self::SignalRefused => b'o',
            Self::KeeperGone => b'k',
            Self::KeeperReplaced(_) => b'r',
            Self::HandOver => b'h',
        }
    }
}

fn write_text(mut stream: &UnixStream, text: &[u8]) -> io::Result<()> {
    let len = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&len.to_le_bytes())?;
    stream.write_all(text)
}

fn read_text(mut stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(io::Error::other)?;
    if len > LIMIT {
        return Err(io::Error::other("it is too long"));
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text)?;
    Ok(text)
}

#[cfg(test)]
pub(super) mod tests {
    use sys::notify::Notification;

    use super::*;
    use crate::identity;

    pub(in super::super) fn hail() -> HandoffRequest {
        HandoffRequest {
            build: identity::build().expect("there is a program"),
            container: "c".to_owned(),
            bundle: "/b".into(),
            has_mounts: true,
            generation: 3,
            is_resumed: false,
            ticket: 7,
            transparent: vec![1, 2],
            is_answered: true,
            rules: Some(u64::MAX - 1),
            losses: (3, 1),
        }
    }

    #[test]
    fn a_container_comes_over_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let file = std::fs::File::open("/dev/null").expect("a device");
        for shared_state in [None, Some(file.as_fd())] {
            greet(&theirs, shared_state).expect("sent");
            let shown = await_greeting(&ours).expect("received");
            assert_eq!(shown.is_some(), shared_state.is_some());
        }
        send(&ours, &hail(), file.as_fd(), file.as_fd()).expect("sent");
        let own = || Ok(identity::build().expect("there is a program"));
        let handed = receive(&theirs, own())
            .expect("received")
            .expect("a container");
        assert_eq!(format!("{:?}", handed.hail), format!("{:?}", hail()));
        let asks = std::thread::spawn(move || {
            let held = ask_calls(&theirs).expect("given");
            answer(&theirs, Err("no")).expect("sent");
            (held, theirs)
        });
        let runtime: RuntimeProcess = serde_json::from_value(serde_json::json!({
            "pid": 5, "parent": 4, "session": 4, "start": 77, "name": b"runc", "executable": b"/usr/sbin/runc",
            "arguments": [b"runc", b"exec"], "mark": u64::MAX - 1
        }))
        .expect("it is a process");
        let call = Notification {
            id: u64::MAX,
            tid: 6,
            ..Notification::default()
        };
        let mut calls = || {
            Ok(HeldCalls {
                calls: vec![call],
                runtime: Some(runtime.clone()),
            })
        };
        let heard = hear(&ours, &mut calls).expect("received");
        assert_eq!(heard, Err("no".to_owned()));
        let (held, theirs) = asks.join().expect("no panic");
        assert_eq!((held.calls, held.runtime), (vec![call], Some(runtime)));
        answer(&theirs, Ok(())).expect("sent");
        let mut none = || Err(io::Error::other("they are not wanted"));
        assert_eq!(hear(&ours, &mut none).expect("received"), Ok(()));
        drop(ours);
        assert!(receive(&theirs, own()).expect("the end").is_none());
    }

    /// What is received if this text is sent as a request.
    fn received(text: &[u8]) -> io::Result<Option<HandedDescriptors>> {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let file = std::fs::File::open("/dev/null").expect("a device");
        for letter in [b"B", b"L"] {
            sys::socket::send_fd(ours.as_fd(), letter, Some(file.as_fd())).expect("sent");
        }
        write_text(&ours, text).expect("sent");
        receive(&theirs, identity::build())
    }

    fn refusal(text: &[u8]) -> String {
        let error = received(text).err().expect("it is refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        error.to_string()
    }

    #[test]
    fn a_request_of_another_build_is_refused_by_its_name_whatever_its_fields() {
        let mut request = hail();
        for build in ["0.0.9 1:2:3", "99.0.0 1:2:3"] {
            request.build = build.to_owned();
            let same_fields = serde_json::to_vec(&request).expect("it is plain data");
            let other_fields = format!("{{\"new\":1,\"build\":\"{build}\",\"generation\":\"x\"}}");
            for text in [&same_fields[..], other_fields.as_bytes()] {
                let why = refusal(text);
                assert!(why.contains("a different build of tollgate"), "{why}");
                assert!(why.contains(build), "{why}");
            }
        }
    }

    #[test]
    fn a_part_of_a_request_and_one_with_a_broken_byte_are_refused() {
        let whole = serde_json::to_vec(&hail()).expect("it is plain data");
        assert!(received(&whole).expect("it is whole").is_some());
        for len in 0..whole.len() {
            assert!(refusal(&whole[..len]).contains("damaged"), "{len}");
            let mut broken = whole.clone();
            broken[len] = 0xff;
            assert!(refusal(&broken).contains("damaged"), "{len}");
        }
    }

    #[test]
    fn what_is_no_hail_is_an_error() {
        let (mut ours, theirs) = UnixStream::pair().expect("sockets");
        ours.write_all(b"BL\xff\xff\xff\xff").expect("sent");
        assert!(receive(&theirs, Ok(String::new())).is_err());
        let (mut ours, theirs) = UnixStream::pair().expect("sockets");
        ours.write_all(b"BL\x02\0\0\0{}").expect("sent");
        assert!(receive(&theirs, Ok(String::new())).is_err());
    }

    #[test]
    fn orders_are_answered() {
        for order in HostAgentCommand::all(4711) {
            let (ours, theirs) = UnixStream::pair().expect("sockets");
            let asked = std::thread::spawn(move || ask(&ours, order).expect("answered"));
            assert_eq!(next_order(&theirs), Some(order));
            obey(&theirs, true);
            assert!(asked.join().expect("no panic"));
        }
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drop(theirs);
        assert!(ask(&ours, HostAgentCommand::Flush).is_err());
    }
}
