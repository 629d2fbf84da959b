//! Turns records into events and evaluates them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::constant::{CAP_DAC_OVERRIDE, CAP_FOWNER};
use abi::{Arch, Errno};
use bumpalo::Bump;
use event::{
    Absence, CommandLine, Descriptor, Evaluator, Event, EventKind, ExecutableFile, ExecutableFlags,
    Image, LiveProcess, Lookup, Name, Outcome, Param, Process, Relevance, Stage, SystemInfo,
};

use super::named::{self, KEY_SIZE, RENAMES};
use super::record::{
    FileFacts, Header, PIECE_CUT, PIECE_STRING, RecordKind, RecordPart, RecordPartKind,
    RecordParts, path_gap, text,
};
use super::system_info::RecordedSystemInfo;
use super::tables::end;
use super::worker::RecordEvaluator;
use super::{ROOT_CALLS, rings};
use crate::notify::RingAnswer;
use decoder::call::Call;
use decoder::counters::Counters;
use decoder::decode::{self, Decoded, SocketView};
use decoder::open_fields::OpenFields;
use process_info::procfs::split_command_line;

/// Number of bytes of one event's memory kept for the next.
const ARENA_KEEP: usize = 256 * 1024;

/// One event of a record, as the rules get it.
#[derive(Clone)]
struct RecordedEvent<'a> {
    header: &'a Header,
    process: &'a Arc<Process>,
    image: Arc<Image>,
    kind: EventKind,
    params: &'a [Param<'a>],
    descriptor: Option<Descriptor<'a>>,
    /// The descriptor of an opened file under each name that rules may know it by.
    names: &'a [Descriptor<'a>],
    outcome: Outcome,
}

impl<'a> RecordedEvent<'a> {
    /// Returns an event about a process as such, without parameters and descriptor.
    fn of_process(
        header: &'a Header,
        process: &'a Arc<Process>,
        image: Arc<Image>,
        kind: EventKind,
        outcome: Outcome,
    ) -> Self {
        Self {
            header,
            process,
            image,
            kind,
            params: &[],
            descriptor: None,
            names: &[],
            outcome,
        }
    }
}

