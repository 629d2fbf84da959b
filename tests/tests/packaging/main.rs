//! What `make install`, `make deb`, `make rpm`, `make image` and `make dist` make: complete, usable, reproducible, and removed again without a rest.

mod image;
mod origin;
mod release;
mod rpm;
mod systemd;
mod units;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{
    Finished, Limited, Scratch, debian_root, need_root, need_slow, program, repository, until,
};

const LIMIT: Duration = Duration::from_secs(120);
/// Release of Debian and the one after it.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// Packing for release takes half a minute.
const FAST: &str = "fast";

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Finished {
    let finished = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{command:?}: {finished:?}");
    finished
}

/// A command of the folder packaging.
fn script(name: &str) -> Command {
    let mut command = Command::new(repository().join("packaging").join(name));
    for variable in ["PREFIX", "DESTDIR", "ZSHDIR", "SOURCE_DATE_EPOCH"] {
        command.env_remove(variable);
    }
    command.env("COMPRESSION", FAST);
    command
        .env("XTASK", release::xtask())
        .env("NOTICES", release::notices())
        .env("COMMIT", release::commit());
    command
}

/// Packs the program as a version and returns the package.
fn pack(folder: &Path, program: &Path, version: &str) -> PathBuf {
    let mut deb = script("deb.sh");
    run(deb.arg(program).arg(folder).env("VERSION", version));
    let debs = fs::read_dir(folder).expect("it was made");
    let debs = debs.map(|entry| entry.expect("a file").path());
    let mut debs = debs.filter(|path| path.display().to_string().contains(&format!("_{version}_")));
    debs.next().expect("it was packed")
}

fn dpkg_deb(option: &str, package: &Path) -> String {
    run(Command::new("dpkg-deb").arg(option).arg(package)).stdout
}

/// Files and folders of a package, with mode and owner.
fn contents(package: &Path) -> BTreeMap<String, String> {
    let listing = dpkg_deb("--contents", package);
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (mode, owner, path) = (words[0], words[1], words[5]);
        (path.to_owned(), format!("{mode} {owner}"))
    };
    listing.lines().map(entry).collect()
}

#[test]
fn a_package_has_the_right_files_and_its_program_runs() {
    let contents = contents(&release::packed_as(".deb"));
    for file in [
        "./etc/tollgate/config.yaml",
        "./etc/tollgate/rules.d/",
        "./usr/bin/tollgate",
        "./usr/bin/tollgate-plugin-host",
        "./usr/lib/systemd/system/tollgate-serve.service",
        "./usr/lib/systemd/system/tollgate-watch.service",
        "./usr/lib/sysusers.d/tollgate.conf",
        "./usr/share/bash-completion/completions/tollgate",
        "./usr/share/doc/tollgate/CHANGELOG.md.gz",
        "./usr/share/doc/tollgate/THIRD-PARTY-NOTICES.gz",
        "./usr/share/doc/tollgate/changelog.gz",
        "./usr/share/doc/tollgate/copyright",
        "./usr/share/fish/vendor_completions.d/tollgate.fish",
        "./usr/share/man/man1/tollgate.1.gz",
        "./usr/share/man/man1/tollgate-rules-check.1.gz",
        "./usr/share/zsh/vendor-completions/_tollgate",
    ] {
        assert!(contents.contains_key(file), "{file}: {contents:#?}");
    }
    let programs = [
        "./usr/bin/tollgate",
        "./usr/bin/tollgate-plugin-host",
        "./usr/lib/tollgate/hand-over",
    ];
    for (path, mode) in &contents {
        let is_open = path.ends_with('/') || programs.contains(&path.as_str());
        let expected = if is_open {
            "rwxr-xr-x root/root"
        } else {
            "rw-r--r-- root/root"
        };
        assert_eq!(&mode[1..], expected, "{path}");
    }
}

