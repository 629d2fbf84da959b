//! How well runc, gVisor and machines isolate what is watched, and what of it is seen: the same programs
//! under each, by the same rules.
//!
//! `TOLLGATE_TEST_SLOW=1 TOLLGATE_ISOLATION=FILE cargo test -p e2e --test isolation -- --nocapture` writes
//! the tables of docs/isolation.md to FILE; a release build and an idle machine give figures that mean
//! something.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use e2e::ground::{Ground, fields, hindrance};
use e2e::{
    Alert, Finished, Fixture, Rootfs, installed, kernel_with_modules, need_root, need_slow,
    program, repository, skip, which,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(1500);
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
/// Deeds that a container has no business with, as privileged as it may be.
const ATTACKS: [&str; 20] = [
    "user_unshare",
    "mounts=/tmp",
    "opens_fs",
    "unmounts=/proc",
    "pivots",
    "module_by_memory",
    "module_by_fd",
    "reads_kernel_log",
    "sets_time",
    "makes_device=/tmp/device",
    "changes_root",
    "packets",
    "raw_icmp",
    "crypto",
    "vsock",
    "netlink",
    "ring",
    "traces_own_child",
    "follows_root",
    "reads=/etc/shadow",
];
const POLICY: &str = "policy:
  enforcer: SeccompLandlock
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    hardeningRules: [disallow-create-user-ns, disallow-mount, disallow-umount, disallow-insmod, disallow-load-ebpf]
    attackProtectionRules: [{rules: [disable-access-shadow, disable-udp]}]
    syscallRawRules:
    - {names: [init_module, finit_module, syslog, clock_settime, settimeofday, pivot_root, chroot, ptrace, mknod, mknodat, fsopen, io_uring_setup], action: SCMP_ACT_ERRNO}
";
/// Calls of the attacks and of the programs that lead to them.
const CALLS: &str = "accept, accept4, access, adjtimex, bind, bpf, capset, chdir, chmod, chroot, clock_settime, clone, \
    clone3, close, connect, creat, dup, dup2, dup3, execve, execveat, fchdir, fchmod, fchmodat, fork, fsopen, \
    init_module, finit_module, io_uring_setup, kill, link, linkat, mkdir, mkdirat, mknod, mknodat, mount, \
    open, openat, openat2, pipe, pipe2, pivot_root, prctl, ptrace, rename, renameat, renameat2, rmdir, sendmsg, \
    sendto, setgid, setns, setresgid, setresuid, setsid, setuid, socket, socketpair, symlink, symlinkat, \
    syslog, umount2, unlink, unlinkat, unshare, vfork";

/// Ends a test unless its tables are wanted: they take many minutes.
macro_rules! need_file {
    () => {
        if std::env::var_os("TOLLGATE_ISOLATION").is_none() {
            skip!("is a measurement", || Ok(String::from(
                "TOLLGATE_ISOLATION names no file"
            )));
        }
    };
}

/// How containers are made.
struct Class {
    name: &'static str,
    runtime: String,
    /// Global options.
    options: &'static str,
}

impl Class {
    fn is_gvisor(&self) -> bool {
        self.name == "gVisor"
    }
}

/// Those that work here.
fn classes() -> Vec<Class> {
    let mut classes = Vec::new();
    if hindrance("runc").is_none() {
        classes.push(Class {
            name: "runc",
            runtime: "runc".to_owned(),
            options: "",
        });
    }
    let runsc = std::env::var("TOLLGATE_TEST_RUNSC").ok();
    if let Some(runtime) = runsc.or_else(|| installed("runsc").then(|| "runsc".to_owned())) {
        let options = "--network=none --ignore-cgroups --platform=systrap";
        classes.push(Class {
            name: "gVisor",
            runtime,
            options,
        });
    }
    if installed("qemu-system-x86_64") {
        classes.push(Class {
            name: "vm",
            runtime: "vm".to_owned(),
            options: "",
        });
    }
    classes
}

/// A ground with a larger root file system, rules and settings for all classes.
fn ground(rules: &str) -> Ground {
    let ground = Ground::new();
    let path = ground.scratch.path().display().to_string();
    let (kernel, modules) = kernel_with_modules();
    ground.scratch.file("rules.yaml", 0o644, rules);
    ground.scratch.file("policies/p.yaml", 0o644, POLICY);
    ground.settings(&format!(
        "runtime: {{vm_kernel: {}, vm_modules: {}, policies: {path}/policies, gvisor_session: \
         {path}/session.json, accept_partial: [disable-access-shadow, disallow-create-user-ns]}}\n",
        kernel.display(),
        modules.display()
    ))
}

fn bundle(ground: &Ground, rootfs: &Rootfs, name: &str, script: &str, policy: bool) {
    let bound = |source: &std::path::Path, destination: &str| json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "ro"]});
    ground.changed_bundle(name, script, |config| {
        config["root"]["path"] = json!(rootfs.path());
        config["process"]["env"] = json!(["PATH=/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root"]);
        let all = abi_capabilities();
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = all.clone();
        }
        let mounts = config["mounts"].as_array_mut().expect("there are some");
        mounts.retain(|mount| mount["destination"] != "/out");
        for place in ["/run", "/root", "/var/tmp", "/dev/shm"] {
            mounts.push(json!({"destination": place, "type": "tmpfs", "source": "tmpfs"}));
        }
        mounts.push(bound(
            &ground.scratch.path().join("stripped"),
            "/usr/local/bin/tollgate",
        ));
        mounts.push(bound(
            &ground.scratch.path().join("violate"),
            "/usr/local/bin/violate",
        ));
        for tool in TOOLS {
            mounts.push(bound(&which(tool), &format!("/usr/bin/{tool}")));
        }
        if policy {
            config["annotations"]["tollgate.policy"] = "p".into();
        }
    });
}

