//! The agent of one container, where the agent of the host does the work: it hands the container over,
//! passes on what the keeper wants, and ends when the agent of the host does. Then the keeper stands in, as
//! for any agent, and starts another one, which finds or starts another agent of the host.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use capture::notify::{Answering, call_words};
use enforce::Confinement;
use sys::notify::Notification;
use sys::poll::{self, PollFd};

use super::super::services::TheirContainer;
use super::hail::{self, Hail, Order};
use super::place::Place;
use crate::supervise::{Listening, Meanwhile, Report, Services, Source};

/// How long an agent of the host may take to be found or started, rules included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one that is there may take to watch a container, or to do anything else; longer than an output
/// may take. One that takes longer is stopped or stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const HAIL_LIMIT: Duration = Duration::from_secs(10);
/// How long a runtime's calls wait for it.
const GREETING_LIMIT: Duration = Duration::from_millis(50);
/// Time between two looks for one that another process starts.
const PAUSE: Duration = Duration::from_millis(5);
/// Starts that may fail; files may be removed by one that ends just then.
const STARTS: u32 = 3;
/// What is shown of the messages of one that did not start.
const SHOWN: u64 = 4096;
const SIGKILL: i32 = 9;

/// What has to be handed over.
pub(in super::super) struct Errand {
    place: Place,
    /// The command line of the agent of the host.
    words: Vec<OsString>,
    memo: Vec<u8>,
    container: TheirContainer,
    /// What rules and configuration looked like.
    rules: Option<u64>,
    /// While it is there nobody removes what the container's first program is about to be confined by.
    confinement: Option<Confinement>,
}

impl Errand {
    /// `words`: the command line of this process. `memo`: what an agent that takes over has to know.
    pub(in super::super) fn new(
        folder: &Path,
        words: &[OsString],
        memo: Vec<u8>,
        container: TheirContainer,
        rules: Option<u64>,
        confinement: Option<Confinement>,
    ) -> std::io::Result<Self> {
        let words = words_of_host(words);
        let place = Place::find(folder, &words, &memo)?;
        Ok(Self {
            place,
            words,
            memo,
            container,
            rules,
            confinement,
        })
    }

