//! Decodes registers and memory into an event's parameters and descriptor, by the event table alone.

use std::collections::BTreeSet;

use abi::Errno;
use bumpalo::Bump;
use event::{
    Absence, Descriptor, DescriptorKind, DescriptorSource, Endpoint, Known, Name, Outcome, Param,
    ParamSource, ParamSpec, Role, Socket, Transport,
};

use rustix::net::AddressFamily;

use super::call::Call;
use super::process_inspector::ProcessInspector;
use process_info::memory::{Memory, Unreadable};
use process_info::sockets::{self, ResolvedDescriptor, SocketAddress};

/// Longest socket address: `struct sockaddr_storage`.
const ADDRESS_LIMIT: u64 = 128;
/// Bytes of a data buffer that rules can see (`evt.buffer`); Falco's default snap length.
const BUFFER_LIMIT: u64 = 80;
/// `AT_FDCWD`.
const AT_FDCWD: i32 = -100;
/// Maximum number of messages in one call (`UIO_MAXIOV`, linux/uio.h).
const MESSAGE_LIMIT: u64 = 1024;

/// A call's parameters and descriptor as far as they are known before the call returns.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    /// The parameters that were read, in the order of the call table.
    pub params: &'a [Param<'a>],
    /// The descriptor or file that the call is about.
    pub descriptor: Option<Descriptor<'a>>,
    /// One descriptor for each address of a call that sends messages to several. `descriptor` is `None` then.
    pub messages: &'a [Descriptor<'a>],
    /// True if something that should have been there could not be read.
    pub unreadable: bool,
    /// True if the caller ended while its memory was read.
    pub gone: bool,
    /// True if the agent may not read the caller's memory.
    pub refused: bool,
    /// True if something was read that the caller itself may not read.
    pub forced: bool,
    /// True if data may be in pages that other processes can write. Only set where all such calls are verified.
    pub is_shared: bool,
}

/// Reads everything that the call's arguments refer to.
pub fn decode<'a>(call: &Call, memory: &Memory, arena: &'a Bump) -> Decoded<'a> {
    memory.take_forced();
    let mut reader = Reader {
        call,
        memory,
        arena,
        unreadable: false,
        gone: false,
        refused: false,
    };
    let specs = call.kind.spec().params;
    let params =
        arena.alloc_slice_fill_iter(specs.iter().map(|spec| match spec.is_moved_bytes() {
            true => Param::Unreadable,
            false => reader.param(spec.source),
        }));
    let (descriptor, messages) = reader.descriptors(params);
    Decoded {
        params,
        descriptor,
        messages,
        unreadable: reader.unreadable,
        gone: reader.gone,
        refused: reader.refused,
        forced: memory.take_forced(),
        is_shared: false,
    }
}

/// Builds a synthetic open of `path`, as it would be decoded.
pub fn imagined_open<'a>(path: &'a [u8], writes: bool, arena: &'a Bump) -> (Call, Decoded<'a>) {
    const CREATES_AND_WRITES: u64 = 0o101;
    let flags = if writes { CREATES_AND_WRITES } else { 0 };
    let syscall = abi::Syscall::OPENAT;
    let call = Call {
        id: 0,
        tid: event::Tid(0),
        arch: abi::Arch::native().unwrap_or(abi::Arch::X86_64),
        syscall,
        kind: event::EventKind::of_syscall(syscall),
        ip: 0,
        args: [AT_FDCWD.cast_unsigned().into(), 0, flags, 0o644, 0, 0],
        is_unread: false,
    };
    let memory = Memory::new(std::sync::Arc::default());
    let mut reader = Reader {
        call: &call,
        memory: &memory,
        arena,
        unreadable: false,
        refused: false,
        gone: false,
    };
    let specs = call.kind.spec().params.iter();
    let params = arena.alloc_slice_fill_iter(specs.map(|spec| match spec.source {
        ParamSource::Path { .. } => Param::Text(path),
        source => reader.param(source),
    }));
    let (descriptor, messages) = reader.descriptors(params);
    let decoded = Decoded {
        params,
        descriptor,
        messages,
        unreadable: false,
        refused: false,
        gone: false,
        forced: false,
        is_shared: false,
    };
    (call, decoded)
}

impl<'a> Decoded<'a> {
    /// Returns a copy with another name for the file or descriptor.
    pub fn named(&self, name: Name<'a>) -> Self {
        let descriptor = self.descriptor.map(|known| Descriptor { name, ..known });
        Self {
            descriptor,
            ..*self
        }
    }

