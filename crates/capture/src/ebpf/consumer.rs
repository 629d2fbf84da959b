//! From the rings to the judge.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::Arch;
use bumpalo::Bump;
use event::{
    CommandLine, Event, EventKind, ExecutableFile, ExecutableFlags, Image, Judge, Live, Lookup,
    Name, Outcome, Param, Process, Stage, Weight, World,
};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use sys::poll::{self, PollFd};
use sys::time::{Clock, now_ns};

use super::record::{
    FileFacts, Header, PIECE_CUT, PIECE_STRING, Piece, PieceKind, Pieces, RecordKind, text,
};
use super::world::RecordedWorld;
use super::{Error, Shared};
use crate::live::call::Call;
use crate::live::counters::Counters;
use crate::live::decode;
use crate::memory::Memory;
use crate::procfs::split_command_line;

/// Longest time that records wait while there are few.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time between two looks at the counters of losses.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);
/// Records taken from the bulk ring before the critical one is looked at again.
const BATCH: usize = 1024;
/// Memory of one event that is kept for the next.
const ARENA_KEEP: usize = 256 * 1024;

/// Records that were copied out of a ring.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn records(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.bytes[start..*end])
    }
}

/// One ring and what was taken from it.
struct Lane {
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
}

impl Lane {
    fn open(map: &MapHandle) -> Result<Self, Error> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let into = Rc::clone(&batch);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map, move |record| {
                into.borrow_mut().push(record);
                0
            })
            .map_err(Error::map)?;
        let ring = builder.build().map_err(Error::map)?;
        Ok(Self { ring, batch })
    }

    /// Takes up to so many records; answers with their number.
    fn take(&self, limit: usize) -> usize {
        self.batch.borrow_mut().clear();
        // An error would be one of the callback, which has none.
        usize::try_from(self.ring.consume_raw_n(limit)).unwrap_or(0)
    }
}

/// The thread that judges.
pub(super) struct Consumer<J: Judge> {
    shared: Arc<Shared<J>>,
    judge: Arc<J>,
    scratch: J::Scratch,
    memory: Memory,
    arena: Bump,
    directories: Vec<(i32, Vec<u8>)>,
    /// Added to a time since boot to get one since the epoch.
    epoch: u64,
    number: u64,
    /// What the kernel had counted when it was last looked: sent and lost.
    counted: (u64, u64),
    looked: Instant,
}

