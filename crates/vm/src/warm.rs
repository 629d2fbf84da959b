//! The processes of a pool: a keeper, and a holder for each machine. A machine ends with the keeper
//! until a container takes it, and from then on with the container.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use super::pool::{self, Pool};
use super::{CONSOLE, QEMU_LOG, WARM, caller, cannot, qemu, this_program};
use crate::{Frame, Kind};

/// Message of a holder to the keeper: the machine is taken.
const TAKEN: &[u8] = b"taken";
/// Delay before the next attempt after a machine that failed to start; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time limit for a taker's request.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Interval of checks of a machine that has not started yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LONGEST_PATH: usize = 4096;

/// `FOLDER`: keeps as many machines ready as the pool's size.
pub(super) fn keep(args: &[OsString]) -> Outcome {
    let folder = caller::folder(args)?;
    let pool = Pool::read(&folder).map_err(cannot("read what is noted of the pool"))?;
    // Released when this process ends; no other process has it.
    let _lock = caller::inherited(Some(&pool.lock.clone().into()))?;
    caller::leave(&folder)?;
    // Only cosmetic.
    let _ = sys::prctl::set_name(c"tollgate-pool");
    pool::note_pid(&folder)?;
    let last = Arc::new(AtomicU64::new(0));
    for _ in 1..pool.size {
        let (folder, last) = (folder.clone(), Arc::clone(&last));
        std::thread::Builder::new()
            .spawn(move || tend(&folder, &last))
            .map_err(cannot("start a thread"))?;
    }
    tend(&folder, &last)
}

