use std::process::Command;

use rustix::fs::CWD;

use super::*;

fn facts(name: &str) -> Facts {
    Facts {
        pid: Pid(700),
        parent: Pid(600),
        is_own: false,
        is_kin: false,
        uid: Some(ROOT),
        program: Program::File {
            name: name.into(),
            is_of_host: true,
        },
    }
}

#[test]
fn each_protected_program_is_refused_unless_it_is_named() {
    for name in PROTECTED {
        let facts = facts(name);
        assert_eq!(decide(&facts, &[]), Err(Refusal::Protected(name)));
        let allowed = [(*name).to_owned()];
        assert_eq!(decide(&facts, &allowed), Ok(()), "{name}");
        let other = ["kubelet-other".to_owned()];
        assert_eq!(decide(&facts, &other), Err(Refusal::Protected(name)));
        let hidden = Facts {
            program: Program::Hidden {
                comm: name.bytes().take(15).collect(),
            },
            ..facts
        };
        assert!(
            matches!(decide(&hidden, &[]), Err(Refusal::Protected(_))),
            "{name}"
        );
        assert!(Refusal::Protected(name).to_string().contains(name));
    }
    assert_eq!(decide(&facts("cat"), &[]), Ok(()));
    let mut sorted = PROTECTED.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, PROTECTED);
}

#[test]
fn a_file_of_a_container_or_a_user_is_not_protected_by_its_name() {
    let program = Program::File {
        name: "sshd".into(),
        is_of_host: false,
    };
    let facts = Facts {
        program,
        ..facts("")
    };
    assert_eq!(decide(&facts, &[]), Ok(()));
}

/// A file's facts.
fn statx(path: &str) -> Statx {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS).unwrap()
}

#[test]
fn only_the_file_that_the_host_has_at_the_path_is_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["sshd", "python3"] {
        std::fs::write(path(name), name).unwrap();
    }
    std::os::unix::fs::symlink(path("python3"), path("link")).unwrap();
    let is_found = |name: &str, file: &Statx| {
        let path = path(name);
        is_found(CWD, Path::new("/"), Path::new(&path), file)
    };
    let mut file = statx(&path("sshd"));
    assert!(is_found("sshd", &file));
    // A user has mounted another program over it, in a mount namespace of his own.
    let other = statx(&path("python3"));
    assert!(!is_found("sshd", &other), "the folder's device is the same");
    assert!(
        !is_found("link", &other),
        "a running program's path has no link"
    );
    for name in ["missing", "sshd/sshd", "no/folder"] {
        assert!(!is_found(name, &other), "{name}");
    }
    // It was upgraded, and runs on.
    file.stx_nlink = 0;
    assert!(is_found("sshd", &file));
    file.stx_dev_minor += 1;
    assert!(!is_found("sshd", &file));
}

#[test]
fn a_protected_program_with_a_users_code_in_it_is_hit() {
    let of = |name: &str, uid| Facts { uid, ..facts(name) };
    let refused = |name| Err(Refusal::Protected(name));
    for uid in [Some(1), Some(33), Some(1000), Some(65534)] {
        assert_eq!(decide(&of("sshd", uid), &[]), Ok(()), "{uid:?}");
        assert_eq!(decide(&of("tollgate", uid), &[]), Ok(()), "{uid:?}");
        let hidden = Facts {
            program: Program::Hidden {
                comm: b"sshd".to_vec(),
            },
            ..of("", uid)
        };
        assert_eq!(decide(&hidden, &[]), Ok(()), "{uid:?}");
    }
    assert_eq!(decide(&of("sshd", None), &[]), refused("sshd"));
    assert_eq!(decide(&of("dbus-daemon", Some(1000)), &[]), Ok(()));
    for name in WITH_ACCOUNT {
        assert!(PROTECTED.contains(name));
        assert_eq!(decide(&of(name, Some(101)), &[]), refused(name));
    }
    let kin = Facts {
        is_kin: true,
        ..of("tollgate", Some(1000))
    };
    assert_eq!(decide(&kin, &[]), refused("tollgate"));
}

#[test]
fn this_program_is_own_only_of_root_or_a_relative() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let own = guard.own;
    let parent = proc.stat(own.0).unwrap().stat.ppid;
    let above = proc.stat(parent.0).unwrap().stat.ppid;
    let unrelated = Pid(i32::MAX);
    assert!(guard.is_kin(&proc, parent, above));
    assert!(guard.is_kin(&proc, unrelated, own));
    assert!(guard.is_kin(&proc, unrelated, parent));
    assert!(!guard.is_kin(&proc, unrelated, unrelated));
    for (uid, is_kin, expected) in [
        (Some(1000), false, false),
        (Some(33), false, false),
        (Some(1000), true, true),
        (Some(ROOT), false, true),
        (None, false, true),
    ] {
        assert_eq!(is_ours(uid, is_kin), expected, "{uid:?} {is_kin}");
    }
}

#[test]
fn init_own_processes_and_threads_of_the_kernel_are_never_hit() {
    let all: Vec<_> = PROTECTED.iter().map(|name| (*name).to_owned()).collect();
    for pid in [-1, 0, 1] {
        let init = Facts {
            pid: Pid(pid),
            ..facts("cat")
        };
        assert_eq!(decide(&init, &all), Err(Refusal::Init));
    }
    let own = Facts {
        is_own: true,
        ..facts("tollgate")
    };
    assert_eq!(decide(&own, &all), Err(Refusal::Own));
    let none = Program::None { has_ended: false };
    let thread = Facts {
        parent: Pid(2),
        program: none.clone(),
        ..facts("")
    };
    assert_eq!(decide(&thread, &all), Err(Refusal::Kernel));
    let unknown = Facts {
        program: none,
        ..facts("")
    };
    assert!(matches!(decide(&unknown, &all), Err(Refusal::Unknown(_))));
    let unknown = Facts {
        program: Program::Unknown("EIO".into()),
        ..facts("")
    };
    assert!(matches!(decide(&unknown, &all), Err(Refusal::Unknown(_))));
    let ended = Facts {
        program: Program::None { has_ended: true },
        ..facts("")
    };
    assert_eq!(decide(&ended, &[]), Ok(()));
}

#[test]
fn real_processes_are_told_apart() {
    let proc = Proc::open().unwrap();
    let guard = Guard::new(&proc);
    let check = |pid: u32| {
        let pid = Pid(i32::try_from(pid).unwrap());
        let bound = Bound::open(&proc, pid).unwrap();
        guard.check(&proc, &bound, &[])
    };
    assert_eq!(check(std::process::id()), Err(Refusal::Own));
    assert_eq!(check(1), Err(Refusal::Init));
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    assert_eq!(check(child.id()), Ok(()));
    child.kill().unwrap();
    child.wait().unwrap();
}
