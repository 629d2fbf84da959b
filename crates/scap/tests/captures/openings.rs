//! Files that are opened again and again leave the same behind as if each was opened for the first time.
//!
//! The fuzz target (`fuzz/fuzz_targets/capture.rs`) takes this file in, too.

use std::sync::{Arc, Mutex};

use event::field::Field;
use event::{Evaluator, Event, EventKind, ImpossibleOpen, Opening, OpeningParams, Relevance};
use scap::read::Reader;
use scap::replay::{Counts, Replay, StateLosses};

#[cfg(test)]
use crate::mutate::Random;

/// Sees events, but for openings that it has ruled out.
struct Onlooker {
    /// Kinds that it does not ask about.
    ignores: &'static [&'static str],
    rules_out: bool,
    seen: Mutex<Vec<Seen>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    kind: &'static str,
    can_be_ruled_out: bool,
    fields: Vec<String>,
}

const FIELDS: [&str; 9] = [
    "evt.num",
    "evt.type",
    "evt.rawres",
    "fd.num",
    "fd.name",
    "fd.typechar",
    "fd.dev",
    "fd.ino",
    "proc.pid",
];

const CALM: &str = "no test panics while it looks";

/// Results from here on make no difference, and of those before one does.
const ALIKE_FROM: i64 = 6;
const LOUD: i64 = 4;

fn can_be_ruled_out(opening: &Opening<'_>) -> bool {
    opening.name.last() != Some(&b'd') && opening.result != LOUD
}

impl Evaluator for Onlooker {
    type Scratch = ();

    fn scratch(&self) {}

    fn concerns(&self, kind: EventKind) -> bool {
        !self.ignores.contains(&kind.name())
    }

    fn has_ruled_out(&self, (): &mut (), opening: &Opening<'_>) -> Option<ImpossibleOpen> {
        (self.rules_out && can_be_ruled_out(opening)).then_some(ImpossibleOpen {
            alike_from: ALIKE_FROM,
        })
    }

    fn prefilter(&self, (): &mut (), _: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        let opening = OpeningParams::of(event.kind).and_then(|at| Opening::of(event, at));
        let value = |name| {
            format!(
                "{:?}",
                Field::parse(name)
                    .expect("there is such a field")
                    .extract(event)
            )
        };
        self.seen.lock().expect(CALM).push(Seen {
            kind: event.kind.name(),
            can_be_ruled_out: opening.is_some_and(|opening| can_be_ruled_out(&opening)),
            fields: FIELDS.map(value).to_vec(),
        });
        Vec::new()
    }
}

/// What is seen up to the end of a capture, or up to what is wrong with it.
fn watch(
    file: &[u8],
    ignores: &'static [&'static str],
    rules_out: bool,
) -> (Vec<Seen>, Counts, StateLosses) {
    let evaluator = Onlooker {
        ignores,
        rules_out,
        seen: Mutex::default(),
    };
    let mut replay = Replay::new(&evaluator, 0);
    if let Ok(mut reader) = Reader::new(file) {
        while let Ok(true) = replay.step(&mut reader, 100) {}
    }
    let (counts, lost) = (replay.counts(), replay.lost());
    (evaluator.seen.into_inner().expect(CALM), counts, lost)
}

/// What is ruled out is not seen, what is not asked about is not either, and all else is as it was. How many
/// events were ruled out, and how many are left.
pub(crate) fn compare(file: &[u8]) -> [usize; 2] {
    const OPENS: &[&str] = &["creat", "open", "open_by_handle_at", "openat", "openat2"];
    let (all, all_counts, all_lost) = watch(file, &[], false);
    let (some, counts, lost) = watch(file, &[], true);
    let mut rest = some.iter().peekable();
    for seen in &all {
        // What a recording of ours notes of a call may contradict it, so that it is shown.
        if rest.next_if_eq(&seen).is_none() {
            assert!(seen.can_be_ruled_out, "{seen:?} is not seen");
        }
    }
    assert_eq!(rest.next(), None);
    assert_eq!((counts, lost), (all_counts, all_lost));
    let (others, ..) = watch(file, OPENS, false);
    let wanted = all.iter().filter(|seen| !OPENS.contains(&seen.kind));
    assert!(others.iter().eq(wanted));
    [all.len() - some.len(), some.len()]
}

