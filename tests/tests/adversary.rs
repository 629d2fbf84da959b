//! Hostile workloads: what they must not hide, break or hold up. The attacks are those of
//! `fixtures/attack.c`; each runs in a container of its own, whose pids are nobody else's.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use abi::Errno;
use e2e::{Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root, skip, slow};

/// A test that moves processes between control groups, or freezes some, does not run beside those whose file systems are
/// served by a process of the workload. Once, on Linux 6.18, the kernel's work queues stood still while both ran ("BUG:
/// workqueue lockup" of both processors), and the unmount that waits for one of them did not return within a minute.
static CONTROL_GROUPS: RwLock<()> = RwLock::new(());

fn with_control_groups() -> RwLockWriteGuard<'static, ()> {
    CONTROL_GROUPS
        .write()
        .unwrap_or_else(PoisonError::into_inner)
}

fn with_file_systems() -> RwLockReadGuard<'static, ()> {
    CONTROL_GROUPS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Ends a test of what an engine does that holds callers, reads their memory from outside and has processes
/// that the workload can reach. The engine `ebpf` does nothing of that.
macro_rules! need_held_calls {
    () => {
        if Engine::under_test() == Engine::Ebpf {
            skip!("is about engines that hold calls", || Ok(String::from(
                "TOLLGATE_TEST_ENGINE is ebpf"
            )));
        }
    };
}

/// Opens of the file that every attack takes.
const SEEN: &str = "\
- rule: Seen
  desc: opens of one file
  condition: evt.type in (open, openat, openat2) and fd.name endswith /secret
  output: \"seen %evt.type %evt.rawres %proc.name %fd.name\"
  priority: DEBUG
";

/// For this rule descriptors 0 to 2 are kept track of.
const REDIRECTED: &str = "\
- rule: Redirected
  desc: standard streams that are sockets
  condition: evt.type in (dup, dup2, dup3) and fd.num in (0, 1, 2) and fd.type in (ipv4, ipv6)
  output: redirected
  priority: DEBUG
";

const AIMED: &str = "Tollgate internal: call aimed at the watcher";
const CHANGED: &str = "Tollgate internal: arguments changed under the call";
const GAP: &str = "Tollgate internal: unwatched gap";
const MADE_UNREADABLE: &str = "Tollgate internal: process made unreadable";
const REPEATED: &str = "Tollgate internal: alerts repeated";
const TIMED_OUT: &str = "Tollgate internal: read timed out";
const UNDECIDED: &str = "Tollgate internal: undecided event";
const UNREADABLE: &str = "Tollgate internal: unreadable process";

/// An attack that has been made.
struct Attack {
    watched: WatchResult,
}

/// How an attack is made.
struct Setting {
    watch: Watch,
    identity: Identity,
}

impl Setting {
    fn new(identity: Identity) -> Self {
        let watch = Watch::new(["true"])
            .place(Environment::Inside)
            .identity(identity)
            .rules(SEEN)
            .option("-o")
            .option("outputs_queue.capacity=100000");
        Self { watch, identity }
    }

    fn option(self, option: &str) -> Self {
        Self {
            watch: self.watch.option(option),
            ..self
        }
    }

    fn rules(self, text: &str) -> Self {
        Self {
            watch: self.watch.rules(text),
            ..self
        }
    }

    fn program(&self, fixture: &Fixture) -> PathBuf {
        self.watch.scratch().program(fixture.program(), "attack")
    }

    /// Runs a shell command in which `$0` is the attacking program and `$1` the file.
    fn script(self, script: &str) -> Attack {
        let program = self.program(&Fixture::shared("attack"));
        let file = self.watch.scratch().file("secret", 0o644, "");
        let words = [
            "sh".to_owned(),
            "-c".to_owned(),
            script.to_owned(),
            program.display().to_string(),
            file.display().to_string(),
        ];
        let watched = self.watch.command(words).run();
        Attack { watched }
    }

    /// Makes an attack as the command itself; then the same process opens the file five times.
    fn command(self, name: &str) -> Attack {
        let identity = self.identity;
        let attack = self.script(&format!("exec \"$0\" {name} \"$1\" more"));
        attack.goes_on(name, identity);
        attack
    }

