//! `tollgate serve` as an administrator and a sender meet it.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Duration;

use e2e::collector::{Collector, alert, get, output, request, token, token_on, tollgate};
use e2e::runtime_fixture::RuntimeFixture;
use e2e::{Scratch, need_runtime, program, until};
use serde_json::{Value, json};

#[test]
fn tokens_are_printed_once_listed_and_revoked() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let first = token(&store, &["--agent-class", "web", "--expires", "30d"]);
    let second = token(&store, &["--role", "viewer"]);
    assert!(first.starts_with("tgt_") && first != second);
    let listed = output(&mut tollgate(&["serve", "token", "list"], &store));
    assert!(
        listed.contains("agents of web") && listed.contains("until 2"),
        "{listed}"
    );
    assert!(!listed.contains(&first), "{listed}");
    // Nor is it in the file.
    let bytes = std::fs::read(&store).expect("it is there");
    let found = bytes
        .windows(first.len())
        .any(|part| part == first.as_bytes());
    assert!(!found);
    let collector = Collector::without_tls(&store, "127.0.0.1:0");
    let post = |secret: &str| {
        let answer = request(
            collector.address(),
            "POST / HTTP/1.1",
            secret,
            &alert("a", 1),
        );
        answer.expect("it answers").0
    };
    assert_eq!(post(&first), 200);
    assert_eq!(post(&second), 403);
    output(&mut tollgate(&["serve", "token", "revoke", "1"], &store));
    assert_eq!(post(&first), 401);
    let again = tollgate(&["serve", "token", "revoke", "1"], &store)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(2));
    assert!(
        stderr.contains("cannot revoke token 1: no such token is in force\nhelp: "),
        "{stderr}"
    );
}

#[test]
fn a_backup_of_a_running_collector_is_restored_with_its_tokens() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    let sender = token(&path("c.db"), &["--agent-class", "web"]);
    let reader = token(&path("c.db"), &["--role", "viewer"]);
    let collector = Collector::without_tls(&path("c.db"), "127.0.0.1:0");
    let send = |n| {
        let answer = request(
            collector.address(),
            "POST / HTTP/1.1",
            &sender,
            &alert("a", n),
        );
        assert_eq!(answer.expect("it answers").0, 200);
    };
    send(1);
    let copy = path("copy.db").display().to_string();
    output(&mut tollgate(&["serve", "backup", &copy], &path("c.db")));
    send(2);
    output(&mut tollgate(&["serve", "restore", &copy], &path("r.db")));
    let restored = Collector::without_tls(&path("r.db"), "127.0.0.1:0");
    let count = |address| get(address, "/api/v1/groups", &reader)["groups"][0]["count"].clone();
    assert_eq!(count(restored.address()), 1);
    assert_eq!(count(collector.address()), 2);
    let over = tollgate(&["serve", "restore", &copy], &path("c.db"))
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&over.stderr);
    assert_eq!(over.status.code(), Some(2));
    assert!(stderr.contains("it exists\nhelp: "), "{stderr}");
}

#[test]
fn a_signal_ends_the_collector_and_a_second_address_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let mut collector = Collector::without_tls(&store, "127.0.0.1:0");
    let address = collector.address().to_string();
    let taken = tollgate(&["serve", "--insecure", "--listen", &address], &store);
    let taken = { taken }.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&taken.stderr);
    assert_eq!(taken.status.code(), Some(2));
    assert!(
        stderr.contains(&format!("cannot listen on {address}: ")),
        "{stderr}"
    );
    let pid = i32::try_from(collector.child.id()).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = collector.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
    let mut rest = String::new();
    collector
        .stderr
        .read_to_string(&mut rest)
        .expect("it is closed");
    assert!(rest.contains("without TLS"), "{rest}");
    assert!(
        rest.contains("there is no token, so no agent can send\nhelp: ")
            && rest.contains("create the first one, an administrator"),
        "{rest}"
    );
}

/// Reads the numbers of all stored alerts, page by page.
fn stored_numbers(address: SocketAddr, reader: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut path = "/api/v1/alerts?limit=1000".to_owned();
    loop {
        let page = get(address, &path, reader);
        let alerts = page["alerts"].as_array().expect("a list");
        let number = |row: &Value| {
            let number = row["alert"]["output_fields"]["n"].as_u64();
            number.expect("a number")
        };
        numbers.extend(alerts.iter().map(number));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/alerts?limit=1000&after={next}"),
            None => return numbers,
        }
    }
}

