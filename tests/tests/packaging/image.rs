//! The OCI image: a valid layout, and what podman and containerd make of it without a network.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::{Finished, Limited, Scratch, installed, need_root, program, repository, skip};
use serde_json::Value;

use super::release::{commit, commit_of, packed_as};
use super::{LIMIT, run, script};

/// Makes the image of programs and returns the archive.
fn make(folder: &Path, programs: &[&Path]) -> PathBuf {
    let mut image = script("image.sh");
    image.env("COMMIT", commit_of(programs[0]));
    image.arg(programs[0]).arg(folder).args(&programs[1..]);
    run(image.env("VERSION", "1.2.3"));
    folder.join("tollgate-1.2.3-image.tar")
}

/// A layout on disk.
struct Layout(PathBuf);

impl Layout {
    fn read(&self, path: &str) -> Value {
        let text = fs::read_to_string(self.0.join(path)).expect(path);
        serde_json::from_str(&text).expect(path)
    }

    /// Returns the path of what a descriptor names, after a comparison with its size and digest.
    fn blob(&self, descriptor: &Value) -> String {
        let digest = descriptor["digest"].as_str().expect("a digest");
        let digest = digest.strip_prefix("sha256:").expect("a SHA-256");
        let path = format!("blobs/sha256/{digest}");
        let size = fs::metadata(self.0.join(&path)).expect("it is there").len();
        assert_eq!(descriptor["size"], size, "{descriptor}");
        assert_eq!(sha256(&self.0.join(&path)), digest);
        path
    }
}

fn sha256(path: &Path) -> String {
    let sums = run(Command::new("sha256sum").arg(path)).stdout;
    let digest = sums.split(' ').next().expect("a digest");
    digest.to_owned()
}

/// Architecture of this machine and another one, as images call them, and the number by which ELF calls the other.
const MACHINES: (&str, &str, u8) = if cfg!(target_arch = "x86_64") {
    ("amd64", "arm64", 0xb7)
} else {
    ("arm64", "amd64", 0x3e)
};

/// The program of images: the static one, if it is named, as in releases.
fn native() -> PathBuf {
    e2e::static_program().unwrap_or_else(program)
}

/// The program for the other architecture: the one that is named, else the one that `make arm64` has built from the same
/// commit, else a file that looks like one.
fn other(scratch: &Scratch, commit: &str) -> PathBuf {
    if let Some(named) = std::env::var_os("TOLLGATE_ARM64_BIN") {
        return PathBuf::from(named);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from);
    let built = target.join("aarch64-unknown-linux-gnu/debug/tollgate");
    let is_of = |path: &Path| {
        let mut grep = Command::new("grep");
        let found = grep.args(["-qaF", commit]).arg(path).status();
        found.is_ok_and(|status| status.success())
    };
    if cfg!(target_arch = "x86_64") && built.is_file() && (commit == "unknown" || is_of(&built)) {
        println!("image of {}", built.display());
        return built;
    }
    of_another_machine(scratch, commit)
}

/// A file that looks like a program for another machine, of the same commit: its image is made, not run.
fn of_another_machine(scratch: &Scratch, commit: &str) -> PathBuf {
    let path = scratch.file("arm64", 0o755, fs::read("/bin/true").expect("it is there"));
    let mut file = fs::File::options()
        .write(true)
        .open(&path)
        .expect("it is ours");
    file.seek(std::io::SeekFrom::Start(18))
        .expect("it is a file");
    file.write_all(&[MACHINES.2]).expect("it is ours");
    file.seek(std::io::SeekFrom::End(0)).expect("it is a file");
    file.write_all(commit.as_bytes()).expect("it is ours");
    path
}

#[test]
fn the_image_is_a_valid_layout_with_an_image_for_each_architecture() {
    let scratch = Scratch::new();
    let native = native();
    let commit = commit_of(&native);
    let other = other(&scratch, &commit);
    let archive = make(&scratch.path().join("made"), &[&native, &other]);
    let layout = Layout(scratch.path().join("layout"));
    fs::create_dir(&layout.0).expect("it is our folder");
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(&layout.0));
    assert_eq!(layout.read("oci-layout")["imageLayoutVersion"], "1.0.0");
    let top = layout.read("index.json");
    let [named] = &top["manifests"].as_array().expect("a list")[..] else {
        panic!("one entry has the name: {top}")
    };
    let annotations = &named["annotations"];
    assert_eq!(
        annotations["org.opencontainers.image.ref.name"],
        "localhost/tollgate:1.2.3"
    );
    let index = layout.read(&layout.blob(named));
    assert_eq!(index["mediaType"], named["mediaType"]);
    let manifests = index["manifests"].as_array().expect("a list");
    let machines: Vec<_> = manifests
        .iter()
        .map(|one| one["platform"]["architecture"].as_str())
        .collect();
    assert_eq!(machines, [Some(MACHINES.0), Some(MACHINES.1)]);
    for descriptor in manifests {
        check_image(&layout, descriptor, &commit);
    }
}

