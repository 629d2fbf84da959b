//! Opens of every kind from many processes and threads at once, under signals, with an account of each: the
//! oracle to which a monitor's events are compared.
//!
//! Each process makes a folder of its own below the load's scratch folder, so that every path identifies the
//! process, and starts its threads. Each thread goes through [`CASES`] in an order drawn from its own seed. The
//! process adds up what the kernel *answered* and writes one line for each distinct open:
//!
//! ```json
//! {"pid":71,"call":"openat","path":"file","absolute":"/tmp/x/71/file","flags":32768,"result":5,"count":812}
//! ```
//!
//! `path` and `flags` are the arguments of the call, `result` is the descriptor or the negative error number,
//! as an exit event shows them. The count is over all threads of the process. Opens that are not in the account
//! (of the loader, of the account itself) lie outside the scratch folder, whose name is in the line
//! `{"scratch":...}` at the top.
//!
//! An interval timer sends SIGALRM meanwhile. Half of the processes handle it with SA_RESTART (`--handler`):
//! there an open that ends with EINTR is an error of the subject, and the load fails. The other half handles it
//! without: without a subject no open of a file on disk is interrupted there either, but one that is
//! interrupted nonetheless is in the account with result -4.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGALRM;
use sys::signal::Disposition;

use super::kernel_path;
use crate::measure::{LoadResult, Setup};
use crate::{Error, Handler, LoadOptions};

/// Role of the processes that open files.
pub(crate) const OPENER: &str = "opener";

/// Number of opens of each thread without `--operations`.
const OPENS: u64 = 1000;

/// Form of the path of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// As an absolute path, to open(2).
    Root,
    /// Relative to the current directory, to open(2).
    CurrentFolder,
    /// As an absolute path, to openat(2) with AT_FDCWD.
    RootAt,
    /// Relative to a descriptor, to openat(2).
    Descriptor,
}

/// One kind of open and its expected result.
struct Case {
    from: From,
    /// Path below the process's folder.
    name: &'static str,
    flags: OFlags,
    result: Result<(), Errno>,
}

const fn opens(from: From, name: &'static str, flags: OFlags) -> Case {
    Case {
        from,
        name,
        flags,
        result: Ok(()),
    }
}

const fn fails(from: From, name: &'static str, flags: OFlags, errno: Errno) -> Case {
    Case {
        from,
        name,
        flags,
        result: Err(errno),
    }
}

const READ: OFlags = OFlags::RDONLY;
const CREATE: OFlags = OFlags::WRONLY.union(OFlags::CREATE);

#[rustfmt::skip]
const CASES: &[Case] = &[
    opens(From::Root, "file", READ),
    opens(From::Root, "file", OFlags::WRONLY),
    opens(From::Root, "file", OFlags::RDWR.union(OFlags::CLOEXEC)),
    opens(From::Root, "folder", READ.union(OFlags::DIRECTORY)),
    opens(From::Root, "folder/../file", READ),
    opens(From::Root, "link", READ),
    opens(From::Root, "created", CREATE.union(OFlags::TRUNC)),
    opens(From::Root, "file", OFlags::PATH),
    opens(From::CurrentFolder, "file", READ),
    opens(From::CurrentFolder, "./folder/inner", READ),
    opens(From::CurrentFolder, "created", CREATE.union(OFlags::APPEND)),
    opens(From::RootAt, "file", READ.union(OFlags::NONBLOCK)),
    opens(From::Descriptor, "file", READ),
    opens(From::Descriptor, "folder/inner", OFlags::RDWR),
    fails(From::Root, "missing", READ, Errno::NOENT),
    fails(From::Root, "file", READ.union(OFlags::DIRECTORY), Errno::NOTDIR),
    fails(From::Root, "file/below", READ, Errno::NOTDIR),
    fails(From::Root, "folder", OFlags::WRONLY, Errno::ISDIR),
    fails(From::CurrentFolder, "missing", OFlags::WRONLY, Errno::NOENT),
    fails(From::CurrentFolder, "file", CREATE.union(OFlags::EXCL), Errno::EXIST),
    fails(From::RootAt, "link", READ.union(OFlags::NOFOLLOW), Errno::LOOP),
    fails(From::Descriptor, "missing", READ, Errno::NOENT),
    fails(From::Descriptor, "loop", READ, Errno::LOOP),
];

/// A line of the account.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    pid: u32,
    call: String,
    path: String,
    absolute: String,
    flags: u32,
    result: i32,
    count: u64,
}

/// The first line of the account.
#[derive(Serialize)]
struct Head<'a> {
    scratch: &'a Path,
}

