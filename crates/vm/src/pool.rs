//! The pool of warm machines: `tollgate runtime pool start [N] | status | stop`.
//!
//! A warm machine runs this program, which waits for a container's files ([`super::guest`]).
//! `create` takes a machine and sends them over the connection; a machine serves one container.
//! [`super::warm`] has the processes that create and keep the machines. The pool is noted in a
//! directory beside those of containers, with a lock that the keeper holds while it lives: without
//! the lock, the directory is the leftover of a killed keeper.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use runtime::CommandLine;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::caller::{WarmMachine, number};
use super::kernel::kernel;
use super::{KEEPER, PAUSE, SIGKILL, START_WAIT, Settings, cannot, image, qemu, this_program};
use crate::Kernel;

/// Name of the command.
const NAME: &str = "pool";
/// Name of the pool's directory, beside that of container notes.
const FOLDER: &str = "machines";
const LOCK: &str = "machines.lock";
const DESCRIPTION: &str = "pool.json";
const PID: &str = "pid";
const LOG: &str = "pool.log";
/// Name of the socket in a machine's directory, through which the machine is requested.
pub(super) const SOCKET: &str = "take.sock";
/// Maximum pool size; more would be a mistake, since each machine is a process with memory of its
/// own.
const MOST: u32 = 32;
/// Minimum memory of a machine in MiB: for containers with files of some 200 MiB.
const MEMORY_MIB: u64 = 1024;
/// Time limit for a machine's handover.
const HANDOVER_LIMIT: Duration = Duration::from_secs(5);

/// Note about a pool.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Pool {
    /// Number of machines that are kept ready.
    pub(super) size: u32,
    pub(super) memory_mib: u64,
    pub(super) build: Build,
    /// Descriptors that the keeper inherits: the initial RAM disk, and the lock.
    pub(super) initrd: String,
    pub(super) lock: String,
}

/// Inputs of a machine. They must match those of the container's.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Build {
    /// Size and modification time of this program.
    program: (u64, i64, i64),
    pub(super) kernel: PathBuf,
    release: String,
}

impl Build {
    fn of(kernel: &Kernel) -> io::Result<Self> {
        let program = fs::metadata("/proc/self/exe")?;
        Ok(Self {
            program: (program.len(), program.mtime(), program.mtime_nsec()),
            kernel: kernel.image.clone(),
            release: kernel.release.clone(),
        })
    }
}

impl Pool {
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let text = fs::read(folder.join(DESCRIPTION))?;
        serde_json::from_slice(&text).map_err(io::Error::from)
    }
}

/// Executes the command `pool`. Returns `None` for other commands.
#[must_use]
pub fn execute(line: &CommandLine) -> Option<Outcome> {
    let words = &line.call.as_ref()?.words;
    let (first, words) = words.split_first()?;
    (first == NAME).then(|| {
        let settings = Settings::load(line.config.as_deref())?;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let place = Place::of(&settings);
        match words[..] {
            ["start"] => place.start(&settings, 1),
            ["start", size] => place.start(&settings, parse_size(size)?),
            ["stop"] => place.stop(),
            ["status"] => place.status(false),
            ["status", "--json"] => place.status(true),
            _ => Err(Failure::new(
                Exit::BadInput,
                format!("cannot understand `pool {}`", words.join(" ")),
            )
            .help("use `pool start [N]`, `pool status [--json]` or `pool stop`")),
        }
    })
}

fn parse_size(word: &str) -> Result<u32, Failure> {
    let size = word.parse().ok().filter(|size| (1..=MOST).contains(size));
    size.ok_or_else(|| {
        Failure::new(
            Exit::BadInput,
            format!("cannot keep {word} virtual machines ready"),
        )
        .help(format!("name a number from 1 to {MOST}"))
    })
}

/// Takes a matching warm machine, if there is one. Its output so far is saved in `folder`.
pub(super) fn take(
    settings: &Settings,
    kernel: &Kernel,
    memory_mib: u64,
    folder: &Path,
) -> Option<WarmMachine> {
    let place = Place::of(settings);
    // Without a pool there are no warm machines.
    let pool = Pool::read(&place.folder).ok()?;
    let serves = Build::of(kernel).is_ok_and(|build| build == pool.build);
    if !serves || pool.memory_mib < memory_mib {
        return None;
    }
    let folder = std::path::absolute(folder).ok()?;
    let mut machines = place.machines();
    machines.find_map(|machine| take_one(&machine, &folder).ok())
}

