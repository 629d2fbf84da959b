//! Users and groups as a watched process sees them.
//!
//! A container has its own `/etc/passwd`. This module parses the files: libc's lookup would use the agent's
//! root, and a static binary has no NSS.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event::{Group, Lookup, User};

use crate::deadline::Deadline;
use crate::regular;

/// Maximum number of users or groups of one root.
const ENTRY_LIMIT: usize = 65_536;
/// Maximum number of cached roots.
const ROOT_LIMIT: usize = 64;
/// Time for which a cached file is used without a check of its change time.
const FRESH: Duration = Duration::from_secs(1);

/// Identity of a root directory: device, inode, mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Mount id: the same directory may have other files through another mount.
    pub mount: u64,
}

/// The users and groups of one root.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UserDatabase {
    users: HashMap<u32, Arc<User>>,
    groups: HashMap<u32, Arc<Group>>,
}

impl UserDatabase {
    /// Parses the contents of `passwd` and `group`. Lines that violate the format of passwd(5) are omitted;
    /// of two lines with the same id the first counts, as in libc.
    pub fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut users = HashMap::new();
        for (id, user) in lines(passwd).filter_map(parse_user).take(ENTRY_LIMIT) {
            users.entry(id).or_insert_with(|| Arc::new(user));
        }
        let mut groups = HashMap::new();
        for (id, group) in lines(group).filter_map(parse_group).take(ENTRY_LIMIT) {
            groups.entry(id).or_insert_with(|| Arc::new(group));
        }
        Self { users, groups }
    }

    /// The user with this id. Uid 0 is root even if no file lists it, as in Falco.
    pub fn user(&self, uid: u32) -> Option<Arc<User>> {
        let root = || {
            Arc::new(User {
                name: "root".to_owned(),
                home: "/root".to_owned(),
                shell: String::new(),
            })
        };
        self.users
            .get(&uid)
            .cloned()
            .or_else(|| (uid == 0).then(root))
    }

    /// The group with this id. Gid 0 is root even if no file lists it.
    pub fn group(&self, gid: u32) -> Option<Arc<Group>> {
        let root = || {
            Arc::new(Group {
                name: "root".to_owned(),
            })
        };
        self.groups
            .get(&gid)
            .cloned()
            .or_else(|| (gid == 0).then(root))
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<String>> + '_ {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"#"))
        .map(|line| {
            line.split(|byte| *byte == b':')
                .map(|field| String::from_utf8_lossy(field).into_owned())
                .collect()
        })
}

fn parse_user(fields: Vec<String>) -> Option<(u32, User)> {
    let [name, _password, uid, _gid, _comment, home, shell] =
        <[String; 7]>::try_from(fields).ok()?;
    let user = User { name, home, shell };
    Some((uid.parse().ok()?, user)).filter(|(_, user)| !user.name.is_empty())
}

fn parse_group(fields: Vec<String>) -> Option<(u32, Group)> {
    let mut fields = fields.into_iter();
    let name = fields.next().filter(|name| !name.is_empty())?;
    let gid = fields.nth(1)?.parse().ok()?;
    Some((gid, Group { name }))
}

/// Metadata that distinguishes versions of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Version {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Clone, Debug)]
struct CachedUsers {
    checked: Instant,
    versions: [Version; 2],
    database: Arc<UserDatabase>,
}

/// A cache of the users and groups of roots.
#[derive(Debug, Default)]
pub struct UserDatabases {
    roots: Mutex<HashMap<RootId, CachedUsers>>,
}

impl UserDatabases {
    /// The database of a root, which `open` opens. The files belong to the owner of the root, so they are
    /// read with a deadline; after a time-out, an older version is returned.
    pub fn of(
        &self,
        root: RootId,
        open: impl FnOnce() -> Option<OwnedFd>,
        deadline: &Deadline,
        time: Duration,
    ) -> Lookup<Arc<UserDatabase>> {
        let known = self.remembered(root);
        if let Some(known) = &known
            && known.checked.elapsed() < FRESH
        {
            return Lookup::Found(Arc::clone(&known.database));
        }
        let before = known.clone();
        let read = open().map(|folder| deadline.run(time, move || refresh(&folder, before)));
        match read {
            Some(Ok(Some(new))) => {
                let database = Arc::clone(&new.database);
                self.remember(root, new);
                Lookup::Found(database)
            }
            _ => known.map_or(Lookup::Unknown, |known| Lookup::Found(known.database)),
        }
    }

    fn remembered(&self, root: RootId) -> Option<CachedUsers> {
        self.roots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&root)
            .cloned()
    }

    fn remember(&self, root: RootId, new: CachedUsers) {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if roots.len() >= ROOT_LIMIT && !roots.contains_key(&root) {
            let oldest = roots
                .iter()
                .min_by_key(|(_, entry)| entry.checked)
                .map(|(id, _)| *id);
            oldest.map(|oldest| roots.remove(&oldest));
        }
        roots.insert(root, new);
    }
}