#[test]
fn an_extracted_package_is_intact_and_its_program_runs() {
    let scratch = Scratch::new();
    let package = release::packed_as(".deb");
    let root = scratch.path().join("root");
    run(Command::new("dpkg-deb")
        .arg("--raw-extract")
        .arg(&package)
        .arg(&root));
    run(Command::new("md5sum")
        .args(["--check", "--quiet", "DEBIAN/md5sums"])
        .current_dir(&root));
    let conffiles = fs::read_to_string(root.join("DEBIAN/conffiles")).expect("it is packed");
    assert_eq!(
        conffiles,
        "/etc/logrotate.d/tollgate\n/etc/tollgate/config.yaml\n"
    );
    let control = fs::read_to_string(root.join("DEBIAN/control")).expect("it is packed");
    assert!(control.contains("\nVersion: 1.2.3\n"), "{control}");
    assert!(
        !control.contains('@') || control.matches('@').count() == 1,
        "{control}"
    );

    let installed = root.join("usr/bin/tollgate");
    let version = run(Command::new(&installed).arg("version"));
    assert!(version.stdout.starts_with("tollgate "), "{version:?}");
    run(Command::new(&installed).args(["run", "--quiet", "--", "true"]));
    let unit = root.join("usr/lib/systemd/system/tollgate-watch.service");
    let unit = fs::read_to_string(unit).expect("it is packed");
    assert!(
        unit.contains("\nExecStart=/usr/bin/tollgate watch\n"),
        "{unit}"
    );
    let completions = root.join("usr/share/bash-completion/completions/tollgate");
    let complete = run(Command::new("bash")
        .args(["--norc", "-c", ". \"$1\"; complete -p tollgate", "bash"])
        .arg(completions));
    assert!(complete.stdout.contains("_tollgate"), "{complete:?}");
    packed_again_it_is_equal(&package, &root);
}

/// Packs the files of a package at another time, in another folder and under another mask.
fn packed_again_it_is_equal(package: &Path, root: &Path) {
    let scratch = Scratch::new();
    let bin = root.join("usr/bin");
    let notices = release::packed().join("THIRD-PARTY-NOTICES");
    let mut deb = script("deb.sh");
    deb.env("NOTICES", notices).env("VERSION", "1.2.3");
    deb.env("SOURCE_DATE_EPOCH", release::PACKED_AT);
    let environment = deb
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut masked = Command::new("sh");
    masked.envs(environment).env_remove("PREFIX");
    masked.env_remove("DESTDIR").env_remove("ZSHDIR");
    masked.args(["-c", "umask 077; exec \"$@\"", "sh"]);
    masked.arg(deb.get_program());
    run(masked.arg(bin.join("tollgate")).arg(scratch.path()));
    let again = scratch
        .path()
        .join(package.file_name().expect("it is a file"));
    run(Command::new("cmp").arg(package).arg(again));
}

/// The program links libraries of packages that the package names, and no others.
#[test]
fn a_package_depends_on_the_libraries_of_its_program() {
    let scratch = Scratch::new();
    let package = release::packed_as(".deb");
    let depends = run(Command::new("dpkg-deb")
        .arg("--field")
        .arg(&package)
        .arg("Depends"))
    .stdout;
    let headers = run(Command::new("objdump").arg("-p").arg(program())).stdout;
    let needs = |library: &str| headers.contains(library);
    assert_eq!(
        depends.contains("libc6 (>= 2."),
        needs("libc.so.6"),
        "{depends}"
    );
    assert_eq!(
        depends.contains("libgcc-s1"),
        needs("libgcc_s.so.1"),
        "{depends}"
    );

    // Debian's git needs the library of regular expressions.
    let mut deb = script("deb.sh");
    deb.arg(e2e::which("git")).arg(scratch.path());
    let refused = Limited::start(&mut deb, LIMIT).finish(b"");
    assert_eq!(refused.code(), 1, "{refused:?}");
    let message =
        "packaging/deb.sh: cannot tell what the package depends on: no package is known for lib";
    assert!(refused.stderr.starts_with(message), "{refused:?}");
    let help = "\nhelp: add the library to packaging/deb.sh\n";
    assert!(refused.stderr.ends_with(help), "{refused:?}");
}

/// The unpacked archive of a release, and the root that it is installed into.
struct Archive {
    scratch: Scratch,
    root: PathBuf,
}

impl Archive {
    fn new() -> Self {
        let scratch = Scratch::new();
        let root = scratch.path().join("root");
        // The other archive has symbols.
        let archive = release::packed_as("-linux.tar.gz");
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(archive).arg("--strip-components=1");
        run(tar.arg("-C").arg(scratch.path()));
        Self { scratch, root }
    }

    /// Runs `install` or `uninstall` of the script in the archive.
    fn run(&self, verb: &str) -> Finished {
        let mut command = Command::new("packaging/install.sh");
        command
            .args([verb, "./tollgate"])
            .current_dir(self.scratch.path());
        command.env_remove("PREFIX").env_remove("ZSHDIR");
        run(command.env("DESTDIR", &self.root))
    }

    /// Returns what is in the root except folders.
    fn files(&self) -> Vec<String> {
        let mut find = Command::new("find");
        find.arg(&self.root);
        let found = run(find.args(["!", "-type", "d", "-printf", "/%P\n"]));
        let mut found: Vec<String> = found.stdout.lines().map(str::to_owned).collect();
        found.sort();
        found
    }
}

