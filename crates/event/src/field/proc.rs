//! `proc.*`: the calling process, its program and its ancestors.

use super::ancestry::{AncestorField, Subject, ancestor, found, tell};
use super::text::{Text, copied};
use super::{Argument, ArgumentKind, Class, FieldSpec, ProcessFact as Fact, Source, fd};
use crate::ValueType::{self, AbsTime, Bool, Int, Path, RelTime, Uint};
use crate::{
    Event, ExecutableFile, Lookup, ParamSpec, ParamType, Pid, Process, Stat, Status, Value,
};

pub(super) const CLASS: Class = Class {
    name: "proc",
    description: "The process that made the call, its program and its ancestors.",
};

const TEXT: ValueType = ValueType::Text;
const LEVEL: ArgumentKind = ArgumentKind::Index { required: false };
const PROBES: &str = "commands of health checks and probes are not looked up";
const LIMITS: &str = "limits of descriptors are not looked up";
const NAMESPACE: &str = "the start of the pid namespace is not looked up";

const fn fact(fact: Fact) -> Source {
    Source::Process(fact)
}

pub(super) static FIELDS: &[FieldSpec] = &[
    // The program.
    FieldSpec::new("proc.name", TEXT, fact(Fact::Comm), |e, _| comm(e), "Command name that the kernel gave at exec, at most 15 bytes; a fork inherits it. See `thread.name` for the present one."),
    FieldSpec::new("proc.exe", TEXT, fact(Fact::Image), |e, _| Subject::caller(e).exe(e), "First argument \
    (argv[0]), as the caller chose it."),
    FieldSpec::new("proc.exepath", Path, fact(Fact::Image), |e, _| Subject::caller(e).exe_path(e), "Path of the executable file."),
    FieldSpec::new("proc.args", TEXT, fact(Fact::Image), args, "Arguments without argv[0], separated by spaces; with an index, one of them.").with(LEVEL),
    FieldSpec::new("proc.cmdline", TEXT, fact(Fact::CommandLine), |e, _| Subject::caller(e).command(e), "Command name and arguments."),
    FieldSpec::new("proc.exeline", TEXT, fact(Fact::Image), exe_line, "argv[0] and arguments."),
    FieldSpec::new("proc.cmdnargs", Uint, fact(Fact::Image), |e, _| count(e, |args| args.len()), "How many arguments there are, without argv[0]."),
    FieldSpec::new("proc.cmdlenargs", Uint, fact(Fact::Image), |e, _| count(e, |args| args.iter().map(Vec::len).sum()), "How long the arguments are together, without the spaces."),
    FieldSpec::new("proc.env", TEXT, fact(Fact::Environment), env, "Environment at the start of the program, or the value of one variable: `proc.env[HOME]`.").with(ArgumentKind::Name { required: false }),
    FieldSpec::new("proc.is_exe_writable", Bool, fact(Fact::ExecutableFile), writable, "Whether the user who runs the executable may write it."),
    FieldSpec::new("proc.is_exe_upper_layer", Bool, fact(Fact::ExecutableFile), |e, _| exe(e, |file| layer(file.flags.upper_layer)), "Whether the executable lies in the upper layer of an overlay: it came after the image."),
    FieldSpec::new("proc.is_exe_lower_layer", Bool, fact(Fact::ExecutableFile), |e, _| exe(e, |file| layer(file.flags.lower_layer)), "Whether the executable lies in a lower layer of an overlay."),
    FieldSpec::new("proc.is_exe_from_memfd", Bool, fact(Fact::ExecutableFile), from_memfd, "Whether the executable exists in memory only."),
    FieldSpec::new("proc.exe_ino", Int, fact(Fact::ExecutableFile), |e, _| exe(e, |file| nonzero(file.inode)), "Inode of the executable."),
    FieldSpec::new("proc.exe_ino.ctime", AbsTime, fact(Fact::ExecutableFile), |e, _| exe(e, |file| time(file.ctime_ns)), "When the status of the executable changed."),
    FieldSpec::new("proc.exe_ino.mtime", AbsTime, fact(Fact::ExecutableFile), |e, _| exe(e, |file| time(file.mtime_ns)), "When the executable was modified."),
    FieldSpec::new("proc.exe_ino.ctime_duration_proc_start", RelTime, fact(Fact::ExecutableFile), since_change, "Nanoseconds from the change of the executable to the start of the process."),
    FieldSpec::absent("proc.exe_ino.ctime_duration_pidns_start", RelTime, NAMESPACE, "Nanoseconds from the start of the pid namespace to the change of the executable."),
    FieldSpec::absent("proc.pidns_init_start_ts", AbsTime, NAMESPACE, "When the first process of the pid namespace started."),
    FieldSpec::new("proc.cwd", Path, fact(Fact::Directory), directory, "Working directory, with a slash at its end."),
    // Identity.
    FieldSpec::new("proc.pid", Int, fact(Fact::Identity), |e, _| Value::Int(i64::from(e.process.pid.0)), "Process id."),
    FieldSpec::new("proc.ppid", Int, fact(Fact::Identity), |e, _| tell(e, Some(1), |s, _| pid(s)), "Process id of the parent."),
    FieldSpec::new("proc.vpid", Int, fact(Fact::Namespaced), |e, _| status(e, |s| s.vpid), "Process id in its own pid namespace."),
    FieldSpec::new("proc.pvpid", Int, fact(Fact::AncestorIdentity), parent_vpid, "Process id of the parent in the parent's pid namespace."),
    FieldSpec::new("proc.sid", Int, fact(Fact::Namespaced), |e, _| status(e, |s| s.vsid), "Session id."),
    FieldSpec::new("proc.vpgid", Int, fact(Fact::Namespaced), |e, _| status(e, |s| s.vpgid), "Process group in its own pid namespace."),
    FieldSpec::new("proc.pgid", Int, fact(Fact::Session), |e, _| stat(e, |s| Value::Int(i64::from(s.pgid))), "Process group."),
    FieldSpec::new("proc.tty", Uint, fact(Fact::Session), |e, _| stat(e, |s| Value::Uint(u64::from(s.tty))), "Device number of the controlling terminal, 0 for none."),
    FieldSpec::new("proc.is_sid_leader", Bool, fact(Fact::Namespaced), |e, _| is(e, |s| s.vsid == s.vpid), "Whether the process leads its session."),
    FieldSpec::new("proc.is_vpgid_leader", Bool, fact(Fact::Namespaced), |e, _| is(e, |s| s.vpgid == s.vpid), "Whether the process leads its process group, in its own pid namespace."),
    FieldSpec::new("proc.is_pgid_leader", Bool, fact(Fact::Session), is_group_leader, "Whether the process leads its process group."),
    // Leaders.
    FieldSpec::new("proc.sname", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.sid, Subject::comm_value), "Command name of the session leader."),
    FieldSpec::new("proc.sid.exe", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.sid, Subject::exe), "argv[0] of the session leader."),
    FieldSpec::new("proc.sid.exepath", Path, fact(Fact::Leader), |e, _| leader(e, |s| s.sid, Subject::exe_path), "Executable of the session leader."),
    FieldSpec::new("proc.vpgid.name", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::comm_value), "Command name of the process group leader."),
    FieldSpec::new("proc.vpgid.exe", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::exe), "argv[0] of the process group leader."),
    FieldSpec::new("proc.vpgid.exepath", Path, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::exe_path), "Executable of the process group leader."),
    FieldSpec::new("proc.pgid.name", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::comm_value), "Command name of the process group leader."),
    FieldSpec::new("proc.pgid.exe", TEXT, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::exe), "argv[0] of the process group leader."),
    FieldSpec::new("proc.pgid.exepath", Path, fact(Fact::Leader), |e, _| leader(e, |s| s.pgid, Subject::exe_path), "Executable of the process group leader."),
    // Ancestors.
    FieldSpec::new("proc.pname", TEXT, fact(Fact::AncestorComm), |e, _| tell(e, Some(1), Subject::comm_value), "Command name of the parent."),
    FieldSpec::new("proc.pexe", TEXT, fact(Fact::AncestorImage), |e, _| tell(e, Some(1), Subject::exe), "argv[0] of the parent."),
    FieldSpec::new("proc.pexepath", Path, fact(Fact::AncestorImage), |e, _| tell(e, Some(1), Subject::exe_path), "Executable of the parent."),
    FieldSpec::new("proc.pcmdline", TEXT, fact(Fact::AncestorImage), |e, _| tell(e, Some(1), Subject::command), "Command name and arguments of the parent."),
    FieldSpec::new("proc.apid", Int, fact(Fact::AncestorIdentity), |e, a| tell(e, a.index(), |s, _| pid(s)), "Process ids of all ancestors; with an index that of one: 0 is the process, 1 its parent.").with(LEVEL).many(),
    FieldSpec::new("proc.aname", TEXT, fact(Fact::AncestorComm), |e, a| tell(e, a.index(), Subject::comm_value), "Command names of all ancestors; with an index that of one: 0 is the process, 1 its parent.").with(LEVEL).many(),
    FieldSpec::new("proc.aexe", TEXT, fact(Fact::AncestorImage), |e, a| tell(e, a.index(), Subject::exe), "argv[0] of all ancestors; with an index that of one.").with(LEVEL).many(),
    FieldSpec::new("proc.aexepath", Path, fact(Fact::AncestorImage), |e, a| tell(e, a.index(), Subject::exe_path), "Executables of all ancestors; with an index that of one.").with(LEVEL).many(),
    FieldSpec::new("proc.aargs", TEXT, fact(Fact::AncestorImage), |e, a| tell(e, a.index(), Subject::args), "Arguments of all ancestors; with an index those of one.").with(LEVEL).many(),
    FieldSpec::new("proc.acmdline", TEXT, fact(Fact::AncestorImage), |e, a| tell(e, a.index(), Subject::command), "Command lines of all ancestors; with an index that of one.").with(LEVEL).many(),
    FieldSpec::new("proc.aenv", TEXT, fact(Fact::AncestorImage), ancestor_env, "Environments of all ancestors; with an index that of one, with a name the nearest ancestor's variable.").with(ArgumentKind::IndexOrName { required: false }).many(),
    FieldSpec::new("proc.loginshellid", Int, fact(Fact::CommandLine), login_shell, "Process id of the oldest shell among the process and its ancestors."),
    // Time and resources.
    FieldSpec::new("proc.duration", RelTime, fact(Fact::Identity), |e, _| age(e, e.process), "Nanoseconds since the process started."),
    FieldSpec::new("proc.ppid.duration", RelTime, fact(Fact::Identity), |e, _| tell(e, Some(1), |s, e| age(e, s.process())), "Nanoseconds since the parent started."),
    FieldSpec::new("proc.pid.ts", AbsTime, fact(Fact::Identity), |e, _| time(e.process.start_ns), "When the process started, in nanoseconds since 1970."),
    FieldSpec::new("proc.ppid.ts", AbsTime, fact(Fact::Identity), |e, _| tell(e, Some(1), |s, _| time(s.process().start_ns)), "When the parent started, in nanoseconds since 1970."),
    FieldSpec::new("proc.nthreads", Uint, fact(Fact::Resources), |e, _| stat(e, |s| Value::Uint(u64::from(s.threads))), "How many threads the process has."),
    FieldSpec::new("proc.nchilds", Uint, fact(Fact::Resources), |e, _| stat(e, |s| Value::Uint(u64::from(s.threads.saturating_sub(1)))), "How many threads the process has besides the first."),
    FieldSpec::new("proc.vmsize", Uint, fact(Fact::Resources), |e, _| stat(e, |s| Value::Uint(s.vm_size_kib)), "Virtual memory in KiB."),
    FieldSpec::new("proc.vmrss", Uint, fact(Fact::Resources), |e, _| stat(e, |s| Value::Uint(s.vm_rss_kib)), "Resident memory in KiB."),
    FieldSpec::absent("proc.vmswap", Uint, "swapped memory is not looked up", "Swapped memory in KiB."),
    FieldSpec::new("proc.fdopencount", Uint, fact(Fact::Descriptors), open_count, "How many descriptors are open."),
    FieldSpec::absent("proc.fdlimit", Int, LIMITS, "How many descriptors may be open."),
    FieldSpec::absent("proc.fdusage", Uint, LIMITS, "Open descriptors in proportion to the limit."),
    // Standard streams.
    FieldSpec::new("proc.stdin.type", TEXT, fact(Fact::Descriptors), |e, _| fd::type_of(e, 0), "Type of the standard input."),
    FieldSpec::new("proc.stdout.type", TEXT, fact(Fact::Descriptors), |e, _| fd::type_of(e, 1), "Type of the standard output."),
    FieldSpec::new("proc.stderr.type", TEXT, fact(Fact::Descriptors), |e, _| fd::type_of(e, 2), "Type of the standard error output."),
    FieldSpec::new("proc.stdin.name", TEXT, fact(Fact::Descriptors), |e, _| fd::name_of(e, 0), "Name of the standard input."),
    FieldSpec::new("proc.stdout.name", TEXT, fact(Fact::Descriptors), |e, _| fd::name_of(e, 1), "Name of the standard output."),
    FieldSpec::new("proc.stderr.name", TEXT, fact(Fact::Descriptors), |e, _| fd::name_of(e, 2), "Name of the standard error output."),
    // Container probes.
    FieldSpec::absent("proc.is_container_healthcheck", Bool, PROBES, "Whether the process is the container's health check."),
    FieldSpec::absent("proc.is_container_liveness_probe", Bool, PROBES, "Whether the process is the container's liveness probe."),
    FieldSpec::absent("proc.is_container_readiness_probe", Bool, PROBES, "Whether the process is the container's readiness probe."),
];

