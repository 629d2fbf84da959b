//! Resources of an action.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use workload::Error;

use super::passwd::User;
use super::{Scratch, Stop};

/// The environment of one action in one process.
#[derive(Debug)]
pub struct ActionEnvironment {
    folder: PathBuf,
    journal: Option<File>,
    program: PathBuf,
    /// Arguments of this program to play another part of this action.
    arguments: Vec<String>,
    spawned: bool,
    has_layers: bool,
    count: Cell<u64>,
}

/// A path that is removed when this is dropped, or by the janitor after a kill.
#[derive(Debug)]
pub(crate) struct ClaimedPath(PathBuf);

impl ActionEnvironment {
    pub(super) fn new(
        scratch: &Scratch,
        program: &Path,
        arguments: Vec<String>,
        spawned: Option<&Path>,
    ) -> Result<Self, Error> {
        Ok(Self {
            // A part may run as another user, who can write only where the action could.
            folder: Scratch::folder_in(spawned.unwrap_or(scratch.path()))?,
            journal: scratch.journal().ok(),
            program: program.into(),
            arguments,
            spawned: spawned.is_some(),
            has_layers: false,
            count: Cell::new(0),
        })
    }

    pub(super) fn with_layers(self, has_layers: bool) -> Self {
        Self { has_layers, ..self }
    }

    /// Changes the owner of the action's folder.
    pub(super) fn give_to(&self, user: User) -> Result<(), Error> {
        rustix::fs::chown(
            &self.folder,
            Some(rustix::fs::Uid::from_raw(user.uid)),
            Some(rustix::fs::Gid::from_raw(user.gid)),
        )
        .map_err(Error::file("give away", &self.folder))
    }

    /// Returns true if system folders are overlays of this process's own.
    pub(crate) fn has_layers(&self) -> bool {
        self.has_layers
    }

    /// Returns true if the action started this process under another name.
    pub(crate) fn is_spawned(&self) -> bool {
        self.spawned
    }

    /// Returns the path of a file in the action's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the action's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a unique name.
    pub(crate) fn unique(&self) -> String {
        let count = self.count.get();
        self.count.set(count + 1);
        let parent = self
            .folder
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        format!("tollgate-{}-{parent}-{count}", std::process::id())
    }

    /// Claims a new path in a folder of the host, which the action then makes.
    pub(crate) fn claim_in(&self, folder: impl AsRef<Path>) -> Result<ClaimedPath, Stop> {
        self.claim(folder.as_ref().join(self.unique()))
    }

    /// Claims a path that the action then makes. Records it in the journal first, for cleanup after a kill.
    pub(crate) fn claim(&self, path: PathBuf) -> Result<ClaimedPath, Stop> {
        if self.has_layers {
            // The path vanishes with this process.
            return Ok(ClaimedPath(path));
        }
        let Some(mut journal) = self.journal.as_ref() else {
            return Err(Stop::Skipped(
                "needs the user that started the generator".to_owned(),
            ));
        };
        // One write, so that lines of several threads do not mix.
        journal
            .write_all(format!("{}\n", path.display()).as_bytes())
            .map_err(Error::file("write the journal of", &self.folder))?;
        Ok(ClaimedPath(path))
    }

    /// Returns a command of the host, with empty input and no output.
    pub(crate) fn command(&self, program: &str) -> Result<Command, Stop> {
        let path = in_path(program)
            .ok_or_else(|| Stop::Skipped(format!("needs the program `{program}`")))?;
        Ok(quiet(Command::new(path)))
    }

    /// Returns a program that does nothing and succeeds, whatever its arguments, under another name: for rules
    /// about the start of a program with certain arguments.
    pub(crate) fn pose(&self, name: &str) -> Result<Command, Stop> {
        let nothing = in_path("true")
            // A multi-call binary selects its function by the name it is called.
            .filter(|path| fs::canonicalize(path).is_ok_and(|real| real.ends_with("true")))
            .ok_or_else(|| Stop::Skipped("needs the program `true`".to_owned()))?;
        Ok(quiet(Command::new(self.link(&nothing, name)?)))
    }

    /// Plays another action, or the second part of this one, in a process of another name.
    pub(crate) fn spawn_as(&self, name: &str, action: &str) -> Result<(), Stop> {
        self.run(self.part(name, action)?)
    }

    /// Returns the command of [`spawn_as`](Self::spawn_as), to add more arguments.
    pub(crate) fn part(&self, name: &str, action: &str) -> Result<Command, Stop> {
        let mut command = quiet(Command::new(self.link(&self.program, name)?));
        command
            .args(["generate", "perform", action, "--spawned"])
            .arg(&self.folder)
            .args(&self.arguments);
        Ok(command)
    }

    fn link(&self, target: &Path, name: &str) -> Result<PathBuf, Stop> {
        let link = self.folder.join(name);
        match symlink(target, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::file("make", &link)(error).into())
            }
            _ => Ok(link),
        }
    }

    /// Runs a command, which must succeed.
    pub(crate) fn run(&self, mut command: Command) -> Result<(), Stop> {
        let output = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output();
        let program = Path::new(command.get_program()).to_path_buf();
        let output = output.map_err(Error::file("run", &program))?;
        if output.status.success() {
            return Ok(());
        }
        // A part of ours prints its outcome.
        if let Some(line) = output.stdout.split(|byte| *byte == b'\n').next()
            && let Ok(outcome) = serde_json::from_slice::<super::Outcome>(line)
            && let super::Outcome::Skipped { reason } = outcome
        {
            return Err(Stop::Skipped(reason));
        }
        let mut said = String::new();
        for text in [&output.stderr, &output.stdout] {
            let _ = write!(said, " {}", String::from_utf8_lossy(text).trim());
        }
        Err(Error::Program {
            program,
            status: output.status,
            said: said.trim().to_owned(),
        }
        .into())
    }

    /// Waits for `time`.
    pub(crate) fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl ClaimedPath {
    /// Creates a path to remove that this process made under a name that it did not choose, and that no journal
    /// may hold.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ClaimedPath {
    fn drop(&mut self) {
        // A path that remains is in the journal.
        let _ = match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&self.0),
            Ok(_) => fs::remove_file(&self.0),
            Err(gone) => Err(gone),
        };
    }
}

fn quiet(mut command: Command) -> Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Returns the file that a shell would run. Also searches the folders of administration programs.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| Path::new(folder).join(program))
        .find(|file| {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(file)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}
