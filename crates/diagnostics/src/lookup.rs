//! Lookup of the program to run, as a shell does it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use yaml::closest;

use crate::exit::Exit;
use crate::failure::Failure;

/// Search path if `PATH` is not set, as in `execvp(3)`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Returns the path of the running program.
///
/// # Errors
///
/// [`Exit::Internal`] if `/proc` is not mounted.
pub fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("cannot find the running program: {error}"),
        )
        .help("mount /proc")
    })
}

/// Resolves `command` to the file to execute, by the search path `path` (default: `/bin:/usr/bin`).
///
/// # Errors
///
/// [`Exit::NotFound`] if no such file exists, [`Exit::NotExecutable`] if it cannot be executed.
pub fn resolve(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    if command.is_empty() {
        return Err(
            Failure::new(Exit::NotFound, "cannot run '': the command is empty")
                .help("name a program after `--`"),
        );
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return match check(&file) {
            Ok(()) => Ok(file),
            Err(why) => Err(why.failure(&file)),
        };
    }
    search(command, path.unwrap_or(OsStr::new(DEFAULT_PATH)))
}

/// Returns true if `command` is a text file without a `#!` line, which a shell would interpret itself.
pub fn lacks_interpreter(command: &str) -> bool {
    let path = std::env::var_os("PATH");
    let Ok(file) = resolve(OsStr::new(command), path.as_deref()) else {
        return false;
    };
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(512).read_to_end(&mut start));
    read.is_ok() && !start.starts_with(b"#!") && !start.contains(&0)
}

/// Reason why a file cannot be executed.
#[derive(Debug)]
enum Obstacle {
    Missing,
    Directory,
    NotPermitted,
    Special,
    BadInterpreter(PathBuf),
    Unreachable(std::io::Error),
}

impl Obstacle {
    fn failure(self, file: &Path) -> Failure {
        let name = file.display();
        let fail = |exit, cause: &str| Failure::new(exit, format!("cannot run {name}: {cause}"));
        match self {
            Obstacle::Missing => fail(Exit::NotFound, "no such file")
                .help("check the path; a relative one starts at the working directory"),
            Obstacle::Directory => fail(Exit::NotExecutable, "it is a directory")
                .help("name a program inside it"),
            Obstacle::NotPermitted => fail(Exit::NotExecutable, "permission denied")
                .help(format!("make it executable with `chmod +x {name}`, or run it with its interpreter, as in `sh {name}`")),
            Obstacle::Special => fail(Exit::NotExecutable, "it is not a regular file")
                .help("name a program file"),
            Obstacle::BadInterpreter(interpreter) => fail(
                Exit::NotExecutable,
                &format!("its first line names the interpreter {}, which does not exist", interpreter.display()),
            )
            .help("install that interpreter or correct the first line of the script"),
            Obstacle::Unreachable(error) => fail(Exit::NotExecutable, &error.to_string())
                .help("check the permissions of the directories above it"),
        }
    }
}

fn search(command: &OsStr, path: &OsStr) -> Result<PathBuf, Failure> {
    let mut obstacle = None;
    for file in directories(path).map(|directory| directory.join(command)) {
        match check(&file) {
            Ok(()) => return Ok(file),
            // Like a shell, continue the search; the obstacle is reported only if nothing else is
            // found.
            Err(Obstacle::Missing | Obstacle::Unreachable(_)) => {}
            Err(why) => {
                obstacle.get_or_insert((why, file));
            }
        }
    }
    if let Some((why, file)) = obstacle {
        return Err(why.failure(&file));
    }
    let name = command.to_string_lossy();
    let failure = Failure::new(
        Exit::NotFound,
        format!("cannot run {name}: command not found"),
    );
    Err(match similar(&name, path) {
        Some(similar) => failure.help(format!("did you mean `{similar}`?")),
        None => failure.help("install it, or name it by its path, as in `./NAME`"),
    })
}

/// Returns the directories of a search path. An empty entry is the working directory.
fn directories(path: &OsStr) -> impl Iterator<Item = PathBuf> {
    path.as_bytes()
        .split(|byte| *byte == b':')
        .map(|directory| {
            let directory = if directory.is_empty() {
                b"."
            } else {
                directory
            };
            PathBuf::from(OsString::from_vec(directory.to_vec()))
        })
}

