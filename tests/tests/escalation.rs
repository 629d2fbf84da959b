//! Calls whose results are asked for: they return what they return unwatched, do what they do unwatched,
//! and are told once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use abi::{Arch, Syscall};
use e2e::{Alert, Engine, Fixture, Watch, WatchResult, need_root, skip};

/// What the program says of one call, or of the file that it was about.
type Account = Vec<String>;

fn account(printed: &str) -> Account {
    let lines = printed.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// The calls of an account and what came of them.
fn calls(account: &Account) -> Vec<(&str, &str)> {
    let lines = account.iter().filter(|line| !line.starts_with(' '));
    let calls = lines.filter_map(|line| line.split_once(' '));
    calls.filter(|(name, _)| *name != "pid").collect()
}

/// All but numbers of processes.
fn said(account: &Account) -> Vec<&String> {
    let lines = account.iter();
    lines.filter(|line| !line.starts_with("pid ")).collect()
}

fn is_said_alike(found: &Account, unwatched: &Account) {
    let (found, unwatched) = (said(found), said(unwatched));
    let differ = found
        .iter()
        .zip(&unwatched)
        .filter(|(one, other)| one != other);
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty(), "(watched, unwatched): {differ:?}");
    assert_eq!(found.len(), unwatched.len());
}

fn pid(account: &Account) -> &str {
    let pid = account.iter().find_map(|line| line.strip_prefix("pid "));
    pid.unwrap_or_else(|| panic!("no pid in {account:?}"))
}

/// Rules by which the result of every such call is asked for, of whatever process.
fn rules(names: impl IntoIterator<Item = &'static str>) -> String {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    format!(
        "\
- rule: Result
  desc: a call and what came of it
  condition: evt.type in ({}) and evt.rawres >= -4095
  output: result %evt.type %evt.rawres %proc.pid %proc.ppid %evt.args
  priority: INFO
",
        names.join(", ")
    )
}

fn event_name(call: &str) -> &'static str {
    let call = Syscall::from_name(call).unwrap_or_else(|| panic!("{call} is a call"));
    call.event_name()
}

/// Runs a script by itself and watched, with mounts and IPC objects of its own: a queue that `msgget` left by itself
/// would be found when watched. `%P` in it is the program that makes the calls, `%W` a folder.
fn both(script: &str, names: impl FnOnce(&Account) -> Vec<&'static str>) -> (Account, WatchResult) {
    let fixture = Fixture::compile("escalated");
    let watch = Watch::new(["true"]).limit(Duration::from_secs(120));
    let program = watch.scratch().program(fixture.program(), "escalated");
    let script = script.replace("%P", &program.display().to_string());
    let unwatched = run_by_itself(&script, watch.scratch().path());
    let names = names(&unwatched);
    let watched = watch
        .command(
            ["unshare", "-mi", "sh", "-ec"]
                .map(str::to_owned)
                .into_iter()
                .chain([script]),
        )
        .rules(&rules(names))
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    (unwatched, watched)
}

fn run_by_itself(script: &str, scratch: &Path) -> Account {
    let folder = scratch.join("unwatched");
    std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let script = script.replace("%W", &folder.display().to_string());
    let output = Command::new("unshare")
        .args(["-mi", "sh", "-ec", &script])
        .output()
        .expect("unshare is there");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {text}{errors}");
    account(&text)
}

/// What was told of the process that makes the calls, between its two marks.
fn told<'a>(watched: &'a WatchResult, pid: &str) -> Vec<&'a Alert> {
    let own = |alert: &&Alert| alert.field("proc.pid") == pid;
    let told: Vec<_> = watched.of("Result").into_iter().filter(own).collect();
    let mark = |name: &str| {
        let is_it = |alert: &&Alert| alert.field("evt.args").contains(name);
        let at = told.iter().position(is_it);
        at.unwrap_or_else(|| panic!("no mark {name}: {}", watched.story()))
    };
    told[mark("/escalated-begin") + 1..mark("/escalated-end")].to_vec()
}