    /// Makes an attack, then opens the file once more, five times, from a new process.
    fn attack(self, name: &str) -> Attack {
        let identity = self.identity;
        let attack = self.script(&format!("\"$0\" {name} \"$1\"; \"$0\" opens \"$1\""));
        attack.goes_on(name, identity);
        attack
    }
}

impl Attack {
    fn story(&self) -> String {
        self.watched.story()
    }

    /// The agent lives, and the workload was not broken by it.
    fn goes_on(&self, name: &str, identity: Identity) {
        let story = self.story();
        assert_eq!(self.watched.code(), 0, "{name} by {identity:?}: {story}");
        assert!(
            self.watched.of(GAP).is_empty(),
            "{name} by {identity:?}: {story}"
        );
        let last = self.results("opens").last().copied();
        assert_eq!(last, Some((5, 0)), "{name} by {identity:?}: {story}");
        assert!(self.seen() >= 5, "{name} by {identity:?}: {story}");
    }

    /// What a step of the attack came to: result and error number, each time it was made.
    fn results(&self, step: &str) -> Vec<(i64, i64)> {
        let lines = self.watched.printed.lines();
        let of_step = lines.filter_map(|line| line.strip_prefix(step)?.strip_prefix(' '));
        let numbers = of_step.filter_map(|rest| {
            let mut words = rest.split(' ').map(str::parse);
            match (words.next(), words.next(), words.next()) {
                (Some(Ok(result)), Some(Ok(errno)), None) => Some((result, errno)),
                _ => None,
            }
        });
        numbers.collect()
    }

    fn seen(&self) -> usize {
        self.watched.of("Seen").len()
    }

    fn counter(&self, name: &str) -> u64 {
        let stats = self.watched.stats.as_ref();
        let value = stats.and_then(|stats| stats["counters"][name].as_u64());
        value.unwrap_or_else(|| panic!("no counter {name}: {}", self.story()))
    }

    #[track_caller]
    fn expect(&self, step: &str, results: &[(i64, i64)]) {
        assert_eq!(self.results(step), results, "{step}: {}", self.story());
    }
}

#[test]
fn nothing_reaches_the_processes_that_watch() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    // Each way to reach a process, at each of ours.
    let ways = 18 * Engine::under_test().watchers();
    for identity in [Identity::Root, Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).command("reach");
        let lines: Vec<_> = attack.watched.printed.lines().collect();
        let aimed: Vec<_> = lines
            .iter()
            .filter(|line| !line.starts_with("opens"))
            .collect();
        assert!(aimed.len() > ways, "{identity:?}: {}", attack.story());
        for line in aimed {
            let refused = line.ends_with(&format!(" -1 {}", Errno::EPERM.0));
            assert!(refused, "{identity:?}: {line}: {}", attack.story());
        }
        // One each second, the others in sum.
        let alerts = attack.watched.of(AIMED);
        assert!(!alerts.is_empty(), "{identity:?}: {}", attack.story());
        assert_eq!(alerts[0].field("proc.name"), "attack");
        assert_eq!(alerts[0].field("tollgate.response"), "refused");
        // A handle to the agent or the keeper is refused, one to the others is not.
        assert!(
            attack.counter("intrusions") > ways as u64,
            "{}",
            attack.story()
        );
    }
}

#[test]
fn a_descriptor_that_is_exchanged_meanwhile_reaches_no_process_that_watches() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::User] {
        let attack = Setting::new(identity).command("exchanged");
        // Both descriptors were met, so each was in the place of the other.
        let lines = attack.watched.printed.lines();
        let met = lines.filter(|line| line.starts_with("made ") || line.starts_with("refused "));
        let met: Vec<_> = met.collect();
        let watchers = Engine::under_test().watchers();
        assert_eq!(met.len(), 2 * watchers, "{identity:?}: {}", attack.story());
        assert!(
            met.iter().all(|line| line.ends_with(" 1 0")),
            "{identity:?}: {}",
            attack.story()
        );
    }
}

#[test]
fn nothing_can_be_read_of_the_processes_that_watch() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).command("memory");
        let files = 4 * Engine::under_test().watchers();
        attack.expect("peek", &vec![(-1, i64::from(Errno::EACCES.0)); files]);
    }
}

