use super::super::NarrowedPolicy;
use super::*;
use crate::load;

const ALL: MachineFeatures = MachineFeatures {
    disks: Vec::new(),
    watches: true,
    held: Some(Capabilities::ALL),
    is_root: true,
    is_elsewhere: false,
    unavailable: Vec::new(),
    missing_hooks: BTreeSet::new(),
    landlock_version: None,
    other_names: BTreeMap::new(),
};

fn classifier(enforcer: &str, rules: &str, machine: &MachineFeatures) -> DenialClassifier {
    let text = format!(
        "policy:\n  enforcer: {enforcer}\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
         privileged: true\n    auditViolations: true\n{rules}"
    );
    let (policies, problems) = load("p.yaml", &text);
    assert!(problems.is_empty(), "{problems:?}");
    NarrowedPolicy::new(&policies[0], machine).classifier()
}

fn shadow() -> DenialClassifier {
    let rules = "    attackProtectionRules: [{rules: [disable-access-shadow]}]\n";
    classifier("Landlock", rules, &ALL)
}

fn named(path: &str, is: PathKind) -> NamedFile {
    NamedFile {
        path: path.to_owned(),
        is,
    }
}

fn classify(
    classifier: &DenialClassifier,
    call: Syscall,
    args: [u64; 6],
    paths: &[NamedFile],
    errno: i32,
) -> Option<String> {
    let attempt = Attempt {
        call,
        args,
        errno: Errno(errno),
        paths,
        port: None,
        is_root: true,
        lacked: Capabilities::default(),
        is_one_mount: Some(true),
    };
    let blame = classifier.classify(&attempt)?;
    Some(format!("{} {}", blame.enforcer, blame.rule))
}

#[test]
fn every_capability_is_spoken_for() {
    let table = read(include_str!("../../../data/capable.txt")).unwrap();
    let all = table.iter().fold(0, |sum, entry| sum | entry.set.0);
    assert_eq!(all, Capabilities::ALL.0);
    assert!(read("call mount").is_err());
    assert!(read("capability sys_admin\ncall muont").is_err());
    assert!(read("capability nothing").is_err());
}

#[test]
fn only_what_a_told_rule_can_hit_is_handed_over() {
    let calls = shadow().calls();
    let of = |call| calls.iter().find(|rule| rule.call == call);
    assert_eq!(of(Syscall::OPENAT).unwrap().action, Action::Watch);
    assert_eq!(of(Syscall::OPENAT).unwrap().when.len(), 1);
    assert!(of(Syscall::EXECVE).is_none());
    assert!(of(Syscall::CONNECT).is_none());
    assert_eq!(
        of(Syscall::IO_URING_SETUP).unwrap().action,
        Action::Refuse(EPERM)
    );
    let etc = "    attackProtectionRules: [{rules: [disable-write-etc]}]\n";
    let calls = classifier("Landlock", etc, &ALL).calls();
    let open = calls
        .iter()
        .find(|rule| rule.call == Syscall::OPENAT)
        .unwrap();
    let reads = [0, 0, 0, 0, 0, 0];
    let writes = [0, 0, 0o1, 0, 0, 0];
    let holds = |args: &[u64; 6]| open.when.iter().all(|test| test.holds(args));
    assert_eq!((holds(&reads), holds(&writes)), (false, true));
}

#[test]
fn what_nobody_wants_told_or_nobody_can_watch_is_not_handed_over() {
    let rules = "    attackProtectionRules: [{rules: [disable-access-shadow]}]\n";
    let blind = MachineFeatures {
        watches: false,
        ..ALL
    };
    assert!(classifier("Landlock", rules, &blind).calls().is_empty());
    assert!(classifier("Seccomp", "    hardeningRules: [disallow-mount]\n", &ALL).is_empty());
    let caps = "    hardeningRules: [disable-cap-net-raw]\n";
    let without = MachineFeatures {
        held: Some(Capabilities::default()),
        ..ALL
    };
    assert!(classifier("Caps", caps, &without).is_empty());
    let text = format!(
        "policy:\n  enforcer: Landlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n{rules}"
    );
    let (policies, _) = load("p.yaml", &text);
    assert!(
        NarrowedPolicy::new(&policies[0], &ALL)
            .classifier()
            .is_empty()
    );
}

