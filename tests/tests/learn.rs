//! What was learnt of real programs: the policy lets the same work be done again, and denies what an
//! intruder would do with them. Two runs that do different things make one policy.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, Scratch, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// A workload, in a folder of its own.
struct Lab {
    scratch: Scratch,
}

impl Lab {
    fn new(files: &[(&str, &str)]) -> Self {
        let scratch = Scratch::new();
        for (name, text) in files {
            let text = text.replace("%W", &scratch.path().display().to_string());
            scratch.file(name, 0o644, text);
        }
        Self { scratch }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn run(&self, options: &[&str], words: &[&str]) -> Finished {
        let mut command = Command::new(e2e::program());
        command
            .args(options)
            .arg("--")
            .args(words)
            .current_dir(self.scratch.path())
            .env("TMPDIR", self.scratch.path())
            .stdin(Stdio::null());
        Limited::start(&mut command, LIMIT).finish(b"")
    }

    /// Adds what a command does to the model, and writes the policy.
    fn learn(&self, words: &[&str]) -> Finished {
        let (out, model) = (self.path("learnt.yaml"), self.path("model.json"));
        let learnt = self.run(&["learn", "-q", "-o", &out, "--model", &model], words);
        assert_eq!(learnt.code(), 0, "{learnt:?}");
        learnt
    }

    /// Runs a command under the policy. Reports of denials are moved from its output to its errors.
    fn enforce(&self, words: &[&str]) -> Finished {
        let policy = self.path("learnt.yaml");
        let mut finished = self.run(&["enforce", "-q", "--policy", &policy], words);
        let is_report = |line: &&str| line.contains("Policy violation: denied");
        let output = std::mem::take(&mut finished.stdout);
        for line in output.split_inclusive('\n') {
            match is_report(&line) {
                true => finished.stderr.push_str(line),
                false => finished.stdout.push_str(line),
            }
        }
        finished
    }

    /// What it did when it was learnt it does under the policy.
    fn passes(&self, words: &[&str], learnt: &Finished) {
        let again = self.enforce(words);
        assert_eq!(
            (again.code(), &again.stdout),
            (0, &learnt.stdout),
            "{again:?}"
        );
        // The policy carries what is accepted.
        assert!(!again.stderr.contains("warning["), "{again:?}");
    }

    /// Whether a built-in rule fits, by `policy advise`.
    fn fits(&self, rule: &str) -> bool {
        let mut command = Command::new(e2e::program());
        command
            .args(["policy", "advise", "--json", &self.path("model.json")])
            .stdin(Stdio::null());
        let advice = Limited::start(&mut command, LIMIT).finish(b"");
        let rows: Vec<Value> = serde_json::from_str(&advice.stdout).expect("it prints JSON");
        let row = rows.iter().find(|row| row["rule"] == rule);
        row.and_then(|row| row["fits"].as_bool())
            .unwrap_or_else(|| panic!("no row for {rule}: {}", advice.stdout))
    }
}

const BUILD: &str = r#"set -e
rm -rf made; mkdir made; cd made
for i in 1 2 3; do printf 'int f%d(int x){return x+%d;}\n' $i $i > f$i.c; done
printf 'int f1(int);int f2(int);int f3(int);int main(){return f1(f2(f3(0)))!=6;}\n' > main.c
for file in *.c; do cc -O1 -c $file & done; wait
cc -o program *.o
./program
ls | wc -l
case "${1:-}" in more) tar cf - program | gzip -c > kept.gz; echo packed ;; esac
echo built
"#;

const BUILD_INTRUDER: &str = r#"
(read line < /etc/shadow) 2> /dev/null && echo shadow
(: > /etc/tollgate-intruder) 2> /dev/null && echo etc
/usr/bin/id > /dev/null 2>&1 && echo id
(kill -0 1) 2> /dev/null && echo signal
echo end
"#;

