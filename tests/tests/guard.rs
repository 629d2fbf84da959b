//! `tollgate guard`: what is outside of the box is denied by every way that leads there, every denial is
//! reported, and ordinary work goes on without one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Finished, Limited};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const USER: u32 = 1000;

/// Ways out of the box: name, the call that is reported, and what the report names.
const WAYS: [(&str, &str, &str); 38] = [
    ("read", "openat", "/.ssh/id"),
    ("read_link", "openat", "/.ssh/id"),
    ("read_root", "openat", "/.ssh/id"),
    ("read_cwd", "openat", "/.ssh/id"),
    ("read_relative", "openat", "/.ssh/id"),
    ("read_dirfd", "openat", "/.ssh/id"),
    ("read_path_only", "openat", "/.ssh/id"),
    ("read_openat2", "openat2", "/.ssh/id"),
    ("link_out", "link", "/.ssh/id"),
    ("move_out", "rename", "/.ssh/id"),
    ("write", "openat", "/.bashrc"),
    ("write_link", "openat", "/.bashrc"),
    ("write_root", "openat", "/.bashrc"),
    ("truncate", "truncate", "/.bashrc"),
    ("create", "openat", "/new"),
    ("remove", "unlink", "/.bashrc"),
    ("rename_over", "rename", ""),
    ("make_folder", "mkdir", "/folder"),
    ("make_link", "symlink", "/link"),
    ("exec_copy", "execve", "/copy"),
    ("exec_link", "execve", "/copy"),
    ("exec_dirfd", "execveat", "/copy"),
    ("exec_memory", "memfd_create", ""),
    ("connect", "connect", "192.0.2.1:80"),
    ("connect_nonblocking", "connect", "192.0.2.2:80"),
    ("connect_ipv6", "connect", "[2001:db8::1]:80"),
    ("send_udp", "socket", "AF_INET"),
    ("fast_open", "sendto", ""),
    ("vsock", "socket", ""),
    ("unix", "connect", "/out.sock"),
    ("unix_link", "connect", "/out.sock"),
    ("unix_root", "connect", "/out.sock"),
    ("unix_datagram", "socket", ""),
    ("abstract", "connect", "unix:@"),
    ("keystroke", "ioctl", ""),
    ("keystroke_wide", "ioctl", ""),
    ("ring", "io_uring_setup", ""),
    ("trace", "ptrace", ""),
];

/// Those that change the entries of the home.
const OF_THE_HOME: [&str; 5] = [
    "create",
    "remove",
    "rename_over",
    "make_folder",
    "make_link",
];

const SCRIPT: &str = r#"
import ctypes, json, os, socket, sys
home = os.environ["HOME"]
libc = ctypes.CDLL(None, use_errno=True)
secret, rc, outside = home + "/.ssh/id", home + "/.bashrc", home + "/out.sock"

def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "call")

def read(path, **more):
    os.close(os.open(path, os.O_RDONLY, **more))

def linked(target, name):
    if not os.path.islink(name):
        os.symlink(target, name)
    return name

def path_only():
    at = os.open(secret, os.O_PATH)
    read("/proc/self/fd/%d" % at)

def execute(path):
    if os.fork() == 0:
        os.execv(path, ["x"])
    os.wait()

def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "child")

def copied():
    if not os.path.exists("copy"):
        open("copy", "wb").write(open("/bin/true", "rb").read())
        os.chmod("copy", 0o755)
    return "copy"

def how(flags):
    return (ctypes.c_uint64 * 3)(flags, 0, 0)

def connect(family, address, blocking=True):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setblocking(blocking)
        s.connect(address)

def fast_open():
    with socket.socket() as s:
        s.sendto(b"x", 0x20000000, ("192.0.2.3", 80))

def execveat():
    copied()
    folder = os.open(".", os.O_RDONLY)
    call(322, folder, b"copy", 0, 0, 0)