#[test]
fn a_signal_to_many_reaches_all_but_the_processes_that_watch() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).command("many");
        attack.expect("kill_group", &[(0, 0)]);
        attack.expect("group_member", &[(9, 0)]);
        attack.expect("kill_all", &[(0, 0)]);
        attack.expect("other_process", &[(9, 0)]);
        let alerts = attack.watched.of(AIMED);
        assert_eq!(alerts[0].field("tollgate.response"), "spared");
    }
}

#[test]
fn the_group_of_the_processes_that_watch_can_be_signalled_without_them() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).command("group");
        attack.expect("sender", &[(9, 0)]);
        attack.expect("member", &[(9, 0)]);
        attack.expect("priority_of_group", &[(-1, 1)]);
    }
}

#[test]
fn what_a_workload_does_to_its_own_processes_goes_through() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).command("innocent");
        for step in [
            "exists",
            "prlimit",
            "sched_setaffinity",
            "setpriority",
            "pidfd_send_signal",
            "tgkill",
            "parent_exists",
            "parent_usr1",
        ] {
            attack.expect(step, &[(0, 0)]);
        }
        attack.expect("ended_by", &[(9, 0)]);
        assert!(attack.watched.of(AIMED).is_empty(), "{}", attack.story());
    }
}

#[test]
fn pids_of_a_namespace_below_are_not_mistaken_for_those_of_the_processes_that_watch() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::User] {
        let setting = Setting::new(identity);
        // In a session of its own: the signal to its group is to hit no shell of ours.
        let attack = setting.script("setsid -w \"$0\" below; \"$0\" opens \"$1\"");
        attack.goes_on("below", identity);
    }
}

#[test]
fn a_process_that_makes_itself_unreadable_is_told_and_its_calls_may_match() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for &identity in Identity::READERS {
        let attack = Setting::new(identity).attack("undumpable");
        attack.expect("prctl", &[(0, 0)]);
        attack.expect("open", &[(0, 0); 5]);
        let told = attack.watched.of(MADE_UNREADABLE);
        assert_eq!(told.len(), 1, "{identity:?}: {}", attack.story());
        assert_eq!(told[0].field("evt.type"), "prctl");
        assert_eq!(told[0].field("proc.name"), "attack");
        attack.seen_or_told(identity, "not dumpable");
    }
}

#[test]
fn to_make_itself_unreadable_is_refused_on_demand() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity)
            .option("--refuse")
            .option("non-dumpable")
            .attack("undumpable");
        attack.expect("prctl", &[(-1, 1)]);
        assert_eq!(attack.seen(), 10, "{}", attack.story());
        let told = attack.watched.of(MADE_UNREADABLE);
        assert_eq!(told[0].field("tollgate.response"), "refused");
    }
}

#[test]
fn a_program_whose_file_may_not_be_read_is_told_and_its_calls_may_match() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for &identity in Identity::READERS {
        let setting = Setting::new(identity);
        let fixture = Fixture::shared("attack");
        let closed = setting.watch.scratch().program(fixture.program(), "closed");
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o111))
            .unwrap();
        let script = format!("{} opens \"$1\"; \"$0\" opens \"$1\"", closed.display());
        let attack = setting.script(&script);
        attack.goes_on("closed", identity);
        // Who may read any file has nothing hidden from him.
        if identity == Identity::User {
            let told = attack.watched.of(UNREADABLE);
            assert_eq!(told.len(), 1, "{}", attack.story());
            assert_eq!(told[0].field("evt.type"), "execve");
            assert_eq!(told[0].field("proc.name"), "closed");
        }
        attack.seen_or_told(identity, "not dumpable");
    }
}

#[test]
fn a_worker_of_another_user_is_told_and_its_calls_may_match() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Root, Identity::Docker, Identity::DockerTracing] {
        let attack = Setting::new(identity).attack("worker");
        attack.expect("worker", &[(0, 0)]);
        attack.seen_or_told(identity, "user 1000");
    }
}

