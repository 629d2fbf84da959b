//! Control groups that look like those of a container's runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A control group with the name that Docker would give to a container's; removed again.
#[derive(Debug)]
pub(crate) struct Group {
    /// The first of the folders that were made.
    top: PathBuf,
    leaf: PathBuf,
}

/// Length of a container's id.
const ID_LENGTH: usize = 64;

impl Group {
    /// Of a container whose id begins like this.
    ///
    /// # Panics
    /// If none can be made: only root makes control groups.
    pub(crate) fn of_container(id: &str) -> Self {
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

    /// The command line to put before what is to run in it.
    pub(crate) fn prefix(&self) -> Vec<String> {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        let leaf = self.leaf.display().to_string();
        ["sh", "-c", script, &leaf].map(str::to_owned).to_vec()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let folders = [&self.leaf, &self.top.join("docker"), &self.top];
        // Its last process may not be gone yet. A folder that stays does no harm: its name is its own.
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
