//! What rules carried by each enforcer cost UnixBench's tests, in instructions.
//!
//! The emulated machine's clock moves by one nanosecond for each instruction, so that the figures are the
//! same on any host, busy or idle. What they leave out is memory: a cache that is missed costs nothing there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::{Guest, Identity};
use serde_json::{Value, json};

const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";

/// UnixBench's tests as loads of ours, and how many operations one sample has. What starts programs differs
/// from itself by some percent from one sample to the next, so that there are several of them.
const LOADS: [(&str, &str, u32); 12] = [
    ("dhry2reg", "ub_dhry2reg", 20_000),
    ("whetstone-double", "ub_whetstone", 2),
    ("execl", "ub_execl", 60),
    ("fstime", "ub_fstime", 4000),
    ("fsbuffer", "ub_fsbuffer", 4000),
    ("fsdisk", "ub_fsdisk", 4000),
    ("pipe", "ub_pipe", 5000),
    ("context1", "ub_context1", 2000),
    ("spawn", "ub_spawn", 300),
    ("shell1", "ub_shell1", 4),
    ("shell8", "ub_shell8", 1),
    ("syscall", "ub_syscall", 5000),
];
/// Opens and closes of one file: no test of UnixBench, but what rules on files are about.
const BESIDE: (&str, &str, u32) = ("open_close", "open_close", 5000);
/// How many samples a round has of those.
const SEVERAL: u32 = 5;
const COUNTS: [u8; 4] = [1, 2, 4, 8];
const ROUNDS: u32 = 3;
/// A policy costs no test more than this; the goals are stricter and are printed beside the figures.
const WORST: f64 = 1.10;
/// But a process's first filter, whatever is in it, makes each of its calls take the kernel's longer way in.
const WORST_OF_FILTERS: f64 = 1.50;

fn repository() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("it lies in the repository").to_owned()
}

/// Lines that write a script of the host's benchmarks into /p.
fn plan(name: &str) -> String {
    let file = repository().join("crates/bench/plans").join(name);
    let text = std::fs::read_to_string(file).expect("it can be read");
    format!("cat > /p/{name} <<'EOF'\n{text}EOF\n")
}

/// Mounts what enforcers need, and begins the script of loads. Where a program lies in its memory decides
/// how many pages and tables its fork copies, some percent of the whole: each lies at the same place.
const BEGIN: &str = "echo 0 > /proc/sys/kernel/randomize_va_space || exit 89
busybox mount -t securityfs none /sys/kernel/security || exit 90
busybox mount -t bpf bpf /sys/fs/bpf || exit 91
mkdir -p /p && busybox ln -s /proc/self/fd /dev/fd || exit 92
cat > /p/loads <<'EOF'
sample() { echo \"$who $1 $(tollgate workload $1 --operations $2 2>&1 | tail -n 1)\"; }
who=$1
";

/// The least that a profile can be: it allows all. What it costs is the kernel's, whatever the rules are.
const LEAST: &str = "cat > /p/least.aa <<'EOF'
profile least flags=(attach_disconnected) {
  file, network, unix, capability, signal, ptrace, mount, umount, pivot_root, dbus,
}
EOF
cat > /p/least <<'EOF'
echo 'exec least' > /proc/self/attr/apparmor/exec || exit 1
exec \"$@\"
EOF
apparmor_parser -r -K /p/least.aa || exit 95
";

/// Prints `SUBJECT LOAD {...}` for each sample. A policy is put in force once for all loads of a round: to
/// compile and check it takes the emulated machine longer than most samples.
fn script() -> String {
    let mut script = BEGIN.to_owned();
    // Unset: all of them.
    let only = std::env::var(ONLY).unwrap_or_default();
    let is_left_out = |load| !only.is_empty() && !only.split(',').any(|name| name == load);
    for (_, load, times) in LOADS.iter().chain([&BESIDE]) {
        if is_left_out(*load) {
            continue;
        }
        let samples = match *load {
            "ub_execl" | "ub_spawn" => SEVERAL,
            _ => 1,
        };
        for _ in 0..samples {
            let _ = writeln!(script, "sample {load} {times}");
        }
    }
    script.push_str("EOF\nset -f\n");
    let _ = write!(script, "{LEAST}");
    let mut subjects = vec![
        ("none".to_owned(), "env".to_owned()),
        ("AppArmor-least".to_owned(), "sh /p/least".to_owned()),
    ];
    // Unset: all of them.
    let asked = std::env::var(SUBJECTS).unwrap_or_default();
    let asked: Vec<&str> = asked.split(',').filter(|name| !name.is_empty()).collect();
    let is_asked = |name: &str| name == "none" || asked.is_empty() || asked.contains(&name);
    script.push_str(&plan("enforce.sh"));
    for enforcer in ["AppArmor", "BPF", "Landlock", "Seccomp"] {
        for count in COUNTS {
            let wrapper = format!("sh /p/enforce.sh tollgate {enforcer} {count}");
            subjects.push((format!("{enforcer}-{count}"), wrapper));
        }
    }
    subjects.retain(|(name, _)| is_asked(name));
    for round in 0..ROUNDS {
        for (name, wrapper) in &subjects {
            let _ = writeln!(script, "{wrapper} sh /p/loads {name} || exit 92");
            let _ = writeln!(script, "echo {round} {name} > /dev/ttyS0");
        }
    }
    script
}

/// Instructions of an operation, by load and subject: the median of all windows of all rounds, because what
/// comes on top of it in some of them is the kernel's own timers; of loads with few windows the least.
fn figures(printed: &str) -> BTreeMap<(String, String), f64> {
    const FEW: usize = 12;
    let mut windows: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for line in printed.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(who), Some(load), Some(rest)) = (words.next(), words.next(), words.next()) else {
            panic!("no sample: {line}");
        };
        let sample: Value =
            serde_json::from_str(rest).unwrap_or_else(|error| panic!("{line}: {error}"));
        let list = sample["windows"].as_array();
        let list = list.unwrap_or_else(|| panic!("no windows: {line}"));
        let each = list.iter().filter_map(Value::as_f64);
        let kept = windows.entry((load.to_owned(), who.to_owned()));
        kept.or_default().extend(each);
    }
    let figure = |mut windows: Vec<f64>| {
        windows.sort_by(f64::total_cmp);
        let at = if windows.len() < FEW {
            0
        } else {
            windows.len() / 2
        };
        windows[at]
    };
    let each = windows.into_iter();
    each.map(|(key, windows)| (key, figure(windows))).collect()
}