/// Returns the caller's command name.
pub(super) fn comm<'a>(event: &Event<'a>) -> Value<'a> {
    match event.comm() {
        Lookup::Found(comm) => Value::Text(comm.as_bytes()),
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

fn args<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    let caller = Subject::caller(event);
    let Some(index) = argument.index() else {
        return caller.args(event);
    };
    let one = caller.command_line(event, |line| {
        let arg = usize::try_from(index)
            .ok()
            .and_then(|index| line.args.get(index));
        match arg {
            Some(arg) => copied(event.arena, arg),
            // The reader cut the rest off: the argument may be there.
            None if line.truncated => Value::Unknown,
            None => Value::Absent,
        }
    });
    found(one, |value| value)
}

fn exe_line<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let caller = Subject::caller(event);
    match caller.exe(event) {
        Value::Text(exe) => caller.after(event, exe),
        other => other,
    }
}

fn count<'a>(event: &Event<'a>, measure: fn(&[Vec<u8>]) -> usize) -> Value<'a> {
    let measured = Subject::caller(event).command_line(event, |line| measure(&line.args));
    found(measured, |count| {
        Value::Uint(u64::try_from(count).expect("64 bits hold any length"))
    })
}

fn env<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    match argument.name() {
        Some(name) => Subject::caller(event).variable(event, name),
        None => Subject::caller(event).all_environment(event),
    }
}

