//! Parts of tollgate, measured separately as command lines.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;
use crate::background_command::{start, wait};

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Events of a recording, evaluated by rules.
    ReplayRules,
    /// Events of a recording, searched by a condition.
    ReplayFilter,
    /// From a call to its alert.
    AlertLatency,
    /// `tollgate run` of a program that does nothing.
    Start,
}

/// Copies of a recording that are replayed at once, so that the start of the program matters little.
const COPIES: u32 = 20;

/// Measures `part` for about `seconds`. Returns the line of JSON that the runner reads.
///
/// # Errors
///
/// If a program fails or its output cannot be parsed.
pub(crate) fn run(program: &Path, part: Part, seconds: f64) -> Result<String, Error> {
    let folder = crate::scratch()?;
    let mut extra = BTreeMap::new();
    let (operations, elapsed) = match part {
        Part::ReplayRules => replay(program, folder.path(), &[])?,
        Part::ReplayFilter => {
            let condition = "fd.name contains /no-such-file and proc.name = nobody";
            replay(program, folder.path(), &["--filter", condition])?
        }
        Part::AlertLatency => alerts(program, folder.path(), seconds, &mut extra)?,
        Part::Start => starts(program, seconds)?,
    };
    Ok(line(operations, elapsed, extra))
}

fn line(operations: u64, elapsed: Duration, extra: BTreeMap<&'static str, f64>) -> String {
    let line = Line {
        operations,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        extra,
    };
    serde_json::to_string(&line).expect("numbers and names are JSON") + "\n"
}

/// The result line of a workload.
#[derive(Serialize)]
struct Line {
    operations: u64,
    elapsed_ns: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<&'static str, f64>,
}

/// Runs a program and returns its standard output and standard error.
fn output(command: &mut Command) -> Result<(String, String), Error> {
    let line = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: line.clone(),
            line: line.clone(),
            source,
        })?;
    let [said, complaints] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    if output.status.success() {
        return Ok((said, complaints));
    }
    Err(Error::Stage {
        reason: format!("{line} ended with {}: {complaints}", output.status),
    })
}

/// Returns the events of many copies minus those of one, and the time of many minus that of one.
fn replay(program: &Path, folder: &Path, arguments: &[&str]) -> Result<(u64, Duration), Error> {
    let capture = folder.join("events.scap");
    let mut record = Command::new(program);
    record.args(["run", "-q", "-w"]).arg(&capture).args([
        "-o",
        "stdout_output.enabled=false",
        "--",
    ]);
    output(
        record
            .arg(program)
            .args(["workload", "shell_tree", "--operations", "2"]),
    )?;
    let timed = |copies: u32| -> Result<(u64, Duration), Error> {
        let mut replay = Command::new(program);
        replay.args(["replay", "-q", "--stats"]).args(arguments);
        replay.args((0..copies).map(|_| &capture));
        let start = Instant::now();
        let (_, said) = output(&mut replay)?;
        let elapsed = start.elapsed();
        Ok((events_in(&said)?, elapsed))
    };
    let (one, many) = (timed(1)?, timed(COPIES)?);
    let (events, elapsed) = (many.0 - one.0.min(many.0), many.1.saturating_sub(one.1));
    if events == 0 || elapsed.is_zero() {
        return Err(Error::Stage {
            reason: format!(
                "the recording has too few events: {} in {:?}",
                many.0, many.1
            ),
        });
    }
    Ok((events, elapsed))
}

/// Parses `4031 events in 0.920 s ...`.
fn events_in(said: &str) -> Result<u64, Error> {
    said.lines()
        .find_map(|line| line.split_once(" events in ")?.0.trim().parse().ok())
        .ok_or_else(|| Error::Stage {
            reason: format!("cannot read the number of events that replay printed: {said}"),
        })
}

/// Measures the time from asking a shell to open a file until its alert has been read. The shell opens the file
/// itself, so that no process is started meanwhile.
fn alerts(
    program: &Path,
    folder: &Path,
    seconds: f64,
    extra: &mut BTreeMap<&'static str, f64>,
) -> Result<(u64, Duration), Error> {
    let mut child = watched_shell(program, folder)?;
    let mut to = child.stdin.take().expect("it is a pipe");
    let mut from = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let fail = Error::supervise("talk to", "tollgate run");
    let mut line = String::new();
    let (mut count, mut latencies, mut begin) = (0_u64, Vec::new(), Instant::now());
    // The first alert shows that everything has started. A start that takes longer than `seconds` leaves time for others.
    while count < 2 || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        to.write_all(b"go\n").map_err(&fail)?;
        line.clear();
        if from.read_line(&mut line).map_err(&fail)? == 0 {
            break;
        }
        match count {
            0 => begin = Instant::now(),
            _ => latencies.push(start.elapsed().as_secs_f64() * 1e9),
        }
        count += 1;
    }
    drop(to);
    child.wait().map_err(&fail)?;
    let sum = Duration::from_secs_f64(latencies.iter().sum::<f64>() / 1e9);
    let Ok(sample) = stats::Sample::new(latencies) else {
        return Err(Error::Stage {
            reason: "no alerts came".to_owned(),
        });
    };
    for (name, at) in [("p50_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99)] {
        // Far percentiles are given only if enough alerts lie beyond them.
        if sample.len() as f64 * (1.0 - at) >= 10.0 || at == 0.5 {
            extra.insert(name, sample.quantile(at));
        }
    }
    Ok((count - 1, sum))
}

