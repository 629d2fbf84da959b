//! Arguments that change under a call: what the kernel did is what rules see.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{
    Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root, need_slow, skip, slow,
};

const CHANGED: &str = "Tollgate internal: arguments changed under the call";

/// What the racer says it did.
#[derive(Debug)]
struct Account {
    one: u64,
    other: u64,
}

impl Account {
    fn of(watched: &WatchResult) -> Self {
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let line = watched
            .printed
            .lines()
            .find(|line| line.starts_with("one "));
        let line = line.unwrap_or_else(|| panic!("no account: {}", watched.story()));
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        Self {
            one: numbers[0],
            other: numbers[1],
        }
    }
}

fn count(watched: &WatchResult, name: &str) -> u64 {
    let stats = watched.stats.as_ref();
    let value = stats.and_then(|stats| stats["counters"][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in the stats: {}", watched.story()))
}

/// Runs the racer. `%D` in its arguments and in the rules is the folder with `passwd` and `shadow`.
fn race(arguments: &[&str], rules: &str, options: &[&str]) -> WatchResult {
    race_at(Environment::Host, arguments, rules, options)
}

fn race_at(place: Environment, arguments: &[&str], rules: &str, options: &[&str]) -> WatchResult {
    let fixture = Fixture::shared("racer");
    let watch = Watch::new(["true"]).limit(Duration::from_secs(120));
    let program = watch.scratch().program(fixture.program(), "racer");
    let folder = watch.scratch().path().join("files");
    fs::create_dir_all(&folder).expect("the scratch folder is writable");
    for (name, status) in [("passwd", 1), ("shadow", 2)] {
        compile_exit(&folder.join(name), status);
    }
    let folder = folder.display().to_string();
    let mut command = vec![program.display().to_string()];
    command.extend(arguments.iter().map(|word| word.replace("%D", &folder)));
    let mut watch = watch
        .command(command)
        .place(place)
        .rules(&rules.replace("%D", &folder))
        .option("-o")
        .option("outputs_queue.capacity=100000");
    for option in options {
        watch = watch.option(*option);
    }
    watch.run()
}

/// A program that exits with this status, which any program can also open.
fn compile_exit(path: &Path, status: i32) {
    let source = path.with_extension("c");
    fs::write(&source, format!("int main(void){{return {status};}}")).expect("writable");
    let compiled = Command::new("gcc")
        .args(["-static", "-o"])
        .args([path, &source])
        .status();
    assert!(compiled.expect("gcc is there").success());
}

const SHADOW: &str = "\
- rule: Shadow
  desc: the file that is not the one that was read
  condition: evt.type in (open, openat, openat2) and fd.name = %D/shadow and fd.num >= 0
  output: opened %fd.name (pid=%proc.pid name=%evt.arg.name res=%evt.res)
  priority: WARNING
";

/// Every open of the file is found by what the kernel opened, whoever changes the path.
fn all_are_found(flipper: &str, swaps: u64) {
    need_root!();
    let swaps = swaps.to_string();
    let watched = race(
        &["opens", flipper, "%D", &swaps, "100"],
        SHADOW,
        &["--verify", "always"],
    );
    let account = Account::of(&watched);
    assert_eq!(count(&watched, "matched"), account.other, "{account:?}");
    assert!(account.other.to_string() == swaps && account.one > 0);
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
    assert_eq!(count(&watched, "verify_failed"), 0);
    let alert = *watched.of(CHANGED).first().expect("one is let through");
    let (read, done) = (alert.field("tollgate.read"), alert.field("tollgate.done"));
    assert_ne!(
        read.ends_with("/shadow"),
        done.ends_with("/shadow"),
        "{alert}"
    );
}

#[test]
fn path_swaps_by_a_thread_are_found() {
    all_are_found("thread", 2_000);
}

#[test]
fn ten_thousand_path_swaps_by_a_thread_are_found() {
    need_slow!();
    all_are_found("thread", 10_000);
}

#[test]
fn path_swaps_by_a_process_with_the_same_memory_are_found() {
    all_are_found("clone", 2_000);
}

#[test]
fn path_swaps_by_process_vm_writev_are_found() {
    all_are_found("writev", 1_000);
}

#[test]
fn path_swaps_through_the_memory_file_are_found() {
    all_are_found("memory", 1_000);
}

#[test]
fn path_swaps_in_shared_memory_are_found() {
    all_are_found("shared", 2_000);
}

#[test]
fn a_process_that_is_caught_is_verified_always() {
    need_root!();
    let watched = race(&["opens", "thread", "%D", "3000", "0"], SHADOW, &[]);
    let account = Account::of(&watched);
    let found = count(&watched, "matched");
    // The first may be among those that are not verified.
    assert!(found >= 2_990, "{found} of {account:?}");
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
}

#[test]
fn without_verification_what_was_read_is_believed() {
    need_root!();
    let options = ["--verify", "off"];
    let watched = race(&["opens", "thread", "%D", "3000", "0"], SHADOW, &options);
    Account::of(&watched);
    for counter in ["racy_processes", "verified", "arguments_changed"] {
        assert_eq!(count(&watched, counter), 0, "{counter}");
    }
    assert_eq!(watched.of(CHANGED).len(), 0);
}

/// Where one thread makes all calls nothing is verified: there is nobody to change anything.
#[test]
fn a_single_thread_is_not_verified() {
    need_root!();
    let watched = race(&["mixed", "%D", "500"], SHADOW, &[]);
    Account::of(&watched);
    assert_eq!(count(&watched, "verified"), 0);
}

#[test]
fn connects_are_judged_by_the_other_end() {
    need_root!();
    let rule = "\
- rule: Connected
  desc: the port that is not the one that was read
  condition: evt.type = connect and fd.sport = 6000 and evt.rawres >= 0
  output: connected %fd.name
  priority: WARNING
";
    let arguments = ["connects", "5000", "6000", "2000"];
    let watched = race(&arguments, rule, &["--verify", "always"]);
    let account = Account::of(&watched);
    assert_eq!(count(&watched, "matched"), account.other, "{account:?}");
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
    let alert = *watched.of(CHANGED).first().expect("one is let through");
    let done = alert.field("tollgate.done");
    assert!(
        ["127.0.0.1:5000", "127.0.0.1:6000"].contains(&done.as_str()),
        "{alert}"
    );
}

#[test]
fn execs_are_judged_by_the_new_program() {
    need_root!();
    let rule = "\
- rule: Executed
  desc: the program that is not the one that was read
  condition: >
    evt.type = execve and evt.rawres = 0 and proc.exepath endswith /shadow and
    evt.arg.filename endswith /shadow
  output: executed %proc.exepath
  priority: WARNING
";
    let watched = race(&["execs", "%D", "600"], rule, &[]);
    let account = Account::of(&watched);
    assert_eq!(account.one + account.other, 600);
    assert_eq!(count(&watched, "matched"), account.other, "{account:?}");
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
}

#[test]
fn ordinary_programs_with_threads_change_nothing() {
    need_root!();
    let script = "\
import os, threading, tempfile, socket, subprocess
os.chdir('/usr')
def work():
    for name in ['/etc/os-release', 'lib/os-release', '../etc/../etc/passwd', '/dev/null',
                 '/proc/self/status', '/proc/thread-self/comm', '/dev/fd/0', '/bin/sh', '.']:
        os.close(os.open(name, os.O_RDONLY))
    with tempfile.TemporaryFile(dir='/tmp') as file: file.write(b'x')
    with tempfile.NamedTemporaryFile(dir='/var/tmp') as file: file.write(b'x')
    end, other = os.pipe()
    for name in ['/proc/self/maps', f'/proc/self/fd/{other}', f'/dev/fd/{end}']:
        os.close(os.open(name, os.O_RDWR if str(other) in name else os.O_RDONLY))
    os.close(end); os.close(other)
    fd = os.open('/etc', os.O_RDONLY)
    os.close(os.open('hostname', os.O_RDONLY, dir_fd=fd))
    os.close(fd)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(('0.0.0.0', 9))
    s.close()
    subprocess.run(['sh', '-c', 'exec true'], check=True)
    subprocess.run(['/bin/echo'], check=True, stdout=subprocess.DEVNULL)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print('done')
";
    let connects = "- rule: Connects\n  desc: d\n  condition: evt.type = connect\n  output: c\n  priority: DEBUG\n";
    // `/proc/self` of another pid namespace is a folder that the agent does not have.
    let elsewhere = ["unshare", "--pid", "--fork", "--mount-proc"];
    for wrapper in [&[][..], &elsewhere] {
        let watch = Watch::new(wrapper.iter().chain(&["python3", "-c", script]))
            .rules(SHADOW)
            .rules(connects)
            .option("--verify")
            .option("always");
        let watched = watch.run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        assert!(count(&watched, "verified") > 50, "{}", watched.story());
        for counter in ["arguments_changed", "verify_failed"] {
            assert_eq!(
                count(&watched, counter),
                0,
                "{counter}: {}",
                watched.story()
            );
        }
    }
}

#[test]
fn a_traced_process_is_announced_and_its_calls_still_count() {
    need_root!();
    let strace = "strace";
    let script = format!("exec {strace} -f -o /dev/null cat /etc/hostname /etc/os-release");
    let rule = "\
- rule: Read
  desc: a file that only its result decides
  condition: evt.type in (open, openat) and fd.name = /etc/hostname and fd.num >= 0
  output: read %fd.name %evt.res
  priority: WARNING
";
    let watched = Watch::script(&script).rules(rule).run();
    if Engine::under_test().traces() {
        skip!("cannot be traced twice", || {
            let said = watched.finished.stderr.clone();
            let is_refused = watched.code() != 0 && said.contains("Operation not permitted");
            if is_refused {
                Ok(said)
            } else {
                Err(watched.story())
            }
        });
    }
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let announced = watched.of("Tollgate internal: traced by another process");
    assert_eq!(announced.len(), 1, "{}", watched.story());
    assert_ne!(announced[0].field("tollgate.tracer"), "");
    assert_eq!(count(&watched, "traced_by_others"), 1);
    // What cannot be learnt is said, not passed over.
    let undecided = watched.of("Tollgate internal: undecided event");
    assert!(!undecided.is_empty(), "{}", watched.story());
}

#[test]
fn rings_are_refused_unless_allowed() {
    need_root!();
    let no_such_call = u64::from(abi::Errno::ENOSYS.0.cast_unsigned());
    let quiet = "\
- rule: Nothing
  desc: none
  condition: evt.type = swapon
  output: swapon
  priority: DEBUG
";
    let asking = "\
- rule: Ring
  desc: a ring
  condition: evt.type = io_uring_setup
  output: ring %evt.rawres
  priority: WARNING
";
    let refused = race(&["ring"], quiet, &[]);
    assert_eq!(Account::of(&refused).one, no_such_call);
    // It is told, whether a rule asks for it or not.
    let announced = refused.of("Tollgate internal: io_uring");
    assert_eq!(announced.len(), 1, "{}", refused.story());
    assert_eq!(announced[0].field("tollgate.denied"), "true");
    assert_eq!(count(&refused, "rings"), 1);
    // A rule that asks for the call sees it, and its result.
    let seen = race(&["ring"], asking, &[]);
    assert_eq!(Account::of(&seen).one, no_such_call);
    assert_eq!(seen.of("Ring").len(), 1, "{}", seen.story());
    assert_eq!(seen.of("Tollgate internal: io_uring").len(), 1);
    let allowed = race(&["ring"], quiet, &["--io-uring", "allow"]);
    assert_eq!(Account::of(&allowed).one, 0);
    let announced = allowed.of("Tollgate internal: io_uring");
    assert_eq!(announced.len(), 1, "{}", allowed.story());
    assert_eq!(announced[0].field("tollgate.denied"), "false");
    assert_eq!(count(&allowed, "rings"), 1);
}

#[test]
fn options_of_the_configuration_do_the_same() {
    need_root!();
    let options = ["-o", "verify=off", "-o", "io_uring=allow"];
    let watched = race(&["ring"], SHADOW, &options);
    assert_eq!(Account::of(&watched).one, 0);
}

#[test]
fn in_a_container_and_as_a_user_it_is_the_same() {
    need_root!();
    let fixture = Fixture::shared("racer");
    for (place, identity) in [
        (Environment::Inside, Identity::Docker),
        (Environment::Inside, Identity::User),
        (Environment::Host, Identity::User),
    ] {
        let watch = Watch::new(["true"]);
        let program: PathBuf = watch.scratch().program(fixture.program(), "racer");
        let script =
            "cd %W && echo x >passwd && echo y >shadow && exec \"$0\" opens thread \"$PWD\" 500 0";
        let command = ["sh", "-c", script, &program.display().to_string()].map(str::to_owned);
        let rule = SHADOW.replace("fd.name = %D/shadow", "fd.name endswith /shadow");
        let watched = watch
            .command(command)
            .place(place)
            .identity(identity)
            .rules(&rule)
            .option("--verify")
            .option("always")
            .run();
        let account = Account::of(&watched);
        // The shell opens it once to write it.
        assert_eq!(
            count(&watched, "matched"),
            account.other + 1,
            "{place:?} {identity:?}"
        );
    }
}

/// The default, with its budget spent on harmless calls before: what is not verified is told by the
/// file system.
fn all_are_found_by_default(swaps: u64, warmup: &str) {
    need_root!();
    let count_of_swaps = swaps.to_string();
    let words = ["opens", "thread", "%D", &count_of_swaps, warmup];
    let watched = race(&words, SHADOW, &[]);
    let account = Account::of(&watched);
    assert_eq!(account.other, swaps);
    let (matched, unseen) = (
        count(&watched, "matched"),
        count(&watched, "tripwire_unseen"),
    );
    assert!(
        matched + unseen >= swaps - 10,
        "{matched} + {unseen} after {warmup}"
    );
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
}

#[test]
fn path_swaps_are_found_by_default() {
    all_are_found_by_default(2_000, "3000");
}

#[test]
fn ten_thousand_path_swaps_are_found_by_default() {
    need_slow!();
    for warmup in ["0", "3000"] {
        all_are_found_by_default(10_000, warmup);
    }
}

/// The same against the rules that everybody has, on the file that they are about.
fn all_are_found_by_stock_rules(swaps: u64) {
    need_root!();
    let stock = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/reference/upstream/falco_rules.yaml");
    let text = fs::read_to_string(&stock).unwrap_or_else(|_| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../rules/default.yaml"))
            .expect("the default rules are there")
    });
    let count_of_swaps = swaps.to_string();
    let words = ["opens", "thread", "/etc", &count_of_swaps, "1000"];
    let watched = race(&words, &text, &[]);
    let account = Account::of(&watched);
    assert_eq!(account.other, swaps);
    let (matched, unseen) = (
        count(&watched, "matched"),
        count(&watched, "tripwire_unseen"),
    );
    assert!(matched + unseen >= swaps - 10, "{matched} + {unseen}");
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
    // The command itself and what it was started by match nothing else of note.
    assert!(!watched.of("Read sensitive file untrusted").is_empty());
}

#[test]
fn path_swaps_are_found_by_stock_rules() {
    all_are_found_by_stock_rules(2_000);
}

#[test]
fn ten_thousand_path_swaps_are_found_by_stock_rules() {
    need_slow!();
    all_are_found_by_stock_rules(10_000);
}

/// What an io_uring opens no engine sees.
#[test]
fn opens_past_the_engine_are_told_by_the_file_system() {
    need_root!();
    let options = ["--io-uring", "allow"];
    let watched = race(&["ringopen", "%D/shadow"], SHADOW, &options);
    assert_eq!(Account::of(&watched).one, 1, "{}", watched.story());
    assert_eq!(count(&watched, "matched"), 0);
    assert_eq!(count(&watched, "tripwire_unseen"), 1, "{}", watched.story());
    let alert = "Tollgate internal: sensitive file opened unseen";
    let alerts = watched.of(alert);
    assert_eq!(alerts.len(), 1, "{}", watched.story());
    assert!(alerts[0].field("fd.name").ends_with("/files/shadow"));
}

#[test]
fn an_open_that_the_engine_sees_is_none_past_it() {
    need_root!();
    let script = "import threading, sys\n\
        t = threading.Thread(target=lambda: [open(sys.argv[1]).close() for _ in range(300)])\n\
        t.start(); t.join()\n\
        import os; os.chdir(os.path.dirname(sys.argv[1]))\n\
        [open('shadow').close() for _ in range(300)]\n\
        print('one 600 other 0')";
    let watch = Watch::new(["true"]);
    let file = watch
        .scratch()
        .file("shadow", 0o644, "x")
        .display()
        .to_string();
    let rule = SHADOW.replace("%D/shadow", &file);
    let watched = watch
        .command(["python3", "-c", script, &file].map(str::to_owned))
        .rules(&rule)
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .run();
    Account::of(&watched);
    assert_eq!(count(&watched, "matched"), 600);
    assert!(
        count(&watched, "tripwire_opens") > 500,
        "{}",
        watched.story()
    );
    assert_eq!(count(&watched, "tripwire_unseen"), 0, "{}", watched.story());
}

const BOTH: &str = "\
- rule: Opened
  desc: the result decides
  condition: evt.type = openat and fd.name endswith /passwd and fd.num >= 0
  output: opened %fd.name %evt.res
  priority: WARNING
- rule: Missing
  desc: decided before the call
  condition: evt.type = openat and fd.name endswith /missing
  output: missing %fd.name
  priority: WARNING
";

/// Kernels below 5.19 let a signal take a caller out of a call that is being looked at: results are
/// exact and nothing is reported twice all the same.
#[test]
fn results_are_exact_under_signals_on_older_kernels() {
    need_root!();
    let usual: &[&str] = &["5.10", "5.19"];
    let all: &[&str] = &["5.5", "5.10", "5.19", "6.6"];
    for &kernel in if slow() { all } else { usual } {
        let fixture = Fixture::shared("racer");
        let watch = Watch::new(["true"]);
        let program = watch.scratch().program(fixture.program(), "racer");
        watch.scratch().file("passwd", 0o644, "x");
        let folder = watch.scratch().path().display().to_string();
        let command = [program.display().to_string(), "mixed".to_owned(), folder];
        let watched = watch
            .command(command.into_iter().chain(["2000".to_owned()]))
            .rules(BOTH)
            .option("--pretend-kernel")
            .option(kernel)
            .option("-o")
            .option("outputs_queue.capacity=100000")
            .run();
        Account::of(&watched);
        assert_eq!(count(&watched, "escalation_refused"), 0, "{kernel}");
        let (opened, missing) = (watched.of("Opened").len(), watched.of("Missing").len());
        assert_eq!((opened, missing), (400, 400), "{kernel}");
    }
}
