//! What an event changes about the state.

use std::sync::Arc;

use event::field::normalize;
use event::{
    Comm, Credentials, DescriptorKind, DescriptorSource, ExecutableFile, ExecutableFlags, Param,
    Pid, Role, Stat, Status, Transport,
};

use super::decode::{Address, Ends as EventEnds};
use super::dialect::{Action, Exit};
use crate::bytes::{signed, unsigned, until_nul};
use crate::read::Params;
use crate::state::State;
use crate::state::descriptor::{Ends, Open, kind_of};
use crate::state::process::{Facts, Held, directory, number};

/// One event while it is carried out.
pub(crate) struct Happening<'e, 'b> {
    pub(crate) exit: &'e Exit,
    pub(crate) time_ns: u64,
    pub(crate) tid: i64,
    /// It tells of what is, not of what happens.
    pub(crate) is_description: bool,
    /// As the capture has them.
    pub(crate) raw: &'e Params<'b>,
    pub(crate) raw_enter: &'e Params<'b>,
    /// As the kind of event has them.
    pub(crate) params: &'e [Param<'b>],
    pub(crate) result: Option<i64>,
}

/// What has to be done after the event was looked at, because it shows what it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    Nothing,
    Close { process: usize, number: i64 },
    Forget { tid: i64 },
}

impl Happening<'_, '_> {
    /// Carries the event out; `slot` is its thread.
    pub(crate) fn apply(&self, state: &mut State, slot: usize) -> Afterwards {
        let process = state.thread(slot).process;
        if self.exit.action == Action::ProcessExit {
            return Afterwards::Forget { tid: self.tid };
        }
        let succeeded = self.result.is_some_and(|result| result >= 0);
        match self.exit.action {
            Action::Connect => self.connect(state, process),
            _ if !succeeded => {}
            Action::Close => {
                if let Some(number) = self.number() {
                    return Afterwards::Close { process, number };
                }
            }
            Action::Clone => self.clone_process(state, slot),
            Action::Exec => self.exec(state, process),
            Action::Open => self.open(state, process),
            Action::Socket => self.socket(state, process),
            Action::Accept => self.accept(state, process),
            Action::Bind => self.bind(state, process),
            Action::Send => self.exchange(state, process, Role::Client),
            Action::Receive => self.exchange(state, process, Role::Server),
            Action::Duplicate => self.duplicate(state, process),
            Action::Fcntl => self.fcntl(state, process),
            Action::Create(kind) => self.create(state, process, kind),
            Action::Pair(kind) => self.pair(state, process, kind),
            Action::CloseRange => self.close_range(state, process),
            Action::ChangeDirectory => self.change_directory(state, process),
            Action::SetIds => self.set_ids(state, process),
            Action::Session => self.session(state, process),
            Action::ProcessName => self.rename(state, process),
            Action::None | Action::ProcessExit => {}
        }
        Afterwards::Nothing
    }

    fn int(&self, name: &str) -> Option<i64> {
        as_int(self.params.get(self.exit.kind.param_index(name)?)?)
    }

