//! A PostgreSQL server of the tests' own, on a socket in a folder of its own. It ends with its last user.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Time limit for a start, also after a crash.
const PATIENCE: Duration = Duration::from_secs(60);

/// User that the server runs as if the tests run as root, which it refuses.
const USER: &str = "postgres";

/// A running server. It is killed, and its folder removed, when dropped.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    /// A power cut loses nothing.
    is_durable: bool,
    child: Mutex<Child>,
    databases: AtomicUsize,
}

impl Server {
    /// Returns the server that all tests of this process share, and starts it for the first one. It does not wait for
    /// the disk.
    ///
    /// # Panics
    /// If Debian's package `postgresql` is missing, or the server does not start.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::with(false));
        *shared = Arc::downgrade(&server);
        server
    }

    /// Starts a server with the default settings: a commit waits for the disk.
    ///
    /// # Panics
    /// As [`Server::shared`].
    pub fn start() -> Self {
        Self::with(true)
    }

    fn with(is_durable: bool) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-postgres-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a new folder");
        if geteuid().is_root() {
            let id = |what: &str| {
                let said = said(Command::new("id").args([what, USER]));
                said.trim().parse::<u32>().expect("a number")
            };
            chown(&folder, Some(id("-u")), Some(id("-g"))).expect("root may");
        }
        let data = folder.join("data");
        let mut made = tool("initdb");
        made.args([
            "-A",
            "trust",
            "-U",
            USER,
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-D",
        ]);
        said(made.arg(&data));
        let server = Self {
            child: Mutex::new(spawn(&folder, is_durable)),
            is_durable,
            folder,
            databases: AtomicUsize::new(0),
        };
        server.wait();
        server
    }

    /// Makes a new database and returns its URL.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{number}");
        let mut made = tool("createdb");
        said(made.args(["-U", USER, "-h"]).arg(&self.folder).arg(&name));
        let host = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@{host}/{name}")
    }

    /// Kills the server as a crash would, and starts it again.
    ///
    /// # Panics
    /// If it does not start again.
    pub fn crash(&self) {
        self.kill();
        let began = Instant::now();
        loop {
            // It refuses to start until the last process of the killed one has ended.
            let mut child = spawn(&self.folder, self.is_durable);
            while child.try_wait().expect("it is our child").is_none() {
                if self.is_ready() {
                    *self.child() = child;
                    return;
                }
                sleep(Duration::from_millis(10));
            }
            assert!(
                began.elapsed() < PATIENCE,
                "PostgreSQL does not start again"
            );
            sleep(Duration::from_millis(20));
        }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        let mut child = self.child();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // Fails only if it has ended.
        let _ = kill_process(pid.expect("a pid"), Signal::KILL);
        let _ = child.wait();
    }

    fn is_ready(&self) -> bool {
        let mut asked = tool("psql");
        asked.args(["-U", USER, "-d", USER, "-c", "SELECT 1", "-h"]);
        asked
            .arg(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        asked.status().expect("psql starts").success()
    }

    fn wait(&self) {
        let began = Instant::now();
        while !self.is_ready() {
            assert!(began.elapsed() < PATIENCE, "PostgreSQL does not start");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // Its other processes end when they notice, and may still write.
        let began = Instant::now();
        while fs::remove_dir_all(&self.folder).is_err() && began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20));
        }
    }
}

/// Starts the server process. `setpriv` executes it, so that the child is the server.
fn spawn(folder: &Path, is_durable: bool) -> Child {
    let mut server = tool("postgres");
    server.arg("-D").arg(folder.join("data"));
    server.args(["-c", "listen_addresses=", "-c", "unix_socket_directories="]);
    let last = format!("unix_socket_directories={}", folder.display());
    server.args(["-c", &last, "-c", "max_connections=60"]);
    if !is_durable {
        server.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    let log = fs::File::create(folder.join("log")).expect("our folder");
    server.stdin(Stdio::null()).stdout(Stdio::null());
    server.stderr(log).spawn().expect("it starts")
}

/// Returns a command of PostgreSQL's, as a user that may run it.
fn tool(name: &str) -> Command {
    let installed = fs::read_dir("/usr/lib/postgresql");
    let versions = installed.into_iter().flatten().flatten();
    let mut found: Vec<_> = versions
        .map(|it| it.path().join("bin").join(name))
        .collect();
    found.retain(|path| path.exists());
    found.sort();
    let path = found.pop();
    let path = path.expect("PostgreSQL is missing: install Debian's package postgresql");
    if !geteuid().is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
    command.arg(path).current_dir("/");
    command
}

/// Runs a command that succeeds and returns its output.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