#[test]
fn a_build_passes_what_was_learnt_of_it_and_an_intruder_does_not() {
    e2e::need_root!();
    let lab = Lab::new(&[("build.sh", BUILD), ("intruder.sh", BUILD_INTRUDER)]);
    let plain = ["sh", "build.sh"];
    let more = ["sh", "build.sh", "more"];
    let first = lab.learn(&plain);
    assert_eq!(first.stdout.lines().last(), Some("built"), "{first:?}");
    lab.passes(&plain, &first);
    // What has not been seen is denied, and after a second run both are allowed.
    let denied = lab.enforce(&more);
    assert_ne!(denied.code(), 0, "{denied:?}");
    let second = lab.learn(&more);
    lab.passes(&more, &second);
    lab.passes(&plain, &first);
    let intruder = lab.enforce(&["sh", "intruder.sh"]);
    assert!(intruder.stderr.contains("Policy violation"), "{intruder:?}");
    assert_eq!(intruder.stdout, "end\n", "{intruder:?}");
    assert!(lab.fits("disable-inet") && lab.fits("disallow-mount"));
}

/// Each name is made, moved, linked and removed in a folder of its own, in which nothing else happens.
const NAMES: &str = "set -e
cd names
mkdir a/made; mv b/from b/to; ln -s x c/link; ln d/file d/second; rm e/file; rmdir f/folder
mv b/to b/from; rm c/link d/second; rmdir a/made; : > e/file; mkdir f/folder
";

#[test]
fn folders_in_which_names_are_made_moved_and_removed_are_learnt() {
    e2e::need_root!();
    let lab = Lab::new(&[("names.sh", NAMES)]);
    for folder in ["a", "b", "c", "d", "e", "f/folder"] {
        std::fs::create_dir_all(lab.scratch.path().join("names").join(folder)).expect("made");
    }
    for file in ["b/from", "d/file", "e/file"] {
        lab.scratch.file(&format!("names/{file}"), 0o644, "");
    }
    let plain = ["sh", "names.sh"];
    let learnt = lab.learn(&plain);
    lab.passes(&plain, &learnt);
}

const SOCKETS: &str = r#"
import json, os, socket, subprocess, sys, threading
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
def serve():
    peer, _ = server.accept(); peer.sendall(peer.recv(100).upper()); peer.close()
thread = threading.Thread(target=serve); thread.start()
client = socket.create_connection(server.getsockname()); client.sendall(b"hello")
print(client.recv(10)); thread.join()
if "more" in sys.argv:
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); packets.bind(("127.0.0.1", 0))
    packets.sendto(b"x", packets.getsockname()); print(packets.recv(5))
left, right = socket.socketpair(); left.send(b"q"); print(right.recv(1))
with open("%W/kept.json", "w") as file: json.dump({"a": 1}, file)
print(json.load(open("%W/kept.json")), os.stat("/etc/hosts").st_size > 0)
"#;

const SOCKETS_INTRUDER: &str = r#"
import os, socket
def attempt(name, deed):
    try: deed(); print(name)
    except OSError as error: pass
attempt("shadow", lambda: open("/etc/shadow"))
attempt("folder", lambda: os.listdir("/root"))
attempt("etc", lambda: open("/etc/tollgate-intruder", "w"))
attempt("program", lambda: os.posix_spawn("/usr/bin/id", ["id"], {}))
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("inet6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
attempt("mode", lambda: os.chmod("%W/kept.json", 0o4755))
attempt("signal", lambda: os.kill(1, 0))
attempt("process", lambda: open("/proc/1/environ"))
attempt("user", lambda: os.setuid(1))
attempt("root", lambda: os.chroot("/"))
attempt("memory", lambda: os.memfd_create("x"))
print("end")
"#;

#[test]
fn a_program_with_sockets_passes_what_was_learnt_of_it_and_an_intruder_does_not() {
    e2e::need_root!();
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        skip!(
            "needs /usr/bin/python3",
            || match Path::new(python).exists() {
                true => Err("it is there".to_owned()),
                false => Ok("it is not there".to_owned()),
            }
        );
    }
    let lab = Lab::new(&[("sockets.py", SOCKETS), ("intruder.py", SOCKETS_INTRUDER)]);
    let plain = [python, "-I", "sockets.py"];
    let more = [python, "-I", "sockets.py", "more"];
    let first = lab.learn(&plain);
    lab.passes(&plain, &first);
    let denied = lab.enforce(&more);
    assert!(denied.stderr.contains("PermissionError"), "{denied:?}");
    assert!(lab.fits("disable-udp"));
    let second = lab.learn(&more);
    lab.passes(&more, &second);
    lab.passes(&plain, &first);
    let intruder = lab.enforce(&[python, "-I", "intruder.py"]);
    assert_eq!(intruder.stdout, "end\n", "{intruder:?}");
    assert!(!lab.fits("disable-udp") && lab.fits("disable-inet6"));
}