#[test]
fn a_denial_is_classified_by_call_error_and_path() {
    let classifier = shadow();
    let file = |path| [named(path, PathKind::File)];
    let open = |path, errno| classify(&classifier, Syscall::OPENAT, [0; 6], &file(path), errno);
    assert_eq!(
        open("/etc/shadow", 13).as_deref(),
        Some("Landlock disable-access-shadow")
    );
    assert_eq!(open("/etc/shadow", 2), None);
    assert_eq!(open("/etc/shadow-", 13), None);
    assert_eq!(
        classify(
            &classifier,
            Syscall::EXECVE,
            [0; 6],
            &file("/etc/shadow"),
            13
        ),
        None
    );
    let both = [
        named("/etc/shadow", PathKind::File),
        named("/tmp/x", PathKind::Missing),
    ];
    assert!(classify(&classifier, Syscall::RENAME, [0; 6], &both, 18).is_some());
    assert!(classify(&classifier, Syscall::RENAME, [0; 6], &both[1..], 18).is_none());
    let mut between = Attempt {
        call: Syscall::RENAME,
        args: [0; 6],
        errno: EXDEV,
        paths: &both,
        port: None,
        is_root: true,
        lacked: Capabilities::default(),
        is_one_mount: Some(false),
    };
    assert!(classifier.classify(&between).is_none());
    between.is_one_mount = None;
    assert!(classifier.classify(&between).is_some());
}

const LIST: &str = "    landlockRawRules:\n      only:\n\
                        \x20     - {pattern: /read/**, permissions: [read]}\n\
                        \x20     - {pattern: /own/**, permissions: [read, write]}\n\
                        \x20     - {pattern: /bin/x, permissions: [read, exec]}\n";

#[test]
fn a_move_that_would_give_a_file_more_rights_is_denied_by_the_list() {
    let classifier = classifier("Landlock", LIST, &ALL);
    let attempt = |call, flags, paths: &[NamedFile], is_one_mount| {
        let attempt = Attempt {
            call,
            args: [0, 0, 0, 0, flags, 0],
            errno: EXDEV,
            paths,
            port: None,
            is_root: true,
            lacked: Capabilities::default(),
            is_one_mount,
        };
        classifier.classify(&attempt).map(|cause| cause.rule)
    };
    let moved = |from, to, is_one_mount| {
        let paths = [named(from, PathKind::File), named(to, PathKind::Missing)];
        attempt(Syscall::LINKAT, 0, &paths, is_one_mount)
    };
    let by_list = Some("landlockRawRules.only");
    assert_eq!(moved("/read/file", "/own/link", Some(true)), by_list);
    // The kernel does not ask Landlock about another mount.
    assert_eq!(moved("/read/file", "/own/link", Some(false)), None);
    assert_eq!(moved("/read/file", "/own/link", None), None);
    // A file system can refuse it, too.
    assert_eq!(moved("/own/file", "/own/sub/link", Some(true)), None);
    assert_eq!(moved("/own/file", "/read/link", Some(true)), None);
    // A name that only one file has is no right of another, and one folder has the same rights.
    assert_eq!(moved("/read/file", "/bin/x", Some(true)), None);
    assert_eq!(moved("/bin/y", "/bin/x", Some(true)), None);
    let both = ["/own/file", "/read/file"].map(|path| named(path, PathKind::File));
    let exchanged = |flags| attempt(Syscall::RENAMEAT2, flags, &both, Some(true));
    assert_eq!(exchanged(EXCHANGES), by_list);
    assert_eq!(exchanged(0), None);
    let open = [named("/read/file", PathKind::File)];
    assert_eq!(
        classify(&classifier, Syscall::OPENAT, [0; 6], &open, 18),
        None
    );
}

