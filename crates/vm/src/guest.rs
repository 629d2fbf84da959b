//! Inside the machine: its first process, and the one that does as the other side says.
//!
//! Programs run under `tollgate run`, as those of a runtime on any other machine; what they write, and
//! alerts, goes out over the line.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::constant::MS_MOVE;
use diagnostics::failure::{Failure, Outcome};
use rustix::system::RebootCommand;
use sys::wait::Target;

use super::image::{HOST_NAME, MODULES, WORDS};
use super::mounts::MS_BIND;
use super::{FIRST, OUTSIDE, PAUSE, WORKER, files, groups, process};
use crate::frame::PIECE;
use crate::{Frame, Kind};

/// The line's name on both sides.
pub(super) const PORT: &str = "tollgate";
const PORTS: &str = "/sys/class/virtio-ports";
/// What is mounted before anything else: type and place.
const MOUNTS: [(&str, &str); 5] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("cgroup2", groups::PLACE),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
];
/// `MODULE_INIT_COMPRESSED_FILE` (Linux 5.17).
const COMPRESSED: i32 = 4;
/// How long devices may take to appear, agents to tell their last alerts, and what a program has left
/// behind to write its last.
const LIMIT: Duration = Duration::from_secs(10);
const LAST_WORDS: Duration = Duration::from_millis(500);
/// A pipe for alerts holds so much, because who writes them does not wait.
const PIPE_SIZE: usize = 1 << 20;

/// The first process: it waits for whatever has lost its parent, and ends the machine with the worker.
pub(super) fn first_process() -> Outcome {
    let outcome = prepare().and_then(|()| {
        let worker = Command::new("/init")
            .arg0("tollgate")
            .args(["runtime", WORKER])
            .spawn();
        worker.map_err(broken("start a process"))
    });
    match outcome {
        Err(failure) => say(&failure.render()),
        Ok(worker) => loop {
            match sys::wait::wait(Target::Any, 0) {
                Ok(Some((pid, status))) if pid == worker.id().cast_signed() && status.is_end() => {
                    break;
                }
                Err(error) if !error.is(Errno::EINTR) => break,
                _ => {}
            }
        },
    }
    switch_off()
}

/// Mounts, and modules without which there is no line.
fn prepare() -> Result<(), Failure> {
    // The root of an initial RAM disk cannot be exchanged later; what is mounted over it can.
    mount("/", "", "/old", MS_BIND, "")?;
    std::env::set_current_dir("/old").map_err(broken("enter the root"))?;
    mount(".", "", "/", MS_MOVE.u64(), "")?;
    sys::namespace::chroot(c".").map_err(|error| broken("enter the root")(error.into()))?;
    std::env::set_current_dir("/").map_err(broken("enter the root"))?;
    for (kind, place) in MOUNTS {
        mount(kind, kind, place, 0, "")?;
    }
    let name = fs::read(HOST_NAME).map_err(broken("read what it is given"))?;
    sys::namespace::set_host_name(&name).map_err(|error| broken("take a name")(error.into()))?;
    load_modules().map_err(broken("load modules"))?;
    raise_loopback().map_err(broken("set the network up"))
}

/// Loads all, in whatever order they need each other: it differs between kernels.
fn load_modules() -> io::Result<()> {
    let mut left: Vec<PathBuf> = entries(MODULES).collect();
    loop {
        let mut failed = Vec::new();
        let mut last = None;
        for path in &left {
            if let Err(error) = load_module(path) {
                last = Some(io::Error::other(format!("{}: {error}", path.display())));
                failed.push(path.clone());
            }
        }
        match last {
            None => return Ok(()),
            Some(error) if failed.len() == left.len() => return Err(error),
            Some(_) => left = failed,
        }
    }
}

fn load_module(path: &Path) -> io::Result<()> {
    let is_plain = path.extension().is_some_and(|ending| ending == "ko");
    let flags = if is_plain { 0 } else { COMPRESSED };
    match rustix::system::finit_module(File::open(path)?, c"", flags) {
        Err(error) if error.raw_os_error() != Errno::EEXIST.0 => Err(error.into()),
        _ => Ok(()),
    }
}

