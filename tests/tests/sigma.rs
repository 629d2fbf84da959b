//! `tollgate rules convert --from sigma`: what is converted alerts on real programs, and published rules convert.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::{Scratch, Watch, program, skip};
use serde_json::Value;

const RULES: &str = r#"
title: Inline Perl
id: 11111111-2222-4333-8444-555555555555
status: test
description: Perl runs a program from its command line.
author: Tests
logsource: {product: linux, category: process_creation}
detection:
  selection:
    Image|endswith: /PERL
    CommandLine|contains|all: [' -e ', PRINT]
  filter: {ParentCommandLine|contains: harmless}
  condition: selection and not filter
level: high
tags: [attack.execution, attack.t1059]
---
title: Marker Written
id: 11111111-2222-4333-8444-666666666666
description: A file with the marker's name is written.
logsource: {product: linux, category: file_event}
detection:
  selection: {TargetFilename|endswith: /marker.txt}
  condition: selection
level: medium
---
title: Known Port
id: 11111111-2222-4333-8444-777777777777
description: Something connects to a port that is known to be bad.
logsource: {product: linux, category: network_connection}
detection:
  selection: {Initiated: 'true', DestinationPort: PORT, DestinationIp|cidr: 127.0.0.0/8}
  condition: selection
level: low
---
title: Of a Log
id: 11111111-2222-4333-8444-888888888888
logsource: {product: linux, service: auditd}
detection: {selection: {type: EXECVE}, condition: selection}
"#;

fn convert(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program());
    let words = ["rules", "convert", "--from", "sigma"];
    command.current_dir(folder).args(words).args(arguments);
    command.output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn converted_rules_alert_on_real_programs_and_the_rest_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("sigma")).expect("the scratch folder is writable");
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let (known, other) = (listen(), listen());
    let port = |listener: &TcpListener| {
        listener
            .local_addr()
            .expect("it listens")
            .port()
            .to_string()
    };
    let rules = RULES.replace("PORT", &port(&known));
    fs::write(scratch.path().join("sigma/all.yml"), rules).expect("the scratch folder is writable");
    let output = convert(&["sigma"], scratch.path());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("3 converted, 1 refused\n"), "{said}");
    assert!(
        said.contains(": lost: Marker Written: files that are moved"),
        "{said}"
    );
    assert!(
        said.contains(": refused: Of a Log: `service: auditd` is a log"),
        "{said}"
    );
    let partial = convert(&["--accept-partial", "sigma/all.yml"], scratch.path());
    assert_eq!(partial.status.code(), Some(0));
    assert_eq!(text(&partial.stdout), text(&output.stdout));

    // Each line is seen, or nearly.
    let script = "
        perl -e 'print 1' > marker.txt
        perl -v > marker.log
        sh -c 'perl -e \"print 1\"; :' harmless
        bash -c \"exec 3<>/dev/tcp/127.0.0.1/$1\"
        bash -c \"exec 3<>/dev/tcp/127.0.0.1/$2\"
    ";
    fs::write(scratch.path().join("script"), script).expect("the scratch folder is writable");
    let file = scratch.path().join("script").display().to_string();
    let folder = scratch.path().display().to_string();
    let words = [
        "sh",
        "-c",
        "cd $0 && . $3",
        &folder,
        &port(&known),
        &port(&other),
        &file,
    ];
    let watched = Watch::new(words).rules(&text(&output.stdout)).run();
    let count = |rule: &str| watched.of(rule).len();
    let counts = ["Inline Perl", "Marker Written", "Known Port"].map(count);
    assert_eq!(counts, [1, 1, 1], "{}", watched.story());
    let alert = &watched.of("Inline Perl")[0];
    assert_eq!(alert.priority, "Error", "{}", watched.story());
}

#[test]
fn a_rule_with_the_name_of_a_built_in_one_does_not_replace_it() {
    let scratch = Scratch::new();
    let rule = RULES.split("---").next().expect("there is one");
    let rule = rule.replace("Inline Perl", "Terminal shell in container");
    fs::write(scratch.path().join("one.yml"), rule).expect("the scratch folder is writable");
    let output = convert(&["one.yml"], scratch.path());
    let name = "- rule: \"Terminal shell in container (11111111-2222-4333-8444-555555555555)\"\n";
    assert!(
        text(&output.stdout).contains(name),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn bad_input_is_named_with_its_place() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("bad.yml"), "title: [\n")
        .expect("the scratch folder is writable");
    fs::create_dir(scratch.path().join("empty")).expect("the scratch folder is writable");
    let cases: [(&[&str], i32, &str); 4] = [
        (&["none.yml"], 2, "cannot read none.yml: "),
        (&["empty"], 2, "there is no Sigma rule in the named files"),
        (&["bad.yml"], 3, "bad.yml:1:8: refused: "),
        (&[], 2, "<FILE>"),
    ];
    for (arguments, code, part) in cases {
        let output = convert(arguments, scratch.path());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(part),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn published_rules_of_the_carried_categories_convert() {
    let Some(folder) = std::env::var_os("TOLLGATE_TEST_SIGMA").map(PathBuf::from) else {
        skip!("needs the rules that Sigma publishes", || Ok(
            "TOLLGATE_TEST_SIGMA names no folder".to_owned()
        ));
    };
    let scratch = Scratch::new();
    let folder = folder.display().to_string();
    let output = convert(&["--json", "--accept-partial", &folder], scratch.path());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rules = report["rules"].as_array().expect("a list");
    let is_other = |rule: &Value| {
        let reason = rule["refused"][0]["message"].as_str().unwrap_or_default();
        ["`service: ", "`category: ", "`logsource` has", "`product: "]
            .iter()
            .any(|start| reason.starts_with(start))
    };
    let ours: Vec<_> = rules.iter().filter(|rule| !is_other(rule)).collect();
    let refused: Vec<_> = ours.iter().filter(|rule| rule["rule"].is_null()).collect();
    println!(
        "{} rules of the categories, {} refused",
        ours.len(),
        refused.len()
    );
    assert!(ours.len() >= 100, "{}", ours.len());
    assert!(refused.len() * 20 < ours.len(), "{refused:#?}");
    let texts: Vec<_> = ours
        .iter()
        .filter_map(|rule| rule["text"].as_str())
        .collect();
    fs::write(scratch.path().join("all.yaml"), texts.join("\n"))
        .expect("the scratch folder is writable");
    let mut check = Command::new(program());
    check
        .current_dir(scratch.path())
        .args(["rules", "check", "all.yaml"]);
    let check = check.output().expect("the program was built");
    // Sigma may know tactics that this program does not.
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stdout));
}
