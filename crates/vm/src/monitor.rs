//! The monitor: the host process that stands for a container in a machine. It starts the machine,
//! has the container's standard input and output, answers callers, and writes alerts.
//!
//! A compromised guest can send anything to this process. Input is therefore bounded: frames by
//! their length, each session by the chunks that it may send unasked, and alerts are single lines.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};

use super::session::{self, StartState};
use super::{
    END_LIMIT, FIRST, INITRD, OWN, PLAN, Plan, SIGKILL, SIGTERM, SOCKET, caller, cannot, qemu,
};
use crate::frame::PIECE;
use crate::{Frame, FrameError, Kind};

/// Maximum number of unread frames per session: a chunk of each stream, and the frame that ends it.
const WAITING: usize = 8;
/// Exit status base for a signal, as in a shell.
const BY_SIGNAL: u8 = 128;

/// State of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Creating,
    Created,
    Starting,
    Running,
    Over,
}

impl Phase {
    fn word(&self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Created | Self::Starting => "created",
            Self::Running => "running",
            Self::Over => "stopped",
        }
    }
}

struct Monitor {
    folder: PathBuf,
    link: Mutex<UnixStream>,
    phase: Mutex<Phase>,
    changed: Condvar,
    sessions: Mutex<Sessions>,
    alerts: Mutex<File>,
}

#[derive(Default)]
struct Sessions {
    last: u32,
    open: HashMap<u32, SyncSender<Frame>>,
}

/// Body of a monitor thread.
type Work = Box<dyn FnOnce(&Arc<Monitor>) + Send>;

/// `FOLDER CALLER`: the directory of the plan, and the number of the descriptor to the creator.
pub(super) fn execute(args: &[OsString]) -> Outcome {
    let folder = caller::folder(args)?;
    let caller = caller::Caller::inherited(args.get(1))?;
    name_this();
    if !caller.has_folder()? {
        return Ok(Exit::Ok);
    }
    caller::leave(&folder)?;
    let Some(given) = caller.order()? else {
        return caller::forget(&folder);
    };
    let plan = fs::read(folder.join(PLAN)).map_err(cannot("read the plan"))?;
    let plan: Plan =
        serde_json::from_slice(&plan).map_err(|error| cannot("read the plan")(error.into()))?;
    // Before threads are started.
    let signals = session::catch()?;
    let is_warm = given.is_some();
    let (link, machine) = match given {
        Some(warm) => (warm.line, Held::ByAnother(warm.hold)),
        None => boot(&folder, &plan)?,
    };
    let alerts = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&plan.alerts);
    let listener = UnixListener::bind(folder.join(SOCKET)).map_err(cannot("listen"))?;
    let (reader, own) = (link.try_clone(), UnixStream::pair());
    let (ours, own) = own.map_err(cannot("make a line"))?;
    let monitor = Arc::new(Monitor {
        folder,
        link: Mutex::new(link),
        phase: Mutex::new(Phase::Creating),
        changed: Condvar::new(),
        sessions: Mutex::default(),
        alerts: Mutex::new(alerts.map_err(cannot("open the file for alerts"))?),
    });
    let first = monitor.open(FIRST);
    let reader = reader.map_err(cannot("make a line"))?;
    let work: [Work; 5] = [
        Box::new(move |monitor| monitor.listen_to_machine(reader)),
        Box::new(move |monitor| monitor.relay(FIRST, own, first)),
        Box::new(move |monitor| monitor.serve(&listener)),
        Box::new(move |monitor| caller.stay_or_end(&monitor.folder)),
        Box::new(move |monitor| {
            if is_warm {
                monitor.send_files();
            }
        }),
    ];
    for does in work {
        let monitor = Arc::clone(&monitor);
        std::thread::Builder::new()
            .spawn(move || does(&monitor))
            .map_err(cannot("start a thread"))?;
    }
    let end = session::attend(ours, signals, StartState::NotYet);
    machine.end();
    end.outcome()
}

/// Owner of the machine.
enum Held {
    Own(Child),
    /// A pool process, which ends the machine when this connection closes.
    ByAnother(UnixStream),
}

impl Held {
    fn end(self) {
        match self {
            Self::Own(mut machine) => qemu::end(&mut machine),
            Self::ByAnother(hold) => drop(hold),
        }
    }
}

fn boot(folder: &Path, plan: &Plan) -> Result<(UnixStream, Held), Failure> {
    let (link, theirs) = UnixStream::pair().map_err(cannot("make a line"))?;
    let machine = qemu::Machine {
        folder,
        kernel: &plan.kernel,
        initrd: &folder.join(INITRD),
        memory_mib: plan.memory_mib,
    };
    Ok((link, Held::Own(machine.boot(&theirs)?)))
}

/// Sets the process name, which callers inspect; it would otherwise be that of the link by which
/// the program was executed.
pub(super) fn name_this() {
    // Only cosmetic.
    let _ = sys::prctl::set_name(c"tollgate-vm");
}

