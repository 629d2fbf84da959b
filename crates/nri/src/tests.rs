//! Tests of frames and messages, and of a plug-in with a runtime.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::fake::{FakeRuntime, Reply};
use crate::message::{
    Container, ContainerAdjustment, Empty, EventRequest, LinuxContainerAdjustment, LinuxSeccomp,
    PodSandbox, Request, StateChangeEvent,
};

const DEADLINE: Duration = Duration::from_millis(200);

fn options() -> Options {
    Options {
        name: "tollgate".to_owned(),
        index: 7,
        deadline: DEADLINE,
    }
}

fn pod(name: &str) -> PodSandbox {
    PodSandbox {
        id: format!("id-{name}"),
        name: name.to_owned(),
        namespace: "demo".to_owned(),
        annotations: HashMap::from([("a".to_owned(), "b".to_owned())]),
        ..PodSandbox::default()
    }
}

fn container(name: &str) -> Container {
    Container {
        id: format!("id-{name}"),
        name: name.to_owned(),
        pid: 77,
        ..Container::default()
    }
}

/// A plug-in that answers by the name of the container, and records what happens.
#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<Event>>,
    late: Mutex<Vec<Answer>>,
    release: Mutex<Option<mpsc::Receiver<()>>>,
    fails_open: AtomicBool,
}

impl Plugin for Recorder {
    fn handle(&self, event: &Event) -> Answer {
        self.events.lock().unwrap().push(event.clone());
        let (Event::CreateContainer(both) | Event::StartContainer(both)) = event else {
            return Answer::Accept;
        };
        match both.1.name.as_str() {
            "refused" => Answer::Refuse("not today".to_owned()),
            "changed" => {
                let annotations = HashMap::from([("x".to_owned(), "y".to_owned())]);
                let adjust = ContainerAdjustment {
                    annotations,
                    linux: None,
                };
                Answer::Adjust(Box::new(adjust))
            }
            "panics" => panic!("a handler that fails"),
            "stuck" => {
                let release = self.release.lock().unwrap().take();
                release.map(|release| release.recv().ok());
                Answer::Refuse("after the deadline".to_owned())
            }
            _ => Answer::Accept,
        }
    }

    fn too_late(&self, _: &Event) -> Answer {
        match self.fails_open.load(Ordering::Relaxed) {
            true => Answer::Accept,
            false => Answer::Refuse("too late".to_owned()),
        }
    }

    fn late(&self, _: &Event, answer: Answer) {
        self.late.lock().unwrap().push(answer);
    }
}

/// A plug-in and its runtime.
fn connected(recorder: &Arc<Recorder>) -> (FakeRuntime, JoinHandle<Result<(), SessionError>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let plugin: Arc<dyn Plugin> = Arc::clone(recorder) as _;
    let session = thread::spawn(move || run(ours, options(), &plugin));
    let pods = ["p1", "p2", "p3"].map(pod);
    let containers = ["c1", "c2", "c3", "c4", "c5"].map(container);
    (
        FakeRuntime::accept(theirs, &pods, &containers).unwrap(),
        session,
    )
}

#[test]
fn a_plug_in_registers_and_gets_everything_that_exists_in_parts() {
    let recorder = Arc::new(Recorder::default());
    let (runtime, session) = connected(&recorder);
    assert_eq!(runtime.registration.plugin_name, "tollgate");
    assert_eq!(runtime.registration.plugin_idx, "07");
    assert_eq!(
        runtime.events, 0b110_0010_1101,
        "events 1, 3, 4, 6, 10 and 11"
    );
    drop(runtime);
    session.join().unwrap().unwrap();
    let expected = Event::Synchronize {
        pods: ["p1", "p2", "p3"].map(pod).to_vec(),
        containers: ["c1", "c2", "c3", "c4", "c5"].map(container).to_vec(),
    };
    assert_eq!(*recorder.events.lock().unwrap(), [expected]);
}

#[test]
fn answers_accept_change_and_refuse_containers() {
    let recorder = Arc::new(Recorder::default());
    let (mut runtime, session) = connected(&recorder);
    let mut ask = |method: &str, name: &str| {
        runtime
            .ask(method, &pod("p"), Some(&container(name)))
            .unwrap()
    };
    assert_eq!(ask("CreateContainer", "c"), Reply::Accepted(None));
    assert_eq!(
        ask("StartContainer", "refused"),
        Reply::Refused("not today".to_owned())
    );
    let Reply::Accepted(Some(adjust)) = ask("CreateContainer", "changed") else {
        panic!("the container is changed");
    };
    assert_eq!(adjust.annotations["x"], "y");
    // Only a container that is not created yet can be changed.
    assert_eq!(ask("StartContainer", "changed"), Reply::Accepted(None));
    assert_eq!(ask("RemoveContainer", "c"), Reply::Accepted(None));
    let both = Box::new((pod("p"), container("c")));
    let events = recorder.events.lock().unwrap().clone();
    assert_eq!(events[1], Event::CreateContainer(both.clone()));
    assert_eq!(events[5], Event::RemoveContainer(both));
    drop(runtime);
    session.join().unwrap().unwrap();
}