    fn text(&self, name: &str) -> Option<&[u8]> {
        match self.params.get(self.exit.kind.param_index(name)?)? {
            Param::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Number of the event's descriptor, if it is an argument.
    fn number(&self) -> Option<i64> {
        as_int(self.params.get(self.exit.number?)?)
    }

    /// Bytes of a parameter of the capture's own event type, which processes are described by.
    fn told(&self, name: &str) -> Option<&[u8]> {
        let bytes = self.raw.get(self.exit.ty.param(name)?)?;
        (!bytes.is_empty()).then_some(bytes)
    }

    fn told_text(&self, name: &str) -> &[u8] {
        let text = self.told(name).map(until_nul).unwrap_or_default();
        // What capturing programs write for what they could not read.
        if text == b"<NA>" { b"" } else { text }
    }

    fn told_int(&self, name: &str) -> Option<i64> {
        self.told(name).and_then(signed)
    }

    fn told_id(&self, name: &str) -> Option<u32> {
        let id = self.told(name).and_then(unsigned)?;
        u32::try_from(id & u64::from(u32::MAX)).ok()
    }

    fn open(&self, state: &mut State, process: usize) {
        let DescriptorSource::Opened { name, flags } = self.exit.kind.spec().descriptor else {
            return;
        };
        let (Some(number), Some(Param::Text(raw))) =
            (self.result, self.params.get(usize::from(name)))
        else {
            return;
        };
        let flags = self.params.get(usize::from(flags)).and_then(as_int);
        let kind = opened_kind(flags.unwrap_or(0));
        let path = self.absolute(state, process, raw);
        let fact = |at: Option<usize>| match at.and_then(|at| self.params.get(at)) {
            Some(Param::Uint(fact)) => Some(*fact),
            _ => None,
        };
        let [device, inode] = self.exit.file;
        let file = [fact(device), fact(inode).filter(|inode| *inode != 0)];
        state.open_file(process, number, kind, &path, file);
    }

    /// The path that an opened name leads to, by text alone.
    fn absolute<'n>(
        &self,
        state: &State,
        process: usize,
        raw: &'n [u8],
    ) -> std::borrow::Cow<'n, [u8]> {
        if raw.first() == Some(&b'/') && is_plain(raw) {
            return raw.into();
        }
        let arena = bumpalo::Bump::new();
        let held = state.process(process);
        let base = self.exit.base.and_then(|at| self.params.get(at));
        let base = match base.and_then(as_int) {
            Some(number) if number >= 0 => held
                .descriptors
                .get(number)
                .map(|open| open.name.as_slice()),
            _ => Some(&*held.cwd),
        };
        match base {
            Some(base) if base.first() == Some(&b'/') || raw.first() == Some(&b'/') => {
                normalize(&arena, base, raw).to_vec().into()
            }
            _ => raw.into(),
        }
    }

    fn socket(&self, state: &mut State, process: usize) {
        let Some(number) = self.result else { return };
        let domain = self.int("domain").unwrap_or(-1);
        let kind = kind_of_family(domain);
        let mut open = Open::new(kind, b"");
        open.socket = Some(Ends {
            transport: transport(
                self.int("type").unwrap_or(0),
                self.int("proto").unwrap_or(0),
            ),
            ..Ends::NONE
        });
        state.open(process, number, open);
    }

    fn connect(&self, state: &mut State, process: usize) {
        const EINPROGRESS: i64 = -115;
        let Some(number) = self.number() else { return };
        let established =
            matches!(self.result, Some(result) if result >= 0 || result == EINPROGRESS);
        self.name_ends(state, process, number, |ends, event| {
            if let EventEnds::Inet {
                source,
                destination,
            } = event
            {
                ends.local = Some(source);
                ends.remote = Some(destination);
                ends.role = Role::Client;
            }
            ends.connected = established;
        });
    }

    fn accept(&self, state: &mut State, process: usize) {
        let Some(number) = self.result else { return };
        state.open(
            process,
            number,
            Open {
                kind: None,
                socket: Some(Ends {
                    transport: Transport::Tcp,
                    ..Ends::NONE
                }),
                ..Open::new(DescriptorKind::OtherSocket, b"")
            },
        );
        self.name_ends(state, process, number, |ends, event| {
            if let EventEnds::Inet {
                source,
                destination,
            } = event
            {
                ends.remote = Some(source);
                ends.local = Some(destination);
            }
            ends.role = Role::Server;
            ends.connected = true;
        });
    }

    /// A message between two ends that no connection ties together.
    fn exchange(&self, state: &mut State, process: usize, role: Role) {
        let Some(number) = self.number() else { return };
        self.name_ends(state, process, number, |ends, event| {
            let EventEnds::Inet {
                source,
                destination,
            } = event
            else {
                return;
            };
            let (local, remote) = match role {
                Role::Server => (destination, source),
                _ => (source, destination),
            };
            ends.local = Some(local);
            ends.remote = Some(remote);
            if ends.role == Role::Unknown {
                ends.role = role;
            }
        });
    }

    fn bind(&self, state: &mut State, process: usize) {
        let (Some(number), Some(bytes)) = (
            self.number(),
            self.exit.address.bytes(self.raw, self.raw_enter),
        ) else {
            return;
        };
        let address = super::decode::address(bytes);
        let mut open = self.known(state, process, number);
        let ends = open.socket.get_or_insert(Ends::NONE);
        match address {
            Some(Address::Inet(local)) => {
                ends.local = Some(local);
                ends.role = Role::Server;
                open.kind = Some(kind_of(local));
            }
            Some(Address::Unix(path)) => {
                open.kind = Some(DescriptorKind::Unix);
                open.name = path.to_vec();
            }
            None => return,
        }
        state.open(process, number, open);
    }

