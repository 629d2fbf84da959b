//! The process that sets up the environment of a pass and runs the scripts there, each watched by a `tollgate
//! run` of its own. It reports on standard output.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abi::{Arch, Signal, Syscall};
use serde_json::Value;
use sys::clone::CloneFlags;
use sys::credential::{self, CapabilitySets, Ids};

use super::action::{ACTIONS, Action, NUMBERS, PRELUDE, PREPARATION, PlayTarget};
use super::report::Report;
use super::rootfs;
use crate::detector::CONFIG_VARIABLE;

/// Environment of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Root with a container's usual capabilities, in a container-like set of namespaces.
    Container,
    /// An ordinary user after chroot(2), set up by root.
    User,
    /// An ordinary user in a user namespace that an ordinary user made.
    UserNamespace,
}

/// Capabilities that Docker leaves to root in a container.
const CONTAINER_CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The ordinary user's id.
const USER: u32 = 1000;
/// Host name, in the form of a container's.
const CONTAINER_NAME: &[u8] = b"d3m0c0ffee42";
/// Time limit of one script.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(10);
/// Statistics file of each run's agent, which is not watched.
const STATS: &str = "/run/demo/stats";
/// Interval at which ended orphans are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(20);
/// File for the output of scripts.
const OUTPUT: &str = "/run/demo/output";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type Result<T> = std::result::Result<T, String>;

/// Makes the pass. Failures are reported as messages, too.
pub(crate) fn play(stage: Stage) -> i32 {
    let outcome = separate(stage).and_then(|()| {
        sys::clone::clone_child(CloneFlags::default(), || match perform(stage) {
            Ok(()) => 0,
            Err(why) => tell(&Report::Failed { why }),
        })
        .map_err(|error| format!("cannot make the first process of the pass: {error}"))
    });
    match outcome {
        Ok(_pid) => {
            let ended = sys::wait::wait(sys::wait::Target::Any, 0);
            ended
                .ok()
                .flatten()
                .and_then(|(_, status)| status.shell_code())
                .unwrap_or(1)
        }
        Err(why) => tell(&Report::Failed { why }),
    }
}

/// Leaves the host's namespaces. The next child is the first process of the new ones.
fn separate(stage: Stage) -> Result<()> {
    // The printing process is the only reader, so this process ends with it.
    sys::prctl::set_parent_death_signal(Signal::SIGKILL.0).map_err(|error| error.to_string())?;
    let common = CloneFlags::NEWNS | CloneFlags::NEWPID | CloneFlags::NEWNET | CloneFlags::NEWIPC;
    let kinds = match stage {
        Stage::Container => common | CloneFlags::NEWCGROUP | CloneFlags::NEWUTS,
        Stage::User => common,
        Stage::UserNamespace => common | CloneFlags::NEWUSER,
    };
    let users = credential::users().map_err(|error| error.to_string())?;
    let groups = credential::groups().map_err(|error| error.to_string())?;
    sys::namespace::unshare(kinds.0).map_err(|error| format!("cannot make namespaces: {error}"))?;
    if stage == Stage::UserNamespace {
        map_ids(0, users.effective, groups.effective)?;
    }
    Ok(())
}

/// Maps this process's user and group to the number `inside` in the new user namespace.
fn map_ids(inside: u32, user: u32, group: u32) -> Result<()> {
    let put = |file: &str, text: String| {
        fs::write(Path::new("/proc/self").join(file), text)
            .map_err(|error| format!("cannot write /proc/self/{file}: {error}"))
    };
    put("setgroups", "deny".into())?;
    put("uid_map", format!("{inside} {user} 1\n"))?;
    put("gid_map", format!("{inside} {group} 1\n"))
}

/// Runs the first process of the pass.
fn perform(stage: Stage) -> Result<()> {
    sys::prctl::set_parent_death_signal(Signal::SIGKILL.0).map_err(|error| error.to_string())?;
    // Leaves the caller's terminal, whose job control does not apply here.
    sys::file::new_session().map_err(|error| error.to_string())?;
    let base = rootfs::base()?;
    match stage {
        Stage::Container => {
            sys::namespace::set_host_name(CONTAINER_NAME).map_err(|error| error.to_string())?;
            rootfs::pivot(&rootfs::layered(&base)?)?;
        }
        Stage::User => rootfs::chroot(&rootfs::bound(&base)?)?,
        Stage::UserNamespace => rootfs::pivot(&rootfs::bound(&base)?)?,
    }
    let network = raise_loopback();
    drop_rights(stage)?;
    let environment = environment(stage);
    prepare(&environment)?;
    for (index, action) in ACTIONS.iter().enumerate() {
        if action.place == PlayTarget::Container && stage != Stage::Container {
            continue;
        }
        if let Some(why) = hindrance(action, network.as_deref()) {
            tell(&Report::Skipped { action: index, why });
            continue;
        }
        for (twin, script) in [(false, action.script), (true, action.twin)] {
            tell(&Report::Begin {
                action: index,
                twin,
            });
            let end = watch(script, &environment)?;
            tell(&end);
        }
    }
    Ok(())
}