    /// Returns a copy with the result filled in.
    pub fn returned(&self, call: &Call, outcome: Outcome, arena: &'a Bump) -> Self {
        let Outcome::Returned(result) = outcome else {
            return *self;
        };
        // The kernel may have failed to read what was read here: then there is no such argument.
        let is_doubtful = self.forced && result == Errno::EFAULT.result();
        let moved_none = Absence::of_result(result);
        let fill = |(param, spec): (&Param<'a>, &ParamSpec)| match (*param, spec.source, moved_none)
        {
            (_, ParamSource::Result, _) => Param::Int(result),
            (Param::Unreadable, _, Some(proof)) if spec.is_moved_bytes() => Param::Absent(proof),
            (_, source, _) if is_doubtful && source.is_in_memory() => Param::Unreadable,
            // The same if the kernel could not read an argument (EFAULT), which may have been another one.
            (param, ..) => param,
        };
        let specs = call.kind.spec().params.iter();
        let params = arena.alloc_slice_fill_iter(self.params.iter().zip(specs).map(fill));
        let descriptor = self
            .descriptor
            .map(|known| known_at_exit(known, call, result))
            .map(|known| match known.name {
                Name::Unreadable if result < 0 && is_named_by_result(call) => Descriptor {
                    name: Name::None,
                    ..known
                },
                Name::Passed { .. } if is_doubtful => Descriptor {
                    name: Name::Unreadable,
                    ..known
                },
                _ => known,
            });
        let messages = self.messages.iter();
        let messages = messages.map(|known| known_at_exit(*known, call, result));
        Self {
            params,
            descriptor,
            messages: arena.alloc_slice_fill_iter(messages),
            unreadable: self.unreadable || is_doubtful,
            ..*self
        }
    }
}

/// Fills in what the result proves about the descriptor.
fn known_at_exit<'a>(mut descriptor: Descriptor<'a>, call: &Call, result: i64) -> Descriptor<'a> {
    if descriptor.number == Known::NotYet {
        descriptor.number = Known::Yes(result.max(-1));
    }
    if descriptor.kind == Known::NotYet && is_no_descriptor(call, descriptor.number, result) {
        descriptor.kind = Known::Never;
        descriptor.device = Known::Never;
        descriptor.inode = Known::Never;
    }
    if let Some(socket) = &mut descriptor.socket {
        const EINPROGRESS: i64 = Errno::EINPROGRESS.result();
        let established = result >= 0 || result == EINPROGRESS;
        let named = matches!(
            call.kind.spec().descriptor,
            DescriptorSource::Addressed { .. }
        );
        if socket.connected == Known::NotYet {
            socket.connected = Known::Yes(established && named);
        }
        if socket.name_changed == Known::NotYet {
            socket.name_changed = Known::Yes(established && named);
        }
    }
    descriptor
}

/// Returns whether there is provably no descriptor: the call failed to make one, or its number is not one.
fn is_no_descriptor(call: &Call, number: Known<i64>, result: i64) -> bool {
    let arguments = call.syscall.args().iter();
    // A call that takes several descriptors may have failed at another one.
    let takes_one = || {
        let is_one = |kind| matches!(kind, abi::ArgKind::Fd | abi::ArgKind::DirFd);
        arguments.filter(|argument| is_one(argument.kind)).count() == 1
    };
    match number {
        Known::Yes(number) => number < 0 || result == Errno::EBADF.result() && takes_one(),
        _ => false,
    }
}

struct Reader<'r, 'a> {
    call: &'r Call,
    memory: &'r Memory,
    arena: &'a Bump,
    unreadable: bool,
    gone: bool,
    refused: bool,
}

