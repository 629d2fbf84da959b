//! What this program tells itself in a capture: facts that rules can ask for and that the format
//! has no place for, or that were not known when the event was recorded.
//!
//! A note is an event `notification` that is for state only, so that other readers pass over it. It
//! holds JSON; bytes that need not be UTF-8 stand in it as the characters of the same numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bumpalo::Bump;
use event::{
    Container, Containment, Credentials, Descriptor, DescriptorKind, Details, Endpoint,
    ExecutableFile, ExecutableFlags, Group, Known, Lookup, Mount, Name, Outcome, Param, Pid, Role,
    Socket, Stat, Status, Transport, User,
};
use serde_json::{Value, json};

/// `id` of notes about a process.
pub(crate) const PROCESS: &str = "tollgate.process";
/// `id` of notes about the call that follows.
pub(crate) const CALL: &str = "tollgate.call";

/// Everything about a process that a rule can ask for and its events do not tell exactly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exact {
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

pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).ok())
        .collect()
}

fn lookup<T>(fact: &Lookup<T>, show: impl FnOnce(&T) -> Value) -> Value {
    match fact {
        Lookup::Found(fact) => show(fact),
        Lookup::Missing => Value::Null,
        Lookup::Unknown => json!("?"),
    }
}

fn looked<T>(value: Option<&Value>, read: impl FnOnce(&Value) -> Option<T>) -> Lookup<T> {
    match value {
        Some(Value::Null) => Lookup::Missing,
        Some(value) => read(value).map_or(Lookup::Unknown, Lookup::Found),
        None => Lookup::Unknown,
    }
}

fn there(fact: &Lookup<()>) -> Value {
    lookup(fact, |()| json!(1))
}

fn is_there(value: Option<&Value>) -> Lookup<()> {
    looked(value, |value| value.is_number().then_some(()))
}