/// Brings the loopback interface up. Returns the reason if that fails.
fn raise_loopback() -> Option<String> {
    let tries = [
        ("ip", vec!["link", "set", "lo", "up"]),
        ("busybox", vec!["ip", "link", "set", "lo", "up"]),
    ];
    for (program, arguments) in tries {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("PATH", PATH)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if command.status().is_ok_and(|status| status.success()) {
            return None;
        }
    }
    Some("neither ip nor busybox could bring up the loopback device".into())
}

fn drop_rights(stage: Stage) -> Result<()> {
    let describe_error = |error: sys::SyscallError| format!("cannot drop privileges: {error}");
    let kept: Vec<u8> = match stage {
        Stage::Container => CONTAINER_CAPABILITIES
            .iter()
            .filter_map(|name| abi::capability::from_name(name))
            .collect(),
        Stage::User | Stage::UserNamespace => Vec::new(),
    };
    if stage == Stage::UserNamespace {
        // A user that is not root inside either: one more namespace, without capabilities.
        sys::namespace::unshare(CloneFlags::NEWUSER.0).map_err(describe_error)?;
        map_ids(USER, 0, 0)?;
    }
    for number in 0..=abi::capability::LAST {
        if !kept.contains(&number) && sys::prctl::bounding_capability(number).unwrap_or(false) {
            sys::prctl::drop_bounding_capability(number).map_err(describe_error)?;
        }
    }
    if stage == Stage::User {
        let ids = Ids {
            real: USER,
            effective: USER,
            saved: USER,
        };
        credential::set_supplementary_groups(&[]).map_err(describe_error)?;
        credential::set_groups(ids).map_err(describe_error)?;
        credential::set_users(ids).map_err(describe_error)?;
    }
    let set = abi::Capabilities(kept.iter().fold(0, |set, number| set | 1 << number));
    let none = abi::Capabilities(0);
    credential::set_capabilities(CapabilitySets {
        effective: set,
        permitted: set,
        inheritable: none,
    })
    .map_err(describe_error)?;
    // When its user changes, the kernel denies a process access to its own /proc entries.
    sys::prctl::set_dumpable(true).map_err(describe_error)
}

/// Returns the scripts' environment variables: none of the caller's.
fn environment(stage: Stage) -> BTreeMap<String, String> {
    let home = if stage == Stage::Container {
        "/root"
    } else {
        "/home/demo"
    };
    let mut variables = BTreeMap::from([
        ("HOME".to_owned(), home.to_owned()),
        ("PATH".to_owned(), PATH.to_owned()),
        ("LC_ALL".to_owned(), "C".to_owned()),
        ("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned()),
    ]);
    for name in NUMBERS {
        let number = Arch::native().and_then(|arch| Syscall::from_name(name)?.number(arch));
        if let Some(number) = number {
            variables.insert(format!("NR_{name}"), number.to_string());
        }
    }
    variables
}

fn prepare(environment: &BTreeMap<String, String>) -> Result<()> {
    let output = Command::new("/bin/sh")
        .args(["-c", PREPARATION])
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run /bin/sh: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "cannot prepare files: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// Returns the reason why an action cannot be tried.
fn hindrance(action: &Action, network: Option<&str>) -> Option<String> {
    for &need in action.needs {
        if need.starts_with("busybox:")
            && let Some(why) = network
        {
            return Some(why.to_owned());
        }
        let found = match need.split_once(':') {
            None => is_program(need),
            Some((program, applet)) => is_program(program) && has_applet(program, applet),
        };
        if !found {
            return Some(format!("{need} not found"));
        }
    }
    None
}

fn is_program(name: &str) -> bool {
    PATH.split(':').any(|dir| {
        let file = fs::metadata(Path::new(dir).join(name));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

fn has_applet(program: &str, applet: &str) -> bool {
    let list = Command::new(program)
        .arg("--list")
        .env("PATH", PATH)
        .output();
    list.is_ok_and(|list| {
        String::from_utf8_lossy(&list.stdout)
            .lines()
            .any(|line| line == applet)
    })
}

/// Runs one script under `tollgate run` and reports its alerts.
fn watch(script: &str, environment: &BTreeMap<String, String>) -> Result<Report> {
    let mut child = Command::new("/proc/self/exe")
        .args(["run", "--quiet", "--json", "--log", "-", "-s", STATS])
        // Adds the time of the event as a number to the output of rules.
        .args(["-o", "append_output[0].extra_fields[0]=evt.rawtime", "--"])
        .args(["/bin/sh", "-c", &format!("{PRELUDE}\n{script}\n")])
        .env_clear()
        .envs(environment)
        .env(CONFIG_VARIABLE, "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start tollgate run: {error}"))?;
    let problem = collect(&mut child)?;
    let counted = fs::read_to_string(STATS)
        .ok()
        .and_then(|stats| dropped(&stats));
    // Readable by us; unlinked so that the next run starts a new file.
    let _ = fs::remove_file(STATS);
    let output = fs::read(OUTPUT).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let uncounted = || Some("tollgate run left no counters".to_owned());
    let problem = if counted.is_some() {
        problem
    } else {
        problem.or_else(uncounted)
    };
    Ok(Report::End {
        problem,
        dropped: counted.unwrap_or(0),
        output: output.unwrap_or_default(),
    })
}

/// Reads alerts until the run has ended. Returns the error, if any.
fn collect(child: &mut Child) -> Result<Option<String>> {
    let stdout = child
        .stdout
        .take()
        .ok_or("cannot read the alerts: no pipe")?;
    let mut stderr = child
        .stderr
        .take()
        .ok_or("cannot read the messages: no pipe")?;
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout)
            .lines()
            .map_while(std::result::Result::ok)
        {
            // The receiver exists until this end closes.
            let _ = sender.send((line, now_ns()));
        }
    });
    let messages = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let deadline = Instant::now() + SCRIPT_DEADLINE;
    let mut problem = None;
    loop {
        reap_orphans(child.id());
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(REAP_INTERVAL)) {
            Ok((line, arrived_ns)) => match serde_json::from_str(&line) {
                Ok(alert) => _ = tell(&Report::Alert { alert, arrived_ns }),
                Err(error) => problem = Some(format!("cannot read alert: {error}: {line}")),
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if left > REAP_INTERVAL => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                problem = Some(format!(
                    "did not exit within {} s",
                    SCRIPT_DEADLINE.as_secs()
                ));
                kill_all_others();
                break;
            }
        }
    }
    let status = child
        .wait()
        .map_err(|error| format!("cannot wait for tollgate run: {error}"))?;
    // Both end when the writers of the pipes are gone.
    let _ = reader.join();
    let messages = messages.join().unwrap_or_default();
    Ok(problem.or_else(|| problem_of(status, messages.trim())))
}

