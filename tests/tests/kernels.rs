//! Debian's kernels from 5.10 to the newest, each in an emulated machine: what `doctor` finds there, and which of
//! Falco's stable rules fire under each engine when the event generator plays all its actions.
//!
//! `TOLLGATE_KERNELS` names a folder for the tables and what they were made of. `TOLLGATE_TEST_SUITE` names one suite to
//! run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, iter};

use e2e::{Alert, Fixture, Guest, GuestKernel, Identity, need_slow, skip};
use serde_json::Value;

const ENGINES: [&str; 3] = ["notify", "ptrace", "ebpf"];

/// The suites whose newest small kernel is tried, oldest kernel first, and what its version is at least.
const SUITES: [(&str, (u32, u32)); 4] = [
    ("bullseye", (5, 10)),
    ("bookworm", (6, 1)),
    ("trixie", (6, 12)),
    ("trixie-backports", (7, 0)),
];

/// What the guest runs. Each part of the output begins with a line that names it.
const SCRIPT: &str = r#"
busybox mount -t bpf bpf /sys/fs/bpf || exit 90
busybox mount -t tracefs tracefs /sys/kernel/tracing || exit 91
test ! -e /overlay.ko || busybox insmod /overlay.ko || exit 92
echo '@@ release'; uname -r
echo '@@ doctor'; tollgate doctor --json
for engine in notify ptrace ebpf; do
    tollgate run --engine $engine -q --json --log /tmp/alerts -s /tmp/statistics -r /rules.yaml -- \
        tollgate generate run --all --sleep 20ms ^syscall > /tmp/played 2>&1
    status=$?
    echo "@@ status $engine"; echo $status
    for file in alerts statistics played; do
        echo "@@ $file $engine"; test ! -e /tmp/$file || cat /tmp/$file; rm -f /tmp/$file
    done
done
# No call opens the file, so that only eBPF sees it.
echo '@@ ring'
tollgate run --engine ebpf -q --json --log /tmp/alerts -r /rules.yaml -- /racer ringopen /etc/shadow > /tmp/played 2>&1
echo "status $?"; cat /tmp/played /tmp/alerts
"#;

/// The stable rules for which the event generator has an action that plays outside of a container.
const RULES: [&str; 16] = [
    "Clear Log Activities",
    "Create Hardlink Over Sensitive Files",
    "Create Symlink Over Sensitive Files",
    "Directory traversal monitored file read",
    "Disallowed SSH Connection Non Standard Port",
    "Execution from /dev/shm",
    "Fileless execution via memfd_create",
    "Find AWS Credentials",
    "PTRACE anti-debug attempt",
    "PTRACE attached to process",
    "Read sensitive file trusted after startup",
    "Read sensitive file untrusted",
    "Remove Bulk Data from Disk",
    "Run shell untrusted",
    "Search Private Keys or Passwords",
    "System user interactive",
];

/// The stable rule that an open of /etc/shadow through an io_uring fires.
const RING_RULE: &str = "Read sensitive file untrusted";

/// What one kernel showed.
struct Shown {
    suite: &'static str,
    release: String,
    doctor: Value,
    engines: Vec<Engine>,
    /// What a watch by eBPF says when a file that rules name is opened through an io_uring.
    ring: String,
}

/// What one engine showed on a kernel.
struct Engine {
    name: &'static str,
    status: String,
    fired: BTreeSet<String>,
    raw: String,
}

impl Engine {
    /// Returns what is not as it should be.
    fn mistakes(&self, kernel: &Shown) -> Vec<String> {
        let place = format!("{} ({}), {}", kernel.suite, kernel.release, self.name);
        let support = match self.name {
            "notify" => kernel.doctor["notify"].as_bool().expect("doctor says it"),
            "ptrace" => kernel.doctor["ptrace"].as_bool().expect("doctor says it"),
            name => kernel.probe(name).support != "no",
        };
        if !support {
            // It says so and does not start the command.
            let is_refused = self.status == "3" && self.fired.is_empty();
            let told = format!("{place}: does not work, but ended with {}", self.status);
            return if is_refused { Vec::new() } else { vec![told] };
        }
        let missing = RULES.iter().filter(|rule| !self.fired.contains(**rule));
        let missing = missing.map(|rule| format!("{place}: `{rule}` did not fire"));
        let status = (self.status != "0").then(|| format!("{place}: status {}", self.status));
        missing.chain(status).collect()
    }
}

