//! The process of an exec session: the container's own process, with the changes of the command line.
//!
//! libcontainer makes a session with few of the container's properties, and as root. A session in a container
//! of another user must run as that user, with its limits, as under runc.

use std::fs;
use std::path::Path;
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use libcontainer::container::Container;
use libcontainer::oci_spec::runtime::{Capability, Process};
use liboci_cli::Exec;
use serde_json::{Map, Value, json};

use super::FAILED;

/// Capability sets that a capability of the command line is added to. Not the inheritable set: from there a
/// program that has file capabilities would get it from a process that must not have it (CVE-2022-29162).
const SETS: [&str; 3] = ["bounding", "effective", "permitted"];
/// Also added to, if the container's process has the capability inheritable: otherwise the kernel refuses it.
const AMBIENT: &str = "ambient";
/// Age after which a session's socket is unused.
const UNUSED: Duration = Duration::from_secs(60);

/// Returns the process of a session, in the form of `process.json`.
pub(super) fn process(args: &Exec, container: &Container) -> Result<Value, Failure> {
    if let Some(file) = &args.process {
        let Value::Object(mut process) = read(file)? else {
            return Err(unreadable(file, &"it is not a JSON object"));
        };
        completed(&mut process);
        let process = Value::Object(process);
        // The file is named here, because libcontainer reads a copy.
        return match serde_json::from_value::<Process>(process.clone()) {
            Ok(_) => Ok(process),
            Err(cause) => Err(unreadable(file, &cause)),
        };
    }
    if args.command.is_empty() {
        let help = "name the command behind the container, or a file with --process";
        return Err(Failure::new(Exit::BadInput, "no command given").help(help));
    }
    let file = container.bundle().join("config.json");
    let mut spec = read(&file)?;
    let Some(Value::Object(process)) = spec.get_mut("process").map(Value::take) else {
        let message = format!("{} has no process to begin with", file.display());
        let help = "say all of it with --process";
        return Err(Failure::new(Exit::Command(FAILED), message).help(help));
    };
    changed(args, process)
}

fn read(file: &Path) -> Result<Value, Failure> {
    let text = fs::read_to_string(file).map_err(|cause| unreadable(file, &cause))?;
    serde_json::from_str(&text).map_err(|cause| unreadable(file, &cause))
}

fn unreadable(file: &Path, cause: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot read {}: {cause}", file.display());
    Failure::new(Exit::Command(FAILED), message)
        .help("see the OCI runtime specification for its keys")
}

/// Adds what was left out. As under runc, that means root and no capabilities; libcontainer would refuse the
/// first and grant all for the second.
fn completed(process: &mut Map<String, Value>) {
    let user = object(process, "user");
    for id in ["uid", "gid"] {
        user.entry(id).or_insert(json!(0));
    }
    let sets = object(process, "capabilities");
    for set in SETS.into_iter().chain(["inheritable", AMBIENT]) {
        sets.entry(set).or_insert(json!([]));
    }
}

/// Removes sockets that sessions have left in their container's folder. A socket is used at once or never.
/// Recent ones, which may belong to another session that is starting, are kept.
pub(super) fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_sessions = entry.file_name().to_string_lossy().starts_with("tenant-");
        let age = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = age.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > UNUSED));
        if is_sessions && is_old {
            // Another session may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn changed(args: &Exec, mut process: Map<String, Value>) -> Result<Value, Failure> {
    completed(&mut process);
    process.insert("args".to_owned(), json!(args.command));
    process.insert("terminal".to_owned(), json!(args.tty));
    let texts = [
        ("apparmorProfile", args.apparmor.as_ref()),
        ("selinuxLabel", args.process_label.as_ref()),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            process.insert(key.to_owned(), json!(text));
        }
    }
    if let Some(cwd) = &args.cwd {
        process.insert("cwd".to_owned(), json!(cwd));
    }
    if args.no_new_privs {
        process.insert("noNewPrivileges".to_owned(), json!(true));
    }
    let environment = args
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    append(&mut process, "env", environment.map(Value::from));
    let user = object(&mut process, "user");
    if let Some((uid, gid)) = args.user {
        user.insert("uid".to_owned(), json!(uid));
        if let Some(gid) = gid {
            user.insert("gid".to_owned(), json!(gid));
        }
    }
    let groups = args.additional_gids.iter().copied();
    append(user, "additionalGids", groups.map(Value::from));
    if !args.cap.is_empty() {
        let sets = object(&mut process, "capabilities");
        for name in &args.cap {
            let known = serde_json::from_value::<Capability>(json!(name)).map_err(|_unknown| {
                Failure::new(Exit::BadInput, format!("unknown capability {name}"))
                    .help("capabilities(7) names them, for example CAP_NET_RAW")
            })?;
            // The name in its standard spelling.
            let name = json!(known);
            let is_inheritable = sets
                .get("inheritable")
                .and_then(Value::as_array)
                .is_some_and(|inheritable| inheritable.contains(&name));
            for set in SETS.into_iter().chain(is_inheritable.then_some(AMBIENT)) {
                append(sets, set, std::iter::once(name.clone()));
            }
        }
    }
    Ok(Value::Object(process))
}