fn ancestor_env<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    /// Number of ancestor levels that Falco supports.
    const LEVELS: u32 = 20;
    let Some(name) = argument.name() else {
        return tell(event, argument.index(), Subject::all_environment);
    };
    for level in 1..=LEVELS {
        let Some(subject) = ancestor(event, level) else {
            break;
        };
        match subject.variable(event, name) {
            Value::Absent => {}
            value => return value,
        }
    }
    Value::Absent
}

fn exe<'a>(event: &Event<'a>, look: impl FnOnce(&ExecutableFile) -> Value<'a>) -> Value<'a> {
    let looked = Subject::caller(event).executable_file(event, look);
    found(looked, |value| value)
}

fn writable<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    found(
        Subject::caller(event).executable_writable(event),
        Value::Bool,
    )
}

/// Returns true if the executable is a memfd. The path usually decides; the file is inspected only if its
/// path looks like a memfd's.
fn from_memfd<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match Subject::caller(event).exe_path(event) {
        Value::Text(path) if !path.starts_with(MEMFD) => Value::Bool(false),
        _ => exe(event, |file| Value::Bool(file.flags.from_memfd)),
    }
}

/// Prefix that the kernel puts before a memfd's name.
const MEMFD: &[u8] = b"/memfd:";

fn layer<'a>(layer: Option<bool>) -> Value<'a> {
    layer.map_or(Value::Unknown, Value::Bool)
}