/// Starts a shell under `tollgate run` with a rule about a file. The shell opens the file once for each line
/// that it reads.
fn watched_shell(program: &Path, folder: &Path) -> Result<Child, Error> {
    let file = folder.join("watched");
    fs::write(&file, "").map_err(Error::file("write", &file))?;
    let rules = folder.join("rules.yaml");
    let text = format!(
        "- rule: Opened\n  desc: the measured open\n  condition: evt.type in (open, openat) and fd.name = {}\n  \
         output: opened\n  priority: NOTICE\n",
        file.display()
    );
    fs::write(&rules, text).map_err(Error::file("write", &rules))?;
    let script = "while read -r line; do : < \"$0\"; done";
    let mut command = Command::new(program);
    command
        .args([
            "run",
            "-q",
            "--log",
            "-",
            "-o",
            "buffered_outputs=false",
            "-r",
        ])
        .arg(&rules);
    command.args(["--", "/bin/sh", "-c", script]).arg(&file);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Start {
            program: program.display().to_string(),
            line: format!("{command:?}"),
            source,
        })
}

fn starts(program: &Path, seconds: f64) -> Result<(u64, Duration), Error> {
    let (mut count, begin) = (0, Instant::now());
    while count == 0 || begin.elapsed().as_secs_f64() < seconds {
        output(Command::new(program).args(["run", "-q", "--", "/bin/true"]))?;
        count += 1;
    }
    Ok((count, begin.elapsed()))
}

/// Rare system calls, named one by one in rules to make a filter of a wanted size.
const RARE: [&str; 60] = [
    "acct",
    "chroot",
    "pivot_root",
    "swapon",
    "swapoff",
    "mount",
    "umount2",
    "reboot",
    "sethostname",
    "setdomainname",
    "init_module",
    "delete_module",
    "finit_module",
    "quotactl",
    "settimeofday",
    "adjtimex",
    "clock_settime",
    "kexec_load",
    "add_key",
    "request_key",
    "keyctl",
    "ioprio_set",
    "unshare",
    "setns",
    "fanotify_init",
    "name_to_handle_at",
    "open_by_handle_at",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "bpf",
    "userfaultfd",
    "perf_event_open",
    "syslog",
    "ptrace",
    "personality",
    "mknod",
    "mknodat",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "unlink",
    "unlinkat",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
];

/// Runs the command under `tollgate run` with one rule: about `size` rare calls, or about every open.
///
/// # Errors
///
/// If `size` is not a number, or the program does not start.
pub(crate) fn filter(program: &Path, size: &str, command: &[String]) -> Result<u8, Error> {
    let stop = crate::Stop::on_signals()?;
    let condition = match size {
        "opens" => "evt.type in (open, openat) and fd.name regex .*/no-such-file".to_owned(),
        _ => {
            let count = size
                .parse::<usize>()
                .ok()
                .filter(|count| (1..=RARE.len()).contains(count));
            let count = count.ok_or_else(|| Error::Option {
                option: format!("bench filter {size}"),
                reason: format!("expected `opens` or a number up to {}", RARE.len()),
            })?;
            format!(
                "evt.type in ({}) and proc.aname = nobody",
                RARE[..count].join(", ")
            )
        }
    };
    let folder = crate::scratch()?;
    let rules: PathBuf = folder.path().join("rules.yaml");
    let text = format!(
        "- rule: Measured\n  desc: a rule that nothing matches\n  condition: {condition}\n  output: matched\n  \
         priority: DEBUG\n"
    );
    fs::write(&rules, text).map_err(Error::file("write", &rules))?;
    let mut child = start(
        Command::new(program)
            .args(["run", "-q", "-r"])
            .arg(&rules)
            .arg("--")
            .args(command),
        "tollgate",
    )?;
    wait(&stop, &mut child, Duration::MAX).map(crate::background_command::code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_events_is_read() {
        let said = "4031 events in 0.920 s (4380/s); 963 evaluated\n        1  A rule\n";
        assert_eq!(events_in(said).unwrap(), 4031);
        assert!(events_in("nothing").is_err());
    }

    #[test]
    fn the_line_tells_the_other_figures_too() {
        let extra = BTreeMap::from([("p50_ns", 2.5)]);
        assert_eq!(
            line(3, Duration::from_nanos(7), extra),
            "{\"operations\":3,\"elapsed_ns\":7,\"extra\":{\"p50_ns\":2.5}}\n"
        );
        assert_eq!(
            line(3, Duration::from_nanos(7), BTreeMap::new()),
            "{\"operations\":3,\"elapsed_ns\":7}\n"
        );
    }

    #[test]
    fn filters_have_a_size_within_the_list() {
        let distinct: std::collections::BTreeSet<_> = RARE.iter().collect();
        assert_eq!(distinct.len(), RARE.len());
        for wrong in ["0", "61", "many"] {
            let error = filter(Path::new("/bin/true"), wrong, &[]).unwrap_err();
            assert!(error.to_string().contains("up to 60"), "{error}");
        }
    }
}