/// Checks what the index says of one image.
fn check_image(layout: &Layout, descriptor: &Value, commit: &str) {
    let manifest = layout.read(&layout.blob(descriptor));
    assert_eq!(manifest["schemaVersion"], 2);
    assert_eq!(manifest["mediaType"], descriptor["mediaType"]);
    let config = layout.read(&layout.blob(&manifest["config"]));
    assert_eq!(
        config["architecture"],
        descriptor["platform"]["architecture"]
    );
    assert_eq!(config["os"], "linux");
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/tollgate"])
    );
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    let revision = labels.get("org.opencontainers.image.revision");
    let known = Some(commit).filter(|commit| *commit != "unknown");
    assert_eq!(revision.map(Value::as_str), known.map(Some));
    assert_eq!(*labels, manifest["annotations"]);

    let [layer] = &manifest["layers"].as_array().expect("a list")[..] else {
        panic!("one layer expected: {manifest}")
    };
    let packed = layout.0.join(layout.blob(layer));
    let plain = layout.0.join("layer.tar");
    let file = fs::File::create(&plain).expect("it is ours");
    let unpacked = Command::new("gzip")
        .arg("-dc")
        .arg(packed)
        .stdout(file)
        .status();
    assert!(unpacked.expect("gzip is installed").success());
    let difference = format!("sha256:{}", sha256(&plain));
    assert_eq!(
        config["rootfs"]["diff_ids"],
        serde_json::json!([difference])
    );
    let is_native = config["architecture"] == MACHINES.0;
    check_files(&plain, is_native);
    if is_native && e2e::static_program().is_some() {
        needs_no_library(&layout.0, &plain);
    }
}

/// Checks that the program of an unpacked layer has no interpreter, and starts.
fn needs_no_library(folder: &Path, layer: &Path) {
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(layer).arg("-C").arg(folder);
    run(tar.arg("./tollgate"));
    let unpacked = folder.join("tollgate");
    let headers = run(Command::new("readelf")
        .args(["--wide", "-l"])
        .arg(&unpacked));
    assert!(!headers.stdout.contains("INTERP"), "{headers:?}");
    let version = run(Command::new(&unpacked).args(["version", "--json"])).stdout;
    assert!(version.contains(r#""static":true"#), "{version}");
}

/// Checks owners and modes of the files of an unpacked layer. Plugins are loaded where the program is native.
fn check_files(layer: &Path, is_native: bool) {
    let mut tar = Command::new("tar");
    tar.arg("-tvf").arg(layer).arg("--numeric-owner");
    let listing = run(&mut tar).stdout;
    let entries = listing.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[5], format!("{} {}", words[0], words[1]))
    });
    let entries: BTreeMap<_, _> = entries.collect();
    for name in ["./tollgate-plugin-host", "./usr/bin/tollgate-operator"] {
        let expected = is_native.then_some("-rwxr-xr-x 0/0");
        let found = entries.get(name).map(String::as_str);
        assert_eq!(found, expected, "{name}: {listing}");
    }
    assert!(
        listing.contains(" ./usr/bin/tollgate -> ../../tollgate\n"),
        "{listing}"
    );
    for (path, mode) in [
        ("./tollgate", "-rwxr-xr-x 0/0"),
        ("./etc/ssl/certs/", "drwxr-xr-x 0/0"),
        ("./usr/share/doc/tollgate/LICENSE", "-rw-r--r-- 0/0"),
        (
            "./usr/share/doc/tollgate/THIRD-PARTY-NOTICES",
            "-rw-r--r-- 0/0",
        ),
    ] {
        assert_eq!(
            entries.get(path).map(String::as_str),
            Some(mode),
            "{path}: {listing}"
        );
    }
}