I, I6, U = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
ways = {
    "read": lambda: read(secret),
    "read_link": lambda: read(linked(secret, "link")),
    "read_root": lambda: read("/proc/self/root" + secret),
    "read_cwd": lambda: read("/proc/self/cwd/../home/.ssh/id"),
    "read_relative": lambda: read("../home/.ssh/id"),
    "read_dirfd": lambda: read(".ssh/id", dir_fd=os.open(home, os.O_PATH)),
    "read_path_only": path_only,
    "read_openat2": lambda: call(437, -100, secret.encode(), how(0), 24),
    "link_out": lambda: os.link(secret, "stolen"),
    "move_out": lambda: os.rename(secret, "stolen"),
    "write": lambda: open(rc, "a"),
    "write_link": lambda: open(linked(rc, "rclink"), "a"),
    "write_root": lambda: open("/proc/self/root" + rc, "a"),
    "truncate": lambda: os.truncate(rc, 0),
    "create": lambda: open(home + "/new", "w"),
    "remove": lambda: os.unlink(rc),
    "rename_over": lambda: (open("mine", "w").close(), os.rename("mine", rc)),
    "make_folder": lambda: os.mkdir(home + "/folder"),
    "make_link": lambda: os.symlink("/etc/passwd", home + "/link"),
    "exec_copy": lambda: in_child(lambda: os.execv(copied(), ["x"])),
    "exec_link": lambda: in_child(lambda: os.execv(linked(copied(), "clink"), ["x"])),
    "exec_dirfd": lambda: in_child(execveat),
    "exec_memory": lambda: os.memfd_create("x"),
    "connect": lambda: connect(I, ("192.0.2.1", 80)),
    "connect_nonblocking": lambda: connect(I, ("192.0.2.2", 80), False),
    "connect_ipv6": lambda: connect(I6, ("2001:db8::1", 80)),
    "send_udp": lambda: socket.socket(I, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "fast_open": fast_open,
    "vsock": lambda: socket.socket(40, socket.SOCK_STREAM),
    "unix": lambda: connect(U, outside),
    "unix_link": lambda: connect(U, linked(outside, "slink")),
    "unix_root": lambda: connect(U, "/proc/self/root" + outside),
    "unix_datagram": lambda: socket.socket(U, socket.SOCK_DGRAM).sendto(b"x", "/dev/log"),
    "abstract": lambda: connect(U, "\0" + sys.argv[1]),
    "keystroke": lambda: call(16, 0, 0x5412, b"x"),
    "keystroke_wide": lambda: call(16, 0, ctypes.c_ulong(0x100005412), b"x"),
    "ring": lambda: call(425, 1, ctypes.create_string_buffer(120)),
    "trace": lambda: call(101, 0, 0, 0, 0),
}
result = {}
for name, act in ways.items():
    try:
        act()
        result[name] = 0
    except OSError as error:
        result[name] = error.errno
print(json.dumps(result))
"#;

/// A home and a project outside of folders that every box may write.
struct Home {
    folder: tempfile::TempDir,
    user: Option<u32>,
}

impl Home {
    fn new(user: Option<u32>) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let home = Self { folder, user };
        fs::create_dir_all(home.path("home/.ssh")).expect("made");
        fs::create_dir(home.path("project")).expect("made");
        fs::write(home.path("home/.ssh/id"), "secret\n").expect("written");
        fs::write(home.path("home/.bashrc"), "rc\n").expect("written");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(home.folder.path(), open).expect("ours");
        for name in [
            "home",
            "home/.ssh",
            "home/.ssh/id",
            "home/.bashrc",
            "project",
        ] {
            chown(home.path(name), user, user).expect("root, or the owner");
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn guard(&self, options: &[&str], command: &[&str]) -> (Finished, Vec<Value>) {
        let report = self.path("report");
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3>\"$0\""]).arg(&report);
        shell
            .arg(e2e::program())
            .args(["guard", "--report-fd", "3"])
            .args(options);
        shell.arg("--").args(command);
        shell.current_dir(self.path("project"));
        fs::write(&report, "").expect("written");
        chown(&report, self.user, self.user).expect("root, or the owner");
        self.as_user(&mut shell);
        let finished = Limited::start(&mut shell, LIMIT).finish(b"");
        let text = fs::read_to_string(&report).expect("it is there");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        (finished, lines.collect())
    }

    /// Runs a command inside a monitor that refuses nothing, so that the inner box alone decides.
    fn monitored(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(e2e::program());
        command.args(["run", "-q", "--"]).args(words);
        command.current_dir(self.path("project"));
        self.as_user(&mut command);
        Limited::start(&mut command, LIMIT).finish(b"")
    }

    fn as_user(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
    }
}

