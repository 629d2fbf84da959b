//! Recording what a workload does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{PipeWriter, Read as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abi::Capabilities;
use abi::constant::O_CREAT;
use capture::notify::Violation;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::{terminal, text_file};
use enforce::ListenerHelper;
use event::Event;
use policy::compile::MachineFeatures;
use policy::{EnforcerKind, Enforcers, Model};
use rules::AlertValue;
use rustix::fs::{Access, access};
use serde_json::{Value, json};

/// Makes a model and writes a policy from it, once.
#[derive(Debug)]
pub struct Learner {
    /// File of the policy.
    pub output: PathBuf,
    /// File of the model: all that was seen.
    pub model: Option<PathBuf>,
    /// The policy is written after this time, or when the command has ended.
    pub duration: Option<Duration>,
    /// Machine that the policy is for.
    pub machine: MachineFeatures,
    /// Enforcers that the policy names.
    pub enforcers: Enforcers,
    /// Whether the command may have capabilities, so that those that it uses are to be taken down.
    pub is_privileged: bool,
    /// Whether no warning is printed.
    pub quiet: bool,
    /// `None` once it was written.
    pub seen: Mutex<Option<Observations>>,
    /// Gets a byte when it was written: the agent, which writes it, is another process than the one that
    /// ends as the verb does.
    pub told: PipeWriter,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Observations {
    /// Behaviour of the command.
    pub model: Model,
    /// Who did something.
    processes: BTreeSet<u32>,
    /// What the kernel tells of capabilities that are used, where it does.
    needs: Option<ListenerHelper>,
}

/// With more processes than this their capabilities are looked up once more in between: numbers of
/// processes come again.
const MOST_PROCESSES: usize = 4096;

/// What policies of `learn` are for, if nothing else is asked for: what needs no privilege, and Caps.
pub const ENFORCERS: &str = "SeccompLandlockCaps";

/// As `enforcer:` of a policy has them.
pub fn enforcers(text: &str) -> Result<Enforcers, String> {
    Enforcers::parse(text).ok_or_else(|| {
        let names = EnforcerKind::ALL.map(EnforcerKind::name).join(", ");
        format!("it can be {names} in any combination, written one after another, or Auto")
    })
}

impl Learner {
    /// Begins to listen to what calls do not show, and looks at the time if there is a limit.
    pub fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        if self.is_privileged {
            self.listen();
        }
        let Some(duration) = self.duration else {
            return Ok(());
        };
        let learner = Arc::clone(self);
        let wait = move || {
            std::thread::sleep(duration);
            learner.end();
        };
        let named = std::thread::Builder::new().name("tollgate-learn".to_owned());
        // It ends with the process.
        named.spawn(wait).map(drop)
    }

    fn listen(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = seen.as_mut() else {
            return;
        };
        match ListenerHelper::listen() {
            Ok(needs) => seen.needs = Some(needs),
            Err(error) => {
                seen.model.had_capabilities = true;
                if !self.quiet {
                    terminal::complain(&format!(
                        "tollgate: which capabilities are used cannot be recorded here, so the policy \
                         leaves all: {error}\n"
                    ));
                }
            }
        }
    }