impl<J: Evaluator + 'static> RecordEvaluator<J> {
    pub(super) fn evaluate(&mut self, record: &[u8]) {
        let Some((header, pieces)) = Header::parse(record) else {
            Counters::add(&self.shared.malformed);
            return;
        };
        let shared = Arc::clone(&self.shared);
        let process = shared.table.of(&header, shared.world.proc());
        let sources = (&shared.world, &shared.maps);
        let is_watched = shared.places.learn(sources, &process, &header, pieces);
        if header.kind != RecordKind::Exec && is_watched {
            self.note_name(&header, &process);
        }
        self.set_streams(pieces);
        match header.kind {
            RecordKind::Exit => {
                if is_watched {
                    self.exited(&header, &process);
                }
                shared.table.ended(&process);
            }
            RecordKind::Exec => {
                shared.places.learn_users(&shared.world, &process, &header);
                self.learn_root(&header);
                let image = Arc::new(self.program(&header, pieces));
                shared.table.executed(&process, &header, Arc::clone(&image));
                if is_watched {
                    self.executed(&header, pieces, &process, image);
                }
            }
            RecordKind::Call if is_watched => self.called(&header, pieces, &process),
            RecordKind::Ring if is_watched => {
                let operation = rings::name(header.number);
                shared.notices.ring_call(&process, operation);
            }
            // The process is in the table by now.
            RecordKind::Fork | RecordKind::Call | RecordKind::Ring => {}
        }
        Counters::add(&shared.evaluated);
        if self.arena.allocated_bytes() > ARENA_KEEP {
            self.arena = Bump::with_capacity(64 * 1024);
        } else {
            self.arena.reset();
        }
    }

    /// Learns which of the files that rules name the process sees, if it has another root.
    fn learn_root(&self, header: &Header) {
        let (shared, root) = (&self.shared, header.root);
        if !self.has_own_root(header) {
            shared.name_files(|named, attached| {
                named.learn_root(header.tid, root, attached, &shared.maps)
            });
        }
    }

    /// Returns the new program from the record.
    fn program(&self, header: &Header, pieces: RecordParts<'_>) -> Image {
        let image = Image {
            exec_time_ns: header.boot_time.wrapping_add(self.epoch),
            ..Image::default()
        };
        let (mut environment, mut environment_len) = (Vec::new(), 0);
        for piece in pieces {
            match piece.kind {
                RecordPartKind::Arguments => {
                    let cut = piece.status & PIECE_CUT != 0;
                    let _ = image.command_line.set(Some(command_line(piece.bytes, cut)));
                }
                RecordPartKind::Environment => {
                    environment.extend_from_slice(piece.bytes);
                    environment_len = piece.address;
                }
                RecordPartKind::Executable => {
                    let Some(facts) = FileFacts::parse(&piece) else {
                        continue;
                    };
                    let _ = image.executable_file.set(Some(executable_file(&facts)));
                    let writable = is_writable(&facts, header);
                    let _ = image.executable_writable.set(Some(writable));
                    if let Some(path) = facts.path() {
                        let _ = image.executable.set(Some(path.to_vec()));
                    }
                }
                _ => {}
            }
        }
        // One that is longer than a record has room for is left to be read from `/proc`.
        if environment_len > 0 && u64::try_from(environment.len()) == Ok(environment_len) {
            // The image is new.
            let _ = image.environment.set(Some(environment));
        }
        image
    }

    /// Handles a successful exec.
    fn executed(
        &mut self,
        header: &Header,
        pieces: RecordParts<'_>,
        process: &Arc<Process>,
        image: Arc<Image>,
    ) {
        let filename = pieces
            .into_iter()
            .find(|piece| piece.kind == RecordPartKind::Filename)
            .map(|piece| text(piece.bytes).to_vec());
        let kind = EventKind::of_syscall(exec_call(header.number));
        let name = filename.as_deref().map_or(Param::Unreadable, Param::Text);
        self.set_directories(pieces);
        let event = RecordedEvent::of_process(header, process, image, kind, Outcome::Returned(0));
        self.tell(event, |source| match source {
            event::ParamSource::Result => Param::Int(0),
            event::ParamSource::Path { .. } => name,
            // The arguments of an exec are gone with the memory of the earlier program.
            source => Absence::of_source(source).map_or(Param::Unreadable, Param::Absent),
        });
    }

    /// Handles the end of a process.
    fn exited(&mut self, header: &Header, process: &Arc<Process>) {
        let Some(kind) = end().filter(|end| self.evaluator.concerns(*end)) else {
            return;
        };
        self.directories.clear();
        self.path_gap = None;
        let image = self.shared.table.image(process, header);
        let event = RecordedEvent::of_process(header, process, image, kind, Outcome::None);
        self.tell(event, |_| Param::Absent(Absence::recorded()));
    }

    /// Evaluates an event whose parameters are not in registers; `value` returns the parameter of each source.
    fn tell<'r>(
        &mut self,
        event: RecordedEvent<'r>,
        value: impl Fn(event::ParamSource) -> Param<'r>,
    ) {
        let arena = std::mem::take(&mut self.arena);
        let params = event
            .kind
            .spec()
            .params
            .iter()
            .map(|param| value(param.source));
        let params = arena.alloc_slice_fill_iter(params);
        self.conclude(&RecordedEvent { params, ..event }, &arena);
        self.arena = arena;
    }

    /// Handles a call that has returned.
    fn called(&mut self, header: &Header, pieces: RecordParts<'_>, process: &Arc<Process>) {
        let Some(call) = call(header) else {
            Counters::add(&self.shared.counters.unknown_calls);
            return;
        };
        self.capture_memory(pieces);
        self.set_directories(pieces);
        let arena = std::mem::take(&mut self.arena);
        let result = signal_seen(header.result);
        let outcome = Outcome::Returned(result);
        let mut decoded =
            decode::decode(&call, &self.memory, &arena).returned(&call, outcome, &arena);
        self.shared.counters.note_unreadable(&decoded);
        let mut names = Vec::new();
        let view = SocketView::of(&call, Some(result));
        let file = pieces
            .into_iter()
            .find(|piece| piece.kind == RecordPartKind::File);
        let found = file.as_ref().and_then(FileFacts::parse);
        decoded = with_used_fields(&call, decoded, found.as_ref(), &arena);
        if let Some(facts) = &found
            && let Some(descriptor) = decoded.descriptor
        {
            let mut descriptor = decode::merge(descriptor, &facts.resolved(), view, &arena);
            let source = call.kind.spec().descriptor;
            if matches!(source, event::DescriptorSource::Opened { .. }) {
                let path = facts.path().map(|path| &*arena.alloc_slice_copy(path));
                names = named(descriptor, self.other_names(pieces, &arena), path);
                descriptor = self.opened_file(descriptor, facts, path);
            }
            decoded.descriptor = Some(descriptor);
        }
        self.note_effects(&call, result, header, process);
        let image = self.shared.table.image(process, header);
        let messages = decoded.messages.iter().map(|message| match &found {
            Some(facts) => decode::merge(*message, &facts.resolved(), view, &arena),
            None => *message,
        });
        let mut descriptors: Vec<_> = messages.map(Some).collect();
        if descriptors.is_empty() {
            descriptors.push(decoded.descriptor);
        }
        let event = RecordedEvent {
            params: decoded.params,
            names: &names,
            ..RecordedEvent::of_process(header, process, image, call.kind, outcome)
        };
        for descriptor in descriptors {
            let event = RecordedEvent {
                descriptor,
                ..event.clone()
            };
            self.conclude(&event, &arena);
        }
        self.arena = arena;
    }

    /// Makes the caller's memory that is in the record the memory that arguments are read from.
    fn capture_memory(&mut self, pieces: RecordParts<'_>) {
        self.memory.capture(|captured| {
            for piece in pieces.filter(|piece| piece.kind == RecordPartKind::Memory) {
                let is_string = piece.status & PIECE_STRING != 0;
                let bytes = if is_string {
                    text(piece.bytes)
                } else {
                    piece.bytes
                };
                captured.add(piece.address, bytes, is_string);
            }
        });
    }

    /// Returns the descriptor of an opened file under its path, if the record has it; else notes why not.
    fn opened_file<'a>(
        &mut self,
        descriptor: Descriptor<'a>,
        facts: &FileFacts,
        path: Option<&'a [u8]>,
    ) -> Descriptor<'a> {
        match path {
            // The file that was opened, whatever the caller's memory holds by now.
            Some(path) => {
                self.path_gap = None;
                opened(descriptor, path)
            }
            None => {
                if !is_absolute(descriptor.name) {
                    self.path_gap = facts.gap();
                }
                descriptor
            }
        }
    }

    /// Notes what a successful call changes for later ones: rings, names of files, roots and users.
    fn note_effects(&self, call: &Call, result: i64, header: &Header, process: &Arc<Process>) {
        let shared = &self.shared;
        if result < 0 {
            return;
        }
        if call.syscall == abi::Syscall::IO_URING_SETUP {
            shared.notices.ring(process, RingAnswer::Followed);
        }
        if RENAMES.contains(&call.syscall) {
            shared.name_files(|named, attached| named.refresh(true, attached, &shared.maps));
        }
        if ROOT_CALLS.contains(&call.syscall) {
            shared.places.learn_users(&shared.world, process, header);
        }
    }

    /// Returns names of an opened file beside its path: those that rules have for it, and the path from the
    /// root of the mount namespace.
    fn other_names<'a>(&self, pieces: RecordParts<'_>, arena: &'a Bump) -> OtherNames<'a> {
        let mut names = OtherNames::default();
        for piece in pieces {
            match piece.kind {
                RecordPartKind::Named => {
                    let way = piece.bytes.get(KEY_SIZE..).unwrap_or(&[]);
                    // The programs write a whole key or no part.
                    let Some(identity) = named::identity(piece.bytes) else {
                        continue;
                    };
                    for name in self.shared.named.names(identity, way) {
                        names.known.push(&*arena.alloc_slice_copy(&name));
                    }
                }
                RecordPartKind::WholePath => {
                    names.whole = Some(&*arena.alloc_slice_copy(piece.bytes))
                }
                _ => {}
            }
        }
        names
    }

    /// Notes the directories whose whole path is in the record.
    fn set_directories(&mut self, pieces: RecordParts<'_>) {
        self.directories.clear();
        self.path_gap = None;
        for piece in pieces.filter(|piece| piece.kind == RecordPartKind::Directory) {
            let number = i32::try_from(piece.address.cast_signed()).unwrap_or(-1);
            match path_gap(piece.status) {
                None => self.directories.push((number, piece.bytes.to_vec())),
                gap => self.path_gap = gap,
            }
        }
    }

    fn set_streams(&mut self, pieces: RecordParts<'_>) {
        self.streams.clear();
        let streams = pieces.filter(|piece| piece.kind == RecordPartKind::Stream);
        self.streams.extend(streams.map(|piece: RecordPart<'_>| {
            let number = i32::try_from(piece.address).unwrap_or(-1);
            (
                number,
                FileFacts::parse(&piece).map(|facts| facts.resolved()),
            )
        }));
    }

    fn conclude(&mut self, recorded: &RecordedEvent<'_>, arena: &Bump) {
        let (header, process) = (recorded.header, recorded.process);
        let (descriptor, image) = (recorded.descriptor, Arc::clone(&recorded.image));
        let shared = Arc::clone(&self.shared);
        let world = RecordedSystemInfo {
            live: &shared.world,
            places: &shared.places,
            header,
            directories: &self.directories,
            streams: &self.streams,
            path_gap: self.path_gap,
        };
        let live = LiveProcess::default();
        // A fresh cell is empty, so none of these can fail.
        let comm = image.name.get().copied().unwrap_or(header.comm);
        let _ = live.comm.set(Lookup::Found(comm));
        let _ = live.stat.set(Lookup::Found(header.stat));
        let _ = live.status.set(Lookup::Found(header.status));
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut event = Event {
            number,
            time_ns: header.boot_time.wrapping_add(self.epoch),
            kind: recorded.kind,
            stage: Stage::Exit,
            cpu: Some(header.cpu),
            tid: header.tid,
            process,
            image,
            params: recorded.params,
            descriptor,
            outcome: recorded.outcome,
            world: &world as &dyn SystemInfo,
            live: &live,
            arena,
        };
        // The first name that a rule may match.
        for name in recorded.names {
            event.descriptor = Some(*name);
            if self.evaluator.prefilter(&mut self.scratch, &event) != Relevance::Reject {
                break;
            }
            event.descriptor = descriptor;
        }
        let undecided = self.evaluator.evaluate(&mut self.scratch, &event);
        if !undecided.is_empty() {
            let counter = &shared.counters.undecided;
            counter.fetch_add(undecided.len() as u64, Ordering::Relaxed);
            shared.notices.undecided(&event, &undecided);
        }
    }
}

