use super::*;

fn fields(values: &[(&str, &str)]) -> Vec<(Arc<str>, AlertValue)> {
    let value = |text: &str| match text {
        "true" => AlertValue::Bool(true),
        text => AlertValue::Text(text.to_owned()),
    };
    values
        .iter()
        .map(|(name, text)| (Arc::from(*name), value(text)))
        .collect()
}

fn actions(call: &str, values: &[(&str, &str)]) -> Vec<WorkloadAction> {
    objects(call, &fields(values), true)
}

#[test]
fn the_rule_about_calls_compiles_and_leaves_out_what_every_program_does() {
    let engine = rule_about_calls().unwrap();
    for (call, is_recorded) in [
        (Syscall::OPENAT, true),
        (Syscall::EXECVE, true),
        (Syscall::SOCKET, true),
        (Syscall::MOUNT, true),
        (Syscall::READ, false),
        (Syscall::FUTEX, false),
    ] {
        let kind = EventKind::of_syscall(call);
        assert_eq!(engine.concerns(kind), is_recorded, "{}", call.name());
    }
    let plan = engine.plan_for_results();
    assert!(plan.calls.contains_key(&Syscall::OPENAT));
    assert!(!plan.calls.contains_key(&Syscall::READ));
    for call in [Syscall::OPENAT, Syscall::CONNECT, Syscall::UNLINK] {
        assert!(has_objects(EventKind::of_syscall(call)), "{}", call.name());
    }
    assert!(!has_objects(EventKind::of_syscall(Syscall::EPOLL_WAIT)));
}

#[test]
fn a_call_becomes_what_it_did_to_its_file() {
    let file = |text: &str| text.to_owned();
    assert_eq!(
        actions(
            "openat",
            &[("fd.name", "/etc/a"), ("fs.path.name", "/etc/a")]
        ),
        [WorkloadAction::Read(file("/etc/a"))]
    );
    assert_eq!(
        actions(
            "openat",
            &[
                ("fd.name", "/srv/a"),
                ("evt.is_open_write", "true"),
                ("evt.is_open_create", "true")
            ]
        ),
        [
            WorkloadAction::Make(file("/srv/a")),
            WorkloadAction::Write(file("/srv/a"))
        ]
    );
    assert_eq!(
        actions("newfstatat", &[("fs.path.name", "/a")]),
        [WorkloadAction::Look(file("/a"))]
    );
    let renamed = [("evt.arg.oldpath", "/a/x"), ("evt.arg.newpath", "/a/y")];
    assert_eq!(actions("rename", &renamed).len(), 4);
    assert_eq!(actions("openat", &renamed), []);
    assert_eq!(actions("openat", &[("fd.name", "/tmp/#1 (deleted)")]), []);
    assert_eq!(actions("openat", &[("fd.name", "relative")]), []);
}

#[test]
fn a_script_is_executed_with_its_interpreter_and_a_failed_exec_with_none() {
    let values = [
        ("evt.arg.filename", "/bin/tool"),
        ("proc.exepath", "/bin/sh"),
    ];
    let expected = ["/bin/tool", "/bin/sh"].map(|path| WorkloadAction::Execute(path.to_owned()));
    assert_eq!(actions("execve", &values), expected);
    let failed = objects("execve", &fields(&values), false);
    assert_eq!(failed, expected[..1]);
}

#[test]
fn peers_are_addresses_or_paths() {
    let peer = [("fd.rip", "10.0.0.1"), ("fd.rport", "53"), ("fd.name", "x")];
    let expected = WorkloadAction::Contact("10.0.0.1".parse().unwrap(), 53);
    assert_eq!(actions("connect", &peer), [expected]);
    let local = [("fd.name", "0xffff->/run/s")];
    assert_eq!(
        actions("connect", &local),
        [WorkloadAction::ContactLocally("/run/s".to_owned())]
    );
    assert!(is_torn(&WorkloadAction::Read("/a\u{fffd}".to_owned())));
}
