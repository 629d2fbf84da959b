//! A PostgreSQL server of the tests' own, on a socket in a folder of its own. It ends with its last user.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
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
    /// Port of the loopback and of the socket's name.
    port: u16,
    is_encrypted: bool,
}

/// What a server needs for TLS, in PEM form.
#[derive(Debug)]
pub struct Encryption<'a> {
    /// Its certificate.
    pub certificate: &'a str,
    /// The key of the certificate.
    pub key: &'a str,
    /// Authorities that clients' certificates must come from.
    pub clients: &'a str,
    /// Lines of `pg_hba.conf` for TCP. Everybody on the machine is let in through the socket.
    pub access: &'a str,
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
        let server = Arc::new(Self::with(false, None));
        *shared = Arc::downgrade(&server);
        server
    }

    /// Starts a server with the default settings: a commit waits for the disk.
    ///
    /// # Panics
    /// As [`Server::shared`].
    pub fn start() -> Self {
        Self::with(true, None)
    }

    /// Starts a server that also listens on a port of 127.0.0.1, with TLS.
    ///
    /// # Panics
    /// As [`Server::shared`].
    pub fn encrypted(encryption: &Encryption<'_>) -> Self {
        Self::with(false, Some(encryption))
    }

    fn with(is_durable: bool, encryption: Option<&Encryption<'_>>) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-postgres-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a new folder");
        give(&folder);
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
        let port = match encryption {
            None => 5432,
            Some(encryption) => {
                configure(&data, encryption);
                free_port()
            }
        };
        let how = (port, is_durable, encryption.is_some());
        let server = Self {
            child: Mutex::new(spawn(&folder, how)),
            is_durable,
            folder,
            databases: AtomicUsize::new(0),
            port,
            is_encrypted: encryption.is_some(),
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
        said(self.client("createdb").arg(&name));
        let host = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@{host}:{}/{name}", self.port)
    }

    /// Returns the port of the loopback on which an encrypted server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL as the server's administrator and returns what `psql` prints, without headings.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        let mut asked = self.client("psql");
        asked.args(["-d", USER, "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        said(&mut asked).trim().to_owned()
    }

    /// Returns a command of PostgreSQL's that connects through the socket.
    fn client(&self, name: &str) -> Command {
        let mut command = tool(name);
        command.args(["-U", USER, "-p", &self.port.to_string(), "-h"]);
        command.arg(&self.folder);
        command
    }

    fn spawn(&self) -> Child {
        spawn(
            &self.folder,
            (self.port, self.is_durable, self.is_encrypted),
        )
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
            let mut child = self.spawn();
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
        let mut asked = self.client("psql");
        asked.args(["-d", USER, "-c", "SELECT 1"]);
        asked.stdout(Stdio::null()).stderr(Stdio::null());
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
fn spawn(folder: &Path, (port, is_durable, is_encrypted): (u16, bool, bool)) -> Child {
    let mut server = tool("postgres");
    server.arg("-D").arg(folder.join("data"));
    let addresses = if is_encrypted { "127.0.0.1" } else { "" };
    server.args([
        "-p",
        &port.to_string(),
        "-c",
        &format!("listen_addresses={addresses}"),
    ]);
    let last = format!("unix_socket_directories={}", folder.display());
    server.args(["-c", &last, "-c", "max_connections=60"]);
    if is_encrypted {
        server.args(["-c", "ssl=on", "-c", "ssl_ca_file=clients.crt"]);
    }
    if !is_durable {
        server.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    let log = fs::File::create(folder.join("log")).expect("our folder");
    server.stdin(Stdio::null()).stdout(Stdio::null());
    server.stderr(log).spawn().expect("it starts")
}

/// Writes certificates and access rules into a server's folder of data.
fn configure(data: &Path, encryption: &Encryption<'_>) {
    let access = format!("local all all trust\n{}\n", encryption.access);
    for (name, text) in [
        ("server.crt", encryption.certificate),
        ("server.key", encryption.key),
        ("clients.crt", encryption.clients),
        ("pg_hba.conf", &*access),
    ] {
        let path = data.join(name);
        fs::write(&path, text).expect("our folder");
        // The server refuses a key that others can read.
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("our file");
        give(&path);
    }
}

/// Gives a file to the user that the server runs as.
fn give(path: &Path) {
    if !geteuid().is_root() {
        return;
    }
    let id = |what: &str| {
        let said = said(Command::new("id").args([what, USER]));
        said.trim().parse::<u32>().expect("a number")
    };
    chown(path, Some(id("-u")), Some(id("-g"))).expect("root may");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
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
