//! Loads and attaches the programs.

use std::collections::BTreeSet;
use std::sync::{Mutex, Once, PoisonError};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{Object, ObjectBuilder, PrintLevel};

use super::error::Error;
use super::hooks::{Attached, Attachment, Hooks, Options};
use super::maps::{Control, Maps};
use super::tables::Tables;

/// Object file that the build script has compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// Programs that track processes. `thread_exit` reports a last call, for which its process must still be watched.
const PROCESS_PROGRAMS: [&str; 5] = [
    "thread_exit",
    "task_rename",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
];
/// Program that distinguishes an execveat from an execve.
const EXECVEAT_PROGRAM: &str = "prepare_exec";
/// The same for kernels that lack its tracepoint (before 6.10), where functions can be hooked. Without
/// tracefs, or without the call, each successful exec is reported as an execve.
const EXECVEAT_FUNCTION_PROGRAM: &str = "function_execveat";
const EXECVEAT_TRACEPOINT_PROGRAMS: [&str; 2] = ["enter_execveat", "exit_execveat"];

/// Program that reports the outcome of a call that a signal interrupts.
const SIGNAL_PROGRAM: &str = "signal_deliver";

/// Programs that see calls through an io_uring, with the type of their tracepoint.
const RING_PROGRAMS: [(&str, &str); 3] = [
    ("ring_submit", "btf_trace_io_uring_submit_req"),
    // The same until 6.3.
    ("ring_submit_entry", "btf_trace_io_uring_submit_sqe"),
    ("ring_complete", "btf_trace_io_uring_complete"),
];

/// Sizes of the rings, in bytes: powers of two, as the kernel demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Ring for execs, forks, ends and privileges.
    pub critical: u32,
    /// Ring for all other records.
    pub bulk: u32,
}

impl Default for RingSizes {
    fn default() -> Self {
        Self {
            critical: 2 << 20,
            bulk: 8 << 20,
        }
    }
}

/// The loaded programs.
pub(super) struct Programs {
    attached: Attached,
    maps: Maps,
}

impl Programs {
    /// Loads the programs; attaches none.
    pub(super) fn load(sizes: RingSizes, control: Control, hooks: Hooks) -> Result<Self, Error> {
        hear_libbpf();
        let options = Options::find(hooks);
        let ((object, loaded), options) = match open(sizes, &options) {
            Ok(opened) => (opened, options),
            Err(refused) if options.has_functions() => {
                // A kernel may have function hooks and yet refuse them.
                let options = options.without_functions(chain(&refused));
                (open(sizes, &options)?, options)
            }
            Err(refused) => return Err(refused),
        };
        let maps = Maps::of(&object, control)?;
        Ok(Self {
            attached: Attached::new(object, loaded, options),
            maps,
        })
    }

    /// Attaches the programs that report forks, execs and ends.
    pub(super) fn attach_processes(&mut self) -> Result<(), Error> {
        PROCESS_PROGRAMS
            .iter()
            .try_for_each(|name| self.attached.attach(name))?;
        let is_loaded = |name: &str| self.attached.is_loaded(name);
        if is_loaded(EXECVEAT_PROGRAM) {
            return self.attached.attach(EXECVEAT_PROGRAM);
        }
        if is_loaded(EXECVEAT_FUNCTION_PROGRAM) {
            return self.attached.attach(EXECVEAT_FUNCTION_PROGRAM);
        }
        for name in EXECVEAT_TRACEPOINT_PROGRAMS {
            // See the constant: only the name of a rare call is lost.
            let _ = self.attached.attach(name);
        }
        Ok(())
    }

    /// Attaches the programs that report planned calls, and those through an io_uring.
    pub(super) fn attach_calls(&mut self, tables: &Tables) -> Result<Attachment, Error> {
        for (name, _) in RING_PROGRAMS {
            if self.attached.is_loaded(name) {
                self.attached.attach(name)?;
            }
        }
        self.attached.attach(SIGNAL_PROGRAM)?;
        self.attached.attach_calls(tables)
    }

    /// Splits into the maps and the attached programs, which stay attached until dropped.
    pub(super) fn into_parts(self) -> (Maps, Attached) {
        (self.maps, self.attached)
    }

    pub(super) fn parts(&mut self) -> (&mut Attached, &Maps) {
        (&mut self.attached, &self.maps)
    }

    pub(super) fn maps(&self) -> &Maps {
        &self.maps
    }
}

/// Opens the object; returns it with the names of its programs.
fn open(sizes: RingSizes, options: &Options) -> Result<(Object, BTreeSet<String>), Error> {
    let mut open = ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(Error::load)?;
    for mut map in open.maps_mut() {
        let size = match map.name().to_str() {
            Some("critical") => sizes.critical,
            Some("bulk") => sizes.bulk,
            _ => continue,
        };
        map.set_max_entries(size).map_err(Error::load)?;
    }
    let btf = Btf::from_vmlinux().map_err(Error::load)?;
    let has_tracepoint = |name: &str| btf.type_by_name::<Typedef<'_>>(name).is_some();
    let tells_execs = has_tracepoint(EXECVEAT_TRACEPOINT);
    for mut program in open.progs_mut() {
        let name = program.name().to_str();
        if name == Some(EXECVEAT_PROGRAM) && tells_execs {
            program.set_autoload(true);
        }
        let is_other = name.is_some_and(|name| EXECVEAT_TRACEPOINT_PROGRAMS.contains(&name));
        if is_other && !tells_execs && !options.has_functions() {
            program.set_autoload(true);
        }
        let ring = RING_PROGRAMS.iter().find(|(ring, _)| name == Some(ring));
        if ring.is_some_and(|(_, tracepoint)| has_tracepoint(tracepoint)) {
            program.set_autoload(true);
        }
    }
    options.prepare(&mut open)?;
    let loaded = open.progs().filter(|program| program.autoload());
    let loaded = loaded.map(|program| program.name().to_string_lossy().into_owned());
    let loaded = loaded.collect();
    Ok((open.load().map_err(Error::load)?, loaded))
}

/// BTF type of the tracepoint; the event in tracefs is not checked because it may not be mounted.
const EXECVEAT_TRACEPOINT: &str = "btf_trace_sched_prepare_exec";

/// Formats an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// Last messages of libbpf, whose errors are only numbers.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() >= 64 {
                said.remove(0);
            }
            said.push(text.trim_end().to_owned());
        })));
    });
}

/// Takes the last messages of libbpf.
pub(super) fn said() -> String {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = std::mem::take(&mut *said);
    lines.join("; ")
}
