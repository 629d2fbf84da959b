//! Results of rules on chosen events.

use abi::Syscall;
use abi::constant::O_TRUNC;
use event::{Containment, Plan, Relevance, Stage, StdioWatch};
use rules::synthetic_event::{SyntheticEvent, UnsetFields};
use rules::trace::Tracer;
use rules::{AlertValue, AppendOutput, Code, EngineOptions, ExtraField, Priority, RuleMatching};

use crate::case::Case;
use crate::engine::{all_matching, conclude, engine, load, rule_text, try_engine, weigh};

const O_WRONLY: u64 = abi::constant::O_WRONLY.u64();

fn open(path: &str, flags: u64) -> Case {
    let mut case = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, flags, 0, 0, 0]);
    case.text = Some(path.as_bytes().to_vec());
    case.result = Some(3);
    case
}

fn rule(name: &str, condition: &str, output: &str) -> String {
    rule_text(name, condition).replace("output: matched", &format!("output: '{output}'"))
}

#[test]
fn a_match_becomes_an_alert_with_text_and_typed_fields() {
    let text = rule(
        "Write below etc",
        "evt.type = openat and evt.is_open_write = true and fd.name startswith /etc",
        "*file=%fd.name by %proc.name (%5evt.type|%toupper(proc.pname)) fd=%fd.num %proc.aname[7]",
    ) + "  tags: [b, a]\n";
    let (engine, kept) = engine(
        &text,
        &EngineOptions {
            clock: || 42,
            ..EngineOptions::default()
        },
    );
    let undecided = conclude(&engine, &open("/etc/passwd", O_WRONLY), Stage::Exit);
    assert!(undecided.is_empty());
    let alerts = kept.take();
    assert_eq!(alerts.len(), 1);
    let alert = &alerts[0];
    assert_eq!(
        alert.message,
        "file=/etc/passwd by cat (opena|BASH) fd=3 <NA>"
    );
    assert_eq!(&*alert.rule, "Write below etc");
    assert_eq!(alert.priority, Priority::Warning);
    assert_eq!(&*alert.source, "syscall");
    assert_eq!(*alert.tags, ["a", "b"]);
    assert_eq!(&*alert.hostname, "test-host");
    assert_eq!(
        (alert.time_ns, alert.made_ns),
        (1_700_000_000_123_456_789, 42)
    );
    let fields: Vec<(&str, AlertValue)> = alert
        .fields
        .iter()
        .map(|(name, value)| (&**name, value.clone()))
        .collect();
    assert_eq!(
        fields,
        [
            ("fd.name", AlertValue::Text("/etc/passwd".to_owned())),
            ("proc.name", AlertValue::Text("cat".to_owned())),
            ("evt.type", AlertValue::Text("openat".to_owned())),
            ("proc.pname", AlertValue::Text("bash".to_owned())),
            ("fd.num", AlertValue::Int(3)),
            ("proc.aname[7]", AlertValue::Absent),
        ]
    );
    assert_eq!(
        engine.matches().collect::<Vec<_>>(),
        [("Write below etc", 1)]
    );
    assert_eq!(engine.concluded(), 1);
}

