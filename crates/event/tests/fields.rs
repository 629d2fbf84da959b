//! Values of fields, row by row.

use core::net::IpAddr;
use std::sync::Arc;

use event::field::Field;
use event::testing::{Arg, EventBuilder, Facts, FakeSystemInfo, process};
use event::{
    Comm, Container, Containment, Credentials, DescriptorKind, Details, Endpoint, Event, Group,
    Known, Lookup, Pid, Role, Socket, Stage, Stat, Status, Transport, User, Value,
};

const AT_FDCWD: i32 = -100;

/// Formats a value briefly, so that rows stay short.
fn text_of(event: &Event<'_>, field: &str) -> String {
    show(
        Field::parse(field)
            .unwrap_or_else(|error| panic!("{field}: {error}"))
            .extract(event),
    )
}

fn show(value: Value<'_>) -> String {
    match value {
        Value::Unknown => "?".to_owned(),
        Value::Absent => "-".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
        Value::Ip(ip) => ip.to_string(),
        Value::List(values) => values
            .iter()
            .map(|value| show(*value))
            .collect::<Vec<_>>()
            .join(" & "),
    }
}

fn assert_rows(event: &Event<'_>, rows: &[(&str, &str)]) {
    for (field, expected) in rows {
        assert_eq!(
            text_of(event, field),
            *expected,
            "{field} of {}",
            event.kind.name()
        );
    }
}

fn world() -> FakeSystemInfo {
    let mut world = FakeSystemInfo::default();
    world
        .directories
        .insert(None, Lookup::Found(b"/home/u".to_vec()));
    world
        .directories
        .insert(Some(9), Lookup::Found(b"/var/log".to_vec()));
    world.directories.insert(Some(8), Lookup::Missing);
    world.users.insert(
        0,
        Arc::new(User {
            name: "root".to_owned(),
            home: "/root".to_owned(),
            shell: "/bin/bash".to_owned(),
        }),
    );
    world.groups.insert(
        5,
        Arc::new(Group {
            name: "tty".to_owned(),
        }),
    );
    world
}

fn openat(dirfd: i32, path: &str, flags: u64) -> EventBuilder {
    EventBuilder::new("openat")
        .arg("dirfd", dirfd)
        .arg("name", path)
        .arg("flags", flags)
        .arg("mode", 0o640_u64)
        .descriptor(DescriptorKind::File)
        .world(world())
}

#[test]
fn names_of_opened_files_are_absolute_and_normal() {
    let rows = [
        (AT_FDCWD, "../v//./x", "'/home/v/x'"),
        (AT_FDCWD, "/etc/../etc//passwd", "'/etc/passwd'"),
        (9, "app/today.log", "'/var/log/app/today.log'"),
        (9, "/etc/passwd", "'/etc/passwd'"),
        (8, "x", "'<UNKNOWN>/x'"),
        (7, "x", "?"),
        (7, "/x", "'/x'"),
    ];
    for (dirfd, path, expected) in rows {
        let builder = openat(dirfd, path, 0).result(3);
        assert_eq!(
            text_of(&builder.at(Stage::Strings), "fd.name"),
            expected,
            "{dirfd} {path}"
        );
        assert_eq!(text_of(&builder.at(Stage::Registers), "fd.name"), "?");
    }
}

