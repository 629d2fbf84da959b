//! Hand-made events for tests, available only with the feature `testing`, which no product build has.

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bumpalo::Bump;

use crate::field::Field;
use crate::{
    Absence, Comm, CommandLine, Container, Descriptor, DescriptorKind, DescriptorSource, Evaluator,
    Event, EventKind, ExecutableFile, Group, Image, Known, LiveProcess, Lookup, Name, Outcome,
    Param, ParamSource, Pid, Process, Relevance, Socket, Stage, StartTime, Stat, Status,
    SystemInfo, Tid, User,
};

/// Answers of a [`FakeSystemInfo`] about one process. Unset facts are unknown.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Command name at exec.
    pub comm: Lookup<Comm>,
    /// Current name of its threads.
    pub thread_name: Lookup<Comm>,
    /// Process group, session and terminal.
    pub stat: Lookup<Stat>,
    /// Credentials.
    pub status: Lookup<Status>,
    /// Arguments.
    pub command_line: Lookup<CommandLine>,
    /// Path of the executable.
    pub executable: Lookup<Vec<u8>>,
    /// Facts about the executable file.
    pub executable_file: Lookup<ExecutableFile>,
    /// Whether the process's user may write the executable file.
    pub executable_writable: Lookup<bool>,
    /// Environment.
    pub environment: Lookup<Vec<u8>>,
    /// Login uid.
    pub login_uid: Lookup<u32>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            comm: Lookup::Unknown,
            thread_name: Lookup::Unknown,
            stat: Lookup::Unknown,
            status: Lookup::Unknown,
            command_line: Lookup::Unknown,
            executable: Lookup::Unknown,
            executable_file: Lookup::Unknown,
            executable_writable: Lookup::Unknown,
            environment: Lookup::Unknown,
            login_uid: Lookup::Unknown,
        }
    }
}

/// A [`SystemInfo`] that answers from tables.
#[derive(Clone, Debug)]
pub struct FakeSystemInfo {
    /// Facts by process.
    pub facts: HashMap<Pid, Facts>,
    /// Processes by pid.
    pub processes: HashMap<Pid, Arc<Process>>,
    /// Working directory (`None`) and directories of open descriptors; others are unknown.
    pub directories: HashMap<Option<i32>, Lookup<Vec<u8>>>,
    /// Container of every process.
    pub container: Arc<Container>,
    /// Users; others do not exist.
    pub users: HashMap<u32, Arc<User>>,
    /// Groups; others do not exist.
    pub groups: HashMap<u32, Arc<Group>>,
    /// Host names; others do not exist.
    pub addresses: HashMap<String, Arc<[IpAddr]>>,
    /// Open descriptors with their kind and name.
    pub descriptors: BTreeMap<i32, (DescriptorKind, Vec<u8>)>,
    /// Host name.
    pub host_name: String,
    /// Offset of local time in seconds east of Greenwich.
    pub utc_offset: i32,
}

impl Default for FakeSystemInfo {
    fn default() -> Self {
        Self {
            facts: HashMap::new(),
            processes: HashMap::new(),
            directories: HashMap::new(),
            container: Arc::new(Container::unknown()),
            users: HashMap::new(),
            groups: HashMap::new(),
            addresses: HashMap::new(),
            descriptors: BTreeMap::new(),
            host_name: "testhost".to_owned(),
            utc_offset: 0,
        }
    }
}

impl FakeSystemInfo {
    fn of<T: Clone>(&self, process: &Process, part: fn(&Facts) -> &Lookup<T>) -> Lookup<T> {
        self.facts
            .get(&process.pid)
            .map_or(Lookup::Unknown, |facts| part(facts).clone())
    }
}

fn table<T>(found: Option<T>) -> Lookup<T> {
    found.map_or(Lookup::Missing, Lookup::Found)
}

