//! cron, whose jobs are the work.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Finished, Limited, Scratch};

use crate::lab::{LIMIT, allows_nothing_shared, has_no_denial};

/// Gives cron tables and locks of its own. In a new `/run` it takes its start for that of the system, and makes the jobs of
/// `@reboot` at once.
const WITHIN: &str = "\
folder=$1; shift
mount -t tmpfs none /run && mount -t tmpfs none /etc/cron.d && mount -t tmpfs none /var/spool/cron &&
mkdir -m 1730 /var/spool/cron/crontabs && mount --bind $folder/crontab /etc/crontab && exec \"$@\"
";

const RUN: &str = "\
/usr/sbin/cron -f & while [ ! -e $1/made/end ]; do sleep 0.1; done; kill $!; wait $!; rm $1/made/end
";

struct Cron {
    scratch: Scratch,
}

impl Cron {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.file("within.sh", 0o755, WITHIN);
        scratch.file("run.sh", 0o755, RUN);
        for name in ["a", "b", "c"] {
            scratch.file(&format!("data/{name}.txt"), 0o644, "one\ntwo\n");
        }
        std::fs::create_dir(scratch.path().join("made")).expect("it is ours");
        Self { scratch }
    }

    fn text(&self, text: &str) -> String {
        text.replace("%W", &self.scratch.path().display().to_string())
    }

    /// Runs cron below `tollgate OPTIONS` until all jobs have left a file, `made/NAME.end`.
    fn run(&self, options: &[&str], jobs: &[(&str, &str)]) -> Finished {
        let path = self.scratch.path();
        let table = jobs.iter().map(|(name, job)| {
            let job = self.text(job);
            self.text(&format!(
                "@reboot root {{ {job}; }} > %W/made/{name}.out 2>&1; echo end > %W/made/{name}.end\n"
            ))
        });
        let table: String = table.collect();
        self.scratch
            .file("crontab", 0o644, format!("SHELL=/bin/sh\n{table}"));
        let folder = path.display().to_string();
        let mut command = Command::new("/usr/bin/unshare");
        command
            .args(["-m", "/bin/sh", &format!("{folder}/within.sh"), &folder])
            .arg(e2e::program())
            .args(options)
            .args(["--", "/bin/sh", &format!("{folder}/run.sh"), &folder])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin")
            .stdin(Stdio::null());
        let running = Limited::start(&mut command, LIMIT);
        let began = Instant::now();
        let is_over = || {
            let mut ends = jobs
                .iter()
                .map(|(name, _)| path.join(format!("made/{name}.end")));
            ends.all(|end| end.exists())
        };
        while !is_over() && began.elapsed() < LIMIT / 2 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let has_ended = is_over();
        std::fs::write(path.join("made/end"), "").expect("the folder is ours");
        let finished = running.finish(b"");
        assert!(has_ended, "{finished:?}");
        finished
    }

    fn output(&self, name: &str) -> String {
        let path = self.scratch.path().join(format!("made/{name}.out"));
        std::fs::read_to_string(path).expect("the job left it")
    }
}

#[test]
fn cron_makes_other_jobs_of_a_kind_and_attacks_in_jobs_fail() {
    e2e::need_root!();
    e2e::need_slow!();
    if !Path::new("/usr/sbin/cron").exists() {
        e2e::skip!("needs cron", || Ok("there is none".to_owned()));
    }
    let cron = Cron::new();
    let policy = cron.text("%W/learnt.yaml");
    let learnt = [
        ("one", "wc -l %W/data/a.txt"),
        ("two", "wc -l < %W/data/b.txt"),
    ];
    let finished = cron.run(&["learn", "-o", &policy], &learnt);
    let text = std::fs::read_to_string(&policy).unwrap_or_else(|_| panic!("{finished:?}"));
    allows_nothing_shared(&text, &["/etc/passwd", "/etc/shadow"]);
    assert!(cron.output("one").starts_with("2 "));
    let enforce = ["enforce", "-q", "--policy", &policy];
    let others = [
        ("three", "wc -c < %W/data/c.txt"),
        ("four", "wc -l %W/data/a.txt %W/data/c.txt"),
    ];
    let finished = cron.run(&enforce, &others);
    has_no_denial(&finished);
    assert_eq!(cron.output("three"), "8\n", "{finished:?}");
    assert!(cron.output("four").contains("4 total"), "{finished:?}");
    let attacks = [
        ("run", "/usr/bin/id && echo won"),
        ("environ", "wc -c /proc/1/environ && echo won"),
        ("etc", "echo x > /etc/tollgate-new && echo won"),
        ("tmp", "echo x > /tmp/tollgate-new && echo won"),
        ("read", "wc -c /etc/hostname && echo won"),
        ("keys", "wc -c < /etc/ssh/sshd_config && echo won"),
    ];
    let finished = cron.run(&enforce, &attacks);
    for (name, attack) in attacks {
        let output = cron.output(name);
        assert!(!output.contains("won"), "{attack}: {output}");
    }
    let reports = finished.stderr + &finished.stdout;
    assert!(reports.contains("Policy violation"), "{reports}");
}
