//! Gives `fuzzing::artifact` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::artifact(bytes);
});
