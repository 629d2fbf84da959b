//! A day of ordinary work under the default rules: no alert above Informational, whoever works and whichever engine
//! watches. The jobs are scripts in `fixtures/day`; each says what it does. `TOLLGATE_ORDINARY_WORK=FOLDER` adds a line
//! for each run to `samples.jsonl` there: its seconds, and its alerts by rule.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::{
    Alert, Engine, Environment, Identity, Watch, WatchResult, builtin_rules, need_root, need_slow,
    skip, slow, toolchain,
};

/// Where programs are: folders of the system, not those of a version manager.
const FOLDERS: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin";

/// Runs a script in the work folder, then something that a rule must notice, so that a run that was not watched to
/// its end fails.
const WRAPPER: &str = r#"
cd "$1"
mkdir home
export HOME="$PWD/home" PATH="$2"
sh -eu "../day/$3.sh" "$4" > output 2>&1 < /dev/null
status=$?
find . -maxdepth 0 -name id_rsa
[ $status = 0 ] || cat *.log output >&2
exit $status
"#;

const NOTICED: &str = "Search Private Keys or Passwords";

/// Priorities that call somebody.
const LOUD: [&str; 6] = [
    "Emergency",
    "Alert",
    "Critical",
    "Error",
    "Warning",
    "Notice",
];

/// A script, and what it needs.
struct Job {
    script: &'static str,
    /// Programs without which it cannot run.
    needs: &'static [&'static str],
    /// Rules that may alert on it, with the reason.
    rules: &'static [(&'static str, &'static str)],
}

const PLAIN: Job = Job {
    script: "",
    needs: &[],
    rules: &[],
};

macro_rules! jobs {
    ($($(#[$slow:ident])? $name:ident => $job:expr;)*) => {
        $(#[test]
        fn $name() {
            need_root!();
            $($slow!();)?
            const JOB: Job = $job;
            if let Some(missing) = JOB.missing() {
                skip!("needs a program that is not installed", || Ok(missing.to_owned()));
            }
            JOB.check();
        })*
    };
}

jobs! {
    git_grows_a_repository_quietly => Job { script: "git", needs: &["git"], ..PLAIN };
    a_c_program_is_built_and_run_quietly => Job { script: "c", needs: &["cc", "make"], ..PLAIN };
    cmake_builds_and_tests_quietly => Job { script: "cmake", needs: &["cmake", "ctest"], ..PLAIN };
    cargo_builds_and_tests_quietly => Job { script: "cargo", ..PLAIN };
    python_installs_and_tests_quietly => Job { script: "python", ..PLAIN };
    a_desk_is_quiet => Job { script: "desk", needs: &["vim", "ssh-keygen"], ..PLAIN };
    root_works_at_home_quietly => Job { script: "home", needs: &["vim", "sqlite3"], ..PLAIN };
    sqlite_is_quiet => Job { script: "databases", needs: &["sqlite3"], ..PLAIN };
    redis_is_quiet => Job { script: "redis", needs: &["redis-server"], ..PLAIN };
    dpkg_installs_quietly => Job { script: "package", needs: &["dpkg-deb", "busybox"], ..PLAIN };
    apt_installs_upgrades_and_removes_quietly => Job {
        script: "apt",
        needs: &["apt-get", "dpkg-deb"],
        ..PLAIN
    };
    timers_start_jobs_quietly => Job { script: "timers", needs: &["run-parts"], ..PLAIN };
    #[need_slow] nginx_serves_quietly => Job { script: "nginx", needs: &["nginx"], ..PLAIN };
    #[need_slow] postgres_serves_quietly => Job { script: "postgres", needs: &["postgres"], ..PLAIN };
    #[need_slow] npm_installs_quietly => Job { script: "node", needs: &["node", "npm"], ..PLAIN };
    #[need_slow] go_builds_and_tests_quietly => Job { script: "go", needs: &["go"], ..PLAIN };
    #[need_slow] backups_are_made_and_read_back_quietly => Job {
        script: "backup",
        needs: &["rsync", "ssh-keygen"],
        ..PLAIN
    };
    #[need_slow] ansible_manages_settings_quietly => Job {
        script: "ansible",
        needs: &["ansible-playbook"],
        ..PLAIN
    };
    #[need_slow] monitoring_reads_quietly => Job { script: "monitor", needs: &["ss"], ..PLAIN };
    #[need_slow] mails_are_delivered_quietly => Job { script: "mail", needs: &["smtpd"], ..PLAIN };
    #[need_slow] ssh_logs_in_quietly => Job { script: "ssh", needs: &["sshd"], ..PLAIN };
    #[need_slow] podman_builds_and_runs_quietly => Job {
        script: "podman",
        needs: &["podman", "runc", "busybox"],
        ..PLAIN
    };
}

