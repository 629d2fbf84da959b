//! `--runtime vm`: each container runs in a virtual machine with a kernel of its own.
//!
//! QEMU runs Debian's small kernel, with KVM where it works and emulated otherwise. The machine has
//! no disk and no network: its root is an initial RAM disk with this program, the container's
//! files, the rules and the policy. In the guest, this program is the init process (`guest`) and
//! watches and confines the container as it does anywhere. On the host, a monitor process
//! (`monitor`) stands for the container: it has the container's standard input and output, and its
//! pid and exit status are the container's. The two exchange frames over virtio-serial ([`frame`]).
//! A machine can be ready before there is a container (`pool`); the container's files then follow
//! over the same connection.

pub mod archive;
mod caller;
mod container;
mod create;
mod fields;
mod files;
pub mod frame;
mod groups;
mod guest;
mod image;
mod kernel;
pub mod kernel_image;
mod machine;
mod monitor;
mod mounts;
mod pool;
mod process;
mod profile;
mod qemu;
mod session;
pub mod unpack;
mod warm;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::machine::Machine;
use abi::Signal;
use runtime::{Call, CommandLine, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::archive::Archive;
pub use self::frame::{Frame, FrameError, Kind};
pub use self::kernel::support;
pub use self::kernel_image::Kernel;
pub use self::pool::execute as execute_pool;
pub use self::unpack::unpack;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use runtime::Settings;
use runtime::containers::state_failure;

/// The name of this runtime for `--runtime`.
pub const NAME: &str = "vm";
/// Commands that run this program as one of the runtime's own processes.
const MONITOR: &str = "vm-monitor";
const QEMU: &str = "vm-qemu";
const SESSION: &str = "vm-session";
const GUEST: &str = "vm-guest";
const WORKER: &str = "vm-worker";
const OUTSIDE: &str = "vm-outside";
const INSIDE: &str = "vm-inside";
const KEEPER: &str = "vm-keeper";
const WARM: &str = "vm-warm";
/// Files beside the note of a container.
const PLAN: &str = "plan.json";
const MACHINE: &str = "machine.json";
const PROCESS: &str = "process.json";
const INITRD: &str = "initrd";
const SOCKET: &str = "monitor.sock";
const CONSOLE: &str = "console.log";
const QEMU_LOG: &str = "qemu.log";
/// Limit on the processor time that a machine may take to start: five seconds emulated. On a busy
/// host the elapsed time may be longer, up to the second limit.
const START_LIMIT: Duration = Duration::from_secs(60);
const START_WAIT: Duration = Duration::from_secs(900);
const END_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// `FIRST` is the session of the container's first program. `OWN` is the number that a caller of the
/// monitor uses for its own session.
const FIRST: u32 = 0;
const OWN: u32 = 1;
const SIGKILL: i32 = Signal::SIGKILL.0;
const SIGTERM: i32 = Signal::SIGTERM.0;

/// Options of each command that are implemented, or that concern something a machine does not have.
const OPTIONS: [(&str, &[&str]); 7] = [
    (
        "create",
        &[
            "bundle",
            "b",
            "pid-file",
            "no-pivot",
            "no-new-keyring",
            TERMINAL,
        ],
    ),
    (
        "run",
        &[
            "bundle",
            "b",
            "pid-file",
            "no-pivot",
            "no-new-keyring",
            "no-subreaper",
            "detach",
            "d",
            "keep",
            TERMINAL,
        ],
    ),
    (
        "exec",
        &[
            "process",
            "p",
            "cwd",
            "env",
            "e",
            "user",
            "u",
            "additional-gids",
            "g",
            "cap",
            "c",
            "no-new-privs",
            "tty",
            "t",
            "detach",
            "d",
            "pid-file",
            "ignore-paused",
            "no-subreaper",
            TERMINAL,
        ],
    ),
    ("kill", &["all", "a"]),
    ("delete", &["force", "f"]),
    ("start", &[]),
    ("state", &[]),
];
/// Socket for handing over a terminal. A request for a terminal is refused with a message.
const TERMINAL: &str = "console-socket";
/// Descriptors to pass on; not supported.
const PRESERVED: &str = "preserve-fds";

/// Instructions for the monitor.
#[derive(Deserialize, Serialize)]
struct Plan {
    kernel: PathBuf,
    memory_mib: u64,
    /// File to which alerts are appended.
    alerts: PathBuf,
}

/// Executes a command of the runtime.
///
/// # Errors
///
/// The command is unknown, an option is not supported, or the command fails.
pub fn execute(line: &CommandLine, settings: &Settings) -> Outcome {
    let Some(call) = &line.call else {
        let version = env!("CARGO_PKG_VERSION");
        return terminal::print(&format!("tollgate-runtime {version} (vm)\n"));
    };
    let word = call.words[0].to_string_lossy();
    match &*word {
        "list" => return list(line, settings, call),
        "features" => {
            return terminal::print("{\"ociVersionMin\":\"1.0.0\",\"ociVersionMax\":\"1.0.2\"}\n");
        }
        _ => {}
    }
    let Some(id) = &call.id else {
        let message = format!("cannot {word} a container: its id is missing");
        return Err(Failure::new(Exit::BadInput, message).help("name it behind the command"));
    };
    check_options(&word, call)?;
    let vm = Vm::new(settings, line, id)?;
    match &*word {
        "create" => {
            vm.create(settings, line, call)?.keep();
            Ok(Exit::Ok)
        }
        "run" => vm.run(settings, line, call),
        "start" => vm.start(),
        "state" => vm.print_state(),
        "kill" => vm.kill(call),
        "delete" => vm.delete(call),
        "exec" => vm.exec(call),
        _ => {
            let message = format!("cannot {word}: the runtime vm has no such command");
            Err(Failure::new(Exit::Unsupported, message)
                .help("it has create, start, state, kill, delete, run, exec, list and features"))
        }
    }
}

/// Refuses options that are not implemented.
fn check_options(word: &str, call: &Call) -> Result<(), Failure> {
    let Some((_, taken)) = OPTIONS.iter().find(|(command, _)| *command == word) else {
        return Ok(());
    };
    let is_taken = |name: &str, value: Option<&OsString>| {
        taken.contains(&name) || name == PRESERVED && value.is_some_and(|value| value == "0")
    };
    let given = call.options.iter();
    let mut others = given.filter(|(name, value)| !is_taken(name, value.as_ref()));
    let Some((name, _)) = others.next() else {
        return Ok(());
    };
    let message = format!("cannot {word} a container: the runtime vm has no --{name}");
    let long = taken.iter().filter(|name| name.len() > 1);
    let long: Vec<_> = long.map(|name| format!("--{name}")).collect();
    let help = match long[..] {
        [] => format!("{word} takes no options"),
        _ => format!("{word} takes {}", long.join(", ")),
    };
    Err(Failure::new(Exit::Unsupported, message).help(help))
}

/// Runs one of this runtime's own processes if `args` is its command line. `not_executed` creates
/// the error for a container's program that cannot be executed, from its name and the cause.
pub fn execute_own(
    words: &[OsString],
    not_executed: fn(&str, io::Error) -> Failure,
) -> Option<Outcome> {
    let (word, args) = words.split_first()?;
    match word.to_str()? {
        MONITOR => Some(monitor::execute(args)),
        QEMU => Some(qemu::become_it(args)),
        KEEPER => Some(warm::keep(args)),
        WARM => Some(warm::hold(args)),
        SESSION => Some(session::hold(args)),
        GUEST => Some(guest::first_process()),
        WORKER => Some(guest::worker()),
        OUTSIDE => Some(container::outside(args)),
        INSIDE => Some(container::inside(args, not_executed)),
        _ => None,
    }
}

/// Returns a command that runs this program as another process.
fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tollgate").arg("runtime");
    command
}