/// Reads the files again if they changed. `None` if the read is refused.
fn refresh(root: &OwnedFd, before: Option<CachedUsers>) -> Option<CachedUsers> {
    let checked = Instant::now();
    let open = |path| regular::open_in_root(root, path).ok();
    let (passwd, group) = (open("etc/passwd")?, open("etc/group")?);
    let versions = [version(passwd.as_ref())?, version(group.as_ref())?];
    if let Some(before) = before
        && before.versions == versions
    {
        return Some(CachedUsers { checked, ..before });
    }
    // An image without these files has no names, which is a valid result; a file that cannot be read is not.
    let contents = |file: Option<File>| {
        Some(
            file.map(regular::read)
                .transpose()
                .ok()?
                .unwrap_or_default(),
        )
    };
    let database = UserDatabase::parse(&contents(passwd)?, &contents(group)?);
    Some(CachedUsers {
        checked,
        versions,
        database: Arc::new(database),
    })
}

/// The version of a file. A missing file has a version too.
fn version(file: Option<&File>) -> Option<Version> {
    let Some(file) = file else {
        return Some(Version::default());
    };
    let metadata = file.metadata().ok()?;
    Some(Version {
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\n\
        # a comment\nbroken line\nweb:x:33:33:www:/var/www:/usr/sbin/nologin\n\
        second:x:33:1::/:\nbad:x:abc:0::/:\n:x:5:5::/:\nodd:x:7:7:\xff:/h:/s";
    const GROUP: &[u8] = b"wheel:x:0:\nusers:x:100:a,b\nshort\n";

    #[test]
    fn well_formed_lines_are_taken_and_the_first_of_an_id_counts() {
        let database = UserDatabase::parse(PASSWD, GROUP);
        assert_eq!(database.user(0).unwrap().shell, "/bin/bash");
        assert_eq!(database.user(33).unwrap().name, "web");
        assert_eq!(database.user(33).unwrap().home, "/var/www");
        assert_eq!(database.user(7).unwrap().name, "odd");
        assert_eq!(database.user(5), None);
        assert_eq!(database.group(0).unwrap().name, "wheel");
        assert_eq!(database.group(100).unwrap().name, "users");
        assert_eq!(database.group(7), None);
    }

    #[test]
    fn root_is_root_without_files() {
        let database = UserDatabase::parse(b"", b"");
        assert_eq!(database.user(0).unwrap().name, "root");
        assert_eq!(database.group(0).unwrap().name, "root");
        assert_eq!(database.user(1), None);
    }

    #[test]
    fn links_in_a_root_do_not_lead_out_of_it() {
        let around = std::env::temp_dir().join(format!("users-root-{}", std::process::id()));
        let root = around.join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("usr")).unwrap();
        std::fs::write(around.join("group"), "outside:x:4:\n").unwrap();
        std::fs::write(root.join("usr/passwd"), "inside:x:5:5::/:/bin/sh\n").unwrap();
        std::os::unix::fs::symlink("/usr/passwd", root.join("etc/passwd")).unwrap();
        std::os::unix::fs::symlink("../../group", root.join("etc/group")).unwrap();
        let folder = File::open(&root).unwrap().into();
        let database = refresh(&folder, None).unwrap().database;
        assert_eq!(database.user(5).unwrap().name, "inside");
        assert_eq!(database.group(4), None);
        std::fs::remove_dir_all(&around).unwrap();
    }

    #[test]
    fn changed_files_are_read_again_and_hanging_ones_are_not_waited_for() {
        let root = std::env::temp_dir().join(format!("users-test-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/passwd"), "a:x:5:5::/:/bin/sh\n").unwrap();
        let databases = UserDatabases::default();
        let deadline = Deadline::new(2);
        let id = RootId {
            device: 1,
            inode: 2,
            mount: 3,
        };
        let open = || Some(File::open(&root).expect("it is there").into());
        let ask = |deadline: &Deadline| match databases.of(id, open, deadline, LONG) {
            Lookup::Found(database) => database.user(5).map(|user| user.name.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(ask(&deadline).as_deref(), Some("a"));
        std::fs::write(root.join("etc/passwd"), "bcd:x:5:5::/:/bin/sh\n").unwrap();
        std::thread::sleep(FRESH);
        assert_eq!(ask(&deadline).as_deref(), Some("bcd"));
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        std::thread::sleep(FRESH);
        let stuck = Deadline::new(1);
        let (release, released) = std::sync::mpsc::channel::<()>();
        stuck
            .leave(move || {
                let _ = released.recv();
            })
            .unwrap();
        assert_eq!(
            ask(&stuck).as_deref(),
            Some("bcd"),
            "the old version stands in"
        );
        drop(release);
        assert_eq!(ask(&deadline), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