fn take_one(machine: &Path, folder: &Path) -> io::Result<WarmMachine> {
    use std::os::unix::ffi::OsStrExt;
    let mut hold = UnixStream::connect(machine.join(SOCKET))?;
    hold.set_read_timeout(Some(HANDOVER_LIMIT))?;
    let mut path = folder.as_os_str().as_bytes().to_vec();
    path.push(0);
    hold.write_all(&path)?;
    // A machine that was already taken closes the connection.
    match sys::socket::receive_fd(hold.as_fd(), &mut [0])? {
        (1, Some(line)) => Ok(WarmMachine {
            line: line.into(),
            hold,
        }),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Directory of a pool.
struct Place {
    folder: PathBuf,
    lock: PathBuf,
}

impl Place {
    fn of(settings: &Settings) -> Self {
        let above = settings.state.parent().unwrap_or(Path::new("/"));
        Self {
            folder: above.join(FOLDER),
            lock: above.join(LOCK),
        }
    }

    /// Returns the directories of all machines, ready or not.
    fn machines(&self) -> impl Iterator<Item = PathBuf> {
        // Without the directory there are no machines.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.is_dir())
    }

    fn ready(&self) -> usize {
        let is_ready = |path: &PathBuf| path.join(SOCKET).exists();
        self.machines().filter(is_ready).count()
    }

    /// Takes the lock; `None` if a keeper has it.
    fn lock(&self) -> Result<Option<OwnedFd>, Failure> {
        let above = self.lock.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(above).map_err(cannot("make the folder of the pool"))?;
        let file = File::create(&self.lock).map_err(cannot("make the lock of the pool"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file.into())),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(cannot("lock the pool")(error.into())),
        }
    }

    fn clear(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(cannot("remove what is left of a pool")(error))
            }
            _ => Ok(()),
        }
    }

    fn start(&self, settings: &Settings, size: u32) -> Outcome {
        let kernel = kernel(settings)?;
        let path = std::env::var_os("PATH");
        diagnostics::lookup::resolve(qemu::EMULATOR.as_ref(), path.as_deref())?;
        let Some(lock) = self.lock()? else {
            return Err(
                Failure::new(Exit::BadInput, "cannot start a pool: there is one")
                    .help("`pool status` shows it, `pool stop` stops it"),
            );
        };
        self.clear()?;
        let mut keeper = self.launch(&kernel, size, &lock)?;
        drop(lock);
        let started = self.wait(&mut keeper, size);
        if started.is_err() {
            // Fails only if the keeper has ended. Its machines end with it.
            let _ = keeper.kill();
            let _ = keeper.wait();
            self.clear()?;
        }
        started
    }

    fn launch(&self, kernel: &Kernel, size: u32, lock: &OwnedFd) -> Result<Child, Failure> {
        let failed = |error: sys::SyscallError| cannot("make the initial RAM disk")(error.into());
        // In memory, so that nothing remains when the processes that inherit it are killed.
        let initrd = sys::fd::memory_file(c"machine", 0).map_err(failed)?;
        let copy = sys::fd::duplicate(initrd.as_fd()).map_err(failed)?;
        let needed = image::pack_machine(copy.into(), kernel)?;
        let pool = Pool {
            size,
            memory_mib: needed.max(MEMORY_MIB),
            build: Build::of(kernel).map_err(cannot("look at this program"))?,
            initrd: number(&initrd),
            lock: number(lock),
        };
        let write = || -> io::Result<File> {
            DirBuilder::new().mode(0o700).create(&self.folder)?;
            let text = serde_json::to_vec(&pool).expect("it is plain data");
            fs::write(self.folder.join(DESCRIPTION), text)?;
            File::create(self.folder.join(LOG))
        };
        let log = write().map_err(cannot("note the pool"))?;
        sys::fd::set_close_on_exec(lock.as_fd(), false).map_err(failed)?;
        this_program()
            .arg(KEEPER)
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(cannot("start a process"))
    }

    /// Waits until all machines are ready.
    fn wait(&self, keeper: &mut Child, size: u32) -> Outcome {
        let deadline = Instant::now() + START_WAIT;
        let wanted = usize::try_from(size).unwrap_or(usize::MAX);
        while self.ready() < wanted {
            let said = self.said();
            let has_ended = !matches!(keeper.try_wait(), Ok(None));
            if has_ended || !said.is_empty() || Instant::now() > deadline {
                let why = if said.is_empty() {
                    "it takes too long"
                } else {
                    said.trim()
                };
                let message = format!("cannot keep virtual machines ready: {why}");
                return Err(Failure::new(Exit::Unsupported, message)
                    .help("`tollgate doctor` shows what is missing, in the row `machines`"));
            }
            std::thread::sleep(PAUSE);
        }
        terminal::print(&format!("{size} ready\n"))
    }

    fn said(&self) -> String {
        // Without the file there is no output.
        fs::read_to_string(self.folder.join(LOG)).unwrap_or_default()
    }

    fn stop(&self) -> Outcome {
        let deadline = Instant::now() + HANDOVER_LIMIT;
        while self.lock()?.is_none() {
            let pid = fs::read_to_string(self.folder.join(PID)).ok();
            match pid.and_then(|pid| pid.parse().ok()) {
                // Fails only if it has just ended. Machines that nobody has taken end with it.
                Some(pid) => drop(sys::signal::send(pid, SIGKILL)),
                // The keeper is about to write its pid.
                None if Instant::now() < deadline => {}
                None => return Err(no_pid()),
            }
            if Instant::now() > deadline {
                return Err(no_pid());
            }
            std::thread::sleep(PAUSE);
        }
        self.clear()?;
        Ok(Exit::Ok)
    }

    fn status(&self, as_json: bool) -> Outcome {
        let is_kept = self.lock.exists() && self.lock()?.is_none();
        let pool = is_kept
            .then(|| Pool::read(&self.folder))
            .and_then(Result::ok);
        let Some(pool) = pool else {
            let said = if as_json {
                "null\n"
            } else {
                "no pool is running\n"
            };
            return terminal::print(said);
        };
        let ready = self.ready();
        if as_json {
            let state = json!({"size": pool.size, "ready": ready, "memory_mib": pool.memory_mib,
                "kernel": pool.build.release, "said": self.said()});
            return terminal::print(&format!("{state}\n"));
        }
        terminal::print(&format!(
            "{ready} of {} ready, {} MiB each at most, Linux {}\n{}",
            pool.size,
            pool.memory_mib,
            pool.build.release,
            self.said()
        ))
    }
}

/// Writes the keeper's pid.
pub(super) fn note_pid(folder: &Path) -> Result<(), Failure> {
    fs::write(folder.join(PID), std::process::id().to_string()).map_err(cannot("note a pid"))
}

fn no_pid() -> Failure {
    Failure::new(Exit::Internal, "cannot stop the pool: it does not exit")
        .help("kill the process `tollgate-pool`")
}