/// Names of an opened file beside its path.
#[derive(Default)]
struct OtherNames<'a> {
    /// Names that rules have.
    known: Vec<&'a [u8]>,
    /// Path from the root of the mount namespace, if paths of the process begin elsewhere.
    whole: Option<&'a [u8]>,
}

/// Returns the descriptor of an opened file under another name.
fn opened<'a>(descriptor: Descriptor<'a>, path: &'a [u8]) -> Descriptor<'a> {
    let name = match descriptor.name {
        Name::Passed { raw, .. } => Name::Opened { raw, path },
        _ => Name::Resolved(path),
    };
    Descriptor { name, ..descriptor }
}

/// Returns the names by which to evaluate an opened file, in this order: the names in rules; its path; and
/// the name passed, which may be a link that rules name. Its path comes first if rules have it, and alone if
/// there is no choice.
fn named<'a>(
    passed: Descriptor<'a>,
    names: OtherNames<'a>,
    path: Option<&'a [u8]>,
) -> Vec<Descriptor<'a>> {
    let mut paths = names.known;
    match path {
        Some(path) if paths.contains(&path) => paths.insert(0, path),
        path => paths.extend(path),
    }
    paths.extend(names.whole);
    // Text alone does not say where `..` leads behind a link.
    let is_text = path.is_none() || !has_dots(passed.name);
    let passed_too = (is_absolute(passed.name) && is_text).then_some(passed);
    if passed_too.is_none() && paths.len() == usize::from(path.is_some()) {
        return Vec::new();
    }
    let mut all: Vec<_> = paths.iter().map(|path| opened(passed, path)).collect();
    all.dedup_by_key(|one| one.name);
    all.extend(passed_too);
    all
}

