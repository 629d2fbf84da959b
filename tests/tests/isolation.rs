//! How well runc, gVisor and machines isolate what is watched, what that costs, and what of it is seen: the
//! same programs under each, by the same rules.
//!
//! It is a measurement: `make isolation OUT=FOLDER` writes its tables and every sample to a folder, and says on the
//! standard error what it does. `TOLLGATE_ISOLATION_ROUNDS` (5) is how often starts are measured; the loads run in
//! the first three rounds, and with 0 there are neither. No round begins when `TOLLGATE_ISOLATION_MINUTES` (30) are
//! over. On two quiet processors without KVM five rounds take a quarter of an hour, none takes four minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::runtime_fixture::{RuntimeFixture, fields, hindrance, runsc};
use e2e::{
    Alert, Finished, Fixture, Guest, Rootfs, kernel_with_modules, need_root, program, repository,
    skip, which,
};
use serde_json::{Value, json};

const FOLDER: &str = "TOLLGATE_ISOLATION";
const ROUNDS: &str = "TOLLGATE_ISOLATION_ROUNDS";
const MINUTES: &str = "TOLLGATE_ISOLATION_MINUTES";
/// For one script. The longest plays the generator's actions in an emulated machine, where each starts programs
/// for a second: 90 seconds in all beside a load of twelve, on two processors.
const LIMIT: Duration = Duration::from_secs(600);
/// What shell scripts of UnixBench need beside the programs of the root file system.
const TOOLS: [&str; 4] = ["sort", "od", "tee", "date"];
const LOADS: [&str; 12] = [
    "ub_dhry2reg",
    "ub_whetstone",
    "ub_execl",
    "ub_fstime",
    "ub_fsbuffer",
    "ub_fsdisk",
    "ub_pipe",
    "ub_context1",
    "ub_spawn",
    "ub_shell1",
    "ub_shell8",
    "ub_syscall",
];
/// Deeds that a container has no business with, as privileged as it may be. Files are opened, not written.
const ATTACKS: [&str; 24] = [
    "user_unshare",
    "mounts=/tmp",
    "opens_fs",
    "unmounts=/dev/shm",
    "pivots",
    "module_by_memory",
    "module_by_fd",
    "reads_kernel_log",
    "sets_time",
    "makes_device",
    "changes_root",
    "packets",
    "raw_icmp",
    "crypto",
    "vsock",
    "netlink",
    "ring",
    "traces_own_child",
    "follows_root=1",
    "reads=/etc/shadow",
    "writes=/proc/sys/kernel/core_pattern",
    "writes=/proc/sysrq-trigger",
    "reads=/proc/kcore",
    "bpf_load",
];
const POLICY: &str = "policy:
  enforcer: SeccompLandlock
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    hardeningRules: [disallow-create-user-ns, disallow-mount, disallow-umount, disallow-insmod]
    attackProtectionRules: [{rules: [disable-access-shadow, disable-udp]}]
    syscallRawRules:
    - {names: [init_module, finit_module, syslog, adjtimex, clock_adjtime, clock_settime, settimeofday, pivot_root, chroot, ptrace, mknod, mknodat, fsopen, io_uring_setup, bpf], action: SCMP_ACT_ERRNO}
";
/// Calls of the attacks and of the programs that lead to them.
const CALLS: &str = "accept, accept4, access, adjtimex, bind, bpf, capset, chdir, chmod, chroot, clock_adjtime, clock_settime, clone, \
    clone3, close, connect, creat, dup, dup2, dup3, execve, execveat, fchdir, fchmod, fchmodat, fork, fsopen, \
    init_module, finit_module, io_uring_setup, kill, link, linkat, mkdir, mkdirat, mknod, mknodat, mount, \
    open, openat, openat2, pipe, pipe2, pivot_root, prctl, ptrace, rename, renameat, renameat2, rmdir, sendmsg, \
    sendto, setgid, setns, setresgid, setresuid, setsid, setuid, socket, socketpair, symlink, symlinkat, \
    syslog, umount2, unlink, unlinkat, unshare, vfork";
