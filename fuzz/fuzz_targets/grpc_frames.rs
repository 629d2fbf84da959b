//! Gives `fuzzing::grpc_frames` what libFuzzer makes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::grpc_frames(bytes);
});