/// Starts the processes and collects their accounts.
pub(crate) fn run(setup: &Setup) -> Result<LoadResult, Error> {
    let start = Instant::now();
    let children: Vec<_> = (0..setup.options.processes)
        .map(|_| start_opener(setup))
        .collect();
    let mut accounts = Vec::new();
    for child in children {
        accounts.extend(account_of(child?)?);
    }
    let elapsed = start.elapsed();
    let done: u64 = accounts.iter().map(|line| line.count).sum();
    let per_thread = setup.options.operations.unwrap_or(OPENS);
    let asked = per_thread * u64::from(setup.options.threads) * u64::from(setup.options.processes);
    if done != asked {
        return Err(Error::Unexpected {
            expected: format!("{asked} opens"),
            got: done.to_string(),
        });
    }
    if let Some(path) = &setup.options.oracle {
        write_oracle(path, setup.scratch(), &accounts).map_err(|source| Error::File {
            action: "write",
            path: path.clone(),
            source,
        })?;
    }
    Ok(LoadResult {
        operations: done,
        elapsed,
        windows: Vec::new(),
        extra: std::collections::BTreeMap::new(),
    })
}

fn start_opener(setup: &Setup) -> Result<Child, Error> {
    let LoadOptions {
        threads,
        operations,
        alarm_us,
        ..
    } = &setup.options;
    Command::new(&setup.program)
        .args(["workload", "opens_storm", "--role", OPENER])
        .args([
            "--threads",
            &threads.to_string(),
            "--alarm-us",
            &alarm_us.to_string(),
        ])
        .args(["--operations", &operations.unwrap_or(OPENS).to_string()])
        .arg("--path")
        .arg(setup.scratch())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::call("start a process that opens"))
}

/// Reads the account that a process prints at its end.
fn account_of(mut child: Child) -> Result<Vec<Line>, Error> {
    let output = child.stdout.take().expect("its output is a pipe");
    let lines = BufReader::new(output)
        .lines()
        .map(|line| Ok(serde_json::from_str(&line?)?))
        .collect::<std::io::Result<Vec<Line>>>();
    let status = child
        .wait()
        .map_err(Error::call("wait for a process that opens"))?;
    if !status.success() {
        let expected = "a process that opens to succeed".to_owned();
        return Err(Error::Unexpected {
            expected,
            got: status.to_string(),
        });
    }
    lines.map_err(Error::call("read the account of a process that opens"))
}

fn write_oracle(path: &Path, scratch: &Path, accounts: &[Line]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, &Head { scratch })?;
    writeln!(file)?;
    for line in accounts {
        serde_json::to_writer(&mut file, line)?;
        writeln!(file)?;
    }
    file.flush()
}

/// Number of opens by case and result.
type Account = BTreeMap<(usize, i32), u64>;

/// Opens files as [`run`] requests, and prints the account.
pub(crate) fn open_all(options: &LoadOptions, out: &mut dyn Write) -> Result<(), Error> {
    let scratch = options.path.clone().unwrap_or_default();
    let pid = std::process::id();
    let folder = scratch.join(pid.to_string());
    furnish(&folder).map_err(|source| Error::File {
        action: "fill",
        path: folder.clone(),
        source,
    })?;
    rustix::process::chdir(&folder).map_err(Error::call("go to the process's folder"))?;
    let opener = Opener::new(&folder, options.handler)?;
    let alarm = Alarm::start(Duration::from_micros(options.alarm_us), options.handler)?;
    let account = opener.open_in_threads(options)?;
    drop(alarm);
    print_account(&account, &folder, pid, out).map_err(|source| Error::Print { source })
}

/// Makes the files that the cases need.
fn furnish(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder.join("folder"))?;
    for file in ["file", "created", "folder/inner"] {
        fs::write(folder.join(file), b"content\n")?;
    }
    std::os::unix::fs::symlink("file", folder.join("link"))?;
    std::os::unix::fs::symlink("loop", folder.join("loop"))
}

/// The cases of one process, with their paths in the kernel's form.
struct Opener {
    folder: File,
    paths: Vec<CString>,
    handler: Handler,
}

impl Opener {
    fn new(folder: &Path, handler: Handler) -> Result<Self, Error> {
        let paths = CASES.iter().map(|case| kernel_path(&case.path(folder)));
        Ok(Self {
            paths: paths.collect::<Result<_, _>>()?,
            folder: File::open(folder).map_err(Error::call("open the process's folder"))?,
            handler,
        })
    }

