//! The same rules under gVisor as under runc: calls of every kind, made by a program that says what a watcher
//! must have seen of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use e2e::account::{CONNECTS, EXECS, Family, Line, OPENS, VARIOUS};
use e2e::runtime_fixture::{RuntimeFixture, fields, runsc, watching_sandboxes};
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
        "the failure is reported without its error, which gVisor does not give",
    ),
    (
        "execveat",
        "a program that is executed by a descriptor has its number as name",
    ),
    ("link", BY_REGISTERS),
    ("linkat", BY_REGISTERS),
    (
        "openat",
        "a path that is not UTF-8 does not fit into a message: the call is not reported",
    ),
    ("openat2", BY_REGISTERS),
    ("symlink", BY_REGISTERS),
    ("symlinkat", BY_REGISTERS),
];
const BY_REGISTERS: &str = "reported by registers: the call and its result, without the path";

/// How sandboxes are made.
const OPTIONS: &str = "--network=none --ignore-cgroups --platform=systrap";
/// Waits for a file.
const FUNCTIONS: &str = r#"
await_file() { for try in $(seq 600); do test ! -e "$1" || return 0; sleep 0.05; done; exit 95; }
"#;
const RULES: &str = r#"
- rule: Program
  desc: every program
  condition: evt.type in (execve, execveat)
  output: program %proc.name (id=%container.id)
  priority: INFO

- rule: Secret opened
  desc: what only the container's own programs open
  condition: evt.type in (open, openat, openat2) and fd.name = /etc/secret
  output: opened %fd.name (id=%container.id program=%proc.name line=%proc.cmdline)
  priority: INFO
"#;

/// The runtime; ends a test without one.
macro_rules! need_runsc {
    () => {{
        need_root!();
        let Some(runsc) = runsc() else {
            skip!("needs runsc", || Ok(
                "TOLLGATE_TEST_RUNSC names none, and it is in no folder of PATH".to_owned()
            ));
        };
        runsc
    }};
}

/// Calls made, and of those how many were told exactly: under runc, under gVisor.
type Table = BTreeMap<String, [usize; 3]>;

/// Runs the program in a container; gives its account, and the alerts.
fn run(family: &Family, sandbox: Option<&str>) -> (Finished, String, Vec<Alert>) {
    let ground = RuntimeFixture::new();
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
bin/tollgate-runtime --runtime {runsc} --root $PWD/gvisor {OPTIONS} run --bundle b $ID < /dev/null"
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
    let runsc = need_runsc!();
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
        "| call | made | reported exactly under runc | under gVisor | |\n|---|---|---|---|---|\n",
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

#[test]
fn a_sandbox_that_runs_already_is_watched_by_a_session_that_is_made_for_it() {
    let runsc = need_runsc!();
    let ground = RuntimeFixture::new();
    ground.scratch.file("rules.yaml", 0o644, RULES);
    ground.bundle(
        "b",
        "cat /etc/secret; touch /out/before; until test -e /out/go; do sleep 0.1; done
read line < /etc/secret; cat /etc/secret; touch /out/done; exec sleep 1000",
    );
    let (finished, alerts) = ground.run(
        "runc",
        &watching_sandboxes(
            "rules.yaml",
            &format!(
                r#"
runsc="{runsc} --root $PWD/gvisor {OPTIONS}"
{FUNCTIONS}
mkdir gvisor
$runsc run --detach --bundle b $ID < /dev/null > said.txt 2>&1
await_file out/before
$runsc trace create --config session.json $ID
touch out/go
await_file out/done
$runsc trace list $ID > sessions.txt
grep -q 'dropped: 0' sessions.txt
$runsc delete --force $ID
"#
            ),
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let opened = |field: &str| fields(&alerts, "Secret opened", field);
    // What was opened before the session nobody has told.
    assert_eq!(opened("proc.name"), ["sh", "cat"], "{alerts:?}");
    assert_eq!(opened("container.id"), [&*ground.id; 2], "{alerts:?}");
    // The shell is known from its message, and its command line by nobody.
    assert_eq!(opened("proc.cmdline"), ["<NA>", "cat /etc/secret"]);
}

#[test]
fn what_somebody_elses_session_leaves_out_is_named_and_not_told() {
    let runsc = need_runsc!();
    let ground = RuntimeFixture::new();
    ground.scratch.file("rules.yaml", 0o644, RULES);
    ground.bundle("b", "cat /etc/secret");
    let (finished, alerts) = ground.run(
        "runc",
        &format!(
            r#"
ln bin/tollgate-runtime bin/falco
cat > falco.yaml << END
watch_config_files: false
log_stderr: true
log_syslog: false
json_output: true
stdout_output: {{enabled: false}}
file_output: {{enabled: true, filename: $PWD/alerts}}
END
bin/falco -c falco.yaml -r rules.yaml --gvisor-generate-config="$PWD/sink" > whole.json
python3 -c 'import json, sys
session = json.load(open("whole.json"))
inner = session["trace_session"]
inner["points"] = [point for point in inner["points"] if point["name"] != "syscall/openat/exit"]
json.dump(session, open("less.json", "w"))'
for session in whole less; do
    mkdir $session
    bin/falco -c falco.yaml -r rules.yaml -g $session.json > $session.txt 2>&1 & watch=$!
    for try in $(seq 200); do test ! -S sink || break; sleep 0.05; done
    {runsc} --root $PWD/$session {OPTIONS} --pod-init-config $session.json run --bundle b $ID-$session < /dev/null
    sleep 0.5
    kill -TERM $watch; wait $watch
    grep -q 'does not list.*: syscall/openat/exit;' $session.txt && echo "$session: told" || echo "$session: not told"
done
"#
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let expected = "secret\nwhole: not told\nsecret\nless: told\n";
    assert_eq!(finished.stdout, expected, "{finished:?}");
    let ids = |rule: &str| fields(&alerts, rule, "container.id");
    let id = |session: &str| format!("{}-{session}", ground.id);
    assert_eq!(ids("Secret opened"), [id("whole")], "{alerts:?}");
    assert!(ids("Program").contains(&id("less")), "{alerts:?}");
}