    /// Takes note of a call. `fields`: those of `violations::LEARNT`.
    pub fn learn(
        &self,
        event: &Event<'_>,
        violation: &Violation<'_>,
        fields: &[(Arc<str>, AlertValue)],
    ) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = seen.as_mut() else {
            return;
        };
        // Numbers of processes are positive.
        let pid = u32::try_from(event.process.pid.0).unwrap_or_default();
        seen.meet(pid);
        let model = &mut seen.model;
        model.note_call(violation.call, &violation.args);
        let call = violation.call.name();
        let field = |name: &str| {
            let (_, value) = fields.iter().find(|(known, _)| &**known == name)?;
            match value {
                AlertValue::Text(text) if text.starts_with('/') => Some(text.clone()),
                _ => None,
            }
        };
        let is_true = |name: &str| {
            let found = fields.iter().find(|(known, _)| &**known == name);
            found.is_some_and(|(_, value)| matches!(value, AlertValue::Bool(true)))
        };
        let paths = [
            "fd.name",
            "fs.path.name",
            "fs.path.source",
            "fs.path.target",
        ];
        let paths: Vec<String> = paths.iter().filter_map(|name| field(name)).collect();
        if call.starts_with("exec") {
            let given = event.params.iter().find_map(|param| match param {
                event::Param::Text(path) => Some(String::from_utf8_lossy(path).into_owned()),
                _ => None,
            });
            let all = given.iter().chain(&paths);
            for program in all.flat_map(|path| names(event, path)) {
                for interpreter in interpreters(&program) {
                    names(event, &interpreter)
                        .iter()
                        .for_each(|name| model.note_program(name));
                }
                model.note_program(&program);
            }
            return;
        }
        if CONTACTS.contains(&call) {
            let value = |name: &str| {
                let (_, value) = fields.iter().find(|(known, _)| &**known == name)?;
                match value {
                    AlertValue::Text(text) => Some(text.clone()),
                    AlertValue::Int(number) => Some(number.to_string()),
                    AlertValue::Uint(number) => Some(number.to_string()),
                    _ => None,
                }
            };
            let address = value("fd.rip").and_then(|text| text.parse::<IpAddr>().ok());
            let port = value("fd.rport").and_then(|text| text.parse().ok());
            match (address, port, value("fd.name")) {
                (Some(address), Some(port), _) => model.note_peer(address, port),
                (_, _, Some(name)) => {
                    // `ADDRESS->PATH` of a local socket.
                    let path = name.rsplit("->").next().unwrap_or(&name);
                    if path.starts_with('/') {
                        model.note_local_peer(path);
                    }
                }
                _ => {}
            }
            return;
        }
        let is_maker = MAKERS.contains(&call);
        let changes = is_true("evt.is_open_write") || is_maker || CHANGERS.contains(&call);
        for path in paths.iter().flat_map(|path| names(event, path)) {
            // A file that is there may be gone next time; a device will not.
            if is_maker || (creates(violation) && !is_special(&path)) {
                model.note_make(&path);
            }
            match changes {
                true => model.note_write(&path),
                false => model.note_read(&path),
            }
        }
    }

    /// Writes what was seen, and tells the front so.
    pub fn end(&self) {
        let seen = self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(seen) = seen else {
            return;
        };
        match self.write(seen.settled()) {
            // Nobody is left to be told if it fails.
            Ok(()) => drop((&self.told).write_all(b"w")),
            Err(failure) => terminal::complain(&failure.render()),
        }
    }

    fn write(&self, mut seen: Model) -> Result<(), Failure> {
        if let Some(path) = &self.model {
            write(path, &format!("{:#}\n", to_json(&seen)))?;
        }
        let enforcers = seen.bearable(self.enforcers);
        let name = self.output.file_stem().and_then(|stem| stem.to_str());
        let name = name.unwrap_or("learnt").to_lowercase();
        let enforcers = match seen.had_capabilities {
            // Rules about capabilities are left out, so nothing is left for Caps to do.
            true => enforcers
                .iter()
                .filter(|enforcer| *enforcer != EnforcerKind::Caps)
                .fold(Enforcers::default(), Enforcers::with),
            false => enforcers,
        };
        // An answer to a signal that comes while the policy is in force.
        seen.calls.insert("rt_sigreturn".to_owned());
        write(&self.output, &seen.policy(&name, enforcers, &self.machine))
    }
}

impl Observations {
    /// Adds to what `model` has from runs before.
    pub fn new(model: Model) -> Self {
        Self {
            model,
            ..Self::default()
        }
    }

    /// Takes note of who did something.
    fn meet(&mut self, pid: u32) {
        let is_first = self.processes.is_empty();
        if !self.processes.insert(pid) {
            return;
        }
        if let Some(needs) = self.needs.as_ref().filter(|_| is_first) {
            // What comes first is the execution of the command: until then the process was ours.
            self.model.had_capabilities |= needs.forget(pid).is_err();
        }
        if self.processes.len() > MOST_PROCESSES {
            self.settle();
            self.processes = BTreeSet::from([pid]);
        }
    }