#[test]
fn a_read_only_open_in_words() {
    let builder = openat(AT_FDCWD, "a//b.txt", 0).result(3);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.num", "3"),
            ("fd.type", "'file'"),
            ("fd.typechar", "'f'"),
            ("fd.name", "'/home/u/a/b.txt'"),
            ("fd.nameraw", "'a/b.txt'"),
            ("fd.directory", "'/home/u/a'"),
            ("fd.filename", "'b.txt'"),
            ("fd.sip", "-"),
            ("fd.uid", "'423'"),
            ("evt.type", "'openat'"),
            ("evt.category", "'file'"),
            ("evt.dir", "'<'"),
            ("evt.res", "'SUCCESS'"),
            ("evt.rawres", "3"),
            ("evt.failed", "false"),
            ("evt.is_open_read", "true"),
            ("evt.is_open_write", "false"),
            ("evt.is_open_create", "false"),
            ("evt.arg.flags", "'O_RDONLY'"),
            ("evt.rawarg.flags", "0"),
            ("evt.arg.mode", "'0640'"),
            ("evt.arg.name", "'/home/u/a/b.txt'"),
            ("evt.rawarg.name", "'a//b.txt'"),
            ("evt.arg.dirfd", "'AT_FDCWD'"),
            ("evt.arg[0]", "'<f>/home/u/a/b.txt'"),
            ("evt.arg[99]", "-"),
            ("evt.arg.target", "-"),
            ("evt.abspath", "'/home/u/a/b.txt'"),
            ("fs.path.name", "'/home/u/a/b.txt'"),
            ("fs.path.nameraw", "'a//b.txt'"),
            ("fs.path.source", "-"),
            (
                "evt.args",
                "'fd=3(<f>/home/u/a/b.txt) dirfd=-100(AT_FDCWD) name=a//b.txt(/home/u/a/b.txt) \
             flags=0(O_RDONLY) mode=0640 dev=<NA> ino=<NA>'",
            ),
        ],
    );
}

#[test]
fn a_failed_open_has_a_type_letter_and_no_type() {
    let directory = abi::flags::OPEN
        .value_of(
            abi::Arch::native().expect("tests run on a known machine"),
            "O_DIRECTORY",
        )
        .expect("the set has it");
    let file = openat(AT_FDCWD, "/no", 1).result(-2);
    assert_rows(
        &file.complete(),
        &[
            ("fd.num", "-1"),
            ("fd.type", "-"),
            ("fd.typechar", "'f'"),
            ("fd.name", "'/no'"),
            ("evt.res", "'ENOENT'"),
            ("evt.rawres", "-2"),
            ("evt.failed", "true"),
            ("evt.count.error.file", "1"),
            ("evt.count.error.net", "-"),
            ("evt.arg.fd", "'ENOENT'"),
            ("evt.is_open_write", "true"),
            ("evt.is_open_read", "false"),
            ("fs.path.name", "-"),
        ],
    );
    assert_rows(
        &file.at(Stage::Registers),
        &[
            ("fd.typechar", "'f'"),
            ("evt.is_open_write", "true"),
            ("fd.num", "?"),
            ("fd.name", "?"),
        ],
    );
    let folder = openat(AT_FDCWD, "/no", directory).result(-2);
    assert_rows(
        &folder.complete(),
        &[("fd.typechar", "'d'"), ("fd.filename", "-")],
    );
}

#[test]
fn a_file_is_created_for_certain_or_perhaps() {
    let arch = abi::Arch::native().expect("tests run on a known machine");
    let flag = |name| {
        abi::flags::OPEN
            .value_of(arch, name)
            .expect("the set has it")
    };
    let (create, exclusive) = (flag("O_CREAT"), flag("O_EXCL"));
    let rows = [
        (create | exclusive, 3, "true"),
        (create, 3, "?"),
        (create, -13, "false"),
        (flag("O_TMPFILE") | 2, 3, "true"),
        (0, 3, "false"),
    ];
    for (flags, result, expected) in rows {
        let builder = openat(AT_FDCWD, "/x", flags).result(result);
        assert_eq!(
            text_of(&builder.complete(), "evt.is_open_create"),
            expected,
            "{flags:#o}"
        );
    }
    let executable = openat(AT_FDCWD, "/x", create).arg("mode", 0o755_u64);
    assert_eq!(
        text_of(&executable.at(Stage::Registers), "evt.is_open_exec"),
        "true"
    );
}