    fn open_in_threads(&self, options: &LoadOptions) -> Result<Account, Error> {
        let opens = options.operations.unwrap_or(OPENS);
        let barrier = Barrier::new(options.threads.into());
        let thread = |seed| {
            barrier.wait();
            self.open_many(seed, opens)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..options.threads)
                .map(|index| scope.spawn(move || thread(u64::from(index))))
                .collect();
            let mut sum = Account::new();
            for thread in threads {
                let account = thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                for (key, count) in account {
                    *sum.entry(key).or_default() += count;
                }
            }
            Ok(sum)
        })
    }

    fn open_many(&self, seed: u64, opens: u64) -> Result<Account, Error> {
        let mut account = Account::new();
        let mut state = seed;
        for _ in 0..opens {
            // Multiplier and increment of Knuth's MMIX; the high bits are random enough.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let index = usize::try_from((state >> 33) % CASES.len() as u64)
                .expect("smaller than the number of cases");
            let result = self.open(&CASES[index], &self.paths[index])?;
            *account.entry((index, result)).or_default() += 1;
        }
        Ok(account)
    }

    /// Opens and closes. Returns the descriptor or the negative error number.
    fn open(&self, case: &Case, path: &CStr) -> Result<i32, Error> {
        let mode = if case.flags.contains(OFlags::CREATE) {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::empty()
        };
        let opened = match case.from {
            From::Root | From::CurrentFolder => rustix::fs::open(path, case.flags, mode),
            From::RootAt => rustix::fs::openat(rustix::fs::CWD, path, case.flags, mode),
            From::Descriptor => rustix::fs::openat(&self.folder, path, case.flags, mode),
        };
        let result = opened.as_ref().map(|_| ()).map_err(|errno| *errno);
        let interrupted = self.handler == Handler::Interrupt && result == Err(Errno::INTR);
        if result != case.result && !interrupted {
            let expected = format!("{} to give {:?}", path.to_string_lossy(), case.result);
            return Err(Error::Unexpected {
                expected,
                got: format!("{opened:?}"),
            });
        }
        Ok(opened.map_or_else(|errno| -errno.raw_os_error(), |file| file.as_raw_fd()))
    }
}

impl Case {
    /// Returns the path argument of the call.
    fn path(&self, folder: &Path) -> PathBuf {
        match self.from {
            From::Root | From::RootAt => folder.join(self.name),
            From::CurrentFolder | From::Descriptor => PathBuf::from(self.name),
        }
    }

    /// Returns the name of the system call: where there is no open(2), its library stand-in uses openat(2).
    fn call(&self) -> &'static str {
        let has_open = cfg!(target_arch = "x86_64");
        match self.from {
            From::Root | From::CurrentFolder if has_open => "open",
            _ => "openat",
        }
    }
}

fn print_account(
    account: &Account,
    folder: &Path,
    pid: u32,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    for ((index, result), count) in account {
        let case = &CASES[*index];
        let line = Line {
            pid,
            call: case.call().to_owned(),
            path: case.path(folder).to_string_lossy().into_owned(),
            absolute: folder.join(case.name).to_string_lossy().into_owned(),
            // The library adds O_LARGEFILE to every open.
            flags: (case.flags | OFlags::LARGEFILE).bits(),
            result: *result,
            count: *count,
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    out.flush()
}

/// SIGALRM at intervals, until dropped.
struct Alarm {
    /// `None` if no alarm was requested.
    timer: Option<Timer>,
    /// Number of signals received, counted by the handler that restarts calls; the other handler cannot count.
    received: Arc<AtomicUsize>,
}

impl Alarm {
    /// Arms the timer and waits for its first signal, so that no storm runs without signals.
    fn start(interval: Duration, handler: Handler) -> Result<Self, Error> {
        let mut alarm = Self {
            timer: None,
            received: Arc::default(),
        };
        if interval.is_zero() {
            return Ok(alarm);
        }
        if handler == Handler::Interrupt {
            sys::signal::set_disposition(SIGALRM, Disposition::Interrupt)
                .map_err(|error| Errno::from_raw_os_error(error.errno()))
                .map_err(Error::call("handle SIGALRM"))?;
        } else {
            signal_hook::flag::register_usize(SIGALRM, Arc::clone(&alarm.received), 1)
                .map_err(Error::call("handle SIGALRM"))?;
        }
        alarm.timer = Some(armed(interval).map_err(Error::call("arm a timer"))?);
        alarm.await_first(interval)?;
        Ok(alarm)
    }

    /// Waits for the first signal. Every handler interrupts poll(2), SA_RESTART or not (signal(7)).
    fn await_first(&self, interval: Duration) -> Result<(), Error> {
        let limit = interval + Duration::from_secs(5);
        let limit = Timespec::try_from(limit).map_err(|_too_long| Error::Unexpected {
            expected: "--alarm-us of a day at most".to_owned(),
            got: format!("{interval:?}"),
        })?;
        match rustix::event::poll(&mut [], Some(&limit)) {
            Err(Errno::INTR) => Ok(()),
            // The signal came between arming and waiting.
            _ if self.received.load(Ordering::Relaxed) > 0 => Ok(()),
            other => Err(Error::Unexpected {
                expected: "SIGALRM to arrive".to_owned(),
                got: format!("{other:?}"),
            }),
        }
    }
}

fn armed(interval: Duration) -> nix::Result<Timer> {
    let signal = SigevNotify::SigevSignal {
        signal: Signal::SIGALRM,
        si_value: 0,
    };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(signal))?;
    let interval = Expiration::Interval(TimeSpec::from_duration(interval));
    timer.set(interval, TimerSetTimeFlags::empty())?;
    Ok(timer)
}
