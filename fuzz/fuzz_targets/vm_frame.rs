//! Gives `fuzzing::vm_frame` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::vm_frame(bytes);
});
