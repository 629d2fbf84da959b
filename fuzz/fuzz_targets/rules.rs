//! Rule files with anything in them: nothing may panic, and what is wrong has a place. What loads is
//! compiled, planned and asked about events.

#![no_main]

#[path = "../rules.rs"]
mod rules_in;

use libfuzzer_sys::fuzz_target;
use rules::Loader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (ruleset, diagnostics) = Loader::new().add("f.yaml", text).finish();
    // As YAML has it, where a carriage return alone ends a line, too.
    let lines = text.replace("\r\n", "\n").split(['\n', '\r']).count();
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    for diagnostic in &diagnostics {
        assert!(diagnostic.location.line <= lines + 1, "{diagnostic:?}");
        std::hint::black_box(diagnostic.render(Some(text)));
    }
    rules_in::judge(&ruleset);
});