/// The table, and by subject the worst and the mean ratio over UnixBench's tests.
fn table(figures: &BTreeMap<(String, String), f64>) -> (String, BTreeMap<String, (f64, f64)>) {
    let sampled: BTreeSet<&str> = figures.keys().map(|(_, who)| who.as_str()).collect();
    let subjects: Vec<&str> = sampled.into_iter().filter(|who| *who != "none").collect();
    let mut text = format!("| test | instructions | {} |\n", subjects.join(" | "));
    text.push_str(&format!("|---|---:|{}\n", "---:|".repeat(subjects.len())));
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut count = 0.0;
    for (name, load, _) in LOADS.iter().chain([&BESIDE]) {
        if !figures.contains_key(&((*load).to_owned(), "none".to_owned())) {
            continue;
        }
        count += f64::from(u8::from(*load != BESIDE.1));
        let of = |who: &str| figures[&((*load).to_owned(), who.to_owned())];
        let free = of("none");
        let _ = write!(text, "| {name} | {free:.0} |");
        for subject in &subjects {
            let ratio = of(subject) / free;
            let _ = write!(text, " {:+.2} % |", (ratio - 1.0) * 100.0);
            if *load != BESIDE.1 {
                let (worst, logs) = sums.entry((*subject).to_owned()).or_insert((0.0, 0.0));
                *worst = worst.max(ratio);
                *logs += ratio.ln();
            }
        }
        text.push('\n');
    }
    for (what, figure) in [("worst", 0), ("geometric mean", 1)] {
        let _ = write!(text, "| {what} of UnixBench's | |");
        for subject in &subjects {
            let (worst, logs) = sums[*subject];
            let ratio = match figure {
                0 => worst,
                _ => (logs / count).exp(),
            };
            let _ = write!(text, " {:+.2} % |", (ratio - 1.0) * 100.0);
        }
        text.push('\n');
    }
    for (worst, logs) in sums.values_mut() {
        *logs = (*logs / count).exp();
        *worst = worst.max(0.0);
    }
    (text, sums)
}

