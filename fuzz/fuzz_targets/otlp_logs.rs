//! Gives `fuzzing::otlp_logs` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::otlp_logs(bytes);
});