impl Shown {
    /// Starts a machine with the kernel of a suite.
    fn of(suite: &'static str, least: (u32, u32), rules: &Path) -> Self {
        let kernel = GuestKernel::of_suite(suite);
        assert!(kernel.version() >= least, "{suite}: {kernel:?}");
        let release = kernel.release().to_owned();
        let racer = Fixture::compile("racer");
        let guest = Guest::with_kernel(kernel)
            .module("fs/overlayfs/overlay.ko")
            .file(rules, "/rules.yaml")
            .file(racer.program(), "/racer")
            .limit(Duration::from_secs(1500));
        let run = guest.run(0, Identity::Root, SCRIPT);
        assert_eq!(run.code, 0, "{suite}: {run:?}");
        let part = |name: &str| {
            let mut parts = run.stdout.split("@@ ");
            let text = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('\n'));
            text.unwrap_or_else(|| panic!("{suite}: no {name}: {run:?}"))
        };
        assert_eq!(part("release").trim(), release, "{run:?}");
        let doctor = serde_json::from_str(part("doctor"));
        let engine = |name| {
            let alerts = part(&format!("alerts {name}"));
            let fired = alerts.lines().filter_map(Alert::parse);
            let parts = ["status", "alerts", "statistics", "played"];
            let raw = parts.map(|kind| format!("@@ {kind}\n{}", part(&format!("{kind} {name}"))));
            Engine {
                name,
                status: part(&format!("status {name}")).trim().to_owned(),
                fired: fired.map(|alert| alert.rule).collect(),
                raw: raw.concat(),
            }
        };
        Self {
            suite,
            release: release.clone(),
            doctor: doctor.unwrap_or_else(|error| panic!("{suite}: {error}: {run:?}")),
            engines: ENGINES.map(engine).into(),
            ring: part("ring").to_owned(),
        }
    }

    fn probes(&self) -> impl Iterator<Item = Probe<'_>> {
        let probes = self.doctor["probes"].as_array();
        let probes = probes.unwrap_or_else(|| panic!("{}: {}", self.suite, self.doctor));
        probes.iter().map(|probe| {
            let text = |key: &str| probe[key].as_str().expect("doctor says it of each probe");
            Probe {
                name: text("name"),
                support: text("support"),
                detail: text("detail"),
            }
        })
    }

    fn probe(&self, name: &str) -> Probe<'_> {
        let found = self.probes().find(|probe| probe.name == name);
        found.unwrap_or_else(|| panic!("{}: no probe {name}", self.suite))
    }
}

/// A line of `doctor`.
struct Probe<'s> {
    name: &'s str,
    support: &'s str,
    detail: &'s str,
}

/// Writes the tables, and beside them what each kernel said.
fn publish(folder: &Path, shown: &[Shown]) {
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    };
    for kernel in shown {
        let doctor = serde_json::to_string_pretty(&kernel.doctor).expect("it was JSON");
        write(&format!("{}-doctor.json", kernel.suite), &doctor);
        for engine in &kernel.engines {
            write(
                &format!("{}-{}.txt", kernel.suite, engine.name),
                &engine.raw,
            );
        }
    }
    write("tables.md", &tables(shown));
}

fn tables(shown: &[Shown]) -> String {
    let mut text = String::new();
    let mut row = |cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<_> = cells.collect();
        writeln!(text, "| {} |", cells.join(" | ")).expect("a string takes it");
    };
    let head = |first: &str| {
        let releases = shown.iter().map(|kernel| kernel.release.clone());
        iter::once(first.to_owned()).chain(releases)
    };
    let line = || iter::repeat_n("---".to_owned(), shown.len() + 1);
    row(&mut head("stable rules that fire"));
    row(&mut line());
    for (at, name) in ENGINES.iter().enumerate() {
        let cells = shown
            .iter()
            .map(|kernel| match kernel.engines[at].fired.len() {
                0 => format!("none: exit status {}", kernel.engines[at].status),
                count => count.to_string(),
            });
        row(&mut iter::once((*name).to_owned()).chain(cells));
    }
    row(&mut iter::empty());
    row(&mut head("`tollgate doctor`"));
    row(&mut line());
    for probe in shown[0].probes() {
        let cells = shown.iter().map(|kernel| {
            let found = kernel.probe(probe.name);
            format!("{}: {}", found.support, found.detail.replace('|', "\\|"))
        });
        row(&mut iter::once(probe.name.to_owned()).chain(cells));
    }
    text.replace("|  |\n", "\n")
}

#[test]
fn each_engine_fires_the_stable_rules_on_each_kernel_where_doctor_says_that_it_works() {
    need_slow!();
    let Some(rules) = e2e::stock_rules_file() else {
        skip!("needs Falco's stable rules beside the repository", || Ok(
            String::from("../shared/reference/upstream/falco_rules.yaml is not there")
        ));
    };
    if let Some(why) = Guest::missing() {
        panic!("{why}");
    }
    let wanted = std::env::var("TOLLGATE_TEST_SUITE").ok();
    let is_wanted = |suite: &str| wanted.as_deref().is_none_or(|wanted| wanted == suite);
    let suites = SUITES.into_iter().filter(|(suite, _)| is_wanted(suite));
    let shown: Vec<_> = suites
        .map(|(suite, least)| Shown::of(suite, least, &rules))
        .collect();
    assert!(!shown.is_empty(), "no suite {wanted:?}");
    if let Some(folder) = std::env::var_os("TOLLGATE_KERNELS") {
        publish(&PathBuf::from(folder), &shown);
    }
    println!("{}", tables(&shown));
    let mut wrong = Vec::new();
    for kernel in &shown {
        for engine in &kernel.engines {
            wrong.extend(engine.mistakes(kernel));
        }
        if kernel.probe("ebpf").support != "no" {
            let mut alerts = kernel.ring.lines().filter_map(Alert::parse);
            let is_told =
                alerts.any(|alert| alert.rule == RING_RULE && alert.field("proc.name") == "racer");
            wrong
                .extend((!is_told).then(|| format!("{}, io_uring: {}", kernel.suite, kernel.ring)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