impl Attack {
    /// Five opens of an unreadable process and five of another were made: all are seen, or those
    /// that could not be are told with the cause.
    #[track_caller]
    fn seen_or_told(&self, identity: Identity, cause: &str) {
        let story = self.story();
        if self.seen() == 10 {
            assert_eq!(self.counter("undecided"), 0, "{identity:?}: {story}");
            return;
        }
        let reads_all = [Identity::Root, Identity::DockerTracing].contains(&identity);
        assert!(!reads_all, "{identity:?}: {story}");
        assert_eq!(self.seen(), 5, "{identity:?}: {story}");
        let undecided = self.watched.of(UNDECIDED);
        // The first of a second is written, the others are counted.
        assert!((1..3).contains(&undecided.len()), "{identity:?}: {story}");
        let alert = undecided[0];
        assert!(alert.field("evt.type").starts_with("open"), "{story}");
        assert!(
            ["attack", "closed"].contains(&alert.field("proc.name").as_str()),
            "{story}"
        );
        assert!(alert.number("proc.pid") > 0, "{story}");
        assert!(
            alert.field("tollgate.cause").contains(cause),
            "{identity:?}: {story}"
        );
        let repeated = self.watched.of(REPEATED);
        let sums = repeated
            .iter()
            .any(|alert| alert.field("tollgate.rule") == UNDECIDED);
        assert!(sums, "{identity:?}: {story}");
        assert!(self.counter("undecided") >= 5, "{identity:?}: {story}");
    }
}

#[test]
fn filters_of_its_own_hide_nothing() {
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).attack("filters");
        for step in ["log", "trace", "allow", "trap", "errno"] {
            attack.expect(step, &[(0, 0)]);
        }
        attack.expect("handled", &[(1, 0)]);
        attack.expect("refused", &[(-1, 13)]);
        let made: i64 = attack.results("opens").iter().map(|(count, _)| count).sum();
        // Where no filter of ours is in force, as unwatched, what its own wants traced fails with ENOSYS.
        let is_traced = Engine::under_test() != Engine::Notify;
        let expected = if is_traced { 105 } else { 405 };
        assert_eq!(made, expected, "{}", attack.story());
        // Those that its filter refused were not made.
        assert!(attack.seen() >= 405, "{}", attack.story());
        assert!(is_traced || attack.seen() == 405, "{}", attack.story());
    }
}

#[test]
fn a_listener_of_its_own_is_refused_and_every_open_is_seen() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).attack("listener");
        if Engine::under_test() == Engine::EveryCall {
            // It stops calls before any filter is asked, so one answers after it.
            assert!(attack.results("listener")[0].0 >= 0, "{}", attack.story());
        } else {
            attack.expect("listener", &[(-1, i64::from(Errno::EBUSY.0))]);
        }
        assert_eq!(attack.seen(), 1001 + 5, "{}", attack.story());
    }
}

#[test]
fn strict_mode_is_refused_by_the_kernel_under_a_filter() {
    need_held_calls!();
    need_root!();
    let attack = Setting::new(Identity::User).attack("strict");
    // Without a filter of ours there is nothing in its way, and nothing is missed either.
    let is_filtered = Engine::under_test() != Engine::EveryCall;
    attack.expect("strict", &[if is_filtered { (-1, 22) } else { (0, 0) }]);
    assert_eq!(attack.seen(), 25, "{}", attack.story());
}

/// Root in the agent's own mount namespace puts something else where `/proc` was.
#[test]
fn what_is_mounted_over_proc_is_not_believed() {
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    let rules = "\
- rule: Described
  desc: who opens the file, as /proc describes it
  condition: evt.type in (open, openat, openat2) and fd.name endswith /secret
  output: \"%proc.name %proc.exepath %proc.cmdline %proc.pname %proc.cwd %user.name\"
  priority: DEBUG
";
    let described = |cover: &str| {
        let setting = Setting::new(Identity::Root).rules(rules);
        let attack = setting.script(&format!("{cover}; exec cat \"$1\""));
        let story = attack.watched.story();
        let fields = ["name", "exepath", "pname", "cwd"].map(|field| {
            let alerts = attack.watched.of("Described");
            assert_eq!(alerts.len(), 1, "{cover}: {story}");
            alerts[0].field(&format!("proc.{field}"))
        });
        (fields, attack.watched.of("Described")[0].field("user.name"))
    };
    let plain = described(":");
    assert_eq!(plain.0[0], "cat");
    for cover in [
        "mount -t tmpfs none /proc",
        "mkdir -p /tmp/proc && touch /tmp/proc/stat && for pid in 1 2 3 4 5 6 7 8 9 $$; do \
         test ! -d /proc/$pid || mount --bind /tmp/proc /proc/$pid; done",
    ] {
        assert_eq!(described(cover), plain, "{cover}");
    }
}

