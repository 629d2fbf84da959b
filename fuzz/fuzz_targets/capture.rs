//! Replays captures with something wrong in them: nothing may panic, memory stays within what the fuzzer
//! allows, and what is remembered of openings changes nothing. How to run it is in `README.md`.

#![no_main]

#[path = "../../crates/scap/tests/captures/mutate.rs"]
mod mutate;
#[path = "../../crates/scap/tests/captures/openings.rs"]
mod openings;

use event::testing::FieldReader;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use mutate::Random;
use scap::read::Reader;
use scap::replay::Replay;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(bytes) else {
        return;
    };
    let glance = FieldReader::default();
    let mut replay = Replay::new(&glance, 0);
    while let Ok(true) = replay.step(&mut reader, 256) {}
    openings::compare(bytes);
});

// Mostly whole blocks with something wrong in them; now and then bytes without regard to blocks.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 16 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut random = Random::new(u64::from(seed));
    let spoilt = mutate::mutate(&data[..size], max_size, &mut random);
    data[..spoilt.len()].copy_from_slice(&spoilt);
    spoilt.len()
});