#[test]
fn a_handler_that_misses_its_deadline_gets_the_fail_mode_and_holds_nobody_up() {
    let recorder = Arc::new(Recorder::default());
    let (release, held) = mpsc::channel();
    *recorder.release.lock().unwrap() = Some(held);
    let (mut runtime, _session) = connected(&recorder);
    let mut ask = |name: &str| {
        let begin = Instant::now();
        let reply = runtime
            .ask("StartContainer", &pod("p"), Some(&container(name)))
            .unwrap();
        (reply, begin.elapsed())
    };
    let (reply, took) = ask("stuck");
    assert_eq!(reply, Reply::Refused("too late".to_owned()));
    assert!(
        took >= DEADLINE && took < DEADLINE + Duration::from_secs(5),
        "{took:?}"
    );
    let (reply, _) = ask("next");
    assert_eq!(
        reply,
        Reply::Accepted(None),
        "the handler of another container still runs"
    );
    assert_eq!(*recorder.late.lock().unwrap(), []);
    release.send(()).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while recorder.late.lock().unwrap().is_empty() && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    let late = [Answer::Refuse("after the deadline".to_owned())];
    assert_eq!(*recorder.late.lock().unwrap(), late);
    recorder.fails_open.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    assert_eq!(
        ask("panics").0,
        Reply::Accepted(None),
        "a handler that panics has no answer"
    );
    assert!(begin.elapsed() < DEADLINE + Duration::from_secs(5));
}

#[test]
fn only_so_many_handlers_can_be_stuck_and_then_events_are_answered_at_once() {
    struct Stuck(Mutex<mpsc::Receiver<()>>);
    impl Plugin for Stuck {
        fn handle(&self, event: &Event) -> Answer {
            if matches!(event, Event::StartContainer(_)) {
                // Until the test ends.
                drop(self.0.lock().map(|held| held.recv()));
            }
            Answer::Accept
        }
        fn too_late(&self, _: &Event) -> Answer {
            Answer::Refuse("too late".to_owned())
        }
        fn late(&self, _: &Event, _: Answer) {}
    }
    let (release, held) = mpsc::channel();
    let plugin: Arc<dyn Plugin> = Arc::new(Stuck(Mutex::new(held)));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let options = Options {
        deadline: Duration::from_millis(20),
        ..options()
    };
    thread::spawn(move || run(ours, options, &plugin));
    let mut runtime = FakeRuntime::accept(theirs, &[], &[]).unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    for index in 0..40 {
        let reply = runtime
            .ask("StartContainer", &pod("p"), Some(&container("c")))
            .unwrap();
        assert_eq!(reply, Reply::Refused("too late".to_owned()), "{index}");
    }
    // Other tests of this process have threads, too.
    assert!(threads() < 40, "{} threads", threads());
    drop(release);
}

#[test]
fn what_the_plug_in_does_not_know_is_an_error_and_not_the_end() {
    let recorder = Arc::new(Recorder::default());
    let (mut runtime, session) = connected(&recorder);
    let mut status = |service: &str, method: &str, payload: Vec<u8>| {
        let response = runtime.call(service, method, payload).unwrap().unwrap();
        response.status.map(|status| (status.code, status.message))
    };
    let text = |text: &str| text.to_owned();
    assert_eq!(
        status("other", "Configure", Vec::new()),
        Some((12, text("there is no service `other`")))
    );
    let service = message::PLUGIN_SERVICE;
    assert_eq!(
        status(service, "Dance", Vec::new()),
        Some((12, text("there is no method `Dance`")))
    );
    let nobody = EventRequest::default().encode_to_vec();
    assert_eq!(
        status(service, "StartContainer", nobody),
        Some((3, text("`StartContainer` without a pod or a container")))
    );
    // Runtimes before containerd 2 send events in this form.
    for (event, container_of) in [(6, Some(container("old"))), (7, None)] {
        let change = StateChangeEvent {
            event,
            pod: Some(pod("p")),
            container: container_of,
        };
        assert_eq!(status(service, "StateChange", change.encode_to_vec()), None);
    }
    let last = recorder.events.lock().unwrap().last().cloned();
    assert_eq!(
        last,
        Some(Event::StartContainer(Box::new((
            pod("p"),
            container("old")
        ))))
    );
    assert_eq!(status(service, "Shutdown", Empty {}.encode_to_vec()), None);
    session.join().unwrap().unwrap();
}

/// Runs a session whose runtime sends these bytes after the registration, and closes.
fn session_with(bytes: &[u8]) -> Result<(), SessionError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let plugin: Arc<dyn Plugin> = Arc::new(Recorder::default());
    theirs.write_all(bytes).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let result = run(ours, options(), &plugin);
    let mut registration = Vec::new();
    // The socket is reset if the session has not read everything.
    let _ = theirs.read_to_end(&mut registration);
    result
}