impl Monitor {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase) {
        *self.phase() = phase;
        self.changed.notify_all();
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, session: u32) -> Receiver<Frame> {
        let (sender, receiver) = mpsc::sync_channel(WAITING);
        self.sessions().open.insert(session, sender);
        receiver
    }

    /// Sends a frame. A failed connection ends its reader, which shuts the machine down.
    fn send(&self, frame: &Frame) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&mut *link);
    }

    /// Sends the container's files to a warm machine.
    fn send_files(&self) {
        let send = || -> io::Result<()> {
            let mut file = File::open(self.folder.join(INITRD))?;
            let mut piece = vec![0; PIECE];
            loop {
                let size = file.read(&mut piece)?;
                self.send(&Frame::new(FIRST, Kind::Files, &piece[..size]));
                if size == 0 {
                    return Ok(());
                }
            }
        };
        if let Err(cause) = send() {
            let why = format!("cannot read the container's files: {cause}");
            self.take(Frame::new(FIRST, Kind::Failed, why));
        }
    }

    fn listen_to_machine(&self, link: UnixStream) {
        let mut link = BufReader::new(link);
        loop {
            match Frame::read(&mut link) {
                Ok(frame) => self.take(frame),
                Err(FrameError::Ended) => break,
                Err(error) => {
                    self.log(&format!("the machine's line: {}", describe(&error)));
                    break;
                }
            }
        }
        self.enter(Phase::Over);
        self.sessions().open.clear();
    }

    fn take(&self, frame: Frame) {
        let phase = self.phase().clone();
        match (frame.kind, frame.session) {
            (Kind::Ready, _) if phase == Phase::Creating => {
                // QEMU has read the file. If it remains, it uses memory until the container is
                // removed.
                let _ = fs::remove_file(self.folder.join(INITRD));
                return self.enter(Phase::Created);
            }
            (Kind::Alert, _) => return self.write_alert(&frame.content),
            (Kind::Done, FIRST) if phase == Phase::Starting => self.enter(Phase::Running),
            (Kind::Exited | Kind::Failed, FIRST) => self.enter(Phase::Over),
            _ => {}
        }
        let mut sessions = self.sessions();
        let session = frame.session;
        let is_end = matches!(frame.kind, Kind::Exited | Kind::Failed);
        let sent = sessions.open.get(&session).map(|open| open.try_send(frame));
        // A session that sends more than allowed is cut off.
        if is_end || matches!(sent, Some(Err(_))) {
            sessions.open.remove(&session);
        }
    }

    /// Appends an alert to the file.
    fn write_alert(&self, line: &[u8]) {
        let is_line = !line.contains(&b'\n') && std::str::from_utf8(line).is_ok();
        if !is_line {
            return self.log("the virtual machine sent an invalid alert");
        }
        let mut bytes = line.to_vec();
        bytes.push(b'\n');
        let mut alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = alerts.write_all(&bytes) {
            self.log(&format!("cannot write an alert: {error}"));
        }
    }

    fn log(&self, message: &str) {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.join("agent.log"));
        // There is no other destination: the standard error belongs to the container.
        let _ = file.and_then(|mut file| writeln!(file, "tollgate: {message}"));
    }

    fn serve(self: &Arc<Self>, listener: &UnixListener) {
        for caller in listener.incoming().flatten() {
            let monitor = Arc::clone(self);
            // A caller that cannot be served sees its connection closed.
            let _ = std::thread::Builder::new().spawn(move || monitor.answer(caller));
        }
    }

    /// Serves one caller: a request about the container, or another program.
    fn answer(&self, mut caller: UnixStream) {
        let Ok(frame) = Frame::read(&mut caller) else {
            return;
        };
        if frame.session == OWN && frame.kind == Kind::Start {
            return self.begin(caller, frame.content);
        }
        let answer = match frame.kind {
            Kind::State => Ok(self.phase().word()),
            Kind::Start => self.start(frame.content),
            Kind::Signal => self.signal(frame.content),
            _ => Err("unknown request"),
        };
        let answer = match (frame.kind, answer) {
            (_, Err(why)) => Frame::new(FIRST, Kind::Failed, why),
            (Kind::State, Ok(word)) => Frame::new(FIRST, Kind::State, word),
            (_, Ok(_)) => Frame::new(FIRST, Kind::Done, []),
        };
        // A caller that has disconnected needs no answer.
        let _ = answer.write(&mut caller);
    }

    fn start(&self, content: Vec<u8>) -> Result<&'static str, &'static str> {
        let mut phase = self.phase();
        match *phase {
            Phase::Created => {}
            Phase::Over => return Err("it has stopped"),
            _ => return Err("it has been started"),
        }
        *phase = Phase::Starting;
        drop(phase);
        self.send(&Frame::new(FIRST, Kind::Start, content));
        let mut phase = self.phase();
        while *phase == Phase::Starting {
            let waited = self.changed.wait_timeout(phase, Duration::from_secs(1));
            phase = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // The program may have ended already.
        Ok("")
    }

    fn signal(&self, content: Vec<u8>) -> Result<&'static str, &'static str> {
        let number = content.first().copied().ok_or("a signal has a number")?;
        let phase = self.phase().clone();
        match phase {
            Phase::Over => return Err("it has stopped"),
            Phase::Creating | Phase::Created if is_deadly(number) => {
                self.cut_off(BY_SIGNAL.saturating_add(number));
                return Ok("");
            }
            _ => {}
        }
        if i32::from(number) == SIGKILL {
            self.make_sure();
        }
        self.send(&Frame::new(FIRST, Kind::Signal, content));
        Ok("")
    }

    /// Ends the machine if the guest does not obey: a compromised guest must not keep it alive.
    fn make_sure(&self) {
        let link = self
            .link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_clone();
        std::thread::spawn(move || {
            std::thread::sleep(END_LIMIT);
            // Fails only if the connection is closed.
            let _ = link.map(|link| link.shutdown(Shutdown::Both));
        });
    }

    fn cut_off(&self, status: u8) {
        self.take(Frame::new(FIRST, Kind::Exited, [status]));
    }

    /// Starts another program, for which the caller stands.
    fn begin(&self, mut caller: UnixStream, content: Vec<u8>) {
        if *self.phase() != Phase::Running {
            let answer = Frame::new(OWN, Kind::Failed, "the container does not run");
            // A caller that has disconnected needs no answer.
            let _ = answer.write(&mut caller);
            return;
        }
        let session = {
            let mut sessions = self.sessions();
            sessions.last = sessions.last.wrapping_add(1).max(FIRST + 1);
            sessions.last
        };
        let receiver = self.open(session);
        self.send(&Frame::new(session, Kind::Start, content));
        self.relay(session, caller, receiver);
    }

    /// Forwards frames of a session in both directions until either side ends.
    fn relay(&self, session: u32, caller: UnixStream, frames: Receiver<Frame>) {
        let Ok(mut to_caller) = caller.try_clone() else {
            return;
        };
        let writer = std::thread::spawn(move || {
            for frame in frames {
                let own = Frame {
                    session: OWN,
                    ..frame
                };
                if own.write(&mut to_caller).is_err() {
                    break;
                }
            }
            // Ends the other direction, too.
            let _ = to_caller.shutdown(Shutdown::Both);
        });
        let mut from_caller = BufReader::new(caller);
        while let Ok(frame) = Frame::read(&mut from_caller) {
            if matches!(frame.kind, Kind::Input | Kind::Taken | Kind::Signal) {
                self.send(&Frame { session, ..frame });
            }
        }
        // A program whose caller was killed is ended, like one whose process is killed.
        if self.sessions().open.remove(&session).is_some() {
            let signal = u8::try_from(SIGKILL).expect("it is below 64");
            self.send(&Frame::new(session, Kind::Signal, [signal]));
        }
        // The writer ends when its channel is closed.
        let _ = writer.join();
    }
}

