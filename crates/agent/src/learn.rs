//! Records the behaviour of a workload, to generate a policy.

mod paths;

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

use self::paths::{SHARED_FOLDERS, is_name, names, without_temporary};
use crate::policy_files::partial_rules;

/// Builds a model and writes a policy from it, once.
#[derive(Debug)]
pub struct Learner {
    /// Path of the policy.
    pub output: PathBuf,
    /// Path of the model, which contains everything that was recorded.
    pub model: Option<PathBuf>,
    /// Time after which the policy is written, unless the command ends earlier.
    pub duration: Option<Duration>,
    /// Features of the machine that the policy is for.
    pub machine: MachineFeatures,
    /// Enforcers that the policy names.
    pub enforcers: Enforcers,
    /// The command may have capabilities, so that those it uses are recorded.
    pub is_privileged: bool,
    /// Print no warnings.
    pub quiet: bool,
    /// `None` once the policy is written.
    pub seen: Mutex<Option<Observations>>,
    /// Behaviour in earlier runs; `None` if this is the first.
    pub earlier: Option<Model>,
    /// Receives a byte when the policy is written: the agent, which writes it, is a different
    /// process from the one whose exit ends the command.
    pub ready: PipeWriter,
}

/// The recorded behaviour.
#[derive(Debug, Default)]
pub struct Observations {
    /// Behaviour of the command.
    pub model: Model,
    /// Processes that did something.
    processes: BTreeSet<u32>,
    /// Folders that the command made directly in one for temporary files.
    temporary: BTreeSet<String>,
    /// Kernel events about used capabilities, where available.
    needs: Option<ListenerHelper>,
}

/// Number of processes above which their capabilities are read in between, because pids are reused.
const MOST_PROCESSES: usize = 4096;

/// Default enforcers of a learned policy: those that need no privilege, and Caps.
pub const ENFORCERS: &str = "SeccompLandlockCaps";

/// Parses `enforcer:` of a policy.
pub fn enforcers(text: &str) -> Result<Enforcers, String> {
    Enforcers::parse(text).ok_or_else(|| {
        let names = EnforcerKind::ALL.map(EnforcerKind::name).join(", ");
        format!("it can be {names} in any combination, written one after another, or Auto")
    })
}

impl Learner {
    /// Starts recording what calls do not show, and the time limit if there is one.
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
        // The thread ends with the process.
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

    /// Records a call. `fields` are the values of `violations::LEARNT`.
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
        // Pids are positive.
        let pid = u32::try_from(event.process.pid.0).unwrap_or_default();
        seen.meet(pid);
        let (model, temporary) = (&mut seen.model, &mut seen.temporary);
        model.note_call(violation.call, &violation.args);
        let call = violation.call.name();
        // `fs.path` is known only after a call has succeeded, the arguments of calls that make, move and remove
        // names before.
        let paths = match MAKERS.contains(&call) {
            true => &PATHS[..],
            false => &PATHS[..4],
        };
        let paths: Vec<String> = paths
            .iter()
            .filter_map(|name| text_of(fields, name).filter(|text| is_name(text)))
            .collect();
        if call.starts_with("exec") {
            note_exec(model, event, &paths);
        } else if CONTACTS.contains(&call) {
            note_contact(model, fields);
        } else {
            let is_open_write = matches!(
                value(fields, "evt.is_open_write"),
                Some(AlertValue::Bool(true))
            );
            let is_folder = ["mkdir", "mkdirat"].contains(&call);
            let paths = match is_folder {
                true => without_temporary(paths, temporary),
                false => paths,
            };
            note_files(model, event, violation, &paths, is_open_write);
        }
    }

    /// Writes policy and model, and notifies the front.
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
            // A failure means that no process is left to notify.
            Ok(()) => drop((&self.ready).write_all(b"w")),
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
            // Rules about capabilities are omitted, so Caps would have no effect.
            true => enforcers
                .iter()
                .filter(|enforcer| *enforcer != EnforcerKind::Caps)
                .fold(Enforcers::default(), Enforcers::with),
            false => enforcers,
        };
        // Needed to return from a signal handler while the policy is in force.
        seen.calls.insert("rt_sigreturn".to_owned());
        let policy = |accepted| seen.policy(&name, enforcers, &self.machine, accepted);
        let none = BTreeSet::new();
        let accepted = partial_rules(&name, &policy(&none));
        write(&self.output, &policy(&accepted))?;
        if !self.quiet {
            let path = self.output.display();
            terminal::complain(&format!(
                "tollgate: wrote {path}; apply it: tollgate enforce --policy {path} -- CMD\n{}{}",
                self.completeness(&seen),
                whole_folders(&seen)
            ));
        }
        Ok(())
    }
}

