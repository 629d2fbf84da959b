//! Raw samples, and the folder that holds them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::host::Host;
use crate::plan::Plan;

/// Name of the file with one sample a line.
pub const SAMPLES: &str = "samples.jsonl";

const PLAN: &str = "plan.json";
const HOST: &str = "host.json";

/// One run of a command: a line of `samples.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The round, from 0.
    pub round: u32,
    /// The position within the round, from 0.
    pub order: u32,
    /// The workload's name.
    pub workload: String,
    /// The subject's name.
    pub subject: String,
    /// Seed of everything random in this sample.
    pub seed: u64,
    /// Number of operations that `elapsed_ns` covers.
    pub operations: Option<u64>,
    /// Time of the operations.
    pub elapsed_ns: Option<u64>,
    /// The fastest batch of each slice of the workload's time, if the workload reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows_ns_per_op: Vec<f64>,
    /// Other figures that the workload reports, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, f64>,
    /// Wall time from start to end of the whole command.
    pub wall_ns: u64,
    /// CPU time in user mode of the command and all descendants it waited for.
    pub user_us: u64,
    /// CPU time in the kernel of the command and all descendants it waited for.
    pub sys_us: u64,
    /// The largest resident set of any one of these processes.
    pub max_rss_kib: u64,
    /// Exit of the command.
    pub exit: Exit,
    /// Operations expected and operations done.
    pub witness: WorkCheck,
    /// Number of events that the subject reports as seen.
    pub events: Option<u64>,
    /// Number of events that the subject reports as lost.
    pub drops: Option<u64>,
    /// Load average over one minute, at the start.
    pub load_1m: Option<f64>,
    /// Steal time while the command ran, summed over all CPUs: time that the hypervisor gave to other guests.
    pub steal_ms: Option<u64>,
    /// Time of the start, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
    /// Reason why the sample is invalid and used in no figure.
    pub invalid: Option<String>,
    /// The end of the standard error of an invalid sample's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

impl Sample {
    /// Returns the time per operation. `None` if the sample is invalid.
    pub fn ns_per_operation(&self) -> Option<f64> {
        if self.invalid.is_some() {
            return None;
        }
        Some(self.elapsed_ns? as f64 / self.operations? as f64)
    }
}

/// Exit of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The command exited with this status.
    Code(i32),
    /// The command was killed because the run was interrupted.
    Interrupted,
    /// The command was killed by this signal.
    Signal(i32),
    /// The command was killed because it took longer than the plan allows.
    TimedOut,
}

impl Exit {
    /// Returns how the command failed, in words; `None` if it did not.
    pub(crate) fn failure(self) -> Option<String> {
        match self {
            Self::Code(0) => None,
            Self::Code(code) => Some(format!("exit status {code}")),
            Self::Interrupted => Some("interrupted".to_owned()),
            Self::Signal(signal) => Some(format!("killed by signal {signal}")),
            Self::TimedOut => Some("took longer than the time limit".to_owned()),
        }
    }
}

/// Operations that were expected, and operations that were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCheck {
    /// Operations that the plan demands, if it demands any.
    pub expected: Option<u64>,
    /// Operations that the workload reports.
    pub seen: Option<u64>,
}

/// Writer of a results folder.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    samples: File,
}

impl Recorder {
    /// Creates `folder` and writes the plan and the host to it.
    ///
    /// # Errors
    ///
    /// If the folder already holds samples or cannot be written.
    pub fn create(folder: &Path, plan: &Plan, host: &Host) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|source| Error::File {
            action: "make the results folder",
            path: folder.into(),
            source,
        })?;
        let path = folder.join(SAMPLES);
        let samples = File::create_new(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::AlreadyExists {
                return Error::FolderTaken {
                    path: folder.into(),
                };
            }
            Error::File {
                action: "create",
                path,
                source,
            }
        })?;
        let recorder = Self {
            folder: folder.into(),
            samples,
        };
        write_json(&folder.join(PLAN), plan)?;
        recorder.write_host(host)?;
        Ok(recorder)
    }

    /// Appends one line. The line has been written to the file when this returns.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn append(&mut self, sample: &Sample) -> Result<(), Error> {
        let mut line = serde_json::to_vec(sample).expect("a sample has only string keys");
        line.push(b'\n');
        self.samples.write_all(&line).map_err(|source| Error::File {
            action: "write to",
            path: self.folder.join(SAMPLES),
            source,
        })
    }

    /// Writes the host again, with its state at the end.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write_host(&self, host: &Host) -> Result<(), Error> {
        write_json(&self.folder.join(HOST), host)
    }
}

/// The content of a results folder.
#[derive(Debug)]
pub struct Recording {
    /// The plan.
    pub plan: Plan,
    /// The host.
    pub host: Host,
    /// The samples, in the order in which they were taken.
    pub samples: Vec<Sample>,
}

impl Recording {
    /// Reads `folder`. Ignores a last line that is cut off, because the run that wrote it was killed.
    ///
    /// # Errors
    ///
    /// If a file is missing or does not parse.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let plan =
            serde_json::from_str(&read(&folder.join(PLAN))?).map_err(|source| Error::Record {
                line: source.line(),
                path: folder.join(PLAN),
                source,
            })?;
        let host =
            serde_json::from_str(&read(&folder.join(HOST))?).map_err(|source| Error::Record {
                line: source.line(),
                path: folder.join(HOST),
                source,
            })?;
        let path = folder.join(SAMPLES);
        let text = read(&path)?;
        let complete = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let samples = complete
            .lines()
            .enumerate()
            .map(|(index, line)| {
                serde_json::from_str(line).map_err(|source| Error::Record {
                    path: path.clone(),
                    line: index + 1,
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            plan,
            host,
            samples,
        })
    }
}

/// Writes a file of a results folder.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::File {
        action: "write",
        path: path.into(),
        source,
    })
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).expect("records have only string keys");
    write(path, &(text + "\n"))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::File {
        action: "read",
        path: path.into(),
        source,
    })
}
