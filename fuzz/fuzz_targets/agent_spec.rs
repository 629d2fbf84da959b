//! Gives `fuzzing::agent_spec` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::agent_spec(bytes);
});
