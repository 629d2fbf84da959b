//! Gives `fuzzing::handover_state` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::handover_state(bytes);
});