impl<'a> Reader<'_, 'a> {
    fn param(&mut self, source: ParamSource) -> Param<'a> {
        let call = self.call;
        match source {
            ParamSource::Result => Param::Pending,
            ParamSource::Register(position) => self.register(position),
            ParamSource::Path { path, base } => {
                let text = self.text(call.raw(path));
                match (text, base.map(|base| call.int(base))) {
                    // Without a name such a call is about the open descriptor, as futimens(3) is.
                    (Param::Absent(_), Some(descriptor)) if descriptor != AT_FDCWD => {
                        Param::Text(b"")
                    }
                    (text, _) => text,
                }
            }
            ParamSource::Text(position) => self.text(call.raw(position)),
            ParamSource::Texts(position) => {
                let width = if call.is_32_bit() { 4 } else { 8 };
                self.pointed_to(call.raw(position), |memory, address, arena| {
                    let texts = memory.texts(call.tid, address, width, arena)?;
                    Ok(Param::Texts(texts))
                })
            }
            ParamSource::Field { arg, offset, size } => {
                self.pointed_to(call.raw(arg), |memory, address, _| {
                    let mut bytes = [0_u8; 8];
                    let field = &mut bytes[..usize::from(size.min(8))];
                    let address = address.wrapping_add(u64::from(offset));
                    memory.read_exact(call.tid, address, field)?;
                    Ok(Param::Uint(u64::from_le_bytes(bytes)))
                })
            }
            ParamSource::Buffer { arg, len } => {
                let len = call.raw(len).min(BUFFER_LIMIT);
                if len == 0 {
                    return Param::Text(b"");
                }
                let len = usize::try_from(len).expect("bounded");
                self.pointed_to(call.raw(arg), |memory, address, arena| {
                    Ok(Param::Text(memory.bytes(call.tid, address, len, arena)?))
                })
            }
            ParamSource::Constant(value) => Param::Uint(value),
            ParamSource::Tuple => Param::Tuple,
            ParamSource::Process | ParamSource::Nowhere => {
                Absence::of_source(source).map_or(Param::Unreadable, Param::Absent)
            }
        }
    }

    fn register(&self, position: u8) -> Param<'a> {
        use abi::ArgKind;
        if self.call.is_unread {
            return Param::Unreadable;
        }
        let kind = self
            .call
            .syscall
            .args()
            .get(usize::from(position))
            .map(|spec| spec.kind);
        match kind {
            Some(ArgKind::Fd | ArgKind::DirFd | ArgKind::Int32 | ArgKind::Pid) => {
                Param::Int(i64::from(self.call.int(position)))
            }
            Some(ArgKind::Int64) => Param::Int(self.call.raw(position).cast_signed()),
            _ => Param::Uint(self.call.raw(position)),
        }
    }

    fn text(&mut self, address: u64) -> Param<'a> {
        let tid = self.call.tid;
        self.pointed_to(address, |memory, address, arena| {
            Ok(Param::Text(memory.text(tid, address, arena)?))
        })
    }

    /// Reads the data that a pointer refers to. Only a null pointer of a process that has nothing mapped
    /// there is an absent argument.
    fn pointed_to(
        &mut self,
        address: u64,
        read: impl FnOnce(&Memory, u64, &'a Bump) -> Result<Param<'a>, Unreadable>,
    ) -> Param<'a> {
        if self.call.is_unread {
            self.unreadable = true;
            return Param::Unreadable;
        }
        if let Some(proof) = self.null(address) {
            return Param::Absent(proof);
        }
        let found = read(self.memory, address, self.arena);
        self.readable(found).unwrap_or(Param::Unreadable)
    }

    fn null(&self, address: u64) -> Option<Absence> {
        let proof = Absence::of_null(address)?;
        let tid = self.call.tid;
        self.memory.is_null_empty(tid).is_ok().then_some(proof)
    }

    fn readable<T>(&mut self, result: Result<T, Unreadable>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(why) => {
                self.unreadable = true;
                self.gone |= why == Unreadable::Gone;
                self.refused |= why == Unreadable::Refused;
                None
            }
        }
    }

    /// Returns the descriptor that the call is about, and one for each address if it has several.
    fn descriptors(
        &mut self,
        params: &[Param<'a>],
    ) -> (Option<Descriptor<'a>>, &'a [Descriptor<'a>]) {
        let call = self.call;
        let DescriptorSource::Message { fd, message, count } = call.kind.spec().descriptor else {
            return (self.descriptor(params), &[]);
        };
        if call.is_unread {
            return (Some(unresolved(Known::NotYet)), &[]);
        }
        let number = Known::Yes(i64::from(call.int(fd)));
        let messages = self.messages(number, call.raw(message), count);
        match messages {
            [] => (Some(unresolved(number)), &[]),
            [only] => (Some(*only), &[]),
            _ => (Some(unread_address(number, true)), messages),
        }
    }

    fn descriptor(&mut self, params: &[Param<'a>]) -> Option<Descriptor<'a>> {
        let call = self.call;
        match call.kind.spec().descriptor {
            DescriptorSource::None => None,
            _ if call.is_unread => Some(unresolved(Known::NotYet)),
            DescriptorSource::Opened { name, flags } => Some(self.opened(params, name, flags)),
            DescriptorSource::Argument(fd) => Some(unresolved(Known::Yes(call.int(fd).into()))),
            DescriptorSource::Duplicated(_) => Some(unresolved(Known::NotYet)),
            DescriptorSource::Accepted(_) => Some(unresolved(Known::NotYet)),
            DescriptorSource::CreatedSocket => Some(self.created_socket()),
            DescriptorSource::Created(kind) => Some(Descriptor {
                kind: Known::Yes(kind),
                ..unresolved(Known::NotYet)
            }),
            DescriptorSource::Addressed {
                fd,
                address,
                len,
                remote,
            } => {
                let length = u64::from(self.call.int(len).unsigned_abs());
                let number = Known::Yes(i64::from(call.int(fd)));
                Some(self.addressed(number, call.raw(address), length, remote))
            }
            DescriptorSource::Message { fd, .. } => {
                Some(unresolved(Known::Yes(call.int(fd).into())))
            }
        }
    }

    fn opened(&self, params: &[Param<'a>], name: u8, flags: u8) -> Descriptor<'a> {
        let name = match params.get(usize::from(name)) {
            Some(Param::Text(raw)) => Name::Passed {
                raw,
                base: base_of(self.call, name),
            },
            Some(Param::Unreadable) => Name::Unreadable,
            // Opened by a handle: only the opened file has a name.
            _ if is_named_by_result(self.call) => Name::Unreadable,
            _ => Name::None,
        };
        let kind = match params.get(usize::from(flags)) {
            Some(Param::Uint(flags)) if is_directory(*flags) => {
                Known::Yes(DescriptorKind::Directory)
            }
            Some(Param::Unreadable) => Known::NotYet,
            _ => Known::Yes(DescriptorKind::File),
        };
        Descriptor {
            name,
            kind,
            ..unresolved(Known::NotYet)
        }
    }

    fn created_socket(&self) -> Descriptor<'a> {
        let domain = self.call.raw(0);
        let kind = kind_of_family(u16::try_from(domain).unwrap_or(u16::MAX));
        let transport = Transport::of(self.call.raw(1), self.call.raw(2));
        let socket = Socket {
            transport: Known::Yes(transport),
            local: Known::Never,
            remote: Known::Never,
            role: Role::Unknown,
            unix_path: None,
            connected: Known::Yes(false),
            name_changed: Known::Yes(false),
            unspecified: None,
        };
        Descriptor {
            kind: Known::Yes(kind),
            socket: Some(socket),
            ..unresolved(Known::NotYet)
        }
    }

    fn addressed(
        &mut self,
        number: Known<i64>,
        address: u64,
        len: u64,
        remote: bool,
    ) -> Descriptor<'a> {
        if Absence::of_length(len)
            .or_else(|| self.null(address))
            .is_some()
        {
            // No address given: the socket's own addresses are read at the entry stage.
            return unresolved(number);
        }
        let len = usize::try_from(len.min(ADDRESS_LIMIT)).expect("bounded");
        let bytes = self.memory.bytes(self.call.tid, address, len, self.arena);
        let Some(bytes) = self.readable(bytes) else {
            return unread_address(number, remote);
        };
        // An address too short for its family is refused by the kernel.
        let Some(address) = sockets::parse_address(bytes) else {
            return unresolved(number);
        };
        // connect with such an address dissolves the connection. In other calls the kernel takes it for the
        // socket's own family.
        if let SocketAddress::Unspecified(Some(as_ipv4)) = address
            && self.call.syscall.base() != abi::Syscall::CONNECT
        {
            return without_family(number, remote, as_ipv4);
        }
        let endpoint = address.endpoint().map_or(Known::Never, Known::Yes);
        let socket = Socket {
            transport: Known::NotYet,
            local: if remote { Known::NotYet } else { endpoint },
            remote: if remote { endpoint } else { Known::NotYet },
            role: if remote { Role::Client } else { Role::Server },
            unix_path: address
                .unix_path()
                .map(|path| &*self.arena.alloc_slice_copy(&path)),
            connected: Known::NotYet,
            name_changed: Known::NotYet,
            unspecified: None,
        };
        let kind = Known::Yes(kind_of_address(&address));
        let name = match address {
            SocketAddress::Unix(raw @ [1..=u8::MAX, ..]) => Name::Passed { raw, base: None },
            _ => Name::None,
        };
        Descriptor {
            kind,
            name,
            socket: Some(socket),
            ..unresolved(number)
        }
    }

    /// Returns one descriptor for each address in the array of messages.
    fn messages(
        &mut self,
        number: Known<i64>,
        first: u64,
        count: Option<u8>,
    ) -> &'a [Descriptor<'a>] {
        let is_32_bit = self.call.is_32_bit();
        let (width, stride): (usize, u64) = if is_32_bit { (4, 32) } else { (8, 64) };
        let count = count.map_or(1, |at| self.call.raw(at) & u64::from(u32::MAX));
        let mut known = BTreeSet::new();
        let mut messages = Vec::new();
        for index in 0..count.min(MESSAGE_LIMIT) {
            let header = first.wrapping_add(index * stride);
            let header = self
                .memory
                .bytes(self.call.tid, header, width + 4, self.arena);
            let (name, place) = match self.readable(header) {
                Some(header) => {
                    let (address, len) = name_of(header, width);
                    (self.name_bytes(address, len), Some((address, len)))
                }
                None => (None, None),
            };
            if !known.insert(name) {
                continue;
            }
            messages.push(match place {
                Some((address, len)) => self.addressed(number, address, len, true),
                None => unread_address(number, true),
            });
        }
        self.arena.alloc_slice_copy(&messages)
    }

    /// Reads a message's address. Returns `None` if it cannot be read, which equals no address that can.
    fn name_bytes(&self, address: u64, len: u64) -> Option<&'a [u8]> {
        if address == 0 || len == 0 {
            return Some(&[]);
        }
        let len = usize::try_from(len.min(ADDRESS_LIMIT)).ok()?;
        self.memory
            .bytes(self.call.tid, address, len, self.arena)
            .ok()
    }
}

/// Returns the pointer to the address and its length, the first fields of `struct msghdr`.
fn name_of(header: &[u8], width: usize) -> (u64, u64) {
    let mut address = [0_u8; 8];
    address[..width].copy_from_slice(&header[..width]);
    let mut len = [0_u8; 4];
    len.copy_from_slice(&header[width..width + 4]);
    (
        u64::from_le_bytes(address),
        u64::from(u32::from_le_bytes(len)),
    )
}

/// Returns whether the call opens files without taking their names.
fn is_named_by_result(call: &Call) -> bool {
    let spec = call.kind.spec();
    let DescriptorSource::Opened { name, .. } = spec.descriptor else {
        return false;
    };
    let param = spec.params.get(usize::from(name));
    param.is_some_and(|param| param.source == ParamSource::Nowhere)
}

/// Returns the directory descriptor that an open's path is relative to; `None` for the working directory.
pub fn base(call: &Call) -> Option<i32> {
    match call.kind.spec().descriptor {
        DescriptorSource::Opened { name, .. } => base_of(call, name),
        _ => None,
    }
}

/// As [`base`], for the path parameter with this index.
fn base_of(call: &Call, param: u8) -> Option<i32> {
    let source = call.kind.spec().params.get(usize::from(param))?.source;
    let ParamSource::Path {
        base: Some(position),
        ..
    } = source
    else {
        return None;
    };
    let descriptor = call.int(position);
    (descriptor != AT_FDCWD).then_some(descriptor)
}

/// Returns a descriptor of which at most the number is known.
fn unresolved<'a>(number: Known<i64>) -> Descriptor<'a> {
    Descriptor {
        number,
        kind: Known::NotYet,
        name: Name::None,
        socket: None,
        device: Known::NotYet,
        inode: Known::NotYet,
    }
}

/// Returns a socket whose address was passed and could not be read.
fn unread_address<'a>(number: Known<i64>, remote: bool) -> Descriptor<'a> {
    let [local, remote_end] = match remote {
        true => [Known::NotYet, Known::Unread],
        false => [Known::Unread, Known::NotYet],
    };
    let socket = Socket {
        transport: Known::NotYet,
        local,
        remote: remote_end,
        role: if remote { Role::Client } else { Role::Server },
        unix_path: None,
        connected: Known::NotYet,
        name_changed: Known::NotYet,
        unspecified: None,
    };
    Descriptor {
        socket: Some(socket),
        ..unresolved(number)
    }
}

/// Returns a socket whose address was passed without a family: its meaning depends on the socket.
fn without_family<'a>(number: Known<i64>, remote: bool, as_ipv4: Endpoint) -> Descriptor<'a> {
    let unread = unread_address(number, remote);
    Descriptor {
        socket: unread.socket.map(|socket| Socket {
            unspecified: Some(as_ipv4),
            ..socket
        }),
        ..unread
    }
}

/// Returns the descriptor among the arguments of a call.
pub(crate) fn existing_descriptor(call: &Call) -> Option<i32> {
    match call.kind.spec().descriptor {
        _ if call.is_unread => None,
        DescriptorSource::Argument(fd)
        | DescriptorSource::Duplicated(fd)
        | DescriptorSource::Addressed { fd, .. }
        | DescriptorSource::Message { fd, .. } => Some(call.int(fd)),
        _ => None,
    }
}

/// Completes a descriptor from the caller's open files.
pub fn resolve<'a>(
    inspector: &ProcessInspector,
    call: &Call,
    descriptor: Descriptor<'a>,
    result: Option<i64>,
    pid: event::Pid,
    arena: &'a Bump,
) -> Descriptor<'a> {
    let number = match call.kind.spec().descriptor {
        DescriptorSource::Accepted(_) => result
            .and_then(|result| i32::try_from(result).ok())
            .filter(|fd| *fd >= 0),
        _ => existing_descriptor(call),
    };
    let Some(number) = number else {
        return descriptor;
    };
    let Some(found) = inspector.descriptor(pid, call.tid, number) else {
        return descriptor;
    };
    merge(descriptor, &found, SocketView::of(call, result), arena)
}