/// Files of a folder; none without it.
fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Sets the flag `IFF_UP` of interface 1 by a message of rtnetlink(7).
fn raise_loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SendFlags, SocketType, send, socket};
    const LENGTH: u32 = 32;
    const RTM_NEWLINK: u16 = 16;
    const NLM_F_REQUEST: u16 = 1;
    const LOOPBACK: u32 = 1;
    const IFF_UP: u32 = 1;
    let mut message = LENGTH.to_ne_bytes().to_vec();
    message.extend([RTM_NEWLINK.to_ne_bytes(), NLM_F_REQUEST.to_ne_bytes()].concat());
    // Sequence number and port; then family and type of the interface.
    message.extend([0; 8 + 4]);
    for word in [LOOPBACK, IFF_UP, IFF_UP] {
        message.extend(word.to_ne_bytes());
    }
    // NETLINK_ROUTE is protocol 0.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&socket, &message, SendFlags::empty())?;
    Ok(())
}

/// What runs in the machine, and the line out.
struct Worker {
    line: Mutex<File>,
    /// The command line that watches; without one nothing is watched.
    words: Option<Vec<String>>,
    sessions: Mutex<HashMap<u32, Session>>,
}

/// What is passed to the threads of one program.
struct Session {
    input: Sender<Vec<u8>>,
    output_taken: Sender<()>,
    error_taken: Sender<()>,
}

/// Does as the other side says, until that is gone.
pub(super) fn worker() -> Outcome {
    let line = open_line().map_err(broken("open the line"))?;
    let reader = line.try_clone().map_err(broken("open the line"))?;
    let mut reader = BufReader::with_capacity(PIECE, reader);
    if !Path::new(WORDS).exists() {
        // It was made before its container.
        files::wait(&line, &mut reader);
    }
    let words = fs::read(WORDS).map_err(broken("read what it is given"))?;
    let words = serde_json::from_slice(&words);
    let worker = Arc::new(Worker {
        line: Mutex::new(line),
        words: words.map_err(|error| broken("read what it is given")(error.into()))?,
        sessions: Mutex::default(),
    });
    worker.send(FIRST, Kind::Ready, []);
    loop {
        match Frame::read(&mut reader) {
            Ok(frame) => worker.take(frame),
            // The other side has ended.
            Err(_) => switch_off(),
        }
    }
}

