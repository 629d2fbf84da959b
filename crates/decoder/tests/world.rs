//! Tests [`LiveSystemInfo`] with programs that try to hide from it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decoder::system_info::{LiveSystemInfo, ProcessIndex, SystemInfoOptions};
use event::{Lookup, Pid, Process, SystemInfo};

struct NoIndex;

impl ProcessIndex for NoIndex {
    fn process(&self, _: Pid) -> Lookup<Arc<Process>> {
        Lookup::Missing
    }
}

/// Length of the argument that loses a page.
const LONG: usize = 20_000;

/// Returns the system's answers with this deadline.
fn world_within(deadline: Duration) -> LiveSystemInfo {
    let options = SystemInfoOptions {
        deadline,
        ..SystemInfoOptions::default()
    };
    LiveSystemInfo::new(options, Arc::new(NoIndex)).expect("/proc is there")
}

#[test]
fn arguments_behind_userfaultfd_do_not_hold_the_agent() {
    let directory = std::env::temp_dir().join(format!("world-hang-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/hanging.c");
    let binary = directory.join("hanging");
    let built = Command::new("gcc")
        .arg("-o")
        .arg(&binary)
        .arg(source)
        .status();
    let Ok(built) = built else {
        testing::skip!("needs gcc", || Ok("it cannot be started".to_owned()));
    };
    assert!(built.success(), "the program is built");
    let mut child = Command::new(&binary)
        .arg("x".repeat(LONG))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was just built");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it prints text");
    if line != "ready\n" {
        let status = child.wait().expect("it has ended");
        testing::skip!("needs userfaultfd", || match status.code() {
            Some(77) => Ok("the kernel refuses it".to_owned()),
            other => Err(format!("the program ended with {other:?}")),
        });
    }

    let time = Duration::from_millis(50);
    let world = world_within(time);
    let pid = i32::try_from(child.id()).expect("pids are small");
    let stat = world.proc().stat(pid).expect("it runs");
    let process = Process::new(Pid(pid), stat.start, 0, None, Arc::default(), stat.comm);
    let image = process.image();
    let begun = Instant::now();
    let answer = world.command_line(&process, &image);
    let spent = begun.elapsed();
    // Everything else about it is still reported.
    let comm = world.comm(&process);
    let executable = world.executable(&process, &image);

    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    std::fs::remove_dir_all(&directory).expect("it is ours");

    assert!(spent < time * 20, "held for {spent:?}");
    // Linux 6.18 ends the read at the page instead of waiting for it; should another kernel wait,
    // the deadline passes.
    match answer {
        Lookup::Unknown => {}
        Lookup::Found(line) => assert!(line.args[0].len() < LONG, "the page must be missing"),
        Lookup::Missing => panic!("a program has arguments"),
    }
    assert_eq!(comm, Lookup::Found(event::Comm::new(b"hanging")));
    assert!(matches!(executable, Lookup::Found(_)));
}
