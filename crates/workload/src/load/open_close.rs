//! Opens an existing file that no rule matches, by openat(2) as C libraries do.

use std::ffi::CString;

use rustix::fs::{CWD, Mode, OFlags};

use super::kernel_path;
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    let path = setup.file()?;
    let absolute = std::path::absolute(&path).map_err(|source| Error::File {
        action: "find the absolute path of",
        path,
        source,
    })?;
    repeat(kernel_path(&absolute)?)
}

/// Prepares opens by a relative path. Changes the current directory to the file's; all threads share it, and
/// all make the same change.
pub(crate) fn prepare_relative(setup: &Setup) -> Result<Batch, Error> {
    let path = setup.file()?;
    let refuse = |source| Error::File {
        action: "go to the folder of",
        path: path.clone(),
        source,
    };
    let absolute = path.canonicalize().map_err(refuse)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(refuse(std::io::ErrorKind::IsADirectory.into()));
    };
    rustix::process::chdir(folder).map_err(|errno| refuse(errno.into()))?;
    repeat(kernel_path(name.as_ref())?)
}

fn repeat(path: CString) -> Result<Batch, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let file = rustix::fs::openat(CWD, &*path, flags, Mode::empty());
            drop(file.map_err(Error::call("open the file"))?);
        }
        Ok(())
    }))
}