/// A capture as sysdig writes it.
#[cfg(test)]
struct Capture {
    bytes: Vec<u8>,
    time: u64,
}

#[cfg(test)]
impl Capture {
    fn new() -> Self {
        let mut capture = Self {
            bytes: Vec::new(),
            time: 1,
        };
        let header = [
            &0x1a2b_3c4d_u32.to_le_bytes()[..],
            &[1, 0, 2, 0],
            &[0xff; 8],
        ]
        .concat();
        capture.block(0x0a0d_0d0a, &header);
        capture
    }

    fn block(&mut self, ty: u32, body: &[u8]) {
        let padding = body.len().next_multiple_of(4) - body.len();
        let len = u32::try_from(body.len() + padding + 12).expect("short");
        self.bytes.extend(ty.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(body);
        self.bytes.extend(&[0; 3][..padding]);
        self.bytes.extend(len.to_le_bytes());
    }

    fn event(&mut self, tid: u64, code: u16, params: &[&[u8]]) {
        self.time += 1;
        let data = params.concat();
        let len = 26 + 2 * params.len() + data.len();
        let mut body = vec![0, 0];
        body.extend(self.time.to_le_bytes());
        body.extend(tid.to_le_bytes());
        body.extend(u32::try_from(len).expect("short").to_le_bytes());
        body.extend(code.to_le_bytes());
        body.extend(u32::try_from(params.len()).expect("short").to_le_bytes());
        for param in params {
            body.extend(u16::try_from(param.len()).expect("short").to_le_bytes());
        }
        body.extend(data);
        self.block(0x216, &body);
    }

    /// One call of a process that has few files and descriptors to choose from.
    fn call(&mut self, random: &mut Random) {
        const NAMES: [&[u8]; 9] = [
            b"/a/quiet\0",
            b"/a/b/quiet\0",
            b"/a/loud\0",
            b"/a/../quiet\0",
            b"/a//quiet\0",
            b"quiet\0",
            b"/a/./loud\0",
            b"",
            b"/a/very/long/name/that/takes/more/bytes/than/are/kept/of/openings/and/goes/on/and/on/until/\
              there/surely/is/no/room/for/it/at/all/quiet\0",
        ];
        const RESULTS: [i64; 8] = [-13, -2, 0, LOUD, 5, 6, 7, 2000];
        let tid = random.of(&[1, 2, 3]);
        let result = random.of(&RESULTS).to_le_bytes();
        let fd = random.of(&RESULTS[2..]).to_le_bytes();
        let name = random.of(&NAMES);
        let base = random.of(&[-100, 5, 7_i64]).to_le_bytes();
        let flags = random.of(&[1, 0x1001, 0x0400_u32]).to_le_bytes();
        let device = random.of(&[1, 2_u32]).to_le_bytes();
        let (mode, inode) = ([0; 4], 9_u64.to_le_bytes());
        match random.below(10) {
            0..=2 => self.event(tid, 307, &[&result, &base, name, &flags, &mode, &device]),
            3 => {
                let params: [&[u8]; 7] = [&result, &base, name, &flags, &mode, &device, &inode];
                self.event(tid, 307, &params);
            }
            4 | 5 => self.event(tid, 3, &[&result, name, &flags, &mode, &device]),
            6 | 7 => {
                self.event(tid, 4, &[&fd]);
                self.event(tid, 5, &[&[0; 8]]);
            }
            // A directory that names are relative to, and what is read.
            8 => self.event(
                tid,
                307,
                &[
                    &5_i64.to_le_bytes(),
                    &base,
                    b"/base\0",
                    &flags,
                    &mode,
                    &device,
                ],
            ),
            _ => {
                self.event(tid, 6, &[&fd, &[0; 4]]);
                self.event(tid, 7, &[&1_i64.to_le_bytes(), b"x"]);
            }
        }
    }
}

#[test]
fn files_that_are_opened_again_are_open_as_before() {
    for seed in 1..=10 {
        let mut random = Random::new(seed);
        let mut capture = Capture::new();
        for _ in 0..6000 {
            capture.call(&mut random);
        }
        let [ruled_out, left] = compare(&capture.bytes);
        assert!(ruled_out > 500 && left > 2000, "{ruled_out} {left}");
    }
}
