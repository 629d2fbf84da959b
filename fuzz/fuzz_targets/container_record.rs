//! Gives `fuzzing::container_record` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::container_record(bytes);
});