struct Vm {
    id: String,
    store: Store,
}

impl Vm {
    fn new(settings: &Settings, line: &CommandLine, id: &str) -> Result<Self, Failure> {
        let root = line.root.as_deref().unwrap_or(Path::new(NAME));
        let store =
            Store::new(&settings.state, Some(root), id).map_err(|error| state_failure(&error))?;
        Ok(Self {
            id: id.to_owned(),
            store,
        })
    }

    /// Sends one request to the monitor and returns the answer.
    fn ask(&self, frame: &Frame) -> io::Result<Frame> {
        let mut stream = UnixStream::connect(self.store.file(SOCKET))?;
        frame.write(&mut stream)?;
        Frame::read(&mut stream).map_err(io::Error::other)
    }

    fn order(&self, frame: &Frame) -> Outcome {
        let failed = |why: &str| {
            let message = format!("container {}: {why}", self.id);
            Failure::new(Exit::BadInput, message).help("`state` shows how it is")
        };
        if !self.expect_machine()?.is_there() {
            return Err(failed("it has stopped"));
        }
        match self.ask(frame) {
            Ok(answer) if answer.kind == Kind::Done => Ok(Exit::Ok),
            Ok(answer) => Err(failed(&String::from_utf8_lossy(&answer.content))),
            Err(cause) => Err(failed(&format!("it does not answer: {cause}"))),
        }
    }