/// Appends a line in one write, because several tests write to the file.
fn add_line(file: &Path, line: &serde_json::Value) {
    let opened = File::options().append(true).create(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
}

impl Job {
    /// Returns the first program that the job needs and that is in none of the folders.
    fn missing(&self) -> Option<&'static str> {
        let is_there = |name: &str| {
            FOLDERS
                .split(':')
                .any(|folder| Path::new(folder).join(name).is_file())
        };
        self.needs.iter().copied().find(|name| !is_there(name))
    }

    /// Runs the job as root and as an ordinary user, under each engine that watches commands; as root under one and as
    /// a user under the other unless slow tests are asked for.
    fn check(&self) {
        self.check_as(Engine::Notify, Identity::User);
        self.check_as(Engine::Ebpf, Identity::Root);
        if slow() {
            self.check_as(Engine::Notify, Identity::Root);
            self.check_as(Engine::Ebpf, Identity::User);
        }
    }

    fn check_as(&self, engine: Engine, identity: Identity) {
        let started = Instant::now();
        let watched = self.run(engine, identity);
        let took = started.elapsed();
        let title = format!("{} as {identity:?} under {engine:?}", self.script);
        assert_eq!(watched.code(), 0, "{title}: {}", watched.story());
        if let Some(folder) = env::var_os("TOLLGATE_ORDINARY_WORK").map(PathBuf::from) {
            let sample = self.sample(engine, identity, took, &watched.alerts);
            add_line(&folder.join("samples.jsonl"), &sample);
        }
        assert_eq!(
            watched.of(NOTICED).len(),
            1,
            "{title}: not watched to its end\n{}",
            watched.story()
        );
        let is_expected =
            |rule: &str| rule == NOTICED || self.rules.iter().any(|(name, _)| *name == rule);
        let loud: Vec<_> = watched
            .alerts
            .iter()
            .filter(|alert| LOUD.contains(&alert.priority.as_str()) && !is_expected(&alert.rule))
            .map(|alert| format!("  {alert}\n"))
            .collect();
        assert!(loud.is_empty(), "{title}:\n{}", loud.concat());
    }

    /// Returns what a run is published as. The alert that only shows that it was watched to its end is not counted.
    fn sample(
        &self,
        engine: Engine,
        identity: Identity,
        took: Duration,
        alerts: &[Alert],
    ) -> serde_json::Value {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for alert in alerts {
            *counts.entry((&alert.rule, &alert.priority)).or_insert(0) += 1;
        }
        let alerts = counts.into_iter().filter_map(|((rule, priority), count)| {
            let count = count - usize::from(rule == NOTICED);
            (count > 0)
                .then(|| serde_json::json!({"rule": rule, "priority": priority, "count": count}))
        });
        serde_json::json!({
            "job": self.script,
            "user": format!("{identity:?}"),
            "engine": format!("{engine:?}"),
            "seconds": took.as_secs_f64(),
            "alerts": alerts.collect::<Vec<_>>(),
        })
    }

    fn run(&self, engine: Engine, identity: Identity) -> WatchResult {
        let argument = match self.script {
            "cargo" => toolchain(Path::new(env!("CARGO_TARGET_TMPDIR")))
                .join("bin/cargo")
                .display()
                .to_string(),
            _ => String::new(),
        };
        let words = [
            "sh",
            "-c",
            WRAPPER,
            "sh",
            "%W",
            FOLDERS,
            self.script,
            &argument,
        ];
        Watch::new(words)
            .place(Environment::HostNetwork)
            .engine(engine)
            .identity(identity)
            .limit(Duration::from_secs(300))
            .rules(&builtin_rules())
            .with_fixtures("day")
            .run()
    }
}
