//! The `program` channel: writes alerts to the standard input of a program.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use yaml::key::Key;

use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::kind::{ChannelOpenError, Common, Missing, OutputKind};
use crate::stdout::StandardStream;

/// Command line and limits of the program.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Command line for `/bin/sh -c`.
    pub program: String,
    /// One process takes all alerts, a line each; otherwise each alert gets a process.
    pub keep_alive: bool,
    /// Time for the program to read an alert and, with a process per alert, to exit.
    pub timeout: Duration,
    /// Stream that the program gets as its standard output.
    pub prints_to: StandardStream,
}

/// `program_output`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// Write alerts to a program.
    pub enabled: bool,
    /// Keep the program running between alerts.
    pub keep_alive: bool,
    /// Command line for a shell.
    pub program: String,
}

impl OutputKind for ProgramOutput {
    const GROUP: &'static str = "program_output";
    const KEYS: &'static [Key<Self>] = &[
        Key::boolean("program_output.enabled", |output| &mut output.enabled),
        Key::boolean("program_output.keep_alive", |output| &mut output.keep_alive),
        Key::text("program_output.program", |output| &mut output.program),
    ];

    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn missing(&self) -> Option<Missing> {
        Missing::if_empty(&self.program, "program", "'COMMAND'")
    }

    fn open(&self, common: &Common) -> Result<Box<dyn Channel>, ChannelOpenError> {
        Ok(Box::new(ProgramChannel::new(ProgramOptions {
            program: self.program.clone(),
            keep_alive: self.keep_alive,
            timeout: common.timeout,
            prints_to: common.prints_to,
        })))
    }
}

/// Writes alerts to a program.
///
/// The program runs like under popen(3): by `/bin/sh -c`, with this process's environment and
/// output. It leads a process group of its own, all of which is killed when it does not read, or
/// does not exit, in time.
#[derive(Debug)]
pub struct ProgramChannel {
    options: ProgramOptions,
    running: Option<Running>,
    /// A process has run before, so the next one counts as a restart.
    has_run: bool,
    peer: Arc<Peer>,
}

impl ProgramChannel {
    /// Creates the channel. No process starts before the first alert.
    pub fn new(options: ProgramOptions) -> Self {
        Self {
            options,
            running: None,
            has_run: false,
            peer: Arc::default(),
        }
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let deadline = Instant::now() + self.options.timeout;
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let mut result = running.write(line, deadline);
        // The program exited since the last alert: the next one takes this alert, unless it reads
        // nothing at all.
        let is_closed = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
        if running.has_taken_before && result.as_ref().is_err_and(is_closed) {
            self.discard(running, deadline);
            running = self.start()?;
            result = running.write(line, deadline);
        }
        match result {
            Ok(()) if self.options.keep_alive => {
                running.has_taken_before = true;
                self.running = Some(running);
                Ok(())
            }
            Ok(()) => self.end(running, deadline),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                self.kill(running);
                Err(self.timed_out("read"))
            }
            Err(error) => {
                let status = self.discard(running, deadline);
                // A program may ignore its input; running it is sufficient.
                if !self.options.keep_alive && status.is_some_and(|status| status.success()) {
                    return Ok(());
                }
                Err(match status {
                    Some(status) => ended(status, "before it read the alert"),
                    None => error,
                })
            }
        }
    }

    fn start(&mut self) -> io::Result<Running> {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(&self.options.program)
            .stdin(Stdio::piped())
            .process_group(0);
        if self.options.prints_to == StandardStream::Error {
            command.stdout(self.options.prints_to.duplicate()?);
        }
        // Held during the start, so that a kill either finds the program or prevents its start.
        // Exec closes all descriptors of this process.
        let mut group = self.peer.group();
        if self.peer.is_killed() {
            return Err(io::Error::other("the program was stopped"));
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        *group = Some(pid);
        drop(group);
        if self.options.keep_alive && std::mem::replace(&mut self.has_run, true) {
            self.peer.count_restart();
        }
        let stdin = child.stdin.take().expect("it was asked for above");
        let watched = pidfd_open(pid, PidfdFlags::empty())
            .and_then(|process| fcntl_setfl(&stdin, OFlags::NONBLOCK).map(|()| process));
        match watched {
            Ok(process) => Ok(Running {
                child,
                stdin,
                process,
                has_taken_before: false,
            }),
            Err(error) => {
                self.peer.kill_group();
                self.reap(child);
                Err(error.into())
            }
        }
    }

    /// Closes the program's input and waits for its exit. A successful exit is the delivery of the
    /// alert.
    fn end(&mut self, running: Running, deadline: Instant) -> io::Result<()> {
        match self.discard(running, deadline) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(ended(status, "instead of with success")),
            None => Err(self.timed_out("end")),
        }
    }

    /// Closes the program's input and waits for its exit; kills it at the deadline.
    fn discard(&mut self, running: Running, deadline: Instant) -> Option<ExitStatus> {
        let Running {
            child,
            stdin,
            process,
            ..
        } = running;
        drop(stdin);
        if !wait_until(&process, PollFlags::IN, deadline) {
            self.peer.kill_group();
            wait_until(&process, PollFlags::IN, Instant::now() + KILL_GRACE);
            self.reap(child);
            return None;
        }
        self.reap(child)
    }

    fn kill(&mut self, running: Running) {
        self.discard(running, Instant::now());
    }

    fn reap(&self, mut child: Child) -> Option<ExitStatus> {
        // The pid is not reused before the process is reaped. A process in an uninterruptible call
        // stays a zombie until this process ends.
        *self.peer.group() = None;
        child.try_wait().ok().flatten()
    }

    fn timed_out(&self, what: &str) -> io::Error {
        self.peer.count_timeout();
        let limit = self.options.timeout;
        let message = format!("the program did not {what} within {limit:?} and was killed");
        io::Error::new(ErrorKind::TimedOut, message)
    }
}

