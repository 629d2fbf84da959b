//! Debian's kernels from 5.10 to the newest, each in an emulated machine, and those of arm64: what `doctor` finds there,
//! which of Falco's stable rules fire under each engine when the event generator plays all its actions, and whether each
//! enforcer denies.
//!
//! `TOLLGATE_KERNELS` names a folder for the tables and what they were made of, `TOLLGATE_KERNELS_ARM64` one for those of
//! arm64. `TOLLGATE_TEST_SUITE` names one suite to run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, iter};

use e2e::{Alert, Fixture, Guest, GuestKernel, Identity, need_slow, skip};
use serde_json::Value;

const ENGINES: [&str; 3] = ["notify", "ptrace", "ebpf"];

/// Enforcers, and the probe of `doctor` for each.
const ENFORCERS: [(&str, &str); 5] = [
    ("Seccomp", "enforce-seccomp"),
    ("Caps", "enforce-caps"),
    ("Landlock", "enforce-landlock"),
    ("AppArmor", "enforce-apparmor"),
    ("BPF", "enforce-bpf"),
];

/// All security modules that enforcers use.
const LSM: &str = "lsm=landlock,lockdown,yama,apparmor,bpf";

/// Kernels of arm64, as `packaging/arm64.sh` has them, and what their version is at least.
const ARM64: [(&str, (u32, u32)); 2] = [("6.1", (6, 1)), ("newer", (6, 12))];

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
busybox mount -t securityfs none /sys/kernel/security || exit 93
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
# A program of 32-bit Arm, whose calls have other numbers.
test ! -e /open32 || for engine in notify ptrace ebpf; do
    echo "@@ 32-bit $engine"
    tollgate run --engine $engine -q --json --log /tmp/alerts -r /rules.yaml -- /open32 > /tmp/played 2>&1
    echo "status $?"; cat /tmp/played; test ! -e /tmp/alerts || cat /tmp/alerts; rm -f /tmp/alerts