/// Enrols an agent and returns its secret.
fn enrol(address: SocketAddr, token: &str) -> String {
    let body = json!({"host": "box"}).to_string();
    let answer = request(address, "POST /api/v1/agents HTTP/1.1", token, &body);
    let (status, answer) = answer.expect("it answers");
    assert_eq!(status, 201, "{answer}");
    answer["secret"].as_str().expect("a secret").to_owned()
}

/// Kills a process after a pause, on a thread of its own.
fn kill_later(child: &Child, pause: Duration) -> std::thread::JoinHandle<()> {
    let pid = i32::try_from(child.id()).expect("a pid");
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    })
}

/// Kills the collector at random while a sender sends, and counts: what was acknowledged is there, and
/// nothing is there twice.
fn kill_rounds(rounds: u64) {
    let scratch = Scratch::new();
    let store = scratch.path().join("c.db");
    let token_of_agents = token(&store, &["--agent-class", "web"]);
    let reader = token(&store, &["--role", "viewer"]);
    let mut collector = Collector::without_tls(&store, "127.0.0.1:0");
    let secret = enrol(collector.address(), &token_of_agents);
    let (mut acknowledged, mut sent, mut random) = (0_u64, 0_u64, 0x9e37_79b9_u64);
    for _ in 0..rounds {
        // A xorshift generator: the same moments in each run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let address = collector.address();
        let killer = kill_later(&collector.child, Duration::from_micros(random % 30_000));
        loop {
            // What was not acknowledged comes again, with more.
            sent = (sent + 7).min(acknowledged + 50);
            let lines: Vec<_> = (acknowledged + 1..=sent).map(|n| alert("a", n)).collect();
            let head = format!(
                "POST /api/v1/batches HTTP/1.1\r\nTollgate-Sequence: {}",
                acknowledged + 1
            );
            let Some((status, answer)) = request(address, &head, &secret, &lines.join("\n")) else {
                break;
            };
            assert_eq!(status, 200, "{answer}");
            acknowledged = answer["acknowledged"].as_u64().expect("a number");
            assert_eq!(answer["missing"], 0);
        }
        killer.join().expect("it was killed");
        drop(collector);
        collector = Collector::without_tls(&store, "127.0.0.1:0");
    }
    let mut numbers = stored_numbers(collector.address(), &reader);
    numbers.sort_unstable();
    let stored = numbers.len() as u64;
    assert!(stored >= acknowledged, "{stored} of {acknowledged}");
    assert_eq!(
        numbers,
        (1..=stored).collect::<Vec<_>>(),
        "each once, without a hole"
    );
    assert!(
        acknowledged > rounds,
        "{acknowledged} in {rounds} rounds: too few to show anything"
    );
    println!(
        "{rounds} rounds: acknowledged {acknowledged}, stored {stored}, lost 0, stored twice 0"
    );
}

#[test]
fn nothing_acknowledged_is_lost_or_stored_twice_when_the_collector_is_killed() {
    kill_rounds(5);
}

#[test]
fn the_same_a_hundred_times() {
    e2e::need_slow!();
    kill_rounds(100);
}

/// Fires when a file called `mark` is opened.
const MARK: &str = "\
- rule: Mark
  desc: a file that marks a moment
  condition: evt.type in (open, openat) and fd.name endswith /mark
  output: marked file=%fd.name
  priority: WARNING
";

/// Returns a verb with the rule [`MARK`] that sends to the collector at this address.
fn sending(scratch: &Scratch, address: SocketAddr, verb: &[&str]) -> Command {
    let path = scratch.path();
    std::fs::write(path.join("rules.yaml"), MARK).expect("writable");
    std::fs::write(path.join("mark"), "").expect("writable");
    let spool = format!("collector_output.spool={}", path.join("spool").display());
    let url = format!("http://{address}");
    let mut command = Command::new(program());
    command
        .args(verb)
        .args(["-o", &spool, "--collector", &url, "-r"])
        .arg(path.join("rules.yaml"))
        .env("TOLLGATE_TOKEN_FILE", path.join("token"));
    command
}