#[test]
fn unreadable_memory_and_unlearnt_results_stay_unknown() {
    let builder = openat(AT_FDCWD, "/x", 0)
        .arg("name", Arg::Unreadable)
        .unlearnt();
    assert_rows(
        &builder.complete(),
        &[
            ("fd.name", "?"),
            ("evt.arg.name", "?"),
            ("evt.res", "?"),
            ("evt.args", "?"),
            ("fd.num", "?"),
            ("fd.typechar", "'f'"),
        ],
    );
    // For comparisons: what is printed tells what is known.
    for field in ["evt.args", "evt.info"] {
        let shown = Field::parse(field)
            .expect("it is one")
            .shown(&builder.complete());
        assert_eq!(
            show(shown),
            "'fd=<NA> dirfd=-100(AT_FDCWD) name=<NA> flags=0(O_RDONLY) mode=0640 dev=<NA> ino=<NA>'"
        );
    }
    let name = Field::parse("fd.name").expect("it is one");
    assert_eq!(
        show(name.shown(&builder.complete())),
        "?",
        "it has no parts"
    );
}

fn end(ip: &str, port: u16) -> Known<Endpoint> {
    let ip: IpAddr = ip.parse().expect("the test gives an address");
    Known::Yes(Endpoint { ip, port })
}

fn socket(role: Role, local: Known<Endpoint>, remote: Known<Endpoint>) -> Socket<'static> {
    Socket {
        transport: Known::Yes(Transport::Tcp),
        local,
        remote,
        role,
        unix_path: None,
        connected: Known::Yes(true),
        name_changed: Known::Yes(false),
        unspecified: None,
    }
}

#[test]
fn a_connection_has_two_ends_two_roles_and_one_name() {
    let ends = socket(Role::Client, end("10.0.0.1", 4000), end("10.0.0.2", 443));
    let builder = EventBuilder::new("connect")
        .arg("fd", 4)
        .socket(DescriptorKind::Ipv4, ends)
        .result(-115);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.name", "'10.0.0.1:4000->10.0.0.2:443'"),
            ("fd.type", "'ipv4'"),
            ("fd.typechar", "'4'"),
            ("fd.cip", "10.0.0.1"),
            ("fd.sip", "10.0.0.2"),
            ("fd.lip", "10.0.0.1"),
            ("fd.rip", "10.0.0.2"),
            ("fd.sip.name", "10.0.0.2"),
            ("fd.ip", "10.0.0.1 & 10.0.0.2"),
            ("fd.net", "10.0.0.1 & 10.0.0.2"),
            ("fd.port", "4000 & 443"),
            ("fd.sport", "443"),
            ("fd.sproto", "'443'"),
            ("fd.l4proto", "'tcp'"),
            ("fd.sockfamily", "'ip'"),
            ("fd.is_server", "false"),
            ("fd.connected", "true"),
            ("fd.name_changed", "false"),
            ("evt.arg.tuple", "'10.0.0.1:4000->10.0.0.2:443'"),
            ("evt.arg.fd", "'<4t>10.0.0.1:4000->10.0.0.2:443'"),
            ("evt.res", "'EINPROGRESS'"),
            ("fd.filename", "-"),
        ],
    );
    assert_rows(
        &builder.at(Stage::Registers),
        &[("fd.num", "4"), ("fd.sport", "?")],
    );
    assert_rows(
        &builder.at(Stage::Strings),
        &[("fd.sport", "443"), ("fd.cport", "?")],
    );
}

#[test]
fn the_accepting_side_is_the_server() {
    let ends = socket(Role::Server, end("::1", 80), end("::2", 5000));
    let builder = EventBuilder::new("accept4")
        .socket(DescriptorKind::Ipv6, ends)
        .result(7);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.name", "'::2:5000->::1:80'"),
            ("fd.cip", "::2"),
            ("fd.sport", "80"),
            ("fd.lport", "80"),
            ("fd.rport", "5000"),
            ("fd.is_server", "true"),
            ("fd.num", "7"),
        ],
    );
}