#[test]
fn calls_of_other_tables_are_seen() {
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).attack("tables");
        let (int80, x32) = (attack.results("int80"), attack.results("x32"));
        assert_eq!(int80.len() + x32.len(), 2, "{}", attack.story());
        let made = int80[0].0 + x32[0].0;
        let seen = i64::try_from(attack.seen()).unwrap();
        // What the kernel does not have fails, and is seen all the same.
        let failed = 2 - made;
        assert!(
            (8 + made..=8 + made + failed).contains(&seen),
            "{}",
            attack.story()
        );
        assert_eq!(attack.counter("unknown_calls"), 0, "{}", attack.story());
    }
}

#[test]
fn a_32_bit_program_is_seen() {
    need_root!();
    // Kernel headers are the same for both, and lie below the 64-bit folder only.
    let headers = "-idirafter/usr/include/x86_64-linux-gnu";
    let fixture = Fixture::try_compile("attack", &["-m32", "-static", headers]);
    let fixture = fixture.unwrap_or_else(|text| panic!("{text}"));
    let setting = Setting::new(Identity::User);
    let narrow = setting.watch.scratch().program(fixture.program(), "narrow");
    let script = format!(
        "{0} opens \"$1\"; {0} reach; \"$0\" opens \"$1\"",
        narrow.display()
    );
    let attack = setting.script(&script);
    attack.goes_on("narrow", Identity::User);
    assert_eq!(attack.seen(), 10, "{}", attack.story());
    if Engine::under_test() != Engine::Ebpf {
        assert!(!attack.watched.of(AIMED).is_empty(), "{}", attack.story());
    }
}

#[test]
fn long_paths_and_deep_folders_are_seen() {
    need_root!();
    let attack =
        Setting::new(Identity::User).script("cd %W && \"$0\" deep \"$1\"; \"$0\" opens \"$1\"");
    attack.goes_on("deep", Identity::User);
    attack.expect("relative", &[(0, 0)]);
    attack.expect("longest", &[(0, 0)]);
    attack.expect("too_long", &[(-1, 36)]);
    // Made and opened by its short name, opened by the longest; the last never was.
    let left_open = attack.counter("undecided");
    assert!(attack.seen() as u64 + left_open >= 8, "{}", attack.story());
}

#[test]
fn megabytes_of_arguments_hold_nothing_up() {
    need_root!();
    let attack = Setting::new(Identity::User).attack("huge");
    attack.expect("many", &[(0, 0); 3]);
    attack.expect("large", &[(0, 0)]);
    assert_eq!(attack.seen(), 6, "{}", attack.story());
    assert!(
        attack.watched.finished.elapsed < Duration::from_secs(20),
        "{}",
        attack.story()
    );
}

#[test]
fn processes_that_die_at_any_stage_harm_nobody() {
    need_root!();
    let attack = Setting::new(Identity::User).attack("dying");
    attack.expect("open", &[(0, 0)]);
    if Engine::under_test() != Engine::Ebpf {
        assert_eq!(attack.counter("receiver_panics"), 0, "{}", attack.story());
    }
    assert!(
        attack.watched.of(TIMED_OUT).is_empty(),
        "{}",
        attack.story()
    );
}

