//! Alerts arrive wherever they are sent, and a place that does not take them harms nobody.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use e2e::marks::{MARK, marking, marks, run_loudly, set, work};
use e2e::{Limited, SignalSender, Watch, WatchResult, need_root};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

/// A server that answers every request, and the bodies it got.
fn web_server() -> (String, Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let (got, bodies) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let got = got.clone();
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                while let Some(request) = request(&mut stream) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nthanks";
                    let answered = stream.get_mut().write_all(answer);
                    if answered.is_err() || got.send(request).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (format!("http://{address}/"), bodies)
}

/// The head of a request, in lower case, and its body.
fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    head.make_ascii_lowercase();
    let length = head.split("content-length: ").nth(1)?.lines().next()?;
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).ok()?))
}

/// Runs with the folder as `/dev`, in which a log daemon may listen at `log`.
fn run_with_dev(watch: Watch, dev: &Path) -> WatchResult {
    const FURNISH: &str = r#"
set -e
mount --make-rprivate /
for device in null zero full random urandom tty; do
    : > "$1/$device"
    mount --bind "/dev/$device" "$1/$device"
done
mount --rbind "$1" /dev
shift
exec "$@"
"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", FURNISH, "furnish"]);
    command.arg(dev).args(watch.command_line());
    command.stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    watch.watched(finished)
}

fn dev(watch: &Watch) -> PathBuf {
    let dev = watch.scratch().path().join("dev");
    fs::create_dir(&dev).expect("the scratch folder is writable");
    dev
}

