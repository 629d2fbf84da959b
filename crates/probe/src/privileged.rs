//! Search for programs whose files give them privileges that the caller lacks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Folders that are searched for programs. Helpers that are not meant to be called by name (below /usr/lib)
/// are reported when they run.
const FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

const SET_USER_ID: u32 = 0o4000;
/// The set-group-ID bit with the group's right to execute; without it the bit means mandatory locking.
const SET_GROUP_ID: u32 = 0o2010;

/// Names of the programs that give privileges to the caller `uid`, sorted.
pub(super) fn programs(uid: u32, gid: u32) -> Vec<String> {
    let mut names: Vec<_> = FOLDERS
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .filter(|entry| gains(&entry.path(), uid, gid))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    // One folder may be a link to another.
    names.dedup();
    names
}

fn gains(file: &Path, uid: u32, gid: u32) -> bool {
    let Ok(data) = file.symlink_metadata() else {
        return false;
    };
    if !data.is_file() {
        return false;
    }
    let mode = data.permissions().mode();
    let has_capabilities = || {
        let mut attribute = [0_u8; 64];
        rustix::fs::getxattr(file, "security.capability", &mut attribute[..]).is_ok()
    };
    (mode & SET_USER_ID != 0 && data.uid() != uid)
        || (mode & SET_GROUP_ID == SET_GROUP_ID && data.gid() != gid)
        || (uid != 0 && has_capabilities())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_others_give_something() {
        let file = std::env::temp_dir().join(format!("tollgate-privileged-{}", std::process::id()));
        fs::write(&file, "").expect("the folder is writable");
        let (uid, gid) = fs::metadata(&file)
            .map(|data| (data.uid(), data.gid()))
            .expect("it is there");
        let with_mode = |mode| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
            [(uid, gid), (uid + 1, gid), (uid, gid + 1)].map(|(uid, gid)| gains(&file, uid, gid))
        };
        assert_eq!(with_mode(0o755), [false, false, false]);
        assert_eq!(with_mode(0o4755), [false, true, false]);
        assert_eq!(with_mode(0o2755), [false, false, true]);
        assert_eq!(with_mode(0o2745), [false, false, false]);
        fs::remove_file(&file).expect("it is ours");
    }
}
