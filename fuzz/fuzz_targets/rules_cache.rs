//! Gives `fuzzing::rules_cache` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::rules_cache(bytes);
});
