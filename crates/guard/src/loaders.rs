//! What the kernel executes with a program: a list of programs that lacks it allows none of them.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::places::resolved;

/// Number of interpreters of interpreters that the kernel follows, and the loader of the last.
const CHAIN: usize = 6;

/// Returns what is executed with what an option names. For a program: its interpreters and its loader. For a folder: the
/// loaders of `/bin/sh` and of this program, because those of all that is in it would be a search.
///
/// # Errors
///
/// A program or one of its interpreters is missing or cannot be read.
pub(super) fn with(named: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !named.is_dir() {
        return of(named);
    }
    let own = std::env::current_exe().ok();
    let usual = own.into_iter().chain([resolved(Path::new("/bin/sh"))]);
    // A machine without a shell has no loader for it, and the denial of another one is reported with its option.
    Ok(usual
        .flat_map(|path| of(&path).unwrap_or_default())
        .collect())
}

fn of(program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found: Vec<PathBuf> = Vec::new();
    while found.len() < CHAIN {
        let next = found.last().map_or(program, PathBuf::as_path);
        match interpreter(next) {
            Ok(Some(path)) => found.push(path),
            Ok(None) => break,
            Err(error) => return Err(unread(program, next, &error)),
        }
    }
    Ok(found)
}

fn interpreter(program: &Path) -> Result<Option<PathBuf>, Error> {
    // A pipe would block, and is no program.
    if !program.metadata()?.is_file() {
        return Err(Error::from(ErrorKind::InvalidInput));
    }
    let file = File::open(program)?;
    let read = |offset, size| sys::file::read_up_to(&file, offset, size);
    let path = policy::executable::interpreter(read)?;
    let path = path.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)));
    path.map(|path| Ok(resolved(&std::path::absolute(path)?)))
        .transpose()
}

fn unread(program: &Path, file: &Path, error: &Error) -> Failure {
    let cause = match error.kind() {
        ErrorKind::InvalidInput => "it is no file".to_owned(),
        _ => error.to_string(),
    };
    let whose = match program == file {
        true => String::new(),
        false => format!(", which {} is executed with", program.display()),
    };
    let message = format!(
        "cannot use --allow-exec: cannot read {}{whose}: {cause}",
        file.display()
    );
    let help = match error.kind() {
        ErrorKind::PermissionDenied => "name the folder that it is in",
        _ => "name a program that is there by its path",
    };
    Failure::new(Exit::BadInput, message).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::options::BoxOptions;

    fn layout(allow_exec: &Path) -> Result<Layout, Failure> {
        let options = BoxOptions {
            allow_exec: vec![allow_exec.to_owned()],
            ..BoxOptions::default()
        };
        Layout::of(&options, None)
    }

    #[test]
    fn a_program_may_be_executed_with_its_interpreter_and_loader() {
        let own = resolved(Path::new("/proc/self/exe"));
        let loaders = of(&own).expect("it can be read");
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("it exists");
        let (first, second) = (folder.join("first"), folder.join("second"));
        std::fs::write(&first, format!("#!{} x\n", second.display())).expect("written");
        std::fs::write(&second, format!("#! {}\n", own.display())).expect("written");
        let layout = layout(&first).expect("a box");
        for path in [&first, &second, &own].into_iter().chain(&loaders) {
            assert!(layout.allows(path, 'x'), "{}", path.display());
            assert!(layout.allows(path, 'r'), "{}", path.display());
        }
        assert!(layout.lists_programs());
        assert!(!layout.allows(&folder.join("third"), 'x'));
        assert!(!layout.allows(Path::new("/usr/bin/env"), 'x'));
    }

    #[test]
    fn a_folder_of_programs_has_the_loader_of_the_system() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = layout(folder.path()).expect("a box");
        let shell = resolved(Path::new("/bin/sh"));
        for path in of(&shell).expect("it can be read") {
            assert!(layout.allows(&path, 'x'), "{}", path.display());
        }
        assert!(!layout.allows(&shell, 'x'));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("it exists");
        let (script, absent) = (folder.join("script"), folder.join("absent"));
        std::fs::write(&script, format!("#!{}\n", absent.display())).expect("written");
        let error = |path: &Path| {
            layout(path)
                .expect_err("it is missing")
                .message()
                .to_owned()
        };
        let message = error(&absent);
        assert!(
            message.contains(&format!("cannot read {}: ", absent.display())),
            "{message}"
        );
        let message = error(&script);
        assert!(
            message.contains(&format!(", which {} is executed with: ", script.display())),
            "{message}"
        );
        let device = error(Path::new("/dev/null"));
        assert!(device.ends_with("it is no file"), "{device}");
    }
}