#[test]
fn an_image_of_what_is_no_program_or_of_two_for_one_architecture_is_refused() {
    let scratch = Scratch::new();
    let text = scratch.file("text", 0o755, "#!/bin/sh\n");
    let refused = |programs: &[&Path], commit: &str| {
        let mut image = script("image.sh");
        image
            .env("COMMIT", commit)
            .arg(programs[0])
            .arg(scratch.path())
            .args(&programs[1..]);
        let refused = Limited::start(image.stdin(Stdio::null()), LIMIT).finish(b"");
        assert_eq!(refused.code(), 1, "{refused:?}");
        refused.stderr
    };
    let message = refused(&[&text], "unknown");
    assert!(message.ends_with(": it is no program for x86-64 or arm64\nhelp: name the program that make static builds\n"), "{message}");
    let own = Path::new("/bin/true");
    // Nothing that loads plugins is beside it.
    let message = refused(&[own], "unknown");
    let expected = "packaging/image.sh: cannot find /bin/tollgate-plugin-host\nhelp: run make build, or set PLUGIN_HOST ";
    assert!(message.starts_with(expected), "{message}");
    let copy = |name: &str| {
        let text = fs::read("/bin/true").expect("it is there");
        scratch.file(name, 0o755, text)
    };
    let _plugin_host = copy("tollgate-plugin-host");
    let message = refused(&[&copy("true")], "unknown");
    assert!(
        message.ends_with("/tollgate-operator\nhelp: run make build, or set OPERATOR to the operator for Kubernetes\n"),
        "{message}"
    );
    let (own, _operator) = (&copy("true"), copy("tollgate-operator"));
    let message = refused(&[own, own], "unknown");
    assert!(
        message.starts_with(&format!(
            "packaging/image.sh: cannot make an image of {}: another program is for ",
            own.display()
        )),
        "{message}"
    );
    let other = of_another_machine(&scratch, commit());
    let message = refused(&[&other], "0123456789ab");
    assert!(
        message.ends_with(": its file does not have the commit 0123456789ab\nhelp: build it from the same commit as the others\n"),
        "{message}"
    );
    assert!(!scratch.path().join("tollgate-0.1.0-image.tar").exists());
}

/// Runs a script of a shell with folders of its own for the engines; `$1` is the archive.
fn with_engines(archive: &Path, words: &str) -> Finished {
    let scratch = Scratch::new();
    let script = format!(
        "set -eu
        for folder in /var/lib/containerd /run/containerd /var/lib/containers /run/containers /run/libpod /run/runc; do
            test ! -d $folder || mount -t tmpfs none $folder
        done
        podman() {{ command podman --cgroup-manager cgroupfs --runtime runc \"$@\"; }}
        runs=\"run --rm --network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000\"
        {words}"
    );
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    command
        .arg(archive)
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    run(&mut command)
}

#[test]
fn podman_and_containerd_import_the_image_and_run_it_without_a_network() {
    need_root!();
    let tools = ["containerd", "ctr", "podman", "runc"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr, podman and runc", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    // A static program is in no other packing of these tests.
    let scratch = Scratch::new();
    let archive = match e2e::static_program() {
        Some(named) => make(
            &scratch.path().join("made"),
            &[&named, &other(&scratch, &commit_of(&named))],
        ),
        None => packed_as("-image.tar"),
    };
    let finished = with_engines(
        &archive,
        "podman load --quiet --input \"$1\"
        podman $runs localhost/tollgate:1.2.3 version --json
        podman $runs localhost/tollgate:1.2.3 run --quiet -- /tollgate version --json
        podman $runs --entrypoint tollgate localhost/tollgate:1.2.3 version --json
        podman $runs --entrypoint tollgate-operator localhost/tollgate:1.2.3 manifests --image localhost/tollgate:1.2.3
        mkdir shared
        podman $runs --volume ./shared:/shared localhost/tollgate:1.2.3 copy /shared
        podman $runs --volume ./shared:/shared:ro --entrypoint /shared/tollgate localhost/tollgate:1.2.3 \\
            run --quiet -- /shared/tollgate version --json",
    );
    let version =
        |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|it| it["name"] == "tollgate");
    assert_eq!(
        finished.stdout.lines().filter(|line| version(line)).count(),
        4,
        "{finished:?}"
    );
    // What Kubernetes starts is found in PATH, as here.
    for name in ["tollgate", "tollgate-operator"] {
        let command = format!("\n        - {name}\n");
        assert!(finished.stdout.contains(&command), "{name}: {finished:?}");
    }
    let finished = with_engines(
        &archive,
        "containerd 2>containerd.log & daemon=$!
        for try in $(seq 300); do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
        ctr image import \"$1\" >&2
        status=0
        ctr run --rm localhost/tollgate:1.2.3 one /tollgate version --json || status=$?
        kill $daemon; wait $daemon || :
        exit $status",
    );
    assert_eq!(
        finished.stdout.lines().filter(|line| version(line)).count(),
        1,
        "{finished:?}"
    );
}