    /// Takes down which capabilities these processes used.
    fn settle(&mut self) {
        let Some(needs) = &self.needs else {
            return;
        };
        for pid in &self.processes {
            match needs.of(*pid) {
                Ok(used) => self.model.capabilities.0 |= used.0,
                Err(error) => {
                    self.model.had_capabilities = true;
                    terminal::complain(&format!(
                        "tollgate: warning: cannot record which capabilities were used: {error}\n"
                    ));
                    return;
                }
            }
        }
    }

    fn settled(mut self) -> Model {
        self.settle();
        self.model
    }
}

/// Who interprets a script, by its first line, and the interpreter of that if it is a script, too.
fn interpreters(program: &str) -> Vec<String> {
    const DEPTH: usize = 4;
    let mut found = Vec::new();
    let mut next = program.to_owned();
    while found.len() < DEPTH {
        let mut head = [0; 256];
        // What cannot be read is no script that could be executed.
        let read = fs::File::open(&next).and_then(|mut file| file.read(&mut head));
        let line = head[..read.unwrap_or(0)]
            .split(|byte| *byte == b'\n')
            .next();
        let Some(rest) = line.and_then(|line| line.strip_prefix(b"#!")) else {
            break;
        };
        let text = String::from_utf8_lossy(rest).into_owned();
        let Some(interpreter) = text.split_whitespace().next() else {
            break;
        };
        found.push(interpreter.to_owned());
        next = interpreter.to_owned();
    }
    found
}

