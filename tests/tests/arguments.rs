//! Arguments in memory that the kernel can read and others cannot, or that nobody can: each is seen, or its
//! event is reported as undecided. None is taken for absent.
//!
//! The calls and their arguments are those of the event table, so that a call with a new row is tried, too.

use std::time::Duration;

use abi::{Arch, ArgKind, Syscall};
use e2e::{Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root, skip};
use event::{DescriptorSource, EventKind, ParamSource, ParamSpec};

/// What is in the memory, where a text is asked for.
const MARKER: &str = "/tollgate-no-such-folder/marker";
/// The same for a number: no flag of a call that would do something.
const NUMBER: u32 = 0x7654_3210;
/// An address that nobody has (RFC 5737), and a port.
const ADDRESS: [u8; 16] = [2, 0, 0x1f, 0x90, 203, 0, 113, 7, 0, 0, 0, 0, 0, 0, 0, 0];
const ADDRESS_RULE: &str = "fd.sip = 203.0.113.7";
/// What ends the program where the machine has no such memory.
const UNAVAILABLE: i32 = 77;

/// One argument of one call.
struct Case {
    /// Of the rule.
    name: String,
    condition: String,
    /// For the program.
    line: String,
}

/// Arguments that let a call reach the one that is tried, and do nothing.
fn words(call: Syscall) -> Vec<&'static str> {
    let word = |at: usize| {
        let argument = &call.args()[at];
        let next = call.args().get(at + 1).map(|next| next.kind);
        match argument.kind {
            ArgKind::DirFd if matches!(next, Some(ArgKind::Path)) => "-100",
            ArgKind::Fd | ArgKind::DirFd => "-1",
            ArgKind::Path | ArgKind::Text => "S",
            // No process, no group and no user has these.
            ArgKind::Pid => "2147483600",
            ArgKind::Uid | ArgKind::Gid => "-1",
            ArgKind::Enum(_) => "99",
            ArgKind::Size => "64",
            ArgKind::SockaddrLen => "16",
            ArgKind::Argv | ArgKind::Envp => "0",
            _ if argument.is_pointer() => "Z",
            _ => "0",
        }
    };
    (0..call.args().len()).map(word).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn line(call: Syscall, position: usize, content: &[u8], more: usize, words: &[&str]) -> String {
    let number = call.number(Arch::native().expect("a known machine"));
    let number = number.expect("the call is native");
    let content = hexadecimal(content);
    format!("{number} {position} {content} {more} {}", words.join(" "))
}

/// What tries a parameter: where its address goes, what is there, and how many zeros behind it.
fn content(source: ParamSource) -> Option<(u8, Vec<u8>, usize)> {
    let text = || MARKER.as_bytes().to_vec();
    Some(match source {
        ParamSource::Path { path: at, .. } | ParamSource::Text(at) => (at, text(), 1),
        // An array in memory that can be read, of strings in memory that cannot.
        ParamSource::Texts(at) => (10 + at, text(), 1),
        ParamSource::Buffer { arg, .. } => (arg, text(), 64 - MARKER.len()),
        ParamSource::Field { arg, offset, size } => {
            let mut bytes = vec![0; usize::from(offset)];
            bytes.extend(NUMBER.to_ne_bytes());
            bytes.resize(usize::from(offset + size), 0);
            (arg, bytes, 64)
        }
        ParamSource::Result
        | ParamSource::Register(_)
        | ParamSource::Constant(_)
        | ParamSource::Tuple
        | ParamSource::Process
        | ParamSource::Nowhere => return None,
    })
}

fn of_param(call: Syscall, kind: EventKind, spec: &ParamSpec) -> Option<Case> {
    let (position, content, more) = content(spec.source)?;
    let condition = match spec.source {
        ParamSource::Field { .. } => format!("evt.rawarg.{} = {NUMBER}", spec.name),
        _ => format!("evt.arg.{} contains {MARKER}", spec.name),
    };
    Some(Case {
        name: format!("{call} {}", spec.name),
        condition: format!("evt.type = {} and {condition}", kind.name()),
        line: line(call, position.into(), &content, more, &words(call)),
    })
}

