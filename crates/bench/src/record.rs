//! Raw samples and the folder that holds them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::host::Host;
use crate::plan::Plan;

/// The file with one sample a line.
pub const SAMPLES: &str = "samples.jsonl";

const PLAN: &str = "plan.json";
const HOST: &str = "host.json";

/// One command that was run once: a line of `samples.jsonl`.
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
    /// What was random in this sample follows from this.
    pub seed: u64,
    /// How many operations `elapsed_ns` covers.
    pub operations: Option<u64>,
    /// The time of the operations.
    pub elapsed_ns: Option<u64>,
    /// The fastest batch in each slice of the workload's time, if it reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows_ns_per_op: Vec<f64>,
    /// Other numbers that the workload reports about itself, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, f64>,
    /// From start to end of the whole command.
    pub wall_ns: u64,
    /// Time in user mode of the command and all descendants it waited for.
    pub user_us: u64,
    /// Time in the kernel, likewise.
    pub sys_us: u64,
    /// The largest resident set of any one of these processes.
    pub max_rss_kib: u64,
    /// How the command ended.
    pub exit: Exit,
    /// Whether the work was done.
    pub witness: WorkCheck,
    /// Events that the subject says it saw.
    pub events: Option<u64>,
    /// Events that the subject says it lost.
    pub drops: Option<u64>,
    /// Load average of the last minute, at the start.
    pub load_1m: Option<f64>,
    /// Time that the hypervisor gave to others while the command ran, summed over all CPUs.
    pub steal_ms: Option<u64>,
    /// Milliseconds since 1970 at the start.
    pub timestamp_ms: u64,
    /// Why this sample counts in no figure.
    pub invalid: Option<String>,
    /// The end of what an invalid sample's command wrote to standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

impl Sample {
    /// Time per operation, unless the sample is invalid.
    pub fn ns_per_operation(&self) -> Option<f64> {
        if self.invalid.is_some() {
            return None;
        }
        Some(self.elapsed_ns? as f64 / self.operations? as f64)
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// It was killed because the run was to end.
    Interrupted,
    /// By this signal.
    Signal(i32),
    /// It was killed because it took longer than the plan allows.
    TimedOut,
}

/// Operations that had to be done and that were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCheck {
    /// What the plan demands, if it does.
    pub expected: Option<u64>,
    /// What the workload reports.
    pub seen: Option<u64>,
}

/// A results folder that is being filled.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    samples: File,
}

impl Recorder {
    /// Makes `folder` and notes the plan and the host in it.
    ///
    /// # Errors
    ///
    /// When the folder holds samples already or cannot be written.
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

    /// Appends one line. It has left the program when this returns.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn append(&mut self, sample: &Sample) -> Result<(), Error> {
        let mut line = serde_json::to_vec(sample).expect("a sample has only string keys");
        line.push(b'\n');
        self.samples.write_all(&line).map_err(|source| Error::File {
            action: "write to",
            path: self.folder.join(SAMPLES),
            source,
        })
    }

    /// Notes the host again, as it is at the end.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write_host(&self, host: &Host) -> Result<(), Error> {
        write_json(&self.folder.join(HOST), host)
    }
}

/// A results folder as it was recorded.
#[derive(Debug)]
pub struct Recording {
    /// What was to be run.
    pub plan: Plan,
    /// On which machine.
    pub host: Host,
    /// What was run, in order.
    pub samples: Vec<Sample>,
}

impl Recording {
    /// Reads `folder`.
    ///
    /// # Errors
    ///
    /// When a file is missing or does not parse. A last line that was cut off in the middle of a
    /// write is left out, because the run that wrote it was killed.
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
