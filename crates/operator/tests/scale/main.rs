//! What an operator takes in large clusters: memory, time until status is right, processor time.
//!
//! `TOLLGATE_SCALE` is a size, `NODESxPOLICIESxPODS` with the pods of each node, in place of the usual ones;
//! `TOLLGATE_SCALE_SERVER=real` takes a real API server in place of that in memory; `TOLLGATE_SCALE_OUT` is the folder for
//! samples, and `TOLLGATE_SCALE_OPERATOR` another build of the program.

mod load;
mod observer;

use std::time::{Duration, Instant};
use std::{env, fs, thread};

use apiserver::real::Programs;
use load::{Server, Size};
use observer::Observed;
use serde_json::{Value, json};

/// Goals for resident memory, in kB.
const IDLE: u64 = 24 << 10;
const LOADED: u64 = 64 << 10;
/// How long status may take to be right after the last report, in a debug build.
const RIGHT: Duration = Duration::from_secs(30);

/// Time between two looks at single objects.
const SOON: Duration = Duration::from_millis(20);
/// Time between two looks at all objects of a kind, which take time themselves.
const SELDOM: Duration = Duration::from_secs(1);

/// Waits until something is there; returns how long that took.
fn wait<T>(what: &str, pause: Duration, mut there: impl FnMut() -> Option<T>) -> (T, Duration) {
    let begin = Instant::now();
    loop {
        if let Some(found) = there() {
            return (found, begin.elapsed());
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(600), "{what} does not come");
        thread::sleep(pause);
    }
}

fn seconds(time: Duration) -> Value {
    json!((time.as_secs_f64() * 1000.0).round() / 1000.0)
}