/// Time, relative to the call, at which the kernel's information about a socket was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketView {
    /// True before a connect gives the socket a local address.
    is_connecting: bool,
    /// True after the call gave the socket the address that was passed.
    has_passed_address: bool,
    /// Sender of the data that a call received on an unconnected socket.
    sender: Option<Known<Endpoint>>,
    /// True if the call makes the socket a listening one.
    listens: bool,
    /// True if such a call has not returned: an unbound socket gets its local address from it.
    is_to_listen: bool,
}

impl SocketView {
    /// Builds the view for a call. `result` is `None` before the call has returned.
    pub fn of(call: &Call, result: Option<i64>) -> Self {
        use abi::Syscall as S;
        const EINPROGRESS: i64 = Errno::EINPROGRESS.result();
        let is_addressed = matches!(
            call.kind.spec().descriptor,
            DescriptorSource::Addressed { remote: true, .. }
        );
        let receives = matches!(call.syscall.base(), S::RECVFROM | S::RECVMSG | S::RECVMMSG);
        let keeps_address = matches!(call.syscall.base(), S::BIND | S::CONNECT);
        let listens = call.syscall.base() == S::LISTEN;
        Self {
            listens,
            is_to_listen: listens && result.is_none(),
            is_connecting: result.is_none() && is_addressed,
            has_passed_address: keeps_address && matches!(result, Some(0 | EINPROGRESS)),
            sender: match result {
                _ if !receives => None,
                None => Some(Known::NotYet),
                Some(..0) => None,
                Some(_) => Some(Known::Unread),
            },
        }
    }
}

