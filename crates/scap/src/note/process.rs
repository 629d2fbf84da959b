//! Notes about a process.

use std::sync::Arc;

use event::{
    Container, Credentials, ExecutableFile, ExecutableFlags, Group, Lookup, Pid, Stat, Status, User,
};
use serde_json::{Value, json};

use super::container::{read_container, show_container};
use super::{is_there, looked, lookup, there};

/// Facts about a process that rules can use and that its events do not represent exactly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExactProcess {
    pub(crate) start: u64,
    pub(crate) start_ns: u64,
    pub(crate) stat: Lookup<Stat>,
    pub(crate) status: Lookup<Status>,
    pub(crate) login_uid: Lookup<u32>,
    pub(crate) container: Arc<Container>,
    pub(crate) file: Lookup<ExecutableFile>,
    pub(crate) is_writable: Lookup<bool>,
    pub(crate) has_command_line: Lookup<()>,
    pub(crate) has_environment: Lookup<()>,
    pub(crate) has_executable: Lookup<()>,
    pub(crate) is_truncated: bool,
    pub(crate) directory: Lookup<()>,
    pub(crate) users: Vec<(u32, Lookup<Arc<User>>)>,
    pub(crate) groups: Vec<(u32, Lookup<Arc<Group>>)>,
}

impl ExactProcess {
    pub(crate) fn to_json(&self) -> String {
        let user = |user: &Arc<User>| json!([user.name, user.home, user.shell]);
        let users = self.users.iter();
        let users: Vec<Value> = users
            .map(|(uid, found)| json!([uid, lookup(found, user)]))
            .collect();
        let groups = self.groups.iter();
        let groups: Vec<Value> = groups
            .map(|(gid, found)| json!([gid, lookup(found, |group| json!(group.name))]))
            .collect();
        json!({
            "start": [self.start, self.start_ns],
            "stat": lookup(&self.stat, show_stat),
            "status": lookup(&self.status, show_status),
            "login_uid": lookup(&self.login_uid, |uid| json!(uid)),
            "container": show_container(&self.container),
            "file": lookup(&self.file, show_file),
            "writable": lookup(&self.is_writable, |is| json!(is)),
            "command_line": there(&self.has_command_line),
            "environment": there(&self.has_environment),
            "executable": there(&self.has_executable),
            "truncated": self.is_truncated,
            "directory": there(&self.directory),
            "users": users,
            "groups": groups,
        })
        .to_string()
    }

    pub(crate) fn of_json(json: &[u8]) -> Option<Self> {
        let note: Value = serde_json::from_slice(json).ok()?;
        let start = note.get("start")?;
        let names = |key: &str| {
            note.get(key)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let id = |entry: &Value| u32::try_from(entry.get(0)?.as_u64()?).ok();
        Some(Self {
            start: start.get(0)?.as_u64()?,
            start_ns: start.get(1)?.as_u64()?,
            stat: looked(note.get("stat"), read_stat),
            status: looked(note.get("status"), read_status),
            login_uid: looked(note.get("login_uid"), |uid| {
                u32::try_from(uid.as_u64()?).ok()
            }),
            container: Arc::new(read_container(note.get("container")?)?),
            file: looked(note.get("file"), read_file),
            is_writable: looked(note.get("writable"), Value::as_bool),
            has_command_line: is_there(note.get("command_line")),
            has_environment: is_there(note.get("environment")),
            has_executable: is_there(note.get("executable")),
            is_truncated: note.get("truncated")?.as_bool()?,
            directory: is_there(note.get("directory")),
            users: names("users")
                .iter()
                .filter_map(|entry| Some((id(entry)?, looked(entry.get(1), read_user))))
                .collect(),
            groups: names("groups")
                .iter()
                .filter_map(|entry| Some((id(entry)?, looked(entry.get(1), read_group))))
                .collect(),
        })
    }
}

fn read_user(value: &Value) -> Option<Arc<User>> {
    let text = |at: usize| Some(value.get(at)?.as_str()?.to_owned());
    Some(Arc::new(User {
        name: text(0)?,
        home: text(1)?,
        shell: text(2)?,
    }))
}

fn read_group(value: &Value) -> Option<Arc<Group>> {
    let name = value.as_str()?.to_owned();
    Some(Arc::new(Group { name }))
}

pub(super) fn show_stat(stat: &Stat) -> Value {
    json!([
        stat.ppid.0,
        stat.pgid,
        stat.sid,
        stat.tty,
        stat.tpgid,
        stat.threads,
        stat.vm_size_kib,
        stat.vm_rss_kib
    ])
}

pub(super) fn read_stat(value: &Value) -> Option<Stat> {
    let int = |at: usize| i32::try_from(value.get(at)?.as_i64()?).ok();
    let uint = |at: usize| value.get(at)?.as_u64();
    Some(Stat {
        ppid: Pid(int(0)?),
        pgid: int(1)?,
        sid: int(2)?,
        tty: u32::try_from(uint(3)?).ok()?,
        tpgid: int(4)?,
        threads: u32::try_from(uint(5)?).ok()?,
        vm_size_kib: uint(6)?,
        vm_rss_kib: uint(7)?,
    })
}

pub(super) fn show_status(status: &Status) -> Value {
    json!([
        status.credentials.uid,
        status.credentials.gid,
        status.real_uid,
        status.cap_inheritable,
        status.cap_permitted,
        status.cap_effective,
        status.cap_bounding,
        status.vpid,
        status.vtid,
        status.vpgid,
        status.vsid
    ])
}

fn read_status(value: &Value) -> Option<Status> {
    let int = |at: usize| i32::try_from(value.get(at)?.as_i64()?).ok();
    let id = |at: usize| u32::try_from(value.get(at)?.as_u64()?).ok();
    let set = |at: usize| value.get(at)?.as_u64();
    Some(Status {
        credentials: Credentials {
            uid: id(0)?,
            gid: id(1)?,
        },
        real_uid: id(2)?,
        cap_inheritable: set(3)?,
        cap_permitted: set(4)?,
        cap_effective: set(5)?,
        cap_bounding: set(6)?,
        vpid: int(7)?,
        vtid: int(8)?,
        vpgid: int(9)?,
        vsid: int(10)?,
    })
}

fn show_file(file: &ExecutableFile) -> Value {
    let flags = file.flags;
    json!([
        flags.upper_layer,
        flags.lower_layer,
        flags.from_memfd,
        file.inode,
        file.ctime_ns,
        file.mtime_ns
    ])
}

fn read_file(value: &Value) -> Option<ExecutableFile> {
    let flag = |at: usize| value.get(at)?.as_bool();
    let number = |at: usize| value.get(at)?.as_u64();
    Some(ExecutableFile {
        flags: ExecutableFlags {
            upper_layer: flag(0),
            lower_layer: flag(1),
            from_memfd: flag(2)?,
        },
        inode: number(3)?,
        ctime_ns: number(4)?,
        mtime_ns: number(5)?,
    })
}