fn nonzero<'a>(number: u64) -> Value<'a> {
    match i64::try_from(number) {
        Ok(0) | Err(_) => Value::Absent,
        Ok(number) => Value::Int(number),
    }
}

/// Converts a time; zero stands for an unknown time.
fn time<'a>(time_ns: u64) -> Value<'a> {
    if time_ns == 0 {
        Value::Absent
    } else {
        Value::Uint(time_ns)
    }
}

fn since_change<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    exe(event, |file| {
        match event.process.start_ns.checked_sub(file.ctime_ns) {
            Some(0) | None => Value::Absent,
            Some(_) if file.ctime_ns == 0 => Value::Absent,
            Some(duration) => Value::Uint(duration),
        }
    })
}

fn directory<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match event.world.directory(event.tid, None, event.arena) {
        Lookup::Found(path) if path.last() == Some(&b'/') => Value::Text(path),
        Lookup::Found(path) => {
            let mut text = Text::new(event.arena);
            text.push(path);
            text.push(b"/");
            text.value()
        }
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

fn pid<'a>(subject: &Subject<'a>) -> Value<'a> {
    Value::Int(i64::from(subject.process().pid.0))
}

fn status<'a>(event: &Event<'a>, part: fn(&Status) -> i32) -> Value<'a> {
    found(event.status().clone(), |status| {
        Value::Int(i64::from(part(&status)))
    })
}

