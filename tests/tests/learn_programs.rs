//! Policies learnt of real programs: a second run that does other work of the same kind is not denied anything, and
//! attacks through the program are.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Finished, Limited, Scratch};

const LIMIT: Duration = Duration::from_secs(120);
/// Has a server end by a file instead of a request.
const END_FILE: &str = "made/end";
const START: Duration = Duration::from_secs(30);

/// A server that is learnt: its command line, with `%W` for its folder and `%P` for its port.
struct Server {
    command: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    /// Requests of the run that is learnt, of another run, of attacks, and the one that ends the server.
    learnt: &'static [&'static str],
    other: &'static [&'static str],
    attacks: &'static [&'static str],
    end: &'static str,
    /// Text in an answer to an attack that succeeded.
    won: &'static str,
    /// Text in each other answer.
    done: &'static str,
}

struct Lab<'a> {
    server: &'a Server,
    scratch: Scratch,
    port: u16,
}

impl<'a> Lab<'a> {
    fn new(server: &'a Server) -> Self {
        let scratch = Scratch::new();
        let free = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = free.local_addr().expect("it is bound").port();
        let lab = Self {
            server,
            scratch,
            port,
        };
        for folder in ["data", "made"] {
            std::fs::create_dir(lab.scratch.path().join(folder)).expect("it is ours");
        }
        for (name, text) in server.files {
            lab.scratch.file(name, 0o644, lab.filled(text));
        }
        lab
    }

