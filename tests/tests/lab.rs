//! The suites of `tollgate bench`, short: that they run, count and report.

use std::path::Path;
use std::process::Command;

use e2e::{Scratch, need_root, skip, until};

/// Runs `tollgate bench` in `folder`; status, standard output, standard error.
fn bench(folder: &Path, line: &str) -> (i32, String, String) {
    let output = Command::new(e2e::program())
        .arg("bench")
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().expect("it exits"),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn rows(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("rows.jsonl")).expect("the run wrote its rows");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

/// Every row of the suite has a valid sample, but for those that `excused` names.
fn assert_valid(folder: &Path, excused: &[&str]) {
    for row in rows(folder) {
        let name = format!("{} under {}", row["workload"], row["subject"]);
        if !excused.iter().any(|part| name.contains(part)) {
            assert!(
                row["n"].as_u64() > Some(0),
                "{name}: {}",
                row["first_failure"]
            );
        }
    }
}

#[test]
fn unix_runs_all_twelve_tests_in_two_copies() {
    let scratch = Scratch::new();
    let line = "unix --seconds 0.1 --rounds 1 --copies 2 --out run";
    let (code, out, err) = bench(scratch.path(), line);
    assert_eq!(code, 0, "{out}{err}");
    let run = scratch.path().join("run");
    assert_valid(&run, &[]);
    let rows = rows(&run);
    assert_eq!(rows.len(), 12 * 3);
    assert!(rows.iter().all(|row| row["score"].as_f64() > Some(0.0)));
    for heading in [
        "UnixBench's scores and index",
        "Beside published figures",
        "2 copies",
    ] {
        assert!(out.contains(heading), "{heading}: {out}");
    }
    for file in [
        "report.html",
        "rows.csv",
        "junit.xml",
        "bencher.json",
        "summary.md",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
}

#[test]
fn set_ups_run_natives_and_subjects_alike() {
    need_root!();
    let scratch = Scratch::new();
    // Named from the folder that the lab is started in, whatever the set-up enters.
    let rules = "- rule: Nothing\n  desc: d\n  condition: evt.type = acct\n  output: o\n  priority: DEBUG\n";
    std::fs::write(scratch.path().join("own.yaml"), rules).unwrap();
    for (place, length) in [
        ("container", "--quick"),
        ("quarter-cpu", "--seconds 0.1"),
        ("session", "--seconds 0.1"),
    ] {
        let line = format!(
            "unix {length} --rounds 1 --copies 1 --workload ^(syscall|spawn)$ --setup {place} -r own.yaml \
             --out {place}"
        );
        let (code, out, err) = bench(scratch.path(), &line);
        assert_eq!(code, 0, "{place}: {out}{err}");
        assert_valid(&scratch.path().join(place), &[]);
    }
}

#[test]
fn limits_decide_the_exit_status() {
    let scratch = Scratch::new();
    let line = "os --quick --workload launch_programs --fail-if index<0.0001 --out run";
    let (code, out, err) = bench(scratch.path(), line);
    assert_eq!(code, 0, "{out}{err}");
    let (code, _, err) = bench(scratch.path(), "report run --fail-if ratio:notify<1000000");
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("limit broken: ratio:notify<1000000: ratio of notify, launch_programs,"),
        "{err}"
    );
    let (code, _, err) = bench(scratch.path(), "report run --fail-if ratoi>1");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("did you mean `ratio`?"), "{err}");
}

#[test]
fn names_that_do_not_exist_are_answered_with_those_that_do() {
    let scratch = Scratch::new();
    for (line, hint) in [
        ("unix --subject notfy", "did you mean `notify`?"),
        ("unix --workload sycall", "did you mean `syscall`?"),
        ("syscalls --workload getpidd", "did you mean `getpid`?"),
        ("unix --setup contaner", "container"),
        ("unix --unixbench /etc", "/etc/pgms/syscall"),
        ("unix --fail-if index", "expected FIGURE<NUMBER"),
        ("report /nowhere", "/nowhere"),
    ] {
        let (code, out, err) = bench(scratch.path(), line);
        assert_eq!(code, 2, "{line}: {out}{err}");
        assert!(err.contains(hint), "{line}: {err}");
    }
}

