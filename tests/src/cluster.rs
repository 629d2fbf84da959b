//! Parts of Kubernetes that `tests/cluster/build` has built into a cache, and how tests start them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::Scratch;

pub mod node;
pub mod whole;

/// The built program of this name; an error says where there is none.
///
/// # Errors
/// If the variable `TOLLGATE_CACHE` names no cache with that program.
pub fn built(name: &str) -> Result<PathBuf, String> {
    let cache = env::var_os("TOLLGATE_CACHE").ok_or("TOLLGATE_CACHE is not set")?;
    let program = PathBuf::from(cache).join("kubernetes/bin").join(name);
    match program.exists() {
        true => Ok(program),
        false => Err(format!("there is no {}", program.display())),
    }
}

/// Skips a test if one of these programs is not in the cache.
#[macro_export]
macro_rules! need_built {
    ($($name:expr),+) => {
        $(if let Err(missing) = $crate::cluster::built($name) {
            $crate::skip!("needs what tests/cluster/build builds", || Ok(missing));
        })+
    };
}

/// The programs of an API server; skips a test without them.
#[macro_export]
macro_rules! need_api_server {
    () => {
        match ::apiserver::real::Programs::find() {
            Ok(programs) => programs,
            Err(missing) => {
                let found: Result<String, String> = Ok(missing);
                $crate::skip!("needs what tests/cluster/build builds, and etcd", || found)
            }
        }
    };
}

/// containerd with NRI, in namespaces of mounts and pids: whatever it leaves behind ends with it.
#[derive(Debug)]
pub struct Containerd {
    child: Child,
    path: PathBuf,
}

/// Name of the image that there is: a folder with busybox as `/bin/busybox`.
pub const IMAGE: &str = "localhost/pod:1";

/// Functions of the scripts: how images are made.
const IMAGES: &str = include_str!("../cluster/images.sh");

/// Makes the image, starts containerd, and imports the image.
const SCRIPT: &str = r#"
mkdir -p plugins conf
busybox_image
cat > config.toml <<END
version = 3
root = "$PWD/data"
state = "$PWD/state"
[grpc]
  address = "$PWD/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pod:1"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "native"
# Another name of the same runtime.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.tollgate]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.tollgate.options]
  BinaryName = "$PWD/tollgate-runtime"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "$PWD/nri.sock"
  plugin_path = "$PWD/plugins"
  plugin_config_path = "$PWD/conf"
END
ln -s "$TOLLGATE_PROGRAM" tollgate-runtime
cat > runtime.yaml <<END
runtime: {binary: runc, policies: $PWD/policies}
file_output: {enabled: true, filename: $PWD/alerts}
END
export TOLLGATE_RUNTIME_CONFIG="$PWD/runtime.yaml" TOLLGATE_RUNTIME_STATE="$PWD/runtime"
containerd --config config.toml > containerd.log 2>&1 &
for try in $(seq 300); do ctr -a "$PWD/containerd.sock" version > /dev/null 2>&1 && break; sleep 0.1; done
ctr -a "$PWD/containerd.sock" -n k8s.io images import --local --snapshotter native pod.tar > import.out
touch ready
wait
"#;

/// Runs a script in a folder, in new namespaces that end with the process: `--net` and such, and that of pids.
fn spawn(folder: &Path, namespaces: &[&str], script: &str) -> Child {
    let program = built("containerd").expect("the test asked for it");
    let programs = program.parent().expect("it is in a folder");
    // Its own shim and client have to be found before those of the system.
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    let mut command = Command::new("unshare");
    command.args(namespaces);
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command
        .args(["sh", "-c", script])
        .current_dir(folder)
        .env("PATH", path)
        .env("TOLLGATE_PROGRAM", crate::program())
        .stdin(Stdio::null());
    let log = fs::File::create(folder.join("script.log"));
    command.stderr(log.expect("the folder is writable"));
    command.spawn().expect("unshare is part of every system")
}

/// Waits until the script of a process has made the file `ready`.
fn wait_until_ready(child: &mut Child, folder: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while !folder.join("ready").exists() {
        let ended = child.try_wait().expect("it is a child");
        let log = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(
            ended.is_none() && Instant::now() < end,
            "containerd does not start: {ended:?} {} {}",
            log("script.log"),
            log("containerd.log")
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Folders of the hierarchies of control groups.
fn hierarchies() -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/fs/cgroup");
    let all = all.into_iter().flatten().flatten();
    all.map(|entry| entry.path()).collect()
}

impl Containerd {
    /// Starts containerd below a folder, and waits until it can run pods.
    ///
    /// # Panics
    /// If it does not start in a minute; the message has what it logged.
    #[must_use]
    pub fn start(scratch: &Scratch) -> Self {
        let namespaces = ["--mount"];
        let child = spawn(scratch.path(), &namespaces, &format!("{IMAGES}{SCRIPT}"));
        let mut containerd = Self {
            child,
            path: scratch.path().to_owned(),
        };
        wait_until_ready(&mut containerd.child, &containerd.path);
        containerd
    }

    /// What containerd has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path.join("containerd.log")).unwrap_or_default()
    }

    /// The socket of its CRI.
    #[must_use]
    pub fn cri(&self) -> PathBuf {
        self.path.join("containerd.sock")
    }

    /// The socket of its NRI.
    #[must_use]
    pub fn nri(&self) -> PathBuf {
        self.path.join("nri.sock")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let tasks = self.path.join("state/io.containerd.runtime.v2.task/k8s.io");
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
        let tasks: Vec<_> = tasks.map(|entry| entry.file_name()).collect();
        // The first process of the namespace of pids ends with it, and all others with that one.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let roots = hierarchies();
        for task in &tasks {
            roots
                .iter()
                .for_each(|root| remove_group(&root.join("k8s.io").join(task)));
        }
        for root in roots {
            // Another test may have a group there.
            let _ = fs::remove_dir(root.join("k8s.io"));
        }
    }
}

/// Removes the control group of a container that was killed with its namespace.
fn remove_group(path: &Path) {
    for _ in 0..100 {
        // A killed process stays in its group for a moment.
        if !path.exists() || fs::remove_dir(path).is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