impl Learner {
    /// Says how complete the recording is, as far as a comparison of runs shows.
    fn completeness(&self, seen: &Model) -> String {
        let Some(earlier) = &self.earlier else {
            return "tollgate: what this run did not do is denied; record others with other input (--runs N, or \
                    --model FILE) until nothing is new\n"
                .to_owned();
        };
        match &seen.news(earlier)[..] {
            [] => "tollgate: this run did nothing that earlier runs had not done\n".to_owned(),
            news => format!(
                "tollgate: new in this run: {}; record more runs until nothing is new\n",
                news.join(", ")
            ),
        }
    }
}

/// Says which shared folders the policy allows as a whole, and how to avoid it.
fn whole_folders(seen: &Model) -> String {
    let whole = SHARED_FOLDERS.iter().copied();
    let whole: Vec<&str> = whole
        .filter(|folder| seen.makes.contains(*folder))
        .collect();
    let proc = match seen.reads_all_of_proc() {
        true => {
            "tollgate: the policy lets CMD read all of /proc, because it read files of processes there that tollgate does \
                 not open for it\n"
        }
        false => "",
    };
    match &whole[..] {
        [] => proc.to_owned(),
        whole => format!(
            "tollgate: the policy allows all of {}, because CMD makes files there whose names may change; give it a folder \
             of its own (TMPDIR) and learn again\n{proc}",
            whole.join(", ")
        ),
    }
}

impl Observations {
    /// Creates a recording that extends the model of earlier runs.
    pub fn new(model: Model) -> Self {
        Self {
            model,
            ..Self::default()
        }
    }

    /// Records a process.
    fn meet(&mut self, pid: u32) {
        let is_first = self.processes.is_empty();
        if !self.processes.insert(pid) {
            return;
        }
        if let Some(needs) = self.needs.as_ref().filter(|_| is_first) {
            // The first event is the exec of the command: until then the process was ours.
            self.model.had_capabilities |= needs.forget(pid).is_err();
        }
        if self.processes.len() > MOST_PROCESSES {
            self.settle();
            self.processes = BTreeSet::from([pid]);
        }
    }

    /// Records the capabilities that the known processes have used.
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
        for folder in &self.temporary {
            // A folder that is there when the command has ended is there in the next run: it alone is needed.
            let is_kept = fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir());
            let made = match is_kept {
                true => format!("{folder}/."),
                false => folder.clone(),
            };
            self.model.note_make(&made);
            self.model.note_write(folder);
        }
        self.model
    }
}

