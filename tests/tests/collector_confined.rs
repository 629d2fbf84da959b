//! `tollgate serve` confines itself: what an attacker would do in its process is really done there and fails, what the
//! collector needs goes on, and `--no-confine` lets the same through.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use abi::{Errno, Syscall};
use e2e::collector::{Collector, get, token};
use e2e::injection::Injection;
use e2e::{Scratch, program, until};
use rustix::fs::OFlags;

const CURRENT_FOLDER: u64 = (-100_i64).cast_unsigned();
const WRITE_CREATE: u64 = 0o1 | 0o100;
const INET: u64 = 2;
const UNIX: u64 = 1;
const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;

/// A call whose name is known.
fn call(name: &str) -> Syscall {
    Syscall::from_name(name).unwrap_or_else(|| panic!("no call {name}"))
}

/// Opens a file in the process, closes it, and returns how that went.
fn open(inside: &Injection, path: &Path, flags: u64) -> Result<(), Errno> {
    let path = inside.path(path);
    let file = inside.call(call("openat"), [CURRENT_FOLDER, path, flags, 0o600, 0, 0])?;
    inside.call(call("close"), [file, 0, 0, 0, 0, 0])?;
    Ok(())
}

/// The address 127.0.0.1 with a port, as `connect` and `bind` take it.
fn loopback(port: u16) -> Vec<u8> {
    let family = u16::try_from(INET).expect("it is 2").to_ne_bytes();
    let mut bytes = family.to_vec();
    bytes.extend(port.to_be_bytes());
    bytes.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Makes a TCP socket in the process, and connects or binds it to a port of this host.
fn tcp(inside: &Injection, what: &str, port: u16) -> Result<(), Errno> {
    let socket = inside.call(call("socket"), [INET, STREAM, 0, 0, 0, 0])?;
    let bytes = loopback(port);
    let (address, length) = (inside.bytes(&bytes), bytes.len() as u64);
    let done = inside.call(call(what), [socket, address, length, 0, 0, 0]);
    inside.call(call("close"), [socket, 0, 0, 0, 0, 0])?;
    done.map(drop)
}

/// A listener of this test, which the collector has nothing to do with.
fn elsewhere() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    (listener, port)
}

/// Reads what the collector says until a line has this text, and returns all of it.
fn said(collector: &mut Collector, text: &str) -> String {
    let mut said = String::new();
    while !said.contains(text) {
        let read = collector.stderr.read_line(&mut said).expect("it is text");
        assert!(read > 0, "{said}");
    }
    said
}

/// The values of a line of `/proc/PID/task/*/status`, one a thread.
fn of_threads(pid: u32, key: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let values = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with(key))?;
        Some(line[key.len()..].trim().to_owned())
    });
    values.collect()
}

fn pid(collector: &Collector) -> i32 {
    i32::try_from(collector.child.id()).expect("a process")
}

#[test]
fn a_collector_can_write_execute_and_connect_to_nothing_but_its_own() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("store");
    let store = folder.join("c.db");
    std::fs::write(scratch.path().join("secret"), "s").expect("our folder");
    let mut collector = Collector::without_tls(&store, "127.0.0.1:0");
    let said = said(&mut collector, "confined by ");
    let written = format!("it writes below {}, connects to no port", folder.display());
    assert!(
        said.contains("Landlock (") && said.contains("Seccomp ("),
        "{said}"
    );
    assert!(said.contains(&written), "{said}");
    let filters = of_threads(collector.child.id(), "Seccomp:");
    assert!(
        filters.len() > 1 && filters.iter().all(|mode| mode == "2"),
        "{filters:?}"
    );
    // Neither CAP_SYS_ADMIN (21) nor CAP_SYS_PTRACE (19), whoever starts it.
    let held = of_threads(collector.child.id(), "CapEff:");
    let is_less = |held: &String| {
        u64::from_str_radix(held, 16).is_ok_and(|set| set & (1 << 21 | 1 << 19) == 0)
    };
    assert!(held.iter().all(is_less), "{held:?}");
    let inside = Injection::into(pid(&collector));
    files_outside_are_denied(&inside, &scratch, &folder);
    programs_and_peers_are_denied(&inside);
    dangerous_calls_are_denied(&inside);
    drop(inside);
    let reader = token(&store, &["--role", "viewer"]);
    get(collector.address(), "/api/v1/groups", &reader);
}

