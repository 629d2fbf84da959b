//! Services in five languages that do what they are asked: their work, and what an intruder would have them do.

use std::path::Path;

use e2e::Scratch;

use crate::lab::{Client, Server, check};

const NUMBERS: [(&str, &str); 4] = [
    ("data/a.json", "[1, 2]"),
    ("data/b.json", "[3]"),
    ("data/c.json", "[4, 5]"),
    ("data/d.json", "[6]"),
];

/// A service with this file, which `command` runs.
fn service(
    command: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    attacks: &'static [&'static str],
) -> Server {
    Server {
        build: &[],
        command,
        files,
        learnt: &[
            "GET /sum/a.json HTTP/1.0\r\n\r\n",
            "GET /sum/b.json HTTP/1.0\r\n\r\n",
            "GET /keep/one HTTP/1.0\r\n\r\n",
        ],
        other: &[
            "GET /sum/c.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "GET /keep/two HTTP/1.0\r\n\r\n",
            "GET /sum/d.json HTTP/1.0\r\n\r\n",
        ],
        attacks,
        end: "GET /quit HTTP/1.0\r\n\r\n",
        won: "won",
        reads: &[],
        done: "done",
        refused: "lost",
        client: Client::Connection,
    }
}

#[test]
fn a_python_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    check(&service(
        &["/usr/bin/python3", "%W/service.py"],
        &[
            (
                "service.py",
                include_str!("../../fixtures/learn/service.py"),
            ),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
            "GET /attack/raw HTTP/1.0\r\n\r\n",
            "GET /attack/tmp HTTP/1.0\r\n\r\n",
            "GET /attack/passwd HTTP/1.0\r\n\r\n",
        ],
    ));
}

/// Processes of its own, a database, an archive, another program.
#[test]
fn a_python_job_queue_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    check(&service(
        &["/usr/bin/python3", "%W/worker.py"],
        &[
            ("worker.py", include_str!("../../fixtures/learn/worker.py")),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/proc HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
            "GET /attack/tmp HTTP/1.0\r\n\r\n",
            "GET /attack/cron HTTP/1.0\r\n\r\n",
            "GET /attack/keys HTTP/1.0\r\n\r\n",
            "GET /attack/raw HTTP/1.0\r\n\r\n",
            "GET /attack/mount HTTP/1.0\r\n\r\n",
        ],
    ));
}

#[test]
fn a_node_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/bin/node").exists() {
        e2e::skip!("needs node", || Ok("there is none".to_owned()));
    }
    check(&service(
        &["/usr/bin/node", "%W/service.js"],
        &[
            (
                "service.js",
                include_str!("../../fixtures/learn/service.js"),
            ),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
        ],
    ));
}

#[test]
fn a_go_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].map(Path::new);
    let Some(go) = go.into_iter().find(|go| go.exists()) else {
        e2e::skip!("needs go", || Ok("there is none".to_owned()));
    };
    let cache = Scratch::new();
    let build = format!(
        "HOME=\"$1\" GOCACHE={} GOFLAGS=-mod=mod {} build -o \"$1/service\" \"$1/service.go\"\n",
        cache.path().display(),
        go.display()
    );
    let build: &'static str = Box::leak(build.into_boxed_str());
    let files: &'static [(&str, &str)] = Box::leak(Box::new([
        (
            "service.go",
            include_str!("../../fixtures/learn/service.go"),
        ),
        ("build.sh", build),
        NUMBERS[0],
        NUMBERS[1],
        NUMBERS[2],
        NUMBERS[3],
    ]));
    let mut server = service(
        &["%W/service"],
        files,
        &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/passwd HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
            "GET /attack/tmp HTTP/1.0\r\n\r\n",
            "GET /attack/raw HTTP/1.0\r\n\r\n",
        ],
    );
    server.build = &["/bin/sh", "%W/build.sh", "%W"];
    check(&server);
}

#[test]
fn a_java_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/bin/javac").exists() {
        e2e::skip!("needs a JDK", || Ok("there is no javac".to_owned()));
    }
    let mut server = service(
        &["/usr/bin/java", "-cp", "%W", "Service"],
        &[
            (
                "Service.java",
                include_str!("../../fixtures/learn/Service.java"),
            ),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
            "GET /attack/root HTTP/1.0\r\n\r\n",
        ],
    );
    server.build = &["/usr/bin/javac", "-d", "%W", "%W/Service.java"];
    // The virtual machine asks for the name of its user.
    server.reads = &["/etc/passwd"];
    check(&server);
}