/// Returns the problem that a run reported, or that its exit status shows.
fn problem_of(status: ExitStatus, messages: &str) -> Option<String> {
    if !messages.is_empty() {
        return Some(messages.to_owned());
    }
    let has_failed = matches!(status.code(), None | Some(2..=4)) && !Path::new(OUTPUT).exists();
    has_failed.then(|| format!("tollgate run exited with {status}"))
}

/// Reaps the orphans of scripts, as the first process of a pid namespace has to. Before Linux 6.11 a process
/// that is dead and not reaped keeps its seccomp filter, and so the monitor, alive.
fn reap_orphans(run: u32) {
    while let Ok(Some(pid)) = sys::wait::peek_end() {
        if u32::try_from(pid) == Ok(run) {
            return;
        }
        // The process was just seen, and only this process waits for it.
        let _ = sys::wait::wait(sys::wait::Target::Pid(pid), sys::wait::ALL);
    }
}

/// Kills every process of this pid namespace except this one, the first. Twice, for processes that were forked
/// meanwhile.
fn kill_all_others() {
    for _ in 0..2 {
        let Ok(entries) = fs::read_dir("/proc") else {
            return;
        };
        for entry in entries.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid.filter(|&pid: &i32| pid > 1) {
                // The process may have ended already.
                let _ = sys::signal::send(pid, Signal::SIGKILL.0);
            }
        }
    }
}

/// Returns the number of lost events and alerts from the last line of the stats file.
fn dropped(stats: &str) -> Option<u64> {
    let last: Value = serde_json::from_str(stats.lines().last()?).ok()?;
    Some(last["cur"]["drops"].as_u64()? + lost_in(&last))
}

fn lost_in(value: &Value) -> u64 {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| match value.as_u64() {
                Some(count) if name.starts_with("lost_") => count,
                _ => lost_in(value),
            })
            .sum(),
        Value::Array(values) => values.iter().map(lost_in).sum(),
        _ => 0,
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a message. Returns an exit status: without a reader there is nothing left to do.
fn tell(report: &Report) -> i32 {
    let mut out = std::io::stdout().lock();
    match out
        .write_all(report.line().as_bytes())
        .and_then(|()| out.flush())
    {
        Ok(()) => 1,
        Err(_nobody) => sys::exec::exit_now(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_summed_over_events_and_channels() {
        let line =
            r#"{"cur":{"drops":2},"channels":[{"lost_queue_full":3,"lost_write_failed":4}]}"#;
        assert_eq!(dropped(&format!("{{}}\n{line}\n")), Some(9));
        assert_eq!(dropped(""), None);
        assert_eq!(dropped("{}"), None);
    }

    #[test]
    fn capabilities_have_their_kernel_names() {
        for name in CONTAINER_CAPABILITIES {
            assert!(abi::capability::from_name(name).is_some(), "{name}");
        }
    }
}