fn check(file: &Path) -> Result<(), Obstacle> {
    let metadata = fs::metadata(file).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Obstacle::Missing,
        _ => Obstacle::Unreachable(error),
    })?;
    if metadata.is_dir() {
        return Err(Obstacle::Directory);
    }
    if !metadata.is_file() {
        return Err(Obstacle::Special);
    }
    // The effective ids count, as in execve(2).
    if accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Err(Obstacle::NotPermitted);
    }
    match interpreter(file) {
        Some(interpreter) if !interpreter.exists() => Err(Obstacle::BadInterpreter(interpreter)),
        _ => Ok(()),
    }
}

/// Number of bytes in which the kernel looks for `#!` (`BINPRM_BUF_SIZE`, Linux 5.1).
const SCRIPT_HEAD: u64 = 256;

/// Returns the interpreter in a script's first line; `None` if the file is no script or cannot be
/// read, which execution does not require.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(file)
        .ok()?
        .take(SCRIPT_HEAD)
        .read_to_end(&mut head)
        .ok()?;
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let word = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// Returns a program on the search path with a similar name.
fn similar(name: &str, path: &OsStr) -> Option<String> {
    let mut names = Vec::new();
    for directory in directories(path) {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        names.extend(entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            check(&entry.path()).is_ok().then_some(name)
        }));
    }
    names.sort();
    closest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.file("a/list-things", 0o755, "#!/bin/sh\n");
            tree.file("a/plain", 0o644, "");
            tree.file("b/plain", 0o755, "");
            tree.file("b/only-plain", 0o644, "");
            tree.file("b/orphan", 0o755, "#! /no/such/shell -e\n");
            fs::create_dir_all(tree.0.path().join("a/folder")).unwrap();
            tree
        }

        fn file(&self, name: &str, mode: u32, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn resolve(&self, command: &str) -> Result<PathBuf, (Exit, String)> {
            let root = self.0.path().display();
            let path = format!("{root}/none:{root}/a:{root}/b");
            resolve(
                OsStr::new(&command.replace('@', &root.to_string())),
                Some(OsStr::new(&path)),
            )
            .map(|found| found.strip_prefix(self.0.path()).unwrap().to_owned())
            .map_err(|failure| {
                (
                    failure.exit,
                    failure.render().replace(&root.to_string(), "@"),
                )
            })
        }
    }

    #[test]
    fn the_first_executable_on_the_path_wins() {
        let tree = Tree::new();
        assert_eq!(
            tree.resolve("list-things").unwrap(),
            Path::new("a/list-things")
        );
        assert_eq!(tree.resolve("plain").unwrap(), Path::new("b/plain"));
        assert_eq!(
            tree.resolve("@/a/list-things").unwrap(),
            Path::new("a/list-things")
        );
    }

    #[test]
    fn what_is_not_there_is_127_with_a_suggestion() {
        let tree = Tree::new();
        let (exit, text) = tree.resolve("list-tings").unwrap_err();
        assert_eq!(exit, Exit::NotFound);
        assert_eq!(
            text,
            "tollgate: cannot run list-tings: command not found\n\
             help: did you mean `list-things`?\n"
        );
        for missing in ["", "@/a/none", "@/a/plain/x", "zzzzzzzz"] {
            assert_eq!(
                tree.resolve(missing).unwrap_err().0,
                Exit::NotFound,
                "{missing}"
            );
        }
    }

    #[test]
    fn what_cannot_be_executed_is_126_and_says_why() {
        let tree = Tree::new();
        for (command, why) in [
            ("only-plain", "permission denied"),
            ("@/a/plain", "permission denied"),
            ("@/a/folder", "it is a directory"),
            ("folder", "it is a directory"),
            ("/dev/null", "it is not a regular file"),
            (
                "orphan",
                "names the interpreter /no/such/shell, which does not exist",
            ),
        ] {
            let (exit, text) = tree.resolve(command).unwrap_err();
            assert_eq!(exit, Exit::NotExecutable, "{command}: {text}");
            assert!(text.contains(why), "{command}: {text}");
            assert!(text.contains("\nhelp: "), "{command}: {text}");
        }
    }

    #[test]
    fn an_unset_path_finds_the_shell() {
        assert!(resolve(OsStr::new("sh"), None).unwrap().ends_with("sh"));
    }
}