fn abi_capabilities() -> Value {
    let names = [
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
    names.map(|name| format!("CAP_{name}")).to_vec().into()
}

/// Programs that containers of a ground get.
fn equip(ground: &Ground) {
    let stripped = ground.scratch.path().join("stripped");
    let done = std::process::Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(program())
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "strip is part of binutils"
    );
    ground
        .scratch
        .program(Fixture::compile("violate").program(), "violate");
}

/// Runs a script for a class; `crt` is the runtime with its options.
fn run(ground: &Ground, class: &Class, script: &str) -> (Finished, Vec<Alert>) {
    let script = format!(
        r#"
mkdir -p "roots/{name}"
crt() {{ bin/tollgate-runtime --runtime "{runtime}" --root "$PWD/roots/{name}" {options} "$@"; }}
watch=
if test "{name}" = gVisor; then
    test -e bin/tollgate || ln bin/tollgate-runtime bin/tollgate
    bin/tollgate watch --gvisor "$PWD/sink" --gvisor-session session.json --rules rules.yaml --json \
        -o stdout_output.enabled=false -o file_output.enabled=true -o file_output.filename=$PWD/alerts & watch=$!
    for try in $(seq 200); do test ! -s session.json || break; sleep 0.05; done
fi
{script}
if test -n "$watch"; then sleep 1; kill -TERM $watch; wait $watch; fi
"#,
        name = class.name,
        runtime = class.runtime,
        options = class.options,
    );
    // Each class's alerts are its own.
    let _none_yet = std::fs::remove_file(ground.scratch.path().join("alerts"));
    ground.run_within(&class.runtime, &script, LIMIT)
}

/// Milliseconds from `create` to the first output, in the middle of some.
fn start_time(ground: &Ground, class: &Class) -> f64 {
    let rounds = if class.name == "vm" { 3 } else { 9 };
    let script = format!(
        r#"
for round in $(seq {rounds}); do
    begun=$(date +%s%N)
    crt run --bundle hello $ID-$round < /dev/null | {{ read line; date +%s%N > first; cat > /dev/null; }}
    echo $((($(cat first) - begun) / 1000))
done
"#
    );
    let (finished, _) = run(ground, class, &script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let mut times: Vec<f64> = finished
        .stdout
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] / 1000.0
}

/// Operations in a second by load.
fn speeds(ground: &Ground, class: &Class) -> BTreeMap<String, f64> {
    let (finished, _) = run(ground, class, "crt run --bundle bench $ID < /dev/null");
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines = finished.stdout.lines();
    let measured = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let speed = |line: Value| {
        let name = line["workload"].as_str()?.to_owned();
        Some((
            name,
            line["operations"].as_f64()? / line["elapsed_ns"].as_f64()? * 1e9,
        ))
    };
    measured.filter_map(speed).collect()
}