/// Runs a command that opens the marks, with the collector at this address.
fn run_marking(scratch: &Scratch, address: SocketAddr, count: u32) -> String {
    let mark = scratch.path().join("mark");
    let script = format!("for i in $(seq {count}); do : < {}; done", mark.display());
    let run = sending(scratch, address, &["run"])
        .args(["--", "sh", "-c", &script])
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{stderr}");
    stderr
}

/// A collector with a token of agents in the file `token`, and the token of a reader.
fn with_tokens(scratch: &Scratch) -> (Collector, String) {
    let store = scratch.path().join("c.db");
    let secret = token(&store, &["--agent-class", "web"]);
    std::fs::write(scratch.path().join("token"), secret).expect("writable");
    let reader = token(&store, &["--role", "viewer"]);
    (Collector::without_tls(&store, "127.0.0.1:0"), reader)
}

#[test]
fn a_run_sends_its_alerts_and_those_of_a_run_without_a_collector() {
    let scratch = Scratch::new();
    let (collector, reader) = with_tokens(&scratch);
    let store = scratch.path().join("c.db");
    let address = collector.address();
    run_marking(&scratch, address, 3);
    let count = |address| {
        let group = get(address, "/api/v1/groups?rule=Mark", &reader)["groups"][0].clone();
        group["count"].as_u64().unwrap_or(0)
    };
    assert_eq!(count(address), 3);
    drop(collector);
    let stderr = run_marking(&scratch, address, 4);
    assert!(
        stderr.contains("collector: 0 alerts lost, 4 not delivered: "),
        "{stderr}"
    );
    let collector = Collector::without_tls(&store, &address.to_string());
    assert_eq!(count(address), 3);
    run_marking(&scratch, address, 5);
    assert_eq!(count(address), 12);
    let agents = get(collector.address(), "/api/v1/agents", &reader);
    let agents = agents["agents"].as_array().expect("a list");
    assert_eq!(agents.len(), 1, "each run used the same spool: {agents:?}");
    assert_eq!(
        (&agents[0]["missing"], &agents[0]["class"]),
        (&json!(0), &json!("web"))
    );
    assert_ne!(agents[0]["inventory"]["kernel"], Value::Null);
}

/// Returns the inventory of the only agent; null before it has enrolled.
fn inventory(collector: &Collector, reader: &str) -> Value {
    get(collector.address(), "/api/v1/agents", reader)["agents"][0]["inventory"].clone()
}

const POLICY: &str = "\
policy:
  enforcer: SeccompLandlock
  mode: EnhanceProtect
  enhanceProtect:
    hardeningRules: [disallow-mount]
";

