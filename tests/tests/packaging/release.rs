//! `make dist` as a whole: which files it makes, that they are equal each time, what they say they are made of, and that they
//! can be signed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use e2e::{Limited, Scratch, installed, need_slow, program, repository, skip};
use serde_json::Value;

use super::{FAST, LIMIT, run, script};

/// A first build of the tool compiles some dependencies.
const BUILD: Duration = Duration::from_secs(500);

/// Packing everything takes half a minute, and minutes on a busy machine.
const PACKING: Duration = Duration::from_secs(280);

/// The time of all files in packages.
pub(super) const PACKED_AT: &str = "1700000000";

/// Returns the tool that makes notices and bills of materials, built from the sources at hand.
pub(super) fn xtask() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // As `make check` and the comparison of skips build it.
        build.args(["build", "--quiet", "--locked", "--package", "xtask"]);
        build
            .args(["--message-format", "json"])
            .current_dir(repository());
        let built = Limited::start(build.stdin(Stdio::null()), BUILD).finish(b"");
        assert_eq!(built.code(), 0, "{built:?}");
        let messages = built
            .stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut files =
            messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
        files.next().expect("cargo names what it has built")
    })
}

/// Returns a file with notices, for packings that are not about them.
pub(super) fn notices() -> PathBuf {
    repository().join("LICENSE")
}

/// Returns the commit that the program says it is built from, as packings want it named: tests pack whatever program they
/// are given, which may say none.
pub(super) fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| commit_of(&program()))
}

/// Returns the commit that a program says it is built from, or `unknown`.
pub(super) fn commit_of(program: &Path) -> String {
    let version = run(Command::new(program).args(["version", "--json"])).stdout;
    let version: Value = serde_json::from_str(&version).expect("it is JSON");
    version["commit"].as_str().unwrap_or("unknown").to_owned()
}

/// Returns the folder of the packing that tests share, as each takes half a minute. No test changes it.
pub(super) fn packed() -> &'static Path {
    static PACKED: OnceLock<PathBuf> = OnceLock::new();
    PACKED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        if folder.exists() {
            fs::remove_dir_all(&folder).expect("it is of an earlier run");
        }
        pack(&folder, "022");
        folder
    })
}

/// Returns the file of that packing whose name ends so.
pub(super) fn packed_as(end: &str) -> PathBuf {
    let names = names(packed());
    let name = names.iter().find(|name| name.ends_with(end));
    packed().join(name.expect("it was packed"))
}

/// Packs a release into a new folder that has files already.
fn pack(folder: &Path, umask: &str) {
    let temporary = Scratch::new();
    fs::create_dir(folder).expect("it is our folder");
    // Files of the user stay, those of an earlier packing do not.
    for name in [
        "notes.txt",
        "tollgate_0.0.1_amd64.deb",
        "tollgate_0.0.1_amd64.deb.cdx.json",
        "tollgate-0.0.1-1.x86_64.rpm",
        "tollgate-0.0.1-x86_64-linux.tar.gz",
        "tollgate-0.0.1-x86_64-linux-debug.tar.gz",
        "tollgate-0.0.1-image.tar",
    ] {
        fs::write(folder.join(name), "").expect("it is our folder");
    }
    dist(folder, temporary.path(), umask);
}

