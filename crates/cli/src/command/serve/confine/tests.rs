//! The policy is one that the compiler takes, and says what the options need.

use clap::Parser as _;
use policy::compile::MachineFeatures;
use policy::compile::landlock::{Entry, Profile};

use super::*;

#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    serve: Serve,
}

fn serve(words: &[&str]) -> Serve {
    Arguments::parse_from([&["serve"], words].concat()).serve
}

fn needs(words: &[&str]) -> Needs {
    let args = serve(words);
    let listen = Address::parse(&args.listen).expect("an address");
    Needs::of(&args, &listen).expect("paths that a policy can name")
}

fn compiled(needs: &Needs) -> Policy {
    let text = policy_of(needs, true);
    let file = policy_files::parse(POLICY_NAME, &text);
    assert!(file.diagnostics.is_empty(), "{}{text}", file.render());
    parse(&text).expect("one policy")
}

const QUEUE: [&str; 8] = [
    "--queue",
    "nats://127.0.0.1:4222,tls://n2.example:4223",
    "--oidc-issuer",
    "https://id.example:8443/realm",
    "--oidc-client-id=a",
    "--oidc-client-secret-file=/missing",
    "--oidc-role=a=admin",
    "--public-url=https://c.example",
];

#[test]
fn the_policy_of_each_kind_of_options_compiles_without_a_message() {
    for words in [
        &[][..],
        &["--listen", "unix:///run/x.sock"],
        &["--store", "postgres://u@db.example/d"],
        &["--store", "postgres:///d?host=/run/postgresql&user=u"],
        &QUEUE,
    ] {
        let policy = compiled(&needs(words));
        let denied = policy::compile::seccomp::Profile::compile(&policy);
        for call in [
            "clone3",
            "execve",
            "execveat",
            "memfd_create",
            "ptrace",
            "bpf",
            "keyctl",
            "io_uring_setup",
            "mount",
        ] {
            let call = abi::Syscall::from_name(call).expect("a call");
            let decided = denied
                .decide(call, &[0; 6])
                .map(|rule| rule.action.denies());
            // Landlock denies mounts in full, and the filter leaves them to it.
            assert!(decided == Some(true) || call.name() == "mount", "{call}");
        }
    }
}

#[test]
fn a_file_alone_needs_no_connection_and_others_need_the_ports_of_their_options() {
    let alone = needs(&["--listen", "127.0.0.1:7000"]);
    assert_eq!(alone.listens, Some(7000));
    assert!(alone.connects.is_empty() && !alone.has_names && !alone.has_sockets);
    let of = |words: &[&str]| needs(words).connects.into_iter().collect::<Vec<_>>();
    assert_eq!(of(&["--store", "postgres://u@127.0.0.1:5433/d"]), [5433]);
    assert_eq!(of(&["--store", "postgres://u@127.0.0.1/d"]), [5432]);
    assert_eq!(of(&["--store", "postgres://u@db.example/d"]), [53, 5432]);
    assert_eq!(of(&QUEUE), [53, 443, 4222, 4223, 8443]);
    let socket = needs(&["--store", "postgres:///d?host=/run/postgresql&user=u"]);
    assert!(
        socket.connects.is_empty() && socket.has_sockets,
        "{socket:?}"
    );
}

#[test]
fn connections_are_refused_to_all_ports_but_these() {
    let policy = compiled(&needs(&["--store", "postgres://u@127.0.0.1/d"]));
    let profile = Profile::compile(&policy, &MachineFeatures::default());
    let withheld = profile.entries.iter().filter_map(|entry| match entry {
        Entry::ConnectPorts { first, last, .. } => Some((*first, *last)),
        _ => None,
    });
    let withheld: BTreeSet<_> = withheld.collect();
    assert_eq!(withheld, BTreeSet::from([(0, 5431), (5433, u16::MAX)]));
    assert_eq!(others(&BTreeSet::from([0, u16::MAX])), [(1, u16::MAX - 1)]);
    assert_eq!(others(&BTreeSet::new()), [(0, u16::MAX)]);
}

#[test]
fn files_are_granted_with_their_folder_unless_it_has_files_of_others() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let real = folder.path().canonicalize().expect("it exists");
    let (own, away) = (real.join("own"), real.join("away"));
    for path in [&own, &away] {
        std::fs::create_dir(path).expect("our folder");
    }
    std::fs::write(away.join("ca.pem"), "").expect("our folder");
    std::os::unix::fs::symlink(away.join("ca.pem"), own.join("ca.pem")).expect("our folder");
    let store = format!("sqlite:{}", real.join("c.db").display());
    let ca = own.join("ca.pem").display().to_string();
    let found = needs(&["--agent-ca", &ca, "--store", &store]);
    let pattern = |path: &Path| format!("{}/**", path.display());
    assert_eq!(found.files.get(&pattern(&real)), Some(&true), "{found:?}");
    assert_eq!(found.files.get(&pattern(&own)), Some(&false));
    assert_eq!(found.files.get(&pattern(&away)), Some(&false));
    assert!(found.alone.is_empty());
    let wide = needs(&["--agent-ca", "/etc/hosts", "--store", &store]);
    assert!(!wide.files.contains_key("/etc/**"), "{wide:?}");
    assert_eq!(wide.files.get("/etc/hosts"), Some(&false));
    assert!(wide.alone.contains(Path::new("/etc/hosts")));
}

