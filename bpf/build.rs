//! Compiles a program of this folder with the system's clang; shared by the build scripts of the crates
//! that load them.

use std::path::PathBuf;
use std::process::Command;

/// Compiles `NAME.bpf.c` to `NAME.bpf.o` in the build's own folder.
pub(crate) fn compile(name: &str) -> PathBuf {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../bpf");
    let root = root
        .canonicalize()
        .unwrap_or_else(|error| panic!("cannot find {}: {error}", root.display()));
    let headers = variable("DEP_BPF_INCLUDE");
    let source = format!("{name}.bpf.c");
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    println!("cargo::rerun-if-changed={}", root.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let arch = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => panic!("bpf/kernel.h does not know the registers of {other}"),
    };
    let status = Command::new(&clang)
        // -g: the relocations that fit the program to the running kernel are part of BTF.
        .args([
            "-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
        ])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .arg(format!("-I{headers}"))
        // BTF names the file of each line: the same ones wherever it is built, so that two builds are equal.
        .current_dir(&root)
        .arg(format!("-ffile-prefix-map={}=bpf", root.display()))
        .arg(format!("-ffile-prefix-map={headers}=libbpf"))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => object,
        Ok(status) => panic!("cannot compile {source}: {clang}: {status}"),
        Err(error) => panic!(
            "cannot run {clang}: {error}; install clang (`./x build` does), or name it in CLANG"
        ),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}