#[test]
fn an_archive_installs_itself_and_is_removed_without_a_rest() {
    let archive = Archive::new();
    archive.run("install");
    let installed = archive.files();
    for file in [
        "/usr/local/bin/tollgate",
        "/usr/local/bin/tollgate-plugin-host",
        "/usr/local/share/man/man1/tollgate-run.1.gz",
        "/etc/tollgate/config.yaml",
    ] {
        let is_there = installed.iter().any(|found| found == file);
        assert!(is_there, "{file}: {installed:?}");
    }
    let unit = "usr/local/lib/systemd/system/tollgate-watch.service";
    let unit = fs::read_to_string(archive.root.join(unit)).expect("it is installed");
    let start = "\nExecStart=/usr/local/bin/tollgate watch\n";
    assert!(unit.contains(start), "{unit}");
    archive.run("uninstall");
    let left = archive.files();
    assert!(left.is_empty(), "{left:?}");
    assert!(!archive.root.join("etc/tollgate").exists());

    // What the administrator has changed is neither overwritten nor removed.
    archive.run("install");
    let config = archive.root.join("etc/tollgate/config.yaml");
    fs::write(&config, "priority: notice\n").expect("it is ours");
    archive.run("install");
    let kept = fs::read_to_string(&config).expect("it is there");
    assert_eq!(kept, "priority: notice\n");
    let removed = archive.run("uninstall");
    assert_eq!(archive.files(), ["/etc/tollgate/config.yaml"]);
    let message = format!(
        "kept your files in {}/etc/tollgate\n",
        archive.root.display()
    );
    assert_eq!(removed.stdout, message);
}

#[test]
fn an_uninstall_removes_settings_that_an_earlier_version_brought_and_nobody_changed() {
    let archive = Archive::new();
    archive.run("install");
    let template = archive.scratch.path().join("packaging/config.yaml");
    let newer = fs::read_to_string(&template).expect("it is packed") + "# newer\n";
    fs::write(&template, newer).expect("it is ours");
    let rules = archive.root.join("etc/tollgate/rules.d");
    let mode = || {
        fs::metadata(&rules)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o7777
    };
    fs::set_permissions(&rules, fs::Permissions::from_mode(0o700)).expect("it is ours");
    archive.run("install");
    assert_eq!(mode(), 0o700, "the administrator's mode stays");
    archive.run("uninstall");
    assert!(archive.files().is_empty(), "{:?}", archive.files());
    a_program_needs_no_slash_and_errors_say_what_is_wrong(&archive);
}

fn a_program_needs_no_slash_and_errors_say_what_is_wrong(archive: &Archive) {
    let run_with = |words: &[&str]| {
        let mut command = Command::new(archive.scratch.path().join("packaging/install.sh"));
        command.args(words).current_dir(archive.scratch.path());
        command.env_remove("PREFIX").env_remove("ZSHDIR");
        command.env("DESTDIR", &archive.root).stdin(Stdio::null());
        Limited::start(&mut command, LIMIT).finish(b"")
    };
    let installed = run_with(&["install", "tollgate"]);
    assert_eq!(installed.code(), 0, "{installed:?}");
    assert!(
        archive
            .files()
            .contains(&"/usr/local/bin/tollgate".to_owned())
    );
    for (words, message) in [
        (
            &["install", "missing"][..],
            "/missing\nhelp: run make build\n",
        ),
        (
            &["install"],
            "two arguments are needed\nhelp: packaging/install.sh install|uninstall PROGRAM\n",
        ),
        (
            &["remove", "x"],
            "unknown verb remove\nhelp: packaging/install.sh install|uninstall PROGRAM\n",
        ),
    ] {
        let refused = run_with(words);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert!(
            refused.stderr.starts_with("packaging/install.sh: "),
            "{refused:?}"
        );
        assert!(refused.stderr.ends_with(message), "{refused:?}");
    }
}

/// Its comments show keys with their values: without the comment signs it is a configuration, too.
#[test]
fn the_packaged_configuration_is_correct_as_it_is_and_with_all_its_examples() {
    let text = fs::read_to_string(repository().join("packaging/config.yaml"))
        .expect("it is in the repository");
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(example) if !example.starts_with(' ') || example.starts_with("  ") => {
            example.to_owned() + "\n"
        }
        _ => line.to_owned() + "\n",
    };
    let examples: String = text
        .lines()
        .filter(|line| !line.starts_with("#   "))
        .map(uncomment)
        .collect();
    assert!(
        examples.contains("\nhttp_output:\n  enabled: true\n"),
        "{examples}"
    );
    let scratch = Scratch::new();
    for (name, text) in [("as-is.yaml", &text), ("examples.yaml", &examples)] {
        let file = scratch.file(name, 0o644, text);
        let check = run(Command::new(program()).args(["config", "check"]).arg(file));
        assert_eq!(check.stderr, "", "{name}: {check:?}");
    }
}

