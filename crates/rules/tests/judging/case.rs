//! Test events: one system call with all of its facts, viewed at any stage.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use abi::Syscall;
use bumpalo::Bump;
use event::{
    Absence, Comm, CommandLine, Container, Containment, Credentials, Descriptor, DescriptorKind,
    DescriptorSource, Endpoint, Event, EventKind, ExecutableFile, ExecutableFlags, Group, Image,
    Known, LiveProcess, Lookup, Name, Outcome, Param, ParamSource, ParamType, Pid, Process, Role,
    Socket, Stage, StartTime, Stat, Status, SystemInfo, Tid, Transport, User,
};

/// One call by one process.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) call: Syscall,
    pub(crate) time_ns: u64,
    pub(crate) registers: [u64; 6],
    /// Content of paths and texts; `None` if the caller's memory is unreadable.
    pub(crate) text: Option<Vec<u8>>,
    /// Value of integers in structures.
    pub(crate) number: u64,
    /// Result; `None` if it stays unavailable.
    pub(crate) result: Option<i64>,
    /// Kind of the process's descriptors.
    pub(crate) descriptor: DescriptorKind,
    pub(crate) port: u16,
    /// Names of the process and its ancestors, nearest first.
    pub(crate) names: Vec<&'static str>,
    pub(crate) args: Vec<&'static str>,
    pub(crate) uid: u32,
    pub(crate) tty: u32,
    pub(crate) containment: Containment,
    /// Whether facts about the process are available.
    pub(crate) visible: bool,
}

impl Case {
    /// Creates an ordinary process that makes a call.
    pub(crate) fn new(call: Syscall, registers: [u64; 6]) -> Self {
        Self {
            call,
            time_ns: 1_700_000_000_123_456_789,
            registers,
            text: Some(b"/home/u/file".to_vec()),
            number: 0,
            result: Some(0),
            descriptor: DescriptorKind::File,
            port: 80,
            names: vec!["cat", "bash", "sshd"],
            args: vec!["-n", "file"],
            uid: 1000,
            tty: 0,
            containment: Containment::Host,
            visible: true,
        }
    }