fn denials(report: &[Value]) -> Vec<&Value> {
    report
        .iter()
        .filter(|line| line["event"] == "denied")
        .collect()
}

fn names(denial: &Value, what: &str) -> bool {
    ["path", "address", "arguments"]
        .iter()
        .any(|key| denial[key].as_str().is_some_and(|text| text.contains(what)))
}

/// Users as whom the box is tried: an ordinary one, and root if the tests are.
fn users() -> Vec<Option<u32>> {
    match rustix::process::geteuid().is_root() {
        true => vec![Some(USER), None],
        false => vec![None],
    }
}

#[test]
fn every_way_out_is_denied_and_reported_and_an_option_is_named() {
    let name = format!("tollgate-guard-{}", std::process::id());
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a short name");
    let _abstract = UnixListener::bind_addr(&address).expect("a free name");
    for user in users() {
        let home = Home::new(user);
        let _listener = UnixListener::bind(home.path("home/out.sock")).expect("a short path");
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(home.path("home/out.sock"), open).expect("ours");
        let programs = ["/usr", "/bin", "/lib", "/lib64"];
        let options: Vec<&str> = programs
            .iter()
            .flat_map(|path| ["--allow-exec", path])
            .collect();
        let (finished, report) = home.guard(&options, &["/usr/bin/python3", "-c", SCRIPT, &name]);
        assert_eq!(finished.code(), 0, "{finished:?}");
        let result: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        every_way_is_reported(&result, &report, &home);
        assert_eq!(
            fs::read_to_string(home.path("home/.ssh/id")).expect("there"),
            "secret\n"
        );
        assert_eq!(
            fs::read_to_string(home.path("home/.bashrc")).expect("there"),
            "rc\n"
        );
        assert_eq!(
            finished.stderr.matches("tollgate guard: denied: ").count(),
            finished.stderr.matches("  by ").count()
        );
    }
}

/// Each way failed, and its denial says what there is to say.
fn every_way_is_reported(result: &Value, report: &[Value], home: &Home) {
    let mut left = denials(report);
    for (way, call, what) in WAYS {
        assert!(
            result[way].as_i64().is_some_and(|errno| errno > 0),
            "{way}: {result}"
        );
        let found = left
            .iter()
            .position(|denial| denial["call"] == call && names(denial, what));
        let found = found.unwrap_or_else(|| panic!("{way} is not reported: {report:#?}"));
        let denial = left.remove(found);
        for key in ["layer", "errno", "rule", "message"] {
            assert!(denial[key].is_string(), "{way}: {key}: {denial}");
        }
        assert!(denial["policy_line"].is_u64(), "{way}: {denial}");
        if way.starts_with("read") {
            assert_eq!(denial["access"], "read", "{way}: {denial}");
        }
        has_advice(way, denial, home);
    }
}

/// The denial names an option, or the folder for which none is proposed.
fn has_advice(way: &str, denial: &Value, home: &Home) {
    if OF_THE_HOME.contains(&way) {
        let folder = home.path("home").canonicalize().expect("it is there");
        assert_eq!(
            denial["too_wide"],
            folder.to_str().expect("text"),
            "{way}: {denial}"
        );
        assert!(denial["allow"].is_null(), "{way}: {denial}");
    } else if denial["access"].is_string() && way != "abstract" {
        assert!(denial["allow"].is_string(), "{way}: {denial}");
    }
}

#[test]
fn a_call_of_another_architecture_is_denied_and_reported() {
    let script = "
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('b814000000cd80c3'))
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
print(ctypes.CFUNCTYPE(ctypes.c_int)(at)())
";
    let home = Home::new(users()[0]);
    let (finished, report) = home.guard(&[], &["/usr/bin/python3", "-c", script]);
    assert_eq!(finished.stdout.trim(), "-1", "{finished:?}");
    assert_eq!(denials(&report)[0]["rule"], "other-architecture");
}

