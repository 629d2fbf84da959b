//! Root file systems of Debian, for tests that install packages.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use crate::repository;

/// Returns a minimal root of a Debian release (default: the one of this machine) from the archive that this machine
/// uses. It is made once, in the target folder, and has man.
///
/// # Panics
/// If debootstrap is not installed or fails.
pub fn debian_root(release: Option<&str>) -> PathBuf {
    let format = "$(SITE) $(RELEASE)";
    let archives = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]));
    let (site, own) = archives
        .lines()
        .next()
        .and_then(|line| line.split_once(' '))
        .expect("apt has a source");
    let release = release.unwrap_or(own);
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    let folder = target.join("tmp");
    let root = folder.join(format!("debian-{release}"));
    if root.join("complete").is_file() {
        return root;
    }
    let removed = fs::remove_dir_all(&root);
    if let Err(error) = removed {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", root.display());
    }
    fs::create_dir_all(&folder).expect("it is the target folder");
    output(
        Command::new("debootstrap")
            .args(["--variant=minbase", "--include=man-db", release])
            .arg(&root)
            .arg(site),
    );
    fs::write(root.join("complete"), "").expect("it is a folder of this test");
    root
}

fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{errors}",
        output.status
    );
    text
}
