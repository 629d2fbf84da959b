//! Conditions: what can be parsed is printed so that it parses to the same, and nothing panics on its way
//! to a verdict.

#![no_main]

#[path = "../rules.rs"]
mod rules_in;

use libfuzzer_sys::fuzz_target;
use rules::condition::ast::SourceId;
use rules::condition::parser::parse;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(parsed) = parse(text, SourceId(0)) {
        let printed = parsed.to_string();
        let again = parse(&printed, SourceId(0));
        let again = again.unwrap_or_else(|error| panic!("{printed:?}: {error}"));
        assert_eq!(again.to_string(), printed);
    }
    rules_in::judge(&rules_in::rule(text, "o"));
});
