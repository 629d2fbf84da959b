//! What rules carried by AppArmor and BPF LSM cost UnixBench's tests, in instructions.
//!
//! The emulated machine's clock moves by one nanosecond for each instruction, so that the figures are the
//! same on any host, busy or idle. What they leave out is memory: a cache that is missed costs nothing there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Guest, Identity};
use serde_json::{Value, json};

const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";

/// UnixBench's tests as loads of ours, and how many operations one sample has.
const LOADS: [(&str, &str, u32); 12] = [
    ("dhry2reg", "ub_dhry2reg", 20_000),
    ("whetstone-double", "ub_whetstone", 2),
    ("execl", "ub_execl", 60),
    ("fstime", "ub_fstime", 4000),
    ("fsbuffer", "ub_fsbuffer", 4000),
    ("fsdisk", "ub_fsdisk", 4000),
    ("pipe", "ub_pipe", 5000),
    ("context1", "ub_context1", 2000),
    ("spawn", "ub_spawn", 150),
    ("shell1", "ub_shell1", 4),
    ("shell8", "ub_shell8", 1),
    ("syscall", "ub_syscall", 5000),
];
/// Opens and closes of one file: no test of UnixBench, but what rules on files are about.
const BESIDE: (&str, &str, u32) = ("open_close", "open_close", 5000);
const COUNTS: [u8; 4] = [1, 2, 4, 8];
const ROUNDS: u32 = 3;
/// A policy costs no test more than this; the goals are stricter and are printed beside the figures.
const WORST: f64 = 1.10;

fn repository() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("it lies in the repository").to_owned()
}

/// The policy that the benchmarks of the host have, too.
fn policy(enforcer: &str, count: u8) -> String {
    let plan = repository().join("crates/bench/plans/enforce.sh");
    let count = count.to_string();
    let mut print = Command::new("sh");
    print.arg(plan).args(["print", enforcer, &count]);
    let made = print.output().expect("there is a shell");
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).expect("it is text")
}

/// Prints `SUBJECT LOAD {...}` for each sample. A policy is put in force once for all loads of a round: to
/// compile and check it takes the emulated machine longer than most samples.
fn script() -> String {
    let mut script = String::from(
        "busybox mount -t securityfs none /sys/kernel/security || exit 90\n\
         busybox mount -t bpf bpf /sys/fs/bpf || exit 91\nmkdir -p /p\n\
         cat > /p/loads <<'EOF'\n\
         sample() { echo \"$who $1 $(tollgate workload $1 --operations $2 2>&1 | tail -n 1)\"; }\n\
         who=$1\n",
    );
    for (_, load, times) in LOADS.iter().chain([&BESIDE]) {
        let _ = writeln!(script, "sample {load} {times}");
    }
    script.push_str("EOF\nset -f\n");
    let mut subjects = vec![("none".to_owned(), "env".to_owned())];
    for enforcer in ["AppArmor", "BPF"] {
        for count in COUNTS {
            let name = format!("{enforcer}-{count}");
            let accepted: String = (0..count)
                .map(|index| format!(" --accept-partial bpfRawRules.processes[{index}]"))
                .collect();
            let _ = write!(
                script,
                "cat > /p/{name}.yaml <<'EOF'\n{}EOF\n",
                policy(enforcer, count)
            );
            let wrapper = format!("tollgate enforce -q --policy /p/{name}.yaml{accepted} --");
            subjects.push((name, wrapper));
        }
    }
    for round in 0..ROUNDS {
        for (name, wrapper) in &subjects {
            let _ = writeln!(script, "{wrapper} sh /p/loads {name} || exit 92");
            let _ = writeln!(script, "echo {round} {name} > /dev/ttyS0");
        }
    }
    script
}