#[test]
fn sockets_without_a_partner_or_an_address() {
    let waits = socket(Role::Server, end("0.0.0.0", 22), Known::Never);
    let builder = EventBuilder::new("listen")
        .arg("fd", 3)
        .socket(DescriptorKind::Ipv4, waits);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.name", "'0.0.0.0:22'"),
            ("fd.sport", "22"),
            ("fd.cport", "-"),
            ("fd.lport", "-"),
            ("fd.port", "22"),
        ],
    );
    let fresh = socket(Role::Unknown, Known::Never, Known::Never);
    let builder = EventBuilder::new("shutdown")
        .arg("fd", 3)
        .socket(DescriptorKind::Ipv4, fresh);
    assert_rows(
        &builder.complete(),
        &[("fd.name", "''"), ("fd.sip", "-"), ("fd.ip", "-")],
    );
    let mapped = socket(
        Role::Client,
        end("::ffff:10.0.0.1", 1),
        end("::ffff:10.0.0.2", 2),
    );
    let builder = EventBuilder::new("shutdown")
        .arg("fd", 3)
        .socket(DescriptorKind::Ipv6, mapped);
    assert_rows(&builder.complete(), &[("fd.sip", "10.0.0.2")]);
    let unix = Socket {
        unix_path: Some(b"/run/docker.sock"),
        ..fresh
    };
    let builder = EventBuilder::new("connect")
        .arg("fd", 3)
        .socket(DescriptorKind::Unix, unix);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.name", "'/run/docker.sock'"),
            ("fd.sockfamily", "'unix'"),
            ("fd.sip", "-"),
            ("fd.typechar", "'u'"),
        ],
    );
}

#[test]
fn a_copied_descriptor_is_known_before_its_number() {
    let builder = EventBuilder::new("dup2")
        .arg("oldfd", 5)
        .arg("newfd", 0)
        .descriptor(DescriptorKind::Pipe)
        .resolved("pipe:[7]")
        .result(0);
    assert_rows(
        &builder.at(Stage::Entry),
        &[("fd.type", "'pipe'"), ("fd.num", "?")],
    );
    assert_rows(
        &builder.complete(),
        &[("fd.num", "0"), ("evt.category", "'ipc'")],
    );
}

#[test]
fn words_for_flags_modes_signals_and_users() {
    let rows = [
        (
            EventBuilder::new("ptrace").arg("request", 16_u64),
            "evt.arg.request",
            "'PTRACE_ATTACH'",
        ),
        (
            EventBuilder::new("socket").arg("domain", 17_u64),
            "evt.arg.domain",
            "'AF_PACKET'",
        ),
        (
            EventBuilder::new("kill").arg("sig", 9_u64),
            "evt.arg.sig",
            "'SIGKILL'",
        ),
        (
            EventBuilder::new("setuid").arg("uid", 0_u64),
            "evt.arg.uid",
            "'root'",
        ),
        (
            EventBuilder::new("setuid").arg("uid", 77_u64),
            "evt.arg.uid",
            "'<NA>'",
        ),
        (
            EventBuilder::new("setuid").arg("uid", -1),
            "evt.arg.uid",
            "'<NONE>'",
        ),
        (
            EventBuilder::new("setuid").arg("uid", -1),
            "evt.rawarg.uid",
            "4294967295",
        ),
        (
            EventBuilder::new("setgid").arg("gid", 5_u64),
            "evt.arg.gid",
            "'tty'",
        ),
        (
            EventBuilder::new("mkdir").arg("mode", 0o755_u64),
            "evt.arg.mode",
            "'1ED'",
        ),
    ];
    for (builder, field, expected) in rows {
        let builder = builder.world(world());
        assert_eq!(text_of(&builder.complete(), field), expected, "{field}");
    }
    let set_uid = EventBuilder::new("chmod").arg("mode", 0o4100_u64);
    let words = text_of(&set_uid.complete(), "evt.arg.mode");
    assert!(
        words.contains("S_ISUID") && words.contains("S_IXUSR"),
        "{words}"
    );
}