done
# deny ENFORCER RULES COMMAND: the command prints the group file, then does what the policy denies.
deny() {
    printf 'policy:\n  enforcer: %s\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    %s\n' \
        "$1" "$2" > /tmp/policy.yaml
    echo "@@ denial $1"
    tollgate enforce -q --policy /tmp/policy.yaml -- sh -c "cat /etc/group; $3 && echo not denied" 2>&1
    echo "status $?"
}
: > /tmp/owned
deny Seccomp 'hardeningRules: [disallow-umount]' 'umount /dev/shm'
deny Caps 'hardeningRules: [disable-cap-chown]' 'chown 7 /tmp/owned'
for enforcer in Landlock AppArmor BPF; do
    deny $enforcer 'attackProtectionRules: [{rules: [disable-access-shadow]}]' 'cat /etc/shadow'
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
    /// What each engine said about the program of 32-bit Arm, where there is one.
    arm32: Vec<(&'static str, String)>,
    /// What the command under each enforcer printed, and its exit status.
    denials: Vec<(&'static str, String)>,
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
        if !kernel.has_engine(self.name) {
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
        let racer = Fixture::compile("racer");
        let guest = Guest::with_kernel(kernel)
            .module("fs/overlayfs/overlay.ko")
            .program("chown")
            .program("umount")
            .packaged("apparmor", "/sbin/apparmor_parser");
        Self::by(suite, least, guest, &racer, rules)
    }

    /// Starts a machine of arm64.
    fn of_arm64(kernel: &'static str, least: (u32, u32), rules: &Path) -> Self {
        let racer = Fixture::cross_compile("racer", "aarch64-linux-gnu", &[]);
        let open32 = Fixture::cross_compile("open_arm32", "arm-linux-gnueabi", &["-nostdlib"]);
        let guest = Guest::arm64(kernel).file(open32.program(), "/open32");
        Self::by(kernel, least, guest, &racer, rules)
    }

    fn by(
        suite: &'static str,
        least: (u32, u32),
        guest: Guest,
        racer: &Fixture,
        rules: &Path,
    ) -> Self {
        let guest = guest
            .option(LSM)
            .file(rules, "/rules.yaml")
            .file(racer.program(), "/racer")
            .limit(Duration::from_secs(1500));
        let run = guest.run(0, Identity::Root, SCRIPT);
        assert_eq!(run.code, 0, "{suite}: {run:?}");
        let find = |name: &str| {
            let mut parts = run.stdout.split("@@ ");
            parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('\n'))
        };
        let part = |name: &str| find(name).unwrap_or_else(|| panic!("{suite}: no {name}: {run:?}"));
        let release = part("release").trim().to_owned();
        assert!(version(&release) >= least, "{suite}: {release}");
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
        let arm32 = ENGINES
            .into_iter()
            .filter_map(|engine| Some((engine, find(&format!("32-bit {engine}"))?.to_owned())));
        Self {
            suite,
            doctor: doctor.unwrap_or_else(|error| panic!("{suite}: {error}: {run:?}")),
            engines: ENGINES.map(engine).into(),
            arm32: arm32.collect(),
            denials: ENFORCERS
                .map(|(name, _)| (name, part(&format!("denial {name}")).to_owned()))
                .into(),
            ring: part("ring").to_owned(),
            release,
        }
    }

    /// Returns what is not as it should be.
    fn mistakes(&self) -> Vec<String> {
        let mut wrong: Vec<_> = self
            .engines
            .iter()
            .flat_map(|one| one.mistakes(self))
            .collect();
        for (enforcer, said) in &self.denials {
            if self.denial(enforcer).is_none() {
                wrong.push(format!(
                    "{} ({}), {enforcer}: {said}",
                    self.suite, self.release
                ));
            }
        }
        for (engine, said) in &self.arm32 {
            if self.has_engine(engine) && !is_told(said, "open32") {
                wrong.push(format!("{}, {engine}, 32-bit: {said}", self.release));
            }
        }
        if self.has_engine("ebpf") && !is_told(&self.ring, "racer") {
            wrong.push(format!("{}, io_uring: {}", self.suite, self.ring));
        }
        wrong
    }

    /// Returns whether `doctor` says that the engine works.
    fn has_engine(&self, name: &str) -> bool {
        match name {
            "ebpf" => self.probe(name).support != "no",
            name => self.doctor[name].as_bool().expect("doctor says it"),
        }
    }

    /// Returns what an enforcer did: it denied, or it refused to start the command where `doctor` says that it does not work.
    /// `None`: neither.
    fn denial(&self, enforcer: &str) -> Option<&'static str> {
        let of = |(name, _): &&(&str, String)| *name == enforcer;
        let (_, said) = self.denials.iter().find(of)?;
        let probe = ENFORCERS.iter().find(|(name, _)| *name == enforcer)?.1;
        let (said, status) = said.trim_end().rsplit_once("status ")?;
        let has_begun = said.contains("root:x:0:");
        if self.probe(probe).support == "no" {
            return (status == "3" && !has_begun).then_some("refused: exit status 3");
        }
        let is_done = said.contains("root:*:") || said.contains("not denied");
        (has_begun && !is_done && status != "0").then_some("denied")
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

/// Returns whether the stable rule fired for the program.
fn is_told(said: &str, program: &str) -> bool {
    let mut alerts = said.lines().filter_map(Alert::parse);
    alerts.any(|alert| alert.rule == RING_RULE && alert.field("proc.name") == program)
}

/// Returns major and minor version of a release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    let version = next().zip(next());
    version.unwrap_or_else(|| panic!("{release} is no version"))
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
        let mut acts = String::new();
        let ring = ("io_uring under ebpf", kernel.ring.clone());
        for (name, said) in kernel.denials.iter().chain(&kernel.arm32).chain([&ring]) {
            writeln!(acts, "@@ {name}\n{said}").expect("a string takes it");
        }
        write(&format!("{}-acts.txt", kernel.suite), &acts);
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
    if !shown[0].arm32.is_empty() {
        for engine in ENGINES {
            let cells = shown.iter().map(|kernel| {
                let mut of = kernel.arm32.iter().filter(|(name, _)| *name == engine);
                let is_fired = of.any(|(_, said)| is_told(said, "open32"));
                if is_fired { "fires" } else { "none" }.to_owned()
            });
            row(&mut iter::once(format!("{engine}, 32-bit Arm: `{RING_RULE}`")).chain(cells));
        }
    }
    row(&mut iter::empty());
    row(&mut head("`tollgate enforce`"));
    row(&mut line());
    for (name, _) in ENFORCERS {
        let cells = shown
            .iter()
            .map(|kernel| kernel.denial(name).unwrap_or("wrong").to_owned());
        row(&mut iter::once(name.to_owned()).chain(cells));
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
    if let Some(why) = Guest::missing() {
        panic!("{why}");
    }
    try_kernels("TOLLGATE_KERNELS", &SUITES, Shown::of);
}

#[test]
fn each_engine_and_enforcer_works_on_arm64_where_doctor_says_so() {
    if Guest::missing_arm64().is_some() {
        skip!("needs a build for arm64 and an emulator", || {
            Guest::missing_arm64().ok_or_else(|| String::from("all of it is there"))
        });
    }
    need_slow!();
    try_kernels("TOLLGATE_KERNELS_ARM64", &ARM64, Shown::of_arm64);
}

/// Tries kernels, prints the tables, and writes them to the folder that the variable names.
fn try_kernels(
    folder: &str,
    kernels: &[(&'static str, (u32, u32))],
    show: fn(&'static str, (u32, u32), &Path) -> Shown,
) {
    let Some(rules) = e2e::stock_rules_file() else {
        skip!("needs Falco's stable rules beside the repository", || Ok(
            String::from("../shared/reference/upstream/falco_rules.yaml is not there")
        ));
    };
    let wanted = std::env::var("TOLLGATE_TEST_SUITE").ok();
    let is_wanted = |suite: &str| wanted.as_deref().is_none_or(|wanted| wanted == suite);
    let kernels = kernels.iter().filter(|(suite, _)| is_wanted(suite));
    let shown: Vec<_> = kernels
        .map(|(suite, least)| show(suite, *least, &rules))
        .collect();
    assert!(!shown.is_empty(), "no suite {wanted:?}");
    if let Some(folder) = std::env::var_os(folder) {
        publish(&PathBuf::from(folder), &shown);
    }
    println!("{}", tables(&shown));
    let wrong: Vec<_> = shown.iter().flat_map(Shown::mistakes).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