#[test]
fn single_calls_are_traced_from_within_the_kernel_and_delayed() {
    need_root!();
    let scratch = Scratch::new();
    let line = "syscalls --quick --calls 20000 --workload ^(getpid|latency-getpid|neighbour-getppid|delay-open)$ \
                --subject notify --subject ebpf --subject strace --out run";
    let (code, out, err) = bench(scratch.path(), line);
    assert_eq!(code, 0, "{out}{err}");
    let run = scratch.path().join("run");
    assert_valid(&run, &[]);
    let extra = |workload: &str, name: &str| -> f64 {
        let row = rows(&run)
            .into_iter()
            .find(|row| row["workload"] == workload && row["subject"] == "native");
        row.expect("a row")["extra"][name].as_f64().unwrap_or(-1.0)
    };
    // Two milliseconds: the kernel may count all of them as the program's own.
    assert!(extra("getpid", "sys_ms") >= 0.0 && extra("getpid", "clock_ms") > 0.0);
    assert!(extra("latency-getpid", "p99_ns") >= extra("latency-getpid", "p50_ns"));
    assert!(
        out.contains("bpftrace tracepoint on the call, 2023"),
        "{out}"
    );
}

#[test]
fn containers_come_and_go_under_each_runtime() {
    need_root!();
    if !e2e::installed("runc") {
        skip!("needs runc", || Ok(String::from(
            "runc is in no folder of PATH"
        )));
    }
    let scratch = Scratch::new();
    let (code, out, err) = bench(
        scratch.path(),
        "lifecycle --quick --workload ^(hello|pause)$ --out run",
    );
    assert_eq!(code, 0, "{out}{err}");
    let run = scratch.path().join("run");
    // What runs where gVisor is installed is not this test's to decide.
    assert_valid(&run, &["runsc", "youki"]);
    let is_left_out = e2e::runtime_fixture::hindrance("embedded").is_some();
    for name in ["embedded", "tollgate-embedded"] {
        let is_measured = rows(&run).iter().any(|row| row["subject"] == name);
        let is_told = err.contains(&format!(
            "not supported here: {name}: cannot use the runtime embedded: this program was built without"
        ));
        assert_eq!((is_measured, is_told), (!is_left_out, is_left_out), "{err}");
    }
    for row in rows(&run).iter().filter(|row| row["n"].as_u64() > Some(0)) {
        let figure = |phase: &str| row["extra"][format!("{phase}_ms")].as_f64();
        let commands: &[&str] = match row["workload"].as_str() {
            // It has ended before it could be entered or killed.
            Some("hello") => &["create", "start", "state", "delete"],
            _ => &["create", "start", "state", "exec", "kill", "delete"],
        };
        let times: Vec<f64> = commands.iter().filter_map(|phase| figure(phase)).collect();
        assert_eq!(times.len(), commands.len(), "{row}");
        assert!(times.iter().all(|time| *time > 0.0), "{row}");
        // One sample: medians are what was measured, and add up.
        let total = figure("commands").expect("it is reported");
        assert!((total - times.iter().sum::<f64>()).abs() < 0.001, "{row}");
    }
}

#[test]
fn parts_of_the_engine_are_measured_by_themselves() {
    let scratch = Scratch::new();
    // A recording is made and replayed many times, which a debug build takes long for.
    let replay = if e2e::slow() { "replay|" } else { "" };
    let line = format!(
        "engine --quick --workload ^({replay}alert|start|getppid|rate-10k) --subject notify --out run"
    );
    let (code, out, err) = bench(scratch.path(), &line);
    assert_eq!(code, 0, "{out}{err}");
    let run = scratch.path().join("run");
    assert_valid(&run, &[]);
    let page = std::fs::read_to_string(run.join("report.html")).expect("the run wrote its page");
    assert!(
        page.contains("Losses by rate"),
        "the paced opens make a curve"
    );
}

#[test]
fn servers_answer_clients_that_are_not_watched() {
    if !e2e::installed("redis-benchmark") {
        skip!("needs redis-benchmark", || Ok(String::from(
            "redis-benchmark is in no folder of PATH"
        )));
    }
    let scratch = Scratch::new();
    let line = "apps --quick --workload ^(redis-get-50|reads-4k)$ --subject notify --out run";
    let (code, out, err) = bench(scratch.path(), line);
    assert_eq!(code, 0, "{out}{err}");
    assert_valid(&scratch.path().join("run"), &[]);
    for scenario in [
        "vArmor 0.5, seccomp",
        "vArmor 0.5, EnhanceProtect, AppArmor",
    ] {
        assert!(out.contains(scenario), "{out}");
    }
}

/// A run that is interrupted reports what it has.
#[test]
fn an_interrupted_suite_still_reports() {
    let scratch = Scratch::new();
    let mut child = Command::new(e2e::program())
        .args([
            "bench",
            "unix",
            "--copies",
            "1",
            "--seconds",
            "0.1",
            "--rounds",
            "1000",
        ])
        .args([
            "--workload",
            "^syscall$",
            "--subject",
            "shell=env {}",
            "--out",
            "run",
        ])
        .current_dir(scratch.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let samples = scratch.path().join("run/samples.jsonl");
    until("there are samples", || {
        std::fs::read_to_string(&samples).map_or(0, |text| text.lines().count()) >= 4
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert!(scratch.path().join("run/report.html").exists());
}
