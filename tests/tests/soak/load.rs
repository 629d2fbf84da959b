//! What the machine does meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use e2e::{Fixture, program, which};
use rustix::process::{Pid, Signal, kill_process_group};

/// Scripts that go on until there is a file `stop`. Each runs in a folder of its own.
const SCRIPTS: [(&str, &str); 6] = [
    ("web", WEB),
    ("database", DATABASE),
    (
        "build",
        "while ! test -e ../stop; do gcc -O1 -D_GNU_SOURCE -c \"$SOURCE\" -o out.o; echo >> rounds; sleep 1; done",
    ),
    (
        "churn",
        "while ! test -e ../stop; do for i in $(seq 100); do /bin/true; done; echo >> rounds; sleep 0.3; done",
    ),
    (
        "logins",
        "while ! test -e ../stop; do su -s /bin/sh -c true nobody; echo >> rounds; sleep 0.7; done",
    ),
    (
        "generator",
        "while ! test -e ../stop; do \"$TOLLGATE\" generate run ReadSensitiveFileUntrusted > said 2>&1; echo >> rounds; sleep 3; done",
    ),
];

const WEB: &str = r#"
mkdir site; echo page > site/index.html; chmod 755 site; chmod 644 site/*
cat > nginx.conf <<CONF
daemon off; worker_processes 2; pid $PWD/pid; error_log $PWD/error.log;
events { worker_connections 256; }
http {
    access_log off; client_body_temp_path $PWD/body; proxy_temp_path $PWD/proxy; fastcgi_temp_path $PWD/fastcgi;
    uwsgi_temp_path $PWD/uwsgi; scgi_temp_path $PWD/scgi;
    server { listen 127.0.0.1:$PORT; root $PWD/site; }
}
CONF
nginx -p "$PWD" -c nginx.conf -e error.log & server=$!
sleep 1
while ! test -e ../stop; do ab -q -n 300 -c 8 "http://127.0.0.1:$PORT/" > ab.log 2>&1; echo >> rounds; sleep 1; done
kill -QUIT $server; wait $server
"#;

const DATABASE: &str = r#"
redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' --daemonize no > log & server=$!
sleep 1
while ! test -e ../stop; do
    redis-benchmark -s "$PWD/socket" -n 1000 -c 5 -q -t set,get > benchmark 2>&1; echo >> rounds; sleep 1
done
kill -TERM $server; wait $server
"#;

/// Scripts that run. They are killed when dropped.
pub(crate) struct Load {
    folder: PathBuf,
    children: Vec<(&'static str, Child)>,
}

impl Load {
    /// Starts all scripts below a folder. `enter`: what each shell does first.
    pub(crate) fn start(folder: &Path, port: u16, enter: &str) -> Self {
        for name in [
            "nginx",
            "ab",
            "redis-server",
            "redis-benchmark",
            "gcc",
            "su",
        ] {
            which(name);
        }
        let source = e2e::repository().join("tests/fixtures/calls.c");
        let children = SCRIPTS.map(|(name, script)| {
            let work = folder.join(name);
            fs::create_dir_all(&work).expect("the scratch folder is writable");
            let child = Command::new("sh")
                .args(["-c", &format!("{enter}{script}")])
                .current_dir(&work)
                .env("PORT", port.to_string())
                .env("SOURCE", &source)
                .env("TOLLGATE", program())
                .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(work.join("stderr")).expect("writable"))
                .spawn();
            (name, child.expect("a shell"))
        });
        Self {
            folder: folder.to_owned(),
            children: children.into(),
        }
    }

    /// Ends the scripts. Returns how many rounds each has made.
    pub(crate) fn finish(mut self) -> Vec<(&'static str, usize)> {
        fs::write(self.folder.join("stop"), "").expect("writable");
        for (name, child) in &mut self.children {
            e2e::until(name, || {
                child.try_wait().expect("it is our child").is_some()
            });
        }
        let rounds = |name: &str| {
            let text = fs::read_to_string(self.folder.join(name).join("rounds"));
            // A load that never ended a round has no file.
            text.map_or(0, |text| text.lines().count())
        };
        self.children
            .iter()
            .map(|(name, _)| (*name, rounds(name)))
            .collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // Fails if all have ended, as they should.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

/// How a receiver of alerts treats who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    /// Takes alerts.
    Takes,
    /// Closes connections.
    Closes,
    /// Takes connections, and says nothing for some seconds.
    Hangs,
}

/// A web server for alerts.
pub(crate) struct Receiver {
    /// Where it listens.
    pub(crate) port: u16,
    mood: Arc<AtomicU8>,
    taken: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts one.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        listener.set_nonblocking(true).expect("a socket");
        let receiver = Self {
            port,
            mood: Arc::new(AtomicU8::new(Mood::Takes as u8)),
            taken: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        let (mood, taken) = (Arc::clone(&receiver.mood), Arc::clone(&receiver.taken));
        let is_over = Arc::clone(&receiver.is_over);
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => receive(stream, &mood, &taken),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self {
            thread: Some(thread),
            ..receiver
        }
    }

    /// Treats senders so from now on.
    pub(crate) fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::Relaxed);
    }

    /// Ends it. Returns how many requests were answered.
    pub(crate) fn finish(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it was started");
        thread.join().expect("it does not panic");
        self.taken.load(Ordering::Relaxed)
    }
}

fn receive(mut stream: TcpStream, mood: &AtomicU8, taken: &AtomicU64) {
    let mood = mood.load(Ordering::Relaxed);
    if mood == Mood::Closes as u8 {
        return;
    }
    if mood == Mood::Hangs as u8 {
        thread::sleep(Duration::from_secs(3));
        return;
    }
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(2))));
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    // Who sends half a request, or closes, gets no answer.
    while prepared.is_ok() {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => text.extend(&buffer[..read]),
        }
        if is_whole(&text) {
            break;
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    if stream.write_all(answer).is_ok() {
        taken.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|text| text.trim().parse::<usize>().ok());
    length.is_some_and(|length| request.len() >= end + 4 + length)
}

/// Fills the tables of detectors, which keep so many processes of the past, and those alone. `enter`: what a shell does
/// first.
pub(crate) fn fill_tables(crowd: &Fixture, enter: &str) {
    let script = format!("{enter}exec \"$0\" births 20000");
    let done = Command::new("sh")
        .args(["-c", &script])
        .arg(crowd.program())
        .status();
    assert!(done.expect("a shell").success());
}

/// A shell that opens a file when it is told to.
pub(crate) struct Marker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Marker {
    /// Starts one. `enter`: what it does first.
    pub(crate) fn start(file: &Path, enter: &str) -> Self {
        let script = format!(
            "{enter}while read -r times; do
                 while [ $times -gt 0 ]; do : < \"$0\"; times=$((times - 1)); done; echo done
             done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        Self { child, answers }
    }

    /// Opens the file so often.
    pub(crate) fn open(&mut self, times: u64) {
        let orders = self.child.stdin.as_mut().expect("it was asked for");
        writeln!(orders, "{times}").expect("it reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it prints UTF-8");
        assert_eq!(line, "done\n");
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