impl SystemInfo for FakeSystemInfo {
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        match self.of(process, |facts| &facts.comm) {
            Lookup::Unknown if !self.facts.contains_key(&process.pid) => {
                Lookup::Found(process.exec_name())
            }
            answer => answer,
        }
    }

    fn thread_name(&self, process: &Process, _: Tid) -> Lookup<Comm> {
        self.of(process, |facts| &facts.thread_name)
    }

    fn stat(&self, process: &Process) -> Lookup<Stat> {
        self.of(process, |facts| &facts.stat)
    }

    fn status(&self, process: &Process, _: Tid) -> Lookup<Status> {
        self.of(process, |facts| &facts.status)
    }

    fn command_line(&self, process: &Process, _: &Image) -> Lookup<CommandLine> {
        self.of(process, |facts| &facts.command_line)
    }

    fn executable(&self, process: &Process, _: &Image) -> Lookup<Vec<u8>> {
        self.of(process, |facts| &facts.executable)
    }

    fn executable_file(&self, process: &Process, _: &Image) -> Lookup<ExecutableFile> {
        self.of(process, |facts| &facts.executable_file)
    }

    fn executable_writable(&self, process: &Process, _: &Image) -> Lookup<bool> {
        self.of(process, |facts| &facts.executable_writable)
    }

    fn environment(&self, process: &Process, _: &Image) -> Lookup<Vec<u8>> {
        self.of(process, |facts| &facts.environment)
    }

    fn login_uid(&self, process: &Process) -> Lookup<u32> {
        self.of(process, |facts| &facts.login_uid)
    }

    fn directory<'a>(&self, _: Tid, descriptor: Option<i32>, arena: &'a Bump) -> Lookup<&'a [u8]> {
        match self.directories.get(&descriptor) {
            Some(Lookup::Found(path)) => Lookup::Found(arena.alloc_slice_copy(path)),
            Some(Lookup::Missing) => Lookup::Missing,
            Some(Lookup::Unknown) | None => Lookup::Unknown,
        }
    }

    fn container(&self, _: &Process) -> Arc<Container> {
        Arc::clone(&self.container)
    }

    fn user(&self, _: &Process, uid: u32) -> Lookup<Arc<User>> {
        table(self.users.get(&uid).cloned())
    }

    fn group(&self, _: &Process, gid: u32) -> Lookup<Arc<Group>> {
        table(self.groups.get(&gid).cloned())
    }

    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        table(self.processes.get(&pid).cloned())
    }

    fn addresses(&self, host_name: &str) -> Lookup<Arc<[IpAddr]>> {
        table(self.addresses.get(host_name).cloned())
    }

    fn descriptor_type(&self, _: Tid, number: i32) -> Lookup<DescriptorKind> {
        table(self.descriptors.get(&number).map(|(kind, _)| *kind))
    }

    fn open_descriptors<'a>(&self, _: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
        Lookup::Found(
            arena.alloc_slice_fill_iter(self.descriptors.keys().copied().collect::<Vec<_>>()),
        )
    }

    fn descriptor_name<'a>(&self, _: Tid, number: i32, arena: &'a Bump) -> Lookup<&'a [u8]> {
        let name = self.descriptors.get(&number).map(|(_, name)| name);
        table(name.map(|name| &*arena.alloc_slice_copy(name)))
    }

    fn utc_offset(&self) -> i32 {
        self.utc_offset
    }

    fn host_name(&self) -> &str {
        &self.host_name
    }
}

/// Creates a process with the given command line, and with executable and environment set.
pub fn process(pid: i32, parent: Option<&Arc<Process>>, command: &[&str]) -> Arc<Process> {
    let path = command.first().copied().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let start_ns = 1_000_000_000;
    Arc::new(Process::new(
        Pid(pid),
        StartTime(100),
        start_ns,
        parent.cloned(),
        image(command),
        Comm::new(name.as_bytes()),
    ))
}

