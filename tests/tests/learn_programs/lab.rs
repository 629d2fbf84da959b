//! A server, what is learnt of it, and attacks through it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Finished, Limited, Scratch};

pub(crate) const LIMIT: Duration = Duration::from_secs(240);
/// Has a server end by a file instead of a request.
pub(crate) const END_FILE: &str = "made/end";
/// A debug build takes long to find the files of a policy on a busy machine.
const START: Duration = Duration::from_secs(120);
/// What no policy allows unless the program has read just that. `/root` is the home of root on every machine.
const SHARED: [&str; 8] = [
    "/tmp/**",
    "/etc/**",
    "/**",
    "/root/**",
    "/proc/**",
    "/proc/*/**",
    "/etc/passwd",
    "/etc/shadow",
];

/// A server that is learnt: its command line, with `%W` for its folder and `%P` for its port.
pub(crate) struct Server {
    /// What makes the program from its files; empty for nothing.
    pub(crate) build: &'static [&'static str],
    pub(crate) command: &'static [&'static str],
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// Requests of the run that is learnt, of another run, of attacks, and the one that ends the server.
    pub(crate) learnt: &'static [&'static str],
    pub(crate) other: &'static [&'static str],
    pub(crate) attacks: &'static [&'static str],
    pub(crate) end: &'static str,
    /// Text in an answer to an attack that succeeded.
    pub(crate) won: &'static str,
    /// Those of [`SHARED`] that the program reads itself.
    pub(crate) reads: &'static [&'static str],
    /// Text in each other answer, and text that none of them has.
    pub(crate) done: &'static str,
    pub(crate) refused: &'static str,
    /// What makes a request.
    pub(crate) client: Client,
}

/// What makes a request and gets the answer.
#[derive(Clone, Copy)]
pub(crate) enum Client {
    /// A connection that the server closes.
    Connection,
    /// A program that reads the request from its standard input.
    Program(&'static [&'static str]),
}

pub(crate) struct Lab<'a> {
    server: &'a Server,
    scratch: Scratch,
    port: u16,
}

/// What redis and PostgreSQL answer while they have read no data yet; they listen before.
const STARTING: [&str; 2] = ["-LOADING", "the database system is starting up"];

impl<'a> Lab<'a> {
    pub(crate) fn new(server: &'a Server) -> Self {
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
        if let [program, words @ ..] = server.build {
            let mut command = Command::new(program);
            command.args(words.iter().map(|word| lab.filled(word)));
            let built = Limited::start(&mut command, LIMIT).finish(b"");
            assert_eq!(built.code(), 0, "{built:?}");
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
        loop {
            let answer = match self.server.client {
                Client::Connection => self.over_a_connection(text),
                Client::Program(words) => self.by_a_program(words, text),
            };
            if !STARTING.iter().any(|starting| answer.contains(starting)) {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn over_a_connection(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a limit can be set");
        // An answer that is cut off lacks what is expected in it.
        let _ = stream.write_all(self.filled(text).as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn by_a_program(&self, words: &[&str], text: &str) -> String {
        let mut command = Command::new(words[0]);
        command
            .args(words[1..].iter().map(|word| self.filled(word)))
            .stdin(Stdio::piped());
        let client = Limited::start(&mut command, LIMIT).finish(self.filled(text).as_bytes());
        client.stdout + &client.stderr
    }
}

impl Server {
    fn has_done(&self, answers: &[String], finished: &Finished) {
        for answer in answers {
            let is_refused = !self.refused.is_empty() && answer.contains(self.refused);
            assert!(
                answer.contains(self.done) && !is_refused,
                "{answer}: {finished:?}"
            );
        }
    }
}

/// A policy grants none of [`SHARED`] but those that the program reads itself.
pub(crate) fn allows_nothing_shared(policy: &str, reads: &[&str]) {
    for shared in SHARED.iter().filter(|path| !reads.contains(path)) {
        let pattern = format!("\"{shared}\"");
        assert!(!policy.contains(&pattern), "{shared}: {policy}");
    }
}

pub(crate) fn has_no_denial(finished: &Finished) {
    let lines = finished.stderr.lines().chain(finished.stdout.lines());
    let denials: Vec<&str> = lines
        .filter(|line| line.contains("Policy violation"))
        .collect();
    assert!(denials.is_empty(), "{denials:#?}");
}

/// Learns one run, and checks another one and attacks under the policy.
pub(crate) fn check(server: &Server) {
    let lab = Lab::new(server);
    let policy = lab.path("learnt.yaml");
    let learn = [Path::new("learn"), Path::new("-o"), &policy];
    let (learnt, answers) = lab.serve(&learn, server.learnt);
    let policy_text = std::fs::read_to_string(&policy).unwrap_or_else(|_| panic!("{learnt:?}"));
    server.has_done(&answers, &learnt);
    assert!(learnt.stderr.contains("until nothing is new"), "{learnt:?}");
    allows_nothing_shared(&policy_text, server.reads);
    let enforce = [
        Path::new("enforce"),
        Path::new("-q"),
        Path::new("--policy"),
        &policy,
    ];
    let (other, answers) = lab.serve(&enforce, server.other);
    server.has_done(&answers, &other);
    has_no_denial(&other);
    let (attacked, answers) = lab.serve(&enforce, server.attacks);
    for (attack, answer) in server.attacks.iter().zip(&answers) {
        assert!(!answer.contains(server.won), "{attack:?} works: {answer}");
    }
    let reports = attacked.stderr + &attacked.stdout;
    assert!(reports.contains("Policy violation"), "{reports}");
}
