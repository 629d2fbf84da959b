//! Captures around alerts: recorded by agents, bound to the alert by the collector, and looked at in the page.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use e2e::collector::{Collector, get, output, token, tollgate};
use e2e::{Scratch, program, until};
use serde_json::Value;

/// A running agent. It ends with its command when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok();
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

const RULES: &str = "- rule: Opened\n  desc: d\n  condition: evt.type in (open, openat) and fd.name contains before\n  output: o\n  priority: DEBUG\n\
    - rule: <b>Alerting\n  desc: d\n  condition: evt.type in (open, openat) and fd.name contains alerting\n  output: o %fd.name\n  priority: CRITICAL\n";

/// A collector, and a folder with tokens and rules.
struct Fleet {
    scratch: Scratch,
    collector: Collector,
    operator: String,
}

impl Fleet {
    fn new(further: &[&str]) -> Self {
        let scratch = Scratch::new();
        let store = scratch.path().join("c.db");
        let folder = scratch.path();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).expect("writable");
        };
        write("token", &token(&store, &["--agent-class", "web"]));
        let operator = token(&store, &["--role", "operator"]);
        write("operator", &operator);
        write("viewer", &token(&store, &["--role", "viewer"]));
        write("rules.yaml", RULES);
        write("before", "");
        write("alerting<script>\u{1b}[2J", "");
        let mut arguments = vec!["--insecure"];
        arguments.extend(further);
        Self {
            collector: Collector::start(&store, "127.0.0.1:0", &arguments),
            scratch,
            operator,
        }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// Starts an agent whose command waits for a file `go1`, opens `before`, and then a file with a hostile name, and so on for each
    /// number.
    fn agent(&self, times: u32, further: &[&str]) -> Agent {
        let folder = self.scratch.path().display();
        let script = format!(
            "cd {folder}; for i in $(seq {times}); do while ! test -e go$i; do sleep 0.1; done; : < before; \
             sleep 0.3; for f in alerting*; do : < \"$f\"; done; done; sleep 100"
        );
        let spool = format!("collector_output.spool={}", self.path("spool"));
        let mut command = Command::new(program());
        command.args(["run", "-q", "--engine", "notify", "-o", &spool]);
        command.args(["--collector", &self.collector.url, "-r"]);
        command.arg(self.path("rules.yaml")).args(further);
        command.args(["--", "sh", "-c", &script]);
        command.env("TOLLGATE_TOKEN_FILE", self.path("token"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Agent(command.stderr(Stdio::null()).spawn().expect("it starts"))
    }

    /// Lets the command go on to its alert with this number.
    fn go(&self, number: u32) {
        std::fs::write(self.path(&format!("go{number}")), "").expect("writable");
    }

    /// Waits until the agent has sent something after what the collector has now. Its thread does one thing after the other, so
    /// whatever it sent before is done.
    fn hears_from_agent_again(&self) {
        let last = || self.get("/api/v1/agents")["agents"][0]["last_seen"].clone();
        let before = last();
        assert!(before.is_string(), "{before}");
        until("the agent sends something", || last() != before);
    }

    fn get(&self, path: &str) -> Value {
        get(self.collector.address(), path, &self.operator)
    }

    fn captures(&self) -> Value {
        self.get("/api/v1/captures")["captures"].clone()
    }

    /// What the agent says of captures around alerts.
    fn told(&self) -> Value {
        let agents = self.get("/api/v1/agents");
        agents["agents"][0]["inventory"]["captures_on_alert"].clone()
    }

    fn waits_for_capture(&self) -> Value {
        until("a capture is complete", || {
            self.captures()[0]["state"] == "complete"
        });
        self.captures()[0].clone()
    }

    fn download(&self, role: &str, file: &Path) -> Command {
        let mut command = Command::new(program());
        command.args(["fleet", "download", "1"]).arg(file);
        command.args(["--collector", &self.collector.url, "--token-file"]);
        command.arg(self.scratch.path().join(role));
        command
    }
}

/// Someone who has logged in to the page.
struct Visitor {
    address: SocketAddr,
    cookie: String,
}

impl Visitor {
    /// Adds a user with this role, who logs in.
    fn new(fleet: &Fleet, role: &str) -> Self {
        let words = ["serve", "user", "add", role, "--role", role];
        let password = output(&mut tollgate(&words, &fleet.scratch.path().join("c.db")));
        let form = format!("name={role}&password={}&next=%2Ffleet", password.trim());
        let mut visitor = Self {
            address: fleet.collector.address(),
            cookie: String::new(),
        };
        let (status, head, _) = visitor.ask("POST /login", &form);
        assert_eq!(status, 303, "{head}");
        let cookie = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = cookie.and_then(|cookie| cookie.split(';').next());
        visitor.cookie = cookie.expect("a session").to_owned();
        visitor
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask(&format!("GET {path}"), "");
        (status, body)
    }

    fn ask(&self, what: &str, form: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let (length, cookie) = (form.len(), &self.cookie);
        write!(
            stream,
            "{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: {cookie}\r\nContent-Type: \
             application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
        )
        .expect("it takes requests");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (status.expect("a status"), head.to_owned(), body.to_owned())
    }
}

#[test]
fn an_alert_has_the_capture_around_it_with_the_event_before() {
    let fleet = Fleet::new(&[]);
    let _agent = fleet.agent(
        1,
        &[
            "--allow-captures",
            "-o",
            "collector_output.capture_on_alert.priority=WARNING",
            "-o",
            "collector_output.capture_on_alert.after=1",
        ],
    );
    until("the agent records around alerts", || {
        fleet.told()["condition"]["priority"] == "Warning"
    });
    fleet.go(1);
    let capture = fleet.waits_for_capture();
    assert_eq!(capture["alert"]["rule"], "<b>Alerting", "{capture}");
    assert!(
        capture["alert"]["before_ms"].as_u64() >= Some(250),
        "{capture}"
    );
    assert_eq!(capture["alert"]["after_ms"], 1000, "{capture}");
    assert_eq!(capture["actor"], "agent 1");

    let file = fleet.scratch.path().join("c.scap");
    let refused = fleet.download("viewer", &file).output().expect("it starts");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    output(&mut fleet.download("operator", &file));
    let replayed = output(
        Command::new(program())
            .args(["replay", "-p", "%evt.type %fd.name %proc.name"])
            .arg(&file),
    );
    let at = |what: &str| replayed.lines().position(|line| line.contains(what));
    let (before, alerting) = (at("/before sh"), at("/alerting<script>"));
    assert!(before.is_some() && before < alerting, "{replayed}");
    if e2e::installed("sysdig") {
        let theirs = output(
            Command::new("sysdig")
                .arg("-r")
                .arg(&file)
                .args(["-p", "*%fd.name"]),
        );
        assert!(theirs.contains("/before"), "{theirs}");
    }
    looks_at_it(&fleet);
}

/// Looks at the capture in the page, as an operator and as a viewer.
fn looks_at_it(fleet: &Fleet) {
    let operator = Visitor::new(fleet, "operator");
    let alerts = fleet.get("/api/v1/alerts?severity=Critical");
    let id = alerts["alerts"][0]["id"].as_i64().expect("the alert");
    let (status, alert) = operator.get(&format!("/alerts/{id}"));
    assert_eq!(status, 200);
    assert!(
        alert.contains("<a href=\"/captures/1\">Capture 1</a>: complete"),
        "{alert}"
    );
    assert!(
        alert.contains(" s before and 1.0 s after the alert"),
        "{alert}"
    );

    let (status, all) = operator.get("/captures/1");
    assert_eq!(status, 200);
    assert!(
        all.contains("/captures/1/file") && all.contains("Processes"),
        "{all}"
    );
    let (status, found) = operator.get("/captures/1?filter=fd.name+contains+alerting");
    assert_eq!(status, 200);
    assert!(
        found.contains("alerting&lt;script&gt;\\u001b[2J"),
        "{found}"
    );
    assert!(!found.contains("alerting<script>") && !found.contains('\u{1b}'));
    assert!(!found.contains("/before"), "{found}");
    assert!(found.contains("around an alert of <a") && !found.contains("<b>Alerting"));
    let (status, wrong) = operator.get("/captures/1?filter=evt.type+%3D+openat+and+%3Cu%3E");
    assert_eq!(status, 400);
    assert!(
        wrong.contains("character 23") && wrong.contains("&lt;u&gt;") && !wrong.contains("<u>"),
        "{wrong}"
    );
    let (status, unknown) = operator.get("/captures/1?filter=evt.type+%3D+openat+and+evt.x+%3D+1");
    assert_eq!(status, 400);
    assert!(unknown.contains("character 23"), "{unknown}");
    assert_eq!(operator.get("/captures/77").0, 404);

    let viewer = Visitor::new(fleet, "viewer");
    for path in ["/captures/1", "/captures/1/file"] {
        assert_eq!(viewer.get(path).0, 403, "{path}");
    }
    let (_, alert) = viewer.get(&format!("/alerts/{id}"));
    assert!(alert.contains("Capture 1: complete") && !alert.contains("href=\"/captures/1\""));
}

#[test]
fn the_collector_names_the_alerts_and_those_beyond_the_rate_are_counted() {
    let on = [
        "--capture-on",
        "rule=<b>Alerting",
        "--capture-before",
        "0",
        "--capture-after",
        "0",
    ];
    let fleet = Fleet::new(&on);
    let agent = fleet.agent(
        3,
        &[
            "--allow-captures",
            "-o",
            "collector_output.capture_on_alert.max_per_hour=1",
        ],
    );
    until("the collector's condition has arrived", || {
        fleet.told()["condition"]["rules"][0] == "<b>Alerting"
    });
    fleet.go(1);
    let capture = fleet.waits_for_capture();
    assert_eq!(capture["alert"]["after_ms"], 0, "{capture}");
    assert_eq!(capture["events"], 1, "the event of the alert: {capture}");
    // The agent does not know yet that the collector has all of it: an alert would find it busy.
    fleet.hears_from_agent_again();
    fleet.go(2);
    fleet.go(3);
    until("two alerts are left out, and counted", || {
        let told = fleet.told();
        let left_out = &told["left_out"];
        let counts = ["busy", "rate", "refused"].map(|cause| left_out[cause].as_u64());
        told["begun"] == 1 && counts == [Some(0), Some(2), Some(0)]
    });
    let operator = Visitor::new(&fleet, "operator");
    let alerts = fleet.get("/api/v1/alerts?severity=Critical");
    let id = alerts["alerts"][0]["id"]
        .as_i64()
        .expect("the latest alert");
    let (_, alert) = operator.get(&format!("/alerts/{id}"));
    assert!(alert.contains("None has arrived."), "{alert}");
    assert!(alert.contains("2 beyond its number in an hour"), "{alert}");
    assert_eq!(fleet.captures().as_array().map(Vec::len), Some(1));
    drop(agent);
}

#[test]
fn an_agent_that_allows_no_captures_records_around_no_alert() {
    let fleet = Fleet::new(&["--capture-on", "priority=DEBUG"]);
    let agent = fleet.agent(1, &[]);
    fleet.go(1);
    until("the alert is stored", || {
        let alerts = fleet.get("/api/v1/alerts?severity=Critical");
        alerts["alerts"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    drop(agent);
    assert_eq!(fleet.captures(), Value::Array(Vec::new()));
    let mut command = Command::new(program());
    command.args(["run", "--collector", &fleet.collector.url, "-o"]);
    command.arg("collector_output.capture_on_alert.priority=DEBUG");
    command.args(["--", "true"]);
    command.env("TOLLGATE_TOKEN_FILE", fleet.path("token"));
    let refused = command.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("collector_output.allow_captures"),
        "{stderr}"
    );
}

/// A collector takes ten captures around alerts of an agent in ten minutes. The agent waits with the next one, and with no alert.
#[test]
fn alerts_arrive_while_the_collector_cannot_take_a_capture() {
    let on = [
        "--capture-on",
        "rule=<b>Alerting",
        "--capture-before",
        "0",
        "--capture-after",
        "0",
    ];
    let fleet = Fleet::new(&on);
    let agent = fleet.agent(
        60,
        &[
            "--allow-captures",
            "-o",
            "collector_output.capture_on_alert.max_per_hour=100",
        ],
    );
    until("the collector's condition has arrived", || {
        fleet.told()["condition"]["rules"][0] == "<b>Alerting"
    });
    let complete = || {
        let captures = fleet.captures();
        let captures = captures.as_array().expect("captures").iter();
        captures.filter(|it| it["state"] == "complete").count()
    };
    let alerts = || {
        let alerts = fleet.get("/api/v1/alerts?severity=Critical");
        let alerts = alerts["alerts"].as_array().expect("alerts").len();
        u32::try_from(alerts).expect("few")
    };
    let raise = |number| {
        fleet.go(number);
        until("the alert is stored", || alerts() == number);
    };
    let mut number = 0;
    while complete() < 10 {
        number += 1;
        raise(number);
        // An alert that comes sooner may find the agent with the capture before, and then has none.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    // The first one has a capture that the collector does not take, and the other one finds that.
    raise(number + 1);
    raise(number + 2);
    until("the agent keeps the capture, to try again", || {
        let told = fleet.told();
        let left_out = &told["left_out"];
        let counts = ["rate", "refused"].map(|cause| left_out[cause].as_u64());
        told["begun"] == 11 && left_out["busy"].as_u64() >= Some(1) && counts == [Some(0); 2]
    });
    assert_eq!(complete(), 10);
    drop(agent);
}