/// Merges the call's data with the kernel's. The call's data comes first (a connect's target); the kernel's
/// fills the rest.
pub fn merge<'a>(
    mut descriptor: Descriptor<'a>,
    found: &ResolvedDescriptor,
    view: SocketView,
    arena: &'a Bump,
) -> Descriptor<'a> {
    if found.socket.is_some() && matches!(descriptor.name, Name::Resolved(_)) {
        // It was a file before; another thread has put a socket in its place.
        return descriptor;
    }
    let kernel = found.as_descriptor(0);
    merge_file(&mut descriptor, &kernel, arena);
    let Some(kernel) = kernel.socket else {
        return descriptor;
    };
    let path = |path: Option<&[u8]>| path.map(|path| &*arena.alloc_slice_copy(path));
    let is_internet = matches!(
        descriptor.kind,
        Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6)
    );
    let remote = match (kernel.remote, view.sender) {
        (Known::Never, Some(sender)) if is_internet => sender,
        (remote, _) => remote,
    };
    let Some(mut socket) = descriptor.socket else {
        descriptor.socket = Some(Socket {
            remote,
            unix_path: path(kernel.unix_path),
            ..kernels_socket(&kernel, view)
        });
        return descriptor;
    };
    socket.transport = kernel.transport;
    merge_unspecified(&mut socket, &kernel, found);
    if socket.has_unread_address() {
        let own = found.socket.as_ref();
        let peer_path = own.and_then(|own| own.peer_path.as_deref());
        merge_unread(&mut socket, &kernel, path(peer_path), view);
        if socket.has_unread_address() && descriptor.kind == Known::Yes(DescriptorKind::Ipv6) {
            // A socket with an IPv4 address in IPv6 form counts as an IPv4 socket.
            descriptor.kind = Known::Unread;
        }
    }
    // connect is about to give the socket its local address.
    let is_bound = matches!(kernel.local, Known::Yes(local) if local.port != 0);
    if is_open(socket.local) && (is_bound || !view.is_connecting) {
        socket.local = kernel.local;
    }
    if is_open(socket.remote) {
        socket.remote = remote;
    }
    if !socket.has_unread_address() {
        socket.unix_path = socket.unix_path.or_else(|| path(kernel.unix_path));
    }
    descriptor.socket = Some(socket);
    descriptor
}