fn files_outside_are_denied(inside: &Injection, scratch: &Scratch, folder: &Path) {
    let outside = scratch.path().join("outside");
    assert_eq!(open(inside, &outside, WRITE_CREATE), Err(Errno::EACCES));
    assert!(!outside.exists());
    let own = folder.join("own");
    assert_eq!(open(inside, &own, WRITE_CREATE), Ok(()));
    assert!(own.exists());
    // Temporary files of SQLite have no name.
    let unnamed = (OFlags::TMPFILE | OFlags::RDWR).bits().into();
    assert_eq!(open(inside, folder, unnamed), Ok(()));
    assert_eq!(
        open(inside, Path::new("/var/tmp"), unnamed),
        Err(Errno::EACCES)
    );
    let secret = scratch.path().join("secret");
    assert_eq!(open(inside, &secret, 0), Err(Errno::EACCES));
    assert_eq!(
        open(inside, Path::new("/etc/shadow"), 0),
        Err(Errno::EACCES)
    );
    assert_eq!(open(inside, Path::new("/etc/hosts"), 0), Ok(()));
    let unlink = |path: &Path| {
        let path = inside.path(path);
        inside.call(call("unlinkat"), [CURRENT_FOLDER, path, 0, 0, 0, 0])
    };
    assert_eq!(unlink(&secret), Err(Errno::EACCES));
    assert_eq!(unlink(&own), Ok(0));
    // A link in its own folder leads nowhere else.
    std::os::unix::fs::symlink(&secret, &own).expect("our folder");
    assert_eq!(open(inside, &own, 0), Err(Errno::EACCES));
    std::fs::remove_file(&own).expect("our link");
}

fn programs_and_peers_are_denied(inside: &Injection) {
    let program = inside.path(Path::new("/bin/true"));
    let executed = inside.call(call("execve"), [program, 0, 0, 0, 0, 0]);
    assert_eq!(executed, Err(Errno::EPERM));
    let (_listener, port) = elsewhere();
    assert_eq!(tcp(inside, "connect", port), Err(Errno::EPERM));
    let free = elsewhere().1;
    assert_eq!(tcp(inside, "bind", free), Err(Errno::EACCES));
    // It was started with port 0.
    assert_eq!(tcp(inside, "bind", 0), Ok(()));
    for (family, kind) in [(UNIX, STREAM), (INET, DATAGRAM)] {
        let made = inside.call(call("socket"), [family, kind, 0, 0, 0, 0]);
        assert_eq!(made, Err(Errno::EPERM), "{family} {kind}");
    }
    let kill = |pid: u32| inside.call(call("kill"), [pid.into(), 0, 0, 0, 0, 0]);
    assert_eq!(kill(std::process::id()), Err(Errno::EPERM));
    let own = inside.call(call("getpid"), [0; 6]).expect("it has one");
    assert_eq!(inside.call(call("kill"), [own, 0, 0, 0, 0, 0]), Ok(0));
}

fn dangerous_calls_are_denied(inside: &Injection) {
    for name in [
        "add_key",
        "bpf",
        "chroot",
        "clone",
        "fanotify_init",
        "finit_module",
        "init_module",
        "io_uring_setup",
        "keyctl",
        "kexec_load",
        "memfd_create",
        "mount",
        "open_by_handle_at",
        "perf_event_open",
        "pivot_root",
        "process_vm_readv",
        "ptrace",
        "reboot",
        "setns",
        "setuid",
        "swapon",
        "umount2",
        "unshare",
        "userfaultfd",
    ] {
        let made = inside.call(call(name), [0; 6]);
        // A program loaded into the kernel is one kind of `bpf`; the others need a capability that it has lost.
        assert_eq!(made, Err(Errno::EPERM), "{name}");
    }
    let map = |protection: u64| inside.call(call("mmap"), [0, 4096, protection, 0x22, u64::MAX, 0]);
    assert_eq!(map(7), Err(Errno::EPERM));
    let memory = map(3).expect("it may have memory");
    let executable = inside.call(call("mprotect"), [memory, 4096, 5, 0, 0, 0]);
    assert_eq!(executable, Err(Errno::EPERM));
    assert_eq!(
        inside.call(call("munmap"), [memory, 4096, 0, 0, 0, 0]),
        Ok(0)
    );
}