    fn start(&self) -> Outcome {
        let process = fs::read(self.store.file(PROCESS)).map_err(|_gone| self.missing())?;
        self.order(&Frame::new(FIRST, Kind::Start, process::start(&process)))
    }

    /// Creates and starts a container; unless detached, waits for it and deletes it.
    fn run(&self, settings: &Settings, line: &CommandLine, call: &Call) -> Outcome {
        let mut made = self.create(settings, line, call)?;
        if let Err(failure) = self.start() {
            qemu::end(&mut made.monitor);
            self.remove()?;
            return Err(failure);
        }
        made.keep();
        if call.detaches {
            return Ok(Exit::Ok);
        }
        let status = made
            .monitor
            .wait()
            .map_err(cannot("wait for the container"))?;
        if !call.has(&["keep"]) {
            self.remove()?;
        }
        Ok(Exit::Command(runtime::containers::code(status)))
    }

    fn machine(&self) -> Result<Option<Machine>, Failure> {
        Machine::read(&self.store.file(MACHINE)).map_err(cannot("read what is noted"))
    }

    fn missing(&self) -> Failure {
        let message = format!("container {} does not exist", self.id);
        Failure::new(Exit::Command(1), message).help("`list` shows those that do")
    }

    fn expect_machine(&self) -> Result<Machine, Failure> {
        self.machine()?.ok_or_else(|| self.missing())
    }

    fn status(&self, machine: &Machine) -> String {
        let answer = machine
            .is_there()
            .then(|| self.ask(&Frame::new(FIRST, Kind::State, [])));
        match answer {
            Some(Ok(answer)) => String::from_utf8_lossy(&answer.content).into_owned(),
            Some(Err(_)) if !self.store.file(SOCKET).exists() => "creating".to_owned(),
            // The monitor is ending or has ended.
            _ => "stopped".to_owned(),
        }
    }

    fn state(&self, machine: &Machine) -> Result<Value, Failure> {
        let status = self.status(machine);
        let note = self.store.note().map_err(|error| state_failure(&error))?;
        Ok(json!({
            "ociVersion": "1.0.2",
            "id": self.id,
            "status": status,
            "pid": if status == "stopped" { 0 } else { machine.pid },
            "bundle": note.map(|note| note.bundle),
            "annotations": machine.annotations,
        }))
    }

    fn print_state(&self) -> Outcome {
        let state = self.state(&self.expect_machine()?)?;
        let text = serde_json::to_string_pretty(&state).expect("it is JSON");
        terminal::print(&format!("{text}\n"))
    }

    fn kill(&self, call: &Call) -> Outcome {
        let given = call.rest.first().map(|word| word.to_string_lossy());
        let name = given.as_deref().unwrap_or("TERM");
        let number = name
            .parse()
            .ok()
            .map(Signal)
            .or_else(|| Signal::from_name(name));
        let number = number.and_then(|signal| u8::try_from(signal.0).ok());
        let number = number
            .filter(|number| (1..=64).contains(number))
            .ok_or_else(|| {
                Failure::new(
                    Exit::BadInput,
                    format!("cannot send {name}: no such signal"),
                )
                .help("use a number, or a name such as TERM")
            })?;
        let all = u8::from(call.has(&["all", "a"]));
        self.order(&Frame::new(FIRST, Kind::Signal, [number, all]))
    }