#[test]
fn words_for_numbers_data_results_and_kinds() {
    let rows = [
        (
            EventBuilder::new("open").arg("mode", 0_u64),
            "evt.arg.mode",
            "'0'",
        ),
        (
            EventBuilder::new("brk").arg("addr", 0xBEEF_u64),
            "evt.arg.addr",
            "'BEEF'",
        ),
        (
            EventBuilder::new("write").arg("data", "a\nb"),
            "evt.arg.data",
            "'a.b'",
        ),
        (
            EventBuilder::new("write").arg("data", "a\nb"),
            "evt.buffer",
            "'a\nb'",
        ),
        (EventBuilder::new("write").result(3), "evt.buflen", "3"),
        (EventBuilder::new("write"), "evt.io_dir", "'write'"),
        (EventBuilder::new("move_mount"), "evt.category", "'other'"),
        (EventBuilder::new("procexit"), "evt.res", "-"),
        (EventBuilder::new("procexit"), "syscall.type", "-"),
        (EventBuilder::new("open"), "syscall.type", "'open'"),
        (EventBuilder::new("open"), "evt.type.is.open", "1"),
        (EventBuilder::new("open"), "evt.type.is.openat", "0"),
    ];
    for (builder, field, expected) in rows {
        let builder = builder.world(world());
        assert_eq!(text_of(&builder.complete(), field), expected, "{field}");
    }
}

#[test]
fn paths_of_links_and_renames() {
    let link = EventBuilder::new("symlinkat")
        .arg("target", "../etc/shadow")
        .arg("linkdirfd", 9)
        .arg("linkpath", "s")
        .world(world());
    assert_rows(
        &link.complete(),
        &[
            ("fs.path.source", "'/var/log/s'"),
            ("fs.path.sourceraw", "'s'"),
            ("fs.path.target", "'../etc/shadow'"),
            ("fs.path.name", "-"),
            ("evt.arg.linkpath", "'/var/log/s'"),
            ("evt.arg.target", "'../etc/shadow'"),
        ],
    );
    let rename = EventBuilder::new("renameat2")
        .arg("olddirfd", AT_FDCWD)
        .arg("oldpath", "a")
        .arg("newdirfd", 9)
        .arg("newpath", "b")
        .world(world());
    assert_rows(
        &rename.complete(),
        &[
            ("fs.path.source", "'/home/u/a'"),
            ("fs.path.target", "'/var/log/b'"),
            ("evt.abspath.src", "'/home/u/a'"),
            ("evt.abspath.dst", "'/var/log/b'"),
        ],
    );
    assert_rows(&rename.at(Stage::Entry), &[("fs.path.source", "?")]);
}

fn status(uid: u32) -> Status {
    Status {
        credentials: Credentials { uid, gid: 5 },
        real_uid: uid,
        cap_inheritable: 0,
        cap_permitted: 1,
        cap_effective: 1 << 21 | 1,
        cap_bounding: 0,
        vpid: 1,
        vtid: 1,
        vpgid: 1,
        vsid: 0,
    }
}

fn stat(sid: i32, pgid: i32) -> Stat {
    Stat {
        ppid: Pid(30),
        pgid,
        sid,
        tty: 34816,
        tpgid: pgid,
        threads: 3,
        vm_size_kib: 10,
        vm_rss_kib: 5,
    }
}