#[test]
fn the_first_rule_in_load_order_matches_unless_all_are_asked_for() {
    let text = rule_text("first", "evt.type = openat") + &rule_text("second", "evt.type = openat");
    for (rule_matching, expected) in [
        (RuleMatching::First, &["first"][..]),
        (RuleMatching::All, &["first", "second"]),
    ] {
        let (engine, kept) = engine(
            &text,
            &EngineOptions {
                rule_matching,
                ..EngineOptions::default()
            },
        );
        conclude(&engine, &open("/x", 0), Stage::Exit);
        let names: Vec<String> = kept
            .take()
            .iter()
            .map(|alert| alert.rule.to_string())
            .collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn rules_below_the_priority_and_disabled_rules_are_not_evaluated() {
    let text = rule_text("low", "evt.type = openat").replace("WARNING", "DEBUG")
        + &rule_text("off", "evt.type = openat")
        + "  enabled: false\n";
    let options = EngineOptions {
        priority: Priority::Notice,
        ..EngineOptions::default()
    };
    let (engine, _) = engine(&text, &options);
    assert_eq!(engine.matches().count(), 0);
    assert_eq!(
        weigh(&engine, &open("/x", 0), Stage::Exit),
        Relevance::Reject
    );
}

#[test]
fn a_match_waits_for_what_its_output_prints() {
    let condition = "evt.type = openat and fd.name = /etc/shadow";
    let case = open("/etc/shadow", 0);
    let (plain, _) = engine(&rule("r", condition, "%proc.name"), &all_matching());
    assert_eq!(weigh(&plain, &case, Stage::Strings), Relevance::Undecided);
    assert_eq!(weigh(&plain, &case, Stage::Entry), Relevance::Settled);
    let (result, _) = engine(&rule("r", condition, "%evt.res"), &all_matching());
    assert_eq!(weigh(&result, &case, Stage::Entry), Relevance::Undecided);
    assert_eq!(weigh(&result, &case, Stage::Exit), Relevance::Settled);
    assert_eq!(
        weigh(&result, &open("/tmp/x", 0), Stage::Strings),
        Relevance::Reject
    );
}

#[test]
fn what_cannot_be_read_stays_undecided_and_is_counted() {
    let text = rule_text("r", "evt.type = openat and fd.name = /etc/shadow");
    let (engine, kept) = engine(&text, &all_matching());
    let mut case = open("/etc/shadow", 0);
    case.text = None;
    assert_eq!(weigh(&engine, &case, Stage::Exit), Relevance::Undecided);
    assert_eq!(conclude(&engine, &case, Stage::Exit), ["r".into()]);
    assert!(kept.take().is_empty());
}

#[test]
fn an_unknown_container_is_not_the_host() {
    let (engine, kept) = engine(
        &rule_text("r", "evt.type = openat and container.id != host"),
        &all_matching(),
    );
    let mut case = open("/x", 0);
    for (containment, alerts) in [
        (Containment::Host, 0),
        (Containment::Known, 1),
        (Containment::Unknown, 1),
    ] {
        case.containment = containment;
        conclude(&engine, &case, Stage::Exit);
        assert_eq!(kept.take().len(), alerts, "{containment:?}");
    }
}

#[test]
fn outputs_are_appended_where_they_apply() {
    let text = rule("r", "evt.type = openat", "base") + "  tags: [x, y]\n";
    let append = AppendOutput {
        tags: ["x".to_owned()].into(),
        source: Some("syscall".to_owned()),
        extra_output: Some("by %proc.name".to_owned()),
        extra_fields: vec![
            ExtraField::Field("proc.pname".to_owned()),
            ExtraField::Formatted {
                name: "who".to_owned(),
                format: "%user.name!".to_owned(),
            },
        ],
        ..AppendOutput::default()
    };
    let other = AppendOutput {
        rule: Some("another".to_owned()),
        extra_output: Some("never".to_owned()),
        ..AppendOutput::default()
    };
    let options = EngineOptions {
        append_output: vec![append, other],
        ..all_matching()
    };
    let (engine, kept) = engine(&text, &options);
    conclude(&engine, &open("/x", 0), Stage::Exit);
    let alert = kept.take().remove(0);
    assert_eq!(alert.message, "base by cat");
    let names: Vec<&str> = alert.fields.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["proc.name", "proc.pname", "who"]);
    assert_eq!(alert.fields[2].1, AlertValue::Text("daemon!".to_owned()));
}

/// Position of a problem, its rule, and part of the message and of the help.
const PROBLEMS: &[(&str, &str, &str, &str)] = &[
    ("3:26", "rule a", "no such event type: `opne`", "open"),
    ("3:35", "rule a", "proc.nme", "proc.name"),
    (
        "3:59",
        "rule a",
        "`contains` does not apply to `fd.num`, which is a number",
        "use one of",
    ),
    ("8:44", "rule b", "`10.0.0` is not an IP address", ""),
    ("8:65", "rule b", "`10.0.0.1` is not a network", ""),
    (
        "13:51",
        "rule c",
        "`proc.name` is a text and `fd.num` is a number",
        "",
    ),
    ("18:44", "rule d", "`three` is not a number", ""),
    ("18:70", "rule d", "is not a regular expression", ""),
    ("23:54", "rule e", "`yes` is neither `true` nor `false`", ""),
    ("29:", "rule f", "proc.nme", "proc.name"),
    (
        "29:",
        "rule f",
        "the output ends with `%`",
        "leave the `%` out",
    ),
];

#[test]
fn all_problems_of_all_rules_are_reported_with_place_and_help() {
    let text = rule_text(
        "a",
        "evt.type = opne and proc.nme = x and fd.num contains 3",
    ) + &rule_text(
        "b",
        "evt.type = open and fd.sip = 10.0.0 and fd.snet = 10.0.0.1",
    ) + &rule_text("c", "evt.type = open and proc.name = val(fd.num)")
        + &rule_text(
            "d",
            "evt.type = open and fd.num = three and proc.name regex \"a(\"",
        )
        + &rule_text("e", "evt.type = open and evt.is_open_read = yes")
        + &rule("f", "evt.type = open", "%proc.nme and %")
        + &rule_text("ok", "evt.type = open");
    let (engine, _, diagnostics) = try_engine(&text, &all_matching());
    let shown: Vec<String> = diagnostics
        .iter()
        .filter(|found| found.is_error())
        .map(|found| {
            format!(
                "{} {} {} | {}",
                found.location,
                found.context,
                found.message,
                found.help.as_deref().unwrap_or("")
            )
        })
        .collect();
    for (place, rule, message, help) in PROBLEMS {
        let found = shown.iter().any(|line| {
            line.contains(&format!("test.yaml:{place}"))
                && line.contains(rule)
                && line.contains(message)
                && line.contains(help)
        });
        assert!(found, "{place} {message}\n{shown:#?}");
    }
    assert_eq!(shown.len(), PROBLEMS.len(), "{shown:#?}");
    assert!(
        diagnostics
            .iter()
            .any(|found| found.code == Code::CompileOutput)
    );
    assert_eq!(engine.matches().collect::<Vec<_>>(), [("ok", 0)]);
}

#[test]
fn unknown_fields_are_forgiven_where_the_rule_says_so() {
    let skip = "  skip-if-unknown-filter: true\n";
    let text = rule_text("a", "evt.type = open and ka.verb = x")
        + skip
        + &rule_text("b", "evt.type = open and ka.verb = x and fd.num contains 3")
        + skip;
    let (engine, _, diagnostics) = try_engine(&text, &all_matching());
    let codes: Vec<(&str, Code)> = diagnostics
        .iter()
        .map(|found| (found.context.as_str(), found.code))
        .collect();
    assert!(codes.contains(&("rule a", Code::UnknownFilter)));
    assert!(codes.contains(&("rule b", Code::CompileCondition)));
    assert_eq!(engine.matches().count(), 0);
}

#[test]
fn doubtful_conditions_are_warned_about() {
    let text = rule_text("a", "proc.name = x") // nearly every type of event
        + &rule_text("b", "evt.type = open and proc.name != \"<NA>\"")
        + &rule_text("c", "evt.type = open and proc.name = proc.pname")
        + &rule_text("d", "evt.type = read and proc.name = x");
    let (engine, _, diagnostics) = try_engine(&text, &all_matching());
    let has = |rule: &str, code| {
        diagnostics
            .iter()
            .any(|found| found.context == rule && found.code == code)
    };
    assert!(has("rule a", Code::NoEvtType));
    assert!(!has("rule a", Code::AppendNoEvtType));
    // Falco warns about this for fields of Kubernetes audit events alone.
    assert!(!has("rule b", Code::UnsafeNaCheck));
    assert!(has("rule c", Code::ConditionWarning));
    assert!(
        diagnostics.iter().all(|found| !found.is_error()),
        "{diagnostics:#?}"
    );
    let (_, warnings) = engine.plan();
    assert!(warnings.iter().any(|found| {
        found.context == "rule d" && found.message.contains("the rule needs every read")
    }));
}

#[test]
fn what_is_appended_can_take_the_restriction_on_events_away() {
    let base = rule_text("a", "evt.type = open and proc.name = x") + "  tags: [t]\n";
    let append = |condition: &str| {
        format!("{base}- rule: a\n  condition: {condition}\n  override:\n    condition: append\n")
    };
    let codes = |text: &str| {
        let (_, _, diagnostics) = try_engine(text, &all_matching());
        let of_events = [Code::NoEvtType, Code::AppendNoEvtType];
        let found = diagnostics
            .into_iter()
            .filter(|found| of_events.contains(&found.code));
        found
            .map(|found| (found.code, found.location.line))
            .collect::<Vec<_>>()
    };
    let expected = [(Code::NoEvtType, 1), (Code::AppendNoEvtType, 8)];
    assert_eq!(codes(&append("or proc.name = y")), expected);
    assert_eq!(
        codes(&append("or (evt.type = connect and proc.name = y)")),
        []
    );
    assert_eq!(codes(&append("and proc.name = y")), []);
}

#[test]
fn fields_of_other_sources_are_not_compared_with_what_a_missing_value_is_printed_as() {
    for (condition, is_warned_about) in [
        ("jevt.value[/x] = <NA>", true),
        ("ka.verb in (get, <NA>)", true),
        ("ka.verb = get", false),
        ("ka.verb exists", false),
    ] {
        let text = rule_text("a", condition) + "  skip-if-unknown-filter: true\n";
        let (_, _, diagnostics) = try_engine(&text, &all_matching());
        let has = |code| diagnostics.iter().any(|found| found.code == code);
        assert_eq!(has(Code::UnsafeNaCheck), is_warned_about, "{condition}");
        assert!(has(Code::UnknownFilter), "{condition}: {diagnostics:?}");
    }
}

/// Found by fuzzing.
#[test]
fn an_event_that_a_rule_cannot_match_is_explained() {
    let ruleset = load(&rule_text("a", "evt.type in (init_module, finit_module)"));
    let rule = ruleset.rule("a").expect("it is there");
    for others in [UnsetFields::Absent, UnsetFields::Unknown] {
        let close = SyntheticEvent::new("close", others).expect("a known type");
        let clause = Tracer::new(&ruleset, rule).explain_given(&close);
        assert_eq!(clause.holds, Some(false));
        let value = AlertValue::Text("close".to_owned());
        assert_eq!(clause.values, [("evt.type".to_owned(), Some(value))]);
    }
}

#[test]
fn the_plan_keeps_what_registers_can_decide() {
    let text = rule_text(
        "truncate",
        "evt.type in (open, openat) and evt.is_open_write = true and evt.arg.flags contains O_TRUNC \
         and proc.name != tar",
    ) + &rule_text(
        "packet",
        "evt.type = socket and evt.arg.domain contains AF_PACKET",
    );
    let (engine, _) = engine(&text, &all_matching());
    let (plan, _) = engine.plan_for_rules();
    let names: Vec<&str> = plan.calls.keys().map(|call| call.name()).collect();
    assert_eq!(names, ["open", "openat", "socket"]);
    let openat = &plan.calls[&Syscall::OPENAT];
    let passes = |flags: u64| {
        let registers = [0, 0, flags, 0, 0, 0];
        openat
            .any_of
            .iter()
            .any(|group| group.iter().all(|test| test.holds(&registers)))
    };
    assert!(passes(O_WRONLY | O_TRUNC.u64()) && passes(2 | O_TRUNC.u64()));
    assert!(!passes(O_WRONLY) && !passes(O_TRUNC.u64()) && !passes(3 | O_TRUNC.u64()));
    assert!(!openat.strings);
    let explained = engine.explain(&plan);
    let socket = explained
        .calls
        .iter()
        .find(|call| call.call == Syscall::SOCKET)
        .unwrap();
    assert_eq!(socket.rules, ["packet"]);
    assert_eq!(socket.predicate.len(), 1);
    assert!(
        socket.predicate[0].ends_with("= 17"),
        "{:?}",
        socket.predicate
    );
    let truncate = &explained.rules[0];
    assert_eq!(truncate.kinds, ["open", "openat"]);
    assert!(
        truncate
            .atoms
            .contains(&(Stage::Entry, "proc.name != tar".to_owned()))
    );
}

#[test]
fn the_plan_names_all_that_names_are_compared_with() {
    let text = rule_text(
        "r",
        "evt.type = open and not proc.name in (sshd, \"a name of more than 15\") and proc.pname != cron \
         and (proc.aname[2] = init or proc.sname in (login, su) or proc.name startswith runc) \
         and fd.name != bash and proc.exepath != sudo",
    );
    let (engine, _) = engine(&text, &all_matching());
    let (plan, _) = engine.plan();
    let names: Vec<_> = plan
        .names
        .iter()
        .map(|name| String::from_utf8_lossy(name))
        .collect();
    assert_eq!(names, ["cron", "init", "login", "sshd", "su"]);
}

#[test]
fn plain_dup_is_not_planned_for_standard_descriptors() {
    let text = rule_text(
        "redirect",
        "evt.type in (dup, dup2, dup3) and evt.rawres in (0, 1, 2)",
    );
    let (engine, _) = engine(&text, &all_matching());
    let (plan, warnings) = engine.plan();
    assert_eq!(plan.stdio, StdioWatch::Any);
    assert!(warnings.is_empty(), "{warnings:#?}");
    assert!(!plan.calls.contains_key(&Syscall::DUP));
    let passes = |call: Syscall, first: u64, second: u64, third: u64| {
        let registers = [first, second, third, 0, 0, 0];
        plan.calls[&call]
            .any_of
            .iter()
            .any(|group| group.iter().all(|test| test.holds(&registers)))
    };
    assert!(passes(Syscall::DUP2, 7, 2, 0) && !passes(Syscall::DUP2, 7, 3, 0));
    assert!(!passes(Syscall::DUP3, 7, 0xffff_ffff, 0));
    assert!(passes(Syscall::CLOSE, 2, 0, 0) && !passes(Syscall::CLOSE, 3, 0, 0));
    assert!(passes(Syscall::CLOSE_RANGE, 0, 9, 0) && !passes(Syscall::CLOSE_RANGE, 3, 9, 0));
    assert!(passes(Syscall::FCNTL, 1, 2, 1) && !passes(Syscall::FCNTL, 1, 2, 0));
    assert!(!passes(Syscall::FCNTL, 1, 1, 1));
    assert!(passes(Syscall::IOCTL, 1, 0x5451, 0) && !passes(Syscall::IOCTL, 3, 0x5451, 0));
    let (own, _) = engine.plan_for_rules();
    assert!(!own.calls.contains_key(&Syscall::SOCKET));
    // An engine that sees each of them looks at the result.
    let [asked] = &plan.interests[&Syscall::DUP][..] else {
        panic!("{:?}", plan.interests[&Syscall::DUP]);
    };
    assert_eq!(asked.results, Some([0, 1, 2].into()));
    assert!(asked.succeeded && !asked.failed);
}

#[test]
fn a_dup_that_has_to_be_of_a_socket_matters_only_to_processes_that_make_one() {
    for (condition, expected) in [
        ("fd.type in (ipv4, ipv6)", StdioWatch::Sockets),
        ("fd.typechar = 4", StdioWatch::Sockets),
        (
            "fd.sip = 10.0.0.1 or fd.sockfamily = unix",
            StdioWatch::Sockets,
        ),
        (
            "fd.connected = true and not fd.type = pipe",
            StdioWatch::Sockets,
        ),
        ("fd.type in (ipv4, pipe)", StdioWatch::Any),
        ("not fd.type = file", StdioWatch::Any),
        ("fd.sip = 10.0.0.1 or proc.name = nc", StdioWatch::Any),
        ("fd.name startswith /dev", StdioWatch::Any),
    ] {
        let condition = format!("evt.type = dup and evt.rawres in (0, 1, 2) and ({condition})");
        let (engine, _) = engine(&rule_text("redirect", &condition), &all_matching());
        let (plan, _) = engine.plan_for_rules();
        assert_eq!(plan.stdio, expected, "{condition}");
        for call in [Syscall::SOCKET, Syscall::SOCKETPAIR] {
            let planned = plan.calls.contains_key(&call);
            assert_eq!(
                planned,
                expected == StdioWatch::Sockets,
                "{condition}: {call}"
            );
        }
    }
}

/// An engine that sees the result of every `dup` needs no `socket` to recognise descriptor 0, 1 or 2.
#[test]
fn an_engine_that_sees_results_keeps_no_state_for_dup() {
    let rules = [
        rule_text(
            "redirect",
            "evt.type = dup and evt.rawres = 0 and fd.type = ipv4",
        ),
        rule_text(
            "packet",
            "evt.type = socket and evt.arg.domain contains AF_PACKET",
        ),
    ];
    let (engine, _) = engine(&rules.concat(), &all_matching());
    let passes = |plan: &Plan, domain: u64| {
        let registers = [domain, 1, 0, 0, 0, 0];
        let groups = &plan.calls[&Syscall::SOCKET].any_of;
        let holds =
            |group: &Vec<abi::RegisterTest>| group.iter().all(|test| test.holds(&registers));
        groups.iter().any(holds)
    };
    let plan = engine.plan_for_results();
    assert!(passes(&plan, 17) && !passes(&plan, 2));
    assert_eq!(plan.interests[&Syscall::SOCKET].len(), 1);
    assert!(!plan.calls.contains_key(&Syscall::CLOSE));
    let (with_state, _) = engine.plan_for_rules();
    assert!(passes(&with_state, 2), "others keep track of sockets");
}

/// A rule does not need errors that it does not list; parts that are not understood need all of them.
#[test]
fn a_rule_on_errors_asks_for_these_alone() {
    for (condition, errors) in [
        ("evt.rawres >= 0 or evt.res = EINPROGRESS", Some(vec![115])),
        ("evt.res in (EACCES, EPERM)", Some(vec![1, 13])),
        ("evt.rawres = -2", Some(vec![2])),
        ("evt.res = SUCCESS", Some(vec![])),
        ("evt.res in (SUCCESS, ENOENT)", Some(vec![2])),
        ("evt.rawres in (-13, 3)", Some(vec![13])),
        ("evt.failed = false", Some(vec![])),
        ("evt.res != SUCCESS", None),
        ("not evt.res = ENOENT", None),
        ("evt.res startswith E", None),
        ("evt.res = ENOSUCHERROR", None),
        ("evt.rawres < 0", None),
        ("evt.rawres = -2 or proc.name = x", None),
    ] {
        let condition = format!("evt.type = connect and ({condition})");
        let (engine, _) = engine(&rule_text("r", &condition), &all_matching());
        let plan = engine.plan_for_results();
        let [asked] = &plan.interests[&Syscall::CONNECT][..] else {
            panic!("{condition}: {:?}", plan.interests);
        };
        let errors = errors.map(|errors| errors.into_iter().collect());
        // One that asks for success alone takes none whatever the errors.
        let found = asked
            .errors
            .clone()
            .or((!asked.failed).then(Default::default));
        assert_eq!(found, errors, "{condition}");
    }
}

#[test]
fn a_rule_that_needs_every_dup_gets_it_and_a_warning() {
    let (engine, _) = engine(
        &rule_text("r", "evt.type = dup and fd.num >= 0"),
        &all_matching(),
    );
    let (plan, warnings) = engine.plan();
    assert_eq!(plan.stdio, StdioWatch::Off);
    assert!(plan.calls[&Syscall::DUP].any_of.iter().any(Vec::is_empty));
    assert!(
        warnings
            .iter()
            .any(|found| found.message.contains("every dup"))
    );
}

#[test]
fn the_plan_holds_the_floor_and_state_calls() {
    let (engine, _) = engine(&rule_text("r", "evt.type = openat"), &all_matching());
    let (plan, _) = engine.plan();
    for trap in abi::FLOOR.iter().chain(abi::STATE) {
        assert!(plan.calls.contains_key(&trap.call), "{}", trap.call);
    }
    assert_eq!(plan.calls[&Syscall::EXECVE].result, event::Need::Always);
}
