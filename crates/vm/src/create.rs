//! Creates a container: its monitor, its files, and a machine that boots with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use runtime::annotations;
use runtime::caller::warn;
use runtime::containers::{bundle, is_to_be_watched, new_note, state_failure};
use runtime::{Call, CommandLine, Note};
use serde_json::Value;

use super::kernel::kernel;
use super::{
    CONSOLE, FIRST, MACHINE, MONITOR, Machine, PAUSE, PLAN, PROCESS, Plan, QEMU_LOG, Settings, Vm,
    caller, cannot, fields, image, pool, qemu, started, this_program, write_pid,
};
use crate::{Frame, Kind};

/// A created container: its monitor, and the connection on which the monitor waits for the creator.
pub(super) struct CreatedContainer {
    pub(super) monitor: Child,
    maker: caller::ContainerCreator,
}

impl CreatedContainer {
    /// Detaches the container from its creator.
    pub(super) fn keep(&self) {
        // Fails only if the monitor has already ended.
        let _ = self.maker.keep();
    }
}

impl Vm {
    /// Creates a container and returns its monitor, whose machine waits to be started.
    pub(super) fn create(
        &self,
        settings: &Settings,
        line: &CommandLine,
        call: &Call,
    ) -> Result<CreatedContainer, Failure> {
        let bundle = bundle(call)?;
        let spec = annotations::read(&bundle)?;
        let config = read_json(&bundle.join("config.json"))?;
        image::check(&config, &self.id)?;
        for warning in settings.warnings.iter().chain(&fields::warnings(&config)) {
            warn(line, warning);
        }
        let policy = settings.policy(&spec)?;
        let note = Note {
            bundle,
            is_watched: policy.is_some() || is_to_be_watched(settings, &spec),
            policy,
            // Each container of a machine has its own.
            has_mounts: true,
            ..new_note(line, crate::NAME.into(), &spec, &self.id)
        };
        let alerts = settings.alerts_of_machine()?;
        let agent = note
            .is_watched
            .then(|| settings.agent_spec_in_machine(&note));
        let agent = agent.transpose()?;
        // Started before anything exists that would remain if this process were killed.
        let mut made = self.launch()?;
        match self.begin(&note) {
            Ok(true) => {}
            outcome => {
                qemu::end(&mut made.monitor);
                outcome?;
                return Err(self.exists_already());
            }
        }
        let outcome = self
            .hand_folder_over(&made, spec.annotations)
            .and_then(|()| {
                let packed = image::pack(&self.store, &note, &config, agent)?;
                self.write(PROCESS, config["process"].to_string().as_bytes())?;
                self.boot(&mut made, settings, packed, alerts)
            })
            .and_then(|()| match call.values(&["pid-file"]).last() {
                Some(file) => write_pid(file, made.monitor.id()),
                None => Ok(()),
            });
        if let Err(failure) = outcome {
            qemu::end(&mut made.monitor);
            self.remove()?;
            return Err(failure);
        }
        Ok(made)
    }

    fn exists_already(&self) -> Failure {
        let message = format!(
            "cannot create container {}: there is one of this id",
            self.id
        );
        Failure::new(Exit::BadInput, message).help("delete it, or use another ID")
    }

    /// Creates the note. Returns false if the container exists. Leftovers of an unfinished one are
    /// replaced.
    fn begin(&self, note: &Note) -> Result<bool, Failure> {
        if self
            .store
            .begin(note)
            .map_err(|error| state_failure(&error))?
        {
            return Ok(true);
        }
        if self.machine()?.is_some() {
            return Ok(false);
        }
        self.remove()?;
        self.store
            .begin(note)
            .map_err(|error| state_failure(&error))
    }

    /// Starts the monitor, which waits for orders.
    fn launch(&self) -> Result<CreatedContainer, Failure> {
        let (maker, theirs) = caller::pair()?;
        let monitor = this_program()
            .arg(MONITOR)
            .arg(self.store.file(""))
            .arg(caller::number(&theirs))
            .spawn()
            .map_err(cannot("start a process"))?;
        Ok(CreatedContainer { monitor, maker })
    }

    /// Has the monitor remove the notes if this process dies.
    fn hand_folder_over(
        &self,
        made: &CreatedContainer,
        annotations: BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        made.maker
            .own_folder()
            .map_err(cannot("reach the container"))?;
        let pid = made.monitor.id().cast_signed();
        let gone =
            || cannot("look at the process of the container")(std::io::ErrorKind::NotFound.into());
        let start = started(pid).ok_or_else(gone)?;
        let machine = Machine::new(pid, start, annotations);
        self.write(MACHINE, &machine.encode())
    }

    /// Has a machine start with the container's files: a warm one, or a new one.
    fn boot(
        &self,
        made: &mut CreatedContainer,
        settings: &Settings,
        packed: image::PackedImage,
        alerts: PathBuf,
    ) -> Result<(), Failure> {
        let kernel = kernel(settings)?;
        let folder = self.store.file("");
        let warm = pool::take(settings, &kernel, packed.memory_mib(), &folder);
        let memory_mib = match warm {
            Some(_) => packed.end().map(|()| 0),
            None => packed.end_with_machine(&kernel),
        }?;
        let plan = Plan {
            kernel: kernel.image,
            memory_mib,
            alerts,
        };
        self.write(PLAN, &serde_json::to_vec(&plan).expect("it is plain data"))?;
        if made.maker.begin(warm).is_err() {
            return Err(self.did_not_start());
        }
        let patience = qemu::BootTimeout::with(made.monitor.id());
        while matches!(made.monitor.try_wait(), Ok(None)) && !patience.is_over() {
            match self.ask(&Frame::new(FIRST, Kind::State, [])) {
                Ok(answer) if answer.content == b"created" => return Ok(()),
                // The monitor does not listen yet, or is about to end.
                _ => std::thread::sleep(PAUSE),
            }
        }
        Err(self.did_not_start())
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<(), Failure> {
        fs::write(self.store.file(name), text).map_err(cannot("note the machine"))
    }

    fn did_not_start(&self) -> Failure {
        let message = format!(
            "cannot start the virtual machine of {}: {}",
            self.id,
            last_words(&self.store.file(""))
        );
        Failure::new(Exit::Unsupported, message).help(
            "`tollgate doctor` shows what is missing; `runtime.vm_kernel` names another kernel",
        )
    }
}

/// Returns the last output of QEMU and the machine's console.
pub(super) fn last_words(folder: &Path) -> String {
    let last = |file: &str| {
        // The file does not exist if the start failed earlier.
        let text = fs::read(folder.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        lines[lines.len().saturating_sub(4)..].join(" | ")
    };
    [QEMU_LOG, CONSOLE].map(last).join(" | ")
}

fn read_json(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(cannot("read the configuration"))?;
    serde_json::from_slice(&text).map_err(|error| cannot("read the configuration")(error.into()))
}
