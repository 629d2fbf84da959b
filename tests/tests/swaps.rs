//! A name that is swapped under the call by whatever way somebody comes to a program's memory: under
//! `--verify always` each open is evaluated by the file that it opened.

use std::fs;
use std::time::Duration;

use e2e::{Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root, skip, slow};

const CHANGED: &str = "Tollgate internal: arguments changed under the call";

/// Opens of the other file by each way.
/// Number of swaps of each way.
fn swaps() -> u64 {
    if slow() { 2_000 } else { 500 }
}

const SHADOW: &str = "\
- rule: Shadow
  desc: the file that is not the one that was read
  condition: evt.type in (open, openat, openat2) and fd.name endswith /files/shadow and fd.num >= 0
  output: opened %fd.name (name=%evt.arg.name res=%evt.res)
  priority: WARNING
";

/// The program that is watched, with a folder of its own.
struct Swapper {
    watch: Watch,
    program: String,
    folder: String,
}

impl Swapper {
    fn new() -> Self {
        let fixture = Fixture::shared("swapper");
        let watch = Watch::new(["true"]).limit(Duration::from_secs(180));
        let program = watch.scratch().program(fixture.program(), "swapper");
        let folder = watch.scratch().path().join("files");
        fs::create_dir_all(&folder).expect("the scratch folder is writable");
        for name in ["passwd", "shadow"] {
            fs::write(folder.join(name), name).expect("writable");
        }
        Self {
            watch,
            program: program.display().to_string(),
            folder: folder.display().to_string(),
        }
    }

    fn watched(self, way: &str, count: u64, mode: &str) -> WatchResult {
        let count = count.to_string();
        let command = [&self.program, way, &self.folder, &count].map(str::to_owned);
        let watch = self.watch.command(command).rules(SHADOW);
        let options = ["--verify", mode, "-o", "outputs_queue.capacity=100000"];
        let watch = options
            .into_iter()
            .fold(watch, |watch, option| watch.option(option));
        watch.run()
    }
}

fn ways() -> Vec<String> {
    let program = Fixture::shared("swapper");
    let listed = std::process::Command::new(program.program())
        .arg("list")
        .output();
    let text = String::from_utf8(listed.expect("it was compiled").stdout).expect("it is ASCII");
    text.lines().map(str::to_owned).collect()
}

