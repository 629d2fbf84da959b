//! The rpm, by rpm's own tools, in a root of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Scratch, need_root, program, repository, which};

use super::{release, run, script};

/// A folder with a shell, a package database and what is installed.
struct Root(Scratch);

impl Root {
    fn new() -> Self {
        let root = Self(Scratch::new());
        fs::create_dir(root.at("bin")).expect("it is our folder");
        testing::copy_program(which("busybox"), root.at("bin/busybox")).expect("there is room");
        symlink("busybox", root.at("bin/sh")).expect("it is our folder");
        root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Runs rpm. The C library that the program needs is no package here.
    fn rpm(&self, words: &[&str]) -> String {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(self.0.path());
        run(rpm.args(["--dbpath", "/packages"]).args(words)).stdout
    }
}

/// Packs the program as a version and returns the package.
fn pack(folder: &Path, version: &str) -> String {
    let folder = folder.join(version);
    let mut rpm = script("rpm.sh");
    run(rpm.arg(program()).arg(&folder).env("VERSION", version));
    let entry = fs::read_dir(&folder).expect("it was made").next();
    let path = entry.expect("it was packed").expect("a file").path();
    path.display().to_string()
}

#[test]
fn rpm_installs_verifies_upgrades_and_removes_the_package() {
    need_root!();
    let scratch = Scratch::new();
    // The tilde stands for the hyphen, which no version of an rpm has.
    let old = pack(scratch.path(), "1.2.3-rc1");
    let new = release::packed_as(".rpm").display().to_string();
    let root = Root::new();
    let requires = root.rpm(&["-q", "--requires", "-p", &old]);
    let headers = run(Command::new("objdump").arg("-p").arg(program())).stdout;
    let needs_libc = headers.contains("libc.so.6");
    assert_eq!(requires.contains("libc.so.6("), needs_libc, "{requires}");

    is_complete_once_installed(&root, &old);
    fs::write(root.at("etc/tollgate/config.yaml"), "priority: notice\n").expect("it is ours");
    fs::write(root.at("etc/tollgate/rules.d/own.yaml"), "[]\n").expect("it is ours");
    root.rpm(&["--upgrade", "--nodeps", &new]);
    assert_eq!(root.rpm(&["-q", "--qf", "%{VERSION}", "tollgate"]), "1.2.3");
    let kept = || fs::read_to_string(root.at("etc/tollgate/config.yaml"));
    assert_eq!(kept().expect("it is kept"), "priority: notice\n");

    // rpm has no purge: what was written since stays, and install.md says how it is removed.
    let spool = root.at("var/lib/tollgate/spool/0");
    fs::create_dir_all(&spool).expect("it is our folder");
    fs::write(spool.join("00000000000000000001.lines"), "").expect("it is ours");
    root.rpm(&["--erase", "tollgate"]);
    let mut find = Command::new("find");
    find.args(["etc", "usr", "var", "!", "-type", "d", "-printf", "/%p\n"]);
    let left = run(find.current_dir(root.0.path()));
    let mut left: Vec<_> = left.stdout.lines().collect();
    left.sort_unstable();
    assert_eq!(
        left,
        [
            "/etc/tollgate/config.yaml.rpmsave",
            "/etc/tollgate/rules.d/own.yaml",
            "/var/lib/tollgate/spool/0/00000000000000000001.lines"
        ]
    );
    for folder in ["/etc/tollgate", "/var/lib/tollgate"] {
        let documented = fs::read_to_string(repository().join("docs/howto/install.md"));
        let documented = documented.expect("it is in the repository");
        let line = documented.lines().find(|line| line.contains("rpm --erase"));
        let line = line.expect("it says how an rpm is removed");
        assert!(line.split_whitespace().any(|word| word == folder), "{line}");
    }
}

/// Installs a package, and checks what is there then.
fn is_complete_once_installed(root: &Root, package: &str) {
    root.rpm(&["--install", "--nodeps", package]);
    assert_eq!(
        root.rpm(&["-q", "tollgate"]),
        format!("tollgate-1.2.3~rc1-1.{}\n", std::env::consts::ARCH)
    );
    // Sizes, digests, modes and owners.
    assert_eq!(root.rpm(&["--verify", "--nodeps", "tollgate"]), "");
    let version = run(Command::new(root.at("usr/bin/tollgate")).arg("version"));
    assert!(version.stdout.starts_with("tollgate "), "{version:?}");
    let settings = root.rpm(&["-q", "--configfiles", "tollgate"]);
    assert_eq!(
        settings,
        "/etc/logrotate.d/tollgate\n/etc/tollgate/config.yaml\n"
    );
    for file in [
        "usr/bin/tollgate-plugin-host",
        "usr/lib/systemd/system/tollgate-watch.service",
        "usr/share/bash-completion/completions/tollgate",
        "usr/share/man/man1/tollgate-run.1.gz",
        "usr/share/zsh/site-functions/_tollgate",
    ] {
        assert!(root.at(file).is_file(), "{file}");
    }
}