/// The least instructions of an operation, by load and subject: what comes on top is the kernel's own timers.
fn least(printed: &str) -> BTreeMap<(String, String), f64> {
    let mut found: BTreeMap<(String, String), f64> = BTreeMap::new();
    for line in printed.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(who), Some(load), Some(rest)) = (words.next(), words.next(), words.next()) else {
            panic!("no sample: {line}");
        };
        let sample: Value =
            serde_json::from_str(rest).unwrap_or_else(|error| panic!("{line}: {error}"));
        let number = |key: &str| sample[key].as_f64().unwrap_or_else(|| panic!("{line}"));
        let each = number("elapsed_ns") / number("operations");
        let kept = found.entry((load.to_owned(), who.to_owned()));
        let kept = kept.or_insert(each);
        *kept = kept.min(each);
    }
    found
}

/// The table, and by subject the worst and the mean ratio over UnixBench's tests.
fn table(least: &BTreeMap<(String, String), f64>) -> (String, BTreeMap<String, (f64, f64)>) {
    let subjects: Vec<String> = ["AppArmor", "BPF"]
        .iter()
        .flat_map(|enforcer| COUNTS.map(|count| format!("{enforcer}-{count}")))
        .collect();
    let mut text = format!("| test | instructions | {} |\n", subjects.join(" | "));
    text.push_str(&format!("|---|---:|{}\n", "---:|".repeat(subjects.len())));
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, load, _) in LOADS.iter().chain([&BESIDE]) {
        let of = |who: &str| least[&((*load).to_owned(), who.to_owned())];
        let free = of("none");
        let _ = write!(text, "| {name} | {free:.0} |");
        for subject in &subjects {
            let ratio = of(subject) / free;
            let _ = write!(text, " {:+.2} % |", (ratio - 1.0) * 100.0);
            if *load != BESIDE.1 {
                let (worst, logs) = sums.entry(subject.clone()).or_insert((0.0, 0.0));
                *worst = worst.max(ratio);
                *logs += ratio.ln();
            }
        }
        text.push('\n');
    }
    for (what, figure) in [("worst", 0), ("geometric mean", 1)] {
        let _ = write!(text, "| {what} of UnixBench's | |");
        for subject in &subjects {
            let (worst, logs) = sums[subject];
            let ratio = match figure {
                0 => worst,
                _ => (logs / f64::from(12)).exp(),
            };
            let _ = write!(text, " {:+.2} % |", (ratio - 1.0) * 100.0);
        }
        text.push('\n');
    }
    for (worst, logs) in sums.values_mut() {
        *logs = (*logs / 12.0).exp();
        *worst = worst.max(0.0);
    }
    (text, sums)
}

/// Names the folder where the table is kept; without it nothing is measured.
const OUT: &str = "TOLLGATE_COST_OUT";

#[test]
fn rules_of_apparmor_and_bpf_cost_few_instructions() {
    let Some(folder) = std::env::var_os(OUT).map(PathBuf::from) else {
        e2e::skip!("a measurement that takes half an hour", || Ok(format!(
            "{OUT} is not set"
        )));
    };
    let mut guest = Guest::new()
        .option(LSM)
        .counting_instructions()
        .limit(Duration::from_secs(2400))
        .packaged("apparmor", "/sbin/apparmor_parser");
    for program in ["/usr/bin/sort", "/usr/bin/od", "/usr/bin/tee"] {
        guest = guest.file(Path::new(program), program);
    }
    let run = guest.run(0, Identity::Root, &script());
    assert_eq!(run.code, 0, "{run:?}");
    let (text, sums) = table(&least(&run.stdout));
    println!("{text}");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("the folder is writable");
    };
    write("samples.txt", &run.stdout);
    write("summary.md", &text);
    let figures: BTreeMap<_, _> = sums
        .iter()
        .map(|(subject, (worst, mean))| (subject, json!({"worst": worst, "mean": mean})))
        .collect();
    write("summary.json", &format!("{:#}\n", json!(figures)));
    for (subject, (worst, mean)) in sums {
        assert!(
            worst < WORST && mean < worst,
            "{subject}: worst {worst}, mean {mean}; goals 1.02 and 1.01"
        );
    }
}
