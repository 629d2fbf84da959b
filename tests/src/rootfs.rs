//! A small root file system, copied from the programs of the host.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::Scratch;
use crate::binary::{program, which};
use crate::container::{API_SERVER, PUBLIC_ADDRESS};

/// Programs that tests run inside containers, and programs that set containers up.
const PROGRAMS: &[&str] = &[
    "base64", "bash", "busybox", "cat", "chmod", "chroot", "cp", "dd", "debugfs", "dirname",
    "echo", "env", "false", "find", "grep", "head", "id", "insmod", "ip", "kill", "ln", "ls",
    "mkdir", "mke2fs", "mount", "mv", "nc", "ncat", "nginx", "nice", "perl", "printf", "rm",
    "script", "setpriv", "sh", "shred", "sleep", "socat", "ssh", "stat", "strace", "stty", "tail",
    "timeout", "touch", "tr", "true", "truncate", "uname", "unshare", "wc",
];

/// Applets that scripts use in roots that have no other programs.
const APPLETS: &[&str] = &["chown", "crontab", "rmdir", "umount", "usleep"];

/// Links that modern Debian has in its root.
const MERGED: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

const FOLDERS: &[&str] = &[
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "usr/lib64",
    "usr/local/bin",
    "etc",
    "proc",
    "sys",
    "dev",
    "tmp",
    "root",
    "home/app",
    "var/lib",
    "var/log",
    "var/tmp/e2e",
    "run",
    "old",
    "opt/busybox",
];

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
sshd:x:100:65534::/run/sshd:/usr/sbin/nologin
app:x:1000:1000:app:/home/app:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";

const GROUP: &str = "root:x:0:\ndaemon:x:1:\nwww-data:x:33:\napp:x:1000:\nnogroup:x:65534:\n";

/// Readable by everybody, so that the same program behaves alike for every user.
const SHADOW: &str = "root:*:19000:0:99999:7:::\napp:!:19000:0:99999:7:::\n";

/// The lower layer of containers. It has no `tollgate` but an empty file in its place.
#[derive(Debug)]
pub struct Rootfs(Scratch);