/// Creates an image with the given command line, and with executable and environment set.
pub fn image(command: &[&str]) -> Arc<Image> {
    let path = command.first().copied().unwrap_or_default();
    let args = command
        .iter()
        .skip(1)
        .map(|arg| arg.as_bytes().to_vec())
        .collect();
    Arc::new(Image {
        exec_time_ns: 0,
        name: OnceLock::new(),
        command_line: OnceLock::from(Some(CommandLine {
            exe: path.as_bytes().to_vec(),
            args,
            truncated: false,
        })),
        executable: OnceLock::from(Some(path.as_bytes().to_vec())),
        executable_writable: OnceLock::from(Some(false)),
        executable_file: OnceLock::from(Some(ExecutableFile {
            flags: crate::ExecutableFlags::default(),
            inode: 7,
            ctime_ns: 500_000_000,
            mtime_ns: 400_000_000,
        })),
        environment: OnceLock::from(Some(b"HOME=/root\0LANG=C\0".to_vec())),
    })
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Unreadable in the caller's memory.
    Unreadable,
    /// Signed number.
    Int(i64),
    /// Unsigned number.
    Uint(u64),
    /// Text or path.
    Text(Vec<u8>),
    /// Several texts.
    Texts(Vec<Vec<u8>>),
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self::Int(value.into())
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self::Uint(value)
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }
}

/// Builds one event at any of its stages, as an engine that follows the event table would.
#[derive(Debug)]
pub struct EventBuilder {
    kind: EventKind,
    args: Vec<Option<Arg>>,
    outcome: Outcome,
    process: Arc<Process>,
    image: Arc<Image>,
    image_after: Option<Arc<Image>>,
    tid: Option<Tid>,
    socket: Option<Socket<'static>>,
    descriptor_kind: Known<DescriptorKind>,
    resolved: Option<Vec<u8>>,
    device: Known<u64>,
    inode: Known<u64>,
    late: bool,
    world: FakeSystemInfo,
    world_after: Option<FakeSystemInfo>,
    time_ns: u64,
    live: LiveProcess,
    arena: Bump,
}

impl EventBuilder {
    /// Creates an event of this name that returned 0, by `/bin/test` with pid 42.
    ///
    /// # Panics
    ///
    /// Panics if there is no such event.
    pub fn new(name: &str) -> Self {
        let kind = EventKind::from_name(name).expect("the test names an event that exists");
        let process = process(42, None, &["/bin/test"]);
        Self {
            kind,
            args: vec![None; kind.spec().params.len()],
            outcome: if kind.has_result() {
                Outcome::Returned(0)
            } else {
                Outcome::None
            },
            image: process.image(),
            process,
            image_after: None,
            tid: None,
            socket: None,
            descriptor_kind: Known::Never,
            resolved: None,
            device: Known::Never,
            inode: Known::Never,
            late: false,
            world: FakeSystemInfo::default(),
            world_after: None,
            time_ns: 1_700_000_000_123_456_789,
            live: LiveProcess::default(),
            arena: Bump::new(),
        }
    }

    /// Sets a parameter.
    ///
    /// # Panics
    ///
    /// Panics if the event has no such parameter.
    #[must_use]
    pub fn arg(mut self, name: &str, value: impl Into<Arg>) -> Self {
        let at = self
            .kind
            .param_index(name)
            .expect("the test names a parameter that exists");
        self.args[at] = Some(value.into());
        self
    }

    /// Sets the result.
    #[must_use]
    pub fn result(mut self, result: i64) -> Self {
        self.outcome = Outcome::Returned(result);
        self
    }

    /// Makes the result unavailable.
    #[must_use]
    pub fn unlearnt(mut self) -> Self {
        self.outcome = Outcome::Unlearnt;
        self
    }

    /// Sets the calling process.
    #[must_use]
    pub fn process(mut self, process: &Arc<Process>) -> Self {
        self.process = Arc::clone(process);
        self.image = process.image();
        self
    }

    /// Sets the program that runs after the call.
    #[must_use]
    pub fn image_after(mut self, image: Arc<Image>) -> Self {
        self.image_after = Some(image);
        self
    }

    /// Sets the calling thread; by default the first of the process.
    #[must_use]
    pub fn tid(mut self, tid: i32) -> Self {
        self.tid = Some(Tid(tid));
        self
    }

    /// Sets the kind of the descriptor.
    #[must_use]
    pub fn descriptor(mut self, kind: DescriptorKind) -> Self {
        self.descriptor_kind = Known::Yes(kind);
        self
    }

    /// Sets the path of an open descriptor.
    #[must_use]
    pub fn resolved(mut self, path: &str) -> Self {
        self.resolved = Some(path.as_bytes().to_vec());
        self
    }

