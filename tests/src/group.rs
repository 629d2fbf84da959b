//! Control groups that look like those of a container runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A control group with the name that Docker would give to a container's. Removed when dropped.
#[derive(Debug)]
pub struct Group {
    /// The topmost of the folders that were made.
    top: PathBuf,
    leaf: PathBuf,
}

/// Length of a container's id.
const ID_LENGTH: usize = 64;

impl Group {
    /// Makes the group of a container whose id begins with `id`.
    ///
    /// # Panics
    /// If it cannot be made: only root makes control groups.
    #[must_use]
    pub fn of_container(id: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let hierarchies = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/pids",
        ];
        let hierarchy = hierarchies.map(Path::new).into_iter().find(|folder| {
            folder.join("cgroup.controllers").exists() || folder.join("tasks").exists()
        });
        let hierarchy = hierarchy.expect("the machine has control groups");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let top = hierarchy.join(format!("e2e-{}-{number}", std::process::id()));
        let leaf = top.join("docker").join(format!("{id:0<ID_LENGTH$}"));
        fs::create_dir_all(&leaf).expect("root makes control groups");
        Self { top, leaf }
    }

    /// The id of the container that the group is like.
    ///
    /// # Panics
    /// Never: the group has a name.
    #[must_use]
    pub fn id(&self) -> String {
        let name = self.leaf.file_name().expect("the group has a name");
        name.to_string_lossy().into_owned()
    }

    /// Returns the command line to put before a command that runs in the group.
    #[must_use]
    pub fn prefix(&self) -> Vec<String> {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        let leaf = self.leaf.display().to_string();
        ["sh", "-c", script, &leaf].map(str::to_owned).to_vec()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let folders = [&self.leaf, &self.top.join("docker"), &self.top];
        // Its last process may not have ended yet. A folder that remains does no harm: its name is unique.
        for _ in 0..50 {
            if folders
                .iter()
                .all(|folder| fs::remove_dir(folder).is_ok() || !folder.exists())
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