/// Fields of `python3 x.py 'a b'`, its shell and init.
const OF_PYTHON: &[(&str, &str)] = &[
    ("proc.name", "'python3'"),
    ("proc.exe", "'/usr/bin/python3'"),
    ("proc.args", "'x.py a b'"),
    ("proc.args[1]", "'a b'"),
    ("proc.args[2]", "-"),
    ("proc.cmdline", "'python3 x.py a b'"),
    ("proc.exeline", "'/usr/bin/python3 x.py a b'"),
    ("proc.cmdnargs", "2"),
    ("proc.cmdlenargs", "7"),
    ("proc.env[LANG]", "'C'"),
    ("proc.env[LAN]", "-"),
    ("proc.env", "'HOME=/root LANG=C'"),
    ("proc.aenv[HOME]", "'/root'"),
    ("proc.cwd", "'/home/u/'"),
    ("proc.pid", "31"),
    ("proc.ppid", "30"),
    ("proc.pname", "'bash'"),
    ("proc.pexepath", "'/bin/bash'"),
    ("proc.pcmdline", "'bash -l'"),
    ("proc.aname", "'bash' & 'init'"),
    ("proc.aname[0]", "'python3'"),
    ("proc.aname[1]", "'bash'"),
    ("proc.aname[2]", "'init'"),
    ("proc.aname[3]", "-"),
    ("proc.apid", "30 & 1"),
    ("proc.acmdline[2]", "'init'"),
    ("proc.sname", "'bash'"),
    ("proc.sid.exepath", "'/bin/bash'"),
    ("proc.vpgid.name", "'python3'"),
    ("proc.loginshellid", "30"),
    ("proc.tty", "34816"),
    ("proc.is_vpgid_leader", "true"),
    ("proc.is_sid_leader", "false"),
    ("proc.is_pgid_leader", "true"),
    ("proc.exe_ino.ctime", "500000000"),
    ("proc.exe_ino.ctime_duration_proc_start", "500000000"),
    ("proc.is_exe_upper_layer", "?"),
    ("proc.is_exe_writable", "false"),
    ("proc.duration", "1699999999123456789"),
    ("proc.nthreads", "3"),
    ("thread.tid", "33"),
    ("thread.ismain", "false"),
    ("thread.vmsize", "0"),
    ("thread.nametid", "'python333'"),
    ("thread.cap_effective", "'CAP_CHOWN CAP_SYS_ADMIN'"),
    ("thread.cap_inheritable", "''"),
    ("user.uid", "0"),
    ("user.name", "'root'"),
    ("user.loginuid", "-1"),
    ("user.loginname", "'<NA>'"),
    ("group.name", "'tty'"),
];

#[test]
fn a_process_its_program_and_its_ancestors() {
    let init = process(1, None, &["/sbin/init"]);
    let shell = process(30, Some(&init), &["/bin/bash", "-l"]);
    let caller = process(31, Some(&shell), &["/usr/bin/python3", "x.py", "a b"]);
    let mut world = world();
    let facts = Facts {
        comm: Lookup::Found(Comm::new(b"python3")),
        stat: Lookup::Found(stat(30, 31)),
        status: Lookup::Found(status(0)),
        login_uid: Lookup::Missing,
        ..Facts::default()
    };
    world.facts.insert(Pid(31), facts);
    world.processes.insert(Pid(30), Arc::clone(&shell));
    let builder = EventBuilder::new("getcwd")
        .process(&caller)
        .tid(33)
        .world(world);
    assert_rows(
        &builder.at(Stage::Registers),
        &[("proc.name", "?"), ("proc.pid", "?")],
    );
    assert_rows(&builder.at(Stage::Entry), OF_PYTHON);
}

#[test]
fn what_the_world_cannot_tell_is_unknown_and_what_is_not_there_absent() {
    let caller = process(31, None, &["/bin/x"]);
    let mut world = FakeSystemInfo::default();
    world.facts.insert(
        Pid(31),
        Facts {
            comm: Lookup::Missing,
            ..Facts::default()
        },
    );
    let builder = EventBuilder::new("getcwd").process(&caller).world(world);
    assert_rows(
        &builder.complete(),
        &[
            ("proc.name", "-"),
            ("user.uid", "?"),
            ("proc.tty", "?"),
            ("proc.cwd", "?"),
            ("proc.pname", "-"),
            ("proc.aname", "-"),
            ("proc.ppid", "-"),
            ("user.loginuid", "?"),
        ],
    );
}

#[test]
fn endless_ancestries_are_unknown() {
    let mut parent = process(1, None, &["/bin/deep"]);
    for pid in 2..200 {
        parent = process(pid, Some(&parent), &["/bin/deep"]);
    }
    let builder = EventBuilder::new("getcwd").process(&parent);
    assert_rows(
        &builder.complete(),
        &[("proc.aname", "?"), ("proc.aname[150]", "'deep'")],
    );
}

