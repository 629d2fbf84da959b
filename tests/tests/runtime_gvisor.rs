//! The same rules under gVisor as under runc: calls of every kind, made by a program that says what a watcher
//! must have seen of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use e2e::account::{CONNECTS, EXECS, Family, Line, OPENS, VARIOUS};
use e2e::ground::{Ground, runsc, watching_sandboxes};
use e2e::{Alert, BLACKHOLE_ADDRESS, Finished, Fixture, need_root, need_runtime, repository, skip};

const FAMILIES: [Family; 4] = [OPENS, EXECS, CONNECTS, VARIOUS];
/// The table of this page is what this test sees.
const PAGE: &str = "docs/howto/watch-gvisor.md";
const BEGIN: &str = "<!-- calls: begin -->\n";
const END: &str = "<!-- calls: end -->\n";
/// Why an alert says less under gVisor.
const LESS: &[(&str, &str)] = &[
    (
        "execve",
        "that it failed is told, and not why: gVisor gives no error there",
    ),
    (
        "execveat",
        "a program that is executed by a descriptor is called by its number",
    ),
    ("link", BY_REGISTERS),
    ("linkat", BY_REGISTERS),
    (
        "openat",
        "a path that is no UTF-8 cannot be put into a message: the call is not told at all",
    ),
    ("openat2", BY_REGISTERS),
    ("symlink", BY_REGISTERS),
    ("symlinkat", BY_REGISTERS),
];
const BY_REGISTERS: &str = "told by its registers: that it was made and its result, and no path";

/// Calls made, and of those how many were told exactly: under runc, under gVisor.
type Table = BTreeMap<String, [usize; 3]>;

/// Runs the program in a container; gives its account, and the alerts.
fn run(family: &Family, sandbox: Option<&str>) -> (Finished, String, Vec<Alert>) {
    let ground = Ground::new();
    let session = ground.scratch.path().join("session.json");
    let setting = format!("runtime: {{gvisor_session: {}}}\n", session.display());
    let ground = ground.settings(&setting);
    let calls = Fixture::compile("calls");
    ground.scratch.program(calls.program(), "rootfs/bin/calls");
    let rules = family.rule(pid(sandbox.is_some()));
    ground.scratch.file("rules.yaml", 0o644, rules);
    let name = family.name;
    ground.bundle(
        "b",
        &format!("cd /tmp && exec /bin/calls /out/account {name} {BLACKHOLE_ADDRESS}"),
    );
    let (finished, alerts) = match sandbox {
        None => ground.run("runc", "rt run --bundle b $ID < /dev/null"),
        Some(runsc) => ground.run(
            "runc",
            &watching_sandboxes(
                "rules.yaml",
                &format!(
                    "mkdir gvisor
bin/tollgate-runtime --runtime {runsc} --root $PWD/gvisor --network=none --ignore-cgroups \
    --platform=systrap run --bundle b $ID < /dev/null"
                ),
            ),
        ),
    };
    assert_eq!(finished.code(), 0, "{finished:?}");
    let account = ground.scratch.path().join("out/account");
    let account = std::fs::read_to_string(account).expect("the program wrote it");
    (finished, account, alerts)
}

/// Pids of a sandbox are those that its programs see.
fn pid(is_sandbox: bool) -> &'static str {
    if is_sandbox { "proc.pid" } else { "proc.vpid" }
}

#[test]
fn calls_under_gvisor_give_the_alerts_of_runc_as_far_as_gvisor_tells_them() {
    need_root!();
    let Some(runsc) = runsc() else {
        skip!("needs runsc", || Ok(
            "TOLLGATE_TEST_RUNSC names none, and it is in no folder of PATH".to_owned()
        ));
    };
    need_runtime!("runc");
    let mut table = Table::new();
    let mut differences = String::new();
    for family in &FAMILIES {
        for sandbox in [None, Some(&*runsc)] {
            let (finished, account, alerts) = run(family, sandbox);
            let lines = Line::all(&account);
            assert!(lines.len() > 7, "{account}");
            let column = usize::from(sandbox.is_some());
            if column == 1 {
                let last = finished.stdout.lines().last().unwrap_or_default();
                let stats: serde_json::Value = serde_json::from_str(last).expect("it is JSON");
                assert_eq!(stats["cur"]["drops"], 0, "{stats}");
            }
            for line in &lines {
                let row = table.entry(line.call.clone()).or_default();
                row[0] += usize::from(column == 0);
                row[1 + column] += 1;
            }
            let compared = family.compare(&alerts, lines, "/out/account", pid(column == 1));
            if column == 0 {
                assert!(compared.is_exact(), "{compared}");
            } else {
                write!(differences, "{}: {compared}", family.name)
                    .expect("a text takes everything");
            }
            for (line, _) in &compared.missed {
                table.get_mut(&line.call).expect("it was counted")[1 + column] -= 1;
            }
        }
    }
    println!("{differences}");
    compare_with_page(&table);
}

fn compare_with_page(table: &Table) {
    let mut text = String::from(
        "| call | made | told exactly under runc | under gVisor | |\n|---|---|---|---|---|\n",
    );
    for (call, [made, runc, gvisor]) in table {
        let why = LESS.iter().find(|(known, _)| known == call);
        assert_eq!(why.is_some(), gvisor < made, "{call}: {gvisor} of {made}");
        let why = why.map_or("", |(_, why)| *why);
        writeln!(text, "| `{call}` | {made} | {runc} | {gvisor} | {why} |")
            .expect("a text takes everything");
    }
    let page = repository().join(PAGE);
    let old = std::fs::read_to_string(&page).expect("it is part of this");
    let (before, rest) = old.split_once(BEGIN).expect("the page has a place for it");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let new = format!("{before}{BEGIN}{text}{END}{after}");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&page, &new).expect("it is part of this");
    }
    let is = std::fs::read_to_string(&page).expect("it is part of this");
    assert_eq!(is, new, "BLESS=1 writes the table of {PAGE} anew");
}