/// Names the folder where the table is kept; without it nothing is measured.
const OUT: &str = "TOLLGATE_COST_OUT";
/// Names of subjects with commas between them (`AppArmor-least,BPF-8`): others are left out.
const SUBJECTS: &str = "TOLLGATE_COST_SUBJECTS";
/// Names of loads in the same way (`ub_execl,open_close`).
const ONLY: &str = "TOLLGATE_COST_LOADS";
/// Names samples that were taken before, instead of a machine.
const SAMPLES: &str = "TOLLGATE_COST_SAMPLES";

#[test]
fn rules_cost_few_instructions() {
    let Some(folder) = std::env::var_os(OUT).map(PathBuf::from) else {
        e2e::skip!("a measurement that takes half an hour", || Ok(format!(
            "{OUT} is not set"
        )));
    };
    let printed = match std::env::var_os(SAMPLES) {
        Some(file) => std::fs::read_to_string(file).expect("the file of samples can be read"),
        None => sample(&script()),
    };
    let (text, sums) = table(&figures(&printed));
    println!("{text}");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("the folder is writable");
    };
    write("samples.txt", &printed);
    write("summary.md", &text);
    let figures: BTreeMap<_, _> = sums
        .iter()
        .map(|(subject, (worst, mean))| (subject, json!({"worst": worst, "mean": mean})))
        .collect();
    write("summary.json", &format!("{:#}\n", json!(figures)));
    for (subject, (worst, mean)) in sums {
        let bound = match subject.starts_with("Seccomp") {
            true => WORST_OF_FILTERS,
            false => WORST,
        };
        assert!(
            worst < bound && mean < worst,
            "{subject}: worst {worst}, mean {mean}; goals 1.02 and 1.01"
        );
    }
}

/// Names the folder where the table of denials is kept; without it they are not measured.
const DENIED_OUT: &str = "TOLLGATE_DENIED_OUT";
/// Loads that a policy denies.
const ATTEMPTS: [&str; 3] = ["attempt_socket", "attempt_open", "attempt_chroot"];

/// Denied calls under both enforcers, told and not told.
fn denials_script() -> String {
    let mut script = BEGIN.to_owned();
    for load in ATTEMPTS {
        let _ = writeln!(script, "sample {load} 400");
    }
    script.push_str("EOF\n");
    script.push_str(&plan("denied.sh"));
    let mut subjects = vec![("none".to_owned(), "env".to_owned())];
    for enforcer in ["AppArmor", "BPF"] {
        for how in ["untold", "told"] {
            let wrapper = format!("sh /p/denied.sh tollgate {enforcer} {how}");
            subjects.push((format!("{enforcer}-{how}"), wrapper));
        }
    }
    for _ in 0..ROUNDS {
        for (name, wrapper) in &subjects {
            let _ = writeln!(script, "{wrapper} sh /p/loads {name} || exit 92");
        }
    }
    script
}

#[test]
fn a_denial_by_apparmor_or_bpf_costs_so_many_instructions() {
    let Some(folder) = std::env::var_os(DENIED_OUT).map(PathBuf::from) else {
        e2e::skip!("a measurement that takes some minutes", || Ok(format!(
            "{DENIED_OUT} is not set"
        )));
    };
    let printed = sample(&denials_script());
    let figures = figures(&printed);
    let subjects = ["AppArmor-untold", "AppArmor-told", "BPF-untold", "BPF-told"];
    let mut text = format!("| call | allowed | {} |\n", subjects.join(" | "));
    text.push_str("|---|---:|---:|---:|---:|---:|\n");
    for load in ATTEMPTS {
        let of = |who: &str| figures[&(load.to_owned(), who.to_owned())];
        let _ = write!(text, "| {load} | {:.0} |", of("none"));
        for subject in subjects {
            let _ = write!(text, " {:.0} |", of(subject));
        }
        text.push('\n');
    }
    println!("{text}");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for (name, text) in [("samples.txt", &printed), ("summary.md", &text)] {
        std::fs::write(folder.join(name), text).expect("the folder is writable");
    }
}

/// Starts the machine; what it printed.
fn sample(script: &str) -> String {
    let mut guest = Guest::new()
        .option(LSM)
        .counting_instructions()
        .limit(Duration::from_secs(2400))
        .packaged("apparmor", "/sbin/apparmor_parser");
    for program in ["sort", "od", "tee", "mktemp", "sed", "grep", "rm"] {
        let path = format!("/usr/bin/{program}");
        guest = guest.file(Path::new(&path), &path);
    }
    let run = guest.run(0, Identity::Root, script);
    assert_eq!(run.code, 0, "{run:?}");
    run.stdout
}
