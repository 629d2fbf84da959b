//! Output templates: nothing panics, neither when they are compiled nor when they are filled.

#![no_main]

#[path = "../rules.rs"]
mod rules_in;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    rules_in::judge(&rules_in::rule("evt.type in (open, execve, connect)", text));
});