/// One call, or a hundred, pass pages that come when the workload pleases, while another thread opens
/// files.
fn held(name: &str, calls: i64) {
    let attack = Setting::new(Identity::Root).script(&format!(
        "cd %W && cp \"$0\" attack && exec ./attack {name} \"$1\" more"
    ));
    attack.goes_on(name, Identity::Root);
    attack.expect("still_held", &[(calls, 0)]);
    let count = |step: &str| attack.results(step)[0].0;
    let before = count("before");
    println!(
        "{name}: opens a second before {before}, while calls are held {} and {}, after {}",
        count("during"),
        count("later"),
        count("after")
    );
    // Slower, because the machine has few processors and pages are looked at before they are read,
    // but not held.
    assert!(count("during") > before / 20, "{}", attack.story_in_short());
    assert!(count("later") > before / 10, "{}", attack.story_in_short());
    // Each held call is told, and none but those is lost. A tracer waits for the result of those that
    // return, and learns from it what could not be read.
    let count = |name| i64::try_from(attack.counter(name)).expect("a small number");
    let undecided = count("undecided");
    let told = if Engine::under_test().traces() {
        count("unreadable")
    } else {
        undecided
    };
    // On a busy machine a call that is held is looked at again, and told twice.
    assert!(
        told >= calls && undecided < calls + 8 + calls / 4,
        "{}",
        attack.story_in_short()
    );
    assert!(
        !attack.watched.of(TIMED_OUT).is_empty(),
        "{}",
        attack.story_in_short()
    );
    assert_eq!(
        attack.watched.of(UNDECIDED).is_empty(),
        undecided == 0,
        "{}",
        attack.story_in_short()
    );
    assert!(
        attack.watched.of(CHANGED).is_empty(),
        "{}",
        attack.story_in_short()
    );
    assert!(
        attack.counter("read_timeouts") >= 1,
        "{}",
        attack.story_in_short()
    );
}

impl Attack {
    /// Without the thousands of alerts.
    fn story_in_short(&self) -> String {
        let story = self.story();
        let lines: Vec<_> = story
            .lines()
            .filter(|line| !line.contains("[Seen "))
            .collect();
        lines.join("\n")
    }
}

#[test]
fn a_page_that_does_not_come_holds_up_its_caller_alone() {
    need_held_calls!();
    need_root!();
    held("userfault", 1);
}

#[test]
fn a_hundred_pages_of_one_process_that_do_not_come_hold_up_their_callers_alone() {
    need_held_calls!();
    need_root!();
    held("userfaults", 100);
}

#[test]
fn pages_of_a_hundred_processes_that_do_not_come_hold_up_their_callers_alone() {
    need_held_calls!();
    need_root!();
    held("userfault_crowd", 100);
}

#[test]
fn programs_whose_names_do_not_come_hold_up_their_callers_alone() {
    need_held_calls!();
    need_root!();
    let attack = Setting::new(Identity::Root).command("exec_crowd");
    attack.expect("still_held", &[(20, 0)]);
    let count = |step: &str| attack.results(step)[0].0;
    // They spin, twenty on few processors, and get their share of these.
    let before = count("before");
    let held = count("during") + count("later");
    println!(
        "exec_crowd: opens a second before {before}, while execs are held {}",
        held / 2
    );
    assert!(held > before / 25, "{}", attack.story_in_short());
    assert!(
        !attack.watched.of(TIMED_OUT).is_empty(),
        "{}",
        attack.story_in_short()
    );
}

#[test]
fn a_page_of_a_file_that_does_not_come_holds_up_its_caller_alone() {
    need_held_calls!();
    need_root!();
    let _turn = with_file_systems();
    held("fuse_pages", 1);
}

/// Threads whose processes keep whoever attaches to them, or reads of them, waiting for ever: an exec, or
/// a change of the memory, that waits for a file of their own. One holds up a receiver, and eight more
/// than there are.
fn kept(name: &str, processes: i64, counted: &str) {
    let setting = Setting::new(Identity::Root);
    let attack = setting.script(&format!(
        "cd %W && cp \"$0\" attack && exec ./attack {name} \"$1\" more"
    ));
    attack.goes_on(name, Identity::Root);
    attack.expect("still_held", &[(processes, 0)]);
    let count = |step: &str| attack.results(step)[0].0;
    println!(
        "{name}: opens a second before {}, while processes keep receivers {} and {}, after {}",
        count("before"),
        count("during"),
        count("later"),
        count("after")
    );
    // Each of those has a thread that opens files as fast as it can, too.
    let share = count("before") / (2 * processes + 1);
    assert!(count("later") > share / 10, "{}", attack.story_in_short());
    // A tracer is attached already.
    if !Engine::under_test().traces() {
        assert!(attack.counter(counted) >= 1, "{}", attack.story_in_short());
        let mut told = attack.watched.alerts.iter();
        let is_told = told.any(|alert| alert.rule.ends_with(" timed out"));
        assert!(is_told, "{}", attack.story_in_short());
    }
}