impl Rootfs {
    /// Returns the root that all tests of this process share, as long as one of them holds it.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Rootfs>> = Mutex::new(Weak::new());
        // A test that panicked while it built one has left nothing behind.
        let mut shared = SHARED
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(rootfs) = shared.upgrade() {
            return rootfs;
        }
        let rootfs = Arc::new(Self::build());
        *shared = Arc::downgrade(&rootfs);
        keep(&rootfs);
        rootfs
    }

    /// Returns the path of the root.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes a root whose only program is a static busybox, perhaps of another architecture, with links for its applets.
    ///
    /// # Panics
    /// If it cannot be built.
    pub(crate) fn of_busybox(busybox: &Path) -> Self {
        let rootfs = Self::empty();
        rootfs.copy(busybox, Path::new("/usr/bin/busybox"));
        for applet in PROGRAMS
            .iter()
            .chain(APPLETS)
            .filter(|name| **name != "busybox")
        {
            let link = rootfs.path().join("usr/bin").join(applet);
            symlink("busybox", link).expect("the name is new");
        }
        rootfs.write_files();
        rootfs
    }

    fn build() -> Self {
        let rootfs = Self::empty();
        rootfs.copy_programs();
        rootfs.copy_perl();
        for applet in ["nc", "httpd", "arping", "wget", "dpkg"] {
            let link = rootfs.path().join("opt/busybox").join(applet);
            symlink("/usr/bin/busybox", link).expect("the name is new");
        }
        rootfs.write_files();
        rootfs
    }

    /// Makes the folders and their links.
    fn empty() -> Self {
        let rootfs = Self(Scratch::new());
        // The mode of the root decides whether ordinary users can walk through it.
        rootfs.mode("", 0o755);
        for folder in FOLDERS {
            fs::create_dir_all(rootfs.path().join(folder)).expect("the scratch folder is writable");
        }
        for (link, target) in MERGED {
            symlink(target, rootfs.path().join(link)).expect("the name is new");
        }
        rootfs
    }

    fn copy_programs(&self) {
        let programs: Vec<_> = PROGRAMS.iter().map(|name| which(name)).collect();
        for (name, program) in PROGRAMS.iter().zip(&programs) {
            let folder = if program
                .parent()
                .is_some_and(|folder| folder.ends_with("sbin"))
            {
                "usr/sbin"
            } else {
                "usr/bin"
            };
            self.copy(program, &Path::new("/").join(folder).join(name));
        }
        let mut programs = programs;
        programs.push(program());
        for library in libraries_of(&programs) {
            self.copy(&library, &library);
        }
    }

    /// Copies the modules of Debian's package perl-base and the libraries they load.
    fn copy_perl(&self) {
        let triplet = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let found = triplet
            .map(|entry| entry.path().join("perl-base"))
            .find(|path| path.is_dir());
        let base = found.expect("Debian's perl-base is essential, so it is installed");
        let copied = Command::new("cp")
            .args(["-r", "--parents"])
            .arg(&base)
            .arg(self.path())
            .status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "cannot copy {}",
            base.display()
        );
    }

    fn write_files(&self) {
        let hosts = format!(
            "127.0.0.1 localhost\n{PUBLIC_ADDRESS} public\n\
             {API_SERVER} kubernetes.default.svc.cluster.local\n"
        );
        for (name, text) in [
            ("etc/passwd", PASSWD),
            ("etc/group", GROUP),
            ("etc/shadow", SHADOW),
            ("etc/hosts", hosts.as_str()),
            ("etc/hostname", "container\n"),
            (
                "etc/nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files\n",
            ),
            ("etc/secret", "for root only\n"),
            ("var/log/auth.log", "one line\n"),
            ("var/log-archive", "one line\n"),
            ("usr/local/bin/tollgate", ""),
        ] {
            fs::write(self.path().join(name), text).expect("the scratch folder is writable");
        }
        for (name, mode) in [
            ("tmp", 0o1777),
            ("var/tmp/e2e", 0o1777),
            ("var/log/auth.log", 0o666),
            ("etc/secret", 0o600),
            ("usr/local/bin/tollgate", 0o755),
        ] {
            self.mode(name, mode);
        }
    }

    fn copy(&self, from: &Path, to: &Path) {
        let to = self
            .path()
            .join(to.strip_prefix("/").expect("the path is absolute"));
        let folder = to.parent().expect("it lies in the root");
        fs::create_dir_all(folder)
            .and_then(|()| testing::copy_program(from, &to))
            .unwrap_or_else(|error| panic!("cannot copy {}: {error}", from.display()));
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path().join(name), Permissions::from_mode(mode))
            .expect("it is our file");
    }
}

/// Keeps a root until this process ends: each one takes a second of a processor to build. Nothing drops a static value, so
/// a shell waits for the end of this process and removes the folder, whatever ends the process.
fn keep(rootfs: &Arc<Rootfs>) {
    static KEPT: OnceLock<(Arc<Rootfs>, Child)> = OnceLock::new();
    KEPT.get_or_init(|| {
        let script = "trap '' HUP INT TERM; read -r line; rm -rf -- \"$1\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(rootfs.path());
        shell.stdin(Stdio::piped()).stdout(Stdio::null());
        let shell = shell.stderr(Stdio::null()).spawn();
        (Arc::clone(rootfs), shell.expect("a shell is installed"))
    });
}

/// Returns the shared libraries that ldd(1) names.
pub(crate) fn libraries_of(programs: &[PathBuf]) -> BTreeSet<PathBuf> {
    // The exit status is 1 if one of the programs is static.
    let output = Command::new("ldd")
        .args(programs)
        .output()
        .expect("ldd is part of libc-bin");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.lines().filter_map(|line| {
        let line = line.split(" (").next()?.trim();
        let path = line.rsplit(" => ").next()?;
        (path.starts_with('/') && !path.ends_with(':')).then(|| PathBuf::from(path))
    });
    words.collect()
}
