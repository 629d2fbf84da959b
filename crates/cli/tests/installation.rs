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
    for (name, is_built) in [
        ("bench", cfg!(feature = "bench")),
        ("embedded-runtime", cfg!(feature = "embedded-runtime")),
        ("kubernetes", cfg!(feature = "kubernetes")),
        ("serve", cfg!(feature = "serve")),
    ] {
        assert_eq!(features.contains(&name), is_built, "{name}");
    }
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

/// The table in install.md has the features of Cargo.toml, and says which are built by default.
#[test]
fn documents_name_each_feature() {
    let read = |path: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(path).expect("it is in the repository")
    };
    let manifest = read("Cargo.toml");
    let (_, declared) = manifest.split_once("\n[features]\n").expect("it has some");
    let (declared, _) = declared.split_once("\n[").expect("a section follows");
    let (mut built, mut names) = (Vec::new(), Vec::new());
    for line in declared.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.split_once(" = ") else {
            continue;
        };
        if name == "default" {
            built = value.split('"').skip(1).step_by(2).collect();
        } else {
            names.push(name);
        }
    }
    names.sort_unstable();
    let document = read("../../docs/howto/install.md");
    let (_, table) = document
        .split_once("\n## Features of a build\n")
        .expect("it has the section");
    let (table, _) = table.split_once("\n## ").expect("a section follows");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<_> = rows.filter_map(|row| row.split_once("` | ")).collect();
    let documented: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(documented, names);
    for (name, rest) in rows {
        let expected = if built.contains(&name) {
            "yes | "
        } else {
            "no | "
        };
        assert!(rest.starts_with(expected), "{name}: {rest}");
    }
}

/// Verbs of a feature that is not built say which one they need.
#[test]
fn verbs_without_their_feature_name_it() {
    for (words, feature, is_built) in [
        (&["bench", "quick"][..], "bench", cfg!(feature = "bench")),
        (&["generate", "list"], "bench", cfg!(feature = "bench")),
        (&["demo"], "bench", cfg!(feature = "bench")),
        (&["workload", "getppid"], "bench", cfg!(feature = "bench")),
        (&["serve"], "serve", cfg!(feature = "serve")),
        (&["node"], "kubernetes", cfg!(feature = "kubernetes")),
    ] {
        if is_built {
            continue;
        }
        let refused = run(words);
        let message = String::from_utf8(refused.stderr).expect("it prints UTF-8");
        assert_eq!(refused.status.code(), Some(3), "{words:?}: {message}");
        let help = format!("build with the feature `{feature}`");
        assert!(message.contains(&help), "{words:?}: {message}");
    }
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