fn entry(daemon: &UnixDatagram) -> String {
    let mut buffer = [0; 8192];
    let limit = Some(Duration::from_secs(10));
    daemon.set_read_timeout(limit).expect("a limit of seconds");
    let length = daemon.recv(&mut buffer).expect("an entry");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn stats(scratch: &Path) -> Value {
    let text = fs::read_to_string(scratch.join("stats")).expect("there is a stats file");
    let last = text.lines().last().expect("it has a line");
    let line: Value = serde_json::from_str(last).expect("it is JSON");
    line["alerts"]["channels"].clone()
}

#[test]
fn an_alert_arrives_at_every_channel_as_in_the_alert_stream() {
    let (url, bodies) = web_server();
    for (json, keep_alive) in [(true, true), (true, false), (false, true)] {
        let watch = marking("for n in 1 2 3; do : < %W/mark; done");
        let watch = if json { watch } else { watch.text() };
        let (file, program) = (work(&watch).join("file"), work(&watch).join("program"));
        let settings = [
            "file_output.enabled=true",
            &format!("file_output.filename={}", file.display()),
            "program_output.enabled=true",
            &format!("program_output.program=cat >> {}", program.display()),
            &format!("program_output.keep_alive={keep_alive}"),
            "http_output.enabled=true",
            &format!("http_output.url={url}"),
        ];
        // A proxy of the workload's, at which nobody listens, is none of our business.
        let watch = watch.variable("ALL_PROXY", "http://127.0.0.1:1");
        let watched = set(watch, &settings).run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let expected = marks(&watched.log);
        assert_eq!(expected.len(), 3, "{}", watched.story());
        for file in [file, program] {
            let text = fs::read_to_string(&file).expect("the file is there");
            assert_eq!(marks(&text), expected, "{}", file.display());
        }
        for line in &expected {
            let request = bodies.recv_timeout(Duration::from_secs(10));
            let (head, body) = request.expect("a request");
            assert_eq!(body, *line);
            let kind = if json {
                "application/json"
            } else {
                "text/plain"
            };
            assert!(head.starts_with("post / http/1.1"), "{head}");
            assert!(head.contains(&format!("content-type: {kind}")), "{head}");
            assert!(head.contains("user-agent: falcosecurity/falco"), "{head}");
        }
    }
}

#[test]
fn syslog_gets_alerts_as_soon_as_somebody_listens() {
    need_root!();
    let watch = marking(
        ": < %W/mark; : > %W/ready; while [ ! -e %W/go ]; do sleep 0.01; done; : < %W/mark",
    );
    let work = work(&watch);
    let watch = set(watch.text(), &["syslog_output.enabled=true"]);
    let dev = dev(&watch);
    let log = dev.join("log");
    let daemon = thread::spawn(move || {
        while !work.join("ready").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        // The alert is on its way when the command goes on.
        thread::sleep(Duration::from_millis(500));
        let daemon = UnixDatagram::bind(&log).expect("a socket");
        fs::write(work.join("go"), "").expect("writable");
        entry(&daemon)
    });
    let watched = run_with_dev(watch, &dev);
    let alert = daemon.join().expect("an entry");
    // Level warning.
    assert!(alert.starts_with("<12>"), "{alert}");
    assert!(alert.contains(" falco["), "{alert}");
    let printed = marks(&watched.log);
    assert!(alert.ends_with(&printed[1]), "{alert}\n{printed:?}");
    let channels = stats(watched.scratch.path());
    // Before somebody listened: counted and said once, but no alert of ours, and no failure.
    assert_eq!(channels["syslog"]["lost_no_receiver"], 1, "{channels}");
    assert_eq!(channels["syslog"]["lost_write_failed"], 0, "{channels}");
    assert_eq!(channels["syslog"]["delivered"], 1, "{channels}");
    assert_eq!(printed.len(), 2, "{printed:?}");
}

/// Opens the mark so many times and prints how many nanoseconds that took. The pause is for the
/// first deliveries to time out before the end stops waiting: the kernel's timer of a read of one
/// second is late by up to 36 ms, and a fast machine opens 500 files in less.
const BUSY: &str = "start=$(date +%s%N); n=0; while [ $n -lt 500 ]; do : < %W/mark; \
                    n=$((n + 1)); done; echo took $(($(date +%s%N) - start)); sleep 0.3";

fn busy() -> Watch {
    marking(BUSY).text()
}

fn took(watched: &WatchResult) -> Duration {
    let line = watched
        .printed
        .lines()
        .find_map(|line| line.strip_prefix("took "));
    let nanoseconds = line.expect("the workload says how long it took");
    Duration::from_nanos(nanoseconds.parse().expect("a number"))
}

/// Asserts what each channel has delivered where all but `stdout` are dead or hang.
fn assert_losses(channels: &Value) {
    let number = |channel: &str, what: &str| channels[channel][what].as_u64().expect("a number");
    for channel in ["log", "file", "syslog", "program", "http"] {
        let taken = ["delivered", "lost_write_failed", "pending"];
        let taken: u64 = taken.iter().map(|what| number(channel, what)).sum();
        assert_eq!(number(channel, "queued"), taken, "{channel}: {channels}");
        assert!(number(channel, "queued") >= 500, "{channel}: {channels}");
    }
    assert_eq!(number("log", "lost_write_failed"), 0, "{channels}");
    assert_eq!(number("file", "delivered"), 0, "{channels}");
    assert_eq!(number("program", "delivered"), 0, "{channels}");
    assert_eq!(number("http", "delivered"), 0, "{channels}");
    assert!(number("program", "timeouts") >= 1, "{channels}");
    assert!(number("http", "timeouts") >= 1, "{channels}");
}

#[test]
fn channels_that_are_dead_or_hang_slow_nobody_down_and_lose_nothing_of_others() {
    need_root!();
    // The kernel takes connections; nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = silent.local_addr().expect("it is bound");
    let alone = busy();
    let alone_dev = dev(&alone);
    let alone = run_with_dev(alone, &alone_dev);
    let watch = busy();
    let pids = watch.scratch().path().join("pids");
    let dev = dev(&watch);
    let _deaf = UnixDatagram::bind(dev.join("log")).expect("a socket");
    let watch = set(
        watch,
        &[
            "output_timeout=1000",
            "file_output.enabled=true",
            "file_output.filename=/dev/full",
            "syslog_output.enabled=true",
            "program_output.enabled=true",
            &format!(
                "program_output.program=echo $$ >> {}; exec sleep 1000",
                pids.display()
            ),
            "http_output.enabled=true",
            &format!("http_output.url=http://{address}/"),
        ],
    );
    let start = Instant::now();
    let watched = run_with_dev(watch, &dev);
    let total = start.elapsed();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert_eq!(marks(&watched.log).len(), 500);
    assert_eq!(marks(&alone.log).len(), 500);
    let (with, without) = (took(&watched), took(&alone));
    // Generous, for a busy machine; one timeout of one channel alone is more.
    assert!(
        with < without * 2 + Duration::from_millis(500),
        "{with:?}, alone {without:?}"
    );
    // The end waits for what hangs once.
    assert!(
        total < with + Duration::from_millis(4000),
        "{total:?} with {with:?}"
    );

    assert_losses(&stats(watched.scratch.path()));

    // Nothing that was started is left.
    let text = fs::read_to_string(&pids).expect("the program ran");
    let left: HashSet<_> = text.lines().filter(|pid| is_running(pid)).collect();
    assert!(left.is_empty(), "{left:?} of {text}");
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_end_says_what_was_lost() {
    let watch = marking(": < %W/mark; exit 3");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("loopback has a free port").port();
    let url = format!("http_output.url=http://127.0.0.1:{port}/");
    let watch = set(watch, &["http_output.enabled=true", &url]);
    let finished = run_loudly(&watch, LIMIT);
    assert_eq!(finished.code(), 3);
    let text = &finished.stderr;
    // It was waited for, as long as the end may take.
    assert!(
        text.contains("tollgate: http: 0 alerts lost, 1 not delivered: Connection refused"),
        "{text}"
    );
    // What cannot be waited for is lost at once.
    let watch = marking(": < %W/mark; exit 3");
    let watch = set(
        watch,
        &["file_output.enabled=true", "file_output.filename=/dev/full"],
    );
    let finished = run_loudly(&watch, LIMIT);
    assert_eq!(finished.code(), 3);
    let text = &finished.stderr;
    assert!(text.contains("cannot write alerts to file: "), "{text}");
    assert!(
        text.contains("tollgate: file: 1 alert lost, 0 not delivered"),
        "{text}"
    );
}

#[test]
fn answers_are_printed_where_that_is_asked_for() {
    let (url, _bodies) = web_server();
    for (echo, times) in [("true", 1), ("false", 0)] {
        let watch = marking(": < %W/mark");
        let settings = [
            "http_output.enabled=true",
            &format!("http_output.url={url}"),
            &format!("http_output.echo={echo}"),
        ];
        let watched = set(watch, &settings).run();
        // Not on the standard output, which is the command's.
        assert_eq!(watched.printed, "");
        assert_eq!(watched.finished.stderr.matches("thanks").count(), times);
    }
}

#[test]
fn a_program_has_nothing_of_the_agent_and_is_not_watched() {
    let watch = marking(": < %W/mark");
    let (seen, mark) = (work(&watch).join("seen"), work(&watch).join("mark"));
    let program = format!(
        "program_output.program=exec >> {0}; ls -l /proc/self/fd; cat /proc/self/status; true < {1}",
        seen.display(),
        mark.display()
    );
    let watched = set(watch, &["program_output.enabled=true", &program]).run();
    // Its own opening of the file would raise alerts without end.
    assert_eq!(watched.of("Mark").len(), 1, "{}", watched.story());
    let text = fs::read_to_string(&seen).expect("the program ran");
    // Input, output, error, the folder that ls reads, and what the caller has left open.
    let mut plain = Command::new("ls");
    plain.args(["-l", "/proc/self/fd"]).stdin(Stdio::piped());
    let plain = Limited::start(&mut plain, LIMIT).finish(b"").stdout;
    assert_eq!(descriptors(&text), descriptors(&plain), "{text}");
    assert!(!text.contains("seccomp notify"), "{text}");
    assert!(text.contains("Seccomp:\t0"), "{text}");
    let mask = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.expect(name).trim(), 16).expect("a mask")
    };
    assert_eq!(mask("SigBlk:"), 0, "{text}");
    // SIGHUP, SIGINT, SIGUSR1, SIGPIPE, SIGTERM.
    for signal in [1, 2, 10, 13, 15] {
        assert_eq!(mask("SigIgn:") & (1 << (signal - 1)), 0, "{signal}: {text}");
    }
}