const CAPABILITIES: [&str; 19] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_PTRACE",
    "SYSLOG",
    "SYS_TIME",
];

/// How containers are made.
struct Class {
    name: &'static str,
    runtime: String,
    /// Global options.
    options: &'static str,
    /// How often one is started in a round.
    starts: usize,
    /// Machines are kept ready for it.
    is_warm: bool,
}

impl Class {
    fn is_gvisor(&self) -> bool {
        self.name == "gVisor"
    }
}

/// All but the last also run what takes longer than a start. An error: why one does not work here.
fn classes() -> Result<[Class; 4], String> {
    if let Some(why) = hindrance("runc").or_else(Guest::missing) {
        return Err(why);
    }
    let runsc = runsc().ok_or("there is no runsc, and TOLLGATE_TEST_RUNSC names none")?;
    let class = |name, runtime: &str, options, starts| Class {
        name,
        runtime: runtime.to_owned(),
        options,
        starts,
        is_warm: name == "vm, kept ready",
    };
    Ok([
        class("runc", "runc", "", 4),
        class(
            "gVisor",
            &runsc,
            "--network=none --ignore-cgroups --platform=systrap",
            4,
        ),
        class("vm", "vm", "", 1),
        class("vm, kept ready", "vm", "", 1),
    ])
}

/// Where containers are made, with the programs that run in them.
struct Lab {
    ground: RuntimeFixture,
    rootfs: std::sync::Arc<Rootfs>,
}

impl Lab {
    fn new(rules: &str) -> Self {
        let ground = RuntimeFixture::new();
        let path = ground.scratch.path().display().to_string();
        let (kernel, modules) = kernel_with_modules();
        ground.scratch.file("rules.yaml", 0o644, rules);
        ground.scratch.file("policies/p.yaml", 0o644, POLICY);
        let ground = ground.settings(&format!(
            "runtime: {{vm_kernel: {}, vm_modules: {}, policies: {path}/policies, watch: annotated, \
             gvisor_session: {path}/session.json, accept_partial: [disable-access-shadow, \
             disallow-create-user-ns, disallow-insmod]}}\n",
            kernel.display(),
            modules.display()
        ));
        let stripped = ground.scratch.path().join("stripped");
        let done = Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(program())
            .status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "strip is part of binutils"
        );
        let violate = Fixture::compile("violate");
        ground.scratch.program(violate.program(), "violate");
        let rootfs = Rootfs::shared();
        Self { ground, rootfs }
    }

    /// A bundle of the small root file system that says something.
    fn greeting(&self, name: &str, is_watched: bool) {
        self.ground.changed_bundle(name, "echo hello", |config| {
            furnish(config, is_watched, false);
        });
    }

    /// A bundle of the large one.
    fn bundle(&self, name: &str, script: &str, is_watched: bool, is_confined: bool) {
        let bound = |source: &Path, destination: &str| {
            json!({"destination": destination, "type": "bind", "source": source,
                "options": ["rbind", "ro"]})
        };
        self.ground.changed_bundle(name, script, |config| {
            furnish(config, is_watched, is_confined);
            config["root"]["path"] = json!(self.rootfs.path());
            config["process"]["env"] =
                json!(["PATH=/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root"]);
            let all = CAPABILITIES.map(|name| format!("CAP_{name}"));
            for set in ["bounding", "effective", "permitted"] {
                config["process"]["capabilities"][set] = json!(all);
            }
            let mounts = config["mounts"].as_array_mut().expect("there are some");
            for place in ["/run", "/root", "/var/tmp", "/dev/shm"] {
                mounts.push(json!({"destination": place, "type": "tmpfs", "source": "tmpfs"}));
            }
            let scratch = self.ground.scratch.path();
            mounts.push(bound(&scratch.join("stripped"), "/usr/local/bin/tollgate"));
            mounts.push(bound(&scratch.join("violate"), "/usr/local/bin/violate"));
            for tool in TOOLS {
                mounts.push(bound(&which(tool), &format!("/usr/bin/{tool}")));
            }
        });
    }

    /// Runs a script for a class; `crt` is the runtime with its options.
    fn run(&self, class: &Class, is_watched: bool, script: &str) -> (Finished, Vec<Alert>) {
        let script = format!(
            r#"
mkdir -p root
crt() {{ bin/tollgate-runtime --runtime "{runtime}" --root "$PWD/root" {options} "$@"; }}
watch=
if {listens}; then
    test -e bin/tollgate || ln bin/tollgate-runtime bin/tollgate
    rm -f session.json
    bin/tollgate watch --gvisor "$PWD/sink" --gvisor-session session.json --rules rules.yaml --json \
        --level hunting -o stdout_output.enabled=false -o file_output.enabled=true -o file_output.filename=$PWD/alerts & watch=$!
    for try in $(seq 200); do test ! -s session.json || break; sleep 0.05; done
fi
{script}
if test -n "$watch"; then sleep 1; kill -TERM $watch; wait $watch; fi
"#,
            runtime = class.runtime,
            options = class.options,
            listens = class.is_gvisor() && is_watched,
        );
        // Each run's alerts are its own; the first has none to remove.
        let _ = std::fs::remove_file(self.ground.scratch.path().join("alerts"));
        let (finished, alerts) = self.ground.run_within(&class.runtime, &script, LIMIT);
        assert_eq!(finished.code(), 0, "{}: {finished:?}", class.name);
        (finished, alerts)
    }
}

