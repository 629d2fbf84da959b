//! Build script that compiles the programs of the enforcer `BPF`.

#![allow(missing_docs, reason = "a build script has no users")]

#[path = "../../bpf/build.rs"]
mod programs;

fn main() {
    programs::compile("needs");
    programs::compile("quarantine");
    for (name, variable) in [
        ("enforce", "TOLLGATE_BPF_BUILD"),
        ("egress", "TOLLGATE_EGRESS_BUILD"),
    ] {
        let object = programs::compile(name);
        let bytes = std::fs::read(&object)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", object.display()));
        // FNV-1a. Builds share no tables in the kernel, because their layouts may differ.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        println!("cargo::rustc-env={variable}={hash:016x}");
    }
}
