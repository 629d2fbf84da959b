//! Sending of signals on behalf of a watched script, which may not send them itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Sends the signals that scripts request by a file `order` in a folder, a line `NUMBER PID`. Removes the file
/// when the signal is sent.
pub struct SignalSender {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SignalSender {
    /// Starts a sender, which works until it is dropped.
    pub fn at(folder: &Path) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (order, end) = (folder.join("order"), Arc::clone(&ends));
        let work = move || {
            while !end.load(Ordering::Acquire) {
                serve(&order);
                thread::sleep(Duration::from_millis(2));
            }
        };
        Self {
            ends,
            thread: Some(thread::spawn(work)),
        }
    }

    /// Returns a line of shell that requests the signal for the process whose pid is in `pid_file`, and waits
    /// until it is sent.
    pub fn order(signal: Signal, pid_file: &str) -> String {
        let number = signal.as_raw();
        format!(
            "echo {number} $(cat {pid_file}) > letter; mv letter order; \
             while [ -e order ]; do sleep 0.01; done"
        )
    }
}

fn serve(order: &PathBuf) {
    let Ok(text) = fs::read_to_string(order) else {
        return;
    };
    let mut numbers = text.split_whitespace().map(str::parse::<i32>);
    let (Some(Ok(signal)), Some(Ok(pid))) = (numbers.next(), numbers.next()) else {
        panic!("an order is a signal and a pid, not {text:?}");
    };
    let signal = Signal::from_named_raw(signal).expect("a signal with a name");
    kill_process(Pid::from_raw(pid).expect("not zero"), signal).expect("the process lives");
    fs::remove_file(order).expect("it was there");
}

impl Drop for SignalSender {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there left the script waiting; the script's own time limit reports it.
            let _ = thread.join();
        }
    }
}