/// The numbers in a listing of open files.
fn descriptors(listing: &str) -> Vec<&str> {
    let links = listing.lines().filter_map(|line| line.split_once(" -> "));
    links
        .filter_map(|(link, _)| link.rsplit(' ').next())
        .collect()
}

#[test]
fn the_agent_reopens_files_when_it_is_told() {
    for signal in [Signal::USR1, Signal::HUP] {
        let watch = marking(&format!(
            "cd %W; : < %W/mark; sleep 0.2; mv alerts alerts.1; \
             {}; while [ ! -e alerts ]; do sleep 0.01; done; : < %W/mark",
            SignalSender::order(signal, "pid")
        ));
        let work = work(&watch);
        let _postman = SignalSender::at(&work);
        let (alerts, pid) = (work.join("alerts"), work.join("pid"));
        let watch = watch.option("-P").option(pid.display().to_string());
        let filename = format!("file_output.filename={}", alerts.display());
        let settings = [
            "file_output.enabled=true",
            "file_output.keep_alive=true",
            &filename,
        ];
        let watched = set(watch, &settings).run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let lines = |path: &Path| marks(&fs::read_to_string(path).expect("a file")).len();
        assert_eq!(lines(&alerts.with_extension("1")), 1, "{}", watched.story());
        assert_eq!(lines(&alerts), 1, "{}", watched.story());
        // The file is gone with the agent.
        assert!(!pid.exists());
    }
}