/// What the program counted: opens of the one file, and of the other.
fn account(watched: &WatchResult) -> (u64, u64) {
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let mut lines = watched.printed.lines();
    let line = lines.find(|line| line.starts_with("one "));
    let line = line.unwrap_or_else(|| panic!("no account: {}", watched.story()));
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

fn count(watched: &WatchResult, name: &str) -> u64 {
    let stats = watched.stats.as_ref();
    let value = stats.and_then(|stats| stats["counters"][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in the stats: {}", watched.story()))
}

macro_rules! need_comparisons {
    () => {
        need_root!();
        if Engine::under_test() == Engine::Ebpf {
            skip!("sees what the kernel reads", || Ok(String::from("ebpf")));
        }
    };
}

/// Each open of the other file is an alert and none of the one is, because each was compared.
fn is_found(way: &str, watched: &WatchResult) {
    let (one, other) = account(watched);
    let told = format!("{way}: {one} and {other}, {:?}", watched.stats);
    assert_eq!(other, swaps(), "{told}");
    assert_eq!(count(watched, "matched"), other, "{told}");
    // Those are not that were made before the first word was written.
    assert!(count(watched, "verified") > other, "{told}");
    assert_eq!(count(watched, "verify_failed"), 0, "{told}");
}

#[test]
fn every_swap_is_found_whatever_way_its_writer_came() {
    need_comparisons!();
    let _program = Fixture::shared("swapper");
    let mut changed = 0;
    let ways = ways();
    assert!(ways.len() > 20, "{ways:?}");
    for way in ways.iter().filter(|way| *way != "ptrace") {
        let watched = Swapper::new().watched(way, swaps(), "always");
        is_found(way, &watched);
        let reported = watched.of(CHANGED).len();
        assert!(reported > 0 || count(&watched, "arguments_changed") == 0);
        changed += count(&watched, "arguments_changed");
    }
    let least = swaps() / 2;
    assert!(changed > least, "there was hardly a race: {changed}");
}

#[test]
fn swaps_by_asynchronous_io_are_found() {
    need_comparisons!();
    let watched = Swapper::new().watched("aio", swaps(), "always");
    is_found("aio", &watched);
}

/// Who is traced cannot be asked for results: each call that a rule may match is reported as undecided.
#[test]
fn swaps_by_a_tracer_are_found_or_reported_as_undecided() {
    need_comparisons!();
    if Engine::under_test().traces() {
        skip!("cannot be traced twice", || Ok(String::from("ptrace")));
    }
    let watched = Swapper::new().watched("ptrace", swaps(), "always");
    let (_, other) = account(&watched);
    let told = count(&watched, "matched") + count(&watched, "undecided");
    assert!(told >= other, "{told} of {other}: {:?}", watched.stats);
    let traced = watched.of("Tollgate internal: traced by another process");
    assert_eq!(traced.len(), 1, "{}", watched.story());
}

#[test]
fn swaps_are_found_in_a_container_and_as_a_user() {
    need_comparisons!();
    let all = ["reopened", "inherited-exec", "private-file", "mprotect"];
    for (turn, (place, identity)) in [
        (Environment::Inside, Identity::Docker),
        (Environment::Host, Identity::User),
    ]
    .into_iter()
    .enumerate()
    {
        // Each way by one of the two, and by both when slow tests are asked for.
        let (begin, step) = if slow() { (0, 1) } else { (turn, 2) };
        for way in all.into_iter().skip(begin).step_by(step) {
            let swapper = Swapper::new();
            let script = "mkdir -p %W/own/files && cd %W/own/files && echo x >passwd && echo y >shadow \
                          && exec \"$0\" \"$1\" \"$PWD\" 2000";
            let words = ["sh", "-c", script, &swapper.program, way];
            let watch = swapper.watch.command(words.map(str::to_owned));
            let watched = watch
                .place(place)
                .identity(identity)
                .rules(SHADOW)
                .option("--verify")
                .option("always")
                .option("-o")
                .option("outputs_queue.capacity=100000")
                .run();
            let (_, other) = account(&watched);
            // The shell opens it once to write it.
            let matched = count(&watched, "matched");
            let told = format!("{way} {place:?} {identity:?}: {:?}", watched.stats);
            assert_eq!(matched, other + 1, "{told}");
        }
    }
}

/// A process maps memory that others can write, makes two children and ends before they make a call: each is the
/// other's writer, and whoever adopted them says nothing of that. 1,000 such processes, 3,000 when slow tests are asked
/// for.
#[test]
fn memory_of_a_parent_that_is_gone_is_still_shared() {
    need_comparisons!();
    let processes = if slow() { 3_000 } else { 1_000 };
    for mode in ["sampled", "always"] {
        let watched = Swapper::new().watched("orphans", processes, mode);
        let (one, other) = account(&watched);
        assert_eq!((one, other), (processes, 0), "{mode}");
        let verified = count(&watched, "verified");
        // Each opens one file, well within the budget.
        assert!(
            verified >= processes,
            "{mode}: {verified} {:?}",
            watched.stats
        );
        assert_eq!(count(&watched, "arguments_changed"), 0, "{mode}");
    }
}

/// The kernel does not tell afterwards what a call removed. A name that is another one by then is reported, and
/// a rule that is about either evaluates the call.
#[test]
fn other_calls_whose_names_are_others_afterwards_are_reported() {
    need_comparisons!();
    let rule = "\
- rule: Removed
  desc: the file that may not be removed
  condition: evt.type in (unlink, unlinkat) and (evt.arg.path endswith /shadow or evt.arg.name endswith /shadow)
  output: removed (res=%evt.res)
  priority: WARNING
";
    let found = |mode: &str| {
        let swapper = Swapper::new();
        let command = [&swapper.program, "unlinks", &swapper.folder, "3000"].map(str::to_owned);
        let watch = swapper.watch.command(command).rules(rule);
        let options = ["--verify", mode, "-o", "outputs_queue.capacity=100000"];
        let add = |watch: Watch, option| watch.option(option);
        let watched = options.into_iter().fold(watch, add).run();
        let (one, other) = account(&watched);
        assert!(one > 0 && other > 0, "{one} {other}");
        let reported = watched.of(CHANGED).len();
        (count(&watched, "arguments_changed"), reported)
    };
    let (changed, reported) = found("always");
    assert!(changed > 10 && reported > 0, "{changed} {reported}");
    assert_eq!(found("off"), (0, 0));
}

/// One thread, a name in its own memory, and nobody who can write that: no call is stopped for it.
#[test]
fn a_name_that_nobody_can_change_is_not_verified() {
    need_comparisons!();
    let watched = Swapper::new().watched("none", 2_000, "always");
    assert_eq!(account(&watched), (2_000, 0));
    // The loader's names are in its file.
    let verified = count(&watched, "verified");
    assert!(verified < 30, "{verified}: {}", watched.story());
    assert_eq!(count(&watched, "matched"), 0);
}

/// Names in files, memory that processes share, and opens for writing are everywhere.
#[test]
fn honest_programs_raise_no_alert() {
    need_comparisons!();
    let processes = "\
import multiprocessing, mmap, os, tempfile
from multiprocessing import shared_memory
def work(n):
    for name in ['/etc/os-release', '/etc/passwd', '/usr/lib/os-release', '/proc/self/status']:
        open(name).close()
    with open('/proc/self/comm', 'w') as file: file.write('worker')
    with open('/proc/self/oom_score_adj', 'w') as file: file.write('100')
    with tempfile.NamedTemporaryFile() as file:
        file.write(b'x' * 4096); file.flush()
        with mmap.mmap(file.fileno(), 4096) as mapped: mapped[0:5] = b'12345'
    return n
if __name__ == '__main__':
    block = shared_memory.SharedMemory(create=True, size=4096)
    with multiprocessing.Pool(3) as pool: assert sum(pool.map(work, range(60))) == 1770
    block.close(); block.unlink()
    multiprocessing.set_start_method('spawn', force=True)
    with multiprocessing.Pool(2) as pool: assert sum(pool.map(work, range(10))) == 45
    print('done')
";
    let shell = "for n in $(seq 40); do echo $n >/dev/null; echo $n >%W/file$n; cat %W/file$n; done \
                 | sort | uniq -c >%W/sorted; tar -C %W -cf %W/../all.tar . ; rm -f %W/../all.tar; \
                 exec 3<>/proc/self/fd/1; echo x >&3; echo y >/dev/stdout; dd if=/proc/self/mem of=/dev/null count=0";
    // A server of several processes with shared memory, and one program whose threads open files.
    let server = "mkdir -p %W/web/logs && cd %W/web && echo hello >index.html && { command -v nginx && { \
                  printf 'user root; worker_processes 2; pid logs/pid; events {} http { server { \
                  listen unix:%W/web/socket; root %W/web; } }' >nginx.conf; \
                  nginx -p %W/web -c %W/web/nginx.conf -e logs/error.log && \
                  for n in $(seq 50); do curl -s --unix-socket %W/web/socket http://web/ >/dev/null || exit 9; done; \
                  nginx -p %W/web -c %W/web/nginx.conf -e logs/error.log -s quit; }; \
                  command -v node && node -e 'const fs = require(\"fs\"); let left = 200; \
                  for (let n = 0; n < 200; n++) fs.readFile(\"/etc/os-release\", () => { \
                  if (--left == 0) fs.writeFileSync(\"%W/web/done\", \"x\"); });'; }; exit 0";
    let watches = [
        ("shell", Watch::script(shell)),
        ("server", Watch::script(server)),
        ("python", {
            let watch = Watch::new(["true"]);
            let script = watch.scratch().file("processes.py", 0o644, processes);
            watch.command(["python3".to_owned(), script.display().to_string()])
        }),
    ];
    for (name, watch) in watches {
        let watch = watch.rules(SHADOW).option("--verify").option("always");
        let watched = watch.limit(Duration::from_secs(120)).run();
        assert_eq!(watched.code(), 0, "{name}: {}", watched.story());
        for counter in ["arguments_changed", "verify_failed", "matched"] {
            let found = count(&watched, counter);
            assert_eq!(found, 0, "{name}: {counter}: {}", watched.story());
        }
        assert!(count(&watched, "verified") > 20, "{name}");
    }
}
