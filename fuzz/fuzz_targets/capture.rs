//! Replays any bytes: nothing may panic, and memory stays within what the fuzzer allows
//! (`cargo +nightly fuzz run capture -- -rss_limit_mb=512`).

#![no_main]

use event::field::Field;
use event::{Event, Judge, Weight};
use libfuzzer_sys::fuzz_target;
use scap::read::Reader;
use scap::replay::Replay;

/// Looks at what is made of an event's parameters, process and descriptor.
struct Glance;

impl Judge for Glance {
    type Scratch = ();

    fn scratch(&self) {}

    fn weigh(&self, (): &mut (), _: &Event<'_>) -> Weight {
        Weight::Undecided
    }

    fn conclude(&self, (): &mut (), event: &Event<'_>) -> u32 {
        for name in ["evt.args", "proc.acmdline", "proc.env", "fd.name", "container.id"] {
            if let Ok(field) = Field::parse(name) {
                let _ = field.extract(event);
            }
        }
        0
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(bytes) else {
        return;
    };
    let mut replay = Replay::new(&Glance, 0);
    while let Ok(true) = replay.step(&mut reader, 256) {}
});