fn ready(status: &Value) -> &str {
    let conditions = status["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|one| one["type"] == "Ready");
    ready
        .and_then(|ready| ready["status"].as_str())
        .unwrap_or("none")
}

/// Returns true if the status is about the policy as it is, and no node is unknown.
fn is_right(status: &Value, containers: usize) -> bool {
    status["observedGeneration"] == status["generation"]
        && ready(status) == "True"
        && status["coverage"]["unknownNodes"] == 0
        && status["coverage"]["enforced"] == containers
}

/// One run; returns its figures.
fn run(server: &Server, size: Size) -> Value {
    let mut operator = Observed::start(server, "one");
    wait("the leader", SOON, || operator.is_leader().then_some(()));
    thread::sleep(Duration::from_secs(5));
    let idle = operator.memory();
    operator.phase("nodes and policies");
    server.put_nodes(size);
    server.put_policies(size.policies);
    let (profiles, compiled) = wait("the profiles", SELDOM, || server.profiles(size.policies));
    operator.phase("reports");
    let containers = size.nodes * size.pods / size.policies;
    let half = Size {
        nodes: size.nodes / 2,
        ..size
    };
    server.put_reports(half, 0, &profiles);
    let missing = size.nodes - half.nodes;
    wait("the truth about half of the nodes", SELDOM, || {
        let all = server.statuses(size.policies);
        let knows = |status: &Value| status["coverage"]["unknownNodes"] == missing;
        assert!(all.iter().all(|status| ready(status) != "True"));
        all.iter().all(knows).then_some(())
    });
    server.put_reports(size, half.nodes, &profiles);
    let (_, all_right) = wait("success of all", SELDOM, || {
        let all = server.statuses(size.policies);
        let mut all = all.iter();
        all.all(|status| is_right(status, containers)).then_some(())
    });
    operator.phase("loaded");
    thread::sleep(Duration::from_secs(5));
    let loaded = operator.memory();
    let [compile, right, change_cpu] = change(server, size, &mut operator, 1);
    let heartbeat = heartbeats(server, size, &mut operator);
    let peak = operator.peak();
    operator.stop();
    let mut next = Observed::start(server, "two");
    wait("the next leader", SOON, || next.is_leader().then_some(()));
    let [_, after_restart, _] = change(server, size, &mut next, 2);
    thread::sleep(Duration::from_secs(5));
    let restarted = next.memory();
    json!({ "server": server.name(), "nodes": size.nodes, "policies": size.policies, "pods": size.nodes * size.pods,
        "idle_kb": idle, "loaded_kb": loaded, "peak_kb": peak, "after_restart_kb": restarted, "peak_after_restart_kb": next.peak(),
        "profiles_written_s": seconds(compiled), "all_right_after_last_report_s": seconds(all_right),
        "change_to_profile_s": compile, "change_right_after_last_report_s": right, "change_cpu_s": change_cpu,
        "renewal_of_all_cpu_s": heartbeat, "restart_right_after_last_report_s": after_restart })
}

/// Changes one policy, and has all nodes report it: seconds until its profile is written, until its status is right after the last
/// report, and of processor time in all.
fn change(server: &Server, size: Size, operator: &mut Observed, version: usize) -> [Value; 3] {
    operator.phase("change");
    let (before, _) = wait("the profiles", SELDOM, || server.profiles(size.policies));
    let cpu = operator.processor_time();
    server.change_policy(0, version);
    let ((hash, version), compile) = wait("the new profile", SOON, || {
        let after = server.profile(0)?;
        (after.0 != before.hashes[0]).then_some(after)
    });
    let mut after = before;
    after.hashes[0] = hash;
    after.version = version;
    let unknown = |status: &Value| status["coverage"]["unknownNodes"] == size.nodes;
    wait("that nothing is known", SOON, || {
        let status = server.status(0);
        assert!(
            status["observedGeneration"] != status["generation"] || ready(&status) != "True",
            "{status}"
        );
        unknown(&status).then_some(())
    });
    server.put_reports(size, 0, &after);
    let containers = size.nodes * size.pods / size.policies;
    let (_, right) = wait("success", SOON, || {
        is_right(&server.status(0), containers).then_some(())
    });
    assert!(right < RIGHT, "{right:?}");
    let cpu = operator.processor_time().saturating_sub(cpu);
    [seconds(compile), seconds(right), seconds(cpu)]
}

/// Has all nodes renew their reports without a change; returns the seconds of processor time that this takes.
fn heartbeats(server: &Server, size: Size, operator: &mut Observed) -> Value {
    operator.phase("renewal");
    let (profiles, _) = wait("the profiles", SELDOM, || server.profiles(size.policies));
    let cpu = operator.processor_time();
    server.put_reports(size, 0, &profiles);
    thread::sleep(Duration::from_secs(5));
    seconds(operator.processor_time().saturating_sub(cpu))
}

#[test]
fn an_operator_of_ten_thousand_nodes_stays_small_and_its_status_right() {
    testing::need_slow!();
    let sizes = match env::var("TOLLGATE_SCALE") {
        Ok(text) => vec![Size::parse(&text).expect("NODESxPOLICIESxPODS")],
        Err(_) => ["400x1x32", "10000x20x10"]
            .map(|text| Size::parse(text).expect("it is one"))
            .to_vec(),
    };
    let is_real = env::var("TOLLGATE_SCALE_SERVER").is_ok_and(|server| server == "real");
    for size in sizes {
        let server = match is_real {
            false => Server::memory(),
            true => match Programs::find() {
                Ok(programs) => Server::real(&programs),
                Err(missing) => {
                    let found: Result<String, String> = Ok(missing);
                    testing::skip!("needs what tests/cluster/build builds, and etcd", || found)
                }
            },
        };
        let figures = run(&server, size);
        println!("{figures:#}");
        if let Some(folder) = observer::out() {
            let name = format!("{}-{}.json", server.name(), size.name());
            fs::write(folder.join(name), format!("{figures:#}\n")).expect("it can be written");
        }
        for (figure, goal) in [
            ("idle_kb", IDLE),
            ("loaded_kb", LOADED),
            ("after_restart_kb", LOADED),
        ] {
            assert!(
                figures[figure].as_u64() <= Some(goal),
                "{figure}: {figures}"
            );
        }
    }
}