/// Returns the object at a key. Creates it if it does not exist.
fn object<'a>(parent: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = parent.entry(key).or_insert(Value::Null);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was made one")
}

/// Appends to the list at a key. Creates it if it does not exist.
fn append(parent: &mut Map<String, Value>, key: &str, more: impl Iterator<Item = Value>) {
    let mut more = more.peekable();
    if more.peek().is_none() {
        return;
    }
    let value = parent.entry(key).or_insert(Value::Null);
    match value {
        Value::Array(list) => list.extend(more),
        _ => *value = more.collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        exec: Exec,
    }

    fn made(words: &[&str], process: Value) -> Result<Value, Failure> {
        let line = Line::try_parse_from([&["exec"], words, &["c", "ls", "-l"]].concat()).unwrap();
        let Value::Object(process) = process else {
            panic!("{process}");
        };
        changed(&line.exec, process)
    }

    #[test]
    fn a_session_is_its_containers_process_with_another_command() {
        let containers = json!({
            "terminal": true, "user": {"uid": 1000, "gid": 1000, "additionalGids": [5]}, "args": ["sleep"],
            "env": ["PATH=/bin"], "cwd": "/tmp", "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 7, "soft": 6}],
            "capabilities": {
                "bounding": ["CAP_KILL"], "effective": [], "permitted": [], "inheritable": [], "ambient": [],
            },
            "noNewPrivileges": true,
        });
        let mut expected = containers.clone();
        expected["args"] = json!(["ls", "-l"]);
        expected["terminal"] = json!(false);
        assert_eq!(made(&[], containers).unwrap(), expected);
    }

    #[test]
    fn what_the_command_line_says_is_changed_or_added() {
        let words = "-t --cwd /x --env A=b=c --user 7:8 -g 9 --cap CAP_NET_RAW --cap CAP_KILL --no-new-privs --apparmor p \
            --process-label l";
        let words: Vec<_> = words.split(' ').filter(|word| !word.is_empty()).collect();
        let containers = json!({
            "user": {"uid": 1000, "additionalGids": [5]}, "env": ["PATH=/bin"], "cwd": "/tmp",
            "capabilities": {"bounding": ["CAP_CHOWN"], "inheritable": ["CAP_KILL"]},
        });
        let expected = json!({
            "user": {"uid": 7, "additionalGids": [5, 9], "gid": 8}, "env": ["PATH=/bin", "A=b=c"], "cwd": "/x",
            "capabilities": {
                "bounding": ["CAP_CHOWN", "CAP_NET_RAW", "CAP_KILL"], "inheritable": ["CAP_KILL"],
                "effective": ["CAP_NET_RAW", "CAP_KILL"], "permitted": ["CAP_NET_RAW", "CAP_KILL"],
                "ambient": ["CAP_KILL"],
            },
            "args": ["ls", "-l"], "terminal": true, "apparmorProfile": "p", "selinuxLabel": "l",
            "noNewPrivileges": true,
        });
        assert_eq!(made(&words, containers).unwrap(), expected);
    }

    #[test]
    fn what_is_missing_is_made_and_what_is_unknown_is_named() {
        let made_of_nothing = made(&["--user", "7", "--cap", "kill"], json!({})).unwrap();
        assert_eq!(made_of_nothing["user"], json!({"uid": 7, "gid": 0}));
        let capabilities = &made_of_nothing["capabilities"];
        assert_eq!(capabilities["bounding"], json!(["CAP_KILL"]));
        assert_eq!(capabilities["inheritable"], json!([]));
        let failure = made(&["--cap", "CAP_KIL"], json!({})).unwrap_err();
        assert_eq!(failure.message(), "unknown capability CAP_KIL");
    }
}
