//! What the kernel executes with a program: a list of programs that lacks it allows none of them.
//!
//! What a command could write into a program must not make the box of its next run larger. So only programs and links are read
//! that it may not change.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::layout::Layout;
use crate::places::{self, text};

/// Number of interpreters of interpreters that the kernel follows, and the loader of the last.
const CHAIN: usize = 6;
/// Number of links that the kernel follows in one path.
const LINKS: usize = 40;

impl Layout {
    /// Adds what is executed with what options name. All places of the layout have to be known: what the command may
    /// write decides.
    ///
    /// # Errors
    ///
    /// A program is missing, or one of its interpreters is, or is no regular file or cannot be read.
    pub(super) fn add_loaders(&mut self, named: &[PathBuf]) -> Result<(), Failure> {
        for path in named {
            for opened in with(self, &places::whole(path)?)? {
                self.add(text(&opened)?, "rx");
            }
        }
        Ok(())
    }
}

/// Returns what is executed with what an option names. For a program: its interpreters and its loader. For a program that the
/// command may change, what it says of these is the command's word, and for a folder those of all that is in it would be a
/// search: for both, the loaders of `/bin/sh` and of this program.
fn with(layout: &Layout, named: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !named.is_dir() {
        let program = unchanging(layout, named).map_err(|error| unread(named, named, &error))?;
        if let Some(program) = program {
            return of(layout, &program);
        }
    }
    let own = std::env::current_exe().ok();
    let usual = own.into_iter().chain([PathBuf::from("/bin/sh")]);
    // A machine without a shell has no loader for it, and the denial of another one is reported with its option.
    let programs = usual.filter_map(|path| unchanging(layout, &path).ok()?);
    Ok(programs
        .flat_map(|path| of(layout, &path).unwrap_or_default())
        .collect())
}

/// The interpreters and the loader of a program, up to one that the command may change.
fn of(layout: &Layout, program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found: Vec<PathBuf> = Vec::new();
    while found.len() < CHAIN {
        let last = found.last().map_or(program, PathBuf::as_path);
        let written = interpreter(last).map_err(|error| unread(program, last, &error))?;
        let Some(written) = written else { break };
        let next = unchanging(layout, &written);
        match next.map_err(|error| unread(program, &written, &error))? {
            Some(path) => found.push(path),
            None => break,
        }
    }
    Ok(found)
}

/// The path that a program names. One that starts at the folder of the caller is none: that folder is the command's.
fn interpreter(program: &Path) -> Result<Option<PathBuf>, Error> {
    let file = File::open(program)?;
    let read = |offset, size| sys::file::read_up_to(&file, offset, size);
    let path = policy::executable::interpreter(read)?;
    let path = path.map(|path| PathBuf::from(OsString::from_vec(path)));
    Ok(path.filter(|path| path.is_absolute()))
}