/// Ordinary work, by programs that may be missing.
const JOBS: [(&str, &str); 10] = [
    (
        "/usr/bin/git",
        "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x > x && git add x && git commit -qm x && git log --oneline && git status",
    ),
    (
        "/usr/bin/make",
        "printf 'all: x\\n\\techo made\\nx:\\n\\techo a > x\\n' > Makefile && make && make",
    ),
    (
        "/usr/bin/gcc",
        "echo 'int main(){return 0;}' > a.c && gcc a.c -o a && ./a",
    ),
    (
        "/usr/bin/python3",
        "python3 -c 'import json,tempfile,subprocess; tempfile.TemporaryFile(); subprocess.run([\"true\"], check=True)'",
    ),
    (
        "/usr/bin/python3",
        "python3 -c 'import multiprocessing as m; q=m.get_context(\"fork\").Pool(2); print(q.map(abs, [-1, 2])); q.close(); q.join()'",
    ),
    (
        "/usr/bin/node",
        "node -e 'require(\"fs\").writeFileSync(\"n\", \"x\"); console.log(process.version)'",
    ),
    (
        "/usr/bin/tar",
        "mkdir t && echo x > t/x && tar czf t.tgz t && tar tzf t.tgz && rm -r t",
    ),
    (
        "/bin/sh",
        "ls / && ls \"$HOME\" && cat /etc/hostname /proc/self/status > out && find . -name out && sort out | head -3",
    ),
    (
        "/usr/bin/perl",
        "perl -e 'open F, \">p\"; print F 1; close F; print -s \"p\"'",
    ),
    (
        "/usr/bin/python3",
        "python3 -c 'import socket; l=socket.create_server((\"127.0.0.1\", 0)); s=socket.create_connection(l.getsockname()); u=socket.socket(socket.AF_UNIX); u.bind(\"u\"); u.listen(); c=socket.socket(socket.AF_UNIX); c.connect(\"u\")'",
    ),
];

#[test]
fn ordinary_work_goes_on_without_a_denial() {
    for user in users() {
        for (program, job) in JOBS
            .iter()
            .filter(|(program, _)| Path::new(program).exists())
        {
            let home = Home::new(user);
            let (finished, report) = home.guard(&[], &["sh", "-ec", job]);
            assert_eq!(
                finished.code(),
                0,
                "{user:?} {program}: {job}: {finished:?}"
            );
            assert!(
                denials(&report).is_empty(),
                "{user:?} {program}: {report:#?}"
            );
        }
    }
}

#[test]
fn a_file_that_modes_keep_from_the_user_is_no_denial() {
    let home = Home::new(users()[0]);
    let locked = home.path("locked");
    fs::create_dir(&locked).expect("made");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).expect("ours");
    let search = format!(
        "import os; os.environ['PATH'] = '{}:/usr/bin'; os.execvp('true', ['true'])",
        locked.display()
    );
    let words = ["/usr/bin/python3", "-c", &search];
    let (finished, report) = home.guard(&["--preset", "build"], &words);
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (0, 0),
        "{report:#?}"
    );
}