#[test]
fn a_program_is_denied_by_the_list_that_lacks_its_loader() {
    let classifier = classifier("Landlock", LIST, &ALL);
    let paths = [
        named("/bin/x", PathKind::File),
        named("/lib/ld.so", PathKind::File),
    ];
    let attempt = |paths| Attempt {
        call: Syscall::EXECVE,
        args: [0; 6],
        errno: EACCES,
        paths,
        port: None,
        is_root: true,
        lacked: Capabilities::default(),
        is_one_mount: Some(true),
    };
    let attempted = attempt(&paths);
    let rule = classifier.classify(&attempted).map(|cause| cause.rule);
    assert_eq!(rule, Some("landlockRawRules.only"));
    let object = classifier.object(&attempted).unwrap();
    assert_eq!(
        (object.path.as_str(), object.access),
        ("/lib/ld.so", "exec")
    );
    // The modes of the file deny it.
    assert!(classifier.classify(&attempt(&paths[..1])).is_none());
}

#[test]
fn side_effects_of_a_rule_are_classified_by_what_was_granted() {
    let hole = DeniedPath {
        path: "/etc/shadow".to_owned(),
        rights: READ | WRITE_FILE,
    };
    let grant = |path: &str, rights| Grant {
        path: path.to_owned(),
        rights,
    };
    let granted = [
        grant("/", LISTING),
        grant("/etc/sudoers", READ),
        grant("/usr", READ),
    ];
    let classifier =
        shadow().with_ruleset(vec![("disable-access-shadow".to_owned(), hole)], &granted);
    let open = |path| {
        classify(
            &classifier,
            Syscall::OPENAT,
            [0; 6],
            &[named(path, PathKind::File)],
            13,
        )
    };
    // The file was created later.
    assert!(open("/etc/new").is_some());
    // The file's own permissions deny the access.
    assert_eq!(open("/etc/sudoers"), None);
    assert_eq!(open("/usr/secret"), None);
}

#[test]
fn mounts_ports_processes_and_capabilities_are_told() {
    let rules = "    hardeningRules: [disallow-mount, disallow-access-procfs-root]\n    bpfRawRules:\n      \
                 network:\n        egress:\n          toDestinations:\n          \
                 - {qualifiers: [deny], cidr: 0.0.0.0/0, ports: [{port: 25}]}\n";
    let classifier = classifier("Landlock", rules, &ALL);
    let any = |call, errno| classify(&classifier, call, [0; 6], &[], errno);
    assert_eq!(
        any(Syscall::MOUNT, 1).as_deref(),
        Some("Landlock disallow-mount")
    );
    assert_eq!(any(Syscall::MOUNT, 16), None);
    assert_eq!(
        any(Syscall::PTRACE, 1).as_deref(),
        Some("Landlock disallow-access-procfs-root")
    );
    let outside = [named("/proc/1/root", PathKind::Unknown)];
    assert!(classify(&classifier, Syscall::READLINKAT, [0; 6], &outside, 13).is_some());
    let connect = |port| {
        let attempt = Attempt {
            call: Syscall::CONNECT,
            args: [0; 6],
            errno: EACCES,
            paths: &[],
            port: Some(port),
            is_root: false,
            lacked: Capabilities::default(),
            is_one_mount: Some(true),
        };
        classifier.classify(&attempt).is_some()
    };
    assert_eq!((connect(25), connect(26)), (true, false));
}

#[test]
fn a_capability_is_missed_by_who_would_have_it() {
    let classifier = classifier(
        "Caps",
        "    hardeningRules: [disable-cap-net-bind-service]\n",
        &ALL,
    );
    let bind_lacking = |is_root, errno, lacked| {
        let attempt = Attempt {
            call: Syscall::BIND,
            args: [0; 6],
            errno: Errno(errno),
            paths: &[],
            port: None,
            is_root,
            lacked,
            is_one_mount: Some(true),
        };
        classifier.classify(&attempt).is_some()
    };
    let bind = |is_root, errno| bind_lacking(is_root, errno, Capabilities::default());
    assert!(!bind_lacking(true, 13, Capabilities::ALL));
    assert!(bind(true, 13));
    assert!(!bind(true, 98));
    assert!(!bind(false, 13));
}

#[test]
fn what_is_not_told_is_said() {
    let words = misses(Capabilities(1 << 12));
    assert_eq!(words.len(), 1);
    assert!(
        words.iter().all(|text| text.contains("netlink")),
        "{words:?}"
    );
    assert!(misses(Capabilities(1)).is_empty());
}