fn furnish(config: &mut Value, is_watched: bool, is_confined: bool) {
    let mounts = config["mounts"].as_array_mut().expect("there are some");
    mounts.retain(|mount| mount["destination"] != "/out");
    if is_watched {
        config["annotations"]["tollgate.watch"] = "true".into();
    }
    if is_confined {
        config["annotations"]["tollgate.policy"] = "p".into();
    }
}

/// What is measured, as it comes.
struct Samples {
    folder: PathBuf,
    begun: Instant,
    all: Vec<Value>,
}

impl Samples {
    fn minutes(&self) -> usize {
        usize::try_from(self.begun.elapsed().as_secs() / 60).expect("it is not that old")
    }

    /// Tells who waits for it.
    fn progress(&self, does: &str) {
        let seconds = self.begun.elapsed().as_secs();
        eprintln!("{:02}:{:02} {does}", seconds / 60, seconds % 60);
    }

    fn add(&mut self, sample: Value) {
        use std::io::Write as _;
        let path = self.folder.join("samples.jsonl");
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{sample}"));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        self.all.push(sample);
    }

    /// The numbers of samples that have these values.
    fn numbers(&self, of: &[(&str, Value)], number: &str) -> Vec<f64> {
        let fits = |sample: &&Value| of.iter().all(|(key, value)| sample[*key] == *value);
        let mut numbers: Vec<_> = self
            .all
            .iter()
            .filter(fits)
            .filter_map(|sample| sample[number].as_f64())
            .collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    }
}

fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[half - 1], sorted[half]),
        _ => sorted[half],
    }
}

/// Milliseconds from the runtime's start to the container's first output.
fn start(lab: &Lab, class: &Class, is_watched: bool, round: usize, samples: &mut Samples) {
    let bundle = if is_watched { "hello-watched" } else { "hello" };
    let (before, after) = match class.is_warm {
        true => ("crt pool start 1 > pool.txt", "crt pool stop"),
        false => ("", ""),
    };
    let script = format!(
        r#"
{before}
for try in $(seq {starts}); do
    begun=$(date +%s%N)
    crt run --bundle {bundle} $ID-$try < /dev/null | {{ read line; date +%s%N > first; cat > /dev/null; }}
    echo $((($(cat first) - begun) / 1000))
done
{after}
"#,
        starts = class.starts
    );
    let (finished, _) = lab.run(class, is_watched, &script);
    let times = finished
        .stdout
        .lines()
        .filter_map(|line| line.parse::<f64>().ok());
    let times: Vec<_> = times.collect();
    assert_eq!(times.len(), class.starts, "{finished:?}");
    for time in times {
        samples.add(
            json!({"measure": "start", "class": class.name, "watched": is_watched,
            "round": round, "ms": time / 1000.0}),
        );
    }
}