#[test]
fn an_agent_reports_the_engine_rules_and_policy_in_force_and_other_rules_after_a_reload() {
    let scratch = Scratch::new();
    let (collector, reader) = with_tokens(&scratch);
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("policy.yaml"), POLICY).expect("writable");
    let mut run = sending(
        &scratch,
        collector.address(),
        &["run", "--engine", "notify", "-o", "metrics.enabled=true"],
    );
    let mut run = run
        .arg("--policy")
        .arg(path("policy.yaml"))
        .arg("-P")
        .arg(path("pid"))
        .args(["--", "sh", "-c", "read line"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let first = || inventory(&collector, &reader);
    until("the agent reports its engine", || {
        first()["engine"] == "notify"
    });
    let before = first();
    let digest = |inventory: &Value| inventory["rules"].as_str().expect("text").to_owned();
    assert!(digest(&before).starts_with("sha256:"), "{before}");
    assert_eq!(
        (&before["rules_enabled"], &before["rules_refused"]),
        (&json!(1), &json!(0))
    );
    let policy = &before["policy"];
    let expected = output(Command::new("sha256sum").arg(path("policy.yaml")));
    let expected = expected.split_whitespace().next().expect("a digest");
    assert_eq!(policy["digest"], format!("sha256:{expected}"));
    assert_eq!(policy["audits"], false);
    assert_eq!(policy["enforcers"]["Seccomp"], "fully enforced", "{policy}");
    let extents = policy["enforcers"].as_object().expect("enforcers");
    for (enforcer, extent) in extents {
        let is_full = extent == "fully enforced";
        assert_eq!(
            policy["reasons"].get(enforcer).is_none(),
            is_full,
            "{policy}"
        );
    }
    assert!(policy["gaps"].is_array(), "{policy}");
    assert!(before["rule_times"]["events"].is_u64(), "{before}");
    assert!(before["spool"]["pending"].is_u64(), "{before}");
    assert_eq!(before["counters"]["drops"], 0);
    let pid = std::fs::read_to_string(path("pid")).expect("a pid");
    other_rules_have_another_digest(&scratch, (&collector, &reader), pid.trim());
    // The end of its input ends the command.
    drop(run.stdin.take());
    run.wait().expect("it ends");
}

/// Changes the rules of an agent with one rule and this pid.
fn other_rules_have_another_digest(
    scratch: &Scratch,
    (collector, reader): (&Collector, &str),
    pid: &str,
) {
    let first = || inventory(collector, reader);
    let digest = |inventory: &Value| inventory["rules"].as_str().expect("text").to_owned();
    let before = first();
    // A rule that cannot be loaded leaves the digest; one that can changes it.
    let more = MARK
        .replace("/mark", "/other")
        .replace("rule: Mark", "rule: Other");
    let reload = |rules: String| {
        std::fs::write(scratch.path().join("rules.yaml"), rules).expect("writable");
        output(Command::new("kill").args(["-HUP", pid]));
    };
    reload(format!("{MARK}- rule: Broken\n"));
    let alerts = |rule: &str| {
        let rule = rule.replace(' ', "%20");
        let path = format!("/api/v1/alerts?rule={rule}");
        get(collector.address(), &path, reader)["alerts"]
            .as_array()
            .map_or(0, Vec::len)
    };
    until("the reload fails", || {
        alerts("Tollgate internal: rules not loaded") == 1
    });
    assert_eq!(digest(&first()), digest(&before));
    reload(format!("{MARK}{more}"));
    until("the agent reports two rules", || {
        first()["rules_enabled"] == 2
    });
    assert_ne!(digest(&first()), digest(&before));
}

#[test]
fn the_runtime_sends_alerts_of_its_containers_by_its_configuration() {
    need_runtime!("runc");
    let scratch = Scratch::new();
    let (collector, reader) = with_tokens(&scratch);
    let ground = RuntimeFixture::new().settings(&format!(
        "collector_output:\n  enabled: true\n  url: http://{}\n  token_file: {path}/token\n  spool: {path}/spool\n",
        collector.address(),
        path = scratch.path().display()
    ));
    ground.bundle("b", "cat /etc/secret");
    let (finished, alerts) = ground.run("runc", "rt run --bundle b $ID < /dev/null\nsettle\n");
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    assert!(!alerts.is_empty());
    let sent = |rule: &str| {
        let path = format!("/api/v1/groups?rule={rule}");
        let groups = get(collector.address(), &path, &reader);
        groups["groups"]
            .as_array()
            .is_some_and(|groups| !groups.is_empty())
    };
    for alert in &alerts {
        until(&alert.rule, || sent(&alert.rule.replace(' ', "%20")));
    }
    assert_eq!(inventory(&collector, &reader)["engine"], "notify");
}

#[test]
fn two_collectors_share_a_database_and_each_goes_on_without_the_other() {
    let server = testing::postgres::Server::shared();
    let url = server.database();
    let agents = token_on(&url, &["--agent-class", "web"]);
    let reader = token_on(&url, &["--role", "viewer"]);
    let start = || Collector::start_on(&url, "127.0.0.1:0", &["--insecure"]);
    let (first, second) = (start(), start());
    let secret = enrol(first.address(), &agents);
    let send = |collector: &Collector, number: u64| {
        let head = format!("POST /api/v1/batches HTTP/1.1\r\nTollgate-Sequence: {number}");
        let body = alert("a", number);
        request(collector.address(), &head, &secret, &body).expect("it answers")
    };
    // The agent goes from one to the other, and sends the second record again.
    assert_eq!(send(&first, 1).0, 200);
    assert_eq!(send(&second, 2).1["stored"], 1);
    assert_eq!(send(&first, 2).1["duplicates"], 1);
    drop(first);
    assert_eq!(send(&second, 3).0, 200);
    // The server is killed under the other.
    server.crash();
    until("it connects again", || send(&second, 4).0 == 200);
    let mut numbers = stored_numbers(second.address(), &reader);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let words = ["serve", "backup", "--store", &url, "copy"];
    let backup = Command::new(program())
        .args(words)
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&backup.stderr);
    assert!(stderr.contains("help: use pg_dump"), "{stderr}");
}