#[test]
fn what_an_output_cannot_work_with_stops_the_start() {
    for (settings, message) in [
        (&["http_output.enabled=true"][..], "has no `url`"),
        (
            &["http_output.enabled=true", "http_output.url=localhost"],
            "http:// or https://",
        ),
        (
            &[
                "http_output.enabled=true",
                "http_output.url=https://localhost/",
                "http_output.ca_cert=/none",
            ],
            "cannot read /none: No such file or directory",
        ),
        (&["program_output.enabled=true"], "has no `program`"),
        (&["http_output.ulr=x"], "did you mean `http_output.url`?"),
        (&["http_output.max_consecutive_timeouts=256"], "too large"),
    ] {
        let watch = set(Watch::new(["touch", "%W/ran"]).rules(MARK), settings);
        let watched = watch.run();
        let text = &watched.finished.stderr;
        assert_eq!(watched.code(), 2, "{settings:?}: {text}");
        assert!(text.contains(message), "{settings:?}: {text}");
        assert!(!watched.scratch.path().join("work/ran").exists());
    }
}

/// A run whose command is a Python program that can open `mark` in the folder, its working directory.
fn run_in(folder: &Path, settings: &[&str], program: &str) -> Command {
    fs::write(folder.join("rules.yaml"), MARK)
        .and_then(|()| fs::write(folder.join("mark"), ""))
        .expect("the scratch folder is writable");
    let mut command = Command::new(e2e::program());
    command
        .current_dir(folder)
        .args(["run", "--log", "-", "-r", "rules.yaml"]);
    command.args(settings.iter().flat_map(|setting| ["-o", setting]));
    command
        .args(["--", "python3", "-c", program])
        .stdin(Stdio::null());
    command
}

/// The command shares the open file of the standard output with the agent, and may do with it what it likes.
#[test]
fn a_command_that_takes_the_append_flag_away_writes_over_no_alert_and_gets_none_written_over() {
    const PROGRAM: &str = "\
import fcntl, os, time
fcntl.fcntl(1, fcntl.F_SETFL, 0)
os.lseek(1, 0, 0)
open('mark').close()
time.sleep(0.5)
open('mark').close()
";
    let scratch = e2e::Scratch::new();
    let out = scratch.path().join("out");
    fs::write(&out, "before\n").expect("the scratch folder is writable");
    let file = fs::File::options()
        .append(true)
        .open(&out)
        .expect("it is there");
    let status = run_in(scratch.path(), &[], PROGRAM).stdout(file).status();
    assert!(status.expect("the program was built").success());
    let text = fs::read_to_string(&out).expect("it is there");
    assert!(text.starts_with("before\n"), "{text}");
    assert_eq!(marks(&text).len(), 2, "{text}");
}