/// Whether there is something that is neither a file nor a folder.
fn is_special(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// Whether an open may make the file. The flags of openat2(2) are in memory: it may.
fn creates(violation: &Violation<'_>) -> bool {
    match violation.call.name() {
        "open" => violation.args[1] & O_CREAT.u64() != 0,
        "openat" => violation.args[2] & O_CREAT.u64() != 0,
        "openat2" => true,
        _ => false,
    }
}

/// Calls that make, remove or rename files.
const MAKERS: [&str; 16] = [
    "bind",
    "creat",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "symlink",
    "symlinkat",
    "unlink",
    "unlinkat",
];

/// Calls that are told whom to reach.
const CONTACTS: [&str; 4] = ["connect", "sendto", "sendmsg", "sendmmsg"];

/// Calls that change what is said of a file, or what is in it, beside those of [`MAKERS`].
const CHANGERS: [&str; 26] = [
    "acct",
    "chmod",
    "chown",
    "chown32",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fremovexattr",
    "fsetxattr",
    "futimesat",
    "lchown",
    "lremovexattr",
    "lsetxattr",
    "mount",
    "pivot_root",
    "removexattr",
    "setxattr",
    "swapoff",
    "swapon",
    "truncate",
    "umount2",
    "utime",
    "utimensat",
    "utimes",
];

/// A path as it was given, made absolute, and where it leads.
fn names(event: &Event<'_>, path: &str) -> Vec<String> {
    let own = format!("/proc/{}/cwd", event.process.pid.0);
    let absolute = match path.starts_with('/') {
        true => PathBuf::from(path),
        false => match fs::read_link(own) {
            Ok(folder) => folder.join(path),
            // It is gone, and so is what it would have executed.
            Err(_) => return Vec::new(),
        },
    };
    let real = fs::canonicalize(&absolute);
    let both = [Some(absolute), real.ok()];
    let text = |path: PathBuf| path.to_str().map(str::to_owned);
    both.into_iter().flatten().filter_map(text).collect()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    text_file::replace(path, text).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::new(Exit::BadInput, message).help("name a file in a folder that can be written")
}

/// Refuses a file that cannot be written, before the command has run in vain.
pub fn can_write(path: &Path) -> Result<(), Failure> {
    // What replaces it is written beside it.
    let beside = || -> std::io::Result<()> {
        let (_, folder) = text_file::resolve(path)?;
        Ok(access(&folder, Access::WRITE_OK | Access::EXEC_OK)?)
    };
    let can = match fs::metadata(path) {
        // A pipe or device is opened once: that may mean something to who reads from it.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => fs::OpenOptions::new()
            .append(true)
            .open(path)
            .and_then(|_| beside()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => beside(),
        Err(error) => Err(error),
    };
    can.map_err(|error| unwritable(path, &error))
}

/// Refuses one file for both: the policy would take the place of the model.
pub fn are_two(output: &Path, model: &Path) -> Result<(), Failure> {
    let real = |path| match text_file::resolve(path) {
        Ok((real, _)) => Ok(real),
        Err(error) => Err(unwritable(path, &error)),
    };
    if real(output)? != real(model)? {
        return Ok(());
    }
    let message = format!(
        "cannot write policy and model to one file, {}",
        output.display()
    );
    Err(Failure::new(Exit::BadInput, message).help("name another file with --model"))
}

/// Reads a model; without a file it is empty.
pub fn read(path: &Path) -> Result<Option<Model>, Failure> {
    let failure = |cause: String| {
        Failure::new(
            Exit::BadInput,
            format!("cannot use the model {}: {cause}", path.display()),
        )
        .help("name a file that `tollgate learn --model` wrote, or a new one")
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure(error.to_string())),
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| failure(error.to_string()))?;
    from_json(&value)
        .map(Some)
        .ok_or_else(|| failure("a key is missing or has the wrong type".to_owned()))
}

fn to_json(model: &Model) -> Value {
    json!({
        "calls": model.calls,
        "values": model.values,
        "violated": model.violated,
        "reads": model.reads,
        "writes": model.writes,
        "makes": model.makes,
        "programs": model.programs,
        "sockets": model.sockets,
        "peers": model.peers,
        "capabilities": model.capabilities.to_string(),
        "had_capabilities": model.had_capabilities,
    })
}

fn from_json(value: &Value) -> Option<Model> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let set = |key: &str| -> Option<BTreeSet<String>> {
        value[key].as_array()?.iter().map(text).collect()
    };
    let pairs = value["violated"].as_object()?.iter();
    let values = value["values"].as_object()?.iter();
    let numbers = |value: &Value| -> Option<BTreeSet<u64>> {
        value.as_array()?.iter().map(Value::as_u64).collect()
    };
    let sockets = value["sockets"].as_array()?.iter();
    let socket = |value: &Value| {
        let part = |at: usize| value.get(at)?.as_u64();
        Some((part(0)?, part(1)?, part(2)?))
    };
    Some(Model {
        calls: set("calls")?,
        values: values
            .map(|(call, values)| Some((call.clone(), numbers(values)?)))
            .collect::<Option<_>>()?,
        violated: pairs
            .map(|(rule, call)| Some((rule.clone(), text(call)?)))
            .collect::<Option<_>>()?,
        reads: set("reads")?,
        writes: set("writes")?,
        makes: set("makes")?,
        programs: set("programs")?,
        sockets: sockets.map(socket).collect::<Option<_>>()?,
        peers: set("peers")?,
        capabilities: Capabilities::parse(value["capabilities"].as_str()?).ok()?,
        had_capabilities: value["had_capabilities"].as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_survives_its_file() {
        let mut model = Model::default();
        model.note_call(abi::Syscall::MOUNT, &[0; 6]);
        model.note_call(abi::Syscall::SOCKET, &[2, 1, 6, 0, 0, 0]);
        model.note_call(abi::Syscall::PRCTL, &[15, 0, 0, 0, 0, 0]);
        model.note_read("/etc/hosts");
        model.note_make("/srv/new");
        model.note_peer("127.0.0.1".parse().unwrap(), 80);
        model.capabilities = Capabilities(1 << 10);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.json");
        assert!(read(&path).unwrap().is_none());
        write(&path, &to_json(&model).to_string()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(model));
        write(&path, "{\"calls\": 1}").unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn files_that_cannot_be_written_are_known_and_others_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (there, new) = (dir.path().join("there"), dir.path().join("new"));
        fs::write(&there, "kept").unwrap();
        assert!(can_write(&there).is_ok() && can_write(&new).is_ok());
        assert!(can_write(Path::new("/dev/null")).is_ok());
        assert_eq!(fs::read_to_string(&there).unwrap(), "kept");
        assert!(!new.exists());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&there, &link).unwrap();
        assert!(are_two(&there, &new).is_ok());
        let here = dir.path().join(".");
        for (one, same) in [(&there, &link), (&new, &here.join("new"))] {
            assert!(are_two(one, same).is_err(), "{}", same.display());
        }
        for path in [dir.path(), &dir.path().join("no/p"), &there.join("p")] {
            assert!(can_write(path).is_err(), "{}", path.display());
        }
    }
}