#[test]
fn an_exec_tells_of_the_new_program_and_only_at_its_end() {
    let caller = process(31, None, &["/bin/sh"]);
    let mut world = world();
    world.facts.insert(
        Pid(31),
        Facts {
            comm: Lookup::Found(Comm::new(b"id")),
            status: Lookup::Found(status(1)),
            ..Facts::default()
        },
    );
    let builder = EventBuilder::new("execve")
        .process(&caller)
        .image_after(event::testing::image(&["/usr/bin/id", "-u", "root"]))
        .arg("filename", "/usr/bin/id")
        .world(world);
    assert_rows(
        &builder.at(Stage::Entry),
        &[
            ("proc.exepath", "?"),
            ("proc.name", "?"),
            ("proc.pid", "31"),
            ("evt.arg.filename", "'/usr/bin/id'"),
        ],
    );
    assert_rows(
        &builder.complete(),
        &[
            ("proc.exepath", "'/usr/bin/id'"),
            ("proc.cmdline", "'id -u root'"),
            ("evt.arg.exe", "'/usr/bin/id'"),
            ("evt.arg.args", "'-u.root.'"),
            ("evt.rawarg.uid", "1"),
            ("evt.arg.trusted_exepath", "'/usr/bin/id'"),
            ("user.uid", "1"),
        ],
    );
}

#[test]
fn containers_on_the_host_known_and_unknown() {
    let known = Container {
        containment: Containment::Known,
        id: "3ad7b26ded6d".to_owned(),
        name: Some("web".to_owned()),
        image: Some("docker.io/library/nginx:1.25".to_owned()),
        privileged: Some(true),
        pod: Some(("p".to_owned(), "default".to_owned(), "u-1".to_owned())),
        ..Container::unknown()
    };
    let rows = [
        (Container::host(), ["'host'", "'host'", "-", "-", "-"]),
        (Container::unknown(), ["''", "-", "-", "-", "-"]),
        (
            known,
            [
                "'3ad7b26ded6d'",
                "'web'",
                "'docker.io/library/nginx'",
                "true",
                "'default'",
            ],
        ),
    ];
    let fields = [
        "container.id",
        "container.name",
        "container.image.repository",
        "container.privileged",
        "k8s.ns.name",
    ];
    for (container, expected) in rows {
        let world = FakeSystemInfo {
            container: Arc::new(container),
            ..FakeSystemInfo::default()
        };
        let builder = EventBuilder::new("getcwd").world(world);
        let found = fields.map(|field| text_of(&builder.complete(), field));
        assert_eq!(found, expected.map(str::to_owned));
    }
}

/// `k8s.deployment.name` and `k8s.rs.name` of a container.
fn controllers(container: &Container) -> [String; 2] {
    let world = FakeSystemInfo {
        container: Arc::new(container.clone()),
        ..FakeSystemInfo::default()
    };
    let event = EventBuilder::new("getcwd").world(world);
    ["k8s.deployment.name", "k8s.rs.name"].map(|field| text_of(&event.complete(), field))
}

/// Name of the pod, a label, Deployment and ReplicaSet.
const PODS: [(&str, &str, &str, [&str; 2]); 9] = [
    (
        "web-front-5d4f8c7b9f-x4z2z",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["'web-front'", "'web-front-5d4f8c7b9f'"],
    ),
    (
        "w-5d4f8c7b9f-x4z2z",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["'w'", "'w-5d4f8c7b9f'"],
    ),
    // Cut by the API server, copied by hand, or drawn by nobody.
    (
        "web-5d4f8c7b9fx4z2z",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["?", "?"],
    ),
    (
        "web-5d4f8c7b9f-debug",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["?", "?"],
    ),
    (
        "web-5d4f8c7b9f",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["?", "?"],
    ),
    (
        "-5d4f8c7b9f-x4z2z",
        "pod-template-hash",
        "5d4f8c7b9f",
        ["?", "?"],
    ),
    ("web-abc-x4z2z", "pod-template-hash", "abc", ["?", "?"]),
    // No controller of Deployments leaves its label out; one of replica sets has none.
    ("web-x4z2z", "app", "web", ["-", "?"]),
    ("log-x4z2z", "controller-revision-hash", "r", ["-", "-"]),
];

