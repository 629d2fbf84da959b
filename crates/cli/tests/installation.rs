//! The verbs that serve installations: `version` and `copy`.

use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(args).stdin(Stdio::null()).output();
    output.expect("the program was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it prints UTF-8")
}

#[test]
fn version_says_how_the_program_was_built() {
    let version = stdout(&run(&["version", "--json"]));
    let version: serde_json::Value = serde_json::from_str(&version).expect("it prints JSON");
    let text = stdout(&run(&["version"]));
    let features = version["features"].as_array().expect("a list");
    let features: Vec<_> = features.iter().filter_map(|name| name.as_str()).collect();
    assert_eq!(features.contains(&"serve"), cfg!(feature = "serve"));
    assert_eq!(
        features.contains(&"kubernetes"),
        cfg!(feature = "kubernetes")
    );
    let target = version["target"].as_str().expect("text");
    assert!(target.starts_with(std::env::consts::ARCH), "{target}");
    let linked = if version["static"] == true {
        "static"
    } else {
        "dynamic"
    };
    let features = if features.is_empty() {
        "none".to_owned()
    } else {
        features.join(", ")
    };
    let expected = format!(
        "tollgate {}\ncommit: {}\nfeatures: {features}\ntarget: {target} ({linked})\n",
        env!("CARGO_PKG_VERSION"),
        version["commit"].as_str().unwrap_or("unknown"),
    );
    assert_eq!(text, expected);
}

#[test]
fn a_copy_runs_and_replaces_an_older_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().to_str().expect("its name is text");
    std::fs::write(folder.path().join("tollgate"), "older").expect("it is ours");
    let copied = run(&["copy", target]);
    assert_eq!(copied.status.code(), Some(0), "{copied:?}");
    let copy = Command::new(folder.path().join("tollgate"))
        .arg("version")
        .output();
    let copy = copy.expect("it can be executed");
    assert_eq!(stdout(&copy), stdout(&run(&["version"])));
    let names = std::fs::read_dir(folder.path())
        .expect("it is ours")
        .count();
    assert_eq!(names, 1, "nothing else is left there");

    let refused = run(&["copy", "/nowhere"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        message.starts_with("tollgate: cannot copy the program to /nowhere/tollgate: "),
        "{message}"
    );
    assert!(
        message.ends_with("help: name a writable folder that exists, such as a volume\n"),
        "{message}"
    );
}