impl<J: Judge + 'static> Consumer<J> {
    pub(super) fn start(shared: Arc<Shared<J>>) -> Result<JoinHandle<()>, Error> {
        let thread = std::thread::Builder::new().name("ebpf".to_owned());
        thread
            .spawn(move || {
                let notices = Arc::clone(&shared.notices);
                let ended = Arc::clone(&shared);
                if let Err(error) = Self::new(shared).run() {
                    notices.engine_trouble(&error);
                }
                ended.ended.store(true, Ordering::Release);
            })
            .map_err(Error::Thread)
    }

    fn new(shared: Arc<Shared<J>>) -> Self {
        let judge = shared.judge.load_full();
        Self {
            scratch: judge.scratch(),
            judge,
            memory: Memory::captured(),
            arena: Bump::with_capacity(64 * 1024),
            directories: Vec::new(),
            epoch: now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot)),
            number: 0,
            counted: (0, 0),
            looked: Instant::now(),
            shared,
        }
    }

    fn run(mut self) -> Result<(), Error> {
        let critical = Lane::open(&self.shared.maps.critical)?;
        let bulk = Lane::open(&self.shared.maps.bulk)?;
        loop {
            let is_last = self.is_to_end();
            self.follow_rules();
            // What is in this batch was sent before what the other ring holds afterwards, so that
            // every exec is known before the events of the new program.
            let taken = bulk.take(BATCH);
            while critical.take(BATCH) > 0 {
                critical
                    .batch
                    .borrow()
                    .records()
                    .for_each(|record| self.judge(record));
            }
            bulk.batch
                .borrow()
                .records()
                .for_each(|record| self.judge(record));
            if self.report_losses(is_last && taken == 0).is_break() {
                self.shared.gave_up.store(true, Ordering::Release);
                return Err(Error::TooManyLost);
            }
            if taken == 0 {
                if is_last {
                    return Ok(());
                }
                self.wait();
            }
        }
    }

    /// Until a record comes by the critical lane, many by the other, or some time has passed.
    fn wait(&self) {
        let maps = &self.shared.maps;
        let mut polled = [
            PollFd::new(AsFd::as_fd(&maps.critical), poll::IN),
            PollFd::new(AsFd::as_fd(&maps.bulk), poll::IN),
        ];
        // An interruption is a reason to look again, too.
        let _ = poll::poll(&mut polled, Some(PATIENCE));
    }

    /// Whether nothing can come any more but what waits in the rings.
    fn is_to_end(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
            || (self.shared.is_scoped && !self.shared.maps.watches_any())
    }

    fn follow_rules(&mut self) {
        let judge = self.shared.judge.load();
        if !Arc::ptr_eq(&judge, &self.judge) {
            self.scratch = judge.scratch();
            self.judge = Arc::clone(&judge);
            // The clock may have been set, too.
        }
        self.epoch = now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot));
    }

    fn report_losses(&mut self, at_once: bool) -> ControlFlow<()> {
        if !at_once && self.looked.elapsed() < LOSS_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.looked = Instant::now();
        let counts = self.shared.kernel_counts();
        let (sent, lost) = (counts.sent, counts.lost());
        let (sent_before, lost_before) = std::mem::replace(&mut self.counted, (sent, lost));
        if lost <= lost_before {
            return ControlFlow::Continue(());
        }
        let by_call = self.shared.losses();
        let notices = &self.shared.notices;
        notices.events_dropped(lost - lost_before, sent - sent_before, &by_call)
    }

    fn judge(&mut self, record: &[u8]) {
        let Some((header, pieces)) = Header::parse(record) else {
            Counters::add(&self.shared.malformed);
            return;
        };
        let shared = Arc::clone(&self.shared);
        let proc = shared.world.proc();
        match header.kind {
            RecordKind::Fork => shared.table.forked(&header, proc),
            RecordKind::Exit => {
                let process = shared.table.of(&header, proc);
                process.set_last_comm(header.comm);
                self.exited(&header, &process);
                shared.table.ended(&process);
            }
            RecordKind::Exec => {
                let process = shared.table.of(&header, proc);
                shared
                    .places
                    .learn(&shared.world, &process, &header, pieces);
                let image = Arc::new(self.program(&header, pieces));
                shared.table.executed(&process, &header, Arc::clone(&image));
                self.executed(&header, pieces, &process, image);
            }
            RecordKind::Call => {
                let process = shared.table.of(&header, proc);
                process.set_last_comm(header.comm);
                self.called(&header, pieces, &process);
            }
        }
        Counters::add(&shared.judged);
        if self.arena.allocated_bytes() > ARENA_KEEP {
            self.arena = Bump::with_capacity(64 * 1024);
        } else {
            self.arena.reset();
        }
    }

    /// The new program as the record has it.
    fn program(&self, header: &Header, pieces: Pieces<'_>) -> Image {
        let image = Image {
            exec_time_ns: header.boot_time.wrapping_add(self.epoch),
            ..Image::default()
        };
        for piece in pieces {
            match piece.kind {
                PieceKind::Arguments => {
                    let cut = piece.status & PIECE_CUT != 0;
                    let _ = image.command_line.set(Some(command_line(piece.bytes, cut)));
                }
                PieceKind::Environment if piece.status & PIECE_CUT == 0 => {
                    let _ = image.environment.set(Some(piece.bytes.to_vec()));
                }
                PieceKind::Executable => {
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
        image
    }

    /// An exec that succeeded.
    fn executed(
        &mut self,
        header: &Header,
        pieces: Pieces<'_>,
        process: &Arc<Process>,
        image: Arc<Image>,
    ) {
        let filename = pieces
            .into_iter()
            .find(|piece| piece.kind == PieceKind::Filename)
            .map(|piece| text(piece.bytes).to_vec());
        let kind = EventKind::of_syscall(exec_call(header.number));
        let name = filename.as_deref().map_or(Param::Unreadable, Param::Text);
        self.set_directories(pieces);
        let outcome = Outcome::Returned(0);
        self.tell(
            header,
            process,
            image,
            kind,
            outcome,
            |source| match source {
                event::ParamSource::Result => Param::Int(0),
                event::ParamSource::Path { .. } => name,
                _ => Param::Absent,
            },
        );
    }

    /// A process has ended.
    fn exited(&mut self, header: &Header, process: &Arc<Process>) {
        let Ok(kind) = EventKind::from_name("procexit") else {
            return;
        };
        self.directories.clear();
        let image = self.shared.table.image(process, header);
        self.tell(header, process, image, kind, Outcome::None, |_| {
            Param::Absent
        });
    }

    /// An event about a process as such, without arguments in registers.
    fn tell<'r>(
        &mut self,
        header: &Header,
        process: &Arc<Process>,
        image: Arc<Image>,
        kind: EventKind,
        outcome: Outcome,
        value: impl Fn(event::ParamSource) -> Param<'r>,
    ) {
        let arena = std::mem::take(&mut self.arena);
        let params = kind.spec().params.iter().map(|param| value(param.source));
        let params = arena.alloc_slice_fill_iter(params);
        self.conclude(
            header, process, image, kind, params, [None; 2], outcome, &arena,
        );
        self.arena = arena;
    }

    /// A call has returned.
    fn called(&mut self, header: &Header, pieces: Pieces<'_>, process: &Arc<Process>) {
        let Some(call) = call(header) else {
            Counters::add(&self.shared.counters.unknown_calls);
            return;
        };
        self.memory.capture(|captured| {
            for piece in pieces.filter(|piece| piece.kind == PieceKind::Memory) {
                let is_string = piece.status & PIECE_STRING != 0;
                let bytes = if is_string {
                    text(piece.bytes)
                } else {
                    piece.bytes
                };
                captured.add(piece.address, bytes, is_string);
            }
        });
        self.set_directories(pieces);
        let arena = std::mem::take(&mut self.arena);
        let result = signal_seen(header.result);
        let outcome = Outcome::Returned(result);
        let mut decoded =
            decode::decode(&call, &self.memory, &arena).returned(&call, outcome, &arena);
        self.shared.counters.note_unreadable(&decoded);
        let mut passed = None;
        let file = pieces
            .into_iter()
            .find(|piece| piece.kind == PieceKind::File);
        if let Some(facts) = file.as_ref().and_then(FileFacts::parse)
            && let Some(descriptor) = decoded.descriptor
        {
            let found = facts.resolved();
            let mut descriptor = decode::merge(descriptor, &found, false, &arena);
            let opens = matches!(
                call.kind.spec().descriptor,
                event::DescriptorSource::Opened { .. }
            );
            // What was opened, whatever the caller's memory says by now.
            if opens && let Some(path) = facts.path() {
                let path = arena.alloc_slice_copy(path);
                passed = Some(descriptor).filter(|passed| is_absolute(passed.name));
                descriptor.name = match descriptor.name {
                    Name::Passed { raw, .. } => Name::Opened { raw, path },
                    _ => Name::Resolved(path),
                };
            }
            decoded.descriptor = Some(descriptor);
        }
        if call.syscall == abi::Syscall::IO_URING_SETUP && result >= 0 {
            self.shared.notices.ring(process, false);
        }
        let image = self.shared.table.image(process, header);
        self.conclude(
            header,
            process,
            image,
            call.kind,
            decoded.params,
            [decoded.descriptor, passed],
            outcome,
            &arena,
        );
        self.arena = arena;
    }

    fn set_directories(&mut self, pieces: Pieces<'_>) {
        self.directories.clear();
        let directories = pieces.filter(|piece| piece.kind == PieceKind::Directory);
        self.directories
            .extend(
                directories
                    .filter(|piece| piece.status == 0)
                    .map(|piece: Piece<'_>| {
                        let number = i32::try_from(piece.address.cast_signed()).unwrap_or(-1);
                        (number, piece.bytes.to_vec())
                    }),
            );
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of an event, from three places"
    )]
    fn conclude(
        &mut self,
        header: &Header,
        process: &Arc<Process>,
        image: Arc<Image>,
        kind: EventKind,
        params: &[Param<'_>],
        [descriptor, passed]: [Option<event::Descriptor<'_>>; 2],
        outcome: Outcome,
        arena: &Bump,
    ) {
        let shared = Arc::clone(&self.shared);
        let world = RecordedWorld {
            live: &shared.world,
            places: &shared.places,
            header,
            directories: &self.directories,
        };
        let live = Live::default();
        // A fresh cell is empty, so none of these can fail.
        let _ = live.comm.set(Lookup::Found(header.comm));
        let _ = live.stat.set(Lookup::Found(header.stat));
        let _ = live.status.set(Lookup::Found(header.status));
        self.number += 1;
        let mut event = Event {
            number: self.number,
            time_ns: header.boot_time.wrapping_add(self.epoch),
            kind,
            stage: Stage::Exit,
            cpu: Some(header.cpu),
            tid: header.tid,
            process,
            image,
            params,
            descriptor,
            outcome,
            world: &world as &dyn World,
            live: &live,
            arena,
        };
        // Rules may also name the link that was passed, which leads to another file: what was opened
        // goes first, and only where no rule is about that what was asked for.
        if passed.is_some() && self.judge.weigh(&mut self.scratch, &event) == Weight::Reject {
            event.descriptor = passed;
        }
        let undecided = self.judge.conclude(&mut self.scratch, &event);
        if undecided > 0 {
            let counter = &shared.counters.undecided;
            counter.fetch_add(u64::from(undecided), Ordering::Relaxed);
            shared.notices.undecided(&event, undecided);
        }
    }
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

/// The call of a record.
fn call(header: &Header) -> Option<Call> {
    let native = Arch::native()?;
    let arch = match header.abi {
        1 => Arch::I386,
        _ => native,
    };
    let (arch, syscall) = abi::arch::decode(arch.audit(), header.number)?;
    let mut syscall = syscall?;
    if syscall == abi::Syscall::SOCKETCALL {
        // Its arguments have been unpacked in the kernel.
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
    })
}

/// Which of the two calls it was.
fn exec_call(number: u32) -> abi::Syscall {
    const EXEC_AT: u32 = 1;
    if number == EXEC_AT {
        abi::Syscall::EXECVEAT
    } else {
        abi::Syscall::EXECVE
    }
}

/// A call that a signal interrupts returns a number between these inside the kernel; what becomes
/// of it is decided later. To the caller it is this, or the call is made again.
fn signal_seen(result: i64) -> i64 {
    const EINTR: i64 = 4;
    match result {
        -516..=-512 => -EINTR,
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

/// As `world::writable` does it, by what the record says. Supplementary groups are not in it, so
/// whoever could be a member counts as one.
fn is_writable(facts: &FileFacts, header: &Header) -> bool {
    const READ_ONLY: u32 = 1;
    const MOUNT_READ_ONLY: u32 = 0x40;
    const IMMUTABLE: u32 = 8;
    const CAP_DAC_OVERRIDE: u64 = 1 << 1;
    const CAP_FOWNER: u64 = 1 << 3;
    if facts.super_flags & READ_ONLY != 0
        || facts.mount_flags & MOUNT_READ_ONLY != 0
        || facts.inode_flags & IMMUTABLE != 0
    {
        return false;
    }
    header.status.cap_effective & (CAP_DAC_OVERRIDE | CAP_FOWNER) != 0
        || header.fs_uid == facts.uid
        || facts.mode & 0o002 != 0
        || (facts.mode & 0o020 != 0 && header.fs_gid == facts.gid)
}
