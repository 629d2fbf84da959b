//! Policy files with anything in them, and policies of other programs: nothing may panic, what is wrong has a place, and
//! what loads is compiled for each enforcer.

#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use policy::compile::{MachineFeatures, apparmor, bpf, caps, landlock, seccomp};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let lines = text.replace("\r\n", "\n").split(['\n', '\r']).count();
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    let (policies, diagnostics) = policy::load("f.yaml", text);
    for diagnostic in &diagnostics {
        assert!(diagnostic.location.line <= lines + 1, "{diagnostic:?}");
    }
    let machine = MachineFeatures::default();
    for policy in &policies {
        black_box(seccomp::Profile::compile(policy));
        black_box(landlock::Profile::compile(policy, &machine));
        black_box(caps::Profile::compile(policy));
        black_box(bpf::Profile::compile(policy, &machine));
        black_box(apparmor::profile(policy, &machine));
    }
    let options = kinds::convert::Options {
        enforcers: None,
        target: None,
    };
    if let Ok(conversions) = kinds::convert::convert("f.yaml", text, &options) {
        for conversion in &conversions {
            black_box(conversion.problems("f.yaml", &[]));
            if !conversion.is_empty() {
                // What is converted is a policy that loads.
                let (_, diagnostics) = policy::load("f.yaml", &conversion.yaml());
                assert!(!diagnostics.iter().any(|found| found.is_error()), "{diagnostics:?}");
            }
        }
    }
});