/// Packs a release into a folder, with the notices of the program.
fn dist(folder: &Path, temporary: &Path, umask: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    command
        .arg(repository().join("packaging/dist.sh"))
        .arg(program())
        .arg(folder);
    command
        .env("COMPRESSION", FAST)
        .env("TMPDIR", temporary)
        .env("XTASK", xtask())
        .env("COMMIT", commit());
    command
        .env_remove("NOTICES")
        .env("VERSION", "1.2.3")
        .env("SOURCE_DATE_EPOCH", PACKED_AT);
    let packed = Limited::start(command.stdin(Stdio::null()), PACKING).finish(b"");
    assert_eq!(packed.code(), 0, "{packed:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it was made");
    let names = entries.map(|entry| {
        entry
            .expect("a file")
            .file_name()
            .into_string()
            .expect("its name is text")
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The artefact with the built-in rules is one that this program can install.
fn check_rules(archive: &Path) {
    let scratch = Scratch::new();
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(scratch.path()));
    let words = [
        "artifact",
        "verify",
        "localhost/tollgate-rules:1.2.3",
        "--allow-unsigned",
        "--json",
        "--layout",
    ];
    let found = run(Command::new(program()).args(words).arg(scratch.path())).stdout;
    assert!(
        found.contains(r#""name":"tollgate-rules","version":"1.2.3""#),
        "{found}"
    );
}

/// The symbols tell where code of the program comes from.
fn check_symbols(archive: &Path) {
    let scratch = Scratch::new();
    let unpack = ["--strip-components=1", "-xf"];
    run(Command::new("tar")
        .args(unpack)
        .arg(archive)
        .current_dir(scratch.path()));
    for name in [
        "tollgate.debug",
        "tollgate-operator.debug",
        "tollgate-plugin-host.debug",
    ] {
        let sections = run(Command::new("readelf")
            .args(["--wide", "--sections", name])
            .current_dir(scratch.path()));
        assert!(
            sections.stdout.contains(".debug_line"),
            "{name}: {sections:?}"
        );
    }
}

fn checksums(folder: &Path) -> String {
    fs::read_to_string(folder.join("SHA256SUMS")).expect("it was made")
}

/// Usually a package is packed again alone: see `an_extracted_package_is_intact_and_its_program_runs`.
#[test]
fn two_packings_of_one_program_are_equal() {
    need_slow!();
    let scratch = Scratch::new();
    let first = packed();
    // File times have seconds.
    std::thread::sleep(Duration::from_millis(1100));
    let second = scratch.path().join("second");
    pack(&second, "077");
    assert_eq!(checksums(first), checksums(&second));
}

#[test]
fn a_release_has_its_files_with_checksums_and_bills_of_materials_and_can_be_signed() {
    let first = packed();
    let machine = std::env::consts::ARCH;
    let debian = run(Command::new("dpkg").arg("--print-architecture")).stdout;
    let symbols = format!("tollgate-1.2.3-{machine}-linux-debug.tar.gz");
    let artefacts = [
        format!("tollgate-1.2.3-1.{machine}.rpm"),
        "tollgate-1.2.3-image.tar".to_owned(),
        symbols.clone(),
        format!("tollgate-1.2.3-{machine}-linux.tar.gz"),
        format!("tollgate_1.2.3_{}.deb", debian.trim_end()),
    ];
    let mut expected = artefacts.to_vec();
    expected.extend(artefacts.iter().map(|name| format!("{name}.cdx.json")));
    let others = [
        "SHA256SUMS",
        "THIRD-PARTY-NOTICES",
        "notes.txt",
        "tollgate-1.2.3-rules.tar",
    ];
    expected.extend(others.map(str::to_owned));
    expected.sort();
    assert_eq!(names(first), expected);

    let sums = checksums(first);
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(first));
    // All but the checksums themselves and the user's file.
    assert_eq!(sums.lines().count(), expected.len() - 2, "{sums}");
    for name in &artefacts {
        check_bill(first, name, &sums);
    }
    check_rules(&first.join("tollgate-1.2.3-rules.tar"));
    check_symbols(&first.join(symbols));
    let notices = fs::read_to_string(first.join("THIRD-PARTY-NOTICES")).expect("it was made");
    for name in ["\nserde_json ", "\nlibelf ", "\nrust-std ", "\nlibbpf-sys "] {
        assert!(notices.contains(name), "{name}");
    }
    let scratch = Scratch::new();
    let copy = scratch.path().join("copy");
    run(Command::new("cp").arg("--archive").args([first, &copy]));
    a_release_is_signed_and_a_changed_one_is_not(&copy);
}

/// The bill of materials beside an artefact is about that artefact and this program.
fn check_bill(folder: &Path, name: &str, sums: &str) {
    let bill = fs::read_to_string(folder.join(format!("{name}.cdx.json"))).expect("it was made");
    let bill: Value = serde_json::from_str(&bill).expect("it is JSON");
    let artefact = &bill["metadata"]["component"];
    assert_eq!(artefact["name"], name);
    let digest = artefact["hashes"][0]["content"].as_str().expect("a digest");
    assert!(
        sums.contains(&format!("{digest}  {name}\n")),
        "{name}: {sums}"
    );
    let properties = artefact["properties"].as_array().expect("a list");
    let target = properties
        .iter()
        .find(|one| one["name"] == "tollgate:target");
    let target = target
        .and_then(|one| one["value"].as_str())
        .expect("it has a target");
    assert!(target.starts_with(std::env::consts::ARCH), "{target}");
    // glibc is a part of a static program alone.
    let parts = bill["components"].as_array().expect("a list");
    let has_libc = parts.iter().any(|part| part["name"] == "glibc");
    let is_static = properties
        .iter()
        .any(|one| one["name"] == "tollgate:static" && one["value"] == "true");
    assert_eq!(has_libc, is_static, "{name}");
    assert!(parts.len() > 100, "{name}: {}", parts.len());
}

fn a_release_is_signed_and_a_changed_one_is_not(folder: &Path) {
    if !installed("minisign") {
        skip!("needs minisign", || Ok(
            "minisign is in no folder of PATH".to_owned()
        ));
    }
    let keys = Scratch::new();
    let mut generate = Command::new("minisign");
    generate.args(["-G", "-W", "-s", "key", "-p", "key.pub"]);
    run(generate.current_dir(keys.path()));
    let (key, public) = (keys.path().join("key"), keys.path().join("key.pub"));
    let verify = || {
        let mut verify = Command::new("minisign");
        verify.arg("-Vp").arg(&public).args(["-m", "SHA256SUMS"]);
        Limited::start(verify.current_dir(folder).stdin(Stdio::null()), LIMIT).finish(b"")
    };
    let sign = || {
        let mut sign = script("sign.sh");
        sign.arg(&key).arg(folder).env("VERSION", "1.2.3");
        Limited::start(sign.stdin(Stdio::null()), LIMIT).finish(b"")
    };
    let signed = sign();
    assert_eq!(signed.code(), 0, "{signed:?}");
    let verified = verify();
    assert_eq!(verified.code(), 0, "{verified:?}");
    assert!(
        verified
            .stdout
            .contains("Trusted comment: tollgate 1.2.3\n"),
        "{verified:?}"
    );

    fs::write(folder.join("THIRD-PARTY-NOTICES"), "").expect("it is ours");
    let refused = sign();
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(
        refused
            .stderr
            .ends_with("are not those of SHA256SUMS\nhelp: run make dist\n"),
        "{refused:?}"
    );
    fs::write(folder.join("SHA256SUMS"), "").expect("it is ours");
    assert_ne!(verify().code(), 0, "the checksums are not the signed ones");
}