/// Returns true for signals that terminate a process by default.
fn is_deadly(number: u8) -> bool {
    [SIGKILL, SIGTERM, 1, 2, 3].contains(&i32::from(number))
}

fn describe(error: &FrameError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(folder: &Path) -> (Monitor, UnixStream) {
        let (link, machine) = UnixStream::pair().unwrap();
        let alerts = File::create(folder.join("alerts")).unwrap();
        let monitor = Monitor {
            folder: folder.to_owned(),
            link: Mutex::new(link),
            phase: Mutex::new(Phase::Running),
            changed: Condvar::new(),
            sessions: Mutex::default(),
            alerts: Mutex::new(alerts),
        };
        (monitor, machine)
    }

    #[test]
    fn alerts_are_lines_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (monitor, _machine) = monitor(folder.path());
        for alert in [&b"{\"rule\":\"one\"}"[..], b"two\nthree", b"\xff\xfe"] {
            monitor.take(Frame::new(FIRST, Kind::Alert, alert));
        }
        let text = fs::read_to_string(folder.path().join("alerts")).unwrap();
        assert_eq!(text, "{\"rule\":\"one\"}\n");
        let log = fs::read_to_string(folder.path().join("agent.log")).unwrap();
        assert_eq!(log.lines().count(), 2, "{log}");
    }

    #[test]
    fn a_session_that_sends_more_than_it_may_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let (monitor, _machine) = monitor(folder.path());
        let frames = monitor.open(5);
        for _ in 0..WAITING + 2 {
            monitor.take(Frame::new(5, Kind::Output, "x"));
        }
        assert_eq!(frames.iter().count(), WAITING);
        assert!(monitor.sessions().open.is_empty());
    }

    #[test]
    fn a_program_whose_caller_is_killed_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let (monitor, mut machine) = monitor(folder.path());
        let frames = monitor.open(3);
        let (caller, ours) = UnixStream::pair().unwrap();
        drop(caller);
        monitor.relay(3, ours, frames);
        let frame = Frame::read(&mut machine).unwrap();
        assert_eq!(frame, Frame::new(3, Kind::Signal, [9]));
    }
}