/// Starts machines one after another, each when the previous one is taken. Never returns, because
/// machines end with the thread that starts them.
fn tend(folder: &Path, last: &AtomicU64) -> ! {
    let mut pause = FIRST_PAUSE;
    loop {
        let number = last.fetch_add(1, Ordering::Relaxed).to_string();
        match one(folder, &number) {
            Ok(true) => pause = FIRST_PAUSE,
            outcome => {
                if let Err(cause) = outcome {
                    terminal::complain(&format!(
                        "tollgate: cannot start a virtual machine: {cause}\n"
                    ));
                }
                // The remaining files are of no use.
                let _ = fs::remove_dir_all(folder.join(number));
                std::thread::sleep(pause);
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        }
    }
}

/// Runs one machine until it is taken (true) or ends.
fn one(folder: &Path, number: &str) -> io::Result<bool> {
    DirBuilder::new().mode(0o700).create(folder.join(number))?;
    let mut child = this_program()
        .arg(WARM)
        .args([folder.as_os_str(), number.as_ref()])
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    output.read_to_end(&mut said)?;
    let is_taken = said == TAKEN;
    let mut wait = move || {
        // Reaps the child.
        let _ = child.wait();
    };
    if is_taken {
        std::thread::Builder::new().spawn(wait)?;
    } else {
        wait();
    }
    Ok(is_taken)
}

/// `FOLDER NUMBER PARENT`: runs one machine.
pub(super) fn hold(args: &[OsString]) -> Outcome {
    let [folder, number, parent] = args else {
        return Err(cannot("keep a machine")(io::ErrorKind::InvalidInput.into()));
    };
    qemu::end_with(parent)?;
    let folder = PathBuf::from(folder);
    let pool = Pool::read(&folder).map_err(cannot("read what is noted of the pool"))?;
    let own = folder.join(number);
    caller::leave(&own)?;
    super::monitor::name_this();
    let (mut line, theirs) = UnixStream::pair().map_err(cannot("make a line"))?;
    let machine = qemu::Machine {
        folder: &own,
        kernel: &pool.build.kernel,
        initrd: &Path::new("/proc/self/fd").join(&pool.initrd),
        memory_mib: pool.memory_mib,
    };
    let mut machine = machine.boot(&theirs)?;
    drop(theirs);
    let held = wait(&mut line, &own)
        .and_then(|listener| hand_over(line, &listener, &own).map_err(cannot("hand it over")));
    qemu::end(&mut machine);
    held.map(|()| Exit::Ok)
}

/// Waits until the machine has started, and then listens for takers.
fn wait(line: &mut UnixStream, folder: &Path) -> Result<UnixListener, Failure> {
    let patience = qemu::BootTimeout::with(std::process::id());
    let mut says_something = false;
    while !says_something && !patience.is_over() {
        let mut polled = [sys::poll::PollFd::new(line.as_fd(), sys::poll::IN)];
        // The reason for waking does not matter; everything is checked.
        let _ = sys::poll::poll(&mut polled, Some(LOOK_AGAIN));
        says_something = polled[0].found() != 0;
    }
    let started = says_something.then(|| {
        let limited = line.set_read_timeout(Some(ASK_LIMIT));
        limited.map_err(Into::into).and_then(|()| Frame::read(line))
    });
    match started {
        Some(Ok(frame)) if frame.kind == Kind::Ready => {}
        _ => {
            let said = super::create::last_words(folder);
            let message = format!("cannot start a virtual machine: {said}");
            return Err(Failure::new(Exit::Unsupported, message)
                .help("`tollgate doctor` shows what is missing, in the row `machines`"));
        }
    }
    line.set_read_timeout(None)
        .and_then(|()| UnixListener::bind(folder.join(pool::SOCKET)))
        .map_err(cannot("listen"))
}

/// Hands the connection to the first taker, and waits until the taker ends.
fn hand_over(line: UnixStream, listener: &UnixListener, folder: &Path) -> io::Result<()> {
    let (mut taker, target) = loop {
        let mut polled = [&line as &dyn AsFd, listener]
            .map(|fd| sys::poll::PollFd::new(fd.as_fd(), sys::poll::IN));
        // The reason for waking does not matter; everything is checked.
        let _ = sys::poll::poll(&mut polled, None);
        let [of_line, of_listener] = polled.map(|polled| polled.found() != 0);
        if of_line {
            // No frame is expected here: the machine has ended, or is not one of ours.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !of_listener {
            continue;
        }
        let (mut taker, _) = listener.accept()?;
        // A taker that disconnects leaves the machine to the next one.
        if let Ok(target) = target(&mut taker) {
            break (taker, target);
        }
    };
    // From now on the machine does not end with the pool.
    sys::prctl::set_parent_death_signal(0)?;
    let mut keeper = io::stdout().lock();
    keeper.write_all(TAKEN)?;
    keeper.flush()?;
    let null = fs::File::open("/dev/null")?;
    sys::fd::replace_standard(null.as_fd(), 1)?;
    for file in [CONSOLE, QEMU_LOG] {
        let (from, to) = (folder.join(file), target.join(file));
        // Across file systems, only the output so far can be copied.
        fs::rename(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
    }
    fs::remove_dir_all(folder)?;
    sys::socket::send_fd(taker.as_fd(), b"L", Some(line.as_fd()))?;
    drop(line);
    taker.set_read_timeout(None)?;
    // Only the end of the connection is expected.
    let _ = taker.read(&mut [0]);
    Ok(())
}

/// Reads the directory in which the taker wants the logs.
fn target(taker: &mut UnixStream) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    taker.set_read_timeout(Some(ASK_LIMIT))?;
    let mut path = Vec::new();
    let mut byte = [0];
    loop {
        taker.read_exact(&mut byte)?;
        match byte {
            [0] => return Ok(OsString::from_vec(path).into()),
            _ if path.len() == LONGEST_PATH => return Err(io::ErrorKind::InvalidData.into()),
            [byte] => path.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_logs_go_ends_with_a_zero_and_is_no_longer_than_a_path() {
        let asked = |bytes: &[u8]| {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            target(&mut ours)
        };
        assert_eq!(asked(b"/run/x\0").unwrap(), Path::new("/run/x"));
        assert!(asked(b"/run/x").is_err());
        assert!(asked(&[b'x'; LONGEST_PATH + 2]).is_err());
    }
}