fn open_line() -> io::Result<File> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let is_ours = |port: &PathBuf| {
            let name = fs::read_to_string(port.join("name"));
            name.is_ok_and(|name| name.trim() == PORT)
        };
        let opened = entries(PORTS).find(is_ours).map(|port| {
            let device = Path::new("/dev").join(port.file_name().unwrap_or_default());
            OpenOptions::new().read(true).write(true).open(device)
        });
        match opened {
            Some(Ok(line)) => return Ok(line),
            Some(Err(error)) if Instant::now() > deadline => return Err(error),
            None if Instant::now() > deadline => return Err(io::ErrorKind::NotFound.into()),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

impl Worker {
    fn send(&self, session: u32, kind: Kind, content: impl Into<Vec<u8>>) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if Frame::new(session, kind, content)
            .write(&mut *line)
            .is_err()
        {
            // Nobody is left to be told.
            switch_off();
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u32, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, frame: Frame) {
        let id = frame.session;
        if frame.kind == Kind::Start {
            if let Err(failure) = self.start(id, &frame.content) {
                self.send(id, Kind::Failed, failure.render().trim());
            }
            return;
        }
        if frame.kind == Kind::Signal {
            let worker = Arc::clone(self);
            let signal = frame.content.first().copied().map_or(0, i32::from);
            let is_for_all = frame.content.get(1) == Some(&1);
            std::thread::spawn(move || worker.signal(id, signal, is_for_all));
            return;
        }
        let sessions = self.sessions();
        // One that has ended needs nothing more.
        let Some(session) = sessions.get(&id) else {
            return;
        };
        let _ = match (frame.kind, frame.content.first()) {
            (Kind::Input, _) => session.input.send(frame.content).is_ok(),
            (Kind::Taken, Some(kind)) if *kind == Kind::Output.byte() => {
                session.output_taken.send(()).is_ok()
            }
            (Kind::Taken, _) => session.error_taken.send(()).is_ok(),
            _ => false,
        };
    }

    fn start(self: &Arc<Self>, id: u32, content: &[u8]) -> Result<(), Failure> {
        let (time, process) = process::started(content)
            .ok_or_else(|| broken("start it")(io::Error::other("the order is malformed")))?;
        if id == FIRST {
            set_clock(time);
        }
        fs::write(process_file(id), process.to_string()).map_err(broken("note the process"))?;
        let alerts = Alerts::open(id).map_err(broken("make a pipe"))?;
        let child = self
            .command(id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(broken("start it"))?;
        self.attend(id, child, alerts);
        Ok(())
    }

    /// Passes on what goes into a program and what comes from it and is told of it, and says when it has ended.
    fn attend(self: &Arc<Self>, id: u32, mut child: Child, alerts: Alerts) {
        let (input, pieces) = mpsc::channel();
        let (output_taken, of_output) = mpsc::channel();
        let (error_taken, of_error) = mpsc::channel();
        self.sessions().insert(
            id,
            Session {
                input,
                output_taken,
                error_taken,
            },
        );
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.send(id, Kind::Done, []);
        let worker = Arc::clone(self);
        std::thread::spawn(move || worker.pass_input_on(id, stdin, &pieces));
        let worker = Arc::clone(self);
        let output = spawned(move || worker.pass_on(id, Kind::Output, stdout, &of_output));
        let worker = Arc::clone(self);
        let error = spawned(move || worker.pass_on(id, Kind::Error, stderr, &of_error));
        let worker = Arc::clone(self);
        let Alerts { keeper, reader } = alerts;
        let told = spawned(move || worker.pass_alerts_on(reader));
        let worker = Arc::clone(self);
        std::thread::spawn(move || {
            let status = child_status(&mut child);
            drop(keeper);
            for end in [output, error] {
                wait_for_last_words(id, &end);
            }
            // That it takes longer is what the limit is for.
            let _ = told.recv_timeout(LIMIT);
            worker.sessions().remove(&id);
            worker.send(id, Kind::Exited, [status]);
        });
    }

    /// `tollgate run` with the words that the other side has prepared.
    fn command(&self, id: u32) -> Command {
        let mut command = Command::new("/init");
        command.arg0("tollgate").current_dir("/");
        if let Some(words) = &self.words {
            let alerts = alerts_file(id);
            command.args(words);
            command.arg(format!(
                "--option=file_output.filename={}",
                alerts.display()
            ));
            command.args(["--", "/init"]);
        }
        command.args(["runtime", OUTSIDE, &id.to_string()]);
        command
    }

    /// Sends a signal, when there is somebody to send it to.
    fn signal(&self, id: u32, signal: i32, is_for_all: bool) {
        let deadline = Instant::now() + LIMIT;
        while self.sessions().contains_key(&id) && Instant::now() < deadline {
            if let Some(pid) = pid_of(id) {
                let others = if is_for_all {
                    groups::members()
                } else {
                    Vec::new()
                };
                // The first one last: the others end with it.
                for pid in others
                    .into_iter()
                    .filter(|other| *other != pid)
                    .chain([pid])
                {
                    // Fails only if it has just ended.
                    let _ = sys::signal::send(pid, signal);
                }
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn pass_input_on(&self, id: u32, stdin: Option<impl Write>, pieces: &Receiver<Vec<u8>>) {
        let Some(mut stdin) = stdin else { return };
        for piece in pieces {
            // That it does not read any more is no failure; it ends by itself.
            if piece.is_empty() || stdin.write_all(&piece).is_err() {
                return;
            }
            self.send(id, Kind::Taken, [Kind::Input.byte()]);
        }
    }

    fn pass_on(&self, id: u32, kind: Kind, from: Option<impl Read>, taken: &Receiver<()>) {
        let Some(mut from) = from else { return };
        let mut bytes = vec![0; PIECE];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(size) => {
                    self.send(id, kind, &bytes[..size]);
                    if taken.recv().is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn pass_alerts_on(&self, from: File) {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            self.send(FIRST, Kind::Alert, line);
        }
    }
}

/// A pipe by a name. It stays open for as long as somebody of this process writes.
struct Alerts {
    keeper: File,
    reader: File,
}

impl Alerts {
    fn open(id: u32) -> io::Result<Self> {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = alerts_file(id);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        let keeper = OpenOptions::new().read(true).write(true).open(&path)?;
        rustix::pipe::fcntl_setpipe_size(&keeper, PIPE_SIZE)?;
        let reader = File::open(&path)?;
        Ok(Self { keeper, reader })
    }
}

fn alerts_file(id: u32) -> PathBuf {
    format!("/run/alerts-{id}").into()
}

/// What is to begin.
pub(super) fn process_file(id: u32) -> PathBuf {
    format!("/run/process-{id}").into()
}

/// Where its pid is noted.
pub(super) fn pid_file(id: u32) -> PathBuf {
    format!("/run/pid-{id}").into()
}

/// The pid of a session's program, when it is there.
pub(super) fn pid_of(id: u32) -> Option<i32> {
    fs::read_to_string(pid_file(id)).ok()?.parse().ok()
}

/// Runs it in a thread; its end can be waited for.
fn spawned(does: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        does();
        drop(ended);
    });
    end
}

/// Waits for the end of a program's output. A container has ended with its first program; others may have left
/// something behind that has their output still open.
fn wait_for_last_words(id: u32, end: &Receiver<()>) {
    // Nothing is sent: it ends with its sender, or by the limit.
    let _ = match id {
        FIRST => end.recv().is_ok(),
        _ => end.recv_timeout(LAST_WORDS).is_ok(),
    };
}

fn child_status(child: &mut Child) -> u8 {
    child.wait().map_or(u8::MAX, status)
}

/// As a shell says it.
pub(super) fn status(status: std::process::ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

fn set_clock(nanoseconds: u64) {
    const SECOND: u64 = 1_000_000_000;
    let part = |value: u64| i64::try_from(value).unwrap_or(0);
    let time = rustix::time::Timespec {
        tv_sec: part(nanoseconds / SECOND),
        tv_nsec: part(nanoseconds % SECOND),
    };
    // The machine's clock is right to a second without it.
    let _ = rustix::time::clock_settime(rustix::time::ClockId::Realtime, time);
}

fn say(text: &str) {
    // Whoever cannot write to the console has no other place.
    let _ = fs::write("/dev/console", text);
}

pub(super) fn switch_off() -> ! {
    loop {
        // The machine is started so that this ends it.
        let _ = rustix::system::reboot(RebootCommand::Restart);
        std::thread::sleep(PAUSE);
    }
}

/// Mounts in the machine.
pub(super) fn mount(
    source: &str,
    kind: &str,
    place: &str,
    flags: u64,
    data: &str,
) -> Result<(), Failure> {
    let text = |text: &str| CString::new(text).map_err(|error| broken("mount")(error.into()));
    let (source, kind, data) = (text(source)?, text(kind)?, text(data)?);
    let target = text(place)?;
    let given = |text: &'_ CString| (!text.as_bytes().is_empty()).then(|| text.clone());
    let (kind, data) = (given(&kind), given(&data));
    sys::namespace::mount(
        Some(&source),
        &target,
        kind.as_deref(),
        flags,
        data.as_deref(),
    )
    .map_err(|error| {
        let place = place.to_owned();
        broken("mount")(io::Error::other(format!("{place}: {error}")))
    })
}

pub(super) fn broken(action: &'static str) -> impl Fn(io::Error) -> Failure {
    move |cause| {
        let message = format!("cannot {action} in the virtual machine: {cause}");
        Failure::new(diagnostics::exit::Exit::Internal, message)
            .help("check console.log in the folder of the container")
    }
}
