//! Gives `fuzzing::policy` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::policy(bytes);
});