    fn filled(&self, text: &str) -> String {
        let folder = self.scratch.path().display().to_string();
        text.replace("%W", &folder)
            .replace("%P", &self.port.to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs the server below `tollgate OPTIONS`, makes requests and ends it. Returns the answers.
    fn serve(&self, options: &[&Path], requests: &[&str]) -> (Finished, Vec<String>) {
        let mut command = Command::new(e2e::program());
        command.args(options).arg("--");
        command.args(self.server.command.iter().map(|word| self.filled(word)));
        command
            .current_dir(self.scratch.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin")
            .env("HOME", "/nonexistent")
            .env("TMPDIR", self.path("made"))
            .stdin(Stdio::null());
        let running = Limited::start(&mut command, LIMIT);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if began.elapsed() > START {
                let finished = running.finish(b"");
                panic!("the server does not answer: {finished:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let answers = requests
            .iter()
            .map(|request| self.request(request))
            .collect();
        match self.server.end {
            END_FILE => std::fs::write(self.path("made/end"), "").expect("the folder is ours"),
            request => drop(self.request(request)),
        }
        (running.finish(b""), answers)
    }

    fn request(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a limit can be set");
        // An answer that is cut off lacks what is expected in it.
        let _ = stream.write_all(self.filled(text).as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Learns one run, and checks another one and attacks under the policy.
fn check(server: &Server) {
    let lab = Lab::new(server);
    let policy = lab.path("learnt.yaml");
    let learn = [Path::new("learn"), Path::new("-o"), &policy];
    let (learnt, answers) = lab.serve(&learn, server.learnt);
    let policy_text = std::fs::read_to_string(&policy).unwrap_or_else(|_| panic!("{learnt:?}"));
    for answer in &answers {
        assert!(answer.contains(server.done), "{answer}: {learnt:?}");
    }
    assert!(learnt.stderr.contains("until nothing is new"), "{learnt:?}");
    for shared in ["\"/tmp/**\"", "\"/etc/**\"", "\"/**\"", "\"/etc/shadow\""] {
        assert!(!policy_text.contains(shared), "{policy_text}");
    }
    let enforce = [
        Path::new("enforce"),
        Path::new("-q"),
        Path::new("--policy"),
        &policy,
    ];
    let (other, answers) = lab.serve(&enforce, server.other);
    for answer in &answers {
        assert!(answer.contains(server.done), "{answer}: {other:?}");
    }
    let denials: Vec<&str> = other
        .stderr
        .lines()
        .chain(other.stdout.lines())
        .filter(|line| line.contains("Policy violation"))
        .collect();
    assert!(denials.is_empty(), "{denials:#?}");
    let (attacked, answers) = lab.serve(&enforce, server.attacks);
    for (attack, answer) in server.attacks.iter().zip(&answers) {
        assert!(!answer.contains(server.won), "{attack:?} works: {answer}");
    }
    let reports = attacked.stderr + &attacked.stdout;
    assert!(reports.contains("Policy violation"), "{reports}");
}

/// A service that does what it is asked: its work, and what an intruder would have it do.
const PYTHON: &str = r#"
import http.server, json, os, socket, subprocess, sys, threading, urllib.parse
ATTACKS = {
    "shadow": lambda: open("/etc/shadow").read(), "passwd": lambda: open("/etc/passwd").read(),
    "tmp": lambda: os.listdir("/tmp"), "environ": lambda: open("/proc/1/environ").read(),
    "run": lambda: subprocess.run(["/usr/bin/id"], check=True), "etc": lambda: open("/etc/tollgate-new", "w"),
    "raw": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
}
class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        what = urllib.parse.unquote(self.path[1:])
        text = "done"
        if what == "quit": threading.Thread(target=server.shutdown).start()
        elif what.startswith("attack/"):
            try: ATTACKS[what[7:]](); text = "won"
            except Exception as error: text = "lost %r" % error
        elif what.startswith("sum/"): text = "done %d" % sum(json.load(open("%W/data/" + what[4:])))
        elif what.startswith("keep/"):
            with open("%W/made/" + what[5:], "w") as file: file.write("x" * 100000); file.flush(); os.fsync(file.fileno())
        self.send_response(200); self.end_headers(); self.wfile.write(text.encode())
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", %P), Service)
server.serve_forever()
"#;

const NUMBERS: [(&str, &str); 4] = [
    ("data/a.json", "[1, 2]"),
    ("data/b.json", "[3]"),
    ("data/c.json", "[4, 5]"),
    ("data/d.json", "[6]"),
];

const QUIT: &str = "GET /quit HTTP/1.0\r\n\r\n";

#[test]
fn a_python_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    check(&Server {
        command: &["/usr/bin/python3", "%W/service.py"],
        files: &[
            ("service.py", PYTHON),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        learnt: &[
            "GET /sum/a.json HTTP/1.0\r\n\r\n",
            "GET /sum/b.json HTTP/1.0\r\n\r\n",
            "GET /keep/one HTTP/1.0\r\n\r\n",
        ],
        other: &[
            "GET /sum/c.json HTTP/1.1\r\nConnection: close\r\n\r\n",
            "GET /keep/two HTTP/1.0\r\n\r\n",
            "GET /sum/d.json HTTP/1.0\r\n\r\n",
        ],
        attacks: &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
            "GET /attack/raw HTTP/1.0\r\n\r\n",
            "GET /attack/tmp HTTP/1.0\r\n\r\n",
            "GET /attack/passwd HTTP/1.0\r\n\r\n",
        ],
        end: QUIT,
        won: "won",
        done: "done",
    });
}

const NODE: &str = r#"
const http = require("http"), fs = require("fs"), child = require("child_process");
const attacks = {
  shadow: () => fs.readFileSync("/etc/shadow"), environ: () => fs.readFileSync("/proc/1/environ"),
  run: () => child.execFileSync("/usr/bin/id"), etc: () => fs.writeFileSync("/etc/tollgate-new", "x"),
};
const server = http.createServer((request, answer) => {
  const [, what, name] = request.url.split("/");
  const end = text => answer.end(text);
  if (what == "quit") { end("done"); server.close(); server.closeAllConnections(); }
  else if (what == "attack") { try { attacks[name](); end("won"); } catch (error) { end("lost " + error); } }
  else if (what == "sum") fs.readFile("%W/data/" + name, (error, text) => end(error ? "" + error : "done " + text));
  else fs.writeFile("%W/made/" + name, "x".repeat(100000), error => end(error ? "" + error : "done"));
}).listen(%P, "127.0.0.1");
"#;

#[test]
fn a_node_service_works_on_other_input_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    let program = "/usr/bin/node";
    if !Path::new(program).exists() {
        e2e::skip!("needs node", || Ok("there is none".to_owned()));
    }
    check(&Server {
        command: &["/usr/bin/node", "%W/service.js"],
        files: &[
            ("service.js", NODE),
            NUMBERS[0],
            NUMBERS[1],
            NUMBERS[2],
            NUMBERS[3],
        ],
        learnt: &[
            "GET /sum/a.json HTTP/1.0\r\n\r\n",
            "GET /sum/b.json HTTP/1.0\r\n\r\n",
            "GET /keep/one HTTP/1.0\r\n\r\n",
        ],
        other: &[
            "GET /sum/c.json HTTP/1.0\r\n\r\n",
            "GET /keep/two HTTP/1.0\r\n\r\n",
        ],
        attacks: &[
            "GET /attack/shadow HTTP/1.0\r\n\r\n",
            "GET /attack/environ HTTP/1.0\r\n\r\n",
            "GET /attack/run HTTP/1.0\r\n\r\n",
            "GET /attack/etc HTTP/1.0\r\n\r\n",
        ],
        end: QUIT,
        won: "won",
        done: "done",
    });
}

const NGINX: &str = r"
daemon off; pid %W/made/nginx.pid; error_log %W/made/error.log; user www-data;
events { worker_connections 64; }
http {
  access_log %W/made/access.log; client_body_temp_path %W/made/body; proxy_temp_path %W/made/p; fastcgi_temp_path %W/made/f;
  uwsgi_temp_path %W/made/u; scgi_temp_path %W/made/s;
  server { listen 127.0.0.1:%P; root %W/data; location /all/ { alias /; } }
}
";

#[test]
fn nginx_starts_again_and_serves_other_files_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/sbin/nginx").exists() {
        e2e::skip!("needs nginx", || Ok("there is none".to_owned()));
    }
    let server = Server {
        command: &["/bin/sh", "%W/run.sh"],
        files: &[
            ("nginx.conf", NGINX),
            (
                "run.sh",
                "/usr/sbin/nginx -c %W/nginx.conf & \
                        while [ ! -e %W/made/end ]; do sleep 0.1; done; kill -QUIT $!; wait $!; rm %W/made/end\n",
            ),
            ("data/a.html", "done a"),
            ("data/b.html", "done b"),
            ("data/c.html", "done c"),
        ],
        learnt: &[
            "GET /a.html HTTP/1.0\r\n\r\n",
            "GET /b.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        ],
        other: &[
            "GET /c.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "GET /a.html?done=%57 HTTP/1.0\r\nUser-Agent: another-done\r\n\r\n",
        ],
        attacks: &[
            "GET /all/etc/shadow HTTP/1.0\r\n\r\n",
            "GET /all/etc/hostname HTTP/1.0\r\n\r\n",
        ],
        end: END_FILE,
        won: "200 OK",
        done: "done",
    };
    check(&server);
}

#[test]
fn redis_keeps_other_data_and_attacks_through_it_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/bin/redis-server").exists() {
        e2e::skip!("needs redis", || Ok("there is none".to_owned()));
    }
    check(&Server {
        command: &[
            "/usr/bin/redis-server",
            "--port",
            "%P",
            "--bind",
            "127.0.0.1",
            "--dir",
            "%W/made",
            "--enable-protected-configs",
            "yes",
            "--appendonly",
            "yes",
        ],
        files: &[],
        learnt: &[
            "SET a 1\r\nSAVE\r\nQUIT\r\n",
            "GET a\r\nBGSAVE\r\nINFO\r\nQUIT\r\n",
        ],
        other: &[
            "SET b 2\r\nAPPEND b 3\r\nSAVE\r\nQUIT\r\n",
            "LPUSH l 1 2 3\r\nBGREWRITEAOF\r\nQUIT\r\n",
        ],
        attacks: &[
            "CONFIG SET dir /etc\r\nSAVE\r\nQUIT\r\n",
            "CONFIG SET dir /usr\r\nSAVE\r\nQUIT\r\n",
        ],
        end: "SHUTDOWN NOSAVE\r\n",
        won: "+OK\r\n+OK\r\n+OK",
        done: "+OK",
    });
}

/// Two runs make one policy, and what was new in the last one is said.
#[test]
fn several_runs_make_one_policy_and_say_what_was_new() {
    let scratch = Scratch::new();
    let folder = scratch.path().display().to_string();
    for name in ["in/1.txt", "in/2.txt", "in/3.txt", "in/4.txt"] {
        scratch.file(name, 0o644, "text\n");
    }
    let script = "cd $1; read n < state/count; echo $((n + 1)) > state/count; read text < in/$n.txt || exit 3; echo $text $n\n";
    let script = scratch.file("run.sh", 0o644, script).display().to_string();
    scratch.file("state/count", 0o666, "1\n");
    let policy = scratch.path().join("learnt.yaml").display().to_string();
    let run = |options: &[&str]| {
        let mut command = Command::new(e2e::program());
        command
            .args(options)
            .args(["--", "/bin/sh", &script, &folder]);
        let mut finished = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
        finished.stdout.retain(|character| character != '\r');
        finished
    };
    let learnt = run(&["learn", "--runs", "2", "-o", &policy]);
    assert_eq!(
        (learnt.code(), &*learnt.stdout),
        (0, "text 1\ntext 2\n"),
        "{learnt:?}"
    );
    let folder_of_input = format!("{folder}/in/**");
    assert!(
        learnt.stderr.contains("new in this run: 1 file ("),
        "{learnt:?}"
    );
    assert!(learnt.stderr.contains(&folder_of_input), "{learnt:?}");
    let other = run(&["enforce", "-q", "--policy", &policy]);
    assert_eq!((other.code(), &*other.stdout), (0, "text 3\n"), "{other:?}");
    std::fs::remove_file(scratch.path().join("in/4.txt")).expect("it is ours");
    let failed = run(&["learn", "--runs", "2", "-o", &policy]);
    assert_ne!(failed.code(), 0, "{failed:?}");
    assert!(failed.stderr.contains("run 1 of 2 failed"), "{failed:?}");
}
