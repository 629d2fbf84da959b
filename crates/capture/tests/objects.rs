//! Checks which field of a rule reports which object of a call, under which engine:
//! `docs/reference/objects.md`, and that every object without a field has a reason. `BLESS=1` rewrites the
//! document.

use std::fmt::Write as _;
use std::path::Path;

use abi::{Arch, ArgKind, ArgSpec, Syscall};
use event::{DescriptorSource, EventKind, ParamSource};

/// Returns the object that the kernel finds by an argument, as the document names it; `None` if the argument
/// is no object.
///
/// # Errors
///
/// The name of an unclassified structure.
fn object(arg: &ArgSpec) -> Result<Option<&'static str>, &'static str> {
    Ok(Some(match arg.kind {
        ArgKind::Path => "path",
        ArgKind::Text => "text",
        ArgKind::Fd => "descriptor",
        ArgKind::DirFd => "descriptor of a folder",
        ArgKind::Sockaddr => "address",
        ArgKind::Pid => "process",
        ArgKind::Argv | ArgKind::Envp => "texts",
        ArgKind::Struct(name) if OBJECTS.contains(&name) => name,
        ArgKind::Struct(name) if VALUES.contains(&name) => return Ok(None),
        ArgKind::Struct(name) => return Err(name),
        _ => return Ok(None),
    }))
}

/// Structures that name an object, or decide on it.
const OBJECTS: &[&str] = &[
    "bpf_attr",
    "file_handle",
    "landlock_ruleset_attr",
    "mmsghdr",
    "mnt_id_req",
    "mount_attr",
    "open_how",
    "perf_event_attr",
    "user_msghdr",
    "clone_args",
    "io_uring_params",
    "landlock_path_beneath_attr",
    "landlock_net_port_attr",
];

/// Structures with values: times, limits, lists of numbers, data that is moved, and output of the kernel.
const VALUES: &[&str] = &[
    "file_attr",
    "xattr_args",
    "ns_id_req",
    "iocb",
    "__aio_sigset",
    "cachestat",
    "cachestat_range",
    "cap_user_data",
    "cap_user_header",
    "epoll_event",
    "futex_waitv",
    "getcpu_cache",
    "io_event",
    "iovec",
    "itimerspec",
    "itimerval",
    "linux_dirent",
    "linux_dirent64",
    "lsm_ctx",
    "mq_attr",
    "msgbuf",
    "msqid_ds",
    "new_utsname",
    "pollfd",
    "rlimit",
    "rlimit64",
    "robust_list_head",
    "rseq",
    "rusage",
    "sched_attr",
    "sched_param",
    "sembuf",
    "shmid_ds",
    "sigaction",
    "sigaltstack",
    "sigevent",
    "siginfo",
    "sigset",
    "stat",
    "statfs",
    "statmount",
    "statx",
    "sysctl_args",
    "sysinfo",
    "timespec",
    "timeval",
    "timex",
    "timezone",
    "tms",
    "user_desc",
    "ustat",
];

/// Calls that ask for an end of a socket.
const NAMES_OF_SOCKETS: [Syscall; 2] = [Syscall::GETPEERNAME, Syscall::GETSOCKNAME];

/// Objects that no field reports, with the reason.
const UNTOLD: &[(&str, &str, &str)] = &[
    (
        "bpf",
        "attr",
        "only the command is reported; names and paths are behind pointers whose position depends on it",
    ),
    (
        "open_by_handle_at",
        "handle",
        "only the kernel knows which file its bytes name; `fd.name` is the opened file, unknown if it was not looked up",
    ),
    (
        "recvfrom",
        "addr",
        "the kernel writes it; the other end of an unconnected socket is unknown",
    ),
    ("recvmmsg", "mmsg", "as of `recvfrom`"),
    ("recvmsg", "msg", "as of `recvfrom`"),
];