/// Returns the socket of a call that passed no address, without remote end and path.
fn kernels_socket(kernel: &Socket<'_>, view: SocketView) -> Socket<'static> {
    let is_bound = !matches!(kernel.local, Known::Yes(local) if local.port == 0);
    Socket {
        transport: kernel.transport,
        local: match view.is_to_listen && !is_bound {
            true => Known::NotYet,
            false => kernel.local,
        },
        remote: Known::NotYet,
        role: match view.listens {
            true => Role::Server,
            false => kernel.role,
        },
        unix_path: None,
        connected: kernel.connected,
        name_changed: Known::Yes(false),
        unspecified: None,
    }
}

/// Applies what the kernel says of any descriptor, whatever its kind.
fn merge_file<'a>(descriptor: &mut Descriptor<'a>, kernel: &Descriptor<'_>, arena: &'a Bump) {
    if !matches!(descriptor.kind, Known::Yes(_)) {
        descriptor.kind = kernel.kind;
    }
    if let (Name::None, Name::Resolved(path)) = (descriptor.name, kernel.name) {
        descriptor.name = Name::Resolved(arena.alloc_slice_copy(path));
    }
    descriptor.device = kernel.device;
    descriptor.inode = kernel.inode;
}

/// Applies an address without a family. IPv4 sockets take it as an IPv4 address. Datagram sockets of IPv6
/// ignore it and send to the connected peer; raw sockets of IPv6 take it as an IPv6 address, which stays
/// unknown.
fn merge_unspecified(socket: &mut Socket<'_>, kernel: &Socket<'_>, found: &ResolvedDescriptor) {
    let domain = found.socket.as_ref().and_then(|own| own.domain);
    let Some((domain, passed)) = domain.zip(socket.unspecified.take()) else {
        return;
    };
    let is_raw = !matches!(
        kernel.transport,
        Known::Yes(Transport::Tcp | Transport::Udp)
    );
    let replace =
        |end: &mut Known<Endpoint>, own: Known<Endpoint>| match AddressFamily::from_raw(domain) {
            _ if *end != Known::Unread => {}
            AddressFamily::INET => *end = Known::Yes(passed),
            AddressFamily::INET6 if is_raw => {}
            _ => *end = own,
        };
    replace(&mut socket.local, kernel.local);
    replace(&mut socket.remote, kernel.remote);
}