/// Neither the end nor a message waits for a terminal that the command has stopped.
#[test]
fn a_command_that_stops_the_terminal_delays_nobody() {
    const PROGRAM: &str = "\
import termios
termios.tcflow(1, termios.TCOOFF)
for n in range(20): open('mark').close()
";
    let scratch = e2e::Scratch::new();
    let pair =
        rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY)
            .and_then(|pair| rustix::pty::unlockpt(&pair).map(|()| pair))
            .expect("terminals can be made");
    let name = rustix::pty::ptsname(&pair, Vec::new()).expect("it has a name");
    let name = name.into_string().expect("it is a path");
    let terminal = || {
        fs::File::options()
            .read(true)
            .write(true)
            .open(&name)
            .expect("it is there")
    };
    let mut command = run_in(scratch.path(), &["output_timeout=300"], PROGRAM);
    let start = Instant::now();
    let status = command.stdout(terminal()).stderr(terminal()).status();
    assert!(status.expect("the program was built").success());
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

/// What the command does to the file that alerts go to is told, and alerts are found where they are looked for.
#[test]
fn a_command_that_exchanges_the_file_of_alerts_is_told_and_gets_none_of_them() {
    const PROGRAM: &str = "\
import os, time
open('mark').close()
time.sleep(0.5)
os.rename('alerts', 'stolen')
open('mark').close()
time.sleep(0.5)
os.rename('alerts', 'first')
open('other', 'w').close()
os.symlink('other', 'alerts')
open('mark').close()
time.sleep(0.5)
os.unlink('alerts')
open('mark').close()
";
    let scratch = e2e::Scratch::new();
    let settings = [
        "file_output.enabled=true",
        "file_output.keep_alive=true",
        "file_output.filename=alerts",
        "stdout_output.enabled=false",
    ];
    let output = run_in(scratch.path(), &settings, PROGRAM).output();
    let output = output.expect("the program was built");
    let count = |name: &str| {
        let text = fs::read_to_string(scratch.path().join(name)).unwrap_or_default();
        marks(&text).len()
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    let found = ["stolen", "first", "other", "alerts"].map(count);
    assert_eq!(found, [1, 1, 0, 1], "{errors}");
    assert!(
        errors.contains("was renamed, removed or replaced"),
        "{errors}"
    );
    assert!(errors.contains("file: 1 alert lost"), "{errors}");
}

/// The caller's limit on the size of files ends the command that exceeds it, and no process that watches.
#[test]
fn a_limit_on_the_size_of_files_loses_alerts_that_are_counted_and_kills_the_command_alone() {
    need_root!();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do : < mark; done; \
                  dd if=/dev/zero of=big bs=8192 count=1; echo status=$? limit=$(ulimit -f)";
    for engine in ["notify", "ptrace", "ebpf"] {
        let watch = marking("");
        let (folder, rules) = (work(&watch), watch.scratch().file("r.yaml", 0o644, MARK));
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -c 0; ulimit -S -f 1; exec \"$@\"", "bash"]);
        command.arg(e2e::program()).current_dir(&folder);
        command.args(["run", "--engine", engine, "-r"]).arg(&rules);
        command.args(["-o", "stdout_output.enabled=false"]);
        command.args(["-o", "file_output.enabled=true"]);
        command.args(["-o", "file_output.filename=alerts"]);
        let output = command.args(["--", "bash", "-c", script]).output();
        let output = output.expect("it was built");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let loss = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.trim(), "status=153 limit=1", "{engine}: {loss}");
        assert_eq!(output.status.code(), Some(0), "{engine}: {loss}");
        let alerts = fs::read_to_string(folder.join("alerts")).expect("it is there");
        let whole = marks(&alerts).len();
        assert!((1..20).contains(&whole), "{engine}: {alerts}");
        let lost = |count: usize| match count {
            1 => "file: 1 alert lost".to_owned(),
            _ => format!("file: {count} alerts lost"),
        };
        let text = lost(20 - whole);
        // The last whole line is one only if its end was written, too.
        let or_one_more = lost(21 - whole);
        assert!(
            loss.contains(&text) || loss.contains(&or_one_more),
            "{engine}: {whole} {loss}"
        );
    }
}