#[test]
fn a_collector_connects_to_the_ports_of_its_options_alone() {
    let scratch = Scratch::new();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "s3cret\n").expect("our folder");
    let ((provider, port), (_other, other)) = (elsewhere(), elsewhere());
    let issuer = format!("http://127.0.0.1:{port}");
    let secret = secret.display().to_string();
    let words = [
        "--insecure",
        "--oidc-issuer",
        &issuer,
        "--oidc-client-id=tollgate",
        "--oidc-client-secret-file",
        &secret,
        "--public-url=https://fleet.example",
        "--oidc-role=ops=operator",
    ];
    let store = scratch.path().join("store/c.db");
    let mut collector = Collector::start(&store, "127.0.0.1:0", &words);
    // It asks the provider on its own.
    drop(provider.accept().expect("it connects"));
    let said = said(&mut collector, "confined by ");
    assert!(
        said.contains("connects to TCP ports ") && said.contains(&port.to_string()),
        "{said}"
    );
    let inside = Injection::into(pid(&collector));
    assert_eq!(tcp(&inside, "connect", port), Ok(()));
    assert_eq!(tcp(&inside, "connect", other), Err(Errno::EACCES));
    let datagrams = inside.call(call("socket"), [INET, DATAGRAM, 0, 0, 0, 0]);
    assert_eq!(datagrams, Err(Errno::EPERM));
    let multipath = inside.call(call("socket"), [INET, STREAM, 262, 0, 0, 0]);
    assert_eq!(multipath, Err(Errno::EPERM));
}

#[test]
fn a_collector_that_is_not_to_be_confined_is_not_and_says_so() {
    let scratch = Scratch::new();
    let store = scratch.path().join("store/c.db");
    let mut collector = Collector::start(&store, "127.0.0.1:0", &["--insecure", "--no-confine"]);
    said(
        &mut collector,
        "warning: the collector is not confined (--no-confine)",
    );
    let filters = of_threads(collector.child.id(), "Seccomp:");
    let own = of_threads(std::process::id(), "Seccomp:");
    assert_eq!(
        filters.first(),
        own.first(),
        "no filter but that of its starter"
    );
    let inside = Injection::into(pid(&collector));
    let outside = scratch.path().join("outside");
    assert_eq!(open(&inside, &outside, WRITE_CREATE), Ok(()));
    let (_listener, port) = elsewhere();
    assert_eq!(tcp(&inside, "connect", port), Ok(()));
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_collector_says_which_enforcers_do_not_work_and_uses_the_others() {
    for (call, enforcer, other) in [
        ("landlock_create_ruleset", "Landlock", "Seccomp ("),
        ("seccomp", "Seccomp", "Landlock ("),
    ] {
        let scratch = Scratch::new();
        let policy = scratch.path().join("policy.yaml");
        // As on a kernel without it.
        let text = format!(
            "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             syscallRawRules:\n    - {{names: [{call}], action: SCMP_ACT_ERRNO, errnoRet: 38}}\n"
        );
        std::fs::write(&policy, text).expect("our folder");
        let store = format!("sqlite:{}", scratch.path().join("store/c.db").display());
        let mut command = Command::new(program());
        command
            .args(["enforce", "--policy"])
            .arg(&policy)
            .arg("--")
            .arg(program());
        command.args([
            "serve",
            "--insecure",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
        ]);
        let mut collector = Running(command.stderr(Stdio::piped()).spawn().expect("it starts"));
        let stderr = collector.0.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = String::new();
        let expected = format!("warning: the collector is not confined by {enforcer}, so ");
        while !said.contains(&expected) {
            let line = lines.next();
            said.push_str(&line.unwrap_or_else(|| panic!("{call}: {said}")));
            said.push('\n');
        }
        assert!(
            said.contains("collecting at ") && said.contains(other),
            "{call}: {said}"
        );
    }
}

/// As on each boot, after which /run is empty.
#[test]
fn a_socket_is_made_with_its_folder() {
    let scratch = Scratch::new();
    let socket = scratch.path().join("run/c.sock");
    let listen = format!("unix://{}", socket.display());
    let store = format!("sqlite:{}", scratch.path().join("store/c.db").display());
    let serve = Command::new(program())
        .args([
            "serve",
            "--insecure",
            "--listen",
            &listen,
            "--store",
            &store,
        ])
        .stderr(Stdio::null())
        .spawn();
    let _serve = Running(serve.expect("it starts"));
    let mut answer = String::new();
    until("it answers", || {
        let Ok(mut stream) = UnixStream::connect(&socket) else {
            return false;
        };
        let request = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        answer.clear();
        stream.read_to_string(&mut answer).expect("it answers");
        true
    });
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
