//! Compiles the programs of the engine `ebpf`.

#![allow(missing_docs, reason = "a build script has no users")]

#[path = "../../bpf/build.rs"]
mod programs;

fn main() {
    programs::compile("capture");
}