/// The same results, effects and calls as unwatched, each call told once and in its turn.
fn is_the_same(script: &str) {
    let (unwatched, watched) = both(script, |unwatched| {
        let names = calls(unwatched)
            .into_iter()
            .map(|(name, _)| event_name(name));
        names.chain(["access"]).collect()
    });
    let found = account(&watched.printed);
    is_said_alike(&found, &unwatched);
    let told = told(&watched, pid(&found));
    let made = calls(&found);
    for (alert, (name, result)) in told.iter().zip(&made) {
        assert_eq!(alert.field("evt.type"), event_name(name), "{alert}");
        match result.parse::<i64>() {
            Ok(result) => assert_eq!(alert.number("evt.rawres"), result, "{name}: {alert}"),
            Err(_) => {
                let failed = alert.number("evt.rawres") < 0;
                assert_eq!(failed, *result == "failed", "{name}: {alert}");
            }
        }
    }
    assert_eq!(told.len(), made.len());
    // A process beside that is killed in a call leaves its result open.
    let is_beside = |alert: &&Alert| {
        let of = alert.fields.get("proc.pid").map(ToString::to_string);
        alert.rule.ends_with("undecided event") && of.as_deref() != Some(pid(&found))
    };
    let others = watched.alerts.iter().filter(|alert| alert.rule != "Result");
    let others: Vec<_> = others.filter(|alert| !is_beside(alert)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Whether the engine under test stops callers; the others see results by themselves.
macro_rules! need_stops {
    () => {
        need_root!();
        if Engine::under_test() == Engine::Ebpf {
            skip!("tells results without stopping the caller", || Ok(
                String::from("ebpf")
            ));
        }
    };
}

const FILE_SYSTEMS: &str = "\
mount --make-rprivate /; mount -t tmpfs files %W; cd %W
image() { truncate -s 64M image; mkfs.ext4 -q image; mkdir disk; mount -o loop image disk; mkdir disk/files; }
";

fn files(make: &str, folder: &str, clear: &str) {
    is_the_same(&format!(
        "{FILE_SYSTEMS}{make}\n%P files {folder}; cd /; {clear}"
    ));
}

#[test]
fn files_of_ext4_are_as_unwatched() {
    need_stops!();
    files(
        "image; %P prepare disk/files",
        "disk/files",
        "umount %W/disk",
    );
}

#[test]
fn files_of_tmpfs_are_as_unwatched() {
    need_stops!();
    files("mkdir files; %P prepare files", "files", "true");
}

/// Each call on a file of the lower layer copies that up first, and what is removed leaves a whiteout.
#[test]
fn files_of_overlays_lower_layer_are_as_unwatched() {
    need_stops!();
    let overlay = "image; mkdir disk/upper disk/work over; %P prepare disk/files
mount -t overlay over -o redirect_dir=on,lowerdir=disk/files,upperdir=disk/upper,workdir=disk/work over";
    files(overlay, "over", "umount %W/over %W/disk");
}

#[test]
fn files_of_overlays_upper_layer_are_as_unwatched() {
    need_stops!();
    let overlay = "image; mkdir disk/upper disk/work over; %P prepare disk/upper
mount -t overlay over -o redirect_dir=off,lowerdir=disk/files,upperdir=disk/upper,workdir=disk/work over";
    files(overlay, "over", "umount %W/over %W/disk");
}

#[test]
fn files_of_a_slow_server_are_as_unwatched() {
    need_stops!();
    let served = "mkdir back front; %P prepare back; %P serve stubborn back front";
    files(served, "front", "umount -l %W/front");
}

/// Whose answer to a caller with a signal is EINTR.
#[test]
fn files_of_a_slow_server_that_is_told_of_signals_are_as_unwatched() {
    need_stops!();
    let served = "mkdir back front; %P prepare back; %P serve eager back front";
    files(served, "front", "umount -l %W/front");
}

#[test]
fn calls_that_wait_are_as_unwatched() {
    need_stops!();
    is_the_same("cd %W; %P waits");
}

/// Calls that cannot be made with any arguments in a test, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("exit", "ends the caller"),
    ("exit_group", "ends the caller"),
    ("rt_sigreturn", "ends a caller that is in no handler"),
    ("pause", "waits for a signal"),
    ("fork", "returns twice"),
    ("vfork", "returns twice"),
    ("vhangup", "hangs up the terminal of the test"),
    (
        "clone",
        "with such flags it is a vfork, whose result is not waited for",
    ),
    ("uprobe", "belongs to the kernel, which asks no filter"),
    ("uretprobe", "belongs to the kernel, which asks no filter"),
    ("io_uring_setup", "is refused under the watch"),
    ("io_uring_enter", "is refused under the watch"),
    ("io_uring_register", "is refused under the watch"),
];

/// Every call there is, with arguments that none takes: what is not listed by name is taken care of, too.
#[test]
fn every_call_returns_once_what_it_returns_unwatched() {
    need_stops!();
    let native = Arch::native().expect("this machine has a table");
    let is_left_out = |call: &Syscall| LEFT_OUT.iter().any(|(name, _)| *name == call.name());
    let numbers: BTreeMap<u32, Syscall> = Syscall::all()
        .filter(|call| !is_left_out(call))
        .filter_map(|call| Some((call.number(native)?, call)))
        .collect();
    assert!(numbers.len() > 300, "{}", numbers.len());
    let list: Vec<_> = numbers.keys().map(u32::to_string).collect();
    let script = format!("cd %W; %P bad {}", list.join(" "));
    let names: Vec<_> = numbers.values().map(|call| call.event_name()).collect();
    let (unwatched, watched) = both(&script, |_| names);
    let found = account(&watched.printed);
    is_said_alike(&found, &unwatched);
    let results = watched.of("Result");
    let mut wrong = Vec::new();
    for line in found.iter().filter_map(|line| line.strip_prefix("pid ")) {
        let Some((pid, number)) = line.split_once(' ') else {
            continue;
        };
        let call = numbers[&number.parse().expect("a number")];
        let own = results
            .iter()
            .filter(|alert| alert.field("proc.pid") == pid);
        let told: Vec<_> = own.map(|alert| alert.field("evt.type")).collect();
        if told != [call.event_name()] {
            wrong.push((call.name(), told));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// How often the program that closes its descriptors was followed. `redirects`: how often it makes a socket
/// descriptor 0.
fn closes(kind: &str, redirects: usize) -> u64 {
    let rule = "\
- rule: Redirected
  desc: a socket becomes a standard descriptor
  condition: evt.type in (dup, dup2, dup3) and evt.rawres in (0, 1, 2) and fd.type in (ipv4, ipv6)
  output: redirected %evt.type
  priority: NOTICE
";
    let fixture = Fixture::compile("closer");
    let watch = Watch::new(["true"]);
    let program = watch.scratch().program(fixture.program(), "closer");
    let command = [
        program.display().to_string(),
        kind.to_owned(),
        "900".to_owned(),
    ];
    let watched = watch.command(command).rules(rule).run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert_eq!(
        watched.of("Redirected").len(),
        redirects,
        "{}",
        watched.story()
    );
    let stats = watched.stats.as_ref();
    let watches = stats.and_then(|stats| stats["counters"]["stdio_watches"].as_u64());
    watches.unwrap_or_else(|| panic!("no stdio_watches: {}", watched.story()))
}

/// Without a socket the process is let alone until it has one again; with one it is followed from the start.
#[test]
fn closing_all_descriptors_is_followed_only_with_a_socket() {
    need_root!();
    if Engine::under_test() != Engine::Notify {
        skip!("follows calls otherwise", || Ok(String::from("not notify")));
    }
    assert_eq!(closes("before", 0), 0);
    assert_eq!(closes("among", 1), 2);
    assert_eq!(closes("kept", 1), 1);
}

/// A call that never gets a result of its own is let go after a second, which is told once; one that
/// signals interrupt is told each time.
#[test]
fn a_call_that_is_repeated_in_vain_is_let_go_and_told() {
    need_root!();
    if Engine::under_test() != Engine::Notify {
        skip!("lets results be learnt otherwise", || Ok(String::from(
            "not notify"
        )));
    }
    let script = format!(
        "{FILE_SYSTEMS}mkdir back front; %P prepare back; %P serve never back front; %P repeats front
cd /; umount -l %W/front"
    );
    let (_, watched) = both(&script, |_| vec!["chmod", "readv"]);
    let found = account(&watched.printed);
    let counted: BTreeMap<_, _> = calls(&found).into_iter().collect();
    let number = |name: &str| counted[name].parse::<usize>().expect("a number");
    let pid = pid(&found);
    let told = watched.of("Tollgate internal: no progress");
    assert_eq!(told.len(), 1, "{}", watched.finished.stderr);
    assert_eq!(told[0].field("evt.type"), "chmod");
    assert_eq!(told[0].field("proc.pid"), pid);
    let results = watched.of("Result");
    let of = |name: &str| {
        let own =
            |alert: &&&Alert| alert.field("evt.type") == name && alert.field("proc.pid") == pid;
        results.iter().filter(own).count()
    };
    let let_go = watched
        .stats
        .as_ref()
        .and_then(|stats| stats["counters"]["no_progress"].as_u64());
    let let_go = usize::try_from(let_go.expect("counted")).expect("few");
    assert!(let_go > 0);
    // Those that are let go are undecided.
    assert_eq!(of("chmod") + let_go, number("changed"));
    // A call whose signal comes before the agent has received it fails at once: nobody was asked.
    assert!(
        of("readv") > 100 && (number("woken") / 2..=number("woken")).contains(&of("readv")),
        "{counted:?}, told are {}",
        of("readv")
    );
}
