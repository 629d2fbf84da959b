use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use event::Relevance;

use super::super::message::testing::datagram;
use super::super::wire::testing::{bytes, number};
use super::super::{Counters, Shared};
use super::*;
use crate::notify::EngineObserver;

/// Records the events that it evaluates.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Evaluator for Recorder {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), _event: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = text(event.process.last_comm().as_bytes());
        let what = match event.descriptor.map(|descriptor| descriptor.name) {
            Some(event::Name::Passed { raw, .. }) => text(raw),
            Some(event::Name::Resolved(path)) => format!("={}", text(path)),
            _ => event
                .params
                .iter()
                .find_map(|param| match param {
                    Param::Text(path) => Some(text(path)),
                    _ => None,
                })
                .unwrap_or_default(),
        };
        let line = match event.world.command_line(event.process, &event.image) {
            Lookup::Found(line) => format!(" argv0={}", text(&line.exe)),
            _ => String::new(),
        };
        let result = match event.outcome {
            Outcome::Returned(result) => format!(" -> {result}"),
            _ => String::new(),
        };
        let (pid, container) = (event.process.pid.0, &event.container().id);
        let seen = format!(
            "{} {name}[{pid}@{container}] {what}{result}{line}",
            event.kind.name()
        );
        self.0.lock().unwrap().push(seen);
        Vec::new()
    }
}

struct Silent;

impl EngineObserver for Silent {
    fn undecided(&self, _event: &Event<'_>, _rules: &[Arc<str>]) {}
    fn read_timed_out(&self, _pid: event::Pid) {}
}

fn sandbox() -> (Sandbox<Recorder>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let shared = Arc::new(Shared {
        evaluator: arc_swap::ArcSwap::new(Arc::clone(&recorder)),
        notices: Arc::new(Silent),
        names: arc_swap::ArcSwap::default(),
        counters: Counters::default(),
        events: AtomicU64::new(0),
        host_name: "host".to_owned(),
        state_root: PathBuf::from("/nonexistent"),
        stopping: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        threads: Mutex::default(),
    });
    (Sandbox::new(shared), recorder)
}

fn exit(out: &mut Vec<u8>, result: u64, errno: u64) {
    let mut exit = Vec::new();
    number(&mut exit, 1, result);
    number(&mut exit, 2, errno);
    bytes(out, 2, &exit);
}

/// gVisor reports no error of `execve`.
#[test]
fn a_program_that_was_not_executed_is_told_with_the_next_message_of_its_task() {
    let (mut sandbox, recorder) = sandbox();
    let tries = datagram(11, |out| {
        exit(out, 0, 0);
        number(out, 3, 59);
        bytes(out, 6, b"/bin/none");
    });
    let open = datagram(7, |out| {
        exit(out, (-14_i64).cast_unsigned(), 0);
        number(out, 3, 257);
    });
    sandbox.receive(&tries);
    assert!(recorder.0.lock().unwrap().is_empty());
    sandbox.receive(&open);
    let seen = recorder.0.lock().unwrap();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(
        seen[0].starts_with("execve ") && seen[0].ends_with("/bin/none"),
        "{seen:?}"
    );
    // An unreadable string differs from an empty one.
    assert!(
        seen[1].starts_with("openat ") && seen[1].ends_with(" -> -14"),
        "{seen:?}"
    );
}

#[test]
fn a_life_in_a_sandbox_is_told_as_events() {
    let (mut sandbox, recorder) = sandbox();
    let start = datagram(1, |out| {
        bytes(out, 2, b"box");
        bytes(out, 4, b"sh");
        bytes(out, 4, b"-c");
    });
    let succeeds = datagram(11, |out| {
        exit(out, 0, 0);
        number(out, 3, 59);
        bytes(out, 6, b"/bin/cat");
    });
    let fails = datagram(11, |out| {
        exit(out, 0, 2);
        number(out, 3, 59);
        bytes(out, 6, b"/bin/none");
    });
    let executed = datagram(3, |out| {
        bytes(out, 2, b"/bin/busybox");
        bytes(out, 3, b"cat");
        bytes(out, 17, b"/bin/cat");
    });
    let open = datagram(7, |out| {
        exit(out, 3, 0);
        number(out, 3, 257);
        number(out, 4, (-100_i64).cast_unsigned());
        bytes(out, 6, b"/etc/shadow");
    });
    let write = datagram(34, |out| {
        exit(out, 5, 0);
        number(out, 3, 1);
        number(out, 4, 3);
        bytes(out, 5, b"/etc/passwd");
        number(out, 6, 5);
    });
    for message in [start, fails, succeeds, executed, open, write] {
        sandbox.receive(&message);
    }
    let seen = recorder.0.lock().unwrap().clone();
    assert_eq!(
        seen,
        [
            "execve sh[7@box] sh -> 0 argv0=sh",
            "execve sh[7@box] /bin/none -> -2 argv0=sh",
            // Reported once, with the program that it became.
            "execve cat[7@box] /bin/cat -> 0 argv0=cat",
            "openat cat[7@box] /etc/shadow -> 3 argv0=cat",
            "write cat[7@box] =/etc/passwd -> 5 argv0=cat",
        ]
    );
}

#[test]
fn losses_are_counted_by_what_the_sandbox_says_and_wrap() {
    let (mut sandbox, _) = sandbox();
    let at = |dropped: u32| {
        let mut message = datagram(5, |_| {});
        message[4..8].copy_from_slice(&dropped.to_ne_bytes());
        message
    };
    let mut losses = Vec::new();
    for dropped in [0, 4, 4, u32::MAX, 2] {
        sandbox.receive(&at(dropped));
        losses.push(sandbox.shared.snapshot().dropped);
    }
    let wrapped = u64::from(u32::MAX);
    assert_eq!(losses, [0, 4, 4, wrapped, wrapped + 3]);
}

#[test]
fn what_makes_no_sense_is_counted_and_nothing_more() {
    let (mut sandbox, recorder) = sandbox();
    let good = datagram(7, |out| {
        exit(out, 3, 0);
        number(out, 3, 257);
        bytes(out, 6, b"/etc/shadow");
    });
    let whole = good.len();
    for len in 0..whole {
        sandbox.receive(&good[..len]);
    }
    let mut state = 7_u64;
    for kind in 0..64_u16 {
        for _ in 0..200 {
            let mut noise = [0_u8; 40];
            for byte in &mut noise {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = u8::try_from(state >> 56).expect("eight bits");
            }
            noise[..2].copy_from_slice(&8_u16.to_ne_bytes());
            noise[2..4].copy_from_slice(&kind.to_ne_bytes());
            sandbox.receive(&noise);
        }
    }
    sandbox.receive(&datagram(99, |_| {}));
    let counters = sandbox.shared.snapshot();
    assert!(
        counters.malformed > 0 && counters.unknown_messages > 0,
        "{counters:?}"
    );
    assert_eq!(counters.messages, whole as u64 + 64 * 200 + 1);
    drop(recorder);
}
