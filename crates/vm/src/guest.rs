//! The guest side: the machine's init process, and the worker that executes the host's orders.
//!
//! Programs run under an agent, as with a runtime on any other machine. Their output and alerts
//! leave over the connection.

use std::collections::HashMap;
use std::ffi::{CString, OsString};
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
use agent::spec::{AGENT_VERB, AgentSpec};
use diagnostics::failure::{Failure, Outcome};
use rustix::system::RebootCommand;
use sys::wait::Target;

use super::image::{AGENT, HOST_NAME, MODULES};
use super::mounts::MS_BIND;
use super::{FIRST, OUTSIDE, PAUSE, WORKER, files, groups, process};
use crate::frame::PIECE;
use crate::{Frame, Kind};

/// Name of the virtio-serial port on both sides.
pub(super) const PORT: &str = "tollgate";
const PORTS: &str = "/sys/class/virtio-ports";
/// Initial mounts: type and mount point.
const MOUNTS: [(&str, &str); 5] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("cgroup2", groups::PLACE),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
];
/// `MODULE_INIT_COMPRESSED_FILE` (Linux 5.17).
const COMPRESSED: i32 = 4;
/// Time limit for devices to appear, for agents to report their last alerts, and for a program's
/// leftover processes to finish their output.
const LIMIT: Duration = Duration::from_secs(10);
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Size of an alert pipe in bytes: large, because its writer does not wait.
const PIPE_SIZE: usize = 1 << 20;

/// Runs the init process, which reaps orphans and shuts the machine down when the worker ends.
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

/// Mounts file systems, and loads the modules that the connection requires.
fn prepare() -> Result<(), Failure> {
    // The root of an initial RAM disk cannot be replaced later; a mount over it can.
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

/// Loads all modules in whatever order their dependencies require, since it differs between
/// kernels.
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

/// Returns the files of a directory; none if it does not exist.
fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Sets the flag `IFF_UP` of interface 1 by an rtnetlink(7) message.
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

/// State of the worker: running programs and the connection to the host.
struct Worker {
    line: Mutex<File>,
    /// Specification of agents, without the command and the alert file; `None` if nothing is
    /// watched.
    agent: Option<AgentSpec>,
    sessions: Mutex<HashMap<u32, Session>>,
}

/// Channels to the threads of one program.
struct Session {
    input: Sender<Vec<u8>>,
    output_taken: Sender<()>,
    error_taken: Sender<()>,
}

/// Executes the host's orders until the connection closes.
pub(super) fn worker() -> Outcome {
    let line = open_line().map_err(broken("open the line"))?;
    let reader = line.try_clone().map_err(broken("open the line"))?;
    let mut reader = BufReader::with_capacity(PIECE, reader);
    if !Path::new(AGENT).exists() {
        // The machine was started before its container.
        files::wait(&line, &mut reader);
    }
    let spec = fs::read(AGENT).map_err(broken("read what it is given"))?;
    let agent = (!spec.is_empty()).then(|| AgentSpec::decode(&spec));
    let worker = Arc::new(Worker {
        line: Mutex::new(line),
        agent: agent.transpose()?,
        sessions: Mutex::default(),
    });
    worker.send(FIRST, Kind::Ready, []);
    loop {
        match Frame::read(&mut reader) {
            Ok(frame) => worker.take(frame),
            // The host has closed the connection.
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
            // The host has closed the connection.
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
        // A program that has ended needs nothing more.
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
            .map_err(broken("write what its agent is asked to do"))?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(broken("start it"))?;
        self.attend(id, child, alerts);
        Ok(())
    }

    /// Forwards a program's input, output and alerts, and reports its exit.
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
        let finished = spawned(move || worker.pass_alerts_on(reader));
        let worker = Arc::clone(self);
        std::thread::spawn(move || {
            let status = child_status(&mut child);
            drop(keeper);
            for end in [output, error] {
                wait_for_last_words(id, &end);
            }
            // The limit covers the case that this takes longer.
            let _ = finished.recv_timeout(LIMIT);
            worker.sessions().remove(&id);
            worker.send(id, Kind::Exited, [status]);
        });
    }

    /// Builds the command that starts a program, under an agent if the host has prepared its
    /// specification.
    fn command(&self, id: u32) -> io::Result<Command> {
        let mut command = Command::new("/init");
        command.arg0("tollgate").current_dir("/");
        let number = id.to_string();
        let words = ["runtime", OUTSIDE, &number];
        let Some(agent) = &self.agent else {
            command.args(words);
            return Ok(command);
        };
        let mut spec = agent.clone();
        let alerts = alerts_file(id);
        let option = format!("file_output.filename={}", alerts.display());
        spec.detection.options.push(option);
        let begun = std::iter::once("/init").chain(words);
        spec.command = begun.map(OsString::from).collect();
        let file = agent_file(id);
        fs::write(&file, spec.encode())?;
        command.arg(AGENT_VERB).arg(file);
        Ok(command)
    }

    /// Sends a signal, if its target exists.
    fn signal(&self, id: u32, signal: i32, is_for_all: bool) {
        let deadline = Instant::now() + LIMIT;
        while self.sessions().contains_key(&id) && Instant::now() < deadline {
            if let Some(pid) = pid_of(id) {
                let others = if is_for_all {
                    groups::members()
                } else {
                    Vec::new()
                };
                // The first process is last, because the others end with it.
                for pid in others
                    .into_iter()
                    .filter(|other| *other != pid)
                    .chain([pid])
                {
                    // Fails only if the process has just ended.
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
            // A program that stops reading is not an error; it ends by itself.
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

/// A named pipe for alerts. It stays open while this process has a writer.
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

/// Returns the path of the agent specification of a program.
fn agent_file(id: u32) -> PathBuf {
    format!("/run/agent-{id}").into()
}

fn alerts_file(id: u32) -> PathBuf {
    format!("/run/alerts-{id}").into()
}

/// Returns the path of the process to start.
pub(super) fn process_file(id: u32) -> PathBuf {
    format!("/run/process-{id}").into()
}

/// Returns the path of the pid file.
pub(super) fn pid_file(id: u32) -> PathBuf {
    format!("/run/pid-{id}").into()
}

/// Returns the pid of a session's program, if it exists.
pub(super) fn pid_of(id: u32) -> Option<i32> {
    fs::read_to_string(pid_file(id)).ok()?.parse().ok()
}

/// Runs a function on a thread. The receiver returns when it ends.
fn spawned(does: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        does();
        drop(ended);
    });
    end
}

/// Waits for the end of a program's output. The container has ended with its first program, but
/// other processes may still hold the output open.
fn wait_for_last_words(id: u32, end: &Receiver<()>) {
    // The channel carries no messages: the wait ends when its sender is dropped, or at the limit.
    let _ = match id {
        FIRST => end.recv().is_ok(),
        _ => end.recv_timeout(LAST_WORDS).is_ok(),
    };
}

fn child_status(child: &mut Child) -> u8 {
    child.wait().map_or(u8::MAX, status)
}

/// Returns the exit status as in a shell.
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
    // Without this, the machine's clock is still accurate to a second.
    let _ = rustix::time::clock_settime(rustix::time::ClockId::Realtime, time);
}

fn say(text: &str) {
    // If the console cannot be written, there is no other destination.
    let _ = fs::write("/dev/console", text);
}

pub(super) fn switch_off() -> ! {
    loop {
        // The machine is configured to end on a restart.
        let _ = rustix::system::reboot(RebootCommand::Restart);
        std::thread::sleep(PAUSE);
    }
}

/// Mounts a file system in the machine.
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