/// Geometric mean of the speeds over those of another class, as UnixBench's index is one.
fn index(speeds: &BTreeMap<String, f64>, base: &BTreeMap<String, f64>) -> f64 {
    let logs: Vec<f64> = base
        .iter()
        .filter_map(|(load, speed)| Some((speeds.get(load)? / speed).ln()))
        .collect();
    assert_eq!(logs.len(), LOADS.len(), "{speeds:?} {base:?}");
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

/// Which attacks fail.
fn failures(text: &str) -> BTreeSet<String> {
    let outcome = |line: &str| {
        let (deed, number) = line.rsplit_once(' ')?;
        let number: i32 = number.parse().ok()?;
        (number != 0).then(|| deed.to_owned())
    };
    text.lines().filter_map(outcome).collect()
}

#[test]
fn how_well_each_class_isolates() {
    need_root!();
    need_slow!();
    need_file!();
    let classes = classes();
    if classes.len() < 2 {
        skip!("needs two of runc, runsc and QEMU", || Ok(format!(
            "{} found",
            classes.len()
        )));
    }
    let rules = format!(
        "- rule: Call\n  desc: any\n  condition: evt.type in ({CALLS}) and container.id != host\n  \
         output: call %evt.type\n  priority: DEBUG\n"
    );
    let ground = ground(&rules);
    equip(&ground);
    let rootfs = Rootfs::shared();
    let attacks = format!("violate {}", ATTACKS.join(" "));
    bundle(&ground, &rootfs, "hello", "echo hello", false);
    bundle(&ground, &rootfs, "attacks", &attacks, false);
    bundle(&ground, &rootfs, "confined", &attacks, true);
    let loads: Vec<_> = LOADS
        .iter()
        .map(|load| format!("tollgate workload {load} --seconds 1"))
        .collect();
    bundle(
        &ground,
        &rootfs,
        "bench",
        &format!("cd /tmp; {}", loads.join("; ")),
        false,
    );
    let mut table = String::from(
        "| | start, ms | UnixBench index over runc's | kinds of calls seen | attacks that fail | with a policy | \
         calls of the container reach this machine's kernel |\n|---|---|---|---|---|---|---|\n",
    );
    let mut base = None;
    for class in &classes {
        let start = start_time(&ground, class);
        let speeds = speeds(&ground, class);
        let base = base.get_or_insert_with(|| speeds.clone());
        let (finished, alerts) = run(
            &ground,
            class,
            "crt run --bundle attacks $ID < /dev/null || true",
        );
        let attempted = finished
            .stdout
            .lines()
            .filter(|line| line.contains(' '))
            .count();
        assert_eq!(attempted, ATTACKS.len(), "{}: {finished:?}", class.name);
        let failed = failures(&finished.stdout);
        let seen: BTreeSet<_> = fields(&alerts, "Call", "evt.type").into_iter().collect();
        let confined = if class.is_gvisor() {
            "refused".to_owned()
        } else {
            let (finished, _) = run(
                &ground,
                class,
                "crt run --bundle confined $ID < /dev/null || true",
            );
            let stopped = failures(&finished.stdout);
            assert!(stopped.len() > failed.len(), "{}: {finished:?}", class.name);
            format!("{} of {}", stopped.len(), ATTACKS.len())
        };
        let name = class.name;
        let index = index(&speeds, base);
        let reaches = if name == "runc" { "all" } else { "none" };
        writeln!(
            table,
            "| {name} | {start:.0} | {index:.2} | {} | {} of {} | {confined} | {reaches} |",
            seen.len(),
            failed.len(),
            ATTACKS.len()
        )
        .expect("a text takes everything");
        println!("{name}: seen {seen:?}; failed {failed:?}");
    }
    publish(&table);
}

/// What `tollgate generate` plays, by class.
#[test]
fn gvisor_and_machines_give_the_alerts_of_runc_for_what_they_can_express() {
    need_root!();
    need_slow!();
    need_file!();
    let classes = classes();
    if classes.len() < 2 || classes[0].name != "runc" {
        skip!("needs runc and one of runsc and QEMU", || Ok(format!(
            "{} found",
            classes.len()
        )));
    }
    let rules = ["rules/default.yaml", "rules/more.yaml"]
        .map(|file| std::fs::read_to_string(repository().join(file)).expect("it is part of this"));
    let ground = ground(&rules.concat());
    equip(&ground);
    let rootfs = Rootfs::shared();
    bundle(
        &ground,
        &rootfs,
        "play",
        "tollgate generate run --all --sleep 0ms --json",
        false,
    );
    let mut of_class = Vec::new();
    for class in &classes {
        let (finished, alerts) = run(
            &ground,
            class,
            "crt run --bundle play $ID < /dev/null || true",
        );
        println!("{}: {}", class.name, finished.stdout);
        let rules: BTreeSet<String> = alerts.iter().map(|alert| alert.rule.clone()).collect();
        of_class.push(rules);
    }
    let of_rules = |rules: &BTreeSet<String>| -> BTreeSet<String> {
        let own = |rule: &&String| {
            !rule.starts_with("Tollgate internal") && !rule.starts_with("Falco internal")
        };
        rules.iter().filter(own).cloned().collect()
    };
    let on_runc = of_rules(&of_class[0]);
    assert!(on_runc.len() >= 15, "{on_runc:?}");
    let mut table = String::from("| rule |");
    for class in &classes {
        write!(table, " {} |", class.name).expect("a text takes everything");
    }
    table.push_str(&format!("\n|{}\n", "---|".repeat(classes.len() + 1)));
    let all: BTreeSet<String> = of_class.iter().flat_map(&of_rules).collect();
    for rule in &all {
        write!(table, "| {rule} |").expect("a text takes everything");
        for rules in &of_class {
            let word = if rules.contains(rule) { "alert" } else { "-" };
            write!(table, " {word} |").expect("a text takes everything");
        }
        table.push('\n');
    }
    publish(&table);
    for (class, rules) in classes.iter().zip(&of_class) {
        if class.name == "vm" {
            assert_eq!(of_rules(rules), on_runc);
        }
        if class.is_gvisor() {
            assert!(
                of_rules(rules).len() * 2 > on_runc.len(),
                "{rules:?} {on_runc:?}"
            );
        }
    }
}

/// Prints a table, and adds it to the file that is named.
fn publish(table: &str) {
    println!("{table}");
    if let Some(path) = std::env::var_os("TOLLGATE_ISOLATION") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{table}"));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}
