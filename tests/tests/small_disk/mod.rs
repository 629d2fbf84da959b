//! A small disk that nobody else sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use e2e::{Scratch, wait_for};

/// A small tmpfs, mounted in a mount namespace of its own. It ends with this value.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    /// Has the namespace.
    holder: Child,
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk of so many KiB over a new folder `disk` of the scratch folder.
    ///
    /// # Panics
    /// If it cannot be mounted: only root mounts.
    #[must_use]
    pub(crate) fn new(scratch: &Scratch, kib: u32) -> Self {
        let folder = scratch.path().join("disk");
        fs::create_dir(&folder).expect("a new folder");
        let mounted = scratch.path().join("mounted");
        let script =
            "mount -t tmpfs -o size=$0k none \"$1\" && touch \"$2\" && exec sleep infinity";
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, &kib.to_string()])
            .args([&folder, &mounted])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare starts");
        let disk = Self { holder, folder };
        wait_for(&mounted);
        disk
    }

    /// Returns a command that runs a program where the disk is. Its pid is that of the program.
    #[must_use]
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg(program);
        command
    }

    /// Returns the folder, for programs of [`SmallDisk::command`].
    #[must_use]
    pub(crate) fn inside(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder, for all others.
    ///
    /// # Panics
    /// Never: the scratch folder has an absolute path.
    #[must_use]
    pub(crate) fn outside(&self) -> PathBuf {
        let root = Path::new("/proc")
            .join(self.holder.id().to_string())
            .join("root");
        root.join(self.folder.strip_prefix("/").expect("it is absolute"))
    }

    /// Fills the disk to its last byte, or frees what that took.
    ///
    /// # Panics
    /// If the filler cannot be removed.
    pub(crate) fn fill(&self, fill: bool) {
        let filler = self.outside().join("filler");
        if fill {
            // Fails when there is no room left, which is what it is for.
            let _ = fs::write(filler, vec![0; 16 << 20]);
        } else if filler.exists() {
            fs::remove_file(filler).expect("it is ours");
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