/// Returns whether the kernel's data may fill this end.
fn is_open(end: Known<Endpoint>) -> bool {
    matches!(end, Known::NotYet | Known::Never)
}

/// Applies an address that could not be read. Once the call has succeeded it is the socket's own; until then,
/// and for a message that is sent to an address, nothing proves what was passed.
fn merge_unread<'a>(
    socket: &mut Socket<'a>,
    kernel: &Socket<'_>,
    peer_path: Option<&'a [u8]>,
    view: SocketView,
) {
    if !view.has_passed_address {
        return;
    }
    if let (Known::Unread, Known::Yes(_)) = (socket.remote, kernel.remote) {
        socket.remote = kernel.remote;
    }
    if let (Known::Unread, Some(path)) = (socket.remote, peer_path) {
        socket.remote = Known::Never;
        socket.unix_path = Some(path);
    }
    // A bound socket has a local path or a local address.
    let is_bound = matches!(kernel.local, Known::Yes(_)) || kernel.unix_path.is_some();
    if socket.local == Known::Unread && is_bound {
        socket.local = kernel.local;
    }
}

fn kind_of_address(address: &SocketAddress<'_>) -> DescriptorKind {
    match address {
        SocketAddress::Inet(endpoint) if endpoint.ip.is_ipv4() => DescriptorKind::Ipv4,
        SocketAddress::Inet(_) => DescriptorKind::Ipv6,
        SocketAddress::Unix(_) => DescriptorKind::Unix,
        SocketAddress::Netlink { .. } => DescriptorKind::Netlink,
        _ => DescriptorKind::OtherSocket,
    }
}

fn kind_of_family(family: u16) -> DescriptorKind {
    match AddressFamily::from_raw(family) {
        AddressFamily::INET => DescriptorKind::Ipv4,
        AddressFamily::INET6 => DescriptorKind::Ipv6,
        AddressFamily::UNIX => DescriptorKind::Unix,
        AddressFamily::NETLINK => DescriptorKind::Netlink,
        _ => DescriptorKind::OtherSocket,
    }
}

fn is_directory(flags: u64) -> bool {
    flags & u64::from(rustix::fs::OFlags::DIRECTORY.bits()) != 0
}

/// Decoded call that outlives the receiver's arena: kept while the call blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedDecoded {
    params: Vec<OwnedParam>,
    descriptor: Option<OwnedDescriptor>,
    messages: Vec<OwnedDescriptor>,
    unreadable: bool,
    refused: bool,
    forced: bool,
    is_shared: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct OwnedDescriptor {
    plain: Descriptor<'static>,
    name: OwnedName,
    unix_path: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq)]