fn is<'a>(event: &Event<'a>, test: fn(&Status) -> bool) -> Value<'a> {
    found(event.status().clone(), |status| Value::Bool(test(&status)))
}

fn stat<'a>(event: &Event<'a>, part: fn(&Stat) -> Value<'static>) -> Value<'a> {
    found(event.stat().clone(), |stat| part(&stat))
}

fn is_group_leader<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    found(event.stat().clone(), |stat| {
        Value::Bool(stat.pgid == event.process.pid.0)
    })
}

fn parent_vpid<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let Some(parent) = event.process.parent() else {
        return Value::Absent;
    };
    let status = event.world.status(&parent, crate::Tid(parent.pid.0));
    found(status, |status| Value::Int(i64::from(status.vpid)))
}

/// Computes a field of the leader of the caller's session or process group. If the leader has exited, the
/// oldest ancestor in the same session or group replaces it.
fn leader<'a>(event: &Event<'a>, group: fn(&Stat) -> i32, tell: AncestorField<'a>) -> Value<'a> {
    let id = match event.stat() {
        Lookup::Found(stat) => group(stat),
        Lookup::Missing => return Value::Absent,
        Lookup::Unknown => return Value::Unknown,
    };
    if id == event.process.pid.0 {
        return tell(&Subject::caller(event), event);
    }
    match event.world.process(Pid(id)) {
        Lookup::Found(process) => return tell(&Subject::Other(process), event),
        Lookup::Unknown => return Value::Unknown,
        Lookup::Missing => {}
    }
    let mut oldest = Subject::caller(event);
    let mut next = event.process.parent();
    for _ in 0..super::ancestry::MAX_ANCESTORS {
        let Some(process) = next else { break };
        match event.world.stat(&process) {
            Lookup::Found(stat) if group(&stat) == id => {}
            Lookup::Unknown => return Value::Unknown,
            _ => break,
        }
        next = process.parent();
        oldest = Subject::Other(process);
    }
    tell(&oldest, event)
}

fn login_shell<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let mut oldest = Value::Absent;
    let bound = u32::try_from(super::ancestry::MAX_ANCESTORS).expect("a small number");
    for level in 0..=bound {
        let Some(subject) = ancestor(event, level) else {
            return oldest;
        };
        match subject.comm(event) {
            Lookup::Found(comm) if comm.as_bytes().ends_with(b"sh") => oldest = pid(&subject),
            Lookup::Unknown => return Value::Unknown,
            _ => {}
        }
    }
    Value::Unknown
}

fn age<'a>(event: &Event<'_>, process: &Process) -> Value<'a> {
    match process.start_ns {
        0 => Value::Absent,
        start => event
            .time_ns
            .checked_sub(start)
            .map_or(Value::Absent, Value::Uint),
    }
}

fn open_count<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    found(event.open_descriptors(), |numbers| {
        Value::Uint(u64::try_from(numbers.len()).expect("64 bits hold any length"))
    })
}

