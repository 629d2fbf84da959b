//! The life of a container: create, start, state, exec, kill, delete, each a command of an OCI runtime.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::measure::{LoadResult, Setup};
use crate::{Error, split_words};

/// Variable that overrides `--runtime`: a subject is a runtime, set through the environment of a workload.
const RUNTIME: &str = "TOLLGATE_BENCH_RUNTIME";

/// Statically linked program, the only file that the containers need.
const TOOLS: &str = "/bin/busybox";

/// The commands of a container's life. Other figures are times between two of them.
const COMMANDS: [&str; 6] = ["create", "start", "state", "exec", "kill", "delete"];

/// Pause before a command that moves processes into control groups. The kernel moves a process at once if it
/// moved one just before, and otherwise after a grace period of RCU, 5 to 20 ms. Without a pause such a command
/// would be cheaper the faster the commands before it were. There is no pause between `create` and `start`,
/// which waits for what `create` has left to do.
const PAUSE: Duration = Duration::from_millis(50);

/// Time limit for the end of a container.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(setup: &Setup) -> Result<LoadResult, Error> {
    let runtime = std::env::var(RUNTIME).unwrap_or_else(|_| setup.options.runtime.clone());
    let runtime = split_words(&runtime).map_err(|reason| Error::Unexpected {
        expected: "a command line as runtime".to_owned(),
        got: reason,
    })?;
    let program = setup.options.program.as_str();
    let words = arguments(program)?;
    let bundle = setup.scratch().join("bundle");
    make_bundle(&bundle, words)?;
    let lives = setup.options.operations.unwrap_or(1);
    let mut sums = Vec::new();
    let start = Instant::now();
    for number in 0..lives {
        let life = Life {
            runtime: &runtime,
            bundle: &bundle,
            id: format!("tollgate-bench-{}-{number}", std::process::id()),
            greets: program == "hello",
        };
        sums.push(life.live()?);
    }
    let elapsed = start.elapsed();
    let mut measured = LoadResult {
        operations: lives,
        elapsed,
        windows: Vec::new(),
        extra: std::collections::BTreeMap::new(),
    };
    for (name, time) in sums.into_iter().flatten() {
        let milliseconds = time.as_secs_f64() * 1e3 / lives as f64;
        *measured.extra.entry(format!("{name}_ms")).or_insert(0.0) += milliseconds;
    }
    Ok(measured)
}

fn arguments(program: &str) -> Result<&'static [&'static str], Error> {
    match program {
        "hello" => Ok(&["/bin/echo", "hello"]),
        "pause" => Ok(&["/bin/sleep", "1000000"]),
        "yes" => Ok(&["/bin/sh", "-c", "exec yes > /dev/null"]),
        _ => Err(Error::Unexpected {
            expected: "--program with one of hello, pause, yes".to_owned(),
            got: format!("`{program}`"),
        }),
    }
}

fn make_bundle(bundle: &Path, words: &[&str]) -> Result<(), Error> {
    let bin = bundle.join("rootfs/bin");
    fs::create_dir_all(&bin).map_err(Error::file("make the folder", &bin))?;
    for folder in ["proc", "dev", "tmp"] {
        let folder = bundle.join("rootfs").join(folder);
        fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
    }
    let tools = bin.join("busybox");
    let from = Path::new(TOOLS);
    fs::copy(from, &tools).map_err(Error::file("copy (install busybox-static)", from))?;
    for name in ["echo", "sleep", "sh", "true", "yes"] {
        let link = bin.join(name);
        symlink("busybox", &link).map_err(Error::file("link", &link))?;
    }
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": words,
            "env": ["PATH=/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bench",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
        ],
        "linux": { "namespaces": namespaces },
    });
    let path = bundle.join("config.json");
    fs::write(&path, config.to_string()).map_err(Error::file("write", &path))
}

struct Life<'a> {
    runtime: &'a [String],
    bundle: &'a Path,
    id: String,
    greets: bool,
}