/// A name that controllers have not given is not taken for one: it is unknown, and not absent.
#[test]
fn a_deployment_is_known_where_labels_and_name_of_the_pod_fit_and_else_unknown() {
    for (name, label, value, expected) in PODS {
        let details = Details {
            pod_labels: [(label.to_owned(), value.to_owned())].into(),
            ..Details::default()
        };
        let container = Container {
            containment: Containment::Known,
            pod: Some((name.to_owned(), "default".to_owned(), "u-1".to_owned())),
            details: Arc::new(details),
            ..Container::unknown()
        };
        assert_eq!(controllers(&container), expected, "{name}");
        let unlabelled = Container {
            details: Arc::default(),
            undescribed: Some("no runtime has described it".to_owned()),
            ..container
        };
        assert_eq!(controllers(&unlabelled), ["?", "?"], "{name}");
    }
    assert_eq!(controllers(&Container::host()), ["-", "-"]);
}

#[test]
fn open_descriptors_have_types_and_names() {
    let mut world = FakeSystemInfo::default();
    world
        .descriptors
        .insert(0, (DescriptorKind::Ipv4, b"1.2.3.4:5->6.7.8.9:10".to_vec()));
    world
        .descriptors
        .insert(1, (DescriptorKind::File, b"/dev/pts/0".to_vec()));
    world
        .descriptors
        .insert(2, (DescriptorKind::File, b"/dev/pts/0".to_vec()));
    let builder = EventBuilder::new("dup").world(world);
    assert_rows(
        &builder.complete(),
        &[
            ("fd.types", "'ipv4' & 'file'"),
            ("fd.types[0]", "'ipv4'"),
            ("fd.types[7]", "-"),
            ("proc.fdopencount", "3"),
            ("proc.stdout.type", "'file'"),
            ("proc.stdin.name", "'1.2.3.4:5->6.7.8.9:10'"),
        ],
    );
}

#[test]
fn times_are_told_in_utc_or_local_time() {
    let world = FakeSystemInfo {
        utc_offset: 3600,
        ..FakeSystemInfo::default()
    };
    let builder = EventBuilder::new("getcwd")
        .time_ns(1_735_689_599_000_000_001)
        .world(world);
    assert_rows(
        &builder.at(Stage::Registers),
        &[
            ("evt.time.iso8601", "'2024-12-31T23:59:59.000000001+0000'"),
            ("evt.time", "'00:59:59.000000001'"),
            ("evt.datetime.s", "'2025-01-01 00:59:59'"),
            ("evt.rawtime", "1735689599000000001"),
            ("evt.rawtime.s", "1735689599"),
            ("evt.rawtime.ns", "1"),
            ("evt.num", "1"),
            ("evt.hostname", "'testhost'"),
            ("evt.reltime", "-"),
        ],
    );
}

/// Fields that depend only on the opening have the same value whichever process opens the file.
#[test]
fn what_follows_from_an_opening_is_the_same_for_everybody() {
    let fields: Vec<Field> = event::field::docs()
        .flat_map(|(_, fields)| fields)
        .filter_map(|spec| Field::parse(spec.name).ok())
        .filter(Field::is_of_opening)
        .collect();
    let names: Vec<String> = fields.iter().map(ToString::to_string).collect();
    for name in [
        "evt.res",
        "evt.is_open_write",
        "fd.num",
        "fd.name",
        "fd.typechar",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    let opening = |file: &str, result: i64| {
        EventBuilder::new("openat")
            .arg("dirfd", AT_FDCWD)
            .arg("name", file)
            .arg("flags", 0o101_u64)
            .arg("mode", 0o755_u64)
            .result(result)
    };
    let mut elsewhere = world();
    elsewhere.directories.clear();
    elsewhere.container = Arc::new(Container::host());
    for file in ["/etc/../etc//passwd", "/tmp/x", "/"] {
        for result in [-2, 0, 7] {
            let one = opening(file, result).world(world());
            let other = opening(file, result)
                .world(elsewhere.clone())
                .process(&process(77, None, &["other", "-x"]))
                .tid(78)
                .time_ns(5);
            for field in &fields {
                let [one, other] =
                    [&one, &other].map(|event| show(field.extract(&event.complete())));
                assert_eq!(one, other, "{field} of {file}");
            }
        }
    }
}