/// Resolves the path of a regular file. `None` if the command may change the file or a link on the way to it.
fn unchanging(layout: &Layout, path: &Path) -> Result<Option<PathBuf>, Error> {
    // A pipe would block, and a folder would allow all that is in it.
    if !path.metadata()?.is_file() {
        return Err(Error::from(ErrorKind::InvalidInput));
    }
    let words = |path: &Path| -> Vec<OsString> {
        let words = path.components().rev();
        words.map(|word| word.as_os_str().to_owned()).collect()
    };
    let mut rest = words(path);
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    while let Some(word) = rest.pop() {
        match Path::new(&word).components().next() {
            Some(Component::ParentDir) => {
                real.pop();
            }
            Some(Component::Normal(name)) => real.push(name),
            Some(Component::RootDir) => real = PathBuf::from("/"),
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
        if real.symlink_metadata()?.is_symlink() {
            links += 1;
            if links > LINKS || layout.may_change(&real) {
                return Ok(None);
            }
            rest.extend(words(&std::fs::read_link(&real)?));
            real.pop();
        }
    }
    Ok((!layout.may_change(&real)).then_some(real))
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
    use crate::options::{BoxOptions, Preset};
    use crate::places::resolved;

    /// A folder whose path has no link.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("it exists");
        (folder, path)
    }

    /// A box that may not write folders for temporary files, but those of `allow_write`.
    fn layout(allow_exec: &Path, allow_write: &[&Path]) -> Result<Layout, Failure> {
        let options = BoxOptions {
            preset: Preset::Strict,
            allow_exec: vec![allow_exec.to_owned()],
            allow_write: allow_write.iter().map(PathBuf::from).collect(),
            ..BoxOptions::default()
        };
        Layout::of(&options, None)
    }

    fn script(path: &Path, interpreter: &Path) {
        let line = format!("#!{} x\n", interpreter.display());
        std::fs::write(path, line).expect("written");
    }

    fn own() -> PathBuf {
        resolved(Path::new("/proc/self/exe"))
    }

    /// The loaders of this program.
    fn loaders() -> Vec<PathBuf> {
        of(&Layout::default(), &own()).expect("it can be read")
    }

    fn executes(layout: &Layout, path: &Path) -> bool {
        layout.allows(path, 'x')
    }

    #[test]
    fn a_program_may_be_executed_with_its_interpreter_and_loader() {
        let (_folder, folder) = folder();
        let (first, second) = (folder.join("first"), folder.join("second"));
        script(&first, &second);
        script(&second, &own());
        let layout = layout(&first, &[]).expect("a box");
        assert!(!loaders().is_empty());
        for path in [&first, &second, &own()].into_iter().chain(&loaders()) {
            assert!(executes(&layout, path), "{}", path.display());
            assert!(layout.allows(path, 'r'), "{}", path.display());
        }
        assert!(layout.lists_programs());
        assert!(!executes(&layout, &folder.join("third")));
        assert!(!executes(&layout, Path::new("/usr/bin/env")));
    }

    #[test]
    fn a_program_that_the_command_may_change_has_the_loader_of_the_system() {
        let ((_project, project), (_home, home)) = (folder(), folder());
        let (tool, elf) = (project.join("tool"), project.join("elf"));
        let (notes, program) = (home.join("notes.txt"), home.join("program"));
        script(&tool, &notes);
        script(&program, &notes);
        std::fs::write(&notes, "secret").expect("written");
        std::fs::copy(own(), &elf).expect("copied");
        for path in [&tool, &elf] {
            let layout = layout(path, &[&project]).expect("a box");
            assert!(executes(&layout, path));
            assert!(!executes(&layout, &notes) && !layout.allows(&notes, 'r'));
            for path in loaders() {
                assert!(executes(&layout, &path), "{}", path.display());
            }
        }
        // A file that may be written itself, and a link to a program of somebody else, are the command's word, too.
        let link = project.join("link");
        std::os::unix::fs::symlink(&program, &link).expect("made");
        for (path, writable) in [(&program, &program), (&link, &project)] {
            let layout = layout(path, &[writable]).expect("a box");
            assert!(!executes(&layout, &notes), "{}", path.display());
        }
        let layout = layout(&program, &[&project]).expect("a box");
        assert!(executes(&layout, &notes), "nobody but its owner writes it");
    }

    #[test]
    fn an_interpreter_that_the_command_may_change_ends_the_chain() {
        let ((_project, project), (_home, home)) = (folder(), folder());
        let (tool, inner, end) = (home.join("tool"), project.join("inner"), home.join("end"));
        std::fs::write(&end, "").expect("written");
        script(&inner, &end);
        // By its path, by a link in the project, and by a link that leads through one.
        let (link, outer) = (project.join("link"), home.join("outer"));
        std::os::unix::fs::symlink(&end, &link).expect("made");
        std::os::unix::fs::symlink(&link, &outer).expect("made");
        for interpreter in [&inner, &link, &outer] {
            script(&tool, interpreter);
            let layout = layout(&tool, &[&project]).expect("a box");
            assert!(executes(&layout, &tool));
            for path in [interpreter, &end] {
                assert!(!executes(&layout, path), "{}", interpreter.display());
            }
        }
        script(&tool, Path::new("relative/../../../../../bin/sh"));
        let layout = layout(&tool, &[]).expect("a box");
        assert!(!executes(&layout, &resolved(Path::new("/bin/sh"))));
    }

    #[test]
    fn no_hop_is_a_folder() {
        let (_folder, folder) = folder();
        let hops: Vec<PathBuf> = (0..CHAIN).map(|hop| folder.join(hop.to_string())).collect();
        for pair in hops.windows(2) {
            script(&pair[0], &pair[1]);
        }
        script(&hops[CHAIN - 1], Path::new("/"));
        let failure = layout(&hops[0], &[]).expect_err("it is a folder");
        let message = failure.message();
        assert!(message.contains("cannot read /, which "), "{message}");
        assert!(message.ends_with("it is no file"), "{message}");
        // The kernel goes no further.
        let before = folder.join("before");
        script(&before, &hops[0]);
        let layout = layout(&before, &[]).expect("a box");
        assert!(executes(&layout, &hops[CHAIN - 1]));
        assert!(!layout.allows(Path::new("/home"), 'r'));
    }

    #[test]
    fn a_folder_of_programs_has_the_loader_of_the_system() {
        let (_folder, folder) = folder();
        let layout = layout(&folder, &[]).expect("a box");
        let shell = resolved(Path::new("/bin/sh"));
        for path in of(&layout, &shell).expect("it can be read") {
            assert!(executes(&layout, &path), "{}", path.display());
        }
        assert!(!executes(&layout, &shell));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let (_folder, folder) = folder();
        let (tool, absent) = (folder.join("script"), folder.join("absent"));
        script(&tool, &absent);
        let error = |path: &Path| {
            let failure = layout(path, &[]).expect_err("it is missing");
            failure.message().to_owned()
        };
        let message = error(&absent);
        let part = format!("cannot read {}: ", absent.display());
        assert!(message.contains(&part), "{message}");
        let message = error(&tool);
        let part = format!(", which {} is executed with: ", tool.display());
        assert!(message.contains(&part), "{message}");
        let device = error(Path::new("/dev/null"));
        assert!(device.ends_with("it is no file"), "{device}");
    }
}