type Times = Vec<(&'static str, Duration)>;

impl Life<'_> {
    fn live(&self) -> Result<Times, Error> {
        let lived = self.phases();
        if lived.is_err() {
            // A container that failed half-way may exist; the first failure is the one reported.
            let _ = self.command(&["delete", "--force", &self.id]).status();
        }
        lived
    }

    fn phases(&self) -> Result<Times, Error> {
        let (mut reader, writer) = std::io::pipe().map_err(Error::call("make a pipe"))?;
        let pid_file = self.bundle.join("pid");
        let mut times = Times::new();
        let bundle = self.bundle.to_string_lossy();
        let pid = pid_file.to_string_lossy();
        let mut command =
            self.command(&["create", "--bundle", &bundle, "--pid-file", &pid, &self.id]);
        command.stdout(writer);
        std::thread::sleep(PAUSE);
        let create = Instant::now();
        self.must("create", &mut command, &mut times)?;
        // Only the container holds the other end now.
        drop(command);
        let pid = read_pid(&pid_file)?;
        let started = Instant::now();
        self.must("start", &mut self.command(&["start", &self.id]), &mut times)?;
        if self.greets {
            let mut greeting = [0; 6];
            reader
                .read_exact(&mut greeting)
                .map_err(Error::call("read what the container says"))?;
            times.push(("start_to_output", started.elapsed()));
            times.push(("create_to_output", create.elapsed()));
            wait_for_end(pid)?;
            self.wait_until_stopped()?;
        }
        self.must("state", &mut self.command(&["state", &self.id]), &mut times)?;
        if !self.greets {
            let mut session = self.command(&["exec", &self.id, "/bin/true"]);
            std::thread::sleep(PAUSE);
            self.must("exec", &mut session, &mut times)?;
            let killed = Instant::now();
            self.must(
                "kill",
                &mut self.command(&["kill", &self.id, "KILL"]),
                &mut times,
            )?;
            wait_for_end(pid)?;
            times.push(("kill_to_exit", killed.elapsed()));
            self.wait_until_stopped()?;
        }
        self.must(
            "delete",
            &mut self.command(&["delete", &self.id]),
            &mut times,
        )?;
        // Excludes what the caller waits for in between, such as the end of the program.
        let of_commands = times.iter().filter(|(name, _)| COMMANDS.contains(name));
        let total = of_commands.map(|(_, time)| *time).sum();
        times.push(("commands", total));
        Ok(times)
    }

    /// Waits until the runtime reports the end of its container, which may be a little later than the kernel
    /// does.
    fn wait_until_stopped(&self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self
                .command(&["state", &self.id])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .output()
                .map_err(Error::file("start", PathBuf::from(&self.runtime[0])))?;
            let state: serde_json::Value =
                serde_json::from_slice(&output.stdout).map_err(|_error| Error::Unexpected {
                    expected: "the container's state as JSON".to_owned(),
                    got: String::from_utf8_lossy(&output.stdout).into_owned(),
                })?;
            if state["status"] == "stopped" {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Unexpected {
                    expected: "the status `stopped`".to_owned(),
                    got: state["status"].to_string(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.runtime[0]);
        command
            .args(&self.runtime[1..])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Times a command that has to succeed.
    fn must(
        &self,
        name: &'static str,
        command: &mut Command,
        times: &mut Times,
    ) -> Result<(), Error> {
        let complaints = self.bundle.join("complaints");
        let file = File::create(&complaints).map_err(Error::file("create", &complaints))?;
        let start = Instant::now();
        let status = command
            .stderr(file)
            .status()
            .map_err(Error::file("start", PathBuf::from(&self.runtime[0])))?;
        times.push((name, start.elapsed()));
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(&complaints).map_err(Error::file("read", &complaints))?;
        Err(Error::Unexpected {
            expected: format!("`{} {name}` to succeed", self.runtime.join(" ")),
            got: format!("{status}: {}", said.trim()),
        })
    }
}

fn read_pid(path: &Path) -> Result<u32, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    text.trim().parse().map_err(|_error| Error::Unexpected {
        expected: "a process id".to_owned(),
        got: text,
    })
}

/// Waits for the end of a process. A process that its parent has not waited for counts as ended.
fn wait_for_end(pid: u32) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        if stat.map_or(true, |stat| stat.contains(") Z ")) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::Unexpected {
                expected: format!("process {pid} of the container to end"),
                got: format!("nothing within {} s", PATIENCE.as_secs()),
            });
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