#[test]
fn a_replaced_program_takes_over_watched_commands_without_an_unwatched_interval() {
    need_root!();
    let scratch = Scratch::new();
    let bin = scratch.path().join("bin");
    fs::create_dir(&bin).expect("it is our folder");
    let installed = scratch.program(&program(), "bin/tollgate");
    let hand_over = systemd::hand_over(&scratch, &bin);
    let (log, begun, ends) = (
        scratch.path().join("log"),
        scratch.path().join("begun"),
        scratch.path().join("ends"),
    );
    let command = format!(
        ": > {}; until [ -e {} ]; do sleep 0.05; done",
        begun.display(),
        ends.display()
    );
    let mut watch = Command::new(&installed);
    watch
        .args(["run", "--quiet", "--json", "--log"])
        .arg(&log)
        .args(["--", "sh", "-c", &command]);
    let watch = Limited::start(watch.stdin(Stdio::null()), LIMIT);
    until("the command begins", || begun.exists());
    let alerts = || fs::read_to_string(&log).unwrap_or_default();

    // The program that runs is the installed one: nothing is to do.
    run(&mut Command::new(&hand_over));
    let newer = scratch.program(&program(), "newer");
    testing::copy_program(&newer, scratch.path().join("copy")).expect("there is room");
    fs::rename(scratch.path().join("copy"), &installed).expect("both are in our folder");
    assert!(!alerts().contains("agent upgraded"), "{}", alerts());
    run(&mut Command::new(&hand_over));
    until("an agent takes over", || {
        alerts().contains("Tollgate internal: agent upgraded")
    });
    fs::write(&ends, "").expect("it is our folder");
    assert_eq!(watch.finish(b"").code(), 0);
    assert!(!alerts().contains("unwatched gap"), "{}", alerts());
}

/// The root of a release with the two packages, above which an overlay takes what is written.
fn in_debian(release: &str, old: &Path, new: &Path) -> Finished {
    let (scratch, keys) = (Scratch::new(), Scratch::new());
    e2e::certificates(keys.path());
    let root = debian_root(Some(release));
    let mount = "set -e
        mount -t tmpfs tmpfs \"$1\"
        mkdir \"$1/upper\" \"$1/work\" \"$1/root\"
        mount -t overlay -o \"lowerdir=$2,upperdir=$1/upper,workdir=$1/work\" overlay \"$1/root\"
        cp \"$3\" \"$1/root/old.deb\"
        cp \"$4\" \"$1/root/new.deb\"
        cp \"$5\" \"$1/root/tmp/package.sh\"
        cp \"$6\" \"$1/root/tmp/ca.pem\"
        mount -t proc proc \"$1/root/proc\"
        mount --rbind /dev \"$1/root/dev\"
        cd \"$1/root\"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/bash /tmp/package.sh";
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        mount,
        "sh",
    ]);
    command.arg(scratch.path()).arg(root).arg(old).arg(new);
    command.arg(repository().join("tests/fixtures/package.sh"));
    command.arg(keys.path().join("ca.pem"));
    Limited::start(command.stdin(Stdio::null()), Duration::from_secs(900)).finish(b"")
}

#[test]
fn debian_installs_upgrades_removes_and_purges_the_package() {
    need_root!();
    need_slow!();
    let scratch = Scratch::new();
    let program = e2e::static_program().unwrap_or_else(program);
    let old = pack(scratch.path(), &program, "0.0.1");
    let new = pack(scratch.path(), &program, "0.0.2");
    for release in RELEASES {
        let finished = in_debian(release, &old, &new);
        assert_eq!(finished.code(), 0, "{release}: {finished:?}");
        let lines: Vec<&str> = finished.stdout.lines().collect();
        assert_eq!(lines.first(), Some(&"0.0.1"), "{release}: {finished:?}");
        for line in [
            "/usr/share/man/man1/tollgate.1.gz",
            "/usr/share/man/man1/tollgate-run.1.gz",
            "tollgate",
            "the command ended",
            "0.0.2",
            "priority: notice",
            "/etc/tollgate/rules.d/own.yaml",
            "/var/lib/tollgate/spool/0/00000000000000000001.lines",
            "/var/lib/tollgate-serve/collector.db",
            "nothing is left",
        ] {
            assert!(lines.contains(&line), "{release} {line}: {finished:?}");
        }
    }
}
