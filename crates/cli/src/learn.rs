//! Recording what a workload does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capture::notify::Violation;
use event::Event;
use policy::compile::Machine;
use policy::{Enforcer, Enforcers, Model};
use rules::AlertValue;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal;

/// Makes a model and writes a policy from it, once.
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) output: PathBuf,
    pub(crate) model: Option<PathBuf>,
    pub(crate) duration: Option<Duration>,
    pub(crate) machine: Machine,
    /// `None` once it was written.
    pub(crate) seen: Mutex<Option<Model>>,
}

/// What policies of `learn` are for.
pub(crate) fn enforcers() -> Enforcers {
    let all = [Enforcer::Seccomp, Enforcer::Landlock, Enforcer::Caps];
    all.into_iter().fold(Enforcers::default(), Enforcers::with)
}

impl Learner {
    /// Looks at the time, if there is a limit.
    pub(crate) fn begin(self: &Arc<Self>) -> std::io::Result<()> {
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

    /// Takes note of a call. `fields`: those of `violations::LEARNT`.
    pub(crate) fn learn(
        &self,
        event: &Event<'_>,
        violation: &Violation<'_>,
        fields: &[(Arc<str>, AlertValue)],
    ) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(model) = seen.as_mut() else {
            return;
        };
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
            for program in given
                .iter()
                .chain(&paths)
                .flat_map(|path| names(event, path))
            {
                model.programs.insert(program);
            }
            return;
        }
        let changes = is_true("evt.is_open_write") || !READERS.contains(&call);
        for path in paths.iter().flat_map(|path| names(event, path)) {
            match changes {
                true => model.writes.insert(path),
                false => model.reads.insert(path),
            };
        }
    }

    /// Writes what was seen. What goes wrong is said: the command has run.
    pub(crate) fn end(&self) {
        let seen = self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(seen) = seen else {
            return;
        };
        if let Err(failure) = self.write(seen) {
            terminal::complain(&failure.render());
        }
    }

    fn write(&self, mut seen: Model) -> Result<(), Failure> {
        if let Some(path) = &self.model {
            write(path, &format!("{:#}\n", to_json(&seen)))?;
        }
        let enforcers = seen.bearable(enforcers());
        let name = self.output.file_stem().and_then(|stem| stem.to_str());
        let name = name.unwrap_or("learnt").to_lowercase();
        let enforcers = match seen.had_capabilities {
            // Rules about capabilities are left out, so nothing is left for Caps to do.
            true => enforcers
                .iter()
                .filter(|enforcer| *enforcer != Enforcer::Caps)
                .fold(Enforcers::default(), Enforcers::with),
            false => enforcers,
        };
        // An answer to a signal that comes while the policy is in force.
        seen.calls.insert("rt_sigreturn".to_owned());
        write(&self.output, &seen.policy(&name, enforcers, &self.machine))
    }
}

/// Calls about a path that change nothing.
const READERS: [&str; 24] = [
    "open",
    "openat",
    "openat2",
    "stat",
    "lstat",
    "stat64",
    "lstat64",
    "newfstatat",
    "fstatat64",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "chdir",
    "getdents",
    "getdents64",
    "statfs",
    "getxattr",
    "lgetxattr",
    "listxattr",
    "inotify_add_watch",
    "name_to_handle_at",
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
    fs::write(path, text).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(Exit::BadInput, message).help("name a file in a folder that can be written")
    })
}

/// Reads a model; without a file it is empty.
pub(crate) fn read(path: &Path) -> Result<Option<Model>, Failure> {
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
        "violated": model.violated,
        "reads": model.reads,
        "writes": model.writes,
        "programs": model.programs,
        "had_capabilities": model.had_capabilities,
    })
}

fn from_json(value: &Value) -> Option<Model> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let set = |key: &str| -> Option<BTreeSet<String>> {
        value[key].as_array()?.iter().map(text).collect()
    };
    let pairs = value["violated"].as_object()?.iter();
    Some(Model {
        calls: set("calls")?,
        violated: pairs
            .map(|(rule, call)| Some((rule.clone(), text(call)?)))
            .collect::<Option<_>>()?,
        reads: set("reads")?,
        writes: set("writes")?,
        programs: set("programs")?,
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
        model.reads.insert("/etc/hosts".to_owned());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.json");
        assert!(read(&path).unwrap().is_none());
        write(&path, &to_json(&model).to_string()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(model));
        write(&path, "{\"calls\": 1}").unwrap();
        assert!(read(&path).is_err());
    }
}