/// The address that a call on a socket is passed, and the structures on the way to it.
fn of_descriptor(call: Syscall, kind: EventKind) -> Vec<Case> {
    let mut words = words(call);
    let case = |what: &str, position: u8, content: &[u8], more: usize, words: &[&str]| Case {
        name: format!("{call} {what}"),
        condition: format!("evt.type = {} and {ADDRESS_RULE}", kind.name()),
        line: line(call, position.into(), content, more, words),
    };
    match kind.spec().descriptor {
        DescriptorSource::Addressed { fd, address, .. } => {
            words[usize::from(fd)] = if kind.name() == "connect" { "T" } else { "U" };
            vec![case("address", address, &ADDRESS, 0, &words)]
        }
        DescriptorSource::Message { fd, message, count } => {
            words[usize::from(fd)] = "U";
            if let Some(count) = count {
                words[usize::from(count)] = "1";
            }
            vec![case("address", 10 + message, &ADDRESS, 0, &words)]
        }
        DescriptorSource::None
        | DescriptorSource::Opened { .. }
        | DescriptorSource::Argument(_)
        | DescriptorSource::Duplicated(_)
        | DescriptorSource::CreatedSocket
        | DescriptorSource::Created(_)
        | DescriptorSource::Accepted(_) => Vec::new(),
    }
}

/// Every argument of every call of this machine that leads to memory which some field tells of.
fn cases() -> Vec<Case> {
    let arch = Arch::native().expect("a known machine");
    let native = Syscall::all().filter(|call| call.number(arch).is_some());
    let cases = native.flat_map(|call| {
        let kind = EventKind::of_syscall(call);
        let params = kind.spec().params.iter();
        let params = params.filter_map(move |spec| of_param(call, kind, spec));
        params.chain(of_descriptor(call, kind))
    });
    cases.collect()
}

fn rules(cases: &[Case]) -> String {
    let rule = |case: &Case| {
        format!(
            "- rule: {}\n  desc: one argument\n  condition: {}\n  output: seen %evt.type\n  priority: INFO\n",
            case.name, case.condition
        )
    };
    cases.iter().map(rule).collect()
}

/// Makes all calls with their arguments in memory of a kind; `None` where there is none.
fn watch(engine: Engine, memory: &str, cases: &[Case]) -> Option<WatchResult> {
    let fixture = Fixture::compile("arguments");
    let watch = Watch::new(["true"])
        .engine(engine)
        .limit(Duration::from_secs(300));
    let program = watch.scratch().program(fixture.program(), "arguments");
    let lines: Vec<&str> = cases.iter().map(|case| &*case.line).collect();
    let watched = watch
        .command([program.display().to_string(), memory.to_owned()])
        .place(Environment::Host)
        .identity(Identity::Root)
        .rules(&rules(cases))
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .input(lines.join("\n") + "\n")
        .run();
    if watched.code() == UNAVAILABLE {
        return None;
    }
    assert_eq!(watched.code(), 0, "{}", watched.story());
    Some(watched)
}

fn undecided(watched: &WatchResult) -> u64 {
    let stats = watched.stats.as_ref();
    let count = stats.and_then(|stats| stats["counters"]["undecided"].as_u64());
    count.unwrap_or_else(|| panic!("no undecided in the stats: {}", watched.story()))
}

/// Rules that no event has matched.
fn unmatched(watched: &WatchResult, cases: &[Case]) -> Vec<String> {
    let names = cases.iter().map(|case| case.name.clone());
    names.filter(|name| watched.of(name).is_empty()).collect()
}

/// Every argument that can be read is seen, so that what follows is about memory alone.
fn plain_memory_is_read(engine: Engine) {
    let cases = cases();
    assert!(cases.len() > 120, "{}", cases.len());
    let watched = watch(engine, "plain", &cases).expect("there is memory");
    let missed = unmatched(&watched, &cases);
    assert!(missed.is_empty(), "{missed:?}: {}", watched.story());
    assert_eq!(undecided(&watched), 0, "{}", watched.story());
}

/// Each is seen or undecided: there is one call and one rule for each.
fn none_is_absent(engine: Engine, memory: &str) {
    let cases = cases();
    let Some(watched) = watch(engine, memory, &cases) else {
        skip!("needs such memory", || Ok(memory.to_owned()));
    };
    let missed = unmatched(&watched, &cases);
    let undecided = undecided(&watched);
    assert!(
        undecided >= missed.len() as u64,
        "{engine:?}, {memory}: {undecided} undecided, not seen are {}: {missed:?}: {}",
        missed.len(),
        watched.story()
    );
    println!(
        "{engine:?}, {memory}: {} of {} seen",
        cases.len() - missed.len(),
        cases.len()
    );
}

macro_rules! engines {
    ($($name:ident: $engine:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn plain_memory() {
                need_root!();
                plain_memory_is_read($engine);
            }

            #[test]
            fn write_only_memory() {
                need_root!();
                none_is_absent($engine, "write-only");
            }

            #[test]
            fn memory_without_permission() {
                need_root!();
                none_is_absent($engine, "none");
            }

            #[test]
            fn no_memory() {
                need_root!();
                none_is_absent($engine, "unmapped");
            }

            #[test]
            fn memory_that_ends_in_no_memory() {
                need_root!();
                none_is_absent($engine, "crossing-unmapped");
            }

            #[test]
            fn memory_that_ends_in_write_only_memory() {
                need_root!();
                none_is_absent($engine, "crossing-write-only");
            }

            #[test]
            fn memory_of_a_device() {
                need_root!();
                none_is_absent($engine, "device");
            }

            #[test]
            fn secret_memory() {
                need_root!();
                none_is_absent($engine, "secret");
            }
        }
    )*};
}

