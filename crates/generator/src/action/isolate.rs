//! Overlays over system folders, in a mount namespace that ends with this process.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::constant::{MS_NOSUID, MS_PRIVATE, MS_REC};
use sys::clone::CloneFlags;
use sys::namespace;
use workload::Error;

use super::{Action, SideEffects, Stop};

/// Mounts overlays over what the actions change. Returns whether it did.
pub(super) fn separate(
    actions: &[&Action],
    scratch: &Path,
    touch_system: bool,
) -> Result<bool, Stop> {
    let mut folders = BTreeSet::new();
    let mut optional = true;
    for action in actions {
        let (more, may_do_without): (&[&str], bool) = match action.touches {
            SideEffects::Nothing => continue,
            SideEffects::Mounts => (&["/"], false),
            SideEffects::Shared(folders) => (folders, true),
            SideEffects::System(folders) => (folders, touch_system),
        };
        folders.extend(more);
        optional &= may_do_without;
    }
    if folders.is_empty() {
        return Ok(false);
    }
    cover(folders, scratch, optional)
}

/// Mounts overlays over folders. `/` stands for the mount table, for which a namespace is enough.
pub(super) fn cover(
    mut folders: BTreeSet<&str>,
    scratch: &Path,
    optional: bool,
) -> Result<bool, Stop> {
    let mounts = folders.remove("/");
    match lay(&folders, scratch) {
        Ok(()) => Ok(true),
        Err(_without) if optional => Ok(false),
        Err(error) => Err(Stop::Skipped(format!(
            "needs a private mount namespace ({}){}",
            error.chain(),
            if mounts {
                String::new()
            } else {
                let folders: Vec<_> = folders.iter().copied().collect();
                format!("; `--unsafe` changes {} itself", folders.join(" "))
            }
        ))),
    }
}

fn lay(folders: &BTreeSet<&str>, scratch: &Path) -> Result<(), Error> {
    namespace::unshare(CloneFlags::NEWNS.0).map_err(Error::call("make a mount namespace"))?;
    make_private()?;
    if folders.is_empty() {
        return Ok(());
    }
    // Writes go to memory, whatever file system the folder of the run is on.
    let base = scratch.join(format!("layers-{}", std::process::id()));
    make(&base)?;
    mount(
        Some("tmpfs"),
        &base,
        Some("tmpfs"),
        MS_NOSUID.u64(),
        Some("mode=0755"),
    )?;
    let mut real = Vec::new();
    for folder in folders {
        real.push(fs::canonicalize(folder).map_err(Error::file("find", folder))?);
    }
    // The folder that holds the overlays themselves comes last: afterwards their paths are hidden.
    real.sort_by_key(|folder| base.starts_with(folder));
    for (number, folder) in real.iter().enumerate() {
        layer(folder, &base.join(number.to_string()))?;
    }
    Ok(())
}

/// Mounts an overlay as container runtimes do: the folder shows through, writes stay in the upper layer.
fn layer(folder: &Path, above: &Path) -> Result<(), Error> {
    let (upper, work) = (above.join("upper"), above.join("work"));
    for dir in [above, &upper, &work] {
        make(dir)?;
    }
    let permissions = fs::metadata(folder)
        .map_err(Error::file("look at", folder))?
        .permissions();
    fs::set_permissions(&upper, permissions).map_err(Error::file("open", &upper))?;
    let data = format!(
        "lowerdir={},upperdir={},workdir={}",
        folder.display(),
        upper.display(),
        work.display()
    );
    mount(Some("overlay"), folder, Some("overlay"), 0, Some(&data))
}

fn make(dir: &Path) -> Result<(), Error> {
    fs::create_dir(dir).map_err(Error::file("make", dir))
}

/// Detaches this mount namespace from the host's.
pub(crate) fn make_private() -> Result<(), Error> {
    mount(
        None,
        Path::new("/"),
        None,
        MS_REC.u64() | MS_PRIVATE.u64(),
        None,
    )
}

pub(crate) fn mount(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: u64,
    data: Option<&str>,
) -> Result<(), Error> {
    let text = |text: &str| {
        CString::new(text).map_err(|error| Error::file("mount", PathBuf::from(text))(error))
    };
    let (from, of, with) = (
        source.map(text).transpose()?,
        kind.map(text).transpose()?,
        data.map(text).transpose()?,
    );
    let at = CString::new(target.as_os_str().as_bytes())
        .map_err(|error| Error::file("mount", target)(error))?;
    namespace::mount(from.as_deref(), &at, of.as_deref(), flags, with.as_deref())
        .map_err(Error::file(action(kind), target))
}

/// What a mount does, for a message.
fn action(kind: Option<&str>) -> &'static str {
    match kind {
        Some("overlay") => "mount an overlay at",
        Some("proc") => "mount procfs at",
        Some("tmpfs") => "mount a tmpfs at",
        Some(_) => "mount a file system at",
        None => "bind or change the mount at",
    }
}