#[test]
fn a_path_that_no_policy_can_name_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let odd = folder.path().join("a*b");
    std::fs::create_dir(&odd).expect("our folder");
    let store = format!("sqlite:{}", odd.join("c.db").display());
    let args = serve(&["--store", &store]);
    let listen = Address::parse(&args.listen).expect("an address");
    let refused = Needs::of(&args, &listen).expect_err("it has a wildcard");
    assert!(
        refused.render().contains("--no-confine"),
        "{}",
        refused.render()
    );
}

/// Calls by which a process of this kind of needs changes the attributes of a file by its path.
fn attribute_calls(words: &[&str]) -> Vec<&'static str> {
    let policy = compiled(&needs(words));
    let denied = policy::compile::seccomp::Profile::compile(&policy);
    let changes = |call: &abi::Syscall| {
        let name = call.name();
        let is_change = ["chmod", "chown", "utime", "xattr", "setattr"]
            .iter()
            .any(|part| name.contains(part));
        let is_read = ["get", "list"].iter().any(|part| name.contains(part));
        let has_path = call.args().iter().any(|arg| arg.name == "path");
        is_change && !is_read && has_path
    };
    let allowed = |call: &abi::Syscall| {
        // One that only 32-bit programs have is the call that it does the same as.
        let rule = denied.decide(call.base(), &[0; 6]);
        !rule.is_some_and(|rule| rule.action.denies())
    };
    let calls = abi::Syscall::all().filter(changes).filter(allowed);
    calls.map(|call| call.name()).collect()
}

#[test]
fn no_call_changes_the_attributes_of_a_file_by_its_path_but_the_mode_of_a_socket() {
    for words in [
        &[][..],
        &["--store", "postgres:///d?host=/run/postgresql&user=u"],
        &QUEUE,
    ] {
        assert_eq!(attribute_calls(words), Vec::<&str>::new(), "{words:?}");
    }
    let socket = attribute_calls(&["--listen", "unix:///run/x/x.sock"]);
    assert_eq!(socket, ["chmod", "fchmodat", "fchmodat2"]);
}

/// The protocols up to those that the rules know, and some beyond: DCCP, SCTP, UDP-Lite, raw, SMC, multipath TCP.
fn protocols() -> impl Iterator<Item = u64> {
    (0..=20).chain([33, 132, 136, 255, 256, 262, 263, u64::MAX])
}

/// Every socket that a collector can make, besides those that the kernel does not have: a stream of UDP, datagrams of TCP.
#[test]
fn no_socket_but_tcp_udp_unix_and_netlink_can_be_made() {
    const SOCKET: &str = "socket";
    let call = abi::Syscall::from_name(SOCKET).expect("a call");
    for (words, families, has_udp) in [
        (&[][..], &[2, 10][..], false),
        (
            &["--store", "postgres:///d?host=/run/postgresql&user=u"],
            &[1, 2, 10],
            false,
        ),
        (&QUEUE, &[2, 10, 16], true),
    ] {
        let policy = compiled(&needs(words));
        let profile = policy::compile::seccomp::Profile::compile(&policy);
        for (family, kind) in (0..64).flat_map(|family| (0..16).map(move |kind| (family, kind))) {
            for (flags, protocol) in [0, 0x800, 0x8_0000]
                .into_iter()
                .flat_map(|flags| protocols().map(move |protocol| (flags, protocol)))
            {
                let args = [family, kind | flags, protocol, 0, 0, 0];
                let rule = profile.decide(call, &args);
                if rule.is_some_and(|rule| rule.action.denies()) {
                    continue;
                }
                let is_udp = kind == 2 && matches!(family, 2 | 10);
                let is_known = match family {
                    2 | 10 => matches!((kind, protocol), (1 | 2, 0 | 6 | 17)),
                    _ => matches!((kind, protocol), (1..=3, 0 | 6 | 17)),
                };
                assert!(
                    families.contains(&family) && is_known && (has_udp || !is_udp || protocol == 6),
                    "{words:?}: {family} {kind:#x} {flags:#x} {protocol}"
                );
            }
        }
        // The ones that it needs.
        for family in [2, 10] {
            let args = [family, 0x8_0801, 0, 0, 0, 0];
            let rule = profile.decide(call, &args);
            assert!(!rule.is_some_and(|rule| rule.action.denies()), "{family}");
        }
    }
}

#[test]
fn folders_with_files_of_others_are_written_with_a_warning_and_the_root_is_not() {
    let store = |folder: &Path| format!("sqlite:{}", folder.join("c.db").display());
    for wide in super::needs::WIDE.map(Path::new) {
        if !wide.is_dir() || wide.canonicalize().ok().as_deref() != Some(wide) {
            continue;
        }
        let args = serve(&["--store", &store(wide)]);
        let listen = Address::parse(&args.listen).expect("an address");
        match (Needs::of(&args, &listen), wide == Path::new("/")) {
            (Err(refused), true) => assert!(refused.render().contains("--no-confine")),
            (Ok(needs), false) => assert!(needs.wide.contains(wide), "{}", wide.display()),
            (result, _) => panic!("{}: {result:?}", wide.display()),
        }
        // A file there is granted alone.
        let file = wide.join("no-such-file.pem").display().to_string();
        let alone = needs(&["--agent-ca", &file]);
        let pattern = format!("{}/**", wide.display());
        assert!(
            alone
                .files
                .get(&pattern)
                .is_none_or(|_| pattern.starts_with("/lib")),
            "{wide:?}"
        );
    }
}