impl Exact {
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
        let told: Value = serde_json::from_slice(json).ok()?;
        let start = told.get("start")?;
        let names = |key: &str| {
            told.get(key)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let id = |entry: &Value| u32::try_from(entry.get(0)?.as_u64()?).ok();
        Some(Self {
            start: start.get(0)?.as_u64()?,
            start_ns: start.get(1)?.as_u64()?,
            stat: looked(told.get("stat"), read_stat),
            status: looked(told.get("status"), read_status),
            login_uid: looked(told.get("login_uid"), |uid| {
                u32::try_from(uid.as_u64()?).ok()
            }),
            container: Arc::new(read_container(told.get("container")?)?),
            file: looked(told.get("file"), read_file),
            is_writable: looked(told.get("writable"), Value::as_bool),
            has_command_line: is_there(told.get("command_line")),
            has_environment: is_there(told.get("environment")),
            has_executable: is_there(told.get("executable")),
            is_truncated: told.get("truncated")?.as_bool()?,
            directory: is_there(told.get("directory")),
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

fn show_stat(stat: &Stat) -> Value {
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

fn read_stat(value: &Value) -> Option<Stat> {
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

fn show_status(status: &Status) -> Value {
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

fn show_container(container: &Container) -> Value {
    let containment = match container.containment {
        Containment::Host => "host",
        Containment::Known => "known",
        Containment::Unknown => "unknown",
    };
    json!({
        "is": containment,
        "id": container.id,
        "full_id": container.full_id,
        "name": container.name,
        "runtime": container.runtime,
        "image": container.image,
        "privileged": container.privileged,
        "start_ns": container.start_ns,
        "pod": container.pod,
        "details": show_details(&container.details),
        "undescribed": container.undescribed,
    })
}

fn show_details(details: &Details) -> Value {
    let mounts = details.mounts.iter().map(|mount| {
        json!([
            mount.source,
            mount.destination,
            mount.mode,
            mount.writable,
            mount.propagation
        ])
    });
    json!({
        "image_id": details.image_id,
        "image_digest": details.image_digest,
        "annotations": details.annotations,
        "labels": details.labels,
        "mounts": mounts.collect::<Vec<_>>(),
        "health_check": details.health_check,
        "ip": details.ip,
        "host": [details.host_pid, details.host_network, details.host_ipc],
        "pod_labels": details.pod_labels,
        "sandbox_id": details.sandbox_id,
    })
}

fn read_details(value: &Value) -> Details {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let labels = |key: &str| -> BTreeMap<String, String> {
        let labels = value[key].as_object().into_iter().flatten();
        let texts =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        texts.collect()
    };
    let mounts = value["mounts"].as_array().into_iter().flatten();
    let mounts = mounts.map(|mount| {
        let part = |at: usize| mount[at].as_str().map(str::to_owned).unwrap_or_default();
        Mount {
            source: part(0),
            destination: part(1),
            mode: part(2),
            writable: mount[3] == true,
            propagation: part(4),
        }
    });
    Details {
        image_id: text("image_id"),
        image_digest: text("image_digest"),
        annotations: labels("annotations"),
        labels: labels("labels"),
        mounts: mounts.collect(),
        health_check: text("health_check"),
        ip: text("ip"),
        host_pid: value["host"][0].as_bool(),
        host_network: value["host"][1].as_bool(),
        host_ipc: value["host"][2].as_bool(),
        pod_labels: labels("pod_labels"),
        sandbox_id: text("sandbox_id"),
    }
}

fn read_container(value: &Value) -> Option<Container> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let pod = value.get("pod").and_then(|pod| {
        let part = |at: usize| pod.get(at)?.as_str().map(str::to_owned);
        Some((part(0)?, part(1)?, part(2)?))
    });
    Some(Container {
        containment: match value.get("is")?.as_str()? {
            "host" => Containment::Host,
            "known" => Containment::Known,
            _ => Containment::Unknown,
        },
        id: text("id")?,
        full_id: text("full_id"),
        name: text("name"),
        runtime: text("runtime"),
        image: text("image"),
        privileged: value.get("privileged").and_then(Value::as_bool),
        start_ns: value.get("start_ns").and_then(Value::as_u64),
        pod,
        details: Arc::new(read_details(&value["details"])),
        undescribed: text("undescribed"),
    })
}

/// A parameter as a note holds it; `None` for one that follows from other things.
pub(crate) fn show_param(param: &Param<'_>) -> Option<Value> {
    Some(match param {
        Param::Pending => return None,
        Param::Unreadable => json!("?"),
        Param::Absent => Value::Null,
        Param::Int(value) => json!({ "i": value }),
        Param::Uint(value) => json!({ "u": value }),
        Param::Text(value) => json!({ "t": text(value) }),
        Param::Texts(values) => {
            json!({ "l": values.iter().map(|value| text(value)).collect::<Vec<_>>() })
        }
        Param::Tuple => json!("tuple"),
    })
}

/// The parameter that a note holds.
pub(crate) fn read_param<'a>(value: &Value, arena: &'a Bump) -> Option<Param<'a>> {
    let copy = |value: &Value| -> Option<&'a [u8]> {
        Some(arena.alloc_slice_copy(&bytes(value.as_str()?)?))
    };
    Some(match value {
        Value::Null => Param::Absent,
        Value::String(word) if word == "tuple" => Param::Tuple,
        Value::String(_) => Param::Unreadable,
        Value::Object(object) => {
            let (key, value) = object.iter().next()?;
            match key.as_str() {
                "i" => Param::Int(value.as_i64()?),
                "u" => Param::Uint(value.as_u64()?),
                "t" => Param::Text(copy(value)?),
                "l" => {
                    let texts: Option<Vec<&[u8]>> = value.as_array()?.iter().map(copy).collect();
                    Param::Texts(arena.alloc_slice_copy(&texts?))
                }
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn known<T>(fact: Known<T>, show: impl FnOnce(T) -> Value) -> Value {
    match fact {
        Known::Yes(fact) => show(fact),
        Known::NotYet => json!("?"),
        Known::Never => Value::Null,
    }
}

fn endpoint(end: Endpoint) -> Value {
    json!([end.ip.to_string(), end.port])
}

fn read_endpoint(value: &Value) -> Option<Endpoint> {
    Some(Endpoint {
        ip: value.get(0)?.as_str()?.parse().ok()?,
        port: u16::try_from(value.get(1)?.as_u64()?).ok()?,
    })
}

const TRANSPORTS: [(Transport, &str); 5] = [
    (Transport::Tcp, "tcp"),
    (Transport::Udp, "udp"),
    (Transport::Icmp, "icmp"),
    (Transport::Raw, "raw"),
    (Transport::Unknown, "unknown"),
];

const ROLES: [(Role, &str); 3] = [
    (Role::Client, "client"),
    (Role::Server, "server"),
    (Role::Unknown, "unknown"),
];

fn word<T: PartialEq>(of: T, words: &[(T, &'static str)]) -> &'static str {
    let found = words.iter().find(|(value, _)| *value == of);
    found.map_or("unknown", |(_, word)| word)
}

fn value_of<T: Copy>(word: &Value, words: &[(T, &'static str)]) -> Option<T> {
    let word = word.as_str()?;
    let found = words.iter().find(|(_, known)| *known == word);
    found.map(|(value, _)| *value)
}

const KINDS: [(DescriptorKind, &str); 19] = [
    (DescriptorKind::File, "file"),
    (DescriptorKind::Directory, "directory"),
    (DescriptorKind::Ipv4, "ipv4"),
    (DescriptorKind::Ipv6, "ipv6"),
    (DescriptorKind::Unix, "unix"),
    (DescriptorKind::Netlink, "netlink"),
    (DescriptorKind::OtherSocket, "socket"),
    (DescriptorKind::Pipe, "pipe"),
    (DescriptorKind::Event, "event"),
    (DescriptorKind::EventPoll, "eventpoll"),
    (DescriptorKind::Signal, "signalfd"),
    (DescriptorKind::Timer, "timerfd"),
    (DescriptorKind::Inotify, "inotify"),
    (DescriptorKind::Memfd, "memfd"),
    (DescriptorKind::Pidfd, "pidfd"),
    (DescriptorKind::Userfault, "userfaultfd"),
    (DescriptorKind::IoUring, "io_uring"),
    (DescriptorKind::Bpf, "bpf"),
    (DescriptorKind::Other, "other"),
];

pub(crate) fn show_descriptor(descriptor: &Descriptor<'_>) -> Value {
    let name = match descriptor.name {
        Name::None => Value::Null,
        Name::Unreadable => json!("?"),
        Name::Passed { raw, base } => json!({ "passed": text(raw), "base": base }),
        Name::Resolved(path) => json!({ "path": text(path) }),
        Name::Opened { raw, path } => json!({ "path": text(path), "passed": text(raw) }),
    };
    json!({
        "number": known(descriptor.number, |number| json!(number)),
        "kind": known(descriptor.kind, |kind| json!(word(kind, &KINDS))),
        "name": name,
        "socket": descriptor.socket.as_ref().map(show_socket),
        "device": known(descriptor.device, |device| json!(device)),
        "inode": known(descriptor.inode, |inode| json!(inode)),
    })
}

pub(crate) fn read_descriptor<'a>(value: &Value, arena: &'a Bump) -> Option<Descriptor<'a>> {
    let copy = |value: &Value| -> Option<&'a [u8]> {
        Some(arena.alloc_slice_copy(&bytes(value.as_str()?)?))
    };
    let name = match value.get("name")? {
        Value::Object(name) => match (name.get("path"), name.get("passed")) {
            (Some(path), None) => Name::Resolved(copy(path)?),
            (Some(path), Some(raw)) => Name::Opened {
                raw: copy(raw)?,
                path: copy(path)?,
            },
            (None, Some(raw)) => Name::Passed {
                raw: copy(raw)?,
                base: name
                    .get("base")
                    .and_then(Value::as_i64)
                    .and_then(|base| i32::try_from(base).ok()),
            },
            (None, None) => return None,
        },
        Value::String(_) => Name::Unreadable,
        _ => Name::None,
    };
    let socket = match value.get("socket") {
        None | Some(Value::Null) => None,
        Some(socket) => Some(read_socket(socket, arena)?),
    };
    Some(Descriptor {
        number: fact(value.get("number"), Value::as_i64),
        kind: fact(value.get("kind"), |word| value_of(word, &KINDS)),
        name,
        socket,
        device: fact(value.get("device"), Value::as_u64),
        inode: fact(value.get("inode"), Value::as_u64),
    })
}

fn fact<T>(value: Option<&Value>, read: impl FnOnce(&Value) -> Option<T>) -> Known<T> {
    match value {
        None | Some(Value::Null) => Known::Never,
        Some(value) => read(value).map_or(Known::NotYet, Known::Yes),
    }
}

fn show_socket(socket: &Socket<'_>) -> Value {
    json!({
        "transport": known(socket.transport, |transport| json!(word(transport, &TRANSPORTS))),
        "local": known(socket.local, endpoint),
        "remote": known(socket.remote, endpoint),
        "role": word(socket.role, &ROLES),
        "path": socket.unix_path.map(text),
        "connected": known(socket.connected, |is| json!(is)),
        "name_changed": known(socket.name_changed, |is| json!(is)),
    })
}

fn read_socket<'a>(value: &Value, arena: &'a Bump) -> Option<Socket<'a>> {
    let path = value.get("path").and_then(Value::as_str).and_then(bytes);
    Some(Socket {
        transport: fact(value.get("transport"), |word| value_of(word, &TRANSPORTS)),
        local: fact(value.get("local"), read_endpoint),
        remote: fact(value.get("remote"), read_endpoint),
        role: value_of(value.get("role")?, &ROLES)?,
        unix_path: path.map(|path| &*arena.alloc_slice_copy(&path)),
        connected: fact(value.get("connected"), Value::as_bool),
        name_changed: fact(value.get("name_changed"), Value::as_bool),
    })
}

/// What the event itself cannot tell of a call.
#[derive(Debug, Default)]
pub(crate) struct Rest<'e> {
    /// Name of the call, if it has no number in captures.
    pub(crate) kind: Option<&'e str>,
    /// Parameters by position.
    pub(crate) params: Vec<(usize, Value)>,
    /// The descriptor, if the event does not tell it as it was.
    pub(crate) descriptor: Option<Option<&'e Descriptor<'e>>>,
    /// What became of the call, if that is not a result.
    pub(crate) outcome: Option<Outcome>,
    /// The result, if the event has no place for it.
    pub(crate) result: Option<i64>,
    /// Sizes of the process, if a rule has asked for them.
    pub(crate) stat: Option<&'e Lookup<Stat>>,
    /// Directories among the arguments.
    pub(crate) directories: Vec<(i32, Lookup<Vec<u8>>)>,
    /// Leaders that were not to be found.
    pub(crate) strangers: Vec<(i32, Lookup<()>)>,
}

impl Rest<'_> {
    /// Nothing if there is nothing to tell.
    pub(crate) fn to_json(&self) -> Option<String> {
        let mut told = serde_json::Map::new();
        if !self.params.is_empty() {
            told.insert("params".to_owned(), json!(self.params));
        }
        if let Some(kind) = self.kind {
            told.insert("kind".to_owned(), json!(kind));
        }
        if let Some(descriptor) = self.descriptor {
            let shown = descriptor.map_or(Value::Null, show_descriptor);
            told.insert("descriptor".to_owned(), shown);
        }
        let outcome = self.outcome.and_then(|outcome| match outcome {
            Outcome::Returned(_) => None,
            Outcome::Pending => Some("pending"),
            Outcome::Unlearnt => Some("unlearnt"),
            Outcome::None => Some("none"),
        });
        if let Some(outcome) = outcome {
            told.insert("outcome".to_owned(), json!(outcome));
        }
        if let Some(result) = self.result {
            told.insert("outcome".to_owned(), json!(result));
        }
        if let Some(stat) = self.stat {
            told.insert("stat".to_owned(), lookup(stat, show_stat));
        }
        if !self.directories.is_empty() {
            let shown = self.directories.iter();
            let shown: Vec<Value> = shown
                .map(|(number, path)| json!([number, lookup(path, |path| json!(text(path)))]))
                .collect();
            told.insert("directories".to_owned(), shown.into());
        }
        if !self.strangers.is_empty() {
            let shown = self.strangers.iter();
            let shown: Vec<Value> = shown.map(|(pid, is)| json!([pid, there(is)])).collect();
            told.insert("strangers".to_owned(), shown.into());
        }
        (!told.is_empty()).then(|| Value::Object(told).to_string())
    }
}

/// What a note tells of the call that follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call(Value);

impl Call {
    pub(crate) fn of_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(Self)
    }

    /// Puts the parameters in that the event could not tell.
    pub(crate) fn correct<'a>(&self, params: &mut [Param<'a>], arena: &'a Bump) {
        let told = self.0.get("params").and_then(Value::as_array);
        for entry in told.into_iter().flatten() {
            let at = entry.get(0).and_then(Value::as_u64);
            let param = entry.get(1).and_then(|value| read_param(value, arena));
            let slot = at
                .and_then(|at| usize::try_from(at).ok())
                .and_then(|at| params.get_mut(at));
            if let (Some(slot), Some(param)) = (slot, param) {
                *slot = param;
            }
        }
    }

    /// Name of the call, if it has no number in captures.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.0.get("kind")?.as_str()
    }

    /// `None`: nothing is noted. `Some(None)`: the event has no descriptor.
    pub(crate) fn descriptor<'a>(&self, arena: &'a Bump) -> Option<Option<Descriptor<'a>>> {
        Some(read_descriptor(self.0.get("descriptor")?, arena))
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        let outcome = self.0.get("outcome")?;
        if let Some(result) = outcome.as_i64() {
            return Some(Outcome::Returned(result));
        }
        Some(match outcome.as_str()? {
            "pending" => Outcome::Pending,
            "none" => Outcome::None,
            _ => Outcome::Unlearnt,
        })
    }

    /// What an open directory among the arguments is called, if that is noted.
    pub(crate) fn directory(&self, number: i32) -> Option<Lookup<Vec<u8>>> {
        let noted = self.0.get("directories")?.as_array()?.iter();
        let mut noted = noted.filter(|entry| {
            let known = entry.get(0).and_then(Value::as_i64);
            known == Some(i64::from(number))
        });
        let entry = noted.next()?;
        Some(looked(entry.get(1), |path| {
            path.as_str()
                .filter(|path| path.starts_with('/'))
                .and_then(bytes)
        }))
    }

    /// Whether a process was not to be found when the event was recorded.
    pub(crate) fn stranger(&self, pid: i32) -> Option<Lookup<()>> {
        let noted = self.0.get("strangers")?.as_array()?;
        let is = |entry: &&Value| entry.get(0).and_then(Value::as_i64) == Some(i64::from(pid));
        let entry = noted.iter().find(is)?;
        Some(is_there(entry.get(1)))
    }

    pub(crate) fn stat(&self) -> Option<Lookup<Stat>> {
        Some(looked(Some(self.0.get("stat")?), read_stat))
    }
}