    /// Sets the facts about the socket.
    #[must_use]
    pub fn socket(mut self, kind: DescriptorKind, socket: Socket<'static>) -> Self {
        self.descriptor_kind = Known::Yes(kind);
        self.socket = Some(socket);
        self
    }

    /// Sets device and inode.
    #[must_use]
    pub fn inode(mut self, device: u64, inode: u64) -> Self {
        self.device = Known::Yes(device);
        self.inode = Known::Yes(inode);
        self
    }

    /// Delays the facts about the descriptor to the call's exit.
    #[must_use]
    pub fn late(mut self, late: bool) -> Self {
        self.late = late;
        self
    }

    /// Sets the source of system facts.
    #[must_use]
    pub fn world(mut self, world: FakeSystemInfo) -> Self {
        self.world = world;
        self
    }

    /// Sets the source of system facts after the call.
    #[must_use]
    pub fn world_after(mut self, world: FakeSystemInfo) -> Self {
        self.world_after = Some(world);
        self
    }

    /// Sets the time.
    #[must_use]
    pub fn time_ns(mut self, time_ns: u64) -> Self {
        self.time_ns = time_ns;
        self
    }

    /// Returns the event with the facts known at a stage. Answers of the [`SystemInfo`] are kept for later
    /// stages, as in an engine.
    pub fn at(&self, stage: Stage) -> Event<'_> {
        let after = stage == Stage::Exit;
        let outcome = match self.outcome {
            Outcome::None => Outcome::None,
            outcome if after => outcome,
            _ => Outcome::Pending,
        };
        let world = if after {
            self.world_after.as_ref()
        } else {
            None
        };
        let image = if after {
            self.image_after.as_ref()
        } else {
            None
        };
        let params = (0..self.args.len())
            .map(|at| self.param(at, stage))
            .collect::<Vec<_>>();
        Event {
            number: 1,
            time_ns: self.time_ns,
            kind: self.kind,
            stage,
            cpu: Some(0),
            tid: self.tid.unwrap_or(Tid(self.process.pid.0)),
            process: &self.process,
            image: Arc::clone(image.unwrap_or(&self.image)),
            params: self.arena.alloc_slice_fill_iter(params),
            descriptor: self.descriptor_at(stage),
            outcome,
            world: world.unwrap_or(&self.world),
            live: &self.live,
            arena: &self.arena,
        }
    }

    /// Returns the event with all facts known.
    pub fn complete(&self) -> Event<'_> {
        self.at(Stage::Exit)
    }

    fn param(&self, at: usize, stage: Stage) -> Param<'_> {
        let needed = match self.kind.spec().params[at].source {
            ParamSource::Result => {
                return match (stage, self.outcome) {
                    (Stage::Exit, Outcome::Returned(result)) => Param::Int(result),
                    _ => Param::Pending,
                };
            }
            ParamSource::Tuple => return Param::Tuple,
            ParamSource::Constant(value) => return Param::Uint(value),
            ParamSource::Register(_) => Stage::Registers,
            ParamSource::Process | ParamSource::Nowhere => Stage::Exit,
            ParamSource::Path { .. }
            | ParamSource::Text(_)
            | ParamSource::Texts(_)
            | ParamSource::Field { .. }
            | ParamSource::Buffer { .. } => Stage::Strings,
        };
        match &self.args[at] {
            _ if stage < needed => Param::Pending,
            None => Param::Absent(Absence::recorded()),
            Some(Arg::Unreadable) => Param::Unreadable,
            Some(Arg::Int(value)) => Param::Int(*value),
            Some(Arg::Uint(value)) => Param::Uint(*value),
            Some(Arg::Text(text)) => Param::Text(text),
            Some(Arg::Texts(texts)) => Param::Texts(
                self.arena
                    .alloc_slice_fill_iter(texts.iter().map(Vec::as_slice)),
            ),
        }
    }

    fn descriptor_at(&self, stage: Stage) -> Option<Descriptor<'_>> {
        let number = |known: i64, needed| {
            if stage < needed {
                Known::NotYet
            } else {
                Known::Yes(known)
            }
        };
        let (number, name) = match self.kind.spec().descriptor {
            DescriptorSource::None => return None,
            DescriptorSource::Opened { name, .. } => (
                self.result_number(stage),
                self.opened_name(usize::from(name), stage),
            ),
            DescriptorSource::CreatedSocket
            | DescriptorSource::Created(_)
            | DescriptorSource::Accepted(_)
            | DescriptorSource::Duplicated(_) => (self.result_number(stage), self.resolved_name()),
            DescriptorSource::Argument(register)
            | DescriptorSource::Addressed { fd: register, .. }
            | DescriptorSource::Message { fd: register, .. } => (
                number(self.register(register), Stage::Registers),
                self.resolved_name(),
            ),
        };
        let kind = self.later(self.descriptor_kind, stage);
        let socket = self.socket.map(|socket| Socket {
            transport: self.later(socket.transport, stage),
            local: self.later(socket.local, stage),
            remote: self.later(socket.remote, stage),
            connected: self.later(socket.connected, stage),
            name_changed: self.later(socket.name_changed, stage),
            ..socket
        });
        let device = self.later(self.device, stage);
        let inode = self.later(self.inode, stage);
        Some(Descriptor {
            number,
            kind,
            name,
            socket,
            device,
            inode,
        })
    }

    fn later<T>(&self, fact: Known<T>, stage: Stage) -> Known<T> {
        if self.late && stage < Stage::Exit {
            Known::NotYet
        } else {
            fact
        }
    }

    fn result_number(&self, stage: Stage) -> Known<i64> {
        match self.outcome {
            _ if stage < Stage::Exit => Known::NotYet,
            Outcome::Returned(result) => Known::Yes(result.max(-1)),
            Outcome::Unlearnt | Outcome::Pending => Known::NotYet,
            Outcome::None => Known::Never,
        }
    }

    fn resolved_name(&self) -> Name<'_> {
        self.resolved.as_deref().map_or(Name::None, Name::Resolved)
    }

    fn opened_name(&self, at: usize, stage: Stage) -> Name<'_> {
        match self.param(at, stage) {
            Param::Text(raw) => Name::Passed {
                raw,
                base: self.base(at),
            },
            Param::Unreadable => Name::Unreadable,
            _ => self.resolved_name(),
        }
    }

    fn base(&self, at: usize) -> Option<i32> {
        let ParamSource::Path {
            base: Some(register),
            ..
        } = self.kind.spec().params[at].source
        else {
            return None;
        };
        let number = i32::try_from(self.register(register)).ok()?;
        (number != abi::argument::AT_FDCWD).then_some(number)
    }

    fn register(&self, register: u8) -> i64 {
        let mut params = self.kind.spec().params.iter();
        let at = params.position(|param| param.source == ParamSource::Register(register));
        match at.and_then(|at| self.args[at].as_ref()) {
            Some(Arg::Int(value)) => *value,
            Some(Arg::Uint(value)) => value.cast_signed(),
            _ => -1,
        }
    }
}

/// An evaluator that reads fields of each class from every event and discards the values: for inputs that may
/// cause harm.
#[derive(Debug)]
pub struct FieldReader(Vec<Field>);

impl Default for FieldReader {
    fn default() -> Self {
        let names = [
            "evt.args",
            "evt.arg.flags",
            "evt.time",
            "proc.cmdline",
            "proc.acmdline",
            "proc.aname",
            "proc.env",
            "proc.cwd",
            "proc.exepath",
            "proc.duration",
            "thread.cap_effective",
            "fd.name",
            "fd.nameraw",
            "fd.sip",
            "fd.types",
            "fs.path.name",
            "user.name",
            "group.name",
            "container.id",
            "k8s.pod.name",
        ];
        let field = |name| Field::parse(name).expect("there is such a field");
        Self(names.into_iter().map(field).collect())
    }
}

impl Evaluator for FieldReader {
    type Scratch = ();

    fn scratch(&self) {}

    fn prefilter(&self, (): &mut (), _: &Event<'_>) -> Relevance {
        Relevance::Undecided
    }

    fn evaluate(&self, (): &mut (), event: &Event<'_>) -> Vec<Arc<str>> {
        for field in &self.0 {
            let _answer = field.extract(event);
        }
        Vec::new()
    }
}