/// Returns the fields that report an argument.
fn fields(call: Syscall, position: u8, arg: &ArgSpec) -> Vec<String> {
    let kind = EventKind::of_syscall(call);
    let mut fields = Vec::new();
    for param in kind.spec().params {
        let is_it = match param.source {
            ParamSource::Register(at) => at == position && !arg.is_pointer(),
            ParamSource::Path { path, base } => path == position || base == Some(position),
            ParamSource::Text(at) | ParamSource::Texts(at) => at == position,
            ParamSource::Field { arg: at, .. } | ParamSource::Buffer { arg: at, .. } => {
                at == position
            }
            _ => false,
        };
        if is_it {
            fields.push(format!("`evt.arg.{}`", param.name));
        }
    }
    let is_descriptor = match kind.spec().descriptor {
        // The socket's fields report the address that the kernel writes.
        DescriptorSource::Accepted(_) if matches!(arg.kind, ArgKind::Sockaddr) => true,
        DescriptorSource::Argument(_) if NAMES_OF_SOCKETS.contains(&call) => true,
        DescriptorSource::Argument(fd)
        | DescriptorSource::Duplicated(fd)
        | DescriptorSource::Accepted(fd) => fd == position,
        DescriptorSource::Addressed { fd, address, .. } => [fd, address].contains(&position),
        DescriptorSource::Message { fd, message, .. } => [fd, message].contains(&position),
        _ => false,
    };
    if is_descriptor {
        fields.push("`fd.*`".to_owned());
    }
    if matches!(call, Syscall::EXECVE | Syscall::EXECVEAT) {
        match arg.kind {
            ArgKind::Argv => fields.push("`proc.args`".to_owned()),
            ArgKind::Envp => fields.push("`proc.env`".to_owned()),
            _ => {}
        }
    }
    fields
}

/// Returns the lines of the table, and the objects without a field and a reason.
fn table() -> (String, Vec<String>) {
    let mut lines = String::new();
    let mut wrong = Vec::new();
    let mut used = vec![false; UNTOLD.len()];
    for call in Syscall::all().filter(|call| call.number(Arch::X86_64).is_some()) {
        for (index, arg) in call.args().iter().enumerate() {
            let object = match object(arg) {
                Ok(Some(object)) => object,
                Ok(None) => continue,
                Err(name) => {
                    wrong.push(format!(
                        "{call}: is the structure {name} an object or a value?"
                    ));
                    continue;
                }
            };
            let position = u8::try_from(index).expect("six at most");
            let fields = fields(call, position, arg);
            let reason = UNTOLD
                .iter()
                .position(|(own, name, _)| *own == call.name() && *name == arg.name);
            let (told, by_gvisor) = match (fields.is_empty(), reason) {
                (false, None) => {
                    let is_known = capture::gvisor::tells_argument(call, index);
                    (fields.join(", "), if is_known { "yes" } else { "unknown" })
                }
                (true, Some(at)) => {
                    used[at] = true;
                    (format!("none: {}", UNTOLD[at].2), "-")
                }
                (true, None) => {
                    wrong.push(format!("{call}: no field tells of {}", arg.name));
                    continue;
                }
                (false, Some(_)) => {
                    wrong.push(format!(
                        "{call}: a field tells of {}, which is listed",
                        arg.name
                    ));
                    continue;
                }
            };
            let name = arg.name;
            let _ = writeln!(
                lines,
                "| `{call}` | `{name}` ({object}) | {told} | {by_gvisor} |"
            );
        }
    }
    let listed = UNTOLD.iter().zip(used).filter(|(_, is_used)| !is_used);
    wrong.extend(listed.map(|(listed, _)| format!("{listed:?} is no object")));
    (lines, wrong)
}

#[test]
fn every_object_of_a_call_is_told_or_the_reason_is_in_the_document() {
    let (lines, wrong) = table();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/objects.md");
    let text = std::fs::read_to_string(&file).expect("the repository has it");
    let head = text.find("|---").expect("there is a table");
    let body = head + text[head..].find('\n').expect("with lines") + 1;
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, format!("{}{lines}", &text[..body])).expect("it is writable");
    } else {
        assert!(
            text[body..] == lines,
            "docs/reference/objects.md says otherwise; `BLESS=1 cargo test -p capture --test objects` writes it"
        );
    }
}
