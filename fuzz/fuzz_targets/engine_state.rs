//! Gives `fuzzing::engine_state` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::engine_state(bytes);
});
