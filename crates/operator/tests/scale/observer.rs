//! An operator whose memory and processor time are observed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use apiserver::{Client, Resource};
use kinds::ObjectKey;

use crate::load::Server;

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(500);
/// Ticks of a second in `/proc/PID/stat`, on every architecture that Linux has today.
const TICKS: u64 = 100;

/// The folder for samples.
pub(crate) fn out() -> Option<PathBuf> {
    env::var_os("TOLLGATE_SCALE_OUT").map(PathBuf::from)
}

/// A running operator.
pub(crate) struct Observed {
    child: Child,
    name: String,
    client: Client,
    phase: Arc<Mutex<String>>,
    is_over: Arc<AtomicBool>,
    sampler: Option<JoinHandle<()>>,
}

impl Observed {
    pub(crate) fn start(server: &Server, name: &str) -> Self {
        let program = env::var_os("TOLLGATE_SCALE_OPERATOR");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_tollgate-operator").into());
        let mut command = Command::new(program);
        command.args(["run", "--namespace", "tollgate", "--name", name]);
        command.args(server.options()).stdin(Stdio::null());
        let child = command.spawn().expect("the program was built");
        let phase = Arc::new(Mutex::new("idle".to_owned()));
        let is_over = Arc::new(AtomicBool::new(false));
        let file = out().map(|folder| folder.join(format!("{}-{name}.tsv", server.name())));
        let sampler = file.map(|file| {
            let (pid, phase, is_over) = (child.id(), Arc::clone(&phase), Arc::clone(&is_over));
            thread::spawn(move || sample(&file, pid, &phase, &is_over))
        });
        Self {
            child,
            name: name.to_owned(),
            client: server.client().clone(),
            phase,
            is_over,
            sampler,
        }
    }

    /// Names what is being done, in the samples.
    pub(crate) fn phase(&mut self, name: &str) {
        name.clone_into(&mut self.phase.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_leader(&self) -> bool {
        let leases = Resource::new("coordination.k8s.io", "v1", "leases");
        let key = ObjectKey {
            namespace: "tollgate".to_owned(),
            name: "tollgate-operator".to_owned(),
        };
        let lease = self.client.get(&leases, &key);
        lease.is_ok_and(|lease| lease["spec"]["holderIdentity"] == *self.name)
    }

    /// Resident memory in kB.
    pub(crate) fn memory(&self) -> u64 {
        memory(self.child.id(), "VmRSS:").expect("it runs")
    }

    /// Maximum of resident memory so far in kB.
    pub(crate) fn peak(&self) -> u64 {
        memory(self.child.id(), "VmHWM:").expect("it runs")
    }

    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(self.child.id()).expect("it runs")
    }

    /// Ends it as a kubelet does, and waits for that.
    pub(crate) fn stop(&mut self) {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(killed.is_ok_and(|status| status.success()), "it runs");
        self.child.wait().expect("it is a child of this test");
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(sampler) = self.sampler.take() {
            let _ = sampler.join();
        }
    }
}

fn sample(file: &Path, pid: u32, phase: &Mutex<String>, is_over: &AtomicBool) {
    let mut file = fs::File::create(file).expect("the folder for samples is there");
    let begin = Instant::now();
    writeln!(file, "ms\tphase\tresident_kb\tprocessor_ms").expect("it can be written");
    while !is_over.load(Ordering::Relaxed) {
        let phase = phase.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(memory), Some(time)) = (memory(pid, "VmRSS:"), processor_time(pid)) {
            let (at, time) = (begin.elapsed().as_millis(), time.as_millis());
            writeln!(file, "{at}\t{phase}\t{memory}\t{time}").expect("it can be written");
        }
        thread::sleep(PERIOD);
    }
}

/// A line of `/proc/PID/status` in kB; `None` if the process has ended.
fn memory(pid: u32, line: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = text.lines().find_map(|one| one.strip_prefix(line))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

fn processor_time(pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have spaces; the times are the 14th and 15th word.
    let (_, rest) = text.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let ticks: u64 = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}
