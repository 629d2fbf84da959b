//! What upgrades and removals do to the unit, on a machine whose systemctl is a script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::{Limited, Scratch, need_root, repository, which};

use crate::{Archive, LIMIT, run};

/// A systemctl that notes its arguments in the file `calls` beside it. Files beside it say what it answers: a unit is
/// active if there is `active-UNIT`, and does not start if there is `broken-UNIT`.
const SYSTEMCTL: &str = "#!/bin/sh
cd \"$(dirname \"$0\")\"
echo \"$*\" >>calls
[ \"$1\" != --quiet ] || shift
case $1 in
is-active) [ -e \"active-$2\" ] ;;
start | restart) rm -f \"active-$2\"; [ ! -e \"broken-$2\" ] && : >\"active-$2\" ;;
stop) shift; for unit; do rm -f \"active-$unit\"; done ;;
disable) rm -f active-tollgate-watch.service active-tollgate-serve.service ;;
try-restart) [ ! -e \"broken-$2\" ] ;;
cat) echo '[Unit]' ;;
daemon-reload) ;;
*) exit 1 ;;
esac
";
const UNIT: &str = "tollgate-watch.service";
const BRIDGE: &str = "tollgate-watch-bridge.service";
const COLLECTOR: &str = "tollgate-serve.service";

/// The hand-over of programs in a folder, on a machine whose systemd is in the folder `systemd` of the scratch folder.
pub(crate) fn hand_over(scratch: &Scratch, bin: &Path) -> PathBuf {
    let text = repository().join("packaging/hand-over.sh");
    let text = fs::read_to_string(text).expect("it is in the repository");
    let systemd = scratch.path().join("systemd");
    let text = text
        .replace("@BINDIR@", &bin.display().to_string())
        .replace("/run/systemd/system", &systemd.display().to_string());
    scratch.file("hand-over", 0o755, text)
}

/// The units that are active after an upgrade, its exit status, and what it said. `before` are files beside systemctl.
fn upgraded(before: &[&str], check: &str) -> (Vec<String>, i32, String) {
    let scratch = Scratch::new();
    let bin = scratch.path().join("bin");
    let systemd = scratch.path().join("systemd");
    fs::create_dir(&bin).expect("it is our folder");
    fs::create_dir(&systemd).expect("it is our folder");
    scratch.file("bin/systemctl", 0o755, SYSTEMCTL);
    scratch.file("bin/tollgate", 0o755, format!("#!/bin/sh\n{check}\n"));
    for file in before {
        scratch.file(&format!("bin/{file}"), 0o644, "");
    }
    let mut command = Command::new(hand_over(&scratch, &bin));
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let finished =
        Limited::start(command.env("PATH", path).stdin(Stdio::null()), LIMIT).finish(b"");
    let is_active = |unit: &&str| bin.join(format!("active-{unit}")).exists();
    let active = [UNIT, BRIDGE].iter().filter(|unit| is_active(unit));
    let active: Vec<String> = active.map(|unit| (*unit).to_owned()).collect();
    let calls = fs::read_to_string(bin.join("calls")).expect("systemd was asked");
    // Before any unit restarts: the collector's file may be new, too.
    let reloads = calls.lines().take_while(|call| *call == "daemon-reload");
    assert_eq!(reloads.count(), 1, "{calls}");
    let has_bridge = active.contains(&BRIDGE.to_owned());
    if !calls.contains("start tollgate-watch-bridge.service") || !has_bridge {
        assert!(!systemd.join(BRIDGE).exists(), "{calls}");
    }
    (active, finished.code(), finished.stderr)
}

#[test]
fn an_upgrade_ends_the_old_watch_only_if_the_new_program_works() {
    let [active, broken] = ["active", "broken"].map(|state| move |unit| format!("{state}-{unit}"));
    let good = "exit 0";
    let after = |before: &[String], check| {
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        upgraded(&before, check)
    };
    let (units, code, text) = after(&[active(UNIT)], good);
    assert_eq!((units, code, text.as_str()), (vec![UNIT.to_owned()], 0, ""));
    let (units, code, _) = after(&[], good);
    assert_eq!((units, code), (vec![], 0), "nobody watches the host");

    // A collector that does not start again keeps no watch from its upgrade.
    let (units, code, text) = after(&[active(UNIT), broken(COLLECTOR)], good);
    assert_eq!((units, code), (vec![UNIT.to_owned()], 0), "{text}");
    let message =
        "tollgate: cannot restart tollgate-serve.service: see systemctl status tollgate-serve\n";
    assert_eq!(text, message);

    let (units, code, text) = after(&[active(UNIT)], "[ \"$*\" != 'config check' ]");
    assert_eq!((units, code), (vec![UNIT.to_owned()], 1), "{text}");
    assert!(
        text.contains("the new program refuses the configuration; the old one goes on"),
        "{text}"
    );
    let (units, code, text) = after(&[active(UNIT), broken(BRIDGE)], good);
    assert_eq!((units, code), (vec![UNIT.to_owned()], 1), "{text}");
    assert!(
        text.contains("the new program does not start; the old one goes on"),
        "{text}"
    );

    let (units, code, text) = after(&[active(UNIT), broken(UNIT)], good);
    assert_eq!((units, code), (vec![BRIDGE.to_owned()], 1), "{text}");
    assert!(text.contains("watches the host in its place"), "{text}");
    // The next upgrade mends that.
    let (units, code, text) = after(&[active(BRIDGE)], good);
    assert_eq!((units, code), (vec![UNIT.to_owned()], 0), "{text}");
}

