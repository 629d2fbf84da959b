//! Gives `fuzzing::capture` what libFuzzer makes, mostly with whole blocks that have something wrong in them.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|bytes: &[u8]| {
    fuzzing::capture(bytes);
});

// Now and then bytes without regard to blocks.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 16 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let spoilt = fuzzing::mutate_capture(&data[..size], max_size, u64::from(seed));
    data[..spoilt.len()].copy_from_slice(&spoilt);
    spoilt.len()
});
