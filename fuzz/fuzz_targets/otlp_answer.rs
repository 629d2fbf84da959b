//! Gives `fuzzing::otlp_answer` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::otlp_answer(bytes);
});
