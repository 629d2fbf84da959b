//! Containers that come and go under `tollgate runtime --agent host`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use e2e::runtime_fixture::RuntimeFixture;

/// How often a short container opens the file.
const OPENS: u64 = 3;

const LONG: &str = "i=0; while ! test -e /out/stop; do cat /etc/secret > /dev/null; i=$((i+1)); echo $i > /out/long; \
                    sleep 0.2; done; touch /out/ended; exec sleep 1000";

/// Containers, one of which lives all the time.
pub(crate) struct Containers {
    caller: Caller,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Tally>>,
}

/// What came of the short ones.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Containers that ran to their end.
    pub(crate) ran: u64,
    /// Opens of the file, in all containers.
    pub(crate) opens: u64,
    /// What the runtime said where it failed.
    pub(crate) failures: Vec<String>,
    /// Files and folders that are left of containers.
    pub(crate) left: Vec<String>,
}

#[derive(Clone)]
struct Caller {
    program: PathBuf,
    folder: PathBuf,
    id: String,
}

impl Containers {
    /// Starts the long container, and then short ones. `program` and `folder` are those of the other subjects.
    pub(crate) fn start(fixture: &RuntimeFixture, program: PathBuf, folder: &Path) -> Self {
        let caller = Caller {
            program,
            folder: fixture.scratch.path().to_owned(),
            id: fixture.id.clone(),
        };
        let _ = std::os::unix::fs::symlink("busybox", caller.folder.join("rootfs/bin/test"));
        fixture.bundle("long", LONG);
        fixture.bundle("short", "exec cat /etc/secret /etc/secret /etc/secret");
        let path = folder.display();
        let settings = format!(
            "rules_files: [{path}/containers.yaml]\njson_output: true\nruntime: {{agent: host, agent_linger: 1}}\n\
             file_output: {{enabled: true, keep_alive: true, filename: {path}/containers}}\n"
        );
        fs::write(caller.folder.join("tollgate.yaml"), settings).expect("writable");
        let started =
            caller.runtime(&["run", "--detach", "--bundle", "long", &caller.name("long")]);
        assert_eq!(started, Ok(()), "the long container");
        let is_over: Arc<AtomicBool> = Arc::default();
        let (over, own) = (Arc::clone(&is_over), caller.clone());
        let thread = thread::spawn(move || {
            let mut tally = Tally::default();
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                number += 1;
                let name = own.name(&number.to_string());
                match own.runtime(&["run", "--bundle", "short", &name]) {
                    Ok(()) => tally.ran += 1,
                    Err(why) => tally.failures.push(why),
                }
                thread::sleep(Duration::from_millis(300));
            }
            tally
        });
        Self {
            caller,
            is_over,
            thread: Some(thread),
        }
    }

    /// Ends all containers.
    pub(crate) fn finish(mut self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it was started");
        let mut tally = thread.join().expect("it does not panic");
        let caller = &self.caller;
        fs::write(caller.folder.join("out/stop"), "").expect("writable");
        e2e::wait_for(&caller.folder.join("out/ended"));
        let text = fs::read_to_string(caller.folder.join("out/long")).expect("it was written");
        let long: u64 = text.trim().parse().expect("a number");
        tally.opens = tally.ran * OPENS + long;
        // What is written last has to arrive.
        thread::sleep(Duration::from_secs(1));
        if let Err(why) = caller.runtime(&["delete", "--force", &caller.name("long")]) {
            tally.failures.push(why);
        }
        tally.left = caller.left();
        tally
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if self.thread.is_some() {
            // It was not finished, because the test fails already.
            let _ = self
                .caller
                .runtime(&["delete", "--force", &self.caller.name("long")]);
        }
    }
}

impl Caller {
    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.id)
    }

    fn runtime(&self, words: &[&str]) -> Result<(), String> {
        let said = self.folder.join("said");
        let file = || fs::File::create(&said).expect("writable");
        let status = Command::new(&self.program)
            .args(["runtime", "--runtime", "runc", "--root"])
            .arg(self.folder.join("root"))
            .args(words)
            .current_dir(&self.folder)
            .env("TOLLGATE_RUNTIME_STATE", self.folder.join("state"))
            .env("TOLLGATE_RUNTIME_CONFIG", self.folder.join("tollgate.yaml"))
            .stdin(Stdio::null())
            // A detached container keeps them, so they are no pipes.
            .stdout(Stdio::null())
            .stderr(file())
            .status()
            .expect("it was built");
        if status.success() {
            return Ok(());
        }
        Err(format!(
            "{words:?}: {status}: {}",
            fs::read_to_string(said).expect("it was made")
        ))
    }

    /// Everything that a container may have left on the machine.
    fn left(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in ["state", "root"] {
            walk(&self.folder.join(folder), &self.id, 3, &mut found);
        }
        walk(Path::new("/sys/fs/cgroup"), &self.id, 4, &mut found);
        found
    }
}

/// Finds names that begin with the text.
fn walk(folder: &Path, text: &str, depth: usize, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(text) {
            found.push(entry.path().display().to_string());
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), text, depth - 1, found);
        }
    }
}