impl Channel for ProgramChannel {
    fn name(&self) -> &str {
        "program"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        DeliveryError::of_each(alerts, |alert| self.send(alert.line()))
    }

    /// Stops the program; the next alert starts it again.
    fn reopen(&mut self) -> io::Result<()> {
        self.close();
        // A requested restart does not count as one after a failure.
        self.has_run = false;
        Ok(())
    }

    fn close(&mut self) {
        if let Some(running) = self.running.take() {
            let deadline = Instant::now() + self.options.timeout;
            self.discard(running, deadline);
        }
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

/// Time for the kernel to end a killed process.
const KILL_GRACE: Duration = Duration::from_millis(200);

struct Running {
    child: Child,
    stdin: ChildStdin,
    process: OwnedFd,
    has_taken_before: bool,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.child.id())
    }
}

impl Running {
    /// Like [`Write::write_all`], with a deadline.
    fn write(&mut self, line: &str, deadline: Instant) -> io::Result<()> {
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.stdin.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait_until(&self.stdin, PollFlags::OUT, deadline) {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn ended(status: ExitStatus, what: &str) -> io::Error {
    io::Error::other(format!("the program exited with {status} {what}"))
}

/// Waits for events of a descriptor. Returns false at the deadline.
fn wait_until(file: &impl std::os::fd::AsFd, events: PollFlags, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).expect("a timeout in seconds fits into 64 bits");
        match poll(&mut [PollFd::new(file, events)], Some(&limit)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            // The following read or write reports an error.
            Ok(_) | Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::channel::ReceiverState;
    use crate::channel::testing::deliveries;
    use crate::format::Format;

    fn channel(program: &str, keep_alive: bool, timeout_ms: u64) -> ProgramChannel {
        ProgramChannel::new(ProgramOptions {
            program: program.to_owned(),
            keep_alive,
            timeout: Duration::from_millis(timeout_ms),
            prints_to: StandardStream::Output,
        })
    }

    fn messages(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let last = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
        text.lines().map(last).collect()
    }

    fn exists(pid: &str) -> bool {
        Path::new("/proc").join(pid.trim()).exists()
    }

    #[test]
    fn one_process_takes_all_alerts_when_kept_alive_and_each_has_its_own_otherwise() {
        for keep_alive in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (out, pids) = (dir.path().join("out"), dir.path().join("pids"));
            let program = format!("echo $$ >> {}; cat >> {}", pids.display(), out.display());
            let mut channel = channel(&program, keep_alive, 10_000);
            channel.deliver(&deliveries(3, Format::default())).unwrap();
            channel.close();
            assert_eq!(messages(&out), ["n=0", "n=1", "n=2"]);
            let processes = messages(&pids).len();
            assert_eq!(processes, if keep_alive { 1 } else { 3 });
            assert_eq!(channel.peer().restarts(), 0);
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let program = format!("sleep 1000 & echo $! > {}; wait", pids.display());
        let mut channel = channel(&program, false, 300);
        let start = Instant::now();
        let alerts = deliveries(2, Format::default());
        let error = channel.deliver(&alerts).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(error.delivered, 0);
        assert_eq!(error.source.kind(), ErrorKind::TimedOut);
        assert_eq!(channel.peer().timeouts(), 2);
        let child = fs::read_to_string(&pids).unwrap();
        // An orphan that was killed is reaped by another process, soon.
        let deadline = Instant::now() + Duration::from_secs(5);
        while exists(&child) && Instant::now() < deadline && !is_zombie(&child) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!exists(&child) || is_zombie(&child), "{child} still runs");
    }

    fn is_zombie(pid: &str) -> bool {
        let stat = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    #[test]
    fn a_program_that_does_not_read_is_replaced_when_its_pipe_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let (flag, out) = (dir.path().join("flag"), dir.path().join("out"));
        // Hangs the first time only.
        let (flag, out_file) = (flag.display(), out.display());
        let program =
            format!("[ -e {flag} ] || {{ : > {flag}; exec sleep 1000; }}; cat > {out_file}");
        let mut channel = channel(&program, true, 300);
        let alerts = deliveries(1, Format::default());
        let error = (0..10_000).find_map(|_| channel.deliver(&alerts).err());
        let error = error.expect("a pipe is bounded");
        assert_eq!(error.source.kind(), ErrorKind::TimedOut);
        channel.deliver(&alerts).unwrap();
        channel.close();
        assert_eq!(messages(&out), ["n=0"]);
        assert_eq!(channel.peer().restarts(), 1);
    }

    #[test]
    fn a_program_that_ended_is_started_anew_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let program = format!("head -n 1 >> {}", out.display());
        let mut channel = channel(&program, true, 10_000);
        let alerts = deliveries(1, Format::default());
        for _ in 0..3 {
            channel.deliver(&alerts).unwrap();
            let process = &channel.running.as_ref().unwrap().process;
            assert!(wait_until(
                process,
                PollFlags::IN,
                Instant::now() + Duration::from_secs(10)
            ));
        }
        assert_eq!(messages(&out), ["n=0", "n=0", "n=0"]);
        assert_eq!(channel.peer().restarts(), 2);
    }

    #[test]
    fn a_failure_is_a_loss_with_its_reason() {
        let alerts = deliveries(1, Format::default());
        let error = channel("cat > /dev/null; exit 3", false, 10_000)
            .deliver(&alerts)
            .unwrap_err();
        assert_eq!(
            (error.delivered, error.receiver),
            (0, ReceiverState::Failing)
        );
        assert_eq!(
            error.source.to_string(),
            "the program exited with exit status: 3 instead of with success"
        );
    }

    #[test]
    fn killing_the_peer_ends_a_delivery_and_prevents_another_start() {
        let mut channel = channel("sleep 1000", false, 60_000);
        let peer = channel.peer();
        let start = Instant::now();
        let killer = std::thread::spawn(move || {
            while peer.group().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            peer.kill();
        });
        let error = channel
            .deliver(&deliveries(2, Format::default()))
            .unwrap_err();
        killer.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(error.delivered, 0);
        assert_eq!(error.source.to_string(), "the program was stopped");
    }

    #[test]
    fn a_program_gets_three_descriptors_and_no_more_signals_blocked() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        // Something of ours that a program must not see.
        let secret = fs::File::create(dir.path().join("secret")).unwrap();
        let program = format!(
            "ls -l /proc/self/fd > {0}; grep SigBlk /proc/self/status >> {0}",
            out.display()
        );
        channel(&program, false, 10_000)
            .deliver(&deliveries(1, Format::default()))
            .unwrap();
        drop(secret);
        let text = fs::read_to_string(&out).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
    }
}
