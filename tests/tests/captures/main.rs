//! Captures: those of others are read as sysdig reads them, and ours give the alerts of the run.

mod others;
mod recording;
mod replay;
mod trouble;

use std::path::Path;
use std::process::Command;

use e2e::program;

/// Catches every open and every program.
pub(crate) const RULES: &str = r"
- rule: open
  desc: d
  condition: evt.type in (open, openat, openat2, creat)
  output: '%evt.type %evt.args %fd.name %proc.cmdline %proc.pname %user.name %proc.cwd %proc.tty'
  priority: NOTICE
- rule: program
  desc: d
  condition: evt.type in (execve, execveat)
  output: '%evt.res %proc.cmdline %proc.exepath %proc.aname %user.uid %group.gid %container.id %proc.sname'
  priority: NOTICE
- rule: connection
  desc: d
  condition: evt.type = connect
  output: '%evt.res %fd.name %fd.sip %fd.sport %fd.l4proto %fd.type %proc.name'
  priority: NOTICE
";

pub(crate) const WORK: &str =
    "cat /etc/hosts /no/such; cd /etc; cat passwd > /dev/null; (cat group) > /dev/null
    echo | busybox nc 127.0.0.1 9; true";

/// Skips what follows in a test where sysdig is not installed.
macro_rules! need_sysdig {
    () => {
        if !e2e::installed("sysdig") {
            e2e::skip!("needs sysdig", || Ok(
                "it is in no folder of PATH".to_owned()
            ));
        }
    };
}
pub(crate) use need_sysdig;

pub(crate) fn sysdig(arguments: &[&str], file: &Path) -> String {
    let output = Command::new("sysdig")
        .arg("-r")
        .arg(file)
        .args(arguments)
        .output()
        .expect("sysdig starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn replay(arguments: &[&str], file: &Path) -> (i32, String, String) {
    let output = Command::new(program())
        .args(["replay", "--quiet"])
        .args(arguments)
        .arg(file)
        .output()
        .expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}
