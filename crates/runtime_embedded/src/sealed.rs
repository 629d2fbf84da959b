//! Execution from a file that containers cannot write to.
//!
//! A process that enters a container has this program's file behind `/proc/PID/exe`, by which root in the
//! container could replace it on the host (CVE-2019-5736). So such a process runs from a mount of its file
//! alone that is read-only and belongs to no mount namespace, so that no process can change it; or where that
//! is not possible, from a sealed copy in memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use abi::constant::{MFD_ALLOW_SEALING, MFD_CLOEXEC, MFD_EXEC};
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rustix::fs::{SealFlags, StatVfsMountFlags};
use sys::exec::StringArray;

const OWN: &str = "/proc/self/exe";

/// Continues from such a file: returns if this process runs from one already, otherwise executes it.
pub(super) fn ensure() -> Result<(), Failure> {
    let Some(file) = file()? else {
        // Executed by its descriptor, the process would have the descriptor's number as its name. Rules about
        // the first programs of containers know their parents by names: Falco's by this one, which runc's
        // parents have after they were executed again.
        let named = sys::prctl::set_name(c"exe");
        return named.map_err(|cause| cannot(&cause));
    };
    let argv = StringArray::own_arguments();
    let environment = StringArray::own_environment();
    Err(cannot(&sys::exec::execve_fd(
        file.as_fd(),
        &argv,
        &environment,
    )))
}

fn cannot(cause: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot keep this program's file from containers: {cause}");
    Failure::new(Exit::Unsupported, message).help("become root, mount /proc, or use --runtime runc")
}

/// Returns such a file; `None` if this process runs from one.
pub(super) fn file() -> Result<Option<OwnedFd>, Failure> {
    let own = File::open(OWN).map_err(|cause| cannot(&cause))?;
    if is_out_of_reach(&own).map_err(|cause| cannot(&cause))? {
        return Ok(None);
    }
    read_only(&own)
        .or_else(|_not_here| sealed_copy(own))
        .map(Some)
        .map_err(|cause| cannot(&cause))
}

/// Returns true if no process can write to the file through this process.
fn is_out_of_reach(own: &File) -> io::Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(own);
    let is_sealed = seals.is_ok_and(|seals| seals.contains(SEALS));
    let mount = rustix::fs::fstatvfs(own)?.f_flag;
    Ok(is_sealed || mount.contains(StatVfsMountFlags::RDONLY))
}

const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// Opens the file through a private read-only mount. The mount ends with its descriptor, except for processes
/// that have the file open by then. A mount outside any mount namespace cannot be made writable.
fn read_only(own: &File) -> io::Result<OwnedFd> {
    let mount = sys::namespace::mount_of_its_own(own.as_fd())?;
    sys::namespace::make_read_only(mount.as_fd())?;
    let file = File::open(format!("/proc/self/fd/{}", mount.as_raw_fd()))?;
    if !rustix::fs::fstatvfs(&file)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY)
    {
        return Err(io::Error::other("the mount is not read-only"));
    }
    Ok(file.into())
}

fn sealed_copy(mut own: File) -> io::Result<OwnedFd> {
    let flags = MFD_CLOEXEC.u32() | MFD_ALLOW_SEALING.u32();
    // Before Linux 6.3 the kernel does not know MFD_EXEC.
    let copy = sys::fd::memory_file(c"tollgate", flags | MFD_EXEC.u32())
        .or_else(|_unknown| sys::fd::memory_file(c"tollgate", flags))?;
    let mut copy = File::from(copy);
    io::copy(&mut own, &mut copy)?;
    // A file that is open for writing cannot be executed.
    let sealed = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
    rustix::fs::fcntl_add_seals(&copy, SEALS)?;
    Ok(sealed.into())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn program() -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, "old").unwrap();
        let file = File::open(&path).unwrap();
        (folder, file)
    }

    /// Opens the file for writing, as through `/proc/PID/exe`.
    fn overwrite(file: &impl AsRawFd) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        OpenOptions::new().write(true).open(path)
    }

    #[test]
    fn a_sealed_copy_says_the_same_for_ever() {
        let (_folder, file) = program();
        assert!(!is_out_of_reach(&file).unwrap());
        let copy = File::from(sealed_copy(file).unwrap());
        assert!(is_out_of_reach(&copy).unwrap());
        let written = overwrite(&copy).and_then(|mut file| io::Write::write_all(&mut file, b"new"));
        assert!(written.is_err());
        assert_eq!(io::read_to_string(&copy).unwrap(), "old");
    }

    #[test]
    fn a_mount_of_its_own_is_never_written_to() {
        let (folder, file) = program();
        let Ok(seen) = read_only(&file) else {
            testing::skip!("needs a mount", || {
                match rustix::process::geteuid().is_root() {
                    true => Err("root can mount".to_owned()),
                    false => Ok("an ordinary user cannot".to_owned()),
                }
            });
        };
        let seen = File::from(seen);
        assert!(is_out_of_reach(&seen).unwrap());
        let error = overwrite(&seen).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(
            sys::namespace::make_read_only(seen.as_fd()).is_err(),
            "it is nobody's any more"
        );
        // The file itself is unchanged.
        std::fs::write(folder.path().join("program"), "new").unwrap();
    }
}