const NGINX: &str = "worker_processes 2; pid %W/nginx.pid; error_log %W/error.log; daemon off;
events { worker_connections 64; }
http {
    access_log %W/access.log; client_body_temp_path %W/body; proxy_temp_path %W/proxy;
    fastcgi_temp_path %W/fastcgi; uwsgi_temp_path %W/uwsgi; scgi_temp_path %W/scgi; sendfile on;
    server { listen unix:%W/socket; root %W/www; autoindex on; }
}
";

/// Asks for pages, and has the server end when it has answered.
const SERVED: &str = r#"
nginx -c %W/nginx.conf & server=$!
for try in $(seq 100); do test ! -S %W/socket || break; sleep 0.1; done
for page in "$@"; do
    curl -s -o /dev/null -w "%{http_code} $page\n" --unix-socket %W/socket "http://server/$page"
done
kill -QUIT $server; wait $server; echo "ended with $?"
rm -f %W/socket
"#;

const NGINX_INTRUDER: &str = r#"
(read line < /etc/shadow) 2> /dev/null && echo shadow
(: > /etc/tollgate-intruder) 2> /dev/null && echo etc
/usr/bin/id > /dev/null 2>&1 && echo id
curl -s -o /dev/null file:///etc/shadow && echo read
echo end
"#;

#[test]
fn a_server_passes_what_was_learnt_of_it_and_an_intruder_does_not() {
    e2e::need_root!();
    if !e2e::installed("nginx") || !e2e::installed("curl") {
        skip!(
            "needs nginx and curl",
            || match !e2e::installed("nginx") || !e2e::installed("curl") {
                true => Ok("they are not in PATH".to_owned()),
                false => Err("they are there".to_owned()),
            }
        );
    }
    let lab = Lab::new(&[
        ("nginx.conf", NGINX),
        ("serve.sh", SERVED),
        ("intruder.sh", NGINX_INTRUDER),
        ("www/index.html", "hello\n"),
        ("www/more/page", "page\n"),
    ]);
    let work = ["sh", "serve.sh", "index.html", "", "more/page", "missing"];
    let learnt = lab.learn(&work);
    let expected = "200 index.html\n200 \n200 more/page\n404 missing\nended with 0\n";
    assert_eq!(learnt.stdout, expected, "{learnt:?}");
    lab.passes(&work, &learnt);
    let intruder = lab.enforce(&["sh", "intruder.sh"]);
    assert_eq!(intruder.stdout, "end\n", "{intruder:?}");
    assert!(!lab.fits("disable-cap-setuid") && lab.fits("disallow-mount"));
}

/// Two runs, the second of which sees so much more that what it learnt has no room.
const FULL: &str = r#"set -e
mount -t tmpfs -o size=256k none %W/disk
learn() { "$TOLLGATE" learn -q -o disk/p.yaml --model disk/m.json -- "$@"; }
learn true
cp disk/p.yaml disk/m.json .
cat /dev/zero > disk/filler 2> /dev/null || true
set +e
learn sh -c 'for file in /usr/bin/*; do test ! -f $file || : < $file; done'
echo "status $?"
cmp p.yaml disk/p.yaml && cmp m.json disk/m.json && echo kept
ls -A disk
"#;

#[test]
fn a_full_disk_leaves_what_was_learnt_before() {
    e2e::need_root!();
    let lab = Lab::new(&[("full.sh", FULL), ("disk/nothing", "")]);
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "full.sh"])
        .env("TOLLGATE", e2e::program())
        .current_dir(lab.scratch.path())
        .stdin(Stdio::null());
    let ended = Limited::start(&mut command, LIMIT).finish(b"");
    let expected = "status 2\nkept\nfiller\nm.json\np.yaml\n";
    assert_eq!(ended.stdout, expected, "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("cannot write disk/m.json: No space left"),
        "{ended:?}"
    );
}

#[test]
fn one_file_for_policy_and_model_is_refused() {
    let lab = Lab::new(&[]);
    let out = lab.path("p.yaml");
    let refused = lab.run(&["learn", "-o", &out, "--model", "./p.yaml"], &["true"]);
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (2, ""),
        "{refused:?}"
    );
    assert!(
        refused.stderr.contains("policy and model to one file"),
        "{refused:?}"
    );
    assert!(!Path::new(&out).exists());
}