/// Returns a parameter that Falco copies from the process (exec, clone, capset).
pub(super) fn param<'a>(event: &Event<'a>, spec: &ParamSpec) -> Value<'a> {
    let caller = Subject::caller(event);
    let none = Argument::None;
    let value = match spec.name {
        "exe" => caller.exe(event),
        "args" => nul_ended(event, caller.args(event)),
        "comm" => comm(event),
        "env" => caller.all_environment(event),
        "cwd" => directory(event, &none),
        "trusted_exepath" => caller.exe_path(event),
        "flags" => exe(event, |file| exec_flags(event, file)),
        "pid" => Value::Int(i64::from(event.process.pid.0)),
        "tid" => Value::Int(i64::from(event.tid.0)),
        "ptid" => tell(event, Some(1), |subject, _| pid(subject)),
        "exe_ino" => exe(event, |file| Value::Uint(file.inode)),
        "exe_ino_ctime" => exe(event, |file| Value::Uint(file.ctime_ns)),
        "exe_ino_mtime" => exe(event, |file| Value::Uint(file.mtime_ns)),
        "vtid" => status(event, |status| status.vtid),
        "vpid" => status(event, |status| status.vpid),
        "vpgid" => status(event, |status| status.vpgid),
        "pgid" => stat(event, |stat| Value::Int(i64::from(stat.pgid))),
        "tty" => stat(event, |stat| Value::Uint(u64::from(stat.tty))),
        "vm_size" => stat(event, |stat| Value::Uint(stat.vm_size_kib)),
        "vm_rss" => stat(event, |stat| Value::Uint(stat.vm_rss_kib)),
        "uid" => number(event, |status| u64::from(status.credentials.uid)),
        "gid" => number(event, |status| u64::from(status.credentials.gid)),
        "cap_inheritable" => number(event, |status| status.cap_inheritable),
        "cap_permitted" => number(event, |status| status.cap_permitted),
        "cap_effective" => number(event, |status| status.cap_effective),
        "loginuid" => match event.world.login_uid(event.process) {
            Lookup::Found(uid) => Value::Uint(u64::from(uid)),
            Lookup::Missing => Value::Uint(u64::from(u32::MAX)),
            Lookup::Unknown => Value::Unknown,
        },
        _ => Value::Absent,
    };
    debug_assert!(
        !matches!(
            (spec.ty, value),
            (ParamType::Text, Value::Int(_) | Value::Uint(_))
        ),
        "{} has the type of its row",
        spec.name
    );
    value
}

fn number<'a>(event: &Event<'a>, part: fn(&Status) -> u64) -> Value<'a> {
    found(event.status().clone(), |status| Value::Uint(part(&status)))
}

/// Formats Falco's argument buffer: every argument ends with a NUL, which prints as a dot.
fn nul_ended<'a>(event: &Event<'a>, joined: Value<'a>) -> Value<'a> {
    if !matches!(joined, Value::Text(_)) {
        return joined;
    }
    let ended = Subject::caller(event).command_line(event, |line| {
        let mut text = Text::new(event.arena);
        for arg in &line.args {
            text.push(arg);
            text.push(b"\0");
        }
        text.value()
    });
    found(ended, |value| value)
}

fn exec_flags<'a>(event: &Event<'a>, file: &ExecutableFile) -> Value<'a> {
    let writable = match Subject::caller(event).executable_writable(event) {
        Lookup::Found(writable) => writable,
        Lookup::Missing => false,
        Lookup::Unknown => return Value::Unknown,
    };
    let flags = [
        (writable, "EXE_WRITABLE"),
        (file.flags.upper_layer == Some(true), "EXE_UPPER_LAYER"),
        (file.flags.from_memfd, "EXE_FROM_MEMFD"),
        (file.flags.lower_layer == Some(true), "EXE_LOWER_LAYER"),
    ];
    let mut text = Text::new(event.arena);
    for (_, name) in flags.iter().filter(|(set, _)| *set) {
        if !text.is_empty() {
            text.push(b"|");
        }
        text.push(name.as_bytes());
    }
    if text.is_empty() {
        text.push(b"0");
    }
    text.value()
}