    /// Takes the ends of a connection into what is known of a descriptor.
    fn name_ends(
        &self,
        state: &mut State,
        process: usize,
        number: i64,
        take: impl FnOnce(&mut Ends, EventEnds<'_>),
    ) {
        let bytes = self.exit.ends.bytes(self.raw, self.raw_enter);
        let event = bytes.and_then(super::decode::ends);
        let Some(event) = event else { return };
        let mut open = self.known(state, process, number);
        match event {
            EventEnds::Inet { destination, .. } => open.kind = Some(kind_of(destination)),
            EventEnds::Unix(path) => {
                open.kind = Some(DescriptorKind::Unix);
                if !path.is_empty() {
                    open.name = path.to_vec();
                }
            }
        }
        take(open.socket.get_or_insert(Ends::NONE), event);
        state.open(process, number, open);
    }

    /// What is known of a descriptor, to be changed.
    fn known(&self, state: &State, process: usize, number: i64) -> Open {
        let known = state.process(process).descriptors.get(number);
        known.map_or_else(
            || Open {
                kind: None,
                ..Open::new(DescriptorKind::Other, b"")
            },
            |open| Open::clone(open),
        )
    }

    fn duplicate(&self, state: &mut State, process: usize) {
        if let (Some(from), Some(to)) = (self.number(), self.result) {
            copy(state, process, from, to);
        }
    }

    fn fcntl(&self, state: &mut State, process: usize) {
        /// `F_DUPFD`, `F_DUPFD_CLOEXEC`.
        const DUPLICATES: [i64; 2] = [0, 1030];
        if self.int("cmd").is_some_and(|cmd| DUPLICATES.contains(&cmd)) {
            self.duplicate(state, process);
        }
    }

    fn create(&self, state: &mut State, process: usize, kind: DescriptorKind) {
        if let Some(number) = self.result {
            let name = match kind {
                DescriptorKind::Memfd => self.text("name").unwrap_or_default(),
                _ => b"",
            };
            state.open(process, number, Open::new(kind, name));
        }
    }

    fn pair(&self, state: &mut State, process: usize, kind: DescriptorKind) {
        let inode = self.int("ino").map(i64::cast_unsigned);
        for name in ["fd1", "fd2"] {
            if let Some(number) = self.int(name) {
                let mut open = Open::new(kind, b"");
                open.inode = inode;
                open.socket = (kind == DescriptorKind::Unix).then_some(Ends {
                    connected: true,
                    ..Ends::NONE
                });
                state.open(process, number, open);
            }
        }
    }

    fn close_range(&self, state: &mut State, process: usize) {
        /// `CLOSE_RANGE_CLOEXEC`: nothing is closed yet.
        const LATER: i64 = 4;
        let flags = self.int("flags").unwrap_or(0);
        let (Some(first), Some(last)) = (self.int("first"), self.int("last")) else {
            return;
        };
        if flags & LATER != 0 {
            return;
        }
        for number in state.process(process).descriptors.numbers() {
            let number = i64::from(number);
            if (first..=last).contains(&number) {
                state.close(process, number);
            }
        }
    }

    fn change_directory(&self, state: &mut State, process: usize) {
        let held = state.process(process);
        let path = match (self.text("path"), self.number()) {
            (Some(path), _) => path.to_vec(),
            (None, Some(number)) => match held.descriptors.get(number) {
                Some(open) => open.name.clone(),
                None => return,
            },
            (None, None) => return,
        };
        let arena = bumpalo::Bump::new();
        let path = normalize(&arena, &held.cwd, &path);
        state.change(process, |held| held.cwd = directory(path));
    }

    fn set_ids(&self, state: &mut State, process: usize) {
        let Some(mut status) = state.process(process).status else {
            return;
        };
        // -1 leaves an id as it is.
        let id = |name: &str| {
            let id = self.int(name)?;
            u32::try_from(id & i64::from(u32::MAX))
                .ok()
                .filter(|id| *id != u32::MAX)
        };
        let pick = |names: &[&str]| names.iter().find_map(|name| id(name));
        let name = self.exit.kind.name();
        if name.ends_with("uid") {
            if let Some(uid) = pick(&["euid", "uid"]) {
                status.credentials.uid = uid;
            }
            if let Some(uid) = pick(&["ruid", "uid"]) {
                status.real_uid = uid;
            }
        } else if name.ends_with("gid") {
            if let Some(gid) = pick(&["egid", "gid"]) {
                status.credentials.gid = gid;
            }
        } else {
            let told =
                |name: &str, before: u64| self.told(name).and_then(unsigned).unwrap_or(before);
            status.cap_inheritable = told("cap_inheritable", status.cap_inheritable);
            status.cap_permitted = told("cap_permitted", status.cap_permitted);
            status.cap_effective = told("cap_effective", status.cap_effective);
        }
        state.process_mut(process).status = Some(status);
    }

    fn session(&self, state: &mut State, process: usize) {
        let Some(result) = self.result else { return };
        let name = self.exit.kind.name();
        let own = i64::from(state.process(process).process.pid.0);
        let pid = self.int("pid").filter(|pid| *pid != 0).unwrap_or(own);
        let Some(target) = state.peek(pid).map(|thread| thread.process) else {
            return;
        };
        let held = state.process_mut(target);
        if name == "setsid" {
            let session = number(result);
            if let Some(stat) = &mut held.stat {
                (stat.sid, stat.pgid, stat.tty) = (session, session, 0);
            }
            if let Some(status) = &mut held.status {
                (status.vsid, status.vpgid) = (status.vpid, status.vpid);
            }
            return;
        }
        let group = self.int("pgid").filter(|pgid| *pgid != 0).unwrap_or(pid);
        if let Some(stat) = &mut held.stat {
            stat.pgid = number(group);
        }
        if let Some(status) = &mut held.status {
            status.vpgid = number(group);
        }
    }

    fn rename(&self, state: &mut State, process: usize) {
        /// `PR_SET_NAME`.
        const SET_NAME: i64 = 15;
        let held = state.process(process);
        // Other threads than the first have names of their own.
        let is_first = i64::from(held.process.pid.0) == self.tid;
        if is_first
            && self.int("option") == Some(SET_NAME)
            && let Some(name) = self.text("arg2_str")
        {
            held.process.set_last_comm(Comm::new(name));
        }
    }

    fn clone_process(&self, state: &mut State, slot: usize) {
        /// Portable `CLONE_THREAD`.
        const THREAD: u64 = 1 << 13;
        /// The child is in another pid namespace: the parent's result is not its id.
        const IN_NAMESPACE: u64 = 1 << 29;
        let flags = self.told("flags").and_then(unsigned).unwrap_or(0);
        let is_thread = flags & THREAD != 0;
        let parent = state.thread(slot).process;
        match self.result {
            // The child's own event: it knows best who it is.
            Some(0) => self.begin_child(state, is_thread),
            Some(child) if flags & IN_NAMESPACE == 0 && state.peek(child).is_none() => {
                if is_thread {
                    state.add_thread(child, parent);
                } else {
                    let held = state.process(parent).child(child, self.time_ns);
                    state.add_process(child, held);
                }
            }
            _ => {}
        }
    }

    fn begin_child(&self, state: &mut State, is_thread: bool) {
        let own = self.told_int("tid").unwrap_or(self.tid);
        let pid = self.told_int("pid").unwrap_or(own);
        let parent = self.told_int("ptid").unwrap_or(-1);
        if is_thread {
            if let Some(process) = state.peek(pid).map(|thread| thread.process)
                && (own != pid || state.peek(own).is_none())
                && state.peek(own).is_none_or(|known| known.process != process)
            {
                state.add_thread(own, process);
            }
            // A process of which the capture did not tell before.
            if let Some(thread) = state.peek(own)
                && state.process(thread.process).is_nameless()
            {
                let process = thread.process;
                let status = self.status(state.process(process).status);
                state.process_mut(process).status = Some(status);
            }
            return;
        }
        if self.is_description {
            // Another process with the id of one that is gone.
            state.remove(own);
        }
        let known = state.peek(own).map(|thread| thread.process);
        let is_known = known.is_some_and(|process| !state.process(process).is_stranger);
        if !is_known {
            let held = match state.peek(parent) {
                Some(thread) => state.process(thread.process).child(own, self.time_ns),
                None => Held::stranger(own),
            };
            state.add_process(own, held);
        }
        if let Some(process) = state.peek(own).map(|thread| thread.process) {
            self.describe(state, process, false);
            let status = self.status(state.process(process).status);
            let held = state.process_mut(process);
            held.status = Some(status);
            held.stat.get_or_insert(self.stat(None, parent));
        }
    }

    fn exec(&self, state: &mut State, process: usize) {
        // An exec by another thread than the first ends all others and takes the first one's id.
        self.describe(state, process, true);
        let held = state.process(process);
        let (status, stat) = (self.status(held.status), self.stat(held.stat, held.parent));
        let login_uid = self.told_id("loginuid").or(held.login_uid);
        let parent = self.told_int("ptid").and_then(|parent| state.peek(parent));
        let parent = parent.filter(|thread| thread.process != process);
        let parent = parent.map(|thread| Arc::clone(&state.process(thread.process).process));
        let held = state.process_mut(process);
        held.status = Some(status);
        held.stat = Some(stat);
        held.login_uid = login_uid;
        if let Some(parent) = parent {
            held.adopt(parent);
        }
    }

    /// Takes over program, arguments and directory as the event tells them.
    fn describe(&self, state: &mut State, process: usize, is_new_program: bool) {
        let held = state.process(process);
        let before = &held.image;
        let path = if is_new_program {
            self.exe_path(held)
        } else {
            before.executable.get().cloned().flatten()
        };
        let file = if is_new_program {
            self.file()
        } else {
            before.executable_file.get().copied().flatten()
        };
        let is_writable = if is_new_program {
            self.told("flags")
                .and_then(unsigned)
                .map(|flags| flags & 1 != 0)
        } else {
            before.executable_writable.get().copied().flatten()
        };
        let env = match self.told("env") {
            Some(env) => Some(env.to_vec()),
            None => before.environment.get().cloned().flatten(),
        };
        let comm = self.told_text("comm");
        let comm = if comm.is_empty() {
            held.process.last_comm().as_bytes().to_vec()
        } else {
            comm.to_vec()
        };
        let facts = Facts {
            pid: i64::from(held.process.pid.0),
            parent: held.parent,
            comm: &comm,
            exe: self.told_text("exe"),
            exe_path: path.as_deref(),
            args: self.told("args").unwrap_or_default(),
            env: env.as_deref(),
            cwd: self.told_text("cwd"),
            cgroups: self.told("cgroups").unwrap_or_default(),
            file,
            is_writable,
        };
        let time = if is_new_program {
            self.time_ns
        } else {
            before.exec_time_ns
        };
        if !is_new_program && facts.exe.is_empty() {
            return;
        }
        state.change(process, |held| held.exec(&facts, time));
    }

    /// The program's path: the kernel's where the capture has it, or what the call named.
    fn exe_path(&self, held: &Held) -> Option<Vec<u8>> {
        let trusted = self.told_text("trusted_exepath");
        if !trusted.is_empty() {
            let path = trusted.strip_suffix(b" (deleted)").unwrap_or(trusted);
            return Some(path.to_vec());
        }
        let named = ["filename", "pathname"]
            .iter()
            .find_map(|name| self.text(name))?;
        let arena = bumpalo::Bump::new();
        Some(normalize(&arena, &held.cwd, named).to_vec())
    }

    fn file(&self) -> Option<ExecutableFile> {
        let flags = self.told("flags").and_then(unsigned)?;
        let number = |name: &str| self.told(name).and_then(unsigned).unwrap_or(0);
        Some(ExecutableFile {
            flags: ExecutableFlags {
                upper_layer: Some(flags & 2 != 0),
                from_memfd: flags & 4 != 0,
                lower_layer: Some(flags & 8 != 0),
            },
            inode: number("exe_ino"),
            ctime_ns: number("exe_ino_ctime"),
            mtime_ns: number("exe_ino_mtime"),
        })
    }

    fn status(&self, before: Option<Status>) -> Status {
        let capability = |name: &str, before: fn(&Status) -> u64, known: Option<Status>| {
            let told = self.told(name).and_then(unsigned);
            told.or(known.as_ref().map(before)).unwrap_or(0)
        };
        let id = |name: &str, before: Option<u32>| self.told_id(name).or(before);
        let own = |name: &str, before: Option<i32>| {
            let told = self.told_int(name).map(number);
            told.or(before).unwrap_or(-1)
        };
        let credentials = Credentials {
            uid: id("uid", before.map(|known| known.credentials.uid)).unwrap_or(u32::MAX),
            gid: id("gid", before.map(|known| known.credentials.gid)).unwrap_or(u32::MAX),
        };
        let group = self
            .told("vpgid")
            .and_then(unsigned)
            .map(|group| number(group.cast_signed()));
        Status {
            credentials,
            real_uid: before.map_or(credentials.uid, |known| known.real_uid),
            cap_inheritable: capability("cap_inheritable", |known| known.cap_inheritable, before),
            cap_permitted: capability("cap_permitted", |known| known.cap_permitted, before),
            cap_effective: capability("cap_effective", |known| known.cap_effective, before),
            cap_bounding: before.map_or(0, |known| known.cap_bounding),
            vpid: own(
                "vpid",
                before
                    .map(|known| known.vpid)
                    .or(self.told_int("pid").map(number)),
            ),
            vtid: own(
                "vtid",
                before
                    .map(|known| known.vtid)
                    .or(self.told_int("tid").map(number)),
            ),
            vpgid: group.or(before.map(|known| known.vpgid)).unwrap_or(-1),
            vsid: before.map_or(-1, |known| known.vsid),
        }
    }

    fn stat(&self, before: Option<Stat>, parent: i64) -> Stat {
        let told = |name: &str| self.told(name).and_then(unsigned);
        let group = told("pgid").or_else(|| told("vpgid"));
        let group = group.map(|group| number(group.cast_signed()));
        Stat {
            ppid: Pid(number(self.told_int("ptid").unwrap_or(parent))),
            pgid: group.or(before.map(|known| known.pgid)).unwrap_or(-1),
            sid: before.map_or(-1, |known| known.sid),
            tty: self
                .told_id("tty")
                .unwrap_or(before.map_or(0, |known| known.tty)),
            tpgid: before.map_or(-1, |known| known.tpgid),
            threads: before.map_or(1, |known| known.threads),
            vm_size_kib: told("vm_size").unwrap_or(0),
            vm_rss_kib: told("vm_rss").unwrap_or(0),
        }
    }
}

fn copy(state: &mut State, process: usize, from: i64, to: i64) {
    if let Some(open) = state.process(process).descriptors.get(from) {
        let open = Arc::clone(open);
        state.open_shared(process, to, open);
    }
}

pub(crate) fn as_int(param: &Param<'_>) -> Option<i64> {
    match param {
        Param::Int(value) => Some(*value),
        Param::Uint(value) => Some(value.cast_signed()),
        _ => None,
    }
}

/// Whether a path that begins with a slash surely is its own normal form.
fn is_plain(path: &[u8]) -> bool {
    let pairs = path.iter().zip(&path[1..]);
    let odd = pairs.fold(false, |odd, (first, second)| {
        odd | ((*first == b'/') & ((*second == b'/') | (*second == b'.')))
    });
    !odd && (path.len() == 1 || path.last() != Some(&b'/'))
}

pub(crate) fn opened_kind(flags: i64) -> DescriptorKind {
    let arch = abi::Arch::native().unwrap_or(abi::Arch::X86_64);
    let flag = |name| abi::flags::OPEN.value_of(arch, name).unwrap_or(0);
    let (directory, temporary) = (flag("O_DIRECTORY"), flag("O_TMPFILE"));
    let flags = flags.cast_unsigned();
    if flags & directory != 0 && flags & temporary != temporary {
        DescriptorKind::Directory
    } else {
        DescriptorKind::File
    }
}

fn kind_of_family(family: i64) -> DescriptorKind {
    match family {
        1 => DescriptorKind::Unix,
        2 => DescriptorKind::Ipv4,
        10 => DescriptorKind::Ipv6,
        16 => DescriptorKind::Netlink,
        _ => DescriptorKind::OtherSocket,
    }
}

/// The protocol that `socket` chooses; 0 stands for the usual one of the type.
fn transport(socket_type: i64, protocol: i64) -> Transport {
    match (socket_type & 0xf, protocol) {
        (_, 1 | 58) => Transport::Icmp,
        (3, _) => Transport::Raw,
        (1, 0 | 6) => Transport::Tcp,
        (2, 0 | 17) => Transport::Udp,
        _ => Transport::Unknown,
    }
}