fn has_dots(name: Name<'_>) -> bool {
    let Name::Passed { raw, .. } = name else {
        return false;
    };
    raw.split(|byte| *byte == b'/').any(|name| name == b"..")
}

fn is_absolute(name: Name<'_>) -> bool {
    matches!(
        name,
        Name::Passed {
            raw: [b'/', ..],
            ..
        }
    )
}

/// Returns the call with the flags that the opened file shows. The programs read those in memory when the call has
/// returned: another thread may have changed them since the kernel did.
fn with_used_fields<'a>(
    call: &Call,
    decoded: Decoded<'a>,
    file: Option<&FileFacts>,
    arena: &'a Bump,
) -> Decoded<'a> {
    let read = OpenFields::of(call.kind, &decoded);
    let Some((read, file)) = read.zip(file.map(FileFacts::opened_with)) else {
        return decoded;
    };
    match read.fit(file) {
        true => decoded,
        false => read.corrected(file).put(&decoded, arena),
    }
}

/// Returns the call of a record.
fn call(header: &Header) -> Option<Call> {
    let conventions = Arch::native()?.of_kernel();
    let arch = conventions.get(usize::from(header.abi))?;
    let (arch, syscall) = abi::arch::decode(arch.audit(), header.number)?;
    let mut syscall = syscall?;
    if syscall == abi::Syscall::SOCKETCALL {
        // The kernel's program has unpacked its arguments.
        syscall = abi::Syscall::from_socketcall(header.socketcall)?;
    }
    Some(Call {
        id: 0,
        tid: header.tid,
        arch,
        syscall,
        kind: EventKind::of_syscall(syscall),
        ip: header.ip,
        args: header.args,
        is_unread: header.lacks_arguments(),
    })
}

