//! The systemd units: valid, no more exposed than documents say, and started by systemd itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Scratch, installed, need_root, program, repository, skip};

use crate::run;

/// Each unit, the document that has its rating, and that rating by systemd 252: tenths, as `systemd-analyze security --threshold`.
const UNITS: [(&str, &str, u32); 2] = [
    ("tollgate-watch", "docs/howto/install.md", 72),
    ("tollgate-serve", "docs/howto/collector.md", 12),
];

/// Tenths by which other versions of systemd, which look at other settings, may rate a unit higher.
const OTHER_VERSIONS: u32 = 3;

/// Writes a unit that starts a program of a folder.
fn unit(scratch: &Scratch, name: &str, bin: &Path) -> PathBuf {
    let template = repository().join(format!("packaging/{name}.service"));
    let text = fs::read_to_string(template).expect("it is in the repository");
    let text = text.replace("@BINDIR@", &bin.display().to_string());
    scratch.file(&format!("{name}.service"), 0o644, text)
}

/// Returns whether systemd has nothing to say against a unit, and what it says: about unknown keys, missing programs, bad values.
fn verified(unit: &Path) -> (bool, String) {
    let mut verify = Command::new("systemd-analyze");
    // Without this it succeeds where it warns. What it says of other units of the machine does not count.
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    let verified = verify.arg(unit).output().expect("it is installed");
    let text = String::from_utf8_lossy(&verified.stderr).into_owned();
    (verified.status.success(), text)
}

/// Returns whether a unit is rated no higher than a threshold, and the rating with its reasons.
fn rated(unit: &Path, threshold: u32) -> (bool, String) {
    let mut rate = Command::new("systemd-analyze");
    rate.args(["security", "--offline=yes", "--no-pager"]);
    rate.arg(format!("--threshold={threshold}")).arg(unit);
    let rated = rate.output().expect("it is installed");
    let text = String::from_utf8(rated.stdout).expect("it prints UTF-8");
    (rated.status.success(), text)
}

#[test]
fn each_unit_is_valid_and_as_exposed_as_documented() {
    if !installed("systemd-analyze") {
        skip!("needs systemd-analyze", || Ok(
            "systemd-analyze is in no folder of PATH".to_owned()
        ));
    }
    let scratch = Scratch::new();
    let program = program();
    let bin = program.parent().expect("it is in a folder");
    for (name, document, rating) in UNITS {
        let unit = unit(&scratch, name, bin);
        let text = fs::read_to_string(&unit).expect("it was written");
        let (is_valid, warnings) = verified(&unit);
        assert!(is_valid, "{name}: {warnings}");
        let wrong = text.replace("[Service]\n", "[Service]\nNoSuchKey=1\n");
        let wrong = scratch.file(&format!("{name}-wrong.service"), 0o644, wrong);
        let (is_valid, warnings) = verified(&wrong);
        assert!(!is_valid && warnings.contains("NoSuchKey"), "{warnings}");

        let threshold = rating + OTHER_VERSIONS;
        let (is_below, rated) = rated(&unit, threshold);
        assert!(is_below, "{name}: {rated}");
        let open = |line: &&str| {
            !line.starts_with("CapabilityBoundingSet=") && !line.starts_with("Protect")
        };
        let open: Vec<&str> = text.lines().filter(open).collect();
        let open = scratch.file(&format!("{name}-open.service"), 0o644, open.join("\n"));
        let (is_below, rated) = self::rated(&open, threshold);
        assert!(!is_below, "{name} without restrictions: {rated}");
        let documented = fs::read_to_string(repository().join(document));
        let documented = documented.expect("it is in the repository");
        let figure = format!("{}.{}", rating / 10, rating % 10);
        assert!(
            documented.contains(&format!("rates it {figure} "))
                || documented.contains(&format!("rates the unit {figure} ")),
            "{document} does not say {figure}"
        );
    }
}

#[test]
fn systemd_starts_the_watch_which_alerts() {
    need_root!();
    let systemd = Path::new("/lib/systemd/systemd");
    if !systemd.exists() {
        skip!("needs systemd", || Ok(format!(
            "{} does not exist",
            systemd.display()
        )));
    }
    let (scratch, root) = (Scratch::new(), Scratch::new());
    let unit = unit(&scratch, "tollgate-watch", Path::new("/opt"));
    let mut start = Command::new("unshare");
    start.args(["--mount", "--propagation", "private"]);
    start.arg(repository().join("tests/fixtures/systemd_units.sh"));
    let finished = run(start.arg(root.path()).arg(unit).arg(program()));
    let text = &finished.stdout;
    for line in [
        "started\n",
        "\nActiveState=active\n",
        "\nDevicePolicy=closed\n",
        "A file with secrets was read (file=/etc/shadow ",
    ] {
        assert!(text.contains(line), "{line}: {finished:?}");
    }
    assert!(!text.contains("cannot resolve"), "{finished:?}");
}