#[test]
fn an_uninstall_ends_watches_and_collector_and_tells_systemd() {
    need_root!();
    let archive = Archive::new();
    let bin = archive.scratch.path().join("fake");
    fs::create_dir(&bin).expect("it is ours");
    archive.scratch.file("fake/systemctl", 0o755, SYSTEMCTL);
    let users = "#!/bin/sh\ntest -f \"$1\" && echo \"users $*\" >>\"${0%/*}/calls\"\n";
    archive.scratch.file("fake/systemd-sysusers", 0o755, users);
    for unit in [UNIT, BRIDGE, COLLECTOR] {
        fs::write(bin.join(format!("active-{unit}")), "").expect("it is ours");
    }
    // The script changes the machine: it gets a /etc and a /run of its own.
    let script = "set -e
        for folder in /etc /run; do mount -t tmpfs tmpfs $folder; done
        mkdir -p /run/systemd/system
        : >/run/systemd/system/tollgate-watch-bridge.service
        packaging/install.sh install tollgate
        packaging/install.sh uninstall tollgate
        ls -A /etc /run/systemd/system";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command
        .current_dir(archive.scratch.path())
        .env_remove("DESTDIR")
        .env_remove("ZSHDIR");
    command.env("PREFIX", &archive.root).env(
        "PATH",
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()),
    );
    let finished = run(&mut command);
    let left = "/etc:\nlogrotate.d\n\n/run/systemd/system:\n";
    assert_eq!(finished.stdout, left, "{finished:?}");
    let calls = fs::read_to_string(bin.join("calls")).expect("systemd was told");
    assert!(calls.ends_with("daemon-reload\n"), "{calls}");
    let users = format!(
        "users {}/lib/sysusers.d/tollgate.conf\n",
        archive.root.display()
    );
    assert!(calls.starts_with(&users), "{calls}");
    for unit in [UNIT, BRIDGE, COLLECTOR] {
        assert!(
            !bin.join(format!("active-{unit}")).exists(),
            "{unit}: {calls}"
        );
    }
}

/// A package may be installed where systemd does not run: while an image is made that starts with it.
#[test]
fn packages_make_the_user_of_the_collector_whether_or_not_systemd_runs() {
    let read = |path: &str| {
        fs::read_to_string(repository().join("packaging").join(path)).expect("it is there")
    };
    let spec = read("rpm/tollgate.spec");
    let after_install = spec
        .split_once("\n%post\n")
        .and_then(|(_, rest)| rest.split_once("\n%preun\n"));
    let (after_install, _) = after_install.expect("it has the script");
    for (script, word) in [
        (read("debian/postinst"), "configure"),
        (format!("set -e\n{after_install}\n"), "1"),
    ] {
        for runs in [false, true] {
            for has_sysusers in [false, true] {
                let calls = calls_of(&script, word, (runs, has_sysusers));
                let mut expected = String::new();
                if has_sysusers {
                    expected += "users tollgate.conf\n";
                }
                if runs {
                    expected += "daemon-reload\n";
                }
                assert_eq!(calls, expected, "{script}");
            }
        }
    }
}

/// What a package's script calls at a first installation, by whether systemd runs and whether it can make users.
fn calls_of(script: &str, word: &str, (runs, has_sysusers): (bool, bool)) -> String {
    let scratch = Scratch::new();
    let (bin, systemd) = (scratch.path().join("bin"), scratch.path().join("systemd"));
    fs::create_dir(&bin).expect("it is our folder");
    if runs {
        fs::create_dir(&systemd).expect("it is our folder");
    }
    scratch.file("bin/systemctl", 0o755, SYSTEMCTL);
    if has_sysusers {
        let users = "#!/bin/sh\necho \"users $*\" >>\"${0%/*}/calls\"\n";
        scratch.file("bin/systemd-sysusers", 0o755, users);
    }
    // The tools that the fakes need, and no systemd-sysusers of this machine.
    std::os::unix::fs::symlink(which("dirname"), bin.join("dirname")).expect("it is our folder");
    fs::write(bin.join("calls"), "").expect("it is our folder");
    let script = script.replace("/run/systemd/system", &systemd.display().to_string());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, "sh", word]).env("PATH", &bin);
    run(&mut command);
    fs::read_to_string(bin.join("calls")).expect("it is there")
}