/// One run of each of UnixBench's loads.
fn bench(lab: &Lab, class: &Class, is_watched: bool, round: usize, samples: &mut Samples) {
    let bundle = if is_watched { "bench-watched" } else { "bench" };
    let script = format!("crt run --bundle {bundle} $ID < /dev/null");
    let (finished, _) = lab.run(class, is_watched, &script);
    let lines = finished.stdout.lines();
    let mut measured = BTreeSet::new();
    for line in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let number = |key: &str| line[key].as_f64().expect("a load says a number");
        let speed = number("operations") / number("elapsed_ns") * 1e9;
        let load = line["workload"].as_str().expect("a load has a name");
        measured.insert(load.to_owned());
        samples.add(
            json!({"measure": "unixbench", "class": class.name, "watched": is_watched,
            "round": round, "load": load, "per_second": speed}),
        );
    }
    assert_eq!(measured, LOADS.map(str::to_owned).into(), "{finished:?}");
}

/// Geometric mean of the speeds over those of runc without a watch, as UnixBench's index is one.
fn index(samples: &Samples, class: &str, is_watched: bool) -> String {
    if samples
        .numbers(&[("measure", json!("unixbench"))], "per_second")
        .is_empty()
    {
        return "-".to_owned();
    }
    let speed = |class: &str, is_watched: bool, load: &str| {
        let of = [
            ("measure", json!("unixbench")),
            ("class", json!(class)),
            ("watched", json!(is_watched)),
            ("load", json!(load)),
        ];
        median(&samples.numbers(&of, "per_second"))
    };
    let logs = LOADS.map(|load| (speed(class, is_watched, load) / speed("runc", false, load)).ln());
    format!("{:.2}", (logs.iter().sum::<f64>() / 12.0).exp())
}

/// What came of attacks.
#[derive(Default)]
struct Attacked {
    /// Numbers of errors by deed, 0 for one that was done.
    errors: BTreeMap<String, i32>,
    has_own_kernel: bool,
    seen: BTreeSet<String>,
}

impl Attacked {
    fn failed(&self) -> usize {
        self.errors.values().filter(|error| **error != 0).count()
    }
}

fn attack(lab: &Lab, class: &Class, is_confined: bool, samples: &mut Samples) -> Attacked {
    let with = if is_confined { " with a policy" } else { "" };
    samples.progress(&format!("attacks{with}: {}", class.name));
    let bundle = if is_confined { "confined" } else { "attacks" };
    // The last deed's status is the container's.
    let script = format!("crt run --bundle {bundle} $ID < /dev/null || true");
    let (finished, alerts) = lab.run(class, true, &script);
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("procfs");
    let mut attacked = Attacked::default();
    for line in finished.stdout.lines() {
        match line.rsplit_once(' ') {
            Some(("kernel", id)) => attacked.has_own_kernel = id != host.trim(),
            Some((deed, error)) => {
                let error = error.parse().expect("a deed says a number");
                attacked.errors.insert(deed.to_owned(), error);
            }
            None => {}
        }
    }
    assert_eq!(
        attacked.errors.len(),
        ATTACKS.len(),
        "{}: {finished:?}",
        class.name
    );
    attacked.seen = fields(&alerts, "Call", "evt.type").into_iter().collect();
    for (deed, error) in &attacked.errors {
        samples.add(
            json!({"measure": "attack", "class": class.name, "policy": is_confined,
            "deed": deed, "error": error, "own_kernel": attacked.has_own_kernel}),
        );
    }
    samples.add(
        json!({"measure": "calls seen", "class": class.name, "policy": is_confined,
        "calls": attacked.seen}),
    );
    attacked
}

