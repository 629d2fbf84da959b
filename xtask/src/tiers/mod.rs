//! `xtask tiers [NAME=VALUE]... TARGET...`: makes each target in turn, whatever comes of the others, and prints a
//! table of what ran.
//!
//! `make test-all` calls it. Test programs run under `xtask limit`. What a tier prints is also in
//! `target/test-all/TARGET.log`.

mod table;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::descendants::{self, Observer};
use table::{Row, Sums};

/// Minutes after which a tier is killed, unless `TIER_MINUTES` has another number: more than all of them take together.
const MINUTES: u64 = 180;

/// A tier that runs.
struct Tier {
    deadline: Instant,
    log: File,
    sums: Sums,
}

impl Observer for Tier {
    fn print(&mut self, bytes: &[u8]) {
        descendants::forward(bytes);
        if let Err(error) = self.log.write_all(bytes) {
            eprintln!("xtask: cannot write the log: {error}");
        }
    }

    fn line(&mut self, line: &str) {
        self.sums.note(line);
    }

    fn is_late(&mut self) -> bool {
        Instant::now() > self.deadline
    }
}

/// What all tiers have in common.
struct Plan {
    folder: PathBuf,
    variables: Vec<String>,
    minutes: u64,
}

/// Makes the targets and prints the table.
///
/// # Errors
/// There is no target, a log cannot be written, or this process was interrupted.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let words = words.iter().map(|word| word.to_str().map(str::to_owned));
    let words: Option<Vec<String>> = words.collect();
    let words = words.context("cannot read the names of the tiers: they are no UTF-8")?;
    let (variables, targets): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.contains('='));
    if targets.is_empty() {
        bail!("cannot run tiers: name targets of the Makefile");
    }
    let plan = Plan::new(variables)?;
    let interrupted = descendants::prepare()?;
    let mut rows = Vec::new();
    for target in &targets {
        rows.push(plan.run(target, &interrupted)?);
    }
    let text = table::table(&rows);
    fs::write(plan.folder.join("table.txt"), &text).context("cannot write the table")?;
    print!("\n{text}");
    println!("logs: {}", plan.folder.display());
    let has_failed = rows.iter().any(Row::has_failed);
    Ok(if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

impl Plan {
    fn new(variables: Vec<String>) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let folder = Path::new(&target.unwrap_or_else(|| "target".into())).join("test-all");
        fs::create_dir_all(&folder).context("cannot create the folder of the logs")?;
        let folder = folder
            .canonicalize()
            .context("cannot find the folder of the logs")?;
        // Tiers build this program again, with other features perhaps.
        let own = std::env::current_exe().context("cannot find this program")?;
        let copy = folder.join("xtask");
        if copy.exists() {
            fs::remove_file(&copy).context("cannot replace the copy of this program")?;
        }
        fs::copy(own, &copy).context("cannot copy this program")?;
        let minutes = match std::env::var("TIER_MINUTES") {
            Ok(text) => text
                .parse()
                .context("cannot read TIER_MINUTES: write a whole number")?,
            Err(_) => MINUTES,
        };
        Ok(Self {
            folder,
            variables,
            minutes,
        })
    }

    fn run(&self, target: &str, interrupted: &AtomicBool) -> Result<Row> {
        let started = Instant::now();
        let file = |ending: &str| self.folder.join(format!("{target}.{ending}"));
        let (log, skips) = (file("log"), file("skips"));
        fs::write(&skips, "").with_context(|| format!("cannot write {}", skips.display()))?;
        let mut command = Command::new("make");
        command
            .args(&self.variables)
            .arg(format!("SKIPS={}", skips.display()))
            .arg(format!(
                "LIMITED={} limit",
                self.folder.join("xtask").display()
            ))
            .arg(target)
            .env("TOLLGATE_SKIPS", &skips);
        let mut tier = Tier {
            deadline: started + Duration::from_secs(self.minutes * 60),
            log: File::create(&log).with_context(|| format!("cannot write {}", log.display()))?,
            sums: Sums::default(),
        };
        println!("\n=== {target}");
        let ended = descendants::supervise(&mut command, true, interrupted, &mut tier)?;
        let problem = match ended.status {
            None => Some(format!("killed after {} min", self.minutes)),
            Some(_) if ended.is_success() => None,
            Some(status) => Some(match status.exit_status() {
                Some(code) => format!("exit status {code}"),
                None => "killed by a signal".to_owned(),
            }),
        };
        // A tier without tests makes none.
        let skips = fs::read_to_string(&skips).unwrap_or_default();
        Ok(Row {
            tier: target.to_owned(),
            sums: tier.sums,
            skips: table::skips(&skips),
            took: started.elapsed(),
            problem,
        })
    }
}