#[test]
fn a_package_manager_gets_its_caches_when_it_starts() {
    let home = Home::new(users()[0]);
    let npm = home.path("project/npm");
    let text = "#!/bin/sh\n: > \"$HOME/.npm/index\"\n";
    testing::write_program(&npm, 0o755, text).expect("written");
    let npm = npm.display().to_string();
    let entries = || -> std::collections::BTreeSet<String> {
        let entries = fs::read_dir(home.path("home")).expect("it is there");
        let names = entries.map(|entry| entry.expect("it is there").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    let before = entries();
    let (finished, _) = home.guard(&["--allow-connect", "nonsense"], &[&npm]);
    assert_eq!(finished.code(), 2, "{finished:?}");
    assert_eq!(
        entries(),
        before,
        "nothing for a command that does not start"
    );
    let program = e2e::program().display().to_string();
    let finished = home.monitored(&[&program, "guard", "--preset", "build", "--", &npm]);
    assert_ne!(finished.code(), 0, "there is no cache: {finished:?}");
    assert!(
        !entries().contains(".npm"),
        "nothing inside another monitor"
    );
    let (finished, report) = home.guard(&[], &[&npm]);
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (0, 0),
        "{report:?}"
    );
    assert!(entries().contains(".npm"));
    for other in [".yarn", ".bun", ".local", ".cargo"] {
        assert!(!entries().contains(other), "{other} is of another program");
    }
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    let home = Home::new(users()[0]);
    let code = |command: &[&str]| home.guard(&[], command).0.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(code(&["/nonexistent"]), 127);
    let (refused, _) = home.guard(&["--allow-connect", "nonsense"], &["true"]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.stderr.contains("`nonsense` is no peer"),
        "{}",
        refused.stderr
    );
}

#[test]
fn options_make_the_box_larger_and_smaller() {
    let home = Home::new(users()[0]);
    let file = |name: &str| home.path(name).display().to_string();
    let (id, rc) = (file("home/.ssh/id"), file("home/.bashrc"));
    let (finished, report) = home.guard(&["--allow-read", &id], &["cat", &id]);
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (0, 0),
        "{finished:?}"
    );
    let (finished, _) = home.guard(
        &["--allow-write", &rc],
        &["sh", "-c", "echo x >> \"$0\"", &rc],
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    // The advice for what changes a folder is about the folder, and following it helps.
    let (notes, note) = (file("home/notes"), file("home/notes/a"));
    fs::create_dir(&notes).expect("the folder is ours");
    fs::write(&note, "x\n").expect("the folder is ours");
    for path in [&notes, &note] {
        chown(path, home.user, home.user).expect("root, or the owner");
    }
    let (finished, report) = home.guard(&[], &["rm", &note]);
    assert_eq!(finished.code(), 1, "{finished:?}");
    let advice = format!("--allow-write {notes}");
    assert_eq!(denials(&report)[0]["allow"], advice.as_str(), "{report:?}");
    let (finished, _) = home.guard(&["--allow-write", &notes], &["rm", &note]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    // A folder above a withheld one can be allowed in part: its own entries stay.
    let (finished, _) = home.guard(&["--allow-write", &file("home")], &["rm", &rc]);
    assert_eq!(finished.code(), 1, "{finished:?}");
    let (finished, report) = home.guard(&["--deny-read", &rc], &["cat", &rc]);
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (1, 1),
        "{finished:?}"
    );
    let (finished, report) = home.guard(&["--preset", "build"], &["cat", &rc]);
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (1, 1),
        "{finished:?}"
    );
    let (finished, _) = home.guard(
        &["--preset", "strict"],
        &["sh", "-c", "echo x > /tmp/tollgate-guard-x"],
    );
    assert_ne!(finished.code(), 0, "{finished:?}");
    let (finished, report) = home.guard(
        &["--allow", "ptrace", "--allow", "namespaces"],
        &["unshare", "-U", "true"],
    );
    assert_eq!(
        (finished.code(), denials(&report).len()),
        (0, 0),
        "{finished:?}"
    );
}

#[test]
fn a_listed_program_runs_with_its_loader_and_a_denied_loader_is_named() {
    for user in users() {
        let home = Home::new(user);
        let echo = ["/usr/bin/echo", "hi"];
        let (finished, report) = home.guard(&["--allow-exec", echo[0]], &echo);
        assert_eq!(finished.stdout, "hi\n", "{finished:?}");
        assert_eq!(denials(&report).len(), 0, "{report:?}");
        let (finished, report) = home.guard(&["--allow-exec", echo[0]], &["/usr/bin/id"]);
        assert_eq!(finished.code(), 126, "{finished:?}");
        let denial = denials(&report)[0];
        assert_eq!(denial["allow"], "--allow-exec /usr/bin/id", "{denial}");
        // The interpreter of a script in an allowed folder is not allowed with it.
        let script = home.path("project/tools/script");
        fs::create_dir(home.path("project/tools")).expect("made");
        fs::write(&script, "#!/bin/sh\necho hi\n").expect("written");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&script, open).expect("ours");
        let script = script.to_str().expect("text");
        let shell = Path::new("/bin/sh").canonicalize().expect("it is there");
        let option = format!("--allow-exec {}", shell.display());
        // Nor that of a script that the box may write: whoever writes it chooses the interpreter.
        for named in ["tools", script] {
            let (finished, report) = home.guard(&["--allow-exec", named], &[script]);
            assert_eq!(finished.code(), 126, "{finished:?}");
            assert_eq!(denials(&report)[0]["allow"], option.as_str(), "{report:?}");
        }
        let both = ["--allow-exec", script, "--allow-exec", "/bin/sh"];
        let (finished, _) = home.guard(&both, &[script]);
        assert_eq!(finished.stdout, "hi\n", "{finished:?}");
        let (finished, _) = home.guard(&["--allow-exec", "/no/program"], &["true"]);
        assert!(finished.stderr.contains("/no/program"), "{finished:?}");
    }
}