/// Of the actions of the event generator: which were played, and of those which had an alert of their rule.
fn play(lab: &Lab, class: &Class, samples: &mut Samples) -> BTreeMap<String, &'static str> {
    samples.progress(&format!("actions: {}", class.name));
    let (finished, alerts) = lab.run(class, true, "crt run --bundle play $ID < /dev/null || true");
    let alerted: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.rule).collect();
    let mut words = BTreeMap::new();
    let rules = rules_of_actions();
    for line in finished.stdout.lines() {
        let Ok(outcome) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let (Some(action), Some(came)) = (outcome["action"].as_str(), outcome["outcome"].as_str())
        else {
            continue;
        };
        let Some(rules) = rules.get(action) else {
            continue;
        };
        let word = match (came, rules.iter().any(|rule| alerted.contains(&**rule))) {
            ("done", true) => "alert",
            ("done", false) => "no alert",
            _ => "not played",
        };
        words.insert(action.to_owned(), word);
        samples.add(
            json!({"measure": "action", "class": class.name, "action": action,
            "outcome": came, "why": outcome["reason"], "alert": word == "alert"}),
        );
    }
    assert!(words.len() > 40, "{}: {finished:?}", class.name);
    words
}

fn rules_of_actions() -> BTreeMap<String, Vec<String>> {
    let listed = Command::new(program())
        .args(["generate", "list", "--all", "--json"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8(listed.stdout).expect("UTF-8");
    let read = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let also = value["also"].as_array().expect("a list").iter();
        let mut rules: Vec<_> = also
            .filter_map(|rule| rule.as_str().map(str::to_owned))
            .collect();
        rules.push(value["rule"].as_str()?.to_owned());
        Some((value["action"].as_str()?.to_owned(), rules))
    };
    text.lines().filter_map(read).collect()
}

/// Makes the bundles that are measured, watched and not.
fn bundles(lab: &Lab) {
    let loads = LOADS.map(|load| format!("tollgate workload {load} --seconds 1"));
    for is_watched in [false, true] {
        let name = |name: &str| format!("{name}{}", if is_watched { "-watched" } else { "" });
        lab.greeting(&name("hello"), is_watched);
        let script = format!("cd /tmp; {}", loads.join("; "));
        lab.bundle(&name("bench"), &script, is_watched, false);
    }
    lab.bundle(
        "play",
        "tollgate generate run --all --sleep 0 --json",
        true,
        false,
    );
}

/// Starts each class in turn, until the rounds or the minutes are over. Returns the number of rounds.
fn start_in_rounds(
    lab: &Lab,
    classes: &[Class],
    rounds: usize,
    minutes: usize,
    samples: &mut Samples,
) -> usize {
    let mut done = 0;
    for round in 0..rounds {
        if samples.minutes() >= minutes {
            samples.progress(&format!("{minutes} minutes are over: no more rounds"));
            break;
        }
        done = round + 1;
        // Each comes first in turn.
        let order = (0..classes.len()).map(|at| &classes[(at + round) % classes.len()]);
        for class in order {
            for is_watched in [false, true] {
                let watched = if is_watched { ", watched" } else { "" };
                samples.progress(&format!(
                    "round {done} of {rounds}: {}{watched}",
                    class.name
                ));
                start(lab, class, is_watched, round, samples);
                if !class.is_warm && round < 3 {
                    bench(lab, class, is_watched, round, samples);
                }
            }
        }
    }
    done
}

/// Makes the attacks in each class, without a policy and with one where the class can have it.
fn attack_all(classes: &[Class], samples: &mut Samples) -> (Vec<Attacked>, Vec<Option<Attacked>>) {
    let rule = format!(
        "- rule: Call\n  desc: any\n  condition: evt.type in ({CALLS}) and container.id != host\n  \
         output: call %evt.type\n  priority: DEBUG\n"
    );
    let lab = Lab::new(&rule);
    let attacks = format!(
        "echo kernel $(cat /proc/sys/kernel/random/boot_id || echo none); violate {}",
        ATTACKS.join(" ")
    );
    lab.bundle("attacks", &attacks, true, false);
    lab.bundle("confined", &attacks, true, true);
    let attacked: Vec<_> = classes
        .iter()
        .map(|class| attack(&lab, class, false, samples))
        .collect();
    let confined: Vec<_> = classes
        .iter()
        .map(|class| (!class.is_gvisor()).then(|| attack(&lab, class, true, samples)))
        .collect();
    (attacked, confined)
}

#[test]
fn how_well_each_class_isolates() {
    need_root!();
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        skip!("is a measurement", || Ok(format!(
            "{FOLDER} names no folder"
        )));
    };
    let number = |name: &str, usual: usize| {
        std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
    };
    let (rounds, minutes) = (number(ROUNDS, 5), number(MINUTES, 30));
    let classes = classes().unwrap_or_else(|why| panic!("cannot measure: {why}"));
    let folder = repository().join(folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let mut samples = Samples {
        folder: folder.clone(),
        begun: Instant::now(),
        all: Vec::new(),
    };
    let before = load();
    let rules = ["rules/default.yaml", "rules/more.yaml"]
        .map(|file| std::fs::read_to_string(repository().join(file)).expect("it is part of this"));
    let lab = Lab::new(&rules.concat());
    bundles(&lab);
    let done = start_in_rounds(&lab, &classes, rounds, minutes, &mut samples);
    let longer = &classes[..3];
    let played: Vec<_> = longer
        .iter()
        .map(|class| play(&lab, class, &mut samples))
        .collect();
    let (attacked, confined) = attack_all(longer, &mut samples);
    let tables = [
        table_of_classes(&classes, &samples, &attacked, &confined, &played),
        table_of_attacks(longer, &attacked, &confined),
        table_of_actions(longer, &played),
    ];
    let host = host(&classes, &before, done);
    let text = serde_json::to_string_pretty(&host).expect("it is JSON") + "\n";
    for (name, text) in [("host.json", text), ("summary.md", tables.join("\n"))] {
        println!("{text}");
        std::fs::write(folder.join(name), text).expect("the folder can be written to");
    }
}

/// Returns the cell of the table with the times that a class takes to start.
fn start_times(samples: &Samples, class: &str, is_watched: bool) -> String {
    let of = [
        ("measure", json!("start")),
        ("class", json!(class)),
        ("watched", json!(is_watched)),
    ];
    let times = samples.numbers(&of, "ms");
    if times.is_empty() {
        return "-".to_owned();
    }
    let [least, most] = [times[0], times[times.len() - 1]];
    format!("{:.0} ({least:.0} to {most:.0})", median(&times))
}

fn table_of_classes(
    classes: &[Class],
    samples: &Samples,
    attacked: &[Attacked],
    confined: &[Option<Attacked>],
    played: &[BTreeMap<String, &'static str>],
) -> String {
    let mut table = String::from(
        "| | start, ms (least to most) | the same, watched | UnixBench over runc | the same, watched | kinds of \
         calls seen | attacks that fail | done in a kernel of its own | done in this machine's kernel | fail \
         with a policy | actions with their alert, of those played |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (at, class) in classes.iter().enumerate() {
        let start = |is_watched: bool| start_times(samples, class.name, is_watched);
        write!(
            table,
            "| {} | {} | {} |",
            class.name,
            start(false),
            start(true)
        )
        .expect("a text takes everything");
        let Some(plain) = attacked.get(at) else {
            // It differs in its start alone.
            table.push_str(&" as vm |".repeat(8));
            table.push('\n');
            continue;
        };
        let all = ATTACKS.len();
        let done = all - plain.failed();
        let (own, this) = if plain.has_own_kernel {
            (done, 0)
        } else {
            (0, done)
        };
        let policy = confined[at]
            .as_ref()
            .map_or("refused".to_owned(), |confined| {
                format!("{} of {all}", confined.failed())
            });
        let count = |word: &str| played[at].values().filter(|is| **is == word).count();
        writeln!(
            table,
            " {} | {} | {} | {} of {all} | {own} | {this} | {policy} | {} of {} |",
            index(samples, class.name, false),
            index(samples, class.name, true),
            plain.seen.len(),
            plain.failed(),
            count("alert"),
            count("alert") + count("no alert"),
        )
        .expect("a text takes everything");
    }
    table
}

fn table_of_attacks(
    classes: &[Class],
    attacked: &[Attacked],
    confined: &[Option<Attacked>],
) -> String {
    let mut names = Vec::new();
    let mut columns = Vec::new();
    for ((class, plain), policy) in classes.iter().zip(attacked).zip(confined) {
        names.push(class.name.to_owned());
        columns.push(plain);
        if let Some(policy) = policy {
            names.push(format!("{}, policy", class.name));
            columns.push(policy);
        }
    }
    let mut table = heading("deed", &names);
    for deed in ATTACKS {
        write!(table, "| `{deed}` |").expect("a text takes everything");
        for attacked in &columns {
            let word = match attacked.errors[deed] {
                0 if attacked.has_own_kernel => "done in its own kernel".to_owned(),
                0 => "done".to_owned(),
                error => format!("fails ({error})"),
            };
            write!(table, " {word} |").expect("a text takes everything");
        }
        table.push('\n');
    }
    table
}

fn table_of_actions(classes: &[Class], played: &[BTreeMap<String, &'static str>]) -> String {
    let names: Vec<_> = classes.iter().map(|class| class.name.to_owned()).collect();
    let mut table = heading("action", &names);
    let all: BTreeSet<&String> = played.iter().flat_map(BTreeMap::keys).collect();
    for action in all {
        write!(table, "| {action} |").expect("a text takes everything");
        for words in played {
            let word = words.get(action).copied().unwrap_or("not played");
            write!(table, " {word} |").expect("a text takes everything");
        }
        table.push('\n');
    }
    table
}

fn heading(first: &str, names: &[String]) -> String {
    let lines = "---|".repeat(names.len() + 1);
    format!("| {first} | {} |\n|{lines}\n", names.join(" | "))
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").expect("procfs")
}

/// What was measured with.
fn host(classes: &[Class], before: &str, rounds: usize) -> Value {
    let first = |program: &str, argument: &str| {
        let output = Command::new(program)
            .arg(argument)
            .output()
            .expect("it was just used");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let read = |file: &str| {
        std::fs::read_to_string(file)
            .expect("procfs")
            .trim()
            .to_owned()
    };
    let cpus = read("/proc/cpuinfo");
    let models = cpus
        .lines()
        .filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<_> = models
        .map(|model| model.trim_start_matches(['\t', ' ', ':']))
        .collect();
    let (kernel, _) = kernel_with_modules();
    let commit = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(repository())
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    json!({
        "command": "make isolation OUT=FOLDER",
        "rounds": rounds,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpu_model": models.first(),
        "cpus": models.len(),
        "commit": commit.ok(),
        "versions": {
            "tollgate": first(&program().display().to_string(), "--version"),
            "runc": first("runc", "--version"),
            "runsc": first(&classes[1].runtime, "--version"),
            "qemu": first("qemu-system-x86_64", "--version"),
            "guest kernel": kernel.file_name().map(|name| name.to_string_lossy().into_owned()),
        },
        "load_before": before.trim(),
        "load_after": load().trim(),
    })
}