/// Returns which of the two exec calls it was.
fn exec_call(number: u32) -> abi::Syscall {
    const EXEC_AT: u32 = 1;
    if number == EXEC_AT {
        abi::Syscall::EXECVEAT
    } else {
        abi::Syscall::EXECVE
    }
}

/// Converts the kernel-internal result of a call that a signal interrupts; the kernel decides later what
/// happens to the call. The caller sees this result, or the call is made again.
fn signal_seen(result: i64) -> i64 {
    match result {
        -516..=-512 => -i64::from(Errno::EINTR.0),
        result => result,
    }
}

fn command_line(bytes: &[u8], is_cut: bool) -> CommandLine {
    split_command_line(bytes, is_cut)
}

fn executable_file(facts: &FileFacts) -> ExecutableFile {
    let upper = facts.upper_layer();
    ExecutableFile {
        flags: ExecutableFlags {
            upper_layer: Some(upper == Some(true)),
            lower_layer: Some(upper == Some(false)),
            from_memfd: facts.is_memfd(),
        },
        inode: facts.inode,
        ctime_ns: facts.ctime_ns,
        mtime_ns: facts.mtime_ns,
    }
}

/// As `system_info::writable` does it, from the record. The record lacks supplementary groups, so every
/// possible member counts as one.
fn is_writable(facts: &FileFacts, header: &Header) -> bool {
    const READ_ONLY: u32 = 1;
    const MOUNT_READ_ONLY: u32 = 0x40;
    const IMMUTABLE: u32 = 8;
    if facts.super_flags & READ_ONLY != 0
        || facts.mount_flags & MOUNT_READ_ONLY != 0
        || facts.inode_flags & IMMUTABLE != 0
    {
        return false;
    }
    let capabilities = abi::Capabilities(header.status.cap_effective);
    capabilities.contains(CAP_DAC_OVERRIDE.u8())
        || capabilities.contains(CAP_FOWNER.u8())
        || header.fs_uid == facts.uid
        || facts.mode & 0o002 != 0
        || (facts.mode & 0o020 != 0 && header.fs_gid == facts.gid)
}