/// A listing with one pod more than a runtime may have.
fn too_long_a_listing() -> Vec<u8> {
    let listing = message::SynchronizeRequest {
        pods: vec![PodSandbox::default(); MAX_LISTED + 1],
        ..message::SynchronizeRequest::default()
    };
    let request = Request {
        service: message::PLUGIN_SERVICE.to_owned(),
        method: "Synchronize".to_owned(),
        payload: listing.encode_to_vec(),
        timeout_nano: 0,
    };
    request.encode_to_vec()
}

/// The header of a frame of 10 bytes for the connection 1, and these bytes.
fn frame(bytes: [u8; 10]) -> Vec<u8> {
    [&[0, 0, 0, 1, 0, 0, 0, 10][..], &bytes].concat()
}

#[test]
fn a_runtime_that_does_not_follow_the_protocol_is_named() {
    let message = |payload: Vec<u8>, kind, connection| {
        encode(&Message {
            connection,
            stream: 1,
            kind,
            payload,
        })
        .unwrap()
    };
    let status = Some(message::Status {
        code: 2,
        message: "no".to_owned(),
    });
    let refusal = message::Response {
        status,
        payload: Vec::new(),
    }
    .encode_to_vec();
    for (bytes, expected) in [
        (
            Vec::new(),
            "closed the connection before it accepted the plug-in",
        ),
        (
            message(refusal, MessageKind::Response, 2),
            "the runtime refuses the plug-in: no",
        ),
        (
            message(vec![0xff], MessageKind::Request, 1),
            "cannot decode a message of the runtime",
        ),
        (
            message(too_long_a_listing(), MessageKind::Request, 1),
            "lists more than 100000",
        ),
        (
            vec![0, 0, 0, 3, 0, 0, 0, 0],
            "a frame is for the connection 3",
        ),
        (
            vec![0, 0, 0, 1, 0x7f, 0, 0, 0],
            "a frame of 2130706432 bytes is longer than 4194314",
        ),
        (
            frame([0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0]),
            "a message of 4194305 bytes is longer than 4194304",
        ),
        (frame([0, 0, 0, 0, 0, 0, 0, 1, 3, 0]), "the unknown type 3"),
    ] {
        let error = session_with(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn messages_are_sent_in_frames_that_containerd_can_read_and_not_longer_than_it_queues() {
    let message = |length: usize| Message {
        connection: 1,
        stream: 3,
        kind: MessageKind::Response,
        payload: vec![7; length],
    };
    let bytes = encode(&message(10_000)).unwrap();
    let mut rest = &bytes[..];
    let mut lengths = Vec::new();
    while let Some((header, body)) = rest.split_first_chunk::<8>() {
        let length = usize::from(header[6]) << 8 | usize::from(header[7]);
        lengths.push(length);
        rest = &body[length..];
    }
    assert_eq!(lengths, [4096, 4096, 1818]);
    assert!(encode(&message(128 * 4096)).is_ok());
    assert!(encode(&message(128 * 4096 + 1)).is_err());
}

#[test]
fn a_seccomp_policy_has_the_number_of_its_field() {
    let adjust = ContainerAdjustment {
        linux: Some(LinuxContainerAdjustment {
            seccomp_policy: Some(LinuxSeccomp {
                default_action: "A".to_owned(),
                ..LinuxSeccomp::default()
            }),
        }),
        ..ContainerAdjustment::default()
    };
    // Fields 6 of the adjustment, 6 of its Linux part, and 1 of the policy.
    assert_eq!(
        adjust.encode_to_vec(),
        [6 << 3 | 2, 5, 6 << 3 | 2, 3, 1 << 3 | 2, 1, b'A']
    );
}

fn any_message() -> impl Strategy<Value = Message> {
    let payload = prop::collection::vec(any::<u8>(), 0..9000);
    let kind = prop_oneof![Just(MessageKind::Request), Just(MessageKind::Response)];
    (1..=2_u32, any::<u32>(), kind, payload).prop_map(|(connection, stream, kind, payload)| {
        Message {
            connection,
            stream,
            kind,
            payload,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_are_read_as_they_were_written_however_the_bytes_are_cut(
        messages in prop::collection::vec(any_message(), 0..6),
        cuts in prop::collection::vec(1..3000_usize, 1..20),
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        let mut demultiplexer = Demultiplexer::default();
        let mut found = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*cut));
            found.extend(demultiplexer.push(piece).unwrap());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, messages);
    }

    #[test]
    fn no_bytes_make_the_protocol_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), connection in 1..=2_u32) {
        let mut demultiplexer = Demultiplexer::default();
        let _ = demultiplexer.push(&bytes);
        let mut protocol = Protocol::new(options());
        for kind in [MessageKind::Request, MessageKind::Response] {
            let message = Message { connection, stream: 1, kind, payload: bytes.clone() };
            let _ = protocol.receive(&message);
        }
    }
}