engines! {
    notify: Engine::Notify;
    ptrace: Engine::Ptrace;
    ebpf: Engine::Ebpf;
}

/// Asks for the objects of calls by the names that the kernel knows at their end.
const OBJECTS: &str = "\
- rule: Opened
  desc: x
  condition: evt.type in (open, openat, creat) and fd.name startswith %D/marked
  output: \"%evt.type %fd.name\"
  priority: INFO
- rule: Connected
  desc: x
  condition: evt.type in (connect, bind) and fd.port in (34567, 34568)
  output: \"%evt.type %fd.lport %fd.rport\"
  priority: INFO
- rule: Began
  desc: x
  condition: evt.type = execve and proc.exepath endswith /true and proc.pname = unreadable
  output: \"%evt.type %proc.exepath\"
  priority: INFO
";

/// A call that succeeds has an object that the kernel names at its end, whatever can be read of its arguments:
/// rules on that are decided.
#[test]
fn what_a_call_has_reached_is_known_without_its_arguments() {
    need_root!();
    let fixture = Fixture::compile("unreadable");
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        for memory in ["written", "secret"] {
            let watch = Watch::new(["true"]).engine(engine);
            watch.scratch().file("marked", 0o644, "");
            let folder = watch.scratch().path().display().to_string();
            let program = watch.scratch().program(fixture.program(), "unreadable");
            let program = program.display().to_string();
            let watched = watch
                .command([program, memory.to_owned(), folder.clone()])
                .rules(&OBJECTS.replace("%D", &folder))
                .run();
            if watched.code() == UNAVAILABLE {
                assert_eq!(memory, "secret", "{}", watched.story());
                continue;
            }
            assert_eq!(watched.code(), 0, "{engine:?} {memory} {}", watched.story());
            let count = |rule: &str| watched.of(rule).len();
            assert_eq!(
                [count("Opened"), count("Connected"), count("Began")],
                [3, 2, 1],
                "{engine:?} {memory} {}",
                watched.story()
            );
            assert_eq!(
                undecided(&watched),
                0,
                "{engine:?} {memory} {}",
                watched.story()
            );
        }
    }
}

const UNREAD_RULES: &str = "\
- rule: Address
  desc: an argument that no engine reads by itself
  condition: evt.type = bind and evt.arg.addr contains 127.0.0.1
  output: seen %evt.args
  priority: INFO
- rule: All arguments
  desc: in one line
  condition: evt.type = bind and evt.args contains addr
  output: seen %evt.args
  priority: INFO
";

#[test]
fn an_argument_that_no_engine_reads_is_unknown_not_absent() {
    need_root!();
    let program = "import socket; socket.socket().bind(('127.0.0.1', 0))";
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watched = Watch::new(["python3", "-c", program])
            .engine(engine)
            .place(Environment::Host)
            .rules(UNREAD_RULES)
            .run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let undecided = watched.of("Tollgate internal: undecided event");
        assert_eq!(undecided.len(), 1, "{}", watched.story());
        assert_eq!(watched.of("All arguments").len(), 1, "{}", watched.story());
    }
}

const EMPTY_RULES: &str = "\
- rule: Times
  desc: of a file without a name
  condition: evt.type = utimensat and evt.args contains %F
  output: seen %evt.args
  priority: INFO
- rule: Attribute
  desc: of a file without a name
  condition: evt.type = setxattrat and evt.args contains %F
  output: seen %evt.args
  priority: INFO
";

/// `futimens(3)` and its like: a null pointer in place of a path.
#[test]
fn a_call_with_a_descriptor_and_no_path_is_about_what_is_open() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watch = Watch::new(["true"]).engine(engine).place(Environment::Host);
        let file = watch.scratch().path().join("file").display().to_string();
        // 463 is setxattrat (Linux 6.13): elsewhere it fails, and is told all the same.
        let program = format!(
            "import ctypes, os; fd = os.open('{file}', os.O_CREAT | os.O_RDWR); os.utime(fd)
ctypes.CDLL(None).syscall(463, fd, None, 0x1000, b'user.a', (ctypes.c_ulong * 2)(), 16)"
        );
        let watched = watch
            .command(["python3", "-c", &program].map(str::to_owned))
            .rules(&EMPTY_RULES.replace("%F", &file))
            .run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        assert_eq!(watched.of("Times").len(), 1, "{}", watched.story());
        assert_eq!(watched.of("Attribute").len(), 1, "{}", watched.story());
    }
}
