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
            "execve",
            "execveat",
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
