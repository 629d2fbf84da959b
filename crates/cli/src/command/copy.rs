//! `tollgate copy`: copies the program out of an image that has no other program.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};

use crate::args::Copy;

/// Name of the copy.
const NAME: &str = "tollgate";

/// Runs the verb.
pub(crate) fn execute(args: &Copy) -> Outcome {
    let file = args.folder.join(NAME);
    copy(&args.folder, &file).map_err(|cause| {
        let message = format!("cannot copy the program to {}: {cause}", file.display());
        Failure::new(Exit::BadInput, message)
            .help("name a writable folder that exists, such as a volume")
    })?;
    Ok(Exit::Ok)
}

/// Replaces `file` in `folder` at once, also while it runs: who starts it gets the old one or the whole new one.
fn copy(folder: &Path, file: &Path) -> io::Result<()> {
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    // The link leads to the file that runs, even if it was replaced.
    io::copy(&mut File::open("/proc/self/exe")?, new.as_file_mut())?;
    new.as_file()
        .set_permissions(fs::Permissions::from_mode(0o755))?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}