    /// Passes the call at a stage to `look`.
    pub(crate) fn at<T>(&self, stage: Stage, look: impl FnOnce(&Event<'_>) -> T) -> T {
        let arena = Bump::new();
        self.at_in(stage, &arena, look)
    }

    /// Passes the call at a stage to `look`, with the caller's arena.
    pub(crate) fn at_in<T>(
        &self,
        stage: Stage,
        arena: &Bump,
        look: impl FnOnce(&Event<'_>) -> T,
    ) -> T {
        let process = self.process();
        let live = LiveProcess::default();
        let texts: Vec<&[u8]> = self.args.iter().map(|arg| arg.as_bytes()).collect();
        let params = self.params(stage, &texts);
        let event = Event {
            number: 7,
            time_ns: self.time_ns,
            kind: EventKind::of_syscall(self.call),
            stage,
            cpu: Some(1),
            tid: Tid(100),
            process: &process,
            image: process.image(),
            params: &params,
            descriptor: self.event_descriptor(stage),
            outcome: match (stage, self.result) {
                (Stage::Exit, Some(result)) => Outcome::Returned(result),
                (Stage::Exit, None) => Outcome::Unlearnt,
                _ => Outcome::Pending,
            },
            world: self,
            live: &live,
            arena,
        };
        look(&event)
    }

    fn process(&self) -> Process {
        let mut parent = None;
        for (level, name) in self.names.iter().enumerate().rev() {
            let pid = Pid(100 - i32::try_from(level).expect("few ancestors"));
            let image = Arc::new(Image::default());
            let process = Process::new(
                pid,
                StartTime(5),
                5_000,
                parent,
                image,
                Comm::new(name.as_bytes()),
            );
            if level == 0 {
                return process;
            }
            parent = Some(Arc::new(process));
        }
        unreachable!("there is at least one name")
    }

    fn params<'a>(&'a self, stage: Stage, texts: &'a [&'a [u8]]) -> Vec<Param<'a>> {
        let spec = EventKind::of_syscall(self.call).spec();
        let from_memory = |param: Param<'a>| match stage {
            Stage::Registers => Param::Pending,
            _ if self.text.is_none() => Param::Unreadable,
            _ => param,
        };
        let text = Param::Text(self.text.as_deref().unwrap_or_default());
        let one = |param: &event::ParamSpec| match param.source {
            ParamSource::Result | ParamSource::Process => Param::Pending,
            ParamSource::Register(position) => self.register(position, param.ty),
            ParamSource::Path { .. } | ParamSource::Text(_) | ParamSource::Buffer { .. } => {
                from_memory(text)
            }
            ParamSource::Texts(_) => from_memory(Param::Texts(texts)),
            ParamSource::Field { .. } => from_memory(Param::Uint(self.number)),
            ParamSource::Tuple => Param::Tuple,
            ParamSource::Constant(_) | ParamSource::Nowhere => Param::Absent(Absence::recorded()),
        };
        spec.params.iter().map(one).collect()
    }

    fn register(&self, position: u8, ty: ParamType) -> Param<'static> {
        let position = usize::from(position);
        let arg = &self.call.args()[position];
        let value = arg.effective(self.registers[position]);
        let signed = matches!(ty, ParamType::Fd | ParamType::Int | ParamType::Pid);
        match (signed, arg.is_low32()) {
            (false, _) => Param::Uint(value),
            (true, false) => Param::Int(value.cast_signed()),
            (true, true) => {
                let low = u32::try_from(value).expect("cut to 32 bits");
                Param::Int(low.cast_signed().into())
            }
        }
    }

    fn event_descriptor(&self, stage: Stage) -> Option<Descriptor<'_>> {
        let source = EventKind::of_syscall(self.call).spec().descriptor;
        let result = match (stage, self.result) {
            (Stage::Exit, Some(result)) => Known::Yes(result.max(-1)),
            (Stage::Exit, None) => Known::Never,
            _ => Known::NotYet,
        };
        let argument = |position: u8| match self.register(position, ParamType::Fd) {
            Param::Int(number) => Known::Yes(number),
            _ => Known::Never,
        };
        let number = match source {
            DescriptorSource::None => return None,
            DescriptorSource::Argument(fd)
            | DescriptorSource::Addressed { fd, .. }
            | DescriptorSource::Message { fd, .. } => argument(fd),
            _ => result,
        };
        let opened = matches!(source, DescriptorSource::Opened { .. });
        let late = stage >= Stage::Descriptor;
        let name = match (opened, &self.text) {
            (true, _) if stage == Stage::Registers => Name::None,
            (true, None) => Name::Unreadable,
            (true, Some(raw)) => Name::Passed {
                raw,
                base: self.base(),
            },
            (false, _) if late => Name::Resolved(b"/etc/passwd"),
            _ => Name::None,
        };
        let kind = match (opened, late) {
            (true, _) => Known::Yes(DescriptorKind::File),
            (false, true) => Known::Yes(self.descriptor),
            (false, false) => Known::NotYet,
        };
        let addressed = matches!(
            source,
            DescriptorSource::Addressed { .. } | DescriptorSource::Message { .. }
        );
        let socket = (addressed || (late && self.descriptor == DescriptorKind::Ipv4))
            .then(|| self.socket(stage));
        Some(Descriptor {
            number,
            kind,
            name,
            socket: socket.filter(|_| !opened),
            device: Known::Never,
            inode: Known::Never,
        })
    }

    fn base(&self) -> Option<i32> {
        let at = EventKind::of_syscall(self.call).spec().params.iter();
        let mut bases = at.filter_map(|param| match param.source {
            ParamSource::Path {
                base: Some(register),
                ..
            } => Some(register),
            _ => None,
        });
        match self.register(bases.next()?, ParamType::Fd) {
            Param::Int(number) => i32::try_from(number).ok().filter(|number| *number >= 0),
            _ => None,
        }
    }

    fn socket(&self, stage: Stage) -> Socket<'_> {
        let end = |last, port| {
            if self.text.is_none() {
                return Known::Never;
            }
            Known::Yes(Endpoint {
                ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
                port,
            })
        };
        let later = |from: Stage, known| if stage >= from { known } else { Known::NotYet };
        Socket {
            transport: if stage >= Stage::Descriptor {
                Known::Yes(Transport::Tcp)
            } else {
                Known::NotYet
            },
            local: later(Stage::Exit, end(1, 40_000)),
            remote: later(Stage::Strings, end(2, self.port)),
            role: Role::Client,
            unix_path: None,
            connected: Known::NotYet,
            name_changed: if stage >= Stage::Exit {
                self.changes_name()
            } else {
                Known::NotYet
            },
            unspecified: None,
        }
    }

    /// A call changes a socket's name only by an address that it passes.
    fn changes_name(&self) -> Known<bool> {
        match EventKind::of_syscall(self.call).spec().descriptor {
            DescriptorSource::Addressed { address, .. } => {
                Known::Yes(self.registers[usize::from(address)] != 0)
            }
            _ => Known::Yes(false),
        }
    }

    fn seen<T>(&self, fact: T) -> Lookup<T> {
        if self.visible {
            Lookup::Found(fact)
        } else {
            Lookup::Unknown
        }
    }
}

