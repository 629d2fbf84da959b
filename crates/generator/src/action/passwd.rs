//! Users from /etc/passwd: a static program cannot ask the C library.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use sys::credential::{self, Ids};
use workload::Error;

use super::Stop;

/// A user of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A user that rules know as one that nobody logs in as.
pub(crate) const SYSTEM_USER: &str = "daemon";

/// Looks a user up by name, or by number.
pub(crate) fn user(name: &str) -> Result<User, Stop> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    lookup(&text, name).ok_or_else(|| Stop::Skipped(format!("needs the user `{name}`")))
}

fn lookup(text: &str, name: &str) -> Option<User> {
    let named = text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let is_it = parts.next() == Some(name);
        let (uid, gid) = (parts.nth(1)?, parts.next()?);
        is_it.then_some(())?;
        Some(User {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    });
    named.or_else(|| {
        let number = name.parse().ok()?;
        Some(User {
            uid: number,
            gid: number,
        })
    })
}

/// Sets every user id of this process, and keeps the groups.
pub(super) fn set_all(uid: u32) -> Result<(), Error> {
    credential::set_users(Ids {
        real: uid,
        effective: uid,
        saved: uid,
    })
    .map_err(Error::call("become another user"))
}

/// Makes a command run as a system user; without root as the current user.
pub(super) fn as_system_user(mut command: Command) -> Result<Command, Stop> {
    if rustix::process::geteuid().is_root() {
        let user = user(SYSTEM_USER)?;
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}

/// Changes this process to a user.
pub(super) fn become_user(user: User) -> Result<(), Stop> {
    let ids = |number| Ids {
        real: number,
        effective: number,
        saved: number,
    };
    credential::set_supplementary_groups(&[])
        .and_then(|()| credential::set_groups(ids(user.gid)))
        .and_then(|()| credential::set_users(ids(user.uid)))
        // When its user changes, the kernel denies a process access to its own /proc entries.
        .and_then(|()| sys::prctl::set_dumpable(true))
        .map_err(Error::call("become another user"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let text = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:2::/:/usr/sbin/nologin\n";
        assert_eq!(lookup(text, "daemon"), Some(User { uid: 1, gid: 2 }));
        assert_eq!(
            lookup(text, "1000"),
            Some(User {
                uid: 1000,
                gid: 1000
            })
        );
        assert_eq!(lookup(text, "nobody"), None);
    }
}
