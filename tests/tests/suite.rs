//! Tests that are described in YAML: played as described, noticed, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Finished, Limited, Scratch, need_root};
use serde_json::Value;

fn suite(verb: &str, text: &str, options: &[&str]) -> Finished {
    let scratch = Scratch::new();
    let file = scratch.file("tests.yaml", 0o644, text);
    let mut command = Command::new(e2e::program());
    command
        .args(["generate", "suite", verb, "--report-format=json", "-f"])
        .arg(file)
        .args(options);
    Limited::start(&mut command, Duration::from_secs(60)).finish(b"")
}

/// Name, verdict and reason of each test.
fn verdicts(finished: &Finished) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for line in finished.stdout.lines() {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for test in value["tests"].as_array().expect("a list") {
            let text = |key: &str| test[key].as_str().unwrap_or("").to_owned();
            all.push((text("name"), text("verdict"), text("reason")));
        }
    }
    all
}

const CHAIN: &str = "\
tests:
  - name: reader below a server
    runner: HostRunner
    rule: Read sensitive file untrusted
    context:
      processes:
        - {name: httpd, exePath: /usr/local/bin/e2e-server, args: \"-f 'a b'\", user: e2e-web}
        - {name: worker, user: root, env: {COLOUR: blue}}
    before: echo made > /etc/e2e-before
    after: test -e /etc/e2e-before
    steps:
      - type: syscall
        name: o
        syscall: openat
        args: {dirFd: AT_FDCWD, pathname: /etc/shadow, flags: O_RDONLY|O_CLOEXEC}
      - {type: syscall, name: r, syscall: read, args: {fd: '${o.ret}', len: 4}}
    expectedOutcome:
      source: syscall
      priority: WARNING
      outputFields: {proc.name: worker, proc.pname: httpd, fd.name: /etc/shadow, user.name: root}
";

#[test]
fn a_chain_of_processes_is_what_the_description_says() {
    need_root!();
    let finished = suite("test", CHAIN, &["--watched"]);
    let verdicts = verdicts(&finished);
    assert_eq!(verdicts[0].1, "passed", "{verdicts:?}\n{}", finished.stderr);
    assert_eq!(finished.code(), 0);
    for path in ["/usr/local/bin/e2e-server", "/etc/e2e-before"] {
        assert!(!Path::new(path).exists(), "{path} stayed");
    }
    let users = fs::read_to_string("/etc/passwd").expect("it is there");
    assert!(!users.contains("e2e-web"), "the user stayed");
}

#[test]
fn an_alert_that_differs_is_told_field_by_field() {
    need_root!();
    let wrong = CHAIN
        .replace("proc.pname: httpd", "proc.pname: nginx")
        .replace("WARNING", "ERROR");
    let finished = suite("test", &wrong, &["--watched"]);
    let (_, verdict, reason) = &verdicts(&finished)[0];
    assert_eq!((verdict.as_str(), finished.code()), ("failed", 1));
    assert!(
        reason.contains(r#"proc.pname is "httpd", not "nginx""#),
        "{reason}"
    );
    assert!(
        reason.contains(r#"priority is "Warning", not "ERROR""#),
        "{reason}"
    );
}

#[test]
fn a_container_is_one_for_rules() {
    need_root!();
    let text = "\
tests:
  - name: inside
    runner: HostRunner
    rule: Packet socket created in container
    context: {container: {name: box}}
    steps:
      - {type: syscall, name: s, syscall: socket, args: {domain: AF_PACKET, type: SOCK_RAW, protocol: 0}}
    expectedOutcome: {}
  - name: outside
    runner: HostRunner
    rule: Packet socket created in container
    steps:
      - {type: syscall, name: s, syscall: socket, args: {domain: AF_PACKET, type: SOCK_RAW, protocol: 0}}
    expectedOutcome: {}
";
    let verdicts = verdicts(&suite("test", text, &["--watched"]));
    assert_eq!(
        (verdicts[0].1.as_str(), verdicts[1].1.as_str()),
        ("passed", "failed"),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[1].2, "no alert of the rule came");
}

/// Tests with every resource and every call. One fails.
const EVERYTHING: &str = "\
tests:
  - name: connection
    runner: HostRunner
    resources: [{type: clientServer, name: c, l4Proto: '%{item.proto}', address: '%{item.at}'}]
    steps:
      - {type: syscall, name: w, syscall: sendto, args: {fd: '${c.client.fd}', buf: hello, destAddr: '%{item.at}'}}
      - {type: syscall, name: d, syscall: dup2, args: {oldFd: '${c.client.fd}', newFd: 77}}
    cases:
      - {strategy: matrix, values: {proto: [tcp4, udp4], at: ['203.0.113.7:80']}}
      - {strategy: vector, values: {proto: udp6, at: '[::1]:9999'}}
  - name: descriptors
    runner: HostRunner
    resources:
      - {type: fd, name: e, subtype: '%{item.kind}'}
    steps:
      - {type: syscall, name: d, syscall: dup, args: {oldFd: '${e.fd}'}}
    cases: [{strategy: matrix, values: {kind: [event, signalfd, eventpoll, inotify]}}]
  - name: files
    runner: HostRunner
    resources:
      - {type: fd, name: d, subtype: directory, dirPath: /tmp/e2e-suite/a/b}
      - {type: fd, name: m, subtype: memfd, fileName: mem}
      - {type: fd, name: p, subtype: pipe}
    steps:
      - {type: syscall, name: o, syscall: openat2, args: {dirFd: '${d.fd}', pathname: f, how: {flags: O_CREAT|O_WRONLY, mode: S_IRUSR}}}
      - {type: syscall, name: w, syscall: write, args: {fd: '${p.writeFd}', buffer: hello}}
      - {type: syscall, name: r, syscall: read, args: {fd: '${p.readFd}', len: '${w.ret}'}}
      - {type: syscall, name: s, syscall: symlinkat, args: {target: f, newDirFd: '${d.fd}', linkPath: l}}
      - {type: syscall, name: l, syscall: linkat, args: {oldDirFd: '${d.fd}', oldPath: f, newDirFd: '${d.fd}', newPath: h}}
      - {type: syscall, name: x, syscall: dup3, args: {oldFd: '${m.fd}', newFd: '${m.fd}'}, expectedError: EINVAL}
  - name: a process to end
    runner: HostRunner
    resources: [{type: process, name: p, procName: victim}]
    steps: [{type: syscall, name: k, syscall: kill, args: {pid: '${p.pid}', sig: SIGKILL}}]
  - name: a call that fails
    runner: HostRunner
    steps: [{type: syscall, name: k, syscall: open, args: {pathname: /none, flags: O_RDONLY}}]
";

/// Every resource and every call, as an ordinary user.
#[test]
fn templates_resources_and_calls_need_no_privilege() {
    let scratch = Scratch::new();
    let file = scratch.file("tests.yaml", 0o644, EVERYTHING);
    let program = scratch.program(&e2e::program(), "tollgate");
    let mut words = Vec::new();
    if e2e::is_root() {
        words.extend(
            [
                "setpriv",
                "--reuid=1000",
                "--regid=1000",
                "--clear-groups",
                "--",
            ]
            .map(str::to_owned),
        );
    }
    words.push(program.display().to_string());
    words.extend(["generate", "suite", "run", "--report-format=json", "-f"].map(str::to_owned));
    words.push(file.display().to_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(scratch.path());
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    for (name, verdict, reason) in verdicts(&finished) {
        if name == "a call that fails" {
            assert_eq!(
                (verdict.as_str(), reason.as_str()),
                ("error", "step k: open: failed with ENOENT")
            );
        } else {
            assert_eq!(verdict, "played", "{name}: {reason}");
        }
    }
    assert_eq!(
        verdicts(&finished).len(),
        10,
        "{}{}",
        finished.stdout,
        finished.stderr
    );
    assert!(
        !Path::new("/tmp/e2e-suite").exists(),
        "folders of a test are removed"
    );
}

#[test]
fn mistakes_are_found_before_anything_is_played() {
    for (from, to, message) in [
        (
            "pathname: /etc/shadow",
            "path: /etc/shadow",
            "unknown key `path`",
        ),
        (
            "${o.ret}",
            "${x.ret}",
            "refers to `x`, which is not before it",
        ),
        (
            "    rule: Read sensitive file untrusted\n",
            "",
            "has no rule",
        ),
    ] {
        let text = CHAIN.replacen(from, to, 1);
        assert_ne!(text, CHAIN);
        let finished = suite("test", &text, &["--watched"]);
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (2, ""),
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
        assert!(
            finished.stderr.contains("tests.yaml:"),
            "{}",
            finished.stderr
        );
    }
}