impl SystemInfo for Case {
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        Lookup::Found(process.last_comm())
    }
    fn stat(&self, _: &Process) -> Lookup<Stat> {
        self.seen(Stat {
            ppid: Pid(99),
            pgid: 100,
            sid: 98,
            tty: self.tty,
            tpgid: 100,
            threads: 1,
            vm_size_kib: 1,
            vm_rss_kib: 1,
        })
    }
    fn status(&self, _: &Process, _: Tid) -> Lookup<Status> {
        self.seen(Status {
            credentials: Credentials {
                uid: self.uid,
                gid: self.uid,
            },
            real_uid: self.uid,
            cap_inheritable: 0,
            cap_permitted: 0,
            cap_effective: 0,
            cap_bounding: 0,
            vpid: 1,
            vtid: 1,
            vpgid: 1,
            vsid: 1,
        })
    }
    fn command_line(&self, process: &Process, _: &Image) -> Lookup<CommandLine> {
        let args = self
            .args
            .iter()
            .map(|arg| arg.as_bytes().to_vec())
            .collect();
        let exe = process.last_comm().as_bytes().to_vec();
        self.seen(CommandLine {
            exe,
            args,
            truncated: false,
        })
    }
    fn executable(&self, process: &Process, _: &Image) -> Lookup<Vec<u8>> {
        self.seen([b"/bin/", process.last_comm().as_bytes()].concat())
    }
    fn executable_writable(&self, _: &Process, _: &Image) -> Lookup<bool> {
        self.seen(false)
    }
    fn executable_file(&self, _: &Process, _: &Image) -> Lookup<ExecutableFile> {
        self.seen(ExecutableFile {
            flags: ExecutableFlags::default(),
            inode: 1,
            ctime_ns: 0,
            mtime_ns: 0,
        })
    }
    fn environment(&self, _: &Process, _: &Image) -> Lookup<Vec<u8>> {
        self.seen(b"HOME=/root\0".to_vec())
    }
    fn login_uid(&self, _: &Process) -> Lookup<u32> {
        Lookup::Missing
    }
    fn directory<'a>(&self, _: Tid, base: Option<i32>, _: &'a Bump) -> Lookup<&'a [u8]> {
        self.seen(if base.is_some() { b"/etc" } else { b"/usr" })
    }
    fn container(&self, _: &Process) -> Arc<Container> {
        Arc::new(match self.containment {
            Containment::Host => Container::host(),
            containment => {
                let id = match containment {
                    Containment::Known => "0123456789ab".to_owned(),
                    _ => String::new(),
                };
                Container {
                    containment,
                    id,
                    ..Container::unknown()
                }
            }
        })
    }
    fn user(&self, _: &Process, uid: u32) -> Lookup<Arc<User>> {
        // Kept, as real worlds do: looking at an event must not allocate.
        static ROOT: LazyLock<Arc<User>> = LazyLock::new(|| user("root"));
        static OTHER: LazyLock<Arc<User>> = LazyLock::new(|| user("daemon"));
        self.seen(Arc::clone(if uid == 0 { &ROOT } else { &OTHER }))
    }
    fn group(&self, _: &Process, _: u32) -> Lookup<Arc<Group>> {
        Lookup::Missing
    }
    fn process(&self, _: Pid) -> Lookup<Arc<Process>> {
        Lookup::Missing
    }
    fn addresses(&self, name: &str) -> Lookup<Arc<[IpAddr]>> {
        match name {
            "known.example" => Lookup::Found(Arc::new([IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))])),
            "missing.example" => Lookup::Missing,
            _ => Lookup::Unknown,
        }
    }
    fn descriptor_type(&self, _: Tid, _: i32) -> Lookup<DescriptorKind> {
        self.seen(self.descriptor)
    }
    fn host_name(&self) -> &str {
        "test-host"
    }
}

fn user(name: &str) -> Arc<User> {
    Arc::new(User {
        name: name.to_owned(),
        home: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}
