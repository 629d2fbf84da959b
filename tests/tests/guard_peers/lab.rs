//! The network namespace, home and servers in which boxes are compared.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, repository};

/// The ordinary user as whom all boxes run.
const USER: u32 = 1000;
/// Whole addresses of peers; nothing leaves the namespace.
const ADDRESSES: [&str; 3] = ["192.0.2.1/32", "192.0.2.10/32", "2001:db8::1/128"];
/// Folders of a home that package managers write.
pub(crate) const CACHES: [&str; 4] = [".cache", ".cargo", ".npm", "go"];
/// The folder that sandbox-runtime names as `TMPDIR`, and that its caller has to make.
const SCRATCH: &str = "/tmp/claude";
const LIMIT: Duration = Duration::from_secs(400);

/// A home, a project beside it, and servers.
pub(crate) struct Lab {
    folder: tempfile::TempDir,
    toolchain: PathBuf,
    /// Name of the abstract socket of a server.
    pub(crate) name: String,
    servers: Child,
    /// Another process of the user.
    other: Child,
}

impl Lab {
    /// Makes the lab in the network namespace of this process, which must have no other user.
    pub(crate) fn new() -> Self {
        // Outside of what every box may write, and of any repository; gone with the mount namespace.
        mount(&["-t", "tmpfs", "tmpfs", "/srv"]);
        // What jobs and boxes leave there is gone, too.
        mount(&["-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/tmp"]);
        let folder = tempfile::tempdir_in("/srv").expect("a folder");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open).expect("ours");
        for name in ["home", "home/.ssh", "fixtures"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        for name in ["ways.py", "servers.py"] {
            let from = repository().join("tests/fixtures/guard").join(name);
            fs::copy(from, folder.path().join("fixtures").join(name)).expect("copied");
        }
        fs::write(folder.path().join("resolv.conf"), "nameserver 127.0.0.1\n").expect("written");
        prepare_network(&folder.path().join("resolv.conf"));
        let name = format!("tollgate-peers-{}", std::process::id());
        let servers = start_servers(folder.path(), &name);
        let toolchain = e2e::toolchain(Path::new(env!("CARGO_TARGET_TMPDIR")));
        // It ends with this process, which holds the other end of the pipe.
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null());
        let other = cat
            .uid(USER)
            .gid(USER)
            .spawn()
            .expect("coreutils are installed");
        fs::create_dir(SCRATCH).expect("the folder above is new");
        chown(SCRATCH, Some(USER), Some(USER)).expect("the tests are root");
        let lab = Self {
            folder,
            toolchain,
            name,
            servers,
            other,
        };
        lab.reset();
        lab
    }

    /// Returns a path in the folder that has the home and the project.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a path in that folder as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns the folder of the Rust toolchain.
    pub(crate) fn toolchain(&self) -> String {
        self.toolchain.display().to_string()
    }

    /// Returns the pid of another process of the user.
    pub(crate) fn other(&self) -> String {
        self.other.id().to_string()
    }

    /// Makes the home as it was and the project empty.
    pub(crate) fn reset(&self) {
        for name in ["home/new", "home/.bashrc"] {
            // They may be missing.
            let _ = fs::remove_file(self.path(name));
        }
        let _ = fs::remove_dir(self.path("home/folder"));
        let _ = fs::remove_dir_all(self.path("project"));
        for name in CACHES.map(|name| format!("home/{name}")) {
            fs::create_dir_all(self.path(&name)).expect("made");
            self.give(&name);
        }
        fs::create_dir(self.path("project")).expect("made");
        fs::write(self.path("home/.ssh/id"), "secret\n").expect("written");
        testing::copy_program("/bin/true", self.path("home/.ssh/tool")).expect("copied");
        fs::write(self.path("home/.bashrc"), "rc\n").expect("written");
        let all = ["home", "home/.ssh", "home/.ssh/id", "home/.ssh/tool"];
        for name in all.iter().chain(&["home/.bashrc", "project"]) {
            self.give(name);
        }
    }

    fn give(&self, name: &str) {
        chown(self.path(name), Some(USER), Some(USER)).expect("the tests are root");
    }

    /// Runs a program in the project as the user.
    pub(crate) fn run(&self, words: &[String]) -> Finished {
        let mut command = Command::new(&words[0]);
        let path = format!(
            "{}/bin:/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin",
            self.toolchain.display()
        );
        command
            .args(&words[1..])
            .current_dir(self.path("project"))
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("GOPROXY", "off")
            .env("LANG", "C.UTF-8")
            .uid(USER)
            .gid(USER);
        Limited::start(&mut command, LIMIT).finish(b"")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in [&mut self.servers, &mut self.other] {
            // They may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Gives the namespace its addresses, and this process's mount namespace a resolver.
fn prepare_network(resolver: &Path) {
    let run = |words: &[&str]| {
        let status = Command::new(e2e::which(words[0]))
            .args(&words[1..])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "{words:?}");
    };
    run(&["ip", "link", "set", "lo", "up"]);
    for address in ADDRESSES {
        run(&["ip", "address", "add", address, "dev", "lo"]);
    }
    mount(&[
        "--bind",
        &resolver.display().to_string(),
        "/etc/resolv.conf",
    ]);
}

fn mount(words: &[&str]) {
    let status = Command::new("mount").args(words).status();
    assert!(status.is_ok_and(|status| status.success()), "{words:?}");
}

fn start_servers(folder: &Path, name: &str) -> Child {
    let mut servers = Command::new("/usr/bin/python3")
        .arg(folder.join("fixtures/servers.py"))
        .arg(folder.join("home"))
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut line = String::new();
    let output = servers.stdout.take().expect("it is a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n", "the servers did not start");
    servers
}