#[test]
fn a_link_that_would_give_a_file_more_rights_is_reported() {
    let home = Home::new(users()[0]);
    let rc = home.path("home/.bashrc");
    let rc = rc.to_str().expect("text");
    let (finished, report) = home.guard(&[], &["ln", rc, "link"]);
    assert_ne!(finished.code(), 0, "{finished:?}");
    let denial = denials(&report)[0];
    assert_eq!(denial["errno"], "EXDEV", "{denial}");
    assert!(names(denial, "/.bashrc"), "{denial}");
}

#[test]
fn peers_are_allowed_by_name_address_and_path() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = server.local_addr().expect("bound").port();
    let home = Home::new(users()[0]);
    let out = home.path("home/out.sock").display().to_string();
    let _listener = UnixListener::bind(&out).expect("a short path");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).expect("ours");
    let connect = "import socket,sys\nfor a in sys.argv[1:]:\n    f = socket.AF_UNIX if '/' in a else socket.AF_INET\n    \
                   s = socket.socket(f)\n    s.connect(a if '/' in a else ('127.0.0.1', int(a)))";
    let python = ["/usr/bin/python3", "-c", connect];
    let port = port.to_string();
    let run = |options: &[&str], peer: &str| {
        let words: Vec<&str> = python.iter().copied().chain([peer]).collect();
        let (finished, report) = home.guard(&[&["--preset", "strict"], options].concat(), &words);
        (finished.code() == 0, denials(&report).len())
    };
    assert_eq!(run(&[], &port), (false, 1));
    assert_eq!(
        run(&["--allow-connect", &format!("localhost:{port}")], &port),
        (true, 0)
    );
    assert_eq!(run(&["--allow-connect", "localhost:1"], &port), (false, 1));
    assert_eq!(
        run(&["--allow-connect", &format!("127.0.0.0/8:{port}")], &port),
        (true, 0)
    );
    assert_eq!(run(&["--allow", "network"], &port), (true, 0));
    assert_eq!(run(&[], &out), (false, 1));
    assert_eq!(
        run(&["--allow-connect", &format!("unix:{out}")], &out),
        (true, 0)
    );
}

#[test]
fn a_user_is_asked_before_a_connection_is_refused() {
    // Runs the guard on a terminal of its own, answers, and returns the exit status of the command.
    let terminal = "
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen = b''
while b'Allow it?' not in seen:
    seen += os.read(fd, 1000)
os.write(fd, sys.argv[1].encode() + b'\\n')
while True:
    try:
        if not os.read(fd, 1000): break
    except OSError:
        break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = server.local_addr().expect("bound").port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    let home = Home::new(users()[0]);
    for (answer, code) in [("y", 0), ("n", 1)] {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", terminal, answer]).arg(e2e::program());
        command.args([
            "guard",
            "--ask",
            "--preset",
            "strict",
            "--",
            "/usr/bin/python3",
            "-c",
        ]);
        command.arg(&connect).current_dir(home.path("project"));
        home.as_user(&mut command);
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), code, "{answer}: {finished:?}");
    }
}

#[test]
fn a_box_in_a_box_denies_what_either_denies() {
    let home = Home::new(users()[0]);
    let program = e2e::program().display().to_string();
    let rc = home.path("home/.bashrc").display().to_string();
    let job = "echo in > in; cat in; cat \"$0\"";
    let words = [
        &program, "guard", "--preset", "strict", "--", "sh", "-c", job, &rc,
    ];
    let (finished, _) = home.guard(&[], &words);
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, "in\n"),
        "{finished:?}"
    );
    assert!(
        finished.stderr.contains("inside another monitor"),
        "{finished:?}"
    );
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = server.local_addr().expect("bound").port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    let python = ["/usr/bin/python3", "-c", &connect];
    for (preset, code) in [("strict", 1), ("build", 0)] {
        let inner = [&program, "guard", "--preset", preset, "--"];
        let (finished, _) = home.guard(&[], &[&inner[..], &python].concat());
        assert_eq!(finished.code(), code, "{preset}: {finished:?}");
    }
}

