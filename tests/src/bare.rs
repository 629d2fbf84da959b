//! A root file system with nothing but busybox: the program's environment in an unknown image.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::binary::{program, which};
use crate::rootfs::libraries_of;
use crate::{Finished, Limited, Scratch};

/// Applets that tests run there.
const APPLETS: &[&str] = &["sh", "cat", "id", "ls", "ps", "sleep", "touch", "true"];

/// Readable by everybody, so that a user's attempt succeeds.
const SHADOW: &str = "root:*:19000:0:99999:7:::\n";

/// Time limit. No runtime lets a container's programs wait longer.
const LIMIT: Duration = Duration::from_secs(30);

/// State of `/proc` in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcView {
    /// An empty folder.
    Missing,
    /// Mounted as container runtimes do: some files hidden, some read-only.
    Masked,
    /// Processes only, and only those of the user: `hidepid=2,subset=pid`.
    OwnProcesses,
}

impl ProcView {
    fn mount(self) -> &'static str {
        match self {
            Self::Missing => "",
            Self::Masked => MASKED,
            Self::OwnProcesses => "mount -t proc -o hidepid=2,subset=pid proc proc\n",
        }
    }
}

/// Masked and read-only paths of the OCI runtime specification's default configuration.
const MASKED: &str = r#"
mount -t proc -o nosuid,nodev,noexec proc proc
for file in kcore keys latency_stats timer_list timer_stats sched_debug; do
    if [ -e proc/$file ]; then mount --bind /dev/null proc/$file; fi
done
for folder in acpi asound scsi; do
    if [ -d proc/$folder ]; then mount -t tmpfs -o ro,size=0 tmpfs proc/$folder; fi
done
for name in bus fs irq sys sysrq-trigger; do
    [ -e proc/$name ] || continue
    mount --bind proc/$name proc/$name
    mount -o remount,bind,ro proc/$name
done
"#;

/// Script that enters the root. Arguments: the root, then the command.
const ENTER: &str = r#"
set -e
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
PROC
mount -o remount,bind,ro "$root"
exec chroot --userspec=1000:1000 . "$@"
"#;

/// A root file system with nothing but busybox.
#[derive(Debug)]
pub struct BareRoot(Scratch);

impl BareRoot {
    /// Creates a root with the program that `make static` built if `TOLLGATE_STATIC_BIN` names it, otherwise
    /// with the program under test and its libraries.
    ///
    /// # Panics
    /// If busybox is not static.
    pub fn new() -> Self {
        let root = Self(Scratch::new());
        for folder in ["bin", "etc", "proc"] {
            fs::create_dir(root.0.path().join(folder)).expect("the folder is new");
        }
        let busybox = which("busybox");
        let libraries = libraries_of(std::slice::from_ref(&busybox));
        assert!(
            libraries.is_empty(),
            "busybox needs {libraries:?}: install busybox-static"
        );
        root.0.program(&busybox, "bin/busybox");
        for applet in APPLETS {
            symlink("busybox", root.0.path().join("bin").join(applet)).expect("the name is new");
        }
        root.0.file("etc/shadow", 0o644, SHADOW);
        let tollgate = static_program().unwrap_or_else(program);
        root.0.program(&tollgate, "tollgate");
        for library in libraries_of(&[tollgate]) {
            let inside = library.strip_prefix("/").expect("ldd names absolute paths");
            let inside = inside.to_str().expect("so are the system's libraries");
            let folder = root.0.path().join(inside);
            fs::create_dir_all(folder.parent().expect("it lies in the root"))
                .expect("the folder is ours");
            // The loader's name is a link, which would lead nowhere in the root.
            let library = library.canonicalize().expect("ldd has found it");
            root.0.program(&library, inside);
        }
        root
    }

    /// Returns the path of the root.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a command in the root as user 1000, as the first process of a pid namespace, with nothing writable,
    /// no `/dev`, no `/sys` and no `/tmp`.
    pub fn run(&self, proc: ProcView, command: &[&str]) -> Finished {
        let script = ENTER.replace("PROC", proc.mount());
        let mut shell = Command::new("unshare");
        shell.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
        ]);
        shell
            .arg(script)
            .arg("bare")
            .arg(self.0.path())
            .args(command);
        shell.stdin(Stdio::null()).env_clear();
        shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Limited::start(&mut shell, LIMIT).finish(b"")
    }
}

impl Default for BareRoot {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the program that `make static` built, if `TOLLGATE_STATIC_BIN` names it.
///
/// # Panics
/// If the name is wrong.
pub fn static_program() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("TOLLGATE_STATIC_BIN")?);
    assert!(
        path.is_file(),
        "TOLLGATE_STATIC_BIN names {}, which is no file: run `make static`",
        path.display()
    );
    let libraries = libraries_of(std::slice::from_ref(&path));
    assert!(
        libraries.is_empty(),
        "{} needs {libraries:?}",
        path.display()
    );
    Some(path)
}