    /// Has the agent of the host watch the container, and starts that one if it is not there. If it is, that
    /// has time until the runtime has ended or begins a program in the container.
    pub(in super::super) fn start(
        self,
        listening: Listening,
        meanwhile: Option<Meanwhile<'_>>,
    ) -> anyhow::Result<Box<dyn Services>> {
        let mut answering: Option<Answering> = None;
        if let Some(meanwhile) = meanwhile
            && self.place.is_there()
        {
            let answers = super::super::let_work(&listening)?;
            meanwhile(&[answers.held()]);
            answering = Some(answers);
        }
        let deadline = Instant::now() + PATIENCE;
        let mut held: Option<Vec<Notification>> = None;
        let mut failed_starts = 0;
        let mut broken_off: Option<std::io::Error> = None;
        loop {
            if Instant::now() > deadline {
                let cause = broken_off.map_or_else(String::new, |error| format!(" ({error})"));
                bail!(
                    "cannot reach the agent of the host{cause}; its messages are in {}",
                    self.log()
                );
            }
            let mut let_work = || {
                if !listening.is_resumed && answering.is_none() {
                    answering = Some(super::super::let_work(&listening)?);
                }
                anyhow::Ok(())
            };
            if let Some(stream) = self.meet(&mut let_work)? {
                if let Some(answering) = answering.take() {
                    let calls = answering.end().context("cannot let the runtime work")?;
                    held.get_or_insert_default().extend(calls);
                }
                match self.hand_over(&stream, &listening, held.as_deref()) {
                    Ok(Ok(())) => return Ok(Box::new(Remote::new(stream, self.confinement)?)),
                    Ok(Err(why)) => bail!("cannot have the container watched: {why}"),
                    Err(error) if is_late(&error) => kill(&stream),
                    // It has just ended, or will not take it, however often.
                    Err(error) => {
                        broken_off = Some(error);
                        std::thread::sleep(PAUSE);
                    }
                }
                continue;
            }
            let_work()?;
            match self.launch() {
                Ok(()) => {}
                Err(error) if failed_starts + 1 >= STARTS => return Err(error),
                Err(_) => failed_starts += 1,
            }
            if !self.place.is_there() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Connects to the agent of the host and waits until it shows that it works. `let_work` is called if it
    /// does not at once: a runtime's calls are not to wait for it.
    fn meet(
        &self,
        let_work: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<UnixStream>> {
        let Ok(stream) = self.place.connect() else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(GREETING_LIMIT))?;
        match hail::await_greeting(&stream) {
            Ok(()) => return Ok(Some(stream)),
            Err(error) if is_late(&error) => {}
            // It is about to end.
            Err(_) => return Ok(None),
        }
        let_work()?;
        stream.set_read_timeout(Some(HAIL_LIMIT))?;
        match hail::await_greeting(&stream) {
            Ok(()) => Ok(Some(stream)),
            Err(error) => {
                if is_late(&error) {
                    kill(&stream);
                }
                Ok(None)
            }
        }
    }

    fn log(&self) -> String {
        self.place.log().display().to_string()
    }

    fn hand_over(
        &self,
        stream: &UnixStream,
        listening: &Listening,
        held: Option<&[Notification]>,
    ) -> std::io::Result<Result<(), String>> {
        let Source::Listener(listener) = &listening.source else {
            return Ok(Err("it has no listener".to_owned()));
        };
        let Some(board) = &listening.board_file else {
            return Ok(Err("it has no board".to_owned()));
        };
        let hail = Hail {
            build: hail::build()?,
            container: self.container.told.id.clone(),
            bundle: self.container.told.bundle.clone(),
            has_mounts: self.container.has_mounts,
            generation: listening.generation,
            is_resumed: listening.is_resumed,
            transparent: listening.transparent.iter().map(|pid| pid.0).collect(),
            held: held.map(|calls| calls.iter().flat_map(call_words).collect()),
            rules: self.rules,
        };
        stream.set_read_timeout(Some(HAIL_LIMIT))?;
        stream.set_write_timeout(Some(HAIL_LIMIT))?;
        hail::send(stream, &hail, board.as_fd(), listener.as_fd())?;
        hail::hear(stream)
    }

    /// Starts the agent of the host, and waits until it listens or says that there is another one.
    fn launch(&self) -> anyhow::Result<()> {
        let path = self.place.log();
        let open = || -> std::io::Result<(File, u64)> {
            let mut log = OpenOptions::new();
            let log = log.append(true).create(true).open(&path)?;
            let before = log.metadata()?.len();
            Ok((log, before))
        };
        let (log, before) = open().with_context(|| format!("cannot open {}", path.display()))?;
        self.place
            .leave_memo(&self.memo)
            .with_context(|| format!("cannot write beside {}", path.display()))?;
        let mut option = OsString::from("--host-agent=");
        option.push(self.place.base());
        let mut words = self.words.clone();
        words.insert(2, option);
        let status = Command::new("/proc/self/exe")
            .arg0(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .context("cannot start the agent of the host")?;
        if status.success() {
            return Ok(());
        }
        let said = said_since(&path, before)
            .unwrap_or_else(|error| format!("what it said cannot be read: {error}"));
        bail!(
            "cannot start the agent of the host: {status}\n{}",
            said.trim_end()
        )
    }
}

/// The command line of the agent of the host, from that of the agent of a container: without what is about
/// the container.
fn words_of_host(words: &[OsString]) -> Vec<OsString> {
    const ABOUT_CONTAINER: [&str; 6] = [
        "--resume=",
        "--told-agent=",
        "--told-bundle=",
        "--told-container=",
        "--told-plans=",
        "--told-host-mounts",
    ];
    let is_general = |word: &&OsString| {
        let word = word.to_string_lossy();
        !ABOUT_CONTAINER
            .iter()
            .any(|option| word.starts_with(option))
    };
    let options = words.iter().take_while(|word| *word != "--");
    let mut words: Vec<OsString> = options.filter(is_general).cloned().collect();
    // No command is run.
    words.extend(["--", "agent"].map(OsString::from));
    words
}

fn said_since(log: &PathBuf, before: u64) -> std::io::Result<String> {
    let mut log = File::open(log)?;
    log.seek(SeekFrom::Start(before))?;
    let mut said = Vec::new();
    log.take(SHOWN).read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Ends an agent of the host that does not answer.
fn kill(stream: &UnixStream) {
    let Ok((pid, ..)) = sys::socket::peer_credentials(stream.as_fd()) else {
        return;
    };
    // Fails only if it has just ended.
    let _ = sys::pidfd::open(pid)
        .and_then(|process: OwnedFd| sys::pidfd::send_signal(process.as_fd(), SIGKILL));
}

/// Services that are the host's.
struct Remote {
    stream: UnixStream,
    is_lost: Cell<bool>,
    /// As in [`Errand`].
    _confinement: Option<Confinement>,
}

impl Remote {
    fn new(stream: UnixStream, confinement: Option<Confinement>) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let is_lost = Cell::new(false);
        Ok(Self {
            stream,
            is_lost,
            _confinement: confinement,
        })
    }

    fn ask(&self, order: Order) -> bool {
        if self.is_lost.get() {
            return false;
        }
        hail::ask(&self.stream, order).unwrap_or_else(|error| {
            self.is_lost.set(true);
            if is_late(&error) {
                kill(&self.stream);
            }
            false
        })
    }
}

impl Services for Remote {
    fn has_ended(&self) -> bool {
        self.ask(Order::HasEnded)
    }

    fn flush(&self) {
        self.ask(Order::Flush);
    }

    fn report(&self, report: &Report) {
        self.ask(match report {
            // They are on the board.
            Report::Gaps(_) => Order::Gaps,
            Report::Upgraded => Order::Upgraded,
            Report::UpgradeFailed => Order::UpgradeFailed,
            Report::KeeperGone => Order::KeeperGone,
            Report::KeeperReplaced { pid } => Order::KeeperReplaced(*pid),
        });
    }

    fn hand_over(&mut self) {
        self.ask(Order::HandOver);
    }

    fn let_go(&self) {
        self.ask(Order::HandOver);
    }

    fn finish(self: Box<Self>) {
        self.ask(Order::Flush);
    }

    fn link(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn are_lost(&self) -> bool {
        let mut polled = [PollFd::new(self.stream.as_fd(), poll::IN)];
        let is_readable = poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|n| n > 0);
        // Nothing is sent unasked, so that it is the end.
        self.is_lost.get() || is_readable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_the_host_knows_nothing_of_the_container() {
        let words = [
            "tollgate",
            "run",
            "--resume=1,2",
            "--quiet",
            "--engine",
            "notify",
            "--config=/c.yaml",
            "--told-container=a",
            "--told-bundle=/b",
            "--told-plans=/p",
            "--told-agent=/x",
            "--audit",
            "--",
            "runc",
            "--root=/r",
        ];
        let words = words_of_host(&words.map(OsString::from));
        let expected = [
            "tollgate",
            "run",
            "--quiet",
            "--engine",
            "notify",
            "--config=/c.yaml",
            "--audit",
            "--",
            "agent",
        ];
        assert_eq!(words, expected);
    }
}
