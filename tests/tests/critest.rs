//! critest, the suite of Kubernetes' container runtime interface, against containerd with runc and with
//! `tollgate runtime` as its default runtime: what fails with us fails without, or is listed with its reason.
//!
//! `tests/critest/build` and `tests/cluster/build` build what it needs. Images come from a registry on the
//! loopback interface, which makes them of busybox. `TOLLGATE_TEST_SPEC`, a regular expression, selects specs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Fixture, Limited, Scratch, need_root, need_runtime, need_slow, program, skip};

/// The suite takes four minutes on two busy processors.
const LIMIT: Duration = Duration::from_secs(1700);

/// Specs that fail only with us, by a part of their name. `docs/reference/oci-conformance.md` has the reasons.
const DIFFERENT: [&str; 2] = [
    "should support seccomp unconfined on the container",
    "should support nil profile, which is unconfined",
];

/// Programs of `tests/cluster/build` and `tests/critest/build`. `None` where one is missing.
fn built() -> Option<Vec<PathBuf>> {
    let cache = PathBuf::from(std::env::var_os("TOLLGATE_CACHE")?);
    let names = [
        "kubernetes/bin/containerd",
        "kubernetes/bin/containerd-shim-runc-v2",
        "kubernetes/bin/ctr",
        "critest/critest-1.37.0",
    ];
    let programs: Vec<_> = names.iter().map(|name| cache.join(name)).collect();
    programs
        .iter()
        .all(|path| path.exists())
        .then_some(programs)
}

/// State of each spec that ran: `passed`, `failed`, `timedout` ...
fn read_report(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).expect("the suite wrote a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("the report is JSON");
    let suites = report.as_array().expect("suites").iter();
    let specs = suites.flat_map(|suite| suite["SpecReports"].as_array().expect("specs"));
    let mut states = BTreeMap::new();
    for spec in specs {
        let parents = spec["ContainerHierarchyTexts"].as_array();
        let parents = parents.into_iter().flatten();
        let mut name: Vec<_> = parents.filter_map(|part| part.as_str()).collect();
        name.extend(spec["LeafNodeText"].as_str());
        let state = spec["State"].as_str().expect("a state");
        if spec["LeafNodeType"] == "It" && state != "skipped" {
            states.insert(name.join(": "), state.to_owned());
        }
    }
    states
}

/// Runs the suite with one runtime.
fn validate(folder: &Path, runtime: &str) -> BTreeMap<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("critest/run");
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "--net",
            "--uts",
            "--ipc",
        ])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args([script.as_path(), folder])
        .arg(runtime)
        .env("TOLLGATE_RUNTIME_STATE", folder.join("state"))
        .env("TOLLGATE_RUNTIME_CONFIG", folder.join("tollgate.yaml"))
        .stdin(Stdio::null());
    if let Some(spec) = std::env::var_os("TOLLGATE_TEST_SPEC") {
        command.env("FOCUS", spec);
    }
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{finished:?}");
    read_report(&folder.join(format!("{runtime}.json")))
}

#[test]
fn no_spec_of_critest_fails_that_succeeds_with_runc() {
    need_root!();
    need_slow!();
    need_runtime!("runc");
    let Some(programs) = built() else {
        skip!("needs what tests/critest/build builds", || Ok(
            "TOLLGATE_CACHE has no critest or no containerd".to_owned()
        ));
    };
    let scratch = Scratch::new();
    let folder = scratch.path();
    fs::create_dir(folder.join("bin")).expect("it is our folder");
    for path in &programs {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("a readable name").replace("-1.37.0", "");
        scratch.program(path, &format!("bin/{name}"));
    }
    scratch.program(Fixture::compile("nonewprivs").program(), "bin/nonewprivs");
    scratch.program(&program(), "bin/tollgate-runtime");
    let settings = format!(
        "runtime: {{binary: runc}}\njson_output: true\n\
         file_output: {{enabled: true, filename: {}/alerts}}\n",
        folder.display()
    );
    scratch.file("tollgate.yaml", 0o644, settings);
    let [alone, watched] = ["runc", "tollgate"].map(|runtime| validate(folder, runtime));
    let passed = |states: &BTreeMap<String, String>| {
        let passed = states.values().filter(|state| *state == "passed");
        format!("{} of {} specs passed", passed.count(), states.len())
    };
    println!("runc: {}\ntollgate: {}", passed(&alone), passed(&watched));
    let mut worse = Vec::new();
    for (name, before) in &alone {
        let after = watched.get(name).map_or("missing", String::as_str);
        if before != "passed" || after != "passed" {
            println!("{name}: runc: {before}, tollgate: {after}");
        }
        let listed = DIFFERENT.iter().any(|part| name.contains(part));
        if before == "passed" && after != "passed" && !listed {
            worse.push(name);
        }
    }
    assert!(!alone.is_empty());
    assert!(worse.is_empty(), "{worse:?}");
}