#[test]
fn an_exec_that_does_not_end_keeps_nobody_from_other_processes() {
    need_held_calls!();
    need_root!();
    let _turn = with_file_systems();
    // For all runs.
    let _program = Fixture::shared("attack");
    if slow() {
        kept("held_exec", 1, "attach_timeouts");
    }
    kept("held_execs", 8, "attach_timeouts");
}

#[test]
fn no_receiver_is_put_at_risk_when_the_last_thread_is_made() {
    need_held_calls!();
    need_root!();
    let _turn = with_control_groups();
    if Engine::under_test().traces() {
        skip!("has one thread that nobody takes the place of", || Ok(
            String::from("it does not wait for pages")
        ));
    }
    let attack = Setting::new(Identity::Root)
        .script("cd %W && cp \"$0\" attack && exec ./attack crowded \"$1\" more");
    let story = attack.story_in_short();
    assert_eq!(attack.watched.code(), 0, "{story}");
    attack.expect("limited", &[(0, 0)]);
    attack.expect("fork", &[(-1, 11)]);
    attack.expect("opens", &[(5, 0)]);
    let count = |step: &str| attack.results(step)[0].0;
    for step in ["during", "later", "after"] {
        assert!(count(step) > count("before") / 20, "{step}: {story}");
    }
    let trouble = attack.watched.of("Tollgate internal: engine trouble");
    assert!(
        trouble[0].output.contains("cannot start a thread"),
        "{story}"
    );
    // Meanwhile nothing is silently passed over, and all is as before when threads can be had again.
    assert!(!attack.watched.of(UNDECIDED).is_empty(), "{story}");
    assert!(attack.watched.of(GAP).is_empty(), "{story}");
    let seen = i64::try_from(attack.seen()).expect("a small number");
    assert!(seen >= count("before") + count("after"), "{story}");
}

/// What sleeps is followed by one thread, which others that are followed can keep busy.
#[test]
fn callers_that_are_followed_all_the_time_leave_room_for_others() {
    need_held_calls!();
    need_root!();
    let attack = Setting::new(Identity::Root)
        .rules(REDIRECTED)
        .script("cd %W && \"$0\" busy \"$1\"; \"$0\" opens \"$1\"");
    attack.goes_on("busy", Identity::Root);
    let count = |step: &str| attack.results(step)[0].0;
    let (alone, slept) = (count("alone"), count("slept"));
    println!("busy: {slept} calls slept and returned in two seconds, {alone} alone");
    if !Engine::under_test().traces() {
        assert!(
            attack.counter("stdio_watches") >= 4,
            "{}",
            attack.story_in_short()
        );
        assert!(
            attack.counter("followed") >= 10,
            "{}",
            attack.story_in_short()
        );
    }
    // Four others take their share of the processors.
    assert!(slept > alone / 25, "{}", attack.story_in_short());
}

#[test]
fn memory_that_is_locked_for_ever_holds_up_nobody_else() {
    need_held_calls!();
    need_root!();
    let _turn = with_file_systems();
    // For all runs.
    let _program = Fixture::shared("attack");
    if Engine::under_test().traces() {
        skip!("looks at every page table itself", || Ok(String::from(
            "the whole workload waits, and is told of"
        )));
    }
    if slow() {
        kept("locked", 1, "read_timeouts");
    }
    kept("locked_many", 8, "read_timeouts");
}

#[test]
fn a_home_whose_server_is_watched_itself_holds_nobody_up() {
    need_root!();
    let _turn = with_file_systems();
    let attack = Setting::new(Identity::Root)
        .script("cd %W && cp \"$0\" attack && ./attack fuse_home \"$1\"; \"$0\" opens \"$1\"");
    attack.goes_on("fuse_home", Identity::Root);
    attack.expect("relative", &[(-1, 2)]);
    attack.expect("exec", &[(0, 0); 3]);
    attack.expect("absolute", &[(-1, 2)]);
    attack.expect("home", &[(0, 0)]);
    assert_eq!(
        attack.counter("undecided"),
        0,
        "{}",
        attack.story_in_short()
    );
    let elapsed = attack.watched.finished.elapsed;
    assert!(
        elapsed < Duration::from_secs(20),
        "{elapsed:?}: {}",
        attack.story_in_short()
    );
}

