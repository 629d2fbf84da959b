//! Names of files as they are in another run, in which processes have other numbers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use event::Event;
use policy::compile::process_files;

/// Folders in which all users make temporary files.
pub(super) const SHARED_FOLDERS: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// Returns a path as given and absolute, and the path it resolves to.
pub(super) fn names(event: &Event<'_>, path: &str) -> Vec<String> {
    let own = format!("/proc/{}/cwd", event.process.pid.0);
    let absolute = match path.starts_with('/') {
        true => PathBuf::from(path),
        false => match fs::read_link(own) {
            Ok(folder) => folder.join(path),
            // The process has ended, and with it the exec.
            Err(_) => return Vec::new(),
        },
    };
    let text = |path: PathBuf| path.to_str().map(str::to_owned);
    let pid = event.process.pid.0;
    if let Some(within) = absolute
        .to_str()
        .and_then(|path| own_path(path, pid, event.tid.0))
    {
        // Its links lead elsewhere, such as `/proc/self/exe`.
        let real = fs::canonicalize(&within).ok().and_then(text);
        let real = real.unwrap_or(within);
        return vec![by_self(&real, pid)];
    }
    let real = fs::canonicalize(&absolute);
    let both = [Some(absolute), real.ok()];
    both.into_iter().flatten().filter_map(text).collect()
}

/// Returns `/proc/PID/...` for a path that leads to a file of this process below `/proc`.
fn own_path(path: &str, pid: i32, tid: i32) -> Option<String> {
    let rest = path.strip_prefix("/proc/")?;
    if let Some(rest) = rest.strip_prefix("thread-self/") {
        return Some(format!("/proc/{pid}/task/{tid}/{rest}"));
    }
    let own = match rest.strip_prefix(&format!("{pid}/")) {
        Some(rest) => format!("/proc/self/{rest}"),
        None => process_files::named(path)?,
    };
    let rest = own.strip_prefix("/proc/self/")?;
    Some(format!("/proc/{pid}/{rest}"))
}

/// Writes `/proc/self` for the folder of this process below `/proc`.
fn by_self(path: &str, pid: i32) -> String {
    match path.strip_prefix(&format!("/proc/{pid}/")) {
        Some(rest) => format!("/proc/self/{rest}"),
        None => path.to_owned(),
    }
}

/// Sorts out the folders that a call makes directly in one for temporary files. Returns the other paths.
pub(super) fn without_temporary(
    paths: Vec<String>,
    temporary: &mut BTreeSet<String>,
) -> Vec<String> {
    let is_temporary = |path: &String| {
        let folder = Path::new(path).parent().and_then(Path::to_str);
        folder.is_some_and(|folder| SHARED_FOLDERS.contains(&folder))
    };
    let (own, others) = paths.into_iter().partition(is_temporary);
    temporary.extend::<Vec<String>>(own);
    others
}

/// Returns true for a path by which a file can be found; that of a nameless one cannot be.
pub(super) fn is_name(path: &str) -> bool {
    path.starts_with('/') && !path.ends_with(" (deleted)")
}