    /// Starts another program in the container.
    fn exec(&self, call: &Call) -> Outcome {
        if !self.expect_machine()?.is_there() {
            let message = format!("container {} has stopped", self.id);
            return Err(Failure::new(Exit::BadInput, message).help("`state` shows how it is"));
        }
        let own = fs::read(self.store.file(PROCESS)).map_err(|_gone| self.missing())?;
        let process = process::of_exec(&own, call)?;
        let stream = UnixStream::connect(self.store.file(SOCKET));
        session::begin(stream.map_err(cannot("reach the machine"))?, &process, call)
    }

    fn delete(&self, call: &Call) -> Outcome {
        let is_forced = call.has(&["force", "f"]);
        match self.machine()? {
            None if is_forced => {}
            None => return Err(self.missing()),
            Some(machine) => {
                let status = self.status(&machine);
                if !is_forced && status != "stopped" {
                    let message = format!("cannot delete container {}: it is {status}", self.id);
                    return Err(
                        Failure::new(Exit::BadInput, message).help("kill it first, or use --force")
                    );
                }
            }
        }
        self.remove().map(|()| Exit::Ok)
    }

    /// Stops all processes of the container and removes its notes.
    fn remove(&self) -> Result<(), Failure> {
        if let Some(machine) = self.machine()? {
            let deadline = Instant::now() + END_LIMIT;
            while machine.is_there() && Instant::now() < deadline {
                // Fails only if it has just ended. Its machine ends with it.
                let _ = sys::signal::send(machine.pid, SIGKILL);
                std::thread::sleep(PAUSE);
            }
        }
        self.store.end().map_err(|error| state_failure(&error))
    }
}

fn list(line: &CommandLine, settings: &Settings, call: &Call) -> Outcome {
    let folder = Vm::new(settings, line, "x")?.store.file("");
    let above = folder.parent().unwrap_or(Path::new("/"));
    let mut states = Vec::new();
    // Before the first container there is no folder.
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let vm = Vm::new(settings, line, &entry.file_name().to_string_lossy())?;
        if let Some(machine) = vm.machine()? {
            states.push(vm.state(&machine)?);
        }
    }
    let word = |state: &Value, name: &str| state[name].as_str().unwrap_or("-").to_owned();
    if call.has(&["quiet", "q"]) {
        let ids = states.iter().map(|state| word(state, "id") + "\n");
        return terminal::print(&ids.collect::<String>());
    }
    if call.values(&["format", "f"]).last() == Some(OsStr::new("json")) {
        return terminal::print(&format!("{}\n", Value::from(states)));
    }
    let mut text = String::from("ID PID STATUS BUNDLE\n");
    for state in &states {
        let [id, status, bundle] = ["id", "status", "bundle"].map(|name| word(state, name));
        text.push_str(&format!("{id} {} {status} {bundle}\n", state["pid"]));
    }
    terminal::print(&text)
}

fn write_pid(file: &OsStr, pid: u32) -> Result<(), Failure> {
    fs::write(file, pid.to_string()).map_err(cannot("write the pid file"))
}

/// Returns the start time of a process in ticks; `None` if there is none or it has ended.
fn started(pid: i32) -> Option<u64> {
    let fields = stat(pid)?;
    (fields.first()? != "Z").then_some(())?;
    fields.get(19)?.parse().ok()
}

/// Returns the fields of /proc/PID/stat after the name: state, parent and so on (proc_pid_stat(5)).
/// `None` if there is no such process.
fn stat(pid: impl std::fmt::Display) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn cannot(action: &'static str) -> impl Fn(io::Error) -> Failure {
    move |cause| {
        Failure::new(Exit::Unsupported, format!("cannot {action}: {cause}"))
            .help("check the file and the free disk space")
    }
}