#[test]
fn a_stopped_caller_holds_nobody_up() {
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).attack("stopped");
        attack.expect("ended_by", &[(9, 0)]);
        assert!(
            attack.watched.finished.elapsed < Duration::from_secs(20),
            "{}",
            attack.story()
        );
    }
}

#[test]
fn a_frozen_caller_holds_nobody_up() {
    need_root!();
    let _turn = with_control_groups();
    let attack =
        Setting::new(Identity::Root).script("cd %W && \"$0\" frozen \"$1\"; \"$0\" opens \"$1\"");
    attack.goes_on("frozen", Identity::Root);
    attack.expect("moved", &[(0, 0)]);
    attack.expect("failed", &[(0, 0)]);
    attack.expect("ended_by", &[(9, 0)]);
    let elapsed = attack.watched.finished.elapsed;
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    assert_eq!(
        attack.counter("undecided"),
        0,
        "{}",
        attack.story_in_short()
    );
}

#[test]
fn a_pid_that_is_used_again_is_not_taken_for_the_process_before() {
    need_root!();
    let script =
        "cd %W && cp \"$0\" one && cp \"$0\" two && \"$0\" reuse \"$1\" && \"$0\" opens \"$1\"";
    let attack = Setting::new(Identity::Root).script(script);
    attack.goes_on("reuse", Identity::Root);
    attack.expect("same_pid", &[(100, 0)]);
    attack.expect("killed", &[(20, 0)]);
    // Of a hundred programs every fifth opens without end, and these alternate, too.
    for name in ["one", "two"] {
        let seen = attack.watched.of("Seen").into_iter();
        let count = seen
            .filter(|alert| alert.field("proc.name") == name)
            .count();
        assert!(
            count >= 5 * 40,
            "{name}: {count}: {}",
            attack.story_in_short()
        );
    }
    let seen = attack.watched.of("Seen").into_iter();
    let wrong =
        seen.filter(|alert| !["one", "two", "attack"].contains(&alert.field("proc.name").as_str()));
    assert_eq!(wrong.count(), 0, "{}", attack.story_in_short());
}

#[test]
fn children_whose_parents_are_gone_are_seen() {
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    for identity in [Identity::Docker, Identity::User] {
        let attack = Setting::new(identity).attack("orphans");
        assert_eq!(attack.seen(), 25, "{}", attack.story());
        assert_eq!(attack.counter("undecided"), 0, "{}", attack.story());
    }
}

#[test]
fn no_stock_rule_is_silently_false_for_a_process_that_cannot_be_read() {
    need_held_calls!();
    need_root!();
    // For all runs.
    let _program = Fixture::shared("attack");
    let Some(rules) = e2e::stock_rules_file() else {
        e2e::skip!("needs Falco's stable rules beside the repository", || Ok(
            "../shared/reference/upstream/falco_rules.yaml is no file".to_owned()
        ));
    };
    for &identity in Identity::READERS {
        // The file is in every image, and root alone may read it: the attempt counts.
        let watch = Watch::new(["true"])
            .place(Environment::Inside)
            .identity(identity)
            .rules_file(&rules);
        let program = watch
            .scratch()
            .program(Fixture::shared("attack").program(), "attack");
        let words = [&program.display().to_string(), "undumpable", "/etc/shadow"];
        let watched = watch.command(words.map(str::to_owned)).run();
        let attack = Attack { watched };
        let story = attack.story();
        let matched = attack.watched.of("Read sensitive file untrusted");
        let told = attack.watched.of(UNDECIDED);
        let reads_all = [Identity::Root, Identity::DockerTracing].contains(&identity);
        assert_eq!(matched.is_empty(), !reads_all, "{identity:?}: {story}");
        assert_eq!(told.is_empty(), reads_all, "{identity:?}: {story}");
        assert!(
            reads_all || attack.counter("undecided") >= 5,
            "{identity:?}: {story}"
        );
    }
}