/// Opens a socket of each family, with and without bits that the kernel does not look at, and prints the families
/// that could be opened, by how.
const FAMILIES: &str = "
import ctypes, json
libc = ctypes.CDLL(None)
def opens(call, *args):
    return libc.syscall(call, *map(ctypes.c_ulong, args)) >= 0
opened = {}
for name, high in [('plain', 0), ('one bit', 1 << 32), ('top bit', 1 << 63), ('all bits', 0xffffffff << 32)]:
    families = range(256)
    opened[name] = [f for f in families if any(opens(41, high | f, kind, 0) for kind in range(1, 7))]
pair = ctypes.create_string_buffer(8)
pairs = lambda f: libc.syscall(53, ctypes.c_ulong(f), 1, 0, pair) >= 0
opened['pair'] = [f for f in range(256) if pairs(f)]
print(json.dumps(opened))
";

#[test]
fn a_nested_box_without_hosts_opens_no_socket_that_leaves_this_host() {
    for user in users() {
        let home = Home::new(user);
        let python = ["/usr/bin/python3", "-c", FAMILIES];
        let run = |words: &[&str]| -> Value {
            let finished = home.monitored(&[words, &python].concat());
            assert_eq!(finished.code(), 0, "{finished:?}");
            serde_json::from_str(&finished.stdout).expect("JSON")
        };
        let program = e2e::program().display().to_string();
        let outside = run(&[]);
        let inside = run(&[&program, "guard", "--preset", "strict", "--"]);
        for bits in ["one bit", "top bit", "all bits"] {
            let has = |family| {
                outside[bits]
                    .as_array()
                    .is_some_and(|all| all.contains(&Value::from(family)))
            };
            assert!(has(2), "the kernel looks at 32 bits: {outside}");
            assert_eq!(inside[bits], Value::Array(Vec::new()), "{user:?} {bits}");
        }
        assert_eq!(inside["plain"], serde_json::json!([1, 16]), "{user:?}");
        assert_eq!(inside["pair"], serde_json::json!([1]), "{user:?}");
    }
}

#[test]
fn explain_and_learn_say_what_a_box_is_and_what_it_needs() {
    let home = Home::new(users()[0]);
    let run = |words: &[&str]| {
        let mut command = Command::new(e2e::program());
        command
            .arg("guard")
            .args(words)
            .current_dir(home.path("project"));
        home.as_user(&mut command);
        Limited::start(&mut command, LIMIT).finish(b"")
    };
    let explained = run(&["explain"]);
    for part in [
        "Landlock: active",
        "Seccomp: active",
        "no layer covers:",
        ".ssh",
        "github.com:443",
        "refused as well: datagrams (UDP)",
    ] {
        assert!(explained.stdout.contains(part), "{part}: {explained:?}");
    }
    let policy = run(&["explain", "--policy"]).stdout;
    assert!(policy.contains("connectRawRules:"), "{policy}");
    let json: Value = serde_json::from_str(&run(&["explain", "--json"]).stdout).expect("JSON");
    assert!(
        json["layers"]
            .as_array()
            .is_some_and(|layers| layers.len() >= 2),
        "{json}"
    );
    let learnt = run(&["learn", "--", "sh", "-c", "echo x > x; exit 3"]);
    assert_eq!(learnt.code(), 3, "{learnt:?}");
    assert!(
        learnt
            .stderr
            .contains("tollgate guard --preset strict -- sh"),
        "{learnt:?}"
    );
    let real = home.path("home").canonicalize().expect("it is there");
    let learnt = run(&[
        "learn",
        "--",
        "sh",
        "-c",
        "echo x > $HOME/new; mkdir $HOME/d",
    ]);
    assert_eq!(learnt.code(), 0, "{learnt:?}");
    let wide = format!("--allow-write {}\n", real.display());
    assert!(
        learnt.stderr.contains(&format!("home: {wide}")),
        "{learnt:?}"
    );
    let proposed = learnt.stderr.lines().next().unwrap_or_default();
    let whole = format!("--allow-write {} ", real.display());
    assert!(!proposed.contains(&whole), "{learnt:?}");
}