enum OwnedParam {
    Plain(Param<'static>),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
}

#[derive(Clone, Debug, PartialEq)]
enum OwnedName {
    None,
    Unreadable,
    Passed { raw: Vec<u8>, base: Option<i32> },
    Opened { raw: Vec<u8>, path: Vec<u8> },
    Unresolved(Vec<u8>),
    Resolved(Vec<u8>),
}

impl Decoded<'_> {
    /// Copies the decoded call out of the arena.
    pub fn detach(&self) -> OwnedDecoded {
        let params = self.params.iter().map(owned_param).collect();
        OwnedDecoded {
            params,
            descriptor: self.descriptor.map(OwnedDescriptor::new),
            messages: self
                .messages
                .iter()
                .copied()
                .map(OwnedDescriptor::new)
                .collect(),
            unreadable: self.unreadable,
            refused: self.refused,
            forced: self.forced,
            is_shared: self.is_shared,
        }
    }
}

impl OwnedDecoded {
    /// Copies the call into an arena.
    pub fn borrow<'a>(&self, arena: &'a Bump) -> Decoded<'a> {
        let copy = |text: &Vec<u8>| -> &'a [u8] { arena.alloc_slice_copy(text) };
        let params = arena.alloc_slice_fill_iter(self.params.iter().map(|param| match param {
            OwnedParam::Plain(param) => *param,
            OwnedParam::Text(text) => Param::Text(copy(text)),
            OwnedParam::Texts(texts) => {
                Param::Texts(arena.alloc_slice_fill_iter(texts.iter().map(copy)))
            }
        }));
        let messages = self.messages.iter();
        Decoded {
            params,
            descriptor: self.descriptor.as_ref().map(|own| own.borrow(arena)),
            messages: arena.alloc_slice_fill_iter(messages.map(|own| own.borrow(arena))),
            unreadable: self.unreadable,
            gone: false,
            refused: self.refused,
            forced: self.forced,
            is_shared: self.is_shared,
        }
    }
}

impl OwnedDescriptor {
    fn new(descriptor: Descriptor<'_>) -> Self {
        let unix_path = descriptor.socket.and_then(|socket| socket.unix_path);
        let socket = descriptor.socket.map(|socket| Socket {
            transport: socket.transport,
            local: socket.local,
            remote: socket.remote,
            role: socket.role,
            unix_path: None,
            connected: socket.connected,
            name_changed: socket.name_changed,
            unspecified: socket.unspecified,
        });
        let plain = Descriptor {
            number: descriptor.number,
            kind: descriptor.kind,
            name: Name::None,
            socket,
            device: descriptor.device,
            inode: descriptor.inode,
        };
        Self {
            plain,
            name: owned_name(descriptor.name),
            unix_path: unix_path.map(<[u8]>::to_vec),
        }
    }

    fn borrow<'a>(&self, arena: &'a Bump) -> Descriptor<'a> {
        let copy = |text: &Vec<u8>| -> &'a [u8] { arena.alloc_slice_copy(text) };
        let name = match &self.name {
            OwnedName::None => Name::None,
            OwnedName::Unreadable => Name::Unreadable,
            OwnedName::Passed { raw, base } => Name::Passed {
                raw: copy(raw),
                base: *base,
            },
            OwnedName::Opened { raw, path } => Name::Opened {
                raw: copy(raw),
                path: copy(path),
            },
            OwnedName::Unresolved(raw) => Name::Unresolved { raw: copy(raw) },
            OwnedName::Resolved(path) => Name::Resolved(copy(path)),
        };
        let socket = self.plain.socket.map(|socket| Socket {
            unix_path: self.unix_path.as_ref().map(copy),
            ..socket
        });
        Descriptor {
            name,
            socket,
            ..self.plain
        }
    }
}

fn owned_param(param: &Param<'_>) -> OwnedParam {
    match *param {
        Param::Text(text) => OwnedParam::Text(text.to_vec()),
        Param::Texts(texts) => OwnedParam::Texts(texts.iter().map(|text| text.to_vec()).collect()),
        Param::Pending => OwnedParam::Plain(Param::Pending),
        Param::Unreadable => OwnedParam::Plain(Param::Unreadable),
        Param::Absent(proof) => OwnedParam::Plain(Param::Absent(proof)),
        Param::Int(value) => OwnedParam::Plain(Param::Int(value)),
        Param::Uint(value) => OwnedParam::Plain(Param::Uint(value)),
        Param::Tuple => OwnedParam::Plain(Param::Tuple),
    }
}

fn owned_name(name: Name<'_>) -> OwnedName {
    match name {
        Name::None => OwnedName::None,
        Name::Unreadable => OwnedName::Unreadable,
        Name::Passed { raw, base } => OwnedName::Passed {
            raw: raw.to_vec(),
            base,
        },
        Name::Opened { raw, path } => OwnedName::Opened {
            raw: raw.to_vec(),
            path: path.to_vec(),
        },
        Name::Unresolved { raw } => OwnedName::Unresolved(raw.to_vec()),
        Name::Resolved(path) => OwnedName::Resolved(path.to_vec()),
    }
}