/// Returns the interpreters of a script, recursively, from its first line.
fn interpreters(program: &str) -> Vec<String> {
    const DEPTH: usize = 4;
    let mut found = Vec::new();
    let mut next = program.to_owned();
    while found.len() < DEPTH {
        let mut head = [0; 256];
        // A file that cannot be read is not an executable script.
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

/// Returns true for a path that exists and is neither a file nor a directory.
fn is_special(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

type Fields = [(Arc<str>, AlertValue)];

fn value<'f>(fields: &'f Fields, name: &str) -> Option<&'f AlertValue> {
    let (_, value) = fields.iter().find(|(known, _)| &**known == name)?;
    Some(value)
}

fn text_of(fields: &Fields, name: &str) -> Option<String> {
    match value(fields, name)? {
        AlertValue::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Records the program of an exec, under all its names, and its interpreters.
fn note_exec(model: &mut Model, event: &Event<'_>, paths: &[String]) {
    let given = event.params.iter().find_map(|param| match param {
        event::Param::Text(path) => Some(String::from_utf8_lossy(path).into_owned()),
        _ => None,
    });
    let all = given.iter().chain(paths);
    for program in all.flat_map(|path| names(event, path)) {
        for interpreter in interpreters(&program) {
            names(event, &interpreter)
                .iter()
                .for_each(|name| model.note_program(name));
        }
        model.note_program(&program);
    }
}

/// Records the peer of a connection or message.
fn note_contact(model: &mut Model, fields: &Fields) {
    let port = match value(fields, "fd.rport") {
        Some(AlertValue::Text(text)) => text.parse().ok(),
        Some(AlertValue::Int(number)) => u16::try_from(*number).ok(),
        Some(AlertValue::Uint(number)) => u16::try_from(*number).ok(),
        _ => None,
    };
    let address = text_of(fields, "fd.rip").and_then(|text| text.parse::<IpAddr>().ok());
    match (address, port, text_of(fields, "fd.name")) {
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
}

/// Records the files of a call, as read, written or made.
fn note_files(
    model: &mut Model,
    event: &Event<'_>,
    violation: &Violation<'_>,
    paths: &[String],
    is_open_write: bool,
) {
    let call = violation.call.name();
    let is_maker = MAKERS.contains(&call);
    let changes = is_open_write || is_maker || CHANGERS.contains(&call);
    for path in paths.iter().flat_map(|path| names(event, path)) {
        // A file that exists now may be missing in the next run; a device will not.
        let may_make = is_maker || (creates(violation) && !is_special(&path));
        if may_make && !path.starts_with("/proc/") {
            model.note_make(&path);
        }
        match (changes, LOOKERS.contains(&call)) {
            (true, _) => model.note_write(&path),
            (false, true) => model.note_look(&path),
            (false, false) => model.note_read(&path),
        }
    }
}

/// Returns true if an open may create the file. It is assumed for openat2(2), whose flags are in
/// memory.
fn creates(violation: &Violation<'_>) -> bool {
    match violation.call.name() {
        "open" => violation.args[1] & O_CREAT.u64() != 0,
        "openat" => violation.args[2] & O_CREAT.u64() != 0,
        "openat2" => true,
        _ => false,
    }
}

/// Calls that create, remove or rename files.
pub(super) const MAKERS: [&str; 16] = [
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

/// Calls that ask about a file and do not open it.
pub(super) const LOOKERS: [&str; 11] = [
    "access",
    "faccessat",
    "faccessat2",
    "getxattr",
    "lstat",
    "newfstatat",
    "readlink",
    "readlinkat",
    "stat",
    "statfs",
    "statx",
];

/// Fields with paths, of which violations are recorded; the last five are arguments.
pub(super) const PATHS: [&str; 9] = [
    "fd.name",
    "fs.path.name",
    "fs.path.source",
    "fs.path.target",
    "evt.arg.path",
    "evt.arg.name",
    "evt.arg.oldpath",
    "evt.arg.newpath",
    "evt.arg.linkpath",
];

/// Calls with a destination address.
pub(super) const CONTACTS: [&str; 4] = ["connect", "sendto", "sendmsg", "sendmmsg"];

/// Calls that change a file's content or metadata, besides those of [`MAKERS`].
pub(super) const CHANGERS: [&str; 26] = [
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

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    text_file::replace(path, text).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::new(Exit::BadInput, message).help("name a file in a folder that can be written")
}

/// Checks that a file is writable, before the command runs in vain.
pub fn can_write(path: &Path) -> Result<(), Failure> {
    // The replacement is written to the same directory.
    let beside = || -> std::io::Result<()> {
        let (_, folder) = text_file::resolve(path)?;
        Ok(access(&folder, Access::WRITE_OK | Access::EXEC_OK)?)
    };
    let can = match fs::metadata(path) {
        // A pipe or device is opened once, because opening may have a meaning for its reader.
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

/// Checks that policy and model are different files; otherwise the policy would replace the model.
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

/// Reads a model; a missing file is an empty model.
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
